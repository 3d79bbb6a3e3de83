"""Prompts word for word, and how replies are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.replies import format_reply
from envs.webshop.protocol import (
    LONGEST_PROMPT,
    Listed,
    PromptStyle,
    View,
    check_style,
    clickables,
    format_prompt,
    parse_reply,
    query_words,
    shortened,
    spoken,
    understood,
    without_task,
)

GOAL = "i need a red stool that is sturdy, and price lower than 40.00 dollars"
INDEX = f"WebShop [SEP] Instruction: [SEP] {GOAL} [SEP] Search"
RESULTS = (
    f"Instruction: [SEP] {GOAL} [SEP] Back to Search [SEP] Page 2 (Total results: 12) [SEP] < Prev [SEP] Next > [SEP] "
    "B001 [SEP] Oak Stool, Sturdy [SEP] $30.5"
)
ITEM = (
    f"Instruction: [SEP] {GOAL} [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] Oak Stool, Sturdy [SEP] "
    "Price: $30.5 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
)
PUBLISHED = PromptStyle()
BRIEF = PromptStyle(think=False, actions="none", wording="brief")
LISTED = View("results", "stool", 2, 12, (Listed("b001", "Oak Stool, Sturdy", "$30.5"), Listed("b002", "Bed", "$5.0")))
ITEM_VIEW = View("item", "stool", 2, products=LISTED.products[:1], options=(("color", ("red", "navy | blue", "5.5")),))


def info(step, page, *actions, style=PUBLISHED):
    return {"step": step, "goal": GOAL, "available_actions": actions, "page": page, "style": style}


ON_RESULTS = ("click[back to search]", "click[< prev]", "click[next >]", "click[b001]", "click[b002]")
ON_ITEM = ("click[back to search]", "click[buy now]", "click[red]", "click[navy | blue]", "click[5.5]")


def test_the_first_prompt_word_for_word():
    about = info(0, View("index"), "search[<your query>]", "click[search]")
    assert format_prompt(INDEX, [], about) == (
        "You shop in WebShop, an online store told in words.\n"
        f"Your task: {GOAL}\n"
        "You now observe: 'Search'\n"
        "Actions that are possible here:\n"
        "['search[<your query>]'\n'click[search]']\n"
        "First reason step by step about what you found and what to do next, inside <think> </think> tags. "
        "Then choose one of the possible actions and give it inside <action> </action> tags."
    )


def test_a_later_prompt_numbers_what_came_before():
    history = [(INDEX, "search[stool]"), (RESULTS, "click[b001]")]
    assert format_prompt(ITEM, history, info(7, ITEM_VIEW, "click[buy now]")) == (
        "You shop in WebShop, an online store told in words.\n"
        f"Your task: {GOAL}\n"
        "Actions taken so far: 7. The last 2 observations and what you did then:\n"
        "[Observation 6: ''Search'', Action 6: 'search[stool]']\n"
        "[Observation 7: ''Back to Search' [SEP] 'Page 2 (Total results: 12)' [SEP] '< Prev' [SEP] 'Next >' [SEP] "
        "'B001' [SEP] 'Oak Stool, Sturdy' [SEP] '$30.5'', Action 7: 'click[b001]']\n"
        "This is step 8. You now observe: 'Back to Search' [SEP] '< Prev' [SEP] 'color' [SEP] 'red' [SEP] "
        "'Oak Stool, Sturdy' [SEP] 'Price: $30.5' [SEP] 'Rating: N.A.' [SEP] 'Description' [SEP] 'Features' [SEP] "
        "'Reviews' [SEP] 'Buy Now'\n"
        "Actions that are possible here:\n"
        "['click[buy now]']\n"
        "First reason step by step about what you found and what to do next, inside <think> </think> tags. "
        "Then choose one of the possible actions and give it inside <action> </action> tags."
    )


def test_without_thoughts_or_list():
    tags = "inside <action> </action> tags."
    prompt = format_prompt(INDEX, [], info(0, View("index"), style=PromptStyle(think=False, actions="none")))
    assert prompt.endswith(f"'Search'\nGive one action, search[your query] or click[a name], {tags}")
    prompt = format_prompt(INDEX, [], info(0, View("index"), "click[search]", style=PromptStyle(think=False)))
    assert prompt.endswith(f"['click[search]']\nChoose one of the possible actions and give it {tags}")


def test_a_prompt_that_grows_too_long_leaves_its_history_out():
    """The task stands at the beginning, where a cut at the limit of tokens would fall."""
    about = info(3, LISTED, *ON_RESULTS)
    alone = format_prompt(RESULTS, [], about)
    for length, kept in ((LONGEST_PROMPT // 2, True), (LONGEST_PROMPT, False)):
        prompt = format_prompt(RESULTS, [("x" * length, "click[b001]")], about)
        assert ("xxx" in prompt) == kept
        assert (prompt == alone) == (not kept)


def test_a_page_without_its_task():
    assert without_task(INDEX, GOAL) == "'Search'"
    assert without_task(RESULTS, GOAL).startswith("'Back to Search' [SEP] 'Page 2 (Total results: 12)' [SEP] ")
    for page in ("Thank you for shopping with us! [SEP] Your code:", "", "[button] Search [button_]\n"):
        assert without_task(page, GOAL) == page, "its task isn't on it"


def test_the_brief_prompts_word_for_word():
    history = [(INDEX, "search[stool]"), (RESULTS, "click[1]"), (ITEM, "click[description]")]
    page = shortened(View("subpage", text="A stool, made of Oak."))
    assert format_prompt("", history, info(3, page, style=BRIEF)) == (
        f"task {GOAL}\n"
        "before search\n"
        "you search[stool]\n"
        "before page 2\n"
        "you click[1]\n"
        "before oak stool sturdy\n"
        "you click[description]\n"
        "now text a stool made of oak\n"
        "you"
    )
    assert format_prompt("", [], info(1, shortened(LISTED), *ON_RESULTS, style=BRIEF._replace(actions="listed"))) == (
        f"task {GOAL}\n"
        "now page 2\n"
        "1 oak stool sturdy 40\n"
        "2 bed 10\n"
        "can click[back to search], click[< prev], click[next >], click[1], click[2]\n"
        "you"
    )
    assert format_prompt("", [], info(1, shortened(ITEM_VIEW), style=BRIEF)) == (
        f"task {GOAL}\nnow oak stool sturdy 40\ncolor: red, navy | blue, 5.5\nyou"
    )


def test_brief_prices_are_rounded_up_to_tens():
    tags = {"$12.5": "20", "$10.0": "10", "$12.5 to $19.99": "20", "$9.0 to $1234.5": "10 to 1240", "$100.0": "100"}
    listed = tuple(Listed("b", "", tag) for tag in tags)
    assert [product.price for product in shortened(View("results", products=listed)).products] == list(tags.values())


def test_in_the_brief_wording_products_go_by_number_and_spaces_do_not_count():
    on_results, on_item = info(1, LISTED, *ON_RESULTS, style=BRIEF), info(2, ITEM_VIEW, *ON_ITEM, style=BRIEF)
    for said, command in {
        "click[2]": "click[b002]",
        "click[ 1 ]": "click[b001]",
        "click [ b001 ]": "click[b001]",
        "click[next >]": "click[next >]",
        "click[3]": "click[3]",
        "search[ oak stool ]": "search[oak stool]",
        "search[1]": "search[1]",
        "buy now": "buy now",
    }.items():
        assert understood(said, on_results) == command
    on_page = {"click[ navy | blue ]": "click[navy | blue]", "click[5 . 5]": "click[5.5]", "click[1]": "click[1]"}
    for said, command in on_page.items():
        assert understood(said, on_item) == command
    assert [spoken(command, on_results) for command in ON_RESULTS[-2:]] == ["click[1]", "click[2]"]
    assert [spoken(command, on_item) for command in ON_ITEM] == list(ON_ITEM)
    in_full = info(1, LISTED, *ON_RESULTS)
    assert understood("click[1]", in_full) == spoken("click[1]", in_full) == "click[1]"
    assert understood("click[ b001 ]", in_full) == "click[ b001 ]", "as the published runs read it"
    assert spoken("click[b001]", in_full) == "click[b001]"


def test_what_can_be_clicked():
    assert clickables(info(0, View("index"), "search[<your query>]", "click[search]")) == ["search"]
    assert clickables(info(0, View("item"), "click[a [b] c]")) == ["a [b] c"]


def test_the_words_to_search_for():
    assert query_words(GOAL) == ["red", "stool", "sturdy"]
    assert query_words("i need it") == ["i", "need", "it"], "better than nothing"
    assert query_words("Find me a T-Shirt with size: 5.5, and color: navy | blue") == [
        *("t-shirt", "size", "5.5", "color", "navy", "blue")
    ]


@pytest.mark.parametrize(
    ("reply", "action", "valid"),
    [
        ("<think>a stool</think><action>search[stool]</action>", "search[stool]", True),
        ("<think></think>\n<action>  Click[Buy Now]\n</action> done", "click[buy now]", True),
        ("<think>a</think><ACTION>click[x]</Action>", "click[x]", True),  # tags of actions in any case
        ("<THINK>a</THINK><action>click[x]</action>", "click[x]", False),  # those of thoughts as written
        ("<action>click[x]</action>", "click[x]", False),
        ("<think><action>click[x]</action>", "click[x]", False),
        ("</think><action>click[x]</action><think>", "click[x]", True),  # looked for, not matched
        ("<think>a</think><action>click[x]</action><action>click[y]</action>", "click[x]", True),
        ("<think>a</think></action><action>click[x]", "", True),
        ("<think>a</think><action>fly to the moon</action>", "fly to the moon", True),  # well formed
        ("<think>买</think><action>click[x]</action>", "click[x]", False),
        ("click[buy now]", "click[buy now]", False),
        ("I would now click[b000000001]", "now click[b000000001]"[-20:], False),
        ("", "", False),
    ],
)
def test_reading_a_reply(reply, action, valid):
    assert parse_reply(reply) == (action, valid)


def test_thoughts_may_be_left_out():
    assert parse_reply("<action>click[x]</action>", think=False) == ("click[x]", True)
    assert parse_reply("click[x]", think=False) == ("click[x]", False)


@given(st.text(max_size=200), st.booleans())
def test_any_text_is_read(reply, think):
    action, valid = parse_reply(reply, think)
    assert valid or len(action) <= max(20, len(reply.lower()))
    for page in (LISTED, ITEM_VIEW):
        command = understood(action, info(1, page, *ON_RESULTS, style=BRIEF))
        assert understood(action, info(1, page, *ON_RESULTS)) == action
        assert isinstance(command, str)


@pytest.mark.parametrize("think", [True, False])
def test_what_is_written_is_read(think):
    assert parse_reply(format_reply("search[a stool]", think), think) == ("search[a stool]", True)


@pytest.mark.parametrize(
    ("style", "message"),
    [
        (PromptStyle(actions="short"), "the option actions is 'short', expected one of listed, none"),  # type: ignore
        (PromptStyle(wording="long"), "the option prompt is 'long', expected one of full, brief"),  # type: ignore
    ],
)
def test_bad_styles(style, message):
    with pytest.raises(ValueError, match=message):
        check_style(style)

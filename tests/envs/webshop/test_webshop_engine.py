"""Episodes: what each action does on each page, and that nothing crashes one."""

import pickle
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs.webshop.catalogue import make_catalogue
from envs.webshop.engine import FOUND, Session, Shop, parse_action
from envs.webshop.goals import make_goals
from envs.webshop.nouns import heuristic
from envs.webshop.search import SearchIndex

TRICKY = {"Color": ["Red", "Navy/Blue", "a [b] c"], "Size": ["Small", "Red", "Features", "Next >", "Search"]}


def entry(number, **fields):
    entry = {
        "asin": f"B{number:03}",
        "name": f"Stool number{number}",
        "full_description": "A seat.",
        "pricing": "$20.00",
    }
    entry |= {"small_description": ["oak"], "customization_options": "", "category": "garden", "query": "Stools"}
    return entry | {"product_category": "Home › Stools", "images": ["x.jpg"]} | fields


def items():
    options = {name: [{"value": value} for value in values] for name, values in TRICKY.items()}
    stool = entry(0, name="Red oak stool", customization_options=options)
    lamp = entry(1, name="Lamp", category="light", query="Lamps", product_category="Electronics › Lamps", pricing=None)
    return [stool, lamp, *(entry(number) for number in range(2, 62))]


def make_shop(**options):
    marks = {"B000": {"attributes": ["oak"], "instruction": "buy an oak stool", "instruction_attributes": ["oak"]}}
    catalogue = make_catalogue(items(), marks.items())
    return Shop(catalogue, make_goals(catalogue, human=False), heuristic(), **options)


SHOP = make_shop()
RED_AND_SMALL = next(n for n, goal in enumerate(SHOP.goals) if goal.options == {"color": "red", "size": "small"})


def play(*actions, shop=SHOP, **kwargs):
    session = Session(shop, RED_AND_SMALL, **kwargs)
    for action in actions:
        assert session.step(action) == (0.0, False)
    return session


def where(session):
    page = session.state.page
    return page.kind, page.number, page.subpage or dict(page.chosen)


AT_STOOL = ("search[red oak]", "click[b000]")


def test_the_right_purchase_has_reward_1():
    session = play(*AT_STOOL, "click[small]", "click[red]", "click[red]")
    # "red" is in both groups and the last one counts, so that this size replaced "small".
    assert session.url.endswith(f'/item_page/{RED_AND_SMALL}/B000/red+oak/1/{{"size": "red"}}')
    goal = next(n for n, goal in enumerate(SHOP.goals) if goal.options == {"color": "navy | blue", "size": "small"})
    session = Session(SHOP, goal)
    for action in (*AT_STOOL, "click[small]", "click[Navy | Blue]"):
        assert session.step(action) == (0.0, False)
    assert session.step("click[Buy Now]") == (1.0, True)
    assert session.state.purchase
    assert session.state.purchase.details()["r_att"] == 1.0
    assert session.url == f"http://127.0.0.1:3000/done/{goal}/B000/{{'size': 'small', 'color': 'navy | blue'}}"
    assert session.available_actions == {"has_search_bar": False, "clickables": []}


def test_the_end_is_the_end():
    session = play(*AT_STOOL)
    reward, done = session.step("click[buy now]")
    assert (reward, done) == (0.5, True)  # attribute and price of two options, an attribute and a price
    before = session.observation
    assert session.step("search[lamp]") == (0.0, True)
    assert session.step("click[back to search]") == (0.0, True)
    assert session.observation == before


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (("click[search]",), ("index", 1, {})),
        (("click[back to search]",), ("index", 1, {})),
        (("search[stool]",), ("results", 1, {})),
        (("search[stool]", "click[next >]", "click[Next >]", "click[< prev]"), ("results", 2, {})),
        (("search[stool]", "click[< prev]"), ("results", 1, {})),
        (("search[stool]", "click[back to search]"), ("index", 1, {})),
        ((*AT_STOOL, "click[small]"), ("item", 1, {"size": "small"})),
        ((*AT_STOOL, "click[a [b] c]"), ("item", 1, {})),  # read as the name "b] c"
        ((*AT_STOOL, "click[next >]"), ("item", 1, {"size": "next >"})),  # on a product's page only an option
        ((*AT_STOOL, "click[search]"), ("item", 1, {})),
        ((*AT_STOOL, "click[small]", "click[features]"), ("subpage", 1, "Features")),  # the button, not the size
        ((*AT_STOOL, "click[attributes]"), ("item", 1, {})),
        ((*AT_STOOL, "click[small]", "click[reviews]", "click[< prev]"), ("item", 1, {"size": "small"})),
        ((*AT_STOOL, "click[small]", "click[reviews]", "click[back to search]"), ("index", 1, {})),
        ((*AT_STOOL, "click[reviews]", "click[buy now]"), ("subpage", 1, "Reviews")),
        ((*AT_STOOL, "click[small]", "click[< prev]"), ("results", 1, {})),
        ((*AT_STOOL, "click[small]", "click[< prev]", "click[b000]"), ("item", 1, {})),
        ((*AT_STOOL, "click[small]", "search[lamp]"), ("results", 1, {})),
        (("search[stool]", "click[b000]"), ("results", 1, {})),  # found, but on another page
        (("Search[stool]",), ("index", 1, {})),
        (("search[]",), ("index", 1, {})),
        (("search", "click", "", "[x]"), ("index", 1, {})),
        (("think\nsearch[stool]",), ("index", 1, {})),
        (("search[stool] and so on",), ("results", 1, {})),
    ],
)
def test_where_actions_lead(actions, expected):
    assert where(play(*actions)) == expected


def test_a_product_is_reached_from_its_page_of_results_and_leads_back_there():
    session = play("search[stool]", "click[next >]")
    place = session.state.page.products[3]
    asin = SHOP.catalogue.products[place].asin
    session.step(f"click[{asin}]")
    assert session.state.page.products == (place,)
    assert session.url == f"http://127.0.0.1:3000/item_page/{RED_AND_SMALL}/{asin}/stool/2/{{}}"
    session.step("click[< prev]")
    assert where(session) == ("results", 2, {})


def test_opened_products_stay_marked_until_the_index():
    rich = make_shop(mode="text_rich")
    session = play(*AT_STOOL, "search[stool red oak]", shop=rich)
    assert "\n[clicked button] B000 [clicked button_]\n" in session.observation
    session.step("click[back to search]")
    session.step("search[stool red oak]")
    assert "\n[button] B000 [button_]\n" in session.observation


def test_a_search_finds_at_most_50():
    session = play("search[stool]")
    assert f"Page 1 (Total results: {FOUND})" in session.observation
    for _ in range(5):
        session.step("click[next >]")
    assert session.available_actions["clickables"] == ["back to search", "< prev", "next >"]
    assert "Total results: 0" in play("search[zzz]").observation
    assert "Total results: 0" in play("search[ ]").observation


def test_special_queries():
    def found(query):
        page = play(f"search[{query}]").state.page
        return page.total, [SHOP.catalogue.products[place].asin for place in page.products]

    assert found("<c> light") == (1, ["B001"])
    assert found("<c> light and more") == (1, ["B001"])
    assert found("<c> garden")[0] == 61  # no limit of 50
    assert found("<a> oak") == (1, ["B000"])
    assert found("<q> lamps") == (1, ["B001"])
    for query in ("<c>", "<a>", "<q>", "<c>  light", "<a> none", "<r"):
        assert found(query)[0] == 0


def test_all_spellings_of_a_special_query_share_one_answer():
    shop = make_shop()
    for kind, spellings in (
        ("c", ("garden", "garden ", "garden x")),
        ("a", ("oak", " oak ")),
        ("q", ("lamps", "lamps  ")),
    ):
        answers = [shop.search(f"<{kind}> {words}") for words in spellings]
        assert answers[0]
        assert all(answer is answers[0] for answer in answers)


def test_products_by_lot_depend_on_the_seed_and_are_all_different():
    def listed(seed):
        session, products = play("search[<r>]", seed=seed), []
        for _ in range(5):
            products.append(session.state.page.products)
            session.step("click[next >]")
        return products

    assert listed(1) == listed(1) != listed(2)
    assert all(len(set(page)) == 10 for page in listed(1))
    assert play("search[<r> lamp]").state.page.total == FOUND
    few = make_catalogue(items()[:3], {"B000": {"instruction": "x", "instruction_attributes": ["oak"]}}.items())
    session = Session(Shop(few, make_goals(few, human=False), heuristic()), 0)
    session.step("search[<r>]")
    assert sorted(session.state.page.products) == [0, 1, 2]


def test_a_session_goes_on_from_its_state():
    rich = make_shop(mode="text_rich")
    session = play(*AT_STOOL, "click[small]", shop=rich, name="mine", seed=5)
    stored = pickle.dumps(session.state)
    assert len(stored) < 1000
    again = Session.resume(rich, pickle.loads(stored))
    assert (again.observation, again.url) == (session.observation, session.url)
    for action in ("click[description]", "click[< prev]", "search[<r>]", "click[next >]"):
        assert again.step(action) == session.step(action)
        assert again.state == session.state
    session = play(*AT_STOOL)
    session.step("click[buy now]")
    assert Session.resume(SHOP, pickle.loads(pickle.dumps(session.state))).done


def test_the_available_actions_are_a_copy():
    session = play()
    actions = session.available_actions
    assert actions == {"has_search_bar": True, "clickables": ["search"]}
    actions["clickables"].append("back to search")
    assert session.available_actions["clickables"] == ["search"]
    assert play("search[lamp]").available_actions["has_search_bar"] is False


def test_names_and_goals():
    assert play().url == f"http://127.0.0.1:3000/{RED_AND_SMALL}"
    assert play(name="a").url == "http://127.0.0.1:3000/a"
    assert play().goal.instruction.startswith("buy an oak stool with color: red, and size: small")
    for goal in (-1, len(SHOP.goals)):
        with pytest.raises(ValueError, match=f"no goal {goal}: there are 15, counted from 0"):
            Session(SHOP, goal)
    with pytest.raises(ValueError, match="mode must be 'text' or 'text_rich', got 'html'"):
        make_shop(mode="html")
    with pytest.raises(ValueError, match="the index has 1 documents and the catalogue 62 products"):
        make_shop(index=SearchIndex.build(["stool"]))


def test_attributes_can_be_shown():
    session = play(*AT_STOOL, "click[attributes]", shop=make_shop(show_attributes=True))
    assert session.observation.endswith("< Prev [SEP] oak [SEP] garden [SEP] stools [SEP] Home › Stools")


@given(st.text("ab[]\nS ", max_size=12))
@example("a[[b]")
def test_an_action_is_read_as_by_the_regular_expression(action):
    match = re.match(r"(.+)\[(.+)\]", action)
    assert parse_action(action) == ((match[1], match[2].lower()) if match else (action, ""))


ACTIONS = st.one_of(
    st.text(),
    st.builds("{}[{}]".format, st.sampled_from(("search", "click", "Click")), st.text(st.characters(codec=None))),
    st.sampled_from(("search[stool]", "search[<r>]", "search[<c>]", "search[<a> ]", "search[<q>", "click[buy now]")),
    st.sampled_from(("click[next >]", "click[< prev]", "click[back to search]", "click[features]", "click[b000]")),
)


@given(st.lists(st.one_of(ACTIONS, st.integers(0, 30)), max_size=12))
def test_no_action_crashes_a_session(actions):
    """Any text, and numbers for one of the clickables."""
    session = Session(SHOP, 0)
    for action in actions:
        if isinstance(action, int):
            names = session.available_actions["clickables"] or ["none"]
            action = f"click[{names[action % len(names)]}]"
        reward, done = session.step(action)
        assert 0 <= reward <= 1
        assert done or reward == 0
        assert session.observation
        assert session.url.startswith("http://127.0.0.1:3000/")


def test_huge_actions_and_pages():
    session = play("[" * 100_000, "search[" + "x " * 50_000 + "]", "search[" * 20_000 + "]" * 20_000)
    assert where(session) == ("results", 1, {})
    session = play("search[stool]")
    for _ in range(9_999):
        session.step("click[next >]")
    assert "Page 10000 (Total results: 50)" in session.observation


NAMES = ("Search", "Back to Search", "< Prev", "Next >", "Buy Now", "Description", "Attributes", "B0", "b0", "nan", "")
ODD = (
    *NAMES,
    "a [b] c",
    "]",
    "[",
    "a/b",
    'the "best"',
    "it's",
    "\0",
    "\ud800",
    " ",
    "\n",
    "<b>&amp;",
    "İ",
    "ΑΣ",
    "x" * 3000,
)
TEXTS = st.one_of(st.sampled_from(ODD), st.text(st.characters(codec=None), max_size=6))
OPTIONS = st.dictionaries(
    TEXTS, st.none() | st.lists(TEXTS.map(lambda value: {"value": value}), max_size=3), max_size=3
)
PRICES = st.sampled_from((None, "", "$1", "$1 - $2", "$5 - $1", "$" + "9" * 400, "$٣", "$0"))
ODD_ENTRIES = st.builds(
    entry,
    st.just(0),
    asin=TEXTS.map(lambda text: text[:10]).filter(lambda text: text != "nan"),
    **dict.fromkeys(("name", "full_description", "category", "query", "product_category"), TEXTS),
    small_description=TEXTS | st.lists(TEXTS, max_size=2),
    pricing=PRICES,
    customization_options=OPTIONS,
)
SOME = st.lists(TEXTS, min_size=1, max_size=2)
MARKS = st.fixed_dictionaries({"attributes": SOME, "instruction": TEXTS, "instruction_attributes": SOME})


@settings(max_examples=60, deadline=None)
@given(
    entries=st.lists(ODD_ENTRIES, min_size=1, max_size=3, unique_by=lambda entry: entry["asin"]),
    marks=MARKS,
    options=SOME,
    switches=st.fixed_dictionaries({"strict": st.booleans(), "show_attributes": st.booleans()}),
    mode=st.sampled_from(("text", "text_rich")),
    actions=st.lists(st.one_of(*[st.integers(0, 15)] * 6, TEXTS.map("search[{}]".format)), min_size=3, max_size=9),
)
def test_no_catalogue_crashes_a_session(entries, marks, options, switches, mode, actions):
    """Names of products, asins and options that are like buttons, brackets, no text or not even Unicode."""
    asin = entries[0]["asin"]
    human = {"instruction": marks["instruction"], "instruction_attributes": marks["attributes"]}
    catalogue = make_catalogue(entries, [(asin, marks)], [(asin, [human | {"instruction_options": options}])])
    for human_goals in (True, False)[: 1 + all(catalogue.products[0].options.values())]:  # no value, no synthetic goal
        goals = make_goals(catalogue, human=human_goals)
        session = Session(Shop(catalogue, goals, heuristic(), mode=mode, **switches), 0)
        for action in ("search[<r>]", 0, *actions, "click[buy now]"):
            if isinstance(action, int):
                names = session.clickables or [""]
                action = f"click[{names[-1 - action % len(names)]}]"  # from the end: products and options
            reward, done = session.step(action)
            assert 0 <= reward <= 1
            assert done or reward == 0
            assert Session.resume(session._shop, session.state).observation == session.observation
            assert len(set(session.clickables)) == len(session.clickables)
            assert session.url.startswith("http://127.0.0.1:3000/")

"""The pages as text: the labels, marks and addresses that an agent meets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop.catalogue import Product
from envs.webshop.pages import Mode, Node, Page, clickables, nodes, observation, page_url


def product(asin="B01", name="Oak & <b>Iron</b> stool", options=None, **fields):
    texts = {"description": "Sturdy.", "bullets": ("STRONG: holds 90 kg ", "four legs"), "category": "garden"}
    texts |= {"query": "stools", "product_category": "Home › Stools", "price_tag": "$12.5 to $19.99"}
    rest = {"prices": (12.5, 19.99), "price": 15.0, "attributes": ("solid wood",), "options": options or {}}
    rest |= {"instruction": None, "instruction_attributes": ()}
    return Product(asin=asin, name=name, **(texts | rest | fields))


STOOL = product(options={"color": ("red", "dark blue"), "size": ("small", "red", "features")})
LAMP = product("B02", "Lamp", price_tag="$7.0")
KINDS = st.sampled_from(("text", "button", "link", "option"))
NO_BRACKET = st.characters(exclude_characters="[")
ASKED = "buy a stool"


def see(page, mode: Mode = "text", catalogue=(STOOL, LAMP), session="3", **kwargs):
    return observation(nodes(page, catalogue, ASKED, page_url(page, session, catalogue), **kwargs), mode)


def test_the_index():
    assert see(Page()) == "WebShop [SEP] Instruction: [SEP] buy a stool [SEP] Search"
    assert see(Page(), "text_rich") == "WebShop\nInstruction: \nbuy a stool\n[button] Search [button_]\n"
    assert clickables(nodes(Page(), (), ASKED, "")) == ["search"]


def test_a_first_page_of_results():
    page = Page("results", "a b", 1, (1, 0), 12)
    assert see(page) == (
        "Instruction: [SEP] buy a stool [SEP] Back to Search [SEP] Page 1 (Total results: 12) [SEP] Next > [SEP] "
        "B02 [SEP] Lamp [SEP] $7.0 [SEP] B01 [SEP] Oak & <b>Iron</b> stool [SEP] $12.5 to $19.99"
    )
    assert see(page, "text_rich", visited=frozenset({0})) == (
        "Instruction:\nbuy a stool\n[button] Back to Search [button_]\nPage 1 (Total results: 12)\n"
        "[button] Next > [button_]\n"
        "\n[button] B02 [button_]\nLamp\n$7.0\n"
        "\n[clicked button] B01 [clicked button_]\nOak & <b>Iron</b> stool\n$12.5 to $19.99\n"
    )
    assert page_url(page, "3", ()) == "http://127.0.0.1:3000/search_results/3/a+b/1"
    assert clickables(nodes(page, (STOOL, LAMP), ASKED, "")) == ["back to search", "next >", "b02", "b01"]


def test_later_pages_of_results_go_back_and_on_even_when_empty():
    page = Page("results", "x", 7, (), 12)
    assert see(page).endswith("Back to Search [SEP] Page 7 (Total results: 12) [SEP] < Prev [SEP] Next >")
    assert clickables(nodes(page, (), ASKED, "")) == ["back to search", "< prev", "next >"]


def test_a_product():
    page = Page("item", "a b", 2, (0,), 12, chosen={"size": "small", "color": "dark blue"})
    assert see(page) == (
        "Instruction: [SEP] buy a stool [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] dark blue [SEP] "
        "size [SEP] small [SEP] red [SEP] features [SEP] Oak & <b>Iron</b> stool [SEP] Price: $12.5 to $19.99 [SEP] "
        "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
    )
    # What was clicked is told from the bottom of the page up.
    assert see(page, "text_rich") == (
        "You have clicked small.\nYou have clicked dark blue.\n"
        "Instruction:\nbuy a stool\n[button] Back to Search [button_]\n[button] < Prev [button_]\n"
        "color\n  [button] red [button_]\n  [clicked button] dark blue [clicked button_]\n"
        "size\n  [clicked button] small [clicked button_]\n  [button] red [button_]\n  [button] features [button_]\n"
        "Oak & <b>Iron</b> stool\nPrice: $12.5 to $19.99\nRating: N.A.\n"
        "[button] Description [button_]\n[button] Features [button_]\n[button] Reviews [button_]\n"
        "[button] Buy Now [button_]\n"
    )
    url = 'http://127.0.0.1:3000/item_page/3/B01/a+b/2/{"size": "small", "color": "dark blue"}'
    assert page_url(page, "3", (STOOL,)) == url


def test_what_a_product_offers_in_order():
    names = ["back to search", "< prev", "description", "features", "reviews", "buy now", "red", "dark blue", "small"]
    page = Page("item", products=(0,))
    assert clickables(nodes(page, (STOOL,), ASKED, "")) == names  # "red" and "features" once each
    with_attributes = clickables(nodes(page, (STOOL,), ASKED, "", show_attributes=True))
    assert with_attributes == [*names[:5], "attributes", *names[5:]]


def test_a_value_counts_as_clicked_where_the_url_quotes_it():
    """In both groups that have it, and not where JSON escapes it."""
    catalogue = [product(options={"color": ("red", 'the "best"', "café"), "size": ("red",)})]
    text = see(Page("item", "x", 1, (0,), 1, chosen={"color": "red"}), "text_rich", catalogue)
    assert text.startswith("You have clicked red.\nYou have clicked red.\nInstruction:")
    for value in ('the "best"', "café"):
        page = Page("item", "x", 1, (0,), 1, chosen={"color": value})
        assert "clicked" not in see(page, "text_rich", catalogue)


@pytest.mark.parametrize(
    ("name", "shown", "lines"),
    [
        ("Description", "Sturdy.", "Sturdy.\n"),
        ("Features", "STRONG: holds 90 kg [SEP] four legs", " STRONG: holds 90 kg \n four legs\n"),
        ("Reviews", "", ""),
        (
            "Attributes",
            "solid wood [SEP] garden [SEP] stools [SEP] Home › Stools",
            " solid wood\ngarden\nstools\nHome › Stools\n",
        ),
    ],
)
def test_what_is_said_of_a_product(name, shown, lines):
    page = Page("subpage", "a b", 2, (0,), 12, name, {"color": "dark blue"})
    head = "Instruction: [SEP] buy a stool [SEP] Back to Search [SEP] < Prev"
    assert see(page) == (f"{head} [SEP] {shown}" if shown else head)
    rich = "Instruction:\nbuy a stool\n[button] Back to Search [button_]\n[button] < Prev [button_]\n"
    assert see(page, "text_rich") == rich + lines
    url = f"http://127.0.0.1:3000/item_sub_page/3/B01/a+b/2/{name}/{{'color': 'dark blue'}}"
    assert page_url(page, "3", (STOOL,)) == url
    assert clickables(nodes(page, (STOOL,), ASKED, "")) == ["back to search", "< prev"]


def test_the_end():
    page = Page("done", "x", 1, (0,), 12, chosen={"size": "women's <9>", "color": "red"}, reward=0.75)
    assert see(page) == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
        "Purchased [SEP] asin [SEP] B01 [SEP] options [SEP] "
        '{"color": "red", "size": "women\\u0027s \\u003c9\\u003e"} [SEP] '
        "attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] None [SEP] "
        "Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] category [SEP] "
        "product category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] "
        "0.75 [SEP] Reward Details [SEP] None"
    )
    assert see(page, "text_rich").startswith("Thank you for shopping with us!\nYour code: \nNone\n (Paste it")
    assert "\nGoal \nNone\nReward\n" in see(page, "text_rich")
    url = """http://127.0.0.1:3000/done/3/B01/{'size': "women's <9>", 'color': 'red'}"""
    assert page_url(page, "3", (STOOL,)) == url
    assert clickables(nodes(page, (STOOL,), ASKED, "")) == []


def test_blank_texts_are_seen_as_a_parser_of_html_leaves_them():
    """Nothing, or with a line end in it nothing, else one space: an empty piece of the text."""
    catalogue = [product(name="", description=" \n ", bullets=("", "\n", "b"))]
    assert see(Page("subpage", products=(0,), subpage="Description"), catalogue=catalogue).endswith("< Prev")
    page = Page("subpage", products=(0,), subpage="Features")
    assert see(page, catalogue=catalogue).endswith("[SEP] < Prev [SEP]  [SEP] b")
    assert see(page, "text_rich", catalogue).endswith("[button] < Prev [button_]\n \n b\n")
    assert "Back to Search [SEP] < Prev [SEP] Price:" in see(Page("item", products=(0,)), catalogue=catalogue)


@given(
    st.lists(st.builds(Node, st.text(NO_BRACKET, max_size=9), st.sampled_from(("text", "button", "link", "option"))))
)
def test_text_is_the_stripped_pieces_and_rich_text_has_them_all(found):
    seen = observation(found, "text").split(" [SEP] ") if observation(found, "text") else []
    kept = [node.text.strip() for node in found if node.text.strip(" \n\t\f\r")]
    assert [piece for piece in seen if piece] == [piece for text in kept for piece in text.split(" [SEP] ") if piece]
    rich = observation(found, "text_rich")
    assert all(node.text in rich for node in found if node.text.strip(" \n\t\f\r"))

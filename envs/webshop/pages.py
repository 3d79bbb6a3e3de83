"""WebShop's pages as values, and what is seen of them: a list of nodes, from which both observation modes follow.

The labels and the layout are the original's interface. What it sends through an HTML template and a parser is written
here as the text nodes that come out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from envs.webshop.catalogue import Product

Kind = Literal["index", "results", "item", "subpage", "done"]
Mode = Literal["text", "text_rich"]

BASE_URL = "http://127.0.0.1:3000"
PAGE_SIZE = 10  # products on a page of results
SEARCH, BACK, PREVIOUS, NEXT, BUY = "Search", "Back to Search", "< Prev", "Next >", "Buy Now"
SUBPAGES = {name.lower(): name for name in ("Description", "Features", "Reviews", "Attributes")}

_BEFORE = {"button": "", "link": "\n", "option": "  "}  # in the rich mode
_ASCII_SPACES = " \n\t\f\r"
_JSON_IN_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})


class Page(NamedTuple):
    """Where an episode stands: all that a page depends on, but for the goal and the products seen before."""

    kind: Kind = "index"
    query: str = ""  # of the search that led here, lower case
    number: int = 1  # of the page of results that led here, from 1 on
    products: tuple[int, ...] = ()  # places in the catalogue: those listed, or the one shown
    total: int = 0  # products found
    subpage: str = ""  # a value of `SUBPAGES`
    chosen: Mapping[str, str] = {}  # option -> value, in the order of the first choice; never changed in place
    reward: float = 0.0  # of the purchase


class Node(NamedTuple):
    """A piece of a page: plain text, or what can be clicked."""

    text: str
    kind: Literal["text", "button", "link", "option"] = "text"
    clicked: bool = False


def nodes(
    page: Page,
    catalogue: Sequence[Product],
    instruction: str,
    url: str,
    visited: frozenset[int] = frozenset(),
    show_attributes: bool = False,
) -> list[Node]:
    """What is on a page, from top to bottom.

    Args:
        page: the page.
        catalogue: what ``page.products`` and ``visited`` count in.
        instruction: the goal's text.
        url: as of `page_url`; an option counts as clicked where the URL has its value in double quotes.
        visited: products opened since the last visit to the index.
        show_attributes: whether a product's page has the button "Attributes", which the original hides by default.
    """
    if page.kind == "index":
        return [Node("WebShop"), Node("Instruction: "), Node(instruction), Node(SEARCH, "button")]
    if page.kind == "done":
        return _done(catalogue[page.products[0]], page)
    head = [Node("Instruction:"), Node(instruction), Node(BACK, "button")]
    if page.kind == "results":
        return head + _results(page, catalogue, visited)
    head.append(Node(PREVIOUS, "button"))
    product = catalogue[page.products[0]]
    return head + (_item(product, url, show_attributes) if page.kind == "item" else _subpage(product, page.subpage))


def page_url(page: Page, session: str, catalogue: Sequence[Product]) -> str:
    """The address of a page in the session of this name, with the options as the original writes them there."""
    if page.kind == "index":
        return f"{BASE_URL}/{session}"
    words = page.query.replace(" ", "+")
    if page.kind == "results":
        return f"{BASE_URL}/search_results/{session}/{words}/{page.number}"
    asin = catalogue[page.products[0]].asin
    if page.kind == "item":
        return f"{BASE_URL}/item_page/{session}/{asin}/{words}/{page.number}/{json.dumps(page.chosen)}"
    if page.kind == "subpage":
        return f"{BASE_URL}/item_sub_page/{session}/{asin}/{words}/{page.number}/{page.subpage}/{page.chosen}"
    return f"{BASE_URL}/done/{session}/{asin}/{page.chosen}"


def observation(nodes: Iterable[Node], mode: Mode) -> str:
    """The page as text: stripped pieces between " [SEP] ", or one a line with what can be clicked marked."""
    if mode == "text":
        return " [SEP] ".join([text.strip() for text, _, _ in nodes if text.strip() or _is_seen(text)])
    said, lines = "", []
    for text, kind, clicked in _parsed(nodes):
        if kind == "text":
            lines.append(text)
            continue
        mark = "clicked button" if clicked else "button"
        lines.append(f"{_BEFORE[kind]}[{mark}] {text} [{mark}_]")
        if clicked and kind == "option":
            said = f"You have clicked {text}.\n{said}"
    return said + "\n".join([*lines, ""])


def clickables(nodes: Sequence[Node]) -> list[str]:
    """What ``click[..]`` may name, in the original's order; a name that comes twice counts once."""
    names = [node.text.lower() for node in nodes if node.kind in ("button", "link")]
    return list(dict.fromkeys(names + [node.text for node in nodes if node.kind == "option"]))


def _results(page: Page, catalogue: Sequence[Product], visited: frozenset[int]) -> list[Node]:
    found = [Node(f"Page {page.number} (Total results: {page.total})")]
    if page.number > 1:
        found.append(Node(PREVIOUS, "button"))
    found.append(Node(NEXT, "button"))
    for place in page.products:
        product = catalogue[place]
        found += (Node(product.asin, "link", place in visited), Node(product.name), Node(product.price_tag))
    return found


def _item(product: Product, url: str, show_attributes: bool) -> list[Node]:
    found = []
    for name, values in product.options.items():
        found.append(Node(name))
        found += [Node(value, "option", f'"{value}"' in url) for value in values]
    found += (Node(product.name), Node(f"Price: {product.price_tag}"), Node("Rating: N.A."))
    names = [name for name in SUBPAGES.values() if show_attributes or name != "Attributes"]
    return found + [Node(name, "button") for name in (*names, BUY)]


def _subpage(product: Product, name: str) -> list[Node]:
    if name == "Description":
        return [Node(product.description)]
    if name == "Features":
        return [Node(f" {bullet}") for bullet in product.bullets]
    if name == "Attributes":
        about = (product.category, product.query, product.product_category)
        return [Node(f" {attribute}") for attribute in product.attributes] + [Node(text) for text in about]
    return []  # reviews are not part of the data


def _done(product: Product, page: Page) -> list[Node]:
    """The original leaves the goal and most of the product out here: their fields say None, or nothing."""
    options = json.dumps(page.chosen, sort_keys=True).translate(_JSON_IN_HTML)
    none = "None"
    thanks = ["Thank you for shopping with us!", "Your code: ", none, " (Paste it in your MTurk interface.)"]
    bought = ["Purchased", "asin", product.asin, "options", options, "attrs", none, "category", none, "query", none]
    bought += ["product category", none]
    target = ["Target", "asin", "options", "attrs", "price upper", "instuction text", "category", "product category"]
    target += ["query", "Goal ", none]
    reward = ["Reward", "Your score (min 0.0, max 1.0)", str(page.reward), "Reward Details ", none]
    return [Node(text) for text in (*thanks, *bought, *target, *reward)]


def _parsed(nodes: Iterable[Node]) -> Iterator[Node]:
    """As an HTML parser leaves them: of blank text that is seen one space."""
    for node in nodes:
        if _is_seen(node.text):
            yield node if node.text.strip(_ASCII_SPACES) else node._replace(text=" ")


def _is_seen(text: str) -> bool:
    """Blank text with a line end in it vanishes."""
    return bool(text) and ("\n" not in text or bool(text.strip(_ASCII_SPACES)))

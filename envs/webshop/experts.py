"""Two players that need no learning: `Planner` knows the goal's product, `Shopper` has to find one as an agent must."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from envs.webshop.catalogue import Product
from envs.webshop.engine import Shop
from envs.webshop.goals import Goal
from envs.webshop.pages import BACK, BUY, NEXT, PAGE_SIZE, PREVIOUS, SUBPAGES
from envs.webshop.protocol import View, query_words, understood, words_of
from envs.webshop.reward import option_matches
from envs.webshop.search import document_text

Options = dict[str, str]  # option -> value

_BUTTONS = {label.lower() for label in (BACK, PREVIOUS, BUY, *SUBPAGES.values())}
_MOST_WORDS = 60  # of a refined query
_LIMIT = re.compile(r"price lower than (\d+\.\d+) dollars")
_AMOUNT = re.compile(r"\d+(?:\.\d+)?")


class _Tracker:
    """Which options are chosen on the product's page, which it doesn't say."""

    def __init__(self) -> None:
        self.chosen: Options = {}
        self._before: Mapping[str, Any] | None = None

    def look(self, info: Mapping[str, Any]) -> View:
        """Notes what the last action did; whoever took it. Returns the page it led to."""
        view: View = info["page"]
        if view.kind not in ("item", "subpage"):
            self.chosen = {}
        elif view.kind == "item" and self._before is not None and self._before["page"].kind == "item":
            command = understood(info["action"], self._before)
            for option, value in selectable(dict(view.options)):
                if command == f"click[{value}]":
                    self.chosen[option] = value
        self._before = info
        return view


class Planner:
    """Finds the product that the goal was made of by a query that lists it early, takes its options and buys it.

    It goes on from wherever it stands; one instance an episode.

    Args:
        shop: where the goal is.
        goal: what is to be bought.
    """

    def __init__(self, shop: Shop, goal: Goal):
        self._product = shop.catalogue.by_asin[goal.asin]
        self._wanted = best_options(self._product, goal, strict=shop.strict)
        self._query, self._page = _findable(shop, self._product)
        self._tracker = _Tracker()

    def act(self, info: Mapping[str, Any]) -> str:
        """The next command of the shop, given the environment's ``info``."""
        view = self._tracker.look(info)
        asin = self._product.asin.lower()
        if view.kind == "results" and any(product.asin == asin for product in view.products):
            return f"click[{asin}]"
        if view.kind == "results" and view.query == self._query and view.number < self._page:
            return f"click[{NEXT.lower()}]"
        if view.kind == "subpage":
            return f"click[{PREVIOUS.lower()}]"
        if view.kind == "item" and view.products[0].asin == asin:
            return _complete(self._wanted, self._tracker.chosen)
        return f"search[{self._query}]"


class Shopper:
    """Searches for the instruction's words, opens the best-looking product of the first page, takes the options that
    the instruction names, and buys it.

    It knows what an agent knows: the pages and the instruction. What it has not looked for itself it leaves. One
    instance an episode.

    Args:
        hasty: asked at each step on the product's page; True buys it as it is.
    """

    def __init__(self, hasty: Callable[[], bool] = lambda: False):
        self._hasty = hasty
        self._tracker = _Tracker()
        self._picked = ""  # asin of the product that it opened last

    def act(self, info: Mapping[str, Any]) -> str:
        """The next command of the shop, given the environment's ``info``."""
        view, goal = self._tracker.look(info), info["goal"]
        query = " ".join(query_words(goal))
        if view.kind == "results" and view.products and (view.query, view.number) == (query, 1):
            self._picked = _best_looking(view, goal)
            return f"click[{self._picked}]"
        if view.kind == "item" and view.products[0].asin == self._picked:
            named = {} if self._hasty() else named_options(dict(view.options), goal)
            return _complete(named, self._tracker.chosen)
        return f"click[{PREVIOUS.lower()}]" if view.kind == "subpage" else f"search[{query}]"


def selectable(options: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Each value that a click chooses, with its option: of several options that have it the last one."""
    last = {value: option for option, values in options.items() for value in values}
    return ((option, value) for value, option in last.items() if value.lower() not in _BUTTONS)


def best_options(product: Product, goal: Goal, *, strict: bool = False) -> Options:
    """What to choose so that as many wanted options as possible are met: equal values first, then similar ones."""
    pairs = list(selectable(product.options))
    wanted = list(goal.options.items()) if isinstance(goal.options, dict) else [(None, v) for v in goal.options]
    chosen: Options = {}
    for name, value in wanted:
        equal = [pair for pair in pairs if pair[1] == value and name in (None, pair[0])]
        chosen |= dict([pair for pair in equal if pair[0] not in chosen][:1])
    for name, value in wanted:
        if not any(option_matches(*pair, name, value, strict=strict) for pair in chosen.items()):
            similar = [pair for pair in pairs if option_matches(*pair, name, value, strict=strict)]
            chosen |= dict([pair for pair in similar if pair[0] not in chosen][:1])
    return chosen


def named_options(options: Mapping[str, tuple[str, ...]], instruction: str) -> Options:
    """Of each option the longest value that the instruction names."""
    text = f" {' '.join(words_of(_LIMIT.sub('', instruction)))} "
    named: Options = {}
    for option, value in selectable(options):
        words = " ".join(words_of(value))
        if words and f" {words} " in text and len(words) > len(" ".join(words_of(named.get(option, "")))):
            named[option] = value
    return named


def _complete(wanted: Options, chosen: Options) -> str:
    """The next click that chooses what is wanted; buying where all is chosen."""
    missing = (value for option, value in wanted.items() if chosen.get(option) != value)
    return f"click[{next(missing, BUY.lower())}]"


def _best_looking(view: View, goal: str) -> str:
    """The product that has most of the instruction's words in its name, of those that aren't too dear if there are."""
    limit = _LIMIT.search(goal)
    most = float(limit[1]) if limit else float("inf")
    wanted = set(query_words(goal))

    def merit(place: int) -> tuple[bool, int, int]:
        product = view.products[place]
        prices = [float(amount) for amount in _AMOUNT.findall(product.price)]
        return max(prices, default=0.0) <= most, len(wanted & set(words_of(product.name))), -place

    return view.products[max(range(len(view.products)), key=merit)].asin


def _findable(shop: Shop, product: Product) -> tuple[str, int]:
    """A query that lists the product, the first that does so earliest, and on which page."""
    best: tuple[str, int] = ("", 0)
    for text in (product.name, f"{product.name} {product.description}", document_text(product)):
        query = " ".join(words_of(text)[:_MOST_WORDS])
        places = [shop.catalogue.products[place].asin for place in shop.search(query)]
        page = places.index(product.asin) // PAGE_SIZE + 1 if product.asin in places else 0
        if page and (not best[1] or page < best[1]):
            best = query, page
        if best[1] == 1:
            break
    return best if best[1] else (" ".join(words_of(product.name)), 1)

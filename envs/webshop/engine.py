"""The shop and its visitors: what all episodes share, and one episode."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from envs.webshop.catalogue import Catalogue
from envs.webshop.goals import Goal
from envs.webshop.nouns import NounSource
from envs.webshop.pages import (
    BACK,
    BUY,
    NEXT,
    PAGE_SIZE,
    PREVIOUS,
    SEARCH,
    SUBPAGES,
    Mode,
    Node,
    Page,
    clickables,
    nodes,
    observation,
    page_url,
)
from envs.webshop.reward import Reward, purchase_reward
from envs.webshop.search import SearchIndex, document_text

FOUND = 50  # products, at most, that a search in words or by lot finds
CACHED_SEARCHES = 4096  # results kept, at most
LONGEST_CACHED = 1000  # characters of a query; policies write longer ones by accident, and not twice


class Shop:
    """What all episodes share: one a process. Nothing of it changes but the cache of searches.

    Args:
        catalogue: the products.
        goals: what episodes are about, as from `goals.make_goals`.
        nouns: where the reward's nouns come from.
        index: over `search.document_text` of the products, in order; built here by default.
        mode: "text" or "text_rich", of the observations.
        strict: see `reward.purchase_reward`.
        show_attributes: whether a product's page has a button "Attributes".

    Raises:
        ValueError: if the mode is unknown, or the index is of another number of products.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        goals: Sequence[Goal],
        nouns: NounSource,
        *,
        index: SearchIndex | None = None,
        mode: Mode = "text",
        strict: bool = False,
        show_attributes: bool = False,
    ):
        if mode not in ("text", "text_rich"):
            raise ValueError(f"mode must be 'text' or 'text_rich', got {mode!r}")
        self.catalogue, self.goals, self.nouns = catalogue, goals, nouns
        self.mode: Mode = mode
        self.strict, self.show_attributes = strict, show_attributes
        self.index = SearchIndex.build(map(document_text, catalogue.products)) if index is None else index
        if self.index.num_documents != (products := len(catalogue.products)):
            raise ValueError(
                f"the index has {self.index.num_documents} documents and the catalogue {products} products: build the "
                f"index of this catalogue"
            )
        self._cached: Callable[[str], Sequence[int]] = functools.lru_cache(CACHED_SEARCHES)(self._find)

    def search(self, query: str) -> Sequence[int]:
        """Places in the catalogue of what a query finds, best first.

        ``<a> ATTRIBUTE``, ``<c> CATEGORY`` (one word) and ``<q> QUERY`` find all products that have exactly this, in
        the catalogue's order; other queries the best `FOUND` of the search index. By lot (``<r>``) draws the session.
        """
        word, _, rest = query.partition(" ")
        if word in ("<a>", "<c>", "<q>"):  # of all spellings of such a query one is kept: each may find everything
            query = f"{word} {(rest.split(' ')[0] if word == '<c>' else rest).strip()}"
        return self._find(query) if len(query) > LONGEST_CACHED else self._cached(query)

    def _find(self, query: str) -> Sequence[int]:
        word, _, wanted = query.partition(" ")
        products = self.catalogue.products
        if word == "<a>":
            return tuple(place for place, product in enumerate(products) if wanted in product.attributes)
        if word == "<c>":
            return tuple(place for place, product in enumerate(products) if product.category == wanted)
        if word == "<q>":
            return tuple(place for place, product in enumerate(products) if product.query == wanted)
        return tuple(self.index.search(query, FOUND))


class State(NamedTuple):
    """All that is an episode's own: plain values."""

    goal: int
    name: str
    seed: int
    steps: int = 0
    page: Page = Page()
    visited: frozenset[int] = frozenset()  # places of the products opened since the last visit to the index
    purchase: Reward | None = None  # what ended the episode


class Session:
    """One episode.

    It can be pickled as its `state`, and goes on from there with ``Session.resume(shop, state)``.

    Args:
        shop: where it happens.
        goal: number of the goal in ``shop.goals``.
        name: the session's name in URLs; the goal's number by default, as in the original.
        seed: of what ``search[<r>]`` draws; the only chance there is.

    Raises:
        ValueError: if there is no such goal.
    """

    def __init__(self, shop: Shop, goal: int, *, name: str = "", seed: int = 0):
        if not 0 <= goal < len(shop.goals):
            raise ValueError(f"no goal {goal}: there are {len(shop.goals)}, counted from 0")
        self._shop = shop
        self._enter(State(goal, name or str(goal), seed))

    @classmethod
    def resume(cls, shop: Shop, state: State) -> Session:
        """An episode that goes on where another one with the same shop stood."""
        session = cls(shop, state.goal)
        session._enter(state)
        return session

    @property
    def goal(self) -> Goal:
        """What is to be bought."""
        return self._shop.goals[self.state.goal]

    @property
    def done(self) -> bool:
        """Whether something was bought."""
        return self.state.purchase is not None

    @property
    def url(self) -> str:
        """The current page's address, as the original has it."""
        return page_url(self.state.page, self.state.name, self._shop.catalogue.products)

    @property
    def nodes(self) -> list[Node]:
        """What is on the current page; not to be changed."""
        if self._nodes is None:
            shop, state = self._shop, self.state
            products, text = shop.catalogue.products, self.goal.instruction
            self._nodes = nodes(state.page, products, text, self.url, state.visited, shop.show_attributes)
        return self._nodes

    @property
    def clickables(self) -> list[str]:
        """What ``click[..]`` may name, in the original's order; not to be changed. "search" does nothing."""
        if self._clickables is None:
            self._clickables = clickables(self.nodes)
        return self._clickables

    @property
    def observation(self) -> str:
        """The current page as text, in the shop's mode."""
        return observation(self.nodes, self._shop.mode)

    @property
    def available_actions(self) -> dict[str, Any]:
        """``has_search_bar`` and ``clickables``, as the original lists them."""
        return {"has_search_bar": self.state.page.kind == "index", "clickables": list(self.clickables)}

    def step(self, action: str) -> tuple[float, bool]:
        """Takes ``search[WORDS]`` or ``click[NAME]``; anything else changes nothing, and so does a step after the end.

        Args:
            action: any text. The verb is read as it stands, the rest in lower case.

        Returns:
            The reward, between 0 and 1 for a purchase and else 0, and whether the episode has ended.
        """
        if self.done:
            return 0.0, True
        verb, argument = parse_action(action)
        state = self.state._replace(steps=self.state.steps + 1)
        if verb == "search" and argument:
            state = self._list(state, argument, 1)
        elif verb == "click" and argument not in ("", SEARCH.lower()) and argument in self.clickables:
            state = self._click(state, argument)
        self._enter(state)
        return (state.purchase.total if state.purchase else 0.0), self.done

    def _enter(self, state: State) -> None:
        self.state = state
        self._nodes: list[Node] | None = None
        self._clickables: list[str] | None = None

    def _list(self, state: State, query: str, number: int) -> State:
        """A page of what the query finds; the original asks anew for each page, so that ``<r>`` draws anew."""
        if query.split(" ")[0] == "<r>":
            found = _draw(f"{state.seed} {state.steps}", len(self._shop.catalogue.products), FOUND)
        else:
            found = self._shop.search(query)
        listed = tuple(found[(number - 1) * PAGE_SIZE : number * PAGE_SIZE])
        return state._replace(page=Page("results", query, number, listed, len(found)))

    def _click(self, state: State, name: str) -> State:
        page = state.page
        if name == BACK.lower():
            return state._replace(page=Page(), visited=frozenset())
        if page.kind == "results":
            if name == NEXT.lower():
                return self._list(state, page.query, page.number + 1)
            if name == PREVIOUS.lower():
                return self._list(state, page.query, page.number - 1)
            return self._open(state, name)
        if page.kind == "subpage":
            return state._replace(page=page._replace(kind="item", subpage=""))
        return self._click_on_item(state, name)

    def _open(self, state: State, name: str) -> State:
        """The page of a listed product."""
        products = self._shop.catalogue.products
        place = next(place for place in reversed(state.page.products) if products[place].asin.lower() == name)
        page = state.page._replace(kind="item", products=(place,))
        return state._replace(page=page, visited=state.visited | {place})

    def _click_on_item(self, state: State, name: str) -> State:
        """Buttons come first: an option's value that is called like one can't be chosen."""
        page = state.page
        if name == PREVIOUS.lower():
            return self._list(state, page.query, page.number)
        if name == BUY.lower():
            return self._buy(state)
        if name in SUBPAGES:
            return state._replace(page=page._replace(kind="subpage", subpage=SUBPAGES[name]))
        options = self._shop.catalogue.products[page.products[0]].options
        option = [option for option, values in options.items() if name in values][-1]
        return state._replace(page=page._replace(chosen={**page.chosen, option: name}))

    def _buy(self, state: State) -> State:
        page, shop = state.page, self._shop
        product = shop.catalogue.products[page.products[0]]
        goal = shop.goals[state.goal]
        purchase = purchase_reward(product, goal, product.price, page.chosen, shop.nouns, strict=shop.strict)
        return state._replace(page=page._replace(kind="done", reward=purchase.total), purchase=purchase)


def parse_action(action: str) -> tuple[str, str]:
    """Verb and argument of ``VERB[ARGUMENT]``, the argument in lower case and "" where the action has not this form.

    Reads the first line. Of several brackets the last that can open counts, and the last that closes. It gives what
    the regular expression ``(.+)\\[(.+)\\]`` does, which takes hours for many brackets.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 0))
    return (action, "") if start < 0 else (line[:start], line[start + 1 : end].lower())


def _draw(seed: str, size: int, count: int) -> list[int]:
    """Different numbers below ``size``, ``count`` of them or all there are; only ``random()`` is the same anywhere."""
    numbers = random.Random(seed)
    drawn: dict[int, None] = {}
    while len(drawn) < min(count, size):
        drawn[int(numbers.random() * size)] = None
    return list(drawn)

"""WebShop as a text environment (protocol: `envs.core.TextEnv`), on the original data or a generated catalogue."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Text

from envs.core import ASCII, Expert, check_choice
from envs.draws import Draws
from envs.replies import format_reply
from envs.webshop import protocol
from envs.webshop.catalogue import Product
from envs.webshop.engine import Session
from envs.webshop.experts import Planner, Shopper
from envs.webshop.generator import MOST_OPTIONS
from envs.webshop.goals import SPLITS, Goal
from envs.webshop.pages import Mode
from envs.webshop.protocol import Listed, PromptStyle, View, check_style, parse_reply, spoken, understood
from envs.webshop.source import Stock, catalogue_hash, describe, open_stock, source_of

REWARD_WON = 10.0
REWARDS = ("won", "score")
QUERY_WORDS = 4  # of a search by lot, at most


class _AnyText(Text):
    """Text whose samples are ASCII, but which holds any other string of its length too: pages come from the world."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length


class WebShop(gymnasium.Env[str, str]):
    """An online shop in words, and an instruction such as "i need a hoodie that is machine washable, in navy blue".

    Buying ends an episode: with reward 10 if the purchase is all that was asked for, else 0. ``info["score"]`` is
    the benchmark's own reward of the purchase, 0 to 1, and 0 before it; with ``reward="score"`` it pays 10 times
    that. A reply is read as `protocol.parse_reply` says; an action that is not possible here costs its step and
    changes nothing. There is no step cap of its own.

    ``info``, beside what `envs.core.StepInfo` names: ``score``, ``goal`` (the instruction), ``step`` (actions taken),
    ``available_actions``, ``page`` (`protocol.View`) and ``style`` (`protocol.PromptStyle`). The anchor state is the
    page without its task (`protocol.without_task`).

    Args:
        data: folder of the original data; "" takes the variable WEBSHOP_DATA, and where that is not set, a generated
            catalogue. Its search index is kept in `source.cache_folder`.
        small: of the original data the files with 1,000 products.
        products: of a generated catalogue: how many; 0 for 1,000.
        max_options: of a generated catalogue: most groups of options a product has, 0 to 2; fewer make simpler goals.
        mode: "text", parts divided by [SEP], or "text_rich", one a line with what can be clicked marked.
        human: whether the goals are instructions that people wrote (of a generated catalogue, ones like them), or
            synthetic ones, of each combination of options.
        nouns: what the reward compares names by: "heuristic", "spacy" (extra webshop), or a JSON file
            {asin: [noun, ..]}.
        strict: mend the original's quirks in comparing options (`reward.option_matches`).
        goal_split: "held_out", "products" or "leaky", see `goals.split_goals`.
        reward: what a purchase pays: "won", as in the published runs, or "score".
        think: whether replies have to hold <think> tags.
        actions, prompt: see `protocol.PromptStyle`.

    Raises:
        ValueError: an option that is not possible, or data that is missing or damaged.
    """

    splits: ClassVar = SPLITS
    task_types: ClassVar = ()
    experts: ClassVar = ("planner", "shopper", "hasty")
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium's name and type)

    def __init__(
        self,
        data: str = "",
        small: bool = False,
        products: int = 0,
        max_options: int = MOST_OPTIONS,
        mode: str = "text",
        human: bool = True,
        nouns: str = "heuristic",
        strict: bool = False,
        goal_split: str = "held_out",
        reward: str = "won",
        think: bool = True,
        actions: str = "listed",
        prompt: str = "full",
        render_mode: str | None = None,
    ):
        self.render_mode = render_mode
        self.observation_space = _AnyText(2**20, charset=ASCII)
        self.action_space = _AnyText(8192, min_length=0, charset=ASCII)
        style = PromptStyle(think, cast(protocol.Actions, actions), cast(protocol.Wording, prompt))
        self._style = check_style(style)
        check_choice("reward", reward, REWARDS)
        self._reward = reward
        if mode != "text" and style.wording == "brief":
            raise ValueError(f"prompt brief needs the mode text, got {mode!r}")
        self._source = source_of(
            data,
            small=small,
            products=products,
            max_options=max_options,
            mode=cast(Mode, mode),
            human=human,
            nouns=nouns,
            strict=strict,
            goal_split=goal_split,
        )
        self._session: Session | None = None
        self._step = 0
        self._info: dict[str, Any] = {}
        self._stock = open_stock(self._source)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        options = options or {}
        task = options.get("task")
        if task is None:
            task = self.np_random.integers(2**20)
        number = goal_number(self._stock, options.get("split", SPLITS[0]), int(task))
        self._session = Session(self._stock.shop, number, seed=int(task))
        self._step = 0
        observation = self._session.observation
        self._info = self._tell(observation, "", action_valid=True)
        return observation, dict(self._info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._session is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        said, valid = parse_reply(action, self._style.think)
        command = understood(said, self._info)
        score, done = self._session.step(command)
        self._step += 1
        observation = self._session.observation
        self._info = self._tell(observation, spoken(command, self._info), action_valid=valid)
        paid = score if self._reward == "score" else score == 1
        return observation, REWARD_WON * float(paid), done, False, dict(self._info)

    def render(self) -> Any:
        return None if self._session is None else self._session.observation

    def __getstate__(self) -> dict[str, Any]:
        """Without the shop, which whoever unpickles it opens again."""
        return self.__dict__ | {"_session": self._session and self._session.state, "_stock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stock = open_stock(self._source)
        if state["_session"] is not None:
            self._session = Session.resume(self._stock.shop, state["_session"])

    def _tell(self, observation: str, action: str, *, action_valid: bool) -> dict[str, Any]:
        session = self._session
        assert session is not None
        goal = session.goal.instruction.strip()
        score = session.state.purchase.total if session.state.purchase else 0.0
        view = _view(session, self._stock.shop.catalogue.products)
        if self._style.wording == "brief":
            view = protocol.shortened(view)
        search = [protocol.SEARCH_ACTION] if session.state.page.kind == "index" else []
        return {
            "anchor_state": protocol.without_task(observation, goal),
            "action_valid": action_valid,
            "action": action,
            "won": score == 1,
            "score": score,
            "goal": goal,
            "step": self._step,
            "available_actions": (*search, *(f"click[{name}]" for name in session.clickables)),
            "page": view,
            "style": self._style,
        }

    @staticmethod
    def about(**options: Any) -> str:
        """Which shop is played, by which rules, and without the original data how to get it."""
        return describe(source_of(**options))

    @staticmethod
    def format_prompt(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        """See `protocol.format_prompt`."""
        return protocol.format_prompt(observation, history, info)

    @staticmethod
    def random_reply(rng: np.random.Generator, info: Mapping[str, Any]) -> str:
        """A click on anything, or a search for some words of the instruction, each as likely as any other."""
        actions = [f"click[{name}]" for name in protocol.clickables(info) if name != "search"]
        choice = int(rng.integers(len(actions) + 1))
        if choice < len(actions):
            action = spoken(actions[choice], info)
        else:
            words = protocol.query_words(info["goal"])
            start = int(rng.integers(max(len(words), 1)))
            action = f"search[{' '.join(words[start : start + 1 + int(rng.integers(QUERY_WORDS))])}]"
        return format_reply(action, info["style"].think)

    @staticmethod
    def make_expert(name: str, task: int, split: str, think: bool = True, **options: Any) -> Expert:
        """ "planner" knows the product that the goal was made of; "shopper" sees what an agent sees. Both go on from
        where they find themselves, whoever acted before. "hasty" is a shopper that at half of its steps on the
        product's page buys it as it is: one that reinforcement can better.
        """
        if name == "planner":
            stock = open_stock(source_of(**options))
            act = Planner(stock.shop, stock.shop.goals[goal_number(stock, split, task)]).act
        elif name == "shopper":
            act = Shopper().act
        elif name == "hasty":
            draws = Draws(f"{split}/{task}")
            act = Shopper(hasty=lambda: draws.choose((True, False))).act
        else:
            raise ValueError(f"no expert {name!r} in WebShop; there are: {', '.join(WebShop.experts)}")
        return lambda observation, info: format_reply(spoken(act(info), info), think)

    @staticmethod
    def panel_tasks(split: str, count: int, seed: int, /, **options: Any) -> list[int]:
        """Of the seed's own shuffle of the split's goals."""
        goals = len(_goals_of(open_stock(source_of(**options)), split))
        return list(range(seed * goals, seed * goals + (count or goals)))

    @staticmethod
    def fingerprint(task: int, split: str, **options: Any) -> str:
        """The goal's content, and a hash of the catalogue that it has to be found in."""
        source = source_of(**options)
        stock = open_stock(source)
        goal: Goal = stock.shop.goals[goal_number(stock, split, task)]
        return f"{goal!r} {catalogue_hash(source)}"


def goal_number(stock: Stock, split: str, task: int) -> int:
    """The goal of a task: tasks run through all goals of the split, then again in another order.

    Raises:
        ValueError: no such split or task.
    """
    goals = _goals_of(stock, split)
    if task < 0:
        raise ValueError(f"task must be at least 0, got {task}")
    turn, place = divmod(task, len(goals))
    return goals[_order(split, len(goals), turn)[place]]


def _goals_of(stock: Stock, split: str) -> list[int]:
    if split not in stock.splits:
        raise ValueError(f"WebShop has no split {split!r}; there are: {', '.join(stock.splits)}")
    return stock.splits[split]


@functools.lru_cache(maxsize=8)
def _order(split: str, size: int, turn: int) -> list[int]:
    """Every number below ``size`` once, in an order of this turn's own, the same on any machine."""
    draws = random.Random(f"{split} {turn}")  # only ``random()`` gives the same on any version of Python
    keys = [draws.random() for _ in range(size)]
    return sorted(range(size), key=keys.__getitem__)


def _view(session: Session, catalogue: Sequence[Product]) -> View:
    """The session's page; nothing that is not on it."""
    page = session.state.page
    products = [catalogue[place] for place in page.products]
    shown = tuple(Listed(product.asin.lower(), product.name, product.price_tag) for product in products)
    if page.kind == "results":
        return View("results", page.query, page.number, page.total, shown)
    if page.kind == "item":
        return View("item", page.query, page.number, products=shown, options=tuple(products[0].options.items()))
    if page.kind == "subpage":
        text = " ".join(node.text for node in session.nodes[4:])  # behind the instruction and the buttons
        return View("subpage", page.query, page.number, text=text)
    return View(page.kind)

"""What the agent is asked and how its reply is read: the published runs' protocol, in our own words."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from envs.core import check_choice
from envs.replies import read_reply
from envs.webshop.pages import NEXT, Kind

Actions = Literal["listed", "none"]
Wording = Literal["full", "brief"]

SEARCH_ACTION = "search[<your query>]"  # as the list of actions has it
LONGEST_PROMPT = 13_000  # characters; a longer one goes without its history, as in the published runs

_SEPARATOR = " [SEP] "
_BRACKETS = re.compile(r"(search|click)\s*\[(.*)\]", re.DOTALL)
_WORD = re.compile(r"[^\W_]+(?:[-'.][^\W_]+)*")
_AMOUNT = re.compile(r"\d+(?:\.\d+)?")
_PRICE_SENTENCE = re.compile(r",? and price lower than \d+\.\d+ dollars$")
_COMMON = (
    "a an and any are as be buy can care find for from get give have i i'd i'm in is it like looking me my need of on "
    "one only order or pick please shall she should show sister so some that the this to us want wants we will with "
    "would you do"
)
_FILLERS = frozenset(_COMMON.split())  # what instructions say whatever they ask for
_NAME_WORDS, _TEXT_WORDS = 10, 30  # of a product's name and of a subpage, in the brief wording


class PromptStyle(NamedTuple):
    """How prompts are worded; the published runs have the defaults."""

    think: bool = True  # replies have to reason inside <think> tags
    actions: Actions = "listed"  # whether possible actions are listed
    # "brief": for models that are tiny or trained from scratch. Titles are cut, listed products are numbered from 1 and
    # clicked by their numbers, prices are rounded up to tens of dollars, which the instructions' limits are too.
    wording: Wording = "full"


class Listed(NamedTuple):
    """A product as a page names it."""

    asin: str  # lower case, as ``click[..]`` takes it
    name: str
    price: str  # "$12.5" or "$12.5 to $19.99"; in the brief wording "20" or "10 to 20"


class View(NamedTuple):
    """What a page shows; in the brief wording, what is left of it there."""

    kind: Kind
    query: str = ""  # of the search that led here, lower case
    number: int = 1  # of the page of results
    total: int = 0  # products found
    products: tuple[Listed, ...] = ()  # the listed ones, or the one shown
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (name, values)
    text: str = ""  # of a subpage


def check_style(style: PromptStyle) -> PromptStyle:
    """Returns it.

    Raises:
        ValueError: a choice that does not exist.
    """
    check_choice("actions", style.actions, get_args(Actions))
    check_choice("prompt", style.wording, get_args(Wording))
    return style


def parse_reply(reply: str, think: bool = True) -> tuple[str, bool]:
    """The action and whether the reply is valid (`read_reply`); without tags the last 20 characters are taken."""
    return read_reply(reply, think, tail=20)


def spoken(command: str, info: Mapping[str, Any]) -> str:
    """How a reply to a prompt of this ``info`` says a command of the shop: in the brief wording products by number."""
    view: View = info["page"]
    if info["style"].wording == "brief" and view.kind == "results":
        numbers = {f"click[{product.asin}]": f"click[{i}]" for i, product in enumerate(view.products, 1)}
        return numbers.get(command, command)
    return command


def understood(action: str, info: Mapping[str, Any]) -> str:
    """The shop's command that an action means.

    That is the action itself. In the brief wording a number means a listed product, and spaces don't count, which
    word-level tokenizers put around punctuation.
    """
    if info["style"].wording != "brief" or not (found := _BRACKETS.fullmatch(action.strip())):
        return action
    verb, name = found[1], found[2].strip()
    if verb == "search":
        return f"search[{name}]"
    view: View = info["page"]
    names = {_squeezed(clickable): clickable for clickable in clickables(info)}
    if view.kind == "results":
        names |= {str(i): product.asin for i, product in enumerate(view.products, 1)}
    return f"click[{names.get(_squeezed(name), name)}]"


def clickables(info: Mapping[str, Any]) -> list[str]:
    """What ``click[..]`` may name here."""
    return [action[len("click[") : -1] for action in info["available_actions"] if action != SEARCH_ACTION]


def words_of(text: str) -> list[str]:
    """Its words in lower case, without punctuation around them."""
    return _WORD.findall(text.lower())


def query_words(goal: str) -> list[str]:
    """Those words of an instruction that tell what to search for: neither its price nor what any sentence has."""
    words = words_of(_PRICE_SENTENCE.sub("", goal))
    return [word for word in words if word not in _FILLERS] or words


def without_task(observation: str, goal: str) -> str:
    """A page as prompts and anchor states have it: the parts after the task's text, each in quotes.

    The page as it is where the task's text is none of its parts.
    """
    parts = observation.split(_SEPARATOR)
    if goal not in parts:
        return observation
    return _SEPARATOR.join(f"'{part}'" for part in parts[parts.index(goal) + 1 :])


def shortened(view: View) -> View:
    """What is left of a page in the brief wording: the first words of names and texts, and prices in tens."""
    products = tuple(
        Listed(product.asin, _first_words(product.name, _NAME_WORDS), _tens(product.price)) for product in view.products
    )
    return view._replace(products=products, text=_first_words(view.text, _TEXT_WORDS))


def format_prompt(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
    """The user message of a step.

    Args:
        observation: the current page, as the environment shows it.
        history: the last (observation, action) pairs, oldest first.
        info: as `WebShop` gives it: ``step`` (actions taken so far), ``goal``, ``available_actions``, ``page``,
            ``style``.
    """
    style: PromptStyle = info["style"]
    if style.wording == "brief":
        return _brief(history, info, style)
    prompt = _full(observation, history, info, style)
    return _full(observation, [], info, style) if len(prompt) > LONGEST_PROMPT else prompt


def _full(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any], style: PromptStyle) -> str:
    goal, step = info["goal"], info["step"]
    lines = ["You shop in WebShop, an online store told in words.", f"Your task: {goal}"]
    now = "You now observe: "
    if history:
        lines.append(f"Actions taken so far: {step}. The last {len(history)} observations and what you did then:")
        numbers = range(step - len(history) + 1, step + 1)
        lines += [
            f"[Observation {n}: '{without_task(seen, goal)}', Action {n}: '{action}']"
            for n, (seen, action) in zip(numbers, history, strict=True)
        ]
        now = f"This is step {step + 1}. You now observe: "
    lines.append(now + without_task(observation, goal))
    end = "Then give one action, search[your query] or click[a name], inside <action> </action> tags."
    if style.actions != "none":
        listed = "\n".join(f"'{action}'" for action in info["available_actions"])
        lines.append(f"Actions that are possible here:\n[{listed}]")
        end = "Then choose one of the possible actions and give it inside <action> </action> tags."
    reasoning = "First reason step by step about what you found and what to do next, inside <think> </think> tags. "
    lines.append(reasoning + end if style.think else end.removeprefix("Then ").capitalize())
    return "\n".join(lines)


def _brief(history: Sequence[tuple[str, str]], info: Mapping[str, Any], style: PromptStyle) -> str:
    """No instructions, and of past pages only which they were."""
    lines = [f"task {info['goal']}"]
    lines += [f"before {_past(seen)}\nyou {action}" for seen, action in history]
    lines += ["now " + line if not i else line for i, line in enumerate(_shown(info["page"]))]
    if style.actions != "none":
        spoken_actions = (spoken(action, info) for action in info["available_actions"] if action != "click[search]")
        lines.append("can " + ", ".join(spoken_actions))
    return "\n".join([*lines, "you"])


def _past(observation: str) -> str:
    """Which page it was."""
    parts = observation.split(_SEPARATOR)
    if NEXT in parts:
        return next((part.partition(" (")[0].lower() for part in parts if part.startswith("Page ")), "page")
    for name, price in itertools.pairwise(parts):
        if price.startswith("Price: "):
            return _first_words(name, _NAME_WORDS)
    return "text" if "< Prev" in parts else "search"


def _shown(view: View) -> list[str]:
    if view.kind == "results":
        hits = (f"{i} {product.name} {product.price}" for i, product in enumerate(view.products, 1))
        return [f"page {view.number}", *hits]
    if view.kind == "item":
        product = view.products[0]
        options = [f"{name}: {', '.join(values)}" for name, values in view.options]
        return [f"{product.name} {product.price}", *options]
    return [f"text {view.text}".strip() if view.kind == "subpage" else "search"]


def _first_words(text: str, most: int) -> str:
    return " ".join(words_of(text)[:most])


def _tens(price: str) -> str:
    """A price tag, rounded up: below a limit of whole tens if and only if the price is."""
    tens = [str(math.ceil(float(amount) / 10) * 10) for amount in _AMOUNT.findall(price)]
    return " to ".join(dict.fromkeys(tens))


def _squeezed(name: str) -> str:
    return "".join(name.split())

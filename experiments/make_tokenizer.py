"""Makes a shipped tokenizer of an environment's own text: ``python -m experiments.make_tokenizer NAME``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import tokenizers
import tyro

import hgpo_jax.policy.tokenization as tokenization
from envs.alfworld import protocol
from envs.alfworld.generator import generate
from envs.alfworld.scenes import OBJECTS, RECEPTACLES
from envs.frozen_lake import MOVES, VERBS, FrozenLakeText, lake_map, shortest_path
from envs.webshop import product_types
from envs.webshop import protocol as webshop_protocol
from envs.webshop.catalogue import clean_option
from envs.webshop.pages import BACK, BUY, NEXT, PREVIOUS, SEARCH, SUBPAGES

SHIPPED = Path(tokenization.__file__).parent / "tokenizers"
LARGEST_NUMBER = 50  # in ALFWorld: of objects and of steps
HIGHEST_PRICE = 1250  # dollars, in WebShop's generated catalogues

# Words to think aloud with; the same command means the same whatever stands before it.
_THOUGHTS = (
    "",
    "i",
    "the goal is down so i",
    "i see a hole left and",
    "there is no ice right but a wall so i",
)

# Classes of ALFRED's (Shridhar et al. 2020) that the original games hold and the generated ones do not.
_ORIGINAL_CLASSES = """
Bathtub Blinds Boots Chair Curtains Faucet Footstool GlassBottle HousePlant LaundryHamperLid LightSwitch Mirror Painting
PaintingHanger PaperTowel PaperTowelRoll Poster ScrubBrush ShowerDoor ShowerGlass Sink StoveKnob Television
ToiletPaperRoll WateringCan Window
"""
# What ALFWorld's engine says and understands, less the names.
_SAID = f"""
{protocol.WELCOME}
You are in the middle of a room. Looking quickly around you, you see a, and a. Your task is to:
You arrive at. On the, you see nothing. The is closed. The is open. In it, you see. Nothing happens.
You are facing the. Next to it, you see. You are carrying: a. You are not carrying anything.
You open the. You close the. You pick up the from the. You move the to the. You put the in/on the. You turn on the.
You clean the using the. You heat the using the. You cool the using the. You sliced the with the.
This is a hot and clean sliced. This is a cool. This is a cold. This is a normal. This is on.
There's nothing special about. put a hot in. put some cool on. look at under the. examine the with the.
find two and put them in. clean some and put it in. go to. open. close. take from. move to. put in/on.
clean with. heat with. cool with. slice with. use. examine. look. inventory. help.
"""


class _Text(NamedTuple):
    """What an environment's tokenizer is made of: see `tokenization.train_tokenizer`."""

    texts: Callable[[], Iterator[str]]
    whole: tuple[str, ...] = ()


def frozen_lake_texts(tasks: int = 20) -> Iterator[str]:
    """Prompts along the expert's way, after a valid and after an invalid reply, and replies."""
    env = FrozenLakeText()
    for task in range(tasks):
        observation, info = env.reset(seed=0, options={"task": task})
        history = [(observation, env.step("")[4]["action"])]
        for direction in shortest_path(lake_map(task)):
            yield env.format_prompt(observation, history[-2:], info)
            seen = observation
            observation, _, _, _, info = env.step(f"go {MOVES[direction]}")
            history.append((seen, info["action"]))
        yield env.format_prompt(observation, history[-2:], info)
    for thought, verb, move in itertools.product(_THOUGHTS, VERBS, MOVES.values()):
        yield f"{thought} {verb} {move}"


def alfworld_texts() -> Iterator[str]:
    """Every name, number and sentence, and the prompts around them: the same whatever games are drawn."""
    yield from (*OBJECTS, *RECEPTACLES, _ORIGINAL_CLASSES, _SAID, generate("train", 0).help_text)
    yield " ".join(map(str, range(LARGEST_NUMBER + 1)))
    about = {"goal": "", "admissible_commands": ("look", "help", "go to"), "step": 1}
    styles = itertools.product((True, False), get_args(protocol.Actions), get_args(protocol.Wording))
    for style, history in itertools.product(itertools.starmap(protocol.PromptStyle, styles), ([], [("", "")])):
        yield protocol.format_prompt("", history, about | {"style": style})


def webshop_texts() -> Iterator[str]:
    """Every word of generated catalogues, their goals and pages, and the brief prompts around them: no price in cents,
    no number of a product; the same whatever is drawn.
    """
    for kind in product_types.TYPES:
        yield " ".join((kind.leaf, kind.noun, *kind.materials, *kind.attributes, kind.category))
    for name, values in product_types.OPTIONS.values():
        yield " ".join((name, *map(clean_option, values.split(";"))))
    yield from (*product_types.BRANDS, *product_types.CATEGORIES.values(), *product_types.PHRASES.values())
    yield from (*product_types.SYNTHETIC_INSTRUCTIONS, *product_types.HUMAN_INSTRUCTIONS, *product_types.SENTENCES)
    yield from (part for pair in product_types.BULLETS for part in pair.split(":"))
    yield from (SEARCH, BACK, PREVIOUS, NEXT, BUY, *SUBPAGES, "an, with color: red, and price lower than 10.00 dollars")
    yield " ".join(map(str, (*range(LARGEST_NUMBER + 1), *range(0, HIGHEST_PRICE + 1, 10))))
    styles = itertools.product((True, False), get_args(webshop_protocol.Actions))
    listed = webshop_protocol.View("results", products=(webshop_protocol.Listed("", "", "10 to 20"),))
    pages = (webshop_protocol.View("index"), listed, webshop_protocol.View("subpage"))
    observations = ("WebShop", "Page 1 (Total [SEP] Next >", "< Prev", "page [SEP] Next >")
    history = [(observation, "search[] click[]") for observation in observations]
    for (think, actions), page in itertools.product(styles, pages):
        style = webshop_protocol.PromptStyle(think, actions, "brief")
        about = {"goal": "", "available_actions": (webshop_protocol.SEARCH_ACTION,), "page": page}
        yield webshop_protocol.format_prompt("", history, about | {"style": style})


_TEXTS = {
    "frozen_lake": _Text(frozen_lake_texts),
    "alfworld": _Text(alfworld_texts, ("<think>", "</think>", "<action>", "</action>", "in/on")),
    "webshop": _Text(webshop_texts, ("<think>", "</think>", "<action>", "</action>", "search[", "click[")),
}


def make_tokenizer(name: str) -> tokenizers.Tokenizer:
    """The tokenizer of an environment, the same on every machine.

    Raises:
        ValueError: for an environment that has none.
    """
    if name not in _TEXTS:
        raise ValueError(f"no texts for {name!r}, choose from {sorted(_TEXTS)}")
    return tokenization.train_tokenizer(_TEXTS[name].texts(), _TEXTS[name].whole)


def main(name: Literal["frozen_lake", "alfworld", "webshop"], /, directory: Path = SHIPPED) -> None:
    """Writes ``<directory>/<name>.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(name)
    path = directory / f"{name}.json"
    path.write_text(tokenizer.to_str(pretty=True) + "\n")
    print(f"{path}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    tyro.cli(main)

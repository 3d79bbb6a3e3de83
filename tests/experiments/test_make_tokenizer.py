"""The shipped tokenizers are what their makers make, and leave nothing of their environments unknown."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.alfworld import protocol
from envs.alfworld.environment import ALFWorld
from envs.alfworld.protocol import parse_reply
from envs.alfworld.scenes import OBJECTS, RECEPTACLES
from envs.frozen_lake import MOVES, VERBS, FrozenLakeText
from envs.replies import format_reply
from envs.webshop import protocol as webshop_protocol
from envs.webshop.environment import WebShop
from experiments.configs import load_config
from experiments.make_tokenizer import SHIPPED, main, make_tokenizer
from hgpo_jax.policy.tokenization import UNK, Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "alfworld"
NAMES = st.sampled_from(sorted(name.lower() for name in (*OBJECTS, *RECEPTACLES)))
COMMANDS = ("go to {}", "take {} from {}", "move {} to {}", "put {} in/on {}", "heat {} with {}", "open {}", "use {}")


def unknown_words(texts: list[str], tokenizer: Tokenizer) -> set[str]:
    """The words of these texts that the tokenizer does not know."""
    unknown = tokenizer.encode(UNK)[0]
    words = {word for text in texts for word in text.split()}
    return {word for word in words if unknown in tokenizer.encode(word)}


@pytest.fixture(scope="module")
def alfworld() -> Tokenizer:
    tokenizer = load_tokenizer("alfworld")
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


@pytest.mark.parametrize("name", ["frozen_lake", "alfworld", "webshop"])
def test_the_shipped_file_is_what_the_maker_makes(name: str, tmp_path: Path) -> None:
    main(name, directory=tmp_path)  # pyright: ignore[reportArgumentType]
    assert (tmp_path / f"{name}.json").read_text() == (SHIPPED / f"{name}.json").read_text()


def test_frozen_lake_is_spoken_in_whole_known_words():
    tokenizer = load_tokenizer("frozen_lake")
    unknown = make_tokenizer("frozen_lake").token_to_id(UNK)
    env = FrozenLakeText(size=8)
    rng = np.random.default_rng(0)
    for task in range(50):
        observation, info = env.reset(seed=0, options={"task": task, "split": "test"})
        for _ in range(10):
            history = [(observation, "go to the left"), (observation, "invalid")]
            prompt = env.format_prompt(observation, history, info)
            ids = tokenizer.encode(prompt)
            assert unknown not in ids
            assert len(ids) == len(prompt.split()) <= 66
            assert tokenizer.decode(ids) == " ".join(prompt.split())
            observation, _, terminated, _, info = env.step(f"go {rng.choice(list(MOVES.values()))}")
            if terminated:
                break


def test_every_command_survives_the_way_to_tokens_and_back():
    tokenizer = load_tokenizer("frozen_lake")
    for verb in VERBS:
        for move in MOVES.values():
            ids = tokenizer.encode(f"{verb} {move}")
            assert len(ids) == (4 if move.startswith("to") else 2)  # replies differ in length
            assert tokenizer.decode([*ids, tokenizer.eos_ids[0]]) == f"{verb} {move}"


def played(split: str, task: int, rng: np.random.Generator, **options) -> Iterator[str]:
    """All that is said on an expert's way through a game, and then on a walk by lot."""
    env = ALFWorld(**options)
    for walk in (ALFWorld.make_expert("searcher", task, split, **options), None):
        observation, info = env.reset(options={"task": task, "split": split})
        history: list[tuple[str, str]] = []
        while not info["won"] and len(history) < 30:
            yield env.format_prompt(observation, history[-3:], info)
            reply = walk(observation, info) if walk else ALFWorld.random_reply(rng, info)
            yield reply
            seen = observation
            observation, _, _, _, info = env.step(reply)
            history.append((seen, info["action"]))
        yield observation
    yield env.step(format_reply("help"))[0]


@pytest.mark.slow
def test_nothing_of_alfworld_is_unknown(alfworld: Tokenizer) -> None:
    """Two hundred generated games of all splits, types and scales, in every style of prompt."""
    rng = np.random.default_rng(0)
    styles = itertools.product((True, False), get_args(protocol.Actions), get_args(protocol.Wording))
    drawn = zip(range(200), itertools.cycle(styles), itertools.cycle((0, 4, 5, 7, 12, 30, 60)), strict=False)
    for task, (think, actions, prompt), receptacles in drawn:
        options = {"receptacles": receptacles, "think": think, "actions": actions, "prompt": prompt}
        texts = list(played(ALFWorld.splits[task % 3], task, rng, **options))
        assert len(texts) > 10
        assert not unknown_words(texts, alfworld), (task, options)


def test_nothing_of_recorded_games_is_unknown(alfworld: Tokenizer) -> None:
    games = [json.loads(line) for line in (GOLDEN / "games.jsonl").read_text().splitlines()]
    texts = [command for game in games for command in game["walkthrough"]]
    for shown in (shown for game in games for shown in (game["reset"], *game["steps"])):
        texts += [shown["observation"], *shown["admissible_commands"]]
    assert len(texts) > 1000
    assert not unknown_words(texts, alfworld)


def test_alfworlds_names_numbers_and_tags_are_one_token_each(alfworld: Tokenizer) -> None:
    names = [name.lower() for name in (*OBJECTS, *RECEPTACLES, "HousePlant")]
    for word in (*names, *map(str, range(51)), "<think>", "</think>", "<action>", "</action>", "in/on"):
        (token,) = alfworld.encode(word)
        assert alfworld.decode([token]) == word
    assert alfworld.decode(alfworld.encode("On the desk 12, you see a mug 1.")) == "on the desk 12 , you see a mug 1 ."
    assert alfworld.vocab_size < 400


@given(
    command=st.sampled_from(COMMANDS),
    names=st.lists(NAMES, min_size=2, max_size=2),
    numbers=st.lists(st.integers(0, 50), min_size=2, max_size=2),
    thought=st.sampled_from(["", "You are here.", "The mug 1 is in/on the desk 2, so go to it."]),
    think=st.booleans(),
)
def test_a_reply_means_the_same_after_tokens_and_back(
    alfworld: Tokenizer, command: str, names: list[str], numbers: list[int], thought: str, think: bool
) -> None:
    things = [f"{name} {number}" for name, number in zip(names, numbers, strict=True)]
    reply = format_reply(command.format(*things), think).replace("<think>", f"<think>{thought}")
    again = alfworld.decode([*alfworld.encode(reply), alfworld.eos_ids[0]])
    assert parse_reply(again, think) == parse_reply(reply, think) == (command.format(*things), True)


def shopped(task: int, rng: np.random.Generator, **options) -> Iterator[tuple[str, str, dict]]:
    """Prompt, reply and info of each step on both experts' ways through a shop, and then on a walk by lot."""
    env = WebShop(**options)
    for expert in (*WebShop.experts, ""):
        observation, info = env.reset(options={"task": task})
        walk = WebShop.make_expert(expert, task, "train", **options) if expert else None
        history: list[tuple[str, str]] = []
        terminated = False
        while not terminated and len(history) < 12:
            reply = walk(observation, info) if walk else WebShop.random_reply(rng, info)
            yield env.format_prompt(observation, history[-2:], info), reply, info
            seen = observation
            observation, _, terminated, _, info = env.step(reply)
            history.append((seen, info["action"]))


def test_nothing_of_brief_shops_is_unknown_and_replies_mean_the_same() -> None:
    """Also the prompts fit into the small experiment's limits."""
    tokenizer, rng = load_tokenizer("webshop"), np.random.default_rng(0)
    tiny = load_config("webshop_tiny")
    styles = itertools.product((True, False), get_args(webshop_protocol.Actions), (True, False))
    texts: list[str] = []
    for task, (think, actions, human) in zip(range(32), itertools.cycle(styles), strict=False):
        options = {"products": 300, "human": human, "prompt": "brief", "think": think, "actions": actions}
        for prompt, reply, info in shopped(task, rng, **options):
            texts += [prompt, reply]
            again = tokenizer.decode([*tokenizer.encode(reply), tokenizer.eos_ids[0]])
            said, heard = (webshop_protocol.parse_reply(text, think) for text in (reply, again))
            assert heard[1]
            meant, understood = (webshop_protocol.understood(action, info) for action, _ in (said, heard))
            assert meant == understood or meant.startswith("search[")
            assert tokenizer.encode(meant) == tokenizer.encode(understood)
            if actions == "none":
                assert len(tokenizer.encode(prompt)) <= tiny.rollout.max_prompt_length
                assert len(tokenizer.encode(reply)) < tiny.rollout.max_response_length
    assert len(texts) > 1000
    assert isinstance(tokenizer, Tokenizer)
    assert not unknown_words(texts, tokenizer)
    assert tokenizer.vocab_size <= tiny.model.vocab_size


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"no texts for 'chess', choose from \['alfworld', 'frozen_lake', 'webshop'\]"):
        make_tokenizer("chess")

"""Makes a shipped tokenizer of an environment's own text: ``python -m experiments.make_tokenizer NAME``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import tokenizers
import tyro

import hgpo_jax.policy.tokenization as tokenization
from envs.frozen_lake import MOVES, VERBS, FrozenLakeText, lake_map, shortest_path

SHIPPED = Path(tokenization.__file__).parent / "tokenizers"

# Words to think aloud with; the same command means the same whatever stands before it.
_THOUGHTS = (
    "",
    "i",
    "the goal is down so i",
    "i see a hole left and",
    "there is no ice right but a wall so i",
)


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


_TEXTS: dict[str, Callable[[], Iterator[str]]] = {"frozen_lake": frozen_lake_texts}


def make_tokenizer(name: str) -> tokenizers.Tokenizer:
    """The tokenizer of an environment, the same on every machine.

    Raises:
        ValueError: for an environment that has none.
    """
    if name not in _TEXTS:
        raise ValueError(f"no texts for {name!r}, choose from {sorted(_TEXTS)}")
    return tokenization.train_tokenizer(_TEXTS[name]())


def main(name: Literal["frozen_lake"], /, directory: Path = SHIPPED) -> None:
    """Writes ``<directory>/<name>.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(name)
    path = directory / f"{name}.json"
    path.write_text(tokenizer.to_str(pretty=True) + "\n")
    print(f"{path}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    tyro.cli(main)

"""States that never repeat exactly: views told with noise, and the keys that make groups of them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hgpo_jax.estimators import quantised_states, similar_states

NOISE = 0.2  # standard deviation of a view's number
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))

StateKeys = Callable[[np.ndarray, np.ndarray, np.random.Generator], Any]  # (observation, prompt group, rng) -> states


def as_numbers(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The number of each view with normal noise, f64 [N]: all different."""
    return observation + NOISE * rng.standard_normal(len(observation))


def as_texts(observation: np.ndarray, rng: np.random.Generator) -> list[str]:
    """Twenty words, of which all views share twelve, and a clock: two texts of one view differ in a few digits."""
    words = np.random.default_rng(0)  # the same in every world

    def sentence(count: int) -> str:
        return " ".join("".join(words.choice(LETTERS, 6)) for _ in range(count))

    shared = sentence(12)
    views = [f"{shared} {sentence(8)}" for _ in range(int(observation.max()) + 1)]
    clock = rng.permutation(len(observation))
    return [f"{views[o]} {tick:06d}" for o, tick in zip(observation, clock, strict=True)]


def exact_numbers(observation: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> Any:
    """No two states are the same."""
    return as_numbers(observation, rng)


def binned(width: float) -> StateKeys:
    """`quantised_states`; views lie 1 apart."""
    return lambda observation, group, rng: quantised_states(as_numbers(observation, rng), width)


def exact_texts(observation: np.ndarray, group: np.ndarray, rng: np.random.Generator) -> Any:
    """No two states are the same."""
    return as_texts(observation, rng)


def similar(threshold: float) -> StateKeys:
    """`similar_states` by the faster rule, which finds the released one's groups in these texts."""
    return lambda observation, group, rng: similar_states(
        as_texts(observation, rng), group, threshold, rule="subsequence"
    )


STATE_KEYS: dict[str, StateKeys] = {
    "number, exact": exact_numbers,
    "number, bins of 0.25": binned(0.25),
    "number, bins of 1": binned(1.0),
    "number, bins of 4": binned(4.0),
    "text, exact": exact_texts,
    "text, 95 % alike": similar(0.95),
    "text, 60 % alike": similar(0.6),
}

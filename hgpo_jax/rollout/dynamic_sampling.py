"""DAPO's dynamic sampling: which prompt groups of a rollout stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hgpo_jax.types import Trajectories


def informative_groups(episode_return: Sequence[float] | np.ndarray, group_size: int) -> np.ndarray:
    """Whether the episodes of a prompt group differ in reward: 0 < |{correct}| < G (arXiv 2503.14476, eq. 11).

    The environment's rewards alone count, as accuracy does there: penalties for invalid or long replies rescue no
    group, nor do unequal lengths of episodes that all won.

    Args:
      episode_return: [E] summed reward of each episode, those of a group one after the other.
      group_size: episodes of a group.

    Returns:
      bool [E / group_size].

    Raises:
      ValueError: episodes that do not fill their groups.
    """
    returns_E = np.asarray(episode_return, np.float64)
    if group_size < 1 or len(returns_E) % group_size:
        raise ValueError(f"{len(returns_E)} episodes do not make groups of {group_size}")
    returns_GE = returns_E.reshape(-1, group_size)
    return returns_GE.max(axis=1) > returns_GE.min(axis=1)


def first_of(wanted: np.ndarray, count: int) -> np.ndarray:
    """Those of the True entries that are among the first ``count`` of them. bool, the same shape, in C order."""
    flat = wanted.ravel()
    return (flat & (np.cumsum(flat) <= count)).reshape(wanted.shape)


def without_signal(batch: Trajectories) -> Trajectories:
    """What stands for a batch of which no group is left: its first step, twice, as two trajectories of one group.

    A batch has a step at least; every estimator that compares steps within groups gives these two advantage 0.
    """
    first = batch.take(np.zeros(1, np.int64))
    columns: dict[str, Any] = {f.name: getattr(first, f.name) for f in dataclasses.fields(first)}
    twice: dict[str, Any] = {name: [*column, *column] for name, column in columns.items() if column is not None}
    return Trajectories(**twice | {"trajectory": np.arange(2), "step": np.zeros(2, np.int32)})

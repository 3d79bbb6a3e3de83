"""Two worlds that can be solved on paper."""

from __future__ import annotations

import numpy as np

from experiments.studies.worlds import Policy, World


def two_doors(reward_std: float = 0.0) -> World:
    """Two doors lead to two rooms that look alike, from which lever 0 pays 8 behind door 0 and lever 1 pays 4
    behind door 1; nothing else pays. States: hall, room 0, room 1, end."""
    transition = np.zeros((4, 2, 4))
    transition[0, 0, 1] = transition[0, 1, 2] = 1
    transition[1:, :, 3] = 1
    reward = np.zeros((4, 2, 4))
    reward[1, 0, 3], reward[2, 1, 3] = 8, 4
    return World(
        "two doors",
        np.array([1.0, 0, 0, 0]),
        transition,
        reward,
        np.array([0, 1, 1, 0]),
        np.arange(4) == 3,
        horizon=2,
        reward_std=reward_std,
    )


def forgetful() -> Policy:
    """Door 0 with 3/4, then lever 0 with 1/2; knows only what it sees."""
    return Policy(np.array([[0.75, 0.25], [0.5, 0.5]]), memory_length=0, num_observations=2)

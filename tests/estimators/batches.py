"""Seeded batches: interleaved trajectories, revisits, invalid actions, sparse or dense reward."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hgpo_jax.estimators.advantages import Estimator, step_signals
from hgpo_jax.types import StepSignals

GAMMA, PENALTY = 0.95, 0.1


class Batch(NamedTuple):
    """What a rollout records, [N] each."""

    anchor_state: np.ndarray
    prompt_group: np.ndarray
    trajectory: np.ndarray
    reward: np.ndarray
    action_valid: np.ndarray

    def signals(self, estimator: Estimator, size: int | None = None, **options: Any) -> StepSignals:
        return step_signals(
            *self, estimator=estimator, gamma=GAMMA, invalid_action_penalty=PENALTY, size=size, **options
        )

    def for_loops(self, signals: StepSignals) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """State, prompt group, trajectory, step return and score: the oracles' first five arguments."""
        size = len(self.reward)
        values = np.asarray(signals.step_return)[:size], np.asarray(signals.score)[:size]
        return self.anchor_state, self.prompt_group, self.trajectory, *values

    def take(self, order: Any) -> Batch:
        return Batch(*(field[order] for field in self))


def random_batch(
    seed: int,
    *,
    groups: int = 3,
    rollouts: int = 4,
    max_steps: int = 12,
    states: int = 3,
    dense: bool = False,
    interleaved: bool = True,
) -> Batch:
    """Trajectories of random length through few states; labels are arbitrary numbers."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(10 * groups * rollouts)
    rows = []
    for rollout in range(groups * rollouts):
        length, group = int(rng.integers(1, max_steps + 1)), rollout // rollouts
        rewards = rng.normal(size=length) if dense else np.append(np.zeros(length - 1), 10 * (rng.random() < 0.5))
        rows.append(
            [(f"room {rng.integers(states)}", 7 * group, labels[rollout], r, rng.random() < 0.8) for r in rewards]
        )
    order = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    if interleaved:
        rng.shuffle(order)
    pending = [iter(row) for row in rows]
    steps = [next(pending[rollout]) for rollout in order]
    state, group, trajectory, reward, valid = zip(*steps, strict=True)
    return Batch(np.array(state), np.array(group), np.array(trajectory), np.array(reward, np.float32), np.array(valid))

"""Context inconsistency on the host: how far steps in the same state differ in what led there. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hgpo_jax.estimators.grouping import check_lengths, compact_ids, trajectory_layout

ROWS = ("inconsistent_groups", "inconsistent_steps", "squared_spread", "spread_steps", "groups", "steps")


def context_sums(
    anchor_state: Sequence[Any] | np.ndarray,
    prompt_group: Sequence[Any] | np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    step_return: Sequence[float] | np.ndarray,
    *,
    context_length: int,
    step: Sequence[int] | np.ndarray | None = None,
) -> np.ndarray:
    """What `context_diagnostics` divides, so that parts of a batch can be added up first.

    Args:
      anchor_state, prompt_group, trajectory, step: [N] as for `group_steps`.
      step_return: [N].
      context_length: K; depths 1..K are looked at, whatever an estimator groups.

    Returns:
      f64 [6, K], rows as in ``ROWS``: state groups whose members differ in the last k states, the steps in them, the
      squared distances of finer groups' mean returns from their state group's, each counted once a step, those steps;
      state groups, and the steps in them.

    Raises:
      ValueError: lengths disagree, the batch is empty, a context length below 1, a state that cannot be compared.
    """
    check_lengths(anchor_state=anchor_state, prompt_group=prompt_group, trajectory=trajectory, step_return=step_return)
    if context_length < 1:
        raise ValueError(f"context_length must be 1 or more, got {context_length}: there is no context to differ in")
    layout = trajectory_layout(trajectory, step)
    states_N = compact_ids(anchor_state)[layout.order].astype(np.int64) + 1
    returns_N = np.asarray(step_return, np.float64)[layout.order]
    radix = int(states_N.max()) + 1
    state_group_N = _numbered(compact_ids(prompt_group)[layout.order].astype(np.int64) * radix + states_N)
    histories_N = state_group_N
    sums = np.zeros((len(ROWS), context_length))
    for k in range(1, context_length + 1):
        # Before the first state there is none, 0: steps that began alike have the same history, however short.
        past_N = np.where(layout.position >= k, np.roll(states_N, k), 0)
        histories_N = _numbered(histories_N * radix + past_N)
        sums[:, k - 1] = _depth_sums(state_group_N, histories_N, returns_N)
    return sums


def context_diagnostics(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Context inconsistency by depth k = 1..K, among state groups (level 0) of two steps or more.

    Two steps have the same context at depth k when their last k states before this one are equal, or those since
    the start where the episode is shorter. With m_0 and m_k the mean returns of a step's groups at depth 0 and k,

        spread_k = sqrt(mean over steps of (m_k - m_0)^2)

    over the steps whose group at depth k has two members or more. The state group's baseline is off by so much for
    the finer ones; a part is sampling noise, the more the smaller they are.

    Args:
      sums: f64 [6, K] of `context_sums`, of one part of a batch or added up over all.

    Returns:
      ``inconsistent_groups`` f64 [K], the share of state groups whose members have not all the same context;
      ``inconsistent_steps`` [K], of the steps in state groups the share that lies in those; ``baseline_spread``
      [K], in units of the return. 0 without a group.
    """
    differing, differing_steps, squares, spread_steps, groups, steps = sums
    return {
        "inconsistent_groups": differing / np.maximum(groups, 1),
        "inconsistent_steps": differing_steps / np.maximum(steps, 1),
        "baseline_spread": np.sqrt(squares / np.maximum(spread_steps, 1)),
    }


def _depth_sums(state_group_N: np.ndarray, histories_N: np.ndarray, returns_N: np.ndarray) -> list[float]:
    """A column of `context_sums`."""
    sizes_G = np.bincount(state_group_N)
    means_G = np.bincount(state_group_N, returns_N) / sizes_G
    shared_G = sizes_G >= 2
    # Every history lies in one state group: the first step of each tells which.
    first = np.unique(histories_N, return_index=True)[1]
    fine_sizes_H = np.bincount(histories_N)
    fine_means_H = np.bincount(histories_N, returns_N) / fine_sizes_H
    parent_H = state_group_N[first]
    differing_G = shared_G & (np.bincount(parent_H, minlength=len(sizes_G)) > 1)
    counted_H = np.where(fine_sizes_H >= 2, fine_sizes_H, 0)
    squares = counted_H * (fine_means_H - means_G[parent_H]) ** 2
    return [
        differing_G.sum(),
        sizes_G[differing_G].sum(),
        squares.sum(),
        counted_H.sum(),
        shared_G.sum(),
        sizes_G[shared_G].sum(),
    ]


def _numbered(key_N: np.ndarray) -> np.ndarray:
    """The keys as 0, 1, .., which stay small enough to be multiplied."""
    return np.unique(key_N, return_inverse=True)[1].astype(np.int64)

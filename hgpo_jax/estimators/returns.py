"""Discounted returns and episode scores of mixed trajectories, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hgpo_jax.estimators.grouping import check_lengths, compact_ids, trajectory_layout


def discounted_returns(
    reward: Sequence[float] | np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    gamma: float,
    step: Sequence[int] | np.ndarray | None = None,
) -> np.ndarray:
    """R_t = sum over u >= t of gamma^(u - t) r_u, within each trajectory.

    Equal rewards from a step to the end give bit-equal returns, in whichever batch or trajectory they lie:
    only so can groups of equal returns be told by equality.

    Args:
      reward: [N] the environment's rewards.
      trajectory: [N] labels; steps of different trajectories may be mixed in any way.
      gamma: discount, from 0 to 1.
      step: [N] the order inside each trajectory; that of appearance when left out.

    Returns:
      f32 [N].

    Raises:
      ValueError: lengths disagree, a reward is not finite (the message names the step), gamma outside [0, 1].
    """
    return _discounted(reward, trajectory, gamma, step).astype(np.float32)


def step_returns(
    reward: Sequence[float] | np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    action_valid: Sequence[bool] | np.ndarray | None = None,
    *,
    gamma: float,
    invalid_action_penalty: float,
    step: Sequence[int] | np.ndarray | None = None,
) -> np.ndarray:
    """R_t - c [action t invalid]: the penalty comes off after discounting and stays with its step.

    Args:
      reward: [N] the environment's rewards, without penalty.
      trajectory: [N] labels.
      action_valid: [N] bool; every action is valid when left out.
      gamma: discount, from 0 to 1.
      invalid_action_penalty: c, 0 or more.
      step: [N] the order inside each trajectory; that of appearance when left out.

    Returns:
      f32 [N].

    Raises:
      ValueError: as `discounted_returns`; a negative penalty.
    """
    penalty_N = _penalties(reward, action_valid, invalid_action_penalty)
    return (_discounted(reward, trajectory, gamma, step) - penalty_N).astype(np.float32)


def episode_scores(
    reward: Sequence[float] | np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    action_valid: Sequence[bool] | np.ndarray | None = None,
    *,
    invalid_action_penalty: float,
) -> np.ndarray:
    """The sum of the trajectory's rewards, minus c if this very step is invalid.

    Args:
      reward: [N] the environment's rewards, without penalty.
      trajectory: [N] labels.
      action_valid: [N] bool; every action is valid when left out.
      invalid_action_penalty: c, 0 or more.

    Returns:
      f32 [N].

    Raises:
      ValueError: lengths disagree, a reward is not finite, a negative penalty.
    """
    check_lengths(reward=reward, trajectory=trajectory)
    penalty_N = _penalties(reward, action_valid, invalid_action_penalty)
    ids = compact_ids(trajectory)
    total = np.bincount(ids, weights=_finite(reward))
    return (total[ids] - penalty_N).astype(np.float32)


def next_steps(trajectory: Sequence[Any] | np.ndarray, step: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
    """Where each step's successor in its trajectory lies: i32 [N], -1 for the last.

    Args:
      trajectory: [N] labels.
      step: [N] the order inside each trajectory; that of appearance when left out.
    """
    layout = trajectory_layout(trajectory, step)
    ahead = np.full(len(layout.position), -1, np.int32)
    place = np.arange(len(ahead))[layout.order]
    follows = np.flatnonzero(layout.position > 0)
    ahead[place[follows - 1]] = place[follows]
    return ahead


def _discounted(reward: Any, trajectory: Any, gamma: float, step: Any) -> np.ndarray:
    """Doubling: after pass p every step holds the discounted sum of its next 2^p rewards. f64 [N]."""
    check_lengths(reward=reward, trajectory=trajectory, step=step)
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be from 0 to 1, got {gamma}")
    layout = trajectory_layout(trajectory, step)
    value = np.array(_finite(reward)[layout.order])
    span = 1
    while span <= layout.position.max():
        # What lies ``span`` places on belongs to this trajectory when it is that far from its own start.
        value[:-span] += np.where(layout.position[span:] >= span, gamma**span * value[span:], 0)
        span *= 2
    in_batch = np.empty_like(value)
    in_batch[layout.order] = value
    return in_batch


def _finite(reward: Any) -> np.ndarray:
    reward = np.asarray(reward, np.float64)
    if reward.ndim != 1:
        raise ValueError(f"reward must be flat, one number per step; got shape {reward.shape}")
    bad = np.flatnonzero(~np.isfinite(reward))
    if bad.size:
        raise ValueError(f"reward of step {bad[0]} is {reward[bad[0]]} ({bad.size} such of {reward.size} steps)")
    return reward


def _penalties(reward: Any, action_valid: Any, penalty: float) -> np.ndarray:
    if not (np.isfinite(penalty) and penalty >= 0):
        raise ValueError(f"invalid_action_penalty must be 0 or more, got {penalty}")
    size = check_lengths(reward=reward, action_valid=action_valid)
    valid = np.ones(size, bool) if action_valid is None else np.asarray(action_valid)
    if valid.ndim != 1:
        raise ValueError(f"action_valid has shape {list(valid.shape)}, expected one value per step: [N]")
    if valid.dtype != bool:
        if not np.isin(valid, (0, 1)).all():
            raise ValueError("action_valid must hold booleans (or 0 and 1)")
        valid = valid.astype(bool)
    return penalty * ~valid

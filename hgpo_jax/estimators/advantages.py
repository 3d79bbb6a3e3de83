"""One call for any estimator, and what it reads: from recorded host arrays to advantages."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import (
    EstimatorConfig,
    GAEConfig,
    GiGPOConfig,
    GRPOConfig,
    HGPOConfig,
    ReinforceConfig,
    ShrinkageConfig,
)
from hgpo_jax.estimators import baselines, gae, hierarchy, shrinkage
from hgpo_jax.estimators.grouping import check_lengths, compact_ids, group_steps
from hgpo_jax.estimators.returns import episode_scores, next_steps, step_returns
from hgpo_jax.types import Array, StepSignals

Diagnostics = dict[str, Any]
UserEstimator = Callable[[StepSignals], Array | tuple[Array, Diagnostics]]
Estimator = EstimatorConfig | UserEstimator


_LARGEST = 1e18  # of a return or score; the square of a larger one is beyond float32


class Grouping(NamedTuple):
    """Which levels to group: ``group_steps(.., **grouping_for(estimator)._asdict())``."""

    context_length: int
    root: Literal["state", "prompt"]


def grouping_for(estimator: Estimator) -> Grouping:
    """The levels an estimator reads: HGPO's own; the state level alone for every other and for functions."""
    if isinstance(estimator, HGPOConfig | ShrinkageConfig):
        return Grouping(estimator.context_length, estimator.root)
    return Grouping(0, "state")


def make_estimator(estimator: Estimator) -> Callable[[StepSignals], tuple[jax.Array, Diagnostics]]:
    """The pure function behind an estimator's settings; a function of the user's own has its result checked.

    Args:
      estimator: HGPOConfig, ShrinkageConfig, GRPOConfig, GiGPOConfig, ReinforceConfig, GAEConfig, or a function of
        StepSignals that returns advantages [N], alone or with a dict of diagnostics.

    Returns:
      ``signals -> (advantages f32 [N], diagnostics)``, to be called inside or outside jit.

    Raises:
      ValueError: a setting out of range, neither settings nor a function; when called, a result that is not
        advantages [N], alone or with a dict.
    """
    match estimator:
        case HGPOConfig():
            hierarchy.check_hierarchy_config(estimator)
            return lambda signals: hierarchy.hierarchy_advantages(signals, estimator)
        case ShrinkageConfig():
            shrinkage.check_shrinkage_config(estimator)
            return lambda signals: shrinkage.shrinkage_advantages(signals, estimator)
        case GRPOConfig():
            baselines.check_baseline_config(estimator)
            return lambda signals: baselines.grpo_advantages(signals, estimator)
        case GiGPOConfig():
            baselines.check_baseline_config(estimator)
            return lambda signals: baselines.gigpo_advantages(signals, estimator)
        case ReinforceConfig():
            return lambda signals: baselines.reinforce_advantages(signals, estimator)
        case GAEConfig():
            gae.check_gae_config(estimator)
            return lambda signals: gae.gae_advantages(signals, estimator)
        case _ if callable(estimator) and not isinstance(estimator, type):
            return lambda signals: _checked(estimator, signals)
    raise ValueError(
        "estimator must be an instance of HGPOConfig, ShrinkageConfig, GRPOConfig, GiGPOConfig, "
        f"ReinforceConfig or GAEConfig, or a function of StepSignals; got {estimator!r}"
    )


def step_signals(
    anchor_state: Sequence[Any] | np.ndarray,
    prompt_group: Sequence[Any] | np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    reward: Sequence[float] | np.ndarray,
    action_valid: Sequence[bool] | np.ndarray | None = None,
    *,
    estimator: Estimator,
    gamma: float,
    invalid_action_penalty: float,
    step: Sequence[int] | np.ndarray | None = None,
    step_return: Sequence[float] | np.ndarray | None = None,
    grouping: Grouping | None = None,
    size: int | None = None,
    value: Sequence[float] | np.ndarray | None = None,
    next_value: Sequence[float] | np.ndarray | None = None,
) -> StepSignals:
    """Everything an estimator reads, from what a rollout has recorded.

    Args:
      anchor_state, prompt_group, trajectory: [N] as for `group_steps`.
      reward: [N] the environment's rewards, without penalty.
      action_valid: [N] bool; every action is valid when left out.
      estimator: settings or function; says which levels are grouped.
      gamma: discount.
      invalid_action_penalty: taken off the return and the score of an invalid step.
      step: [N] the order inside each trajectory; that of appearance when left out.
      step_return: [N] returns of your own, instead of the discounted ones.
      grouping: the levels to group, for a function that reads more than the state level.
      size: pad to so many steps (``valid`` False, ids -1, values 0).
      value: [N] a critic's V of each step's state, which GAE needs.
      next_value: [N] V of the state that a trajectory's last step led to, where it was cut and not over; read at
        last steps only, 0 when left out.

    Returns:
      StepSignals of NumPy arrays, [size] and [L, size].

    Raises:
      ValueError: as `group_steps` and `step_returns`; size below N; a GiGPOConfig with a grouping other than the
        state level's; returns, scores or values too large for float32 statistics (the message names
        the step).
    """
    length = check_lengths(anchor_state=anchor_state, reward=reward, action_valid=action_valid, step_return=step_return)
    size = length if size is None else size
    if size < length:
        raise ValueError(f"size {size} is less than the {length} steps of the batch")
    levels = grouping_for(estimator) if grouping is None else Grouping(*grouping)
    if isinstance(estimator, GiGPOConfig) and levels.root != "state":
        raise ValueError('GiGPO compares steps in the same state: its grouping must have root "state"')
    with warnings.catch_warnings():
        if isinstance(estimator, GAEConfig | ReinforceConfig):  # which compare no rollouts of a task
            warnings.filterwarnings("ignore", message=".*hold a single rollout", category=UserWarning)
        group_ids = group_steps(anchor_state, prompt_group, trajectory, step=step, **levels._asdict())
    penalty = invalid_action_penalty
    if step_return is None:
        step_return = step_returns(
            reward, trajectory, action_valid, gamma=gamma, invalid_action_penalty=penalty, step=step
        )
    step_return = np.asarray(step_return, np.float32)
    score = episode_scores(reward, trajectory, action_valid, invalid_action_penalty=penalty)
    _check_values(step_return, score)

    def pad(x: np.ndarray, fill: float) -> np.ndarray:
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - length)], constant_values=fill)

    signals = StepSignals(
        step_return=pad(step_return, 0),
        score=pad(score, 0),
        prompt_group=pad(compact_ids(prompt_group), -1),
        trajectory=pad(compact_ids(trajectory), -1),
        valid=np.arange(size) < length,
        group_ids=pad(group_ids, -1),
    )
    if value is None:
        return signals
    valid = np.ones(length, bool) if action_valid is None else np.asarray(action_valid, bool)
    critic = _critic_signals(value, next_value, reward, np.where(valid, 0, penalty), trajectory, gamma, step)
    return signals._replace(**{name: pad(x, -1 if name == "next_step" else 0) for name, x in critic.items()})


def _critic_signals(
    value: Sequence[float] | np.ndarray,
    next_value: Sequence[float] | np.ndarray | None,
    reward: Sequence[float] | np.ndarray,
    penalty: np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    gamma: float,
    step: Sequence[int] | np.ndarray | None,
) -> dict[str, np.ndarray]:
    """The fields of `StepSignals` that are there where ``value`` is, [N] each."""
    value = np.asarray(value, np.float32)
    final = np.zeros_like(value) if next_value is None else np.asarray(next_value, np.float32)
    for name, values in {"value": value, "next_value": final}.items():
        if values.shape != np.shape(reward):
            raise ValueError(
                f"{name} has shape {list(values.shape)}, expected one value per step: {list(np.shape(reward))}"
            )
        if not (np.abs(values) < _LARGEST).all():
            i = int(np.argmin(np.abs(values) < _LARGEST))
            raise ValueError(f"{name} of step {i} is {values[i]}, expected a finite number that float32 can square")
    ahead = next_steps(trajectory, step=step)
    return {
        "value": value,
        "next_value": np.where(ahead >= 0, value[ahead], final),
        "next_step": ahead,
        "reward": np.asarray(reward, np.float32),
        "penalty": penalty.astype(np.float32),
        "discount": np.full(len(value), gamma, np.float32),
    }


def compute_advantages(
    anchor_state: Sequence[Any] | np.ndarray,
    prompt_group: Sequence[Any] | np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    reward: Sequence[float] | np.ndarray,
    action_valid: Sequence[bool] | np.ndarray | None = None,
    *,
    estimator: Estimator = HGPOConfig(),  # noqa: B008 (frozen)
    gamma: float = 0.95,
    invalid_action_penalty: float = 0.1,
    step: Sequence[int] | np.ndarray | None = None,
    step_return: Sequence[float] | np.ndarray | None = None,
    grouping: Grouping | None = None,
    value: Sequence[float] | np.ndarray | None = None,
    next_value: Sequence[float] | np.ndarray | None = None,
    return_diagnostics: bool = False,
) -> Any:
    """Advantages of a batch of steps, for use from any trainer: host arrays in, NumPy out.

    Batches are padded to a few sizes, so that a change in the number of steps seldom compiles anew. With
    ``HGPOConfig(weight_offset=2)`` it reproduces the released code.

    Args:
      anchor_state, prompt_group, trajectory, reward, action_valid, gamma, invalid_action_penalty, step,
      step_return, grouping, value, next_value: as for `step_signals`.
      estimator: settings, or a function of StepSignals (jit-compilable) that returns advantages [N].
      return_diagnostics: also return the estimator's diagnostics.

    Returns:
      f32 [N]; with return_diagnostics a pair of it and a dict of NumPy arrays, per-step ones cut to N.

    Raises:
      ValueError: as `step_signals` and `make_estimator`; an advantage that is not finite.
    """
    run = _compiled(estimator)
    length = check_lengths(anchor_state=anchor_state, prompt_group=prompt_group)
    signals = step_signals(
        anchor_state,
        prompt_group,
        trajectory,
        reward,
        action_valid,
        estimator=estimator,
        gamma=gamma,
        invalid_action_penalty=invalid_action_penalty,
        step=step,
        step_return=step_return,
        grouping=grouping,
        size=size_bucket(length),
        value=value,
        next_value=next_value,
    )
    advantages, diagnostics = run(signals)
    advantages = np.array(advantages)[:length]
    if not np.isfinite(advantages).all():
        i = int(np.argmin(np.isfinite(advantages)))
        raise ValueError(
            f"estimator {estimator_name(estimator)} gave step {i} the advantage {advantages[i]}: not finite. "
            "Look for a division by a spread or a count of 0"
        )
    if not return_diagnostics:
        return advantages
    size = len(signals.valid)
    host = {name: np.asarray(x) for name, x in diagnostics.items()}
    return advantages, {
        name: x[..., :length] if x.shape[-1:] == (size,) and size > 1 else x for name, x in host.items()
    }


def size_bucket(length: int) -> int:
    """The next of the sizes 64, 80, 96, 112, 128, 160, ..: four to an octave, at most a fifth is padding."""
    grain = 1 << max(length - 1, 32).bit_length() - 3
    return max(-(-length // grain) * grain, 64)


@functools.lru_cache(maxsize=64)
def _compiled(estimator: Estimator) -> Callable[[StepSignals], tuple[jax.Array, Diagnostics]]:
    return jax.jit(make_estimator(estimator))


def _check_values(step_return: np.ndarray, score: np.ndarray) -> None:
    """Returns may be the caller's own; both are squared in float32."""
    if step_return.ndim != 1:
        raise ValueError(f"step_return has shape {list(step_return.shape)}, expected one value per step: [N]")
    if not np.isfinite(step_return).all():
        raise ValueError(f"step_return of step {np.argmin(np.isfinite(step_return))} is not finite")
    for name, values in {"return": step_return, "score": score}.items():
        small = np.abs(values) < _LARGEST
        if not small.all():
            i = int(np.argmin(small))
            raise ValueError(f"the {name} of step {i} is {values[i]:g}, too large for float32: scale the rewards down")


def estimator_name(estimator: Estimator) -> str:
    """For messages: a function's own name, or the settings."""
    function = getattr(estimator, "func", estimator)  # of a functools.partial
    return getattr(function, "__name__", repr(estimator))


def _checked(function: UserEstimator, signals: StepSignals) -> tuple[jax.Array, Diagnostics]:
    result: Any = function(signals)
    name, wanted = estimator_name(function), signals.step_return.shape
    expected = f"expected advantages {list(wanted)}, alone or with a dict of diagnostics"
    pair = result if isinstance(result, tuple) else (result, {})
    if len(pair) != 2 or not isinstance(pair[1], dict):
        told = ", ".join(type(part).__name__ for part in pair)
        raise ValueError(f"estimator {name} returned a tuple of {len(pair)} ({told}), {expected}")
    advantages, diagnostics = pair
    if not isinstance(advantages, jax.Array | np.ndarray):
        raise ValueError(f"estimator {name} returned a {type(advantages).__name__}, {expected}")
    if advantages.shape != wanted:
        raise ValueError(
            f"estimator {name} returned advantages of shape {list(advantages.shape)}, expected {list(wanted)}: "
            "one for each step, padding included"
        )
    if jnp.issubdtype(advantages.dtype, jnp.complexfloating):
        raise ValueError(f"estimator {name} returned complex advantages, expected real ones")
    return jnp.where(signals.valid, jnp.asarray(advantages, jnp.float32), 0), diagnostics

"""The estimators beside HGPO: GRPO (with Dr. GRPO and RLOO), GiGPO and REINFORCE."""

from __future__ import annotations

import functools
import math

import chex
import jax
import jax.numpy as jnp

from hgpo_jax.config import GiGPOConfig, GRPOConfig, ReinforceConfig
from hgpo_jax.estimators.statistics import group_statistics, group_summary, leave_one_out, standardised
from hgpo_jax.types import StepSignals

Result = tuple[jax.Array, dict[str, jax.Array]]


def grpo_advantages(signals: StepSignals, config: GRPOConfig) -> Result:
    """Group-relative episode scores (GRPO, arXiv 2402.03300).

        A(i) = (s_i - mean_g s) / (std_g s + 1e-6)   (unbiased std; no division without normalize_std)

    The statistics run over all steps of the prompt group g, so that long trajectories count more (the
    released agent code's default), or over its trajectories, each represented by its first step in batch
    order. Without the division it is Dr. GRPO (2503.20783); with ``leave_one_out`` the mean is that of the
    others (of the other trajectories, in that form), which without the division is RLOO (2402.14740).

    A prompt group with a single step (or trajectory) gives 0, and so do equal scores. Over trajectories of
    equal representatives a step whose own penalty sets it apart is divided by the bare 1e-6, as in the
    released code.

    Args:
      signals: [N] per step; reads ``score``, ``prompt_group``, ``trajectory``, ``valid``.
      config: which statistics.

    Returns:
      Advantages f32 [N], 0 on padding, and diagnostics: ``coverage``, ``mean_group_size`` [1], ``baseline``
      [1, N], ``no_signal`` [], the share of valid steps with advantage 0.

    Raises:
      ValueError: ``over`` is neither "steps" nor "trajectories".
    """
    check_baseline_config(config)
    return _grpo(signals, config)


def gigpo_advantages(signals: StepSignals, config: GiGPOConfig) -> Result:
    """Episode advantage plus omega times step advantage, with the unbiased std (GiGPO, arXiv 2505.10978).

        A(i) = (s_i - mean_g s) / (std_g s + 1e-6) + omega (R_i - mean_{G_0(i)} R) / (std_{G_0(i)} R + 1e-6)

    g is the prompt group (all its steps), G_0 the steps of it in the same state. A step alone in its group
    has 0 for that term. Not HGPO with K = 0, which has no episode term and the population std.

    Args:
      signals: [N] per step; row 0 of ``group_ids`` [L, N] must be the state level (root="state").
      config: omega, and whether to divide.

    Returns:
      Advantages f32 [N], 0 on padding, and diagnostics as `grpo_advantages`, with two rows: episode, state.

    Raises:
      ValueError: omega is not finite, or ``group_ids`` has no level.
    """
    check_baseline_config(config)
    if signals.group_ids.ndim != 2 or not len(signals.group_ids):
        raise ValueError(f"GiGPO needs group_ids [L, N] with L of 1 or more, got shape {signals.group_ids.shape}")
    return _gigpo(signals, config)


@functools.partial(jax.jit, static_argnames="config")
def reinforce_advantages(signals: StepSignals, config: ReinforceConfig) -> Result:
    """REINFORCE with a batch baseline: A(i) = R_i - mean R over the batch, over (std R + 1e-6) if asked for.

    Args:
      signals: [N] per step; reads ``step_return`` and ``valid``.
      config: whether to divide by the (population) standard deviation.

    Returns:
      Advantages f32 [N], 0 on padding, and diagnostics as `grpo_advantages`.
    """
    chex.assert_rank(signals.step_return, 1)
    whole_1N = jnp.where(signals.valid, 0, -1).astype(jnp.int32)[None]
    statistics = group_statistics(signals.step_return[None], whole_1N, 1)
    advantages_N = standardised(statistics, ddof=0, normalize_std=config.normalize_std)[0]
    return _with_diagnostics(advantages_N, group_summary(statistics, signals.valid), signals)


def check_baseline_config(config: GRPOConfig | GiGPOConfig | ReinforceConfig) -> None:
    """Raise a ValueError that names the first setting out of range."""
    if isinstance(config, GRPOConfig) and config.over not in ("steps", "trajectories"):
        raise ValueError(f'GRPOConfig.over must be "steps" or "trajectories", got {config.over!r}')
    if isinstance(config, GiGPOConfig) and not math.isfinite(config.omega):
        raise ValueError(f"GiGPOConfig.omega must be a finite number, got {config.omega}")


@functools.partial(jax.jit, static_argnames="config")
def _grpo(signals: StepSignals, config: GRPOConfig) -> Result:
    chex.assert_rank([signals.score, signals.prompt_group, signals.trajectory], 1)
    size = signals.score.shape[0]
    group_1N = jnp.where(signals.valid, signals.prompt_group, -1)[None]
    own_N, counted_N = jnp.arange(size), signals.valid
    if config.over == "trajectories":
        place_N = jnp.where(signals.valid, signals.trajectory, size)
        first = jnp.full(size, size).at[place_N].min(own_N, mode="drop")
        own_N = first.at[place_N].get(mode="fill", fill_value=0)  # the step that stands for the trajectory
        counted_N = signals.valid & (own_N == jnp.arange(size))
    statistics = group_statistics(signals.score[None], group_1N, size, counted_N)
    if config.leave_one_out:
        statistics = leave_one_out(statistics, statistics.deviation[:, own_N])
    advantages_N = standardised(statistics, ddof=1, normalize_std=config.normalize_std)[0]
    return _with_diagnostics(advantages_N, group_summary(statistics, counted_N), signals)


@functools.partial(jax.jit, static_argnames="config")
def _gigpo(signals: StepSignals, config: GiGPOConfig) -> Result:
    chex.assert_rank([signals.score, signals.step_return, signals.prompt_group], 1)
    values_2N = jnp.stack([signals.score, signals.step_return])
    ids_2N = jnp.where(signals.valid[None], jnp.stack([signals.prompt_group, signals.group_ids[0]]), -1)
    statistics = group_statistics(values_2N, ids_2N, ids_2N.shape[1])
    episode_N, state_N = standardised(statistics, ddof=1, normalize_std=config.normalize_std)
    summary = group_summary(statistics, signals.valid)
    return _with_diagnostics(episode_N + config.omega * state_N, summary, signals)


def _with_diagnostics(advantages_N: jax.Array, summary: dict[str, jax.Array], signals: StepSignals) -> Result:
    silent = (signals.valid & (advantages_N == 0)).sum() / jnp.maximum(signals.valid.sum(), 1)
    return advantages_N, summary | {"no_signal": silent}

"""Generalized advantage estimation: advantages from a critic's values."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from hgpo_jax.config import GAEConfig
from hgpo_jax.estimators.statistics import EPSILON
from hgpo_jax.types import Array, StepSignals


def gae_advantages(signals: StepSignals, config: GAEConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
    """PPO's advantages (arXiv 1707.06347): `generalized_advantages` of the value head, by default whitened.

    The penalty for an invalid action or a long reply is taken off the advantage of that step only, and the critic
    learns returns without penalties: so none travels back to earlier steps. With ``normalize_std`` the advantages
    are then (A - mean) / (std + 1e-6) over the batch's valid steps, with the population std.

    Args:
      signals: [N] per step, those of the critic included.
      config: lambda, whitening.

    Returns:
      Advantages f32 [N], 0 on padding; and ``value_target`` f32 [N], A_t + V_t before penalty and whitening.

    Raises:
      ValueError: lambda out of range, or signals without a critic.
    """
    check_gae_config(config)
    value_N, next_value_N, next_step_N = signals.value, signals.next_value, signals.next_step
    reward_N, penalty_N, discount_N = signals.reward, signals.penalty, signals.discount
    if value_N is None or next_value_N is None or next_step_N is None:
        raise ValueError("GAE needs a critic: give `value`, V of each step's state, or a policy with a value head")
    assert reward_N is not None
    assert penalty_N is not None
    assert discount_N is not None
    valid_N = jnp.asarray(signals.valid)
    chex.assert_equal_shape([valid_N, value_N, next_value_N, next_step_N, reward_N, penalty_N, discount_N])
    raw_N = generalized_advantages(reward_N, discount_N, value_N, next_value_N, next_step_N, config.lambda_)
    advantages_N = jnp.where(valid_N, raw_N - penalty_N, 0)
    if config.normalize_std:
        count = jnp.maximum(valid_N.sum(), 1)
        centred_N = jnp.where(valid_N, advantages_N - advantages_N.sum() / count, 0)
        advantages_N = centred_N / (jnp.sqrt((centred_N**2).sum() / count) + EPSILON)
    return advantages_N, {"value_target": jnp.where(valid_N, raw_N + value_N, 0)}


def check_gae_config(config: GAEConfig) -> None:
    """Raise a ValueError that names the first setting out of range."""
    if not 0 <= config.lambda_ <= 1:
        raise ValueError(f"GAEConfig.lambda_ must be from 0 to 1, got {config.lambda_}")


def generalized_advantages(
    reward_N: Array,
    discount_N: Array,
    value_N: Array,
    next_value_N: Array,
    next_step_N: Array,
    lambda_: Array | float,
) -> jax.Array:
    """Exponentially weighted sums of a critic's errors along each trajectory (arXiv 1506.02438).

        delta_t = r_t + gamma_t V_{t+1} - V_t
        A_t = delta_t + gamma_t lambda A_{t+1}

    Steps may lie in any order: sums over spans of 1, 2, 4, .. steps are joined, log2(N) times at most.

    Args:
      reward_N: f32 [N] the environment's rewards.
      discount_N: f32 [N] gamma_t, from 0 to 1.
      value_N: f32 [N] V of the state in which the step was taken.
      next_value_N: f32 [N] V of the state that it led to; 0 where the episode is over.
      next_step_N: i32 [N] the index of the trajectory's next step, -1 for its last and for padding.
      lambda_: from 0, one-step errors alone, to 1, returns minus values.

    Returns:
      A_t f32 [N]; A_t + value_N is the critic's target.
    """
    delta_N = jnp.asarray(reward_N + discount_N * next_value_N - value_N)

    def join(span: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        sum_N, decay_N, ahead_N = span
        known_N = ahead_N >= 0
        sum_N += jnp.where(known_N, decay_N * sum_N[ahead_N], 0)
        return sum_N, decay_N * decay_N[ahead_N], jnp.where(known_N, ahead_N[ahead_N], -1)

    first = (delta_N, jnp.asarray(discount_N * lambda_, delta_N.dtype), jnp.asarray(next_step_N))
    return jax.lax.while_loop(lambda span: (span[2] >= 0).any(), join, first)[0]

"""Generalized advantage estimation: advantages from a critic's values."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hgpo_jax.types import Array


def generalized_advantages(
    reward_N: Array,
    value_N: Array,
    next_value_N: Array,
    next_step_N: Array,
    gamma: Array | float,
    lambda_: Array | float,
) -> jax.Array:
    """Exponentially weighted sums of a critic's errors along each trajectory (arXiv 1506.02438).

        delta_t = r_t + gamma V_{t+1} - V_t,   A_t = sum over u >= t of (gamma lambda)^(u - t) delta_u

    Steps may lie in any order: sums over spans of 1, 2, 4, .. steps are joined, log2(N) times at most.

    Args:
      reward_N: f32 [N] the environment's rewards.
      value_N: f32 [N] V of the state in which the step was taken.
      next_value_N: f32 [N] V of the state that it led to; 0 where the episode is over.
      next_step_N: i32 [N] the index of the trajectory's next step, -1 for its last and for padding.
      gamma: discount, from 0 to 1.
      lambda_: from 0, one-step errors alone, to 1, returns minus values.

    Returns:
      A_t f32 [N]; A_t + value_N is the critic's target.
    """
    delta_N = reward_N + gamma * next_value_N - value_N

    def join(span: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        sum_N, decay, ahead_N = span
        known_N = ahead_N >= 0
        sum_N += jnp.where(known_N, decay * sum_N[ahead_N], 0)
        return sum_N, decay**2, jnp.where(known_N, ahead_N[ahead_N], -1)

    first = (jnp.asarray(delta_N), jnp.asarray(gamma * lambda_, delta_N.dtype), jnp.asarray(next_step_N))
    return jax.lax.while_loop(lambda span: (span[2] >= 0).any(), join, first)[0]

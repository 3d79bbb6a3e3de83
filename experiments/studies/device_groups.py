"""Grouping on the device, for histories of small integers: what `hgpo_jax.estimators.grouping` does on the host.

A rollout is a rectangle, step t of episode e at [t, e], and every function is jit-compilable, so that whole trainings
can be one program. Ids are the host's up to their numbering.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from hgpo_jax.types import Array


def level_ids(state_TE: Array, valid_TE: Array, group_E: Array, *, levels: int, num_states: int) -> jax.Array:
    """The groups of steps that share their last k + 1 states, for k = 0..levels - 1.

    Args:
      state_TE: i32 [T, E] from 0 to num_states - 1, what step t of episode e observed.
      valid_TE: bool [T, E], True on an episode's steps, which are its first ones.
      group_E: i32 [E] the prompt group of each episode, from 0.
      levels: how many, static.
      num_states: static; ids are sorted as 32-bit integers, so max(E, T E / 2) * num_states has to be below 2^31.

    Returns:
      i32 [levels, T * E], time before episode: compact from 0 at each level, -1 where a step has no group of two or
      more, fewer than k predecessors, or is not valid.

    Raises:
      ValueError: more states than 32-bit keys can tell apart.
    """
    chex.assert_rank([state_TE, valid_TE, group_E], [2, 2, 1])
    horizon, episodes = state_TE.shape
    bound = max(episodes, horizon * episodes // 2) * num_states  # groups have two members or more
    if bound >= 2**31:
        raise ValueError(f"{horizon} x {episodes} steps of {num_states} states do not fit 32-bit keys")
    coarser_TE, known_TE = jnp.broadcast_to(group_E[None], state_TE.shape), valid_TE
    rows = []
    for k in range(levels):
        # The newest k states are in the coarser id already: the one before them refines it.
        past_TE = jnp.roll(state_TE, k, axis=0)
        known_TE = known_TE & (jnp.arange(horizon) >= k)[:, None]
        ids_N = shared_ids((coarser_TE * num_states + past_TE).ravel(), known_TE.ravel(), bound=bound)
        rows.append(ids_N)
        coarser_TE = ids_N.reshape(state_TE.shape)
        known_TE = coarser_TE >= 0
    return jnp.stack(rows)


def history_ids(state_TE: Array, action_TE: Array, valid_TE: Array, *, group_size: int) -> jax.Array:
    """The groups of steps with the same whole history of states and actions, and so the same t.

    Args:
      state_TE, action_TE: i32 [T, E].
      valid_TE: bool [T, E].
      group_size: static; prompt groups are runs of so many episodes.

    Returns:
      i32 [T * E] as a row of `level_ids`.
    """
    horizon, episodes = state_TE.shape

    def agree(x_TE: Array) -> jax.Array:
        x_TGM = jnp.reshape(x_TE, (horizon, -1, group_size))
        return x_TGM[..., :, None] == x_TGM[..., None, :]

    acted_TE = jnp.concatenate([jnp.zeros_like(action_TE[:1]), action_TE[:-1]])
    step_TGMM = agree(state_TE) & agree(acted_TE)
    valid_TGM = jnp.reshape(valid_TE, (horizon, -1, group_size))
    same_TGMM = jax.lax.associative_scan(jnp.logical_and, step_TGMM)
    same_TGMM &= valid_TGM[..., :, None] & valid_TGM[..., None, :]
    # The first episode with a history stands for it.
    first_TE = same_TGMM.argmax(-1).reshape(horizon, episodes)
    shared_N = (same_TGMM.sum(-1) >= 2).ravel()
    place_TE = jnp.arange(horizon * episodes).reshape(horizon, episodes)
    # Rows are whole numbers of prompt groups, so that the group's first episode is found from the place alone.
    return _compact((place_TE // group_size * group_size + first_TE).ravel(), shared_N)


def shared_ids(key_N: Array, known_N: Array, *, bound: int) -> jax.Array:
    """Compact ids i32 [N] of the keys (i32, from 0 to bound - 1) that occur twice or more where known; else -1."""
    size = len(key_N)
    place_N = jnp.arange(size, dtype=jnp.uint32)
    whole_N = jnp.where(known_N, key_N, bound).astype(jnp.uint32)
    if (bound + 1) * size < 2**32:
        # The place rides in the low digits: sorting single numbers is several times as fast as sorting pairs.
        ordered_N, place_N = jnp.divmod(jax.lax.sort(whole_N * size + place_N), jnp.uint32(size))
    else:
        ordered_N, place_N = jax.lax.sort_key_val(whole_N, place_N)
    like_next_N = jnp.append(ordered_N[1:] == ordered_N[:-1], False) & (ordered_N != bound)
    like_last_N = jnp.append(False, like_next_N[:-1])
    number_N = jnp.cumsum(like_next_N & ~like_last_N) - 1
    sorted_ids_N = jnp.where(like_next_N | like_last_N, number_N, -1)
    return jnp.zeros(size, jnp.int32).at[place_N].set(sorted_ids_N, unique_indices=True)


def _compact(representative_N: jax.Array, shared_N: jax.Array) -> jax.Array:
    """Number the representatives of shared groups 0, 1, ..; -1 for steps without a group."""
    stands_N = shared_N & (representative_N == jnp.arange(len(representative_N)))
    number_N = jnp.cumsum(stands_N) - 1
    return jnp.where(shared_N, number_N[representative_N], -1)

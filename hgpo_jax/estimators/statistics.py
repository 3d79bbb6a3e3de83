"""Group statistics on the device: one scatter over all levels for each of extremes, sums and squares."""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from hgpo_jax.types import Array

EPSILON = 1e-6  # added to every standard deviation


class GroupStatistics(NamedTuple):
    """What each step sees of its group; all fields f32 [L, N], 0 where the step has no group."""

    size: jax.Array  # members that the statistics run over
    mean: jax.Array
    deviation: jax.Array  # own value - mean; exactly 0 throughout a group whose values are all equal
    sum_of_squares: jax.Array  # of the members' deviations
    magnitude: jax.Array  # largest absolute value


def group_statistics(
    values_LN: Array, ids_LN: Array, num_groups: int, counted_N: Array | None = None
) -> GroupStatistics:
    """Mean and spread of each group, read back by its members: mean_G v, sum over G of (v - mean_G v)^2.

    Values are first centred at the group's largest, so that equal values give exact zeros and adding a
    constant to all changes nothing beyond the rounding of the input; a second pass over the deviations takes
    out what the first one's sum has rounded away. N may be sharded: each of the three scatters costs one
    all-reduce.

    Args:
      values_LN: f32 [L, N].
      ids_LN: i32 [L, N], each row from 0 to num_groups - 1, -1 for a step without a group.
      num_groups: slots per row, static.
      counted_N: bool [N] the steps that the statistics run over (all of them when left out); the others still
        read their group's.

    Returns:
      The statistics.
    """
    chex.assert_rank([values_LN, ids_LN], 2)
    chex.assert_equal_shape([values_LN, ids_LN])
    chex.assert_type([values_LN, ids_LN], [jnp.float32, jnp.int32])

    def over_row(value_N: jax.Array, id_N: jax.Array) -> GroupStatistics:
        member_N = id_N >= 0
        # Out of range, where scatters drop and gathers fill: a negative id would wrap to the last group.
        read_at_N = jnp.where(member_N, id_N, num_groups)
        add_at_N = read_at_N if counted_N is None else jnp.where(counted_N, read_at_N, num_groups)

        def read(table_G2: jax.Array) -> tuple[jax.Array, jax.Array]:
            pair_N2 = table_G2.at[read_at_N].get(mode="fill", fill_value=0)
            return pair_N2[:, 0], pair_N2[:, 1]

        def sums(*pair_N: jax.Array) -> tuple[jax.Array, jax.Array]:
            return read(jnp.zeros((num_groups, 2)).at[add_at_N].add(jnp.stack(pair_N, -1), mode="drop"))

        extremes = jnp.full((num_groups, 2), -jnp.inf)
        high_N, minus_low_N = read(extremes.at[add_at_N].max(jnp.stack([value_N, -value_N], -1), mode="drop"))
        centred_N = value_N - high_N
        size_N, total_N = sums(jnp.ones_like(value_N), centred_N)
        per_member_N = 1 / jnp.maximum(size_N, 1)
        rough_N = centred_N - total_N * per_member_N
        rest_N, squares_N = sums(rough_N, rough_N**2)
        drift_N = rest_N * per_member_N
        fields = GroupStatistics(
            size=size_N,
            mean=high_N + (total_N * per_member_N + drift_N),
            deviation=rough_N - drift_N,
            sum_of_squares=jnp.maximum(squares_N - rest_N * drift_N, 0),
            magnitude=jnp.maximum(jnp.abs(high_N), jnp.abs(minus_low_N)),
        )
        return GroupStatistics(*(jnp.where(member_N, field_N, 0) for field_N in fields))

    return jax.vmap(over_row)(jnp.asarray(values_LN), jnp.asarray(ids_LN))


def leave_one_out(statistics: GroupStatistics, own_deviation_LN: Array | None = None) -> GroupStatistics:
    """Means and deviations against the others of the group; sizes and spreads stay those of the whole group.

        v_i - mean_{G - i} v = n / (n - 1) (v_i - mean_G v)

    Args:
      statistics: of [L, N] values.
      own_deviation_LN: f32 [L, N] of the member that each step stands for, where that isn't the step itself.

    Returns:
      The statistics; those of a group of one are left as they are.
    """
    own_LN = statistics.deviation if own_deviation_LN is None else own_deviation_LN
    shift_LN = own_LN / jnp.maximum(statistics.size - 1, 1)
    return statistics._replace(mean=statistics.mean - shift_LN, deviation=statistics.deviation + shift_LN)


def standardised(statistics: GroupStatistics, *, ddof: Array | int, normalize_std: bool) -> jax.Array:
    """(v - mean) / (std + 1e-6), or v - mean; 0 in a group of one.

    Args:
      statistics: of [L, N] values.
      ddof: 0 for the population's standard deviation, 1 for the unbiased one; a number, or [L, 1].
      normalize_std: whether to divide.

    Returns:
      f32 [L, N].
    """
    advantage_LN = statistics.deviation
    if normalize_std:
        freedom_LN = jnp.maximum(statistics.size - ddof, 1)
        advantage_LN = advantage_LN / (jnp.sqrt(statistics.sum_of_squares / freedom_LN) + EPSILON)
    return jnp.where(statistics.size >= 2, advantage_LN, 0)


def group_summary(statistics: GroupStatistics, counted_N: Array) -> dict[str, jax.Array]:
    """Per level: how many steps have company, in groups of what size, and their baseline.

    Args:
      statistics: of [L, N] values.
      counted_N: bool [N], the steps that the statistics ran over.

    Returns:
      ``coverage`` f32 [L], the share of those steps with a group of two or more; ``mean_group_size`` f32 [L],
      their number per such group (0 without any); ``baseline`` f32 [L, N], the group's mean (0 without a
      group).
    """
    grouped_LN = statistics.size >= 2
    member_LN = grouped_LN & counted_N[None]
    members_L = member_LN.sum(1).astype(jnp.float32)
    groups_L = jnp.where(member_LN, 1 / jnp.maximum(statistics.size, 1), 0).sum(1)
    return {
        "coverage": members_L / jnp.maximum(counted_N.sum(), 1),
        "mean_group_size": jnp.where(groups_L > 0, members_L / jnp.maximum(groups_L, 0.5), 0),
        "baseline": jnp.where(grouped_LN, statistics.mean, 0),
    }

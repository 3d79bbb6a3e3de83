"""Nested shrinkage: HGPO's groups, their weights estimated from group sizes and spreads."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from hgpo_jax.config import ShrinkageConfig
from hgpo_jax.estimators.hierarchy import ROUNDING, check_levels, level_shares
from hgpo_jax.estimators.statistics import (
    EPSILON,
    GroupStatistics,
    group_statistics,
    group_summary,
    leave_one_out,
)
from hgpo_jax.types import StepSignals


class SpreadEstimate(NamedTuple):
    """What the returns of the steps with a group say of a level, f32 [L - 1] (or [L - 1, N]): from level 1 on."""

    within: jax.Array  # sigma^2, of returns around their group's mean
    between: jax.Array  # tau^2, of the groups' true means around that of the coarser group


def shrinkage_advantages(signals: StepSignals, config: ShrinkageConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return minus a baseline that trusts a finer group as far as its size and the returns' spread bear it out.

        b_0 = mean_{G_0} R,   b_k = (1 - s_k) b_{k-1} + s_k mean_{G_k} R,   A(i) = R_i - b_K(i)
        s_k = n tau_k^2 / (n tau_k^2 + sigma_k^2),   n = |G_k(i)|;   s_k = 0 without a group at level k

    It is the posterior mean of a normal model with one random effect per level: the mean of G_k lies around that of
    its parent with variance tau_k^2, the returns in G_k around their mean with variance sigma_k^2 (Lindley and
    Smith 1972; Efron and Morris 1973). Written with A_k = R - mean_{G_k} R, it is HGPO's mix with weights
    s_k prod_{j>k} (1 - s_j), s_0 = 1, that sum to 1. The variances come from the method of moments, the analysis of
    variance of unequal groups (Cochran 1939; Henderson 1953, method I): with C groups G in P parents, of n_G and
    N_P = sum_{G in P} n_G steps, N = sum_P N_P,

        sigma^2 = sum_G sum_{i in G} (R_i - m_G)^2 / (N - C)
        tau^2   = max(0, (sum_G n_G (m_G - m_P)^2 - (C - P) sigma^2) / (N - sum_P sum_G n_G^2 / N_P))

    since the numerator's sum has the mean (C - P) sigma^2 + (N - sum_P sum_G n_G^2 / N_P) tau^2. m_P is the mean
    over the steps of P that have a group at level k. Both are pooled over the batch, or over each prompt group
    alone. With ``prior_size`` c they are not estimated: s_k = n / (n + c). Returns are taken as independent, which
    repeated visits of a trajectory are not: such groups are trusted too much.

    With ``leave_one_out`` means and n are those of the other members, so that no part of R_i is in b_K(i); the
    variances still are those of all. A step without any group gets 0, and so does one whose groups all have equal
    returns; a finer group of equal returns in a coarser one of unequal ones does not, unless s_k is 1. With
    ``normalize_std`` A(i) is divided by the population std of the coarsest group + 1e-6.

    Args:
      signals: [N] per step, ``group_ids`` [L, N] with L = context_length + 1 (+ 1 with root="prompt").
      config: depth, root, where the weights come from.

    Returns:
      Advantages f32 [N], 0 on padding, and diagnostics as `hierarchy_advantages`, where a level with s_k above
      0 is used and ``baseline`` [L, N] holds b_k; and ``shrinkage_factor`` [L], the mean s_k over the steps with a
      group at level k.

    Raises:
      ValueError: a setting out of range, or group ids of another number of levels.
    """
    check_shrinkage_config(config)
    check_levels(signals, config)
    return _shrink(signals, config)


def check_shrinkage_config(config: ShrinkageConfig) -> None:
    """Raise a ValueError that names the first setting out of range."""
    if config.context_length < 0:
        raise ValueError(f"ShrinkageConfig.context_length must be 0 or more, got {config.context_length}")
    if config.root not in ("state", "prompt"):
        raise ValueError(f'ShrinkageConfig.root must be "state" or "prompt", got {config.root!r}')
    if config.pool not in ("batch", "prompt"):
        raise ValueError(f'ShrinkageConfig.pool must be "batch" or "prompt", got {config.pool!r}')
    if config.prior_size is not None and not 0 <= config.prior_size < math.inf:
        raise ValueError(f"ShrinkageConfig.prior_size must be 0 or more, or None, got {config.prior_size}")


@functools.partial(jax.jit, static_argnames="config")
def _shrink(signals: StepSignals, config: ShrinkageConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
    chex.assert_rank([signals.step_return, signals.valid], 1)
    chex.assert_type([signals.step_return, signals.group_ids], [jnp.float32, jnp.int32])
    ids_LN = jnp.where(signals.valid[None], signals.group_ids, -1)
    levels, size = ids_LN.shape
    # Parents again, now over the steps alone that have a group at the finer level: one pass over all rows.
    parents_LN = jnp.where(ids_LN[1:] >= 0, ids_LN[:-1], -1)
    rows_LN = jnp.concatenate([ids_LN, parents_LN])
    values_LN = jnp.broadcast_to(signals.step_return[None], rows_LN.shape)
    both = group_statistics(values_LN, rows_LN, max(size // 2, 1))
    deviation_LN = jnp.where(jnp.abs(both.deviation) <= ROUNDING * both.magnitude, 0, both.deviation)
    both = both._replace(deviation=deviation_LN)
    own, parents = (GroupStatistics(*(x[part] for x in both)) for part in (slice(levels), slice(levels, None)))

    plain, counted_LN = own, own.size
    if config.leave_one_out:
        own, counted_LN = leave_one_out(own), own.size - 1
    factor_LN = _factors(plain, parents, counted_LN, signals, config)
    weight_LN = _nested_weights(factor_LN)
    advantages_N = (weight_LN * own.deviation).sum(0)

    grouped_LN = plain.size >= 2
    mixed_LN = weight_LN > 0
    signal_1N = (mixed_LN & (own.deviation != 0)).any(0)[None]
    shares = level_shares(mixed_LN & signal_1N, jnp.where(signal_1N, weight_LN, 0), signals.valid)
    diagnostics = group_summary(own, signals.valid) | shares
    share_L = jnp.where(grouped_LN, factor_LN, 0).sum(1) / jnp.maximum(grouped_LN.sum(1), 1)
    diagnostics |= {"baseline": _baselines(own, factor_LN), "shrinkage_factor": share_L}
    if config.normalize_std:
        advantages_N /= jnp.sqrt(plain.sum_of_squares[0] / jnp.maximum(plain.size[0], 1)) + EPSILON
    return advantages_N, diagnostics


def _factors(
    own: GroupStatistics, parents: GroupStatistics, counted_LN: jax.Array, signals: StepSignals, config: ShrinkageConfig
) -> jax.Array:
    """s_k of each step, f32 [L, N]: 1 at the coarsest level, 0 where there is no group."""
    grouped_LN = own.size >= 2
    if config.prior_size is not None:
        inner_LN = counted_LN[1:] / jnp.maximum(counted_LN[1:] + config.prior_size, EPSILON)
    else:
        finer = GroupStatistics(*(x[1:] for x in own))
        within, between = _spreads(finer, parents, signals, config)
        signal_LN = counted_LN[1:] * between
        # 0 / 0, of returns that are all equal, counts as no difference between the groups.
        total_LN = signal_LN + within
        inner_LN = jnp.where(signal_LN > 0, signal_LN / jnp.where(total_LN > 0, total_LN, 1), 0)
    first_1N = jnp.ones_like(own.size[:1])
    return jnp.where(grouped_LN, jnp.concatenate([first_1N, inner_LN]), 0)


def _spreads(
    finer: GroupStatistics, parents: GroupStatistics, signals: StepSignals, config: ShrinkageConfig
) -> SpreadEstimate:
    """The method of moments of `shrinkage_advantages`, as sums over steps: f32 [L - 1, N], read by each step."""
    member_LN = finer.size >= 2
    per_member_LN, per_parent_LN = 1 / jnp.maximum(finer.size, 1), 1 / jnp.maximum(parents.size, 1)
    terms_5LN = jnp.stack(
        [
            finer.sum_of_squares * per_member_LN,  # sums to that of the squares within
            1 - per_member_LN,  # to N - C
            (parents.deviation - finer.deviation) ** 2,  # to that of n_G (m_G - m_P)^2
            per_member_LN - per_parent_LN,  # to C - P
            1 - finer.size * per_parent_LN,  # to N - sum_P sum_G n_G^2 / N_P
        ]
    )
    squares, freedom, between, families, room = _pooled(jnp.where(member_LN[None], terms_5LN, 0), signals, config)
    within = squares / jnp.maximum(freedom, 1)
    # Below half a step's worth of room is none: each parent has a single group.
    excess = jnp.maximum(between - families * within, 0) / jnp.maximum(room, 0.5)
    return SpreadEstimate(within, jnp.where(room > 0.5, excess, 0))


def _pooled(terms_XLN: jax.Array, signals: StepSignals, config: ShrinkageConfig) -> jax.Array:
    """Sums over the batch, or over each step's prompt group, at every step: f32 [X, L, N]."""
    size = terms_XLN.shape[-1]
    if config.pool == "batch":
        return jnp.broadcast_to(terms_XLN.sum(-1, keepdims=True), terms_XLN.shape)
    place_N = jnp.where(signals.valid, signals.prompt_group, size)
    table_XLG = jnp.zeros(terms_XLN.shape).at[..., place_N].add(terms_XLN, mode="drop")
    return table_XLG.at[..., place_N].get(mode="fill", fill_value=0)


def _nested_weights(factor_LN: jax.Array) -> jax.Array:
    """s_k prod_{j > k} (1 - s_j): f32 [L, N], which sum to 1 where there is a group at the coarsest level."""
    kept_LN = jnp.cumprod((1 - factor_LN)[::-1], axis=0)[::-1]  # prod_{j >= k} (1 - s_j)
    above_LN = jnp.concatenate([kept_LN[1:], jnp.ones_like(kept_LN[:1])])
    return factor_LN * above_LN


def _baselines(own: GroupStatistics, factor_LN: jax.Array) -> jax.Array:
    """b_k, f32 [L, N]; 0 where the step has no group at level k."""

    def pull(coarser_N: jax.Array, level: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        mean_N, factor_N = level
        baseline_N = coarser_N + factor_N * (mean_N - coarser_N)
        return baseline_N, baseline_N

    _, baseline_LN = jax.lax.scan(pull, own.mean[0], (own.mean, factor_LN))
    return jnp.where(own.size >= 2, baseline_LN, 0)

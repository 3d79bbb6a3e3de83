"""The HGPO kernel: advantages of all levels in one fused pass, mixed by the weights (k + offset)^alpha."""

from __future__ import annotations

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import HGPOConfig, ShrinkageConfig
from hgpo_jax.estimators.statistics import group_statistics, group_summary, leave_one_out, standardised
from hgpo_jax.types import Array, StepSignals

# A member of a group counts as sitting on the mean when only the rounding of float32 sets it apart.
ROUNDING = 8 * 2.0**-23


def hierarchy_advantages(signals: StepSignals, config: HGPOConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Hierarchy-of-Groups advantages (HGPO, arXiv 2602.22817).

        A_k(i) = (R_i - mean_{G_k(i)} R) / (std_{G_k(i)} R + 1e-6)   (no division without normalize_std)
        A(i)   = sum_k w_k A_k(i) / sum_k w_k,   w_k = (k + weight_offset)^alpha

    with the population std, over the levels k used for step i: those with a group of two or more in which
    A_k(i) is not zero (all those with a group when skip_zero_levels is off). With no level used A(i) = 0. A
    group of equal returns gives exactly 0. With root="prompt" k counts from the prompt group.
    ``episode_level`` adds one more item of weight 1, the score over all steps of the prompt group with the
    unbiased std, as the released code's ``base_group``.

    With ``leave_one_out`` every item's mean is that of the others in the group, so that the own return does not
    pull its baseline along: n / (n - 1) times the plain A_k(i), n = |G_k(i)|. The std stays that of the whole
    group, since the others of a pair have none; so small groups weigh more, a pair twice.

    Args:
      signals: [N] per step, ``group_ids`` [L, N] with L = context_length + 1 (+ 1 with root="prompt").
      config: alpha may be infinite, which leaves only the finest level used.

    Returns:
      Advantages f32 [N], 0 on padding, and diagnostics: per level [L] ``coverage``, ``mean_group_size``,
      ``used_share`` (of the valid steps), ``effective_weight`` (mean share of the level in the mix, over the
      steps with a signal); ``baseline`` [L, N]; ``no_signal`` [], the share of valid steps that no level
      reaches; with episode_level also ``episode_weight`` [].

    Raises:
      ValueError: a setting out of range, or group ids of another number of levels.
    """
    check_hierarchy_config(config)
    return _mix_levels(
        signals,
        _weight_ratios(config, check_levels(signals, config)),
        normalize_std=config.normalize_std,
        episode_level=config.episode_level,
        skip_zero_levels=config.skip_zero_levels,
        without_own=config.leave_one_out,
    )


def check_levels(signals: StepSignals, config: HGPOConfig | ShrinkageConfig) -> int:
    """The number of levels L that the settings need; a ValueError where ``group_ids`` has another."""
    levels = config.context_length + 1 + (config.root == "prompt")
    if signals.group_ids.ndim != 2 or len(signals.group_ids) != levels:
        raise ValueError(
            f"group_ids has shape {signals.group_ids.shape}, expected [{levels}, N] for context_length="
            f'{config.context_length}, root="{config.root}": pass the same two to group_steps'
        )
    return levels


def check_hierarchy_config(config: HGPOConfig) -> None:
    """Raise a ValueError that names the first setting out of range."""
    if config.context_length < 0:
        raise ValueError(f"HGPOConfig.context_length must be 0 or more, got {config.context_length}")
    if math.isnan(config.alpha) or config.alpha < 0:
        raise ValueError(f"HGPOConfig.alpha must be 0 or more, got {config.alpha}")
    if not 1 <= config.weight_offset < math.inf:
        raise ValueError(f"HGPOConfig.weight_offset must be 1 or more, got {config.weight_offset}")
    if config.root not in ("state", "prompt"):
        raise ValueError(f'HGPOConfig.root must be "state" or "prompt", got {config.root!r}')


def _weight_ratios(config: HGPOConfig, levels: int) -> np.ndarray:
    """w_k / w_f for every item k up to f, the finest used: f32 [f, k], at most 1 (no alpha overflows)."""
    base = np.arange(levels, dtype=np.float64) + config.weight_offset
    if config.episode_level:
        base = np.append(1.0, base)
    ratios = np.minimum(base[None, :] / base[:, None], 1.0) ** config.alpha
    return np.tril(ratios).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("normalize_std", "episode_level", "skip_zero_levels", "without_own"))
def _mix_levels(
    signals: StepSignals,
    ratios_LL: Array,
    *,
    normalize_std: bool,
    episode_level: bool,
    skip_zero_levels: bool,
    without_own: bool,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The arithmetic of `hierarchy_advantages`; alpha is in the traced ratios: a new one compiles nothing."""
    chex.assert_rank([signals.step_return, signals.score, signals.valid], 1)
    chex.assert_type([signals.step_return, signals.group_ids], [jnp.float32, jnp.int32])
    values_LN = jnp.broadcast_to(signals.step_return[None], signals.group_ids.shape)
    ids_LN = jnp.where(signals.valid[None], signals.group_ids, -1)
    num_groups = max(ids_LN.shape[1] // 2, 1)  # a group at these levels has two members or more
    ddof = 0
    if episode_level:
        values_LN = jnp.concatenate([signals.score[None], values_LN])
        ids_LN = jnp.concatenate([jnp.where(signals.valid, signals.prompt_group, -1)[None], ids_LN])
        num_groups = ids_LN.shape[1]
        ddof = np.array([1.0] + [0.0] * (len(ids_LN) - 1), np.float32)[:, None]

    statistics = group_statistics(values_LN, ids_LN, num_groups)
    on_mean_LN = jnp.abs(statistics.deviation) <= ROUNDING * statistics.magnitude
    if without_own:
        statistics = leave_one_out(statistics)
    level_LN = jnp.where(on_mean_LN, 0, standardised(statistics, ddof=ddof, normalize_std=normalize_std))
    used_LN = level_LN != 0 if skip_zero_levels else statistics.size >= 2

    place_LN = jnp.arange(len(ids_LN))[:, None]
    finest_N = jnp.where(used_LN, place_LN, 0).max(0)
    weight_LN = jnp.where(used_LN, ratios_LL[finest_N].T, 0)
    # The finest level used weighs 1, so the sum is 1 or more wherever there is one.
    share_LN = weight_LN / jnp.maximum(weight_LN.sum(0), 1)[None]
    advantages_N = (share_LN * level_LN).sum(0)

    diagnostics = group_summary(statistics, signals.valid) | level_shares(used_LN, share_LN, signals.valid)
    if episode_level:
        episode_weight = diagnostics["effective_weight"][0]
        diagnostics = {name: x[1:] if x.ndim else x for name, x in diagnostics.items()}
        diagnostics["episode_weight"] = episode_weight
    return advantages_N, diagnostics


def level_shares(used_LN: jax.Array, share_LN: jax.Array, valid_N: Array) -> dict[str, jax.Array]:
    """``used_share``, ``effective_weight`` [L] and ``no_signal`` [] of a mix of levels, share_LN of each."""
    steps = jnp.maximum(valid_N.sum(), 1)
    reached = used_LN.any(0).sum()
    return {
        "used_share": used_LN.sum(1) / steps,
        "effective_weight": share_LN.sum(1) / jnp.maximum(reached, 1),
        "no_signal": 1 - reached / steps,
    }

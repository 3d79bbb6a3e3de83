"""The clipped surrogate, what is added to it, and how much each token weighs: pure functions."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from hgpo_jax.config import LossConfig
from hgpo_jax.types import Array, Metrics

# float32 exp overflows at 88, and one infinite ratio or KL term turns the whole gradient to NaN. exp(20) is
# 5e8: a token that far off says nothing more about direction, and beyond the bound it has no gradient at all.
MAX_EXPONENT = 20.0


def segment_sum(values_BT: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
    """Sum within each segment of each row, given back to every token of the segment.

    A step lies in one row, whole, so the sum never leaves the row (nor the device that holds it).

    Args:
      values_BT: f32 [.., B, T].
      segment_ids_BT: i32 [.., B, T], 1, 2, .. per row; 0 is padding, summed as a segment of its own.

    Returns:
      f32 [.., B, T].
    """
    chex.assert_equal_shape([values_BT, segment_ids_BT])

    def row(values_T: jax.Array, ids_T: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values_T, ids_T, len(ids_T) + 1)[ids_T]

    return jnp.vectorize(row, signature="(t),(t)->(t)")(values_BT, segment_ids_BT)


def token_weights(loss_mask_BT: jax.Array, segment_ids_BT: jax.Array, config: LossConfig) -> jax.Array:
    """What each token weighs in the loss. Call it on the whole mini-batch, over all devices.

        token_mean      1 / (tokens of the mini-batch)                        DAPO, arXiv 2503.14476
        sequence_mean   1 / (steps of the mini-batch * tokens of the step)    GRPO, arXiv 2402.03300
        constant        1 / (steps of the mini-batch * constant_length)       Dr. GRPO, arXiv 2503.20783

    Set once here, the weights make the sum over any parts and devices the loss of the whole; a mean of the
    parts' means would weigh a token by the part it happened to fall into.

    Args:
      loss_mask_BT: bool [.., B, T], True on response tokens. Leading axes belong to the same mini-batch.
      segment_ids_BT: i32 [.., B, T].
      config: ``aggregation`` and ``constant_length``.

    Returns:
      f32 [.., B, T], 0 outside the mask. The first two kinds sum to 1 (to 0 when the mask is empty).
    """
    chex.assert_equal_shape([loss_mask_BT, segment_ids_BT])
    mask_BT = loss_mask_BT.astype(jnp.float32)
    if config.aggregation == "token_mean":
        return mask_BT / jnp.maximum(mask_BT.sum(), 1.0)
    length_BT = jnp.maximum(segment_sum(mask_BT, segment_ids_BT), 1.0)
    # Each step adds length * (1 / length); rounding takes off what float32 leaves.
    num_steps = jnp.maximum(jnp.round((mask_BT / length_BT).sum()), 1.0)
    if config.aggregation == "sequence_mean":
        return mask_BT / (length_BT * num_steps)
    return mask_BT / (config.constant_length * num_steps)


def log_ratio(
    logprob_BT: jax.Array,
    old_logprob_BT: jax.Array,
    loss_mask_BT: jax.Array,
    segment_ids_BT: jax.Array,
    config: LossConfig,
) -> jax.Array:
    """log rho: per token, or its mean over the step's tokens (GSPO, arXiv 2507.18071), 0 outside the mask.

    Args:
      logprob_BT, old_logprob_BT: f32 [B, T]. loss_mask_BT: bool [B, T]. segment_ids_BT: i32 [B, T].
      config: ``ratio``.

    Returns:
      f32 [B, T], at most ``MAX_EXPONENT``.
    """
    difference_BT = jnp.where(loss_mask_BT, logprob_BT - old_logprob_BT, 0.0)
    if config.ratio == "sequence":
        length_BT = segment_sum(loss_mask_BT.astype(jnp.float32), segment_ids_BT)
        difference_BT = segment_sum(difference_BT, segment_ids_BT) / jnp.maximum(length_BT, 1.0)
        difference_BT = jnp.where(loss_mask_BT, difference_BT, 0.0)
    return jnp.minimum(difference_BT, MAX_EXPONENT)


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, config: LossConfig) -> jax.Array:
    """The loss -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A); for A < 0 at most -dual_clip A.

    Clipping is PPO's (arXiv 1707.06347), the separate upper bound DAPO's, dual clip arXiv 1912.09729.

    Args:
      ratio, advantage: f32, equal shapes.
      config: ``clip_low``, ``clip_high``, ``dual_clip``.

    Returns:
      f32, the same shape.
    """
    chex.assert_equal_shape([ratio, advantage])
    clipped = jnp.clip(ratio, 1.0 - config.clip_low, 1.0 + config.clip_high)
    loss = jnp.maximum(-ratio * advantage, -clipped * advantage)
    if config.dual_clip is None:
        return loss
    return jnp.where(advantage < 0, jnp.minimum(loss, -config.dual_clip * advantage), loss)


def k3(logprob: jax.Array, ref_logprob: jax.Array) -> jax.Array:
    """KL(policy || reference) per token, low variance: exp(d) - d - 1, d = ref - logp (Schulman's k3)."""
    d = jnp.minimum(ref_logprob - logprob, MAX_EXPONENT)
    return jnp.exp(d) - d - 1.0


def value_loss(value: jax.Array, old_value: Array, target: Array, clip: float | None) -> jax.Array:
    """Half the squared error of V, of the worse of it and what it may have moved to (PPO, as in openai/baselines).

        1/2 max((V - target)^2, (clip(V, old - c, old + c) - target)^2)

    Args:
      value, old_value, target: f32, equal shapes; the last two are constants.
      clip: c; None for no clipping.

    Returns:
      f32, the same shape.
    """
    error = (value - target) ** 2
    if clip is None:
        return 0.5 * error
    clipped = jnp.clip(value, old_value - clip, old_value + clip)
    return 0.5 * jnp.maximum(error, (clipped - target) ** 2)


def policy_loss(
    logprob_BT: jax.Array,
    entropy_BT: jax.Array,
    behavior_logprob_BT: jax.Array,
    old_logprob_BT: jax.Array,
    ref_logprob_BT: jax.Array,
    advantage_BT: jax.Array,
    loss_mask_BT: jax.Array,
    segment_ids_BT: jax.Array,
    weight_BT: jax.Array,
    num_tokens: jax.Array,
    config: LossConfig,
) -> tuple[jax.Array, Metrics]:
    """This part's share of its mini-batch's loss

        sum_t w_t (min(exp(old_t - behavior_t), importance_cap) surrogate_t + kl_coef k3_t - entropy_coef H_t)

    The truncated importance weight (Yao et al. 2025, "On the Rollout-Training Mismatch in Modern RL Systems"; 1
    without an ``importance_cap``) stands for what the sampler's distribution was off: other arithmetic, or older
    parameters.

    Args:
      logprob_BT, entropy_BT: f32 [B, T], of the policy that is trained.
      behavior_logprob_BT, old_logprob_BT, ref_logprob_BT: f32 [B, T], constants.
      advantage_BT: f32 [B, T], that of the token's step.
      loss_mask_BT: bool [B, T]. segment_ids_BT: i32 [B, T].
      weight_BT: f32 [B, T], from ``token_weights`` of the whole mini-batch.
      num_tokens: f32 [], loss tokens of the whole mini-batch; metrics are means over them.
      config: clips and coefficients.

    Returns:
      The loss [] and metrics []: shares to be summed over the parts, except ``*_max``, to be maximised.
    """
    chex.assert_rank(logprob_BT, 2)
    chex.assert_equal_shape(
        [
            logprob_BT,
            entropy_BT,
            behavior_logprob_BT,
            old_logprob_BT,
            ref_logprob_BT,
            advantage_BT,
            loss_mask_BT,
            weight_BT,
        ]
    )
    chex.assert_type([logprob_BT, old_logprob_BT, advantage_BT, weight_BT], jnp.float32)
    chex.assert_rank(num_tokens, 0)
    mask_BT, A_BT = loss_mask_BT, advantage_BT
    log_ratio_BT = log_ratio(logprob_BT, old_logprob_BT, mask_BT, segment_ids_BT, config)
    ratio_BT = jnp.exp(log_ratio_BT)
    surrogate_BT = jnp.where(mask_BT, clipped_surrogate(ratio_BT, A_BT, config), 0.0)
    importance_BT = jnp.where(mask_BT, jnp.exp(jnp.minimum(old_logprob_BT - behavior_logprob_BT, MAX_EXPONENT)), 0.0)
    if config.importance_cap is not None:
        surrogate_BT *= jnp.minimum(importance_BT, config.importance_cap)
    kl_BT = jnp.where(mask_BT, k3(logprob_BT, ref_logprob_BT), 0.0)
    entropy_BT = jnp.where(mask_BT, entropy_BT, 0.0)
    per_token_BT = surrogate_BT
    # A term times 0 is left out: the compiler would compute its gradient all the same.
    if config.entropy_coef:
        per_token_BT -= config.entropy_coef * entropy_BT
    if config.kl_coef:
        per_token_BT += config.kl_coef * kl_BT
    loss = (weight_BT * per_token_BT).sum()

    def mean(values_BT: jax.Array) -> jax.Array:
        return jnp.where(mask_BT, values_BT.astype(jnp.float32), 0.0).sum() / num_tokens

    dual = jnp.inf if config.dual_clip is None else config.dual_clip
    gap_BT = jnp.where(mask_BT, jnp.abs(logprob_BT - behavior_logprob_BT), 0.0)
    metrics = {
        "loss": loss,
        "policy_loss": (weight_BT * surrogate_BT).sum(),
        "entropy": mean(entropy_BT),
        "clip_fraction_high": mean((ratio_BT > 1.0 + config.clip_high) & (A_BT > 0)),
        "clip_fraction_low": mean((ratio_BT < 1.0 - config.clip_low) & (A_BT < 0)),
        "dual_clip_fraction": mean((ratio_BT > dual) & (A_BT < 0)),
        "ratio": mean(ratio_BT),
        "ratio_max": jnp.where(mask_BT, ratio_BT, 0.0).max(),
        "kl_old": mean(k3(old_logprob_BT, logprob_BT)),
        "logprob_gap": mean(gap_BT),
        "logprob_gap_max": gap_BT.max(),
    }
    if config.importance_cap is not None:
        metrics["importance"] = mean(importance_BT)
        metrics["importance_capped_fraction"] = mean(importance_BT > config.importance_cap)
    if config.kl_coef:
        metrics["kl"] = mean(kl_BT)
    return loss, jax.lax.stop_gradient(metrics)

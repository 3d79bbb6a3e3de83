"""Every piece of the loss by hand, then the whole against a loop over tokens."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hgpo_jax.config import LossConfig
from hgpo_jax.learner.losses import clipped_surrogate, k3, log_ratio, policy_loss, segment_sum, token_weights

# Two rows of five tokens: step a (2 of 3 tokens count) and step b (1 of 1) in the first, step c (1 of 2) in
# the second.
MASK = jnp.array([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0]], bool)
SEGMENTS = jnp.array([[1, 1, 1, 2, 0], [1, 1, 0, 0, 0]])


def test_segment_sum_by_hand():
    values = jnp.array([[1.0, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    expected = [[6, 6, 6, 4, 5], [13, 13, 27, 27, 27]]
    np.testing.assert_array_equal(segment_sum(values, SEGMENTS), expected)
    np.testing.assert_array_equal(segment_sum(values[None], SEGMENTS[None]), [expected])


@pytest.mark.parametrize(
    ("aggregation", "a", "b", "c"),
    [
        ("token_mean", 1 / 4, 1 / 4, 1 / 4),
        ("sequence_mean", 1 / 6, 1 / 3, 1 / 3),
        ("constant", 1 / 30, 1 / 30, 1 / 30),  # three steps, ten tokens each
    ],
)
def test_token_weights_by_hand(aggregation, a, b, c):
    config = LossConfig(aggregation=aggregation, constant_length=10)
    weights = token_weights(MASK, SEGMENTS, config)
    chex.assert_shape(weights, (2, 5))
    np.testing.assert_allclose(weights, [[0, a, a, b, 0], [0, c, 0, 0, 0]], rtol=1e-6)
    # Leading axes belong to the same mini-batch: cutting it into parts changes no weight.
    np.testing.assert_array_equal(token_weights(MASK[:, None], SEGMENTS[:, None], config), weights[:, None])
    np.testing.assert_array_equal(token_weights(MASK & False, SEGMENTS, config), jnp.zeros((2, 5)))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # Inside the clip: -rho A.
        (1.1, 2.0, -2.2, -2.0),
        (0.9, -2.0, 1.8, 2.0),
        # A > 0: no more reward above 1 + 0.3, still the full push from below.
        (1.5, 2.0, -2.6, 0.0),
        (0.5, 2.0, -1.0, -2.0),
        # A < 0: no more reward below 1 - 0.2; above the loss grows until dual clip holds it at 3 |A|.
        (0.5, -2.0, 1.6, 0.0),
        (2.0, -2.0, 4.0, 2.0),
        (5.0, -2.0, 6.0, 0.0),
        # No advantage: nothing.
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, slope):
    config = LossConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    value, gradient = jax.value_and_grad(clipped_surrogate)(jnp.float32(ratio), jnp.float32(advantage), config)
    np.testing.assert_allclose([value, gradient], [loss, slope], atol=1e-6)


def test_dual_clip_can_be_turned_off():
    value = clipped_surrogate(jnp.float32(5.0), jnp.float32(-2.0), LossConfig(dual_clip=None))
    np.testing.assert_allclose(value, 10.0)


def test_k3_by_hand():
    """d = log 2 gives 2 - log 2 - 1; d = 0 gives 0 with no slope; d = -1 gives e^-1."""
    np.testing.assert_allclose(k3(jnp.log(0.25), jnp.log(0.5)), 1 - np.log(2), rtol=1e-6)
    np.testing.assert_allclose(jax.value_and_grad(k3)(-1.0, -1.0), (0.0, 0.0))
    np.testing.assert_allclose(k3(jnp.float32(-1.0), jnp.float32(-2.0)), np.exp(-1), rtol=1e-6)


def test_exponents_do_not_overflow():
    """A reference that finds a token e^200 times likelier gives a large finite loss, with no slope."""
    value, gradient = jax.value_and_grad(k3)(-200.0, -0.1)
    assert np.isfinite(value)
    assert gradient == 0
    ratio = log_ratio(jnp.array([[-0.1]]), jnp.array([[-200.0]]), MASK[:1, 1:2], SEGMENTS[:1, :1], LossConfig())
    assert np.isfinite(np.exp(ratio)).all()
    assert np.isfinite(k3(jnp.float32(-0.1), jnp.float32(-200.0)))


def test_sequence_ratio_by_hand():
    """GSPO: every token of a step has the mean of the step's log ratios."""
    logprob = jnp.array([[9.0, -1, -3, -5, 9], [9, -7, 9, 9, 9]])
    old = jnp.array([[0.0, -2, -2.5, -5.5, 0], [0, -6, 0, 0, 0]])
    got = log_ratio(logprob, old, MASK, SEGMENTS, LossConfig(ratio="sequence"))
    np.testing.assert_allclose(got, [[0, 0.25, 0.25, 0.5, 0], [0, -1, 0, 0, 0]])
    got = log_ratio(logprob, old, MASK, SEGMENTS, LossConfig(ratio="token"))
    np.testing.assert_allclose(got, [[0, 1, -0.5, 0.5, 0], [0, -1, 0, 0, 0]])


def test_gspo_by_hand():
    """arXiv 2507.18071, eq. 5 and 10: the mean over replies of s A, where its ratio s lies within the clip.

    Steps of two, one and one tokens with A = 1, -2, 3 and log s = 2e-4, 1e-3, 1e-3: s A within; -s A, the clip being
    no bound from above where A < 0; 3 (1 + 4e-4), with no slope. A token's slope is s A over tokens and replies.
    """
    config = LossConfig(3e-4, 4e-4, None, 0.0, 0.0, "sequence", "sequence_mean")
    old = jnp.zeros((2, 5))
    logprob = jnp.array([[0, 3e-4, 1e-4, 1e-3, 0], [0, 1e-3, 0, 0, 0]])
    advantage = jnp.array([[0, 1.0, 1, -2, 0], [0, 3, 0, 0, 0]])
    weights = token_weights(MASK, SEGMENTS, config)

    def loss(logprob_BT: jax.Array):
        rest = (old, old, old, old, advantage, MASK, SEGMENTS, weights, jnp.float32(4), config)
        return policy_loss(logprob_BT, *rest)[0]

    value, gradient = jax.value_and_grad(loss)(logprob)
    s_a, s_b = np.exp(2e-4), np.exp(1e-3)
    np.testing.assert_allclose(value, -(s_a - 2 * s_b + 3 * 1.0004) / 3, rtol=1e-5)
    expected = [[0, -s_a / 6, -s_a / 6, 2 * s_b / 3, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def random_tokens(seed: int = 0) -> dict[str, np.ndarray]:
    """Four rows of 12 with up to four steps each; log-probabilities far enough apart for every clip to
    act."""
    rng = np.random.default_rng(seed)
    segments = np.sort(rng.integers(0, 5, (4, 12)), axis=1)[:, ::-1].copy()
    mask = (segments > 0) & (rng.random((4, 12)) < 0.7)
    old = rng.normal(size=(4, 12)) - 2
    advantage_of = rng.normal(size=(4, 5)) * 2
    return {
        "logprob_BT": old + rng.normal(size=(4, 12)),
        "entropy_BT": rng.random((4, 12)),
        "behavior_logprob_BT": old + rng.normal(size=(4, 12)) * 0.5,
        "old_logprob_BT": old,
        "ref_logprob_BT": old + rng.normal(size=(4, 12)) * 0.5,
        "advantage_BT": np.take_along_axis(advantage_of, segments, 1),
        "loss_mask_BT": mask,
        "segment_ids_BT": segments,
    }


def loop_loss(tokens: dict[str, np.ndarray], config: LossConfig) -> dict[str, Any]:
    """The same loss, token by token, written from the papers."""
    B, _ = tokens["loss_mask_BT"].shape
    steps = []
    for b, segment in itertools.product(range(B), range(1, 5)):
        here = tokens["loss_mask_BT"][b] & (tokens["segment_ids_BT"][b] == segment)
        if here.any():
            steps.append({k[:-3]: v[b][here] for k, v in tokens.items()})
    num_tokens = sum(len(s["logprob"]) for s in steps)
    out: dict[str, Any] = dict.fromkeys(
        ("loss", "kl", "clip_fraction_low", "clip_fraction_high", "dual_clip_fraction", "logprob_gap"), 0.0
    )
    if config.importance_cap is not None:
        out |= {"importance": 0.0, "importance_capped_fraction": 0.0}
    for s in steps:
        length = len(s["logprob"])
        for t in range(length):
            log_rho = s["logprob"][t] - s["old_logprob"][t]
            if config.ratio == "sequence":
                log_rho = np.mean(s["logprob"] - s["old_logprob"])
            rho, A = np.exp(log_rho), s["advantage"][t]
            objective = min(rho * A, min(max(rho, 1 - config.clip_low), 1 + config.clip_high) * A)
            if config.dual_clip is not None and A < 0:
                objective = max(objective, config.dual_clip * A)
                out["dual_clip_fraction"] += (rho > config.dual_clip) / num_tokens
            if config.importance_cap is not None:
                importance = np.exp(s["old_logprob"][t] - s["behavior_logprob"][t])
                objective *= min(importance, config.importance_cap)
                out["importance"] += importance / num_tokens
                out["importance_capped_fraction"] += (importance > config.importance_cap) / num_tokens
            out["logprob_gap"] += abs(s["logprob"][t] - s["behavior_logprob"][t]) / num_tokens
            d = s["ref_logprob"][t] - s["logprob"][t]
            kl = np.exp(d) - d - 1
            weight = {
                "token_mean": 1 / num_tokens,
                "sequence_mean": 1 / len(steps) / length,
                "constant": 1 / len(steps) / config.constant_length,
            }[config.aggregation]
            out["loss"] += weight * (-objective + config.kl_coef * kl - config.entropy_coef * s["entropy"][t])
            out["kl"] += kl / num_tokens
            out["clip_fraction_high"] += (rho > 1 + config.clip_high and A > 0) / num_tokens
            out["clip_fraction_low"] += (rho < 1 - config.clip_low and A < 0) / num_tokens
    return out


CONFIGS = [
    LossConfig(0.2, 0.28, dual, 0.1, 0.05, ratio, aggregation, constant_length=7)
    for dual, ratio, aggregation in itertools.product(
        (3.0, None), ("token", "sequence"), ("token_mean", "sequence_mean", "constant")
    )
]
CONFIGS.append(dataclasses.replace(CONFIGS[0], importance_cap=1.2))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.dual_clip}-{c.ratio}-{c.aggregation}-{c.importance_cap}")
def test_loss_and_metrics_match_the_loop(config):
    tokens = random_tokens()
    arrays = {k: jnp.asarray(v, None if v.dtype != np.float64 else jnp.float32) for k, v in tokens.items()}
    weights = token_weights(arrays["loss_mask_BT"], arrays["segment_ids_BT"], config)
    num_tokens = jnp.float32(tokens["loss_mask_BT"].sum())
    loss, metrics = policy_loss(**arrays, weight_BT=weights, num_tokens=num_tokens, config=config)
    chex.assert_rank([loss, *metrics.values()], 0)
    expected = loop_loss(tokens, config)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    assert expected["clip_fraction_high"] > 0
    assert expected["clip_fraction_low"] > 0
    np.testing.assert_allclose(loss, expected["loss"], rtol=2e-5)

    if config.importance_cap is not None:
        assert 0 < expected["importance_capped_fraction"] < 1

    # Any two parts add up to the whole.
    def part(rows: slice) -> jax.Array:
        cut = {k: v[rows] for k, v in arrays.items()}
        return policy_loss(**cut, weight_BT=weights[rows], num_tokens=num_tokens, config=config)[0]

    np.testing.assert_allclose(part(slice(0, 1)) + part(slice(1, 4)), loss, rtol=1e-5)


def test_what_lies_outside_the_mask_does_not_matter():
    config = LossConfig(kl_coef=0.1)
    tokens = {k: jnp.asarray(v, None if v.dtype != np.float64 else jnp.float32) for k, v in random_tokens().items()}
    mask = tokens["loss_mask_BT"]
    weights = token_weights(mask, tokens["segment_ids_BT"], config)

    def value_and_grad(noise: float):
        names = ("logprob_BT", "entropy_BT", "behavior_logprob_BT", "old_logprob_BT", "ref_logprob_BT", "advantage_BT")
        arrays = tokens | {k: jnp.where(mask, tokens[k], noise) for k in names}

        def loss(logprob_BT: jax.Array):
            replaced = arrays | {"logprob_BT": logprob_BT}
            return policy_loss(**replaced, weight_BT=weights, num_tokens=jnp.float32(mask.sum()), config=config)

        return jax.value_and_grad(loss, has_aux=True)(arrays["logprob_BT"])

    plain, noisy = value_and_grad(0.0), value_and_grad(-77.0)
    chex.assert_trees_all_equal(plain, noisy)
    np.testing.assert_array_equal(plain[1][~np.asarray(mask)], 0)


def test_no_kl_metric_without_a_reference():
    """With kl_coef 0 there is no reference pass, hence nothing to report."""
    config = dataclasses.replace(LossConfig(), kl_coef=0.0)
    tokens = {k: jnp.asarray(v, None if v.dtype != np.float64 else jnp.float32) for k, v in random_tokens().items()}
    weights = token_weights(tokens["loss_mask_BT"], tokens["segment_ids_BT"], config)
    _, metrics = policy_loss(**tokens, weight_BT=weights, num_tokens=jnp.float32(1), config=config)
    assert "kl" not in metrics

"""Truncation by hand; draws against the distribution that they come from."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hgpo_jax.policy.drawing import draw, truncate

LOGITS = np.log([[0.5, 0.2, 0.15, 0.1, 0.05]]).astype(np.float32)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [
        (1.0, 0, 5),
        (1.0, 2, 2),
        (1.0, 99, 5),
        (0.5, 0, 1),
        (0.51, 0, 2),
        (0.8, 0, 3),
        (0.0, 0, 1),
        (0.75, 3, 2),  # of what top-k leaves: 0.5 / 0.85 and 0.2 / 0.85
    ],
)
def test_truncation_by_hand(top_p, top_k, kept):
    """The vocabulary in another order, so that the places have to come back right."""
    order = np.array([3, 0, 4, 2, 1])
    got = np.asarray(truncate(jnp.array(LOGITS[:, order]), top_p, top_k))
    want = np.where(order < kept, LOGITS[0, order], -np.inf)
    np.testing.assert_array_equal(got, want[None])


def draws(count, **settings):
    keys = jax.random.split(jax.random.key(11), count)
    setting = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, **settings}
    return jax.jit(draw)(keys, jnp.tile(LOGITS, (count, 1)), **setting)


@pytest.mark.parametrize("temperature", [1.0, 0.4, 3.0])
def test_draws_follow_the_tempered_distribution(temperature):
    """The chi-square statistic of 20,000 draws, 4 degrees of freedom: above 18.5 once in a thousand seeds."""
    tokens, logprobs = draws(20_000, temperature=temperature)
    chex.assert_shape([tokens, logprobs], (20_000,))
    weight = np.exp(LOGITS[0] / temperature)
    probability = weight / weight.sum()
    counts = np.bincount(tokens, minlength=5)
    assert ((counts - 20_000 * probability) ** 2 / (20_000 * probability)).sum() < 18.5
    np.testing.assert_allclose(logprobs, np.log(probability)[tokens], atol=1e-5)


def test_truncated_draws_renormalise_but_report_the_whole_distribution():
    tokens, logprobs = draws(20_000, top_p=0.8, temperature=1.0)
    counts = np.bincount(tokens, minlength=5)
    expected = 20_000 * np.array([0.5, 0.2, 0.15]) / 0.85
    assert not counts[3:].any()
    assert ((counts[:3] - expected) ** 2 / expected).sum() < 13.8  # 2 degrees of freedom
    np.testing.assert_allclose(logprobs, LOGITS[0][tokens], atol=1e-5)


def test_greedy_ignores_truncation_and_reports_temperature_one():
    tokens, logprobs = draws(3, temperature=0.0, top_p=0.1, top_k=3)
    np.testing.assert_array_equal(tokens, [0, 0, 0])
    np.testing.assert_allclose(logprobs, np.log(0.5), atol=1e-6)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_draws_over_several_blocks_of_the_vocabulary(top_p):
    """150 tokens, of which a third cannot be drawn: frequencies, and none of those, nor of the padding."""
    logits = np.random.default_rng(0).normal(0, 1, 150).astype(np.float32)
    logits[::3] = -np.inf
    count = 20_000
    keys = jax.random.split(jax.random.key(5), count)
    tokens, logprobs = jax.jit(draw)(keys, jnp.tile(logits, (count, 1)), 1.0, top_p, 0)
    probability = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(logprobs, np.log(probability[np.asarray(tokens)]), atol=1e-5)
    kept = np.asarray(truncate(jnp.asarray(logits)[None], top_p, 0))[0] > -np.inf
    expected = count * np.where(kept, probability, 0) / probability[kept].sum()
    counts = np.bincount(tokens, minlength=150)
    assert not counts[~kept].any()
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = kept.sum() - 1
    assert statistic < freedom + 3.7 * np.sqrt(2 * freedom)


def test_a_draw_needs_few_arrays_of_the_vocabularys_size():
    """Temporary memory of 4 rows over 152,000 tokens, a truncation's sort included: under six times the logits."""
    logits = jax.ShapeDtypeStruct((4, 152_000), jnp.float32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
    memory: Any = jax.jit(draw).lower(keys, logits, 1.0, 1.0, 0).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 6 * logits.size * 4

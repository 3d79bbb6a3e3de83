"""One token a row from logits: temperature, top-k and top-p, and the log-probability that a learner recomputes."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from hgpo_jax.policy.logprobs import temper

_BLOCK = 64  # entries of the vocabulary that a draw takes together first


def truncate(logits_BV: jax.Array, top_p: chex.Numeric, top_k: chex.Numeric) -> jax.Array:
    """Sets the logits that top-k, then top-p over what is left (arXiv 1904.09751), rule out to -inf.

    Kept are the ``top_k`` largest (0: all), and of these the smallest set of the largest whose probability
    reaches ``top_p``; never fewer than one. Ties with the last one kept stay. Costs one sort.
    """
    chex.assert_rank(logits_BV, 2)
    return jnp.where(logits_BV >= _last_kept(logits_BV, top_p, top_k)[:, None], logits_BV, -jnp.inf)


def _last_kept(logits_BV: jax.Array, top_p: chex.Numeric, top_k: chex.Numeric) -> jax.Array:
    """The smallest logit of each row that `truncate` keeps, [B]."""
    V = logits_BV.shape[1]
    sorted_BV = jnp.sort(logits_BV, axis=-1, descending=True)
    rank_1V = jnp.arange(V)[None]
    in_k_1V = rank_1V < jnp.where(jnp.asarray(top_k) > 0, top_k, V)
    probability_BV = jax.nn.softmax(jnp.where(in_k_1V, sorted_BV, -jnp.inf), axis=-1)
    before_BV = jnp.cumsum(probability_BV, axis=-1) - probability_BV
    # A top_p of 1 keeps the last ones too, whatever the rounding of the sum.
    in_p_BV = (before_BV < top_p) | (rank_1V == 0) | (jnp.asarray(top_p) >= 1)
    return jnp.min(jnp.where(in_p_BV & in_k_1V, sorted_BV, jnp.inf), axis=-1)


def draw(
    keys_B: jax.Array,
    logits_BV: jax.Array,
    temperature: chex.Numeric,
    top_p: chex.Numeric,
    top_k: chex.Numeric,
) -> tuple[jax.Array, jax.Array]:
    """One token a row, and its log-probability.

    The log-probability is that of the tempered distribution **before** top-k and top-p, of temperature 1 when
    greedy: what a learner, which knows nothing of the truncation, recomputes from the logits.

    Args:
      keys_B: a typed PRNG key per row, so that a draw depends on its own row alone.
      logits_BV: f32 [B, V].
      temperature, top_p, top_k: scalars, as a ``Sampler`` takes them.

    Returns:
      (tokens i32 [B], logprobs f32 [B]).
    """
    chex.assert_rank([keys_B, logits_BV], [1, 2])
    tempered_BV = temper(logits_BV, temperature)
    peak_B = jnp.max(tempered_BV, axis=-1)
    weight_BV = jnp.exp(tempered_BV - peak_B[:, None])
    truncated = (jnp.asarray(top_k) > 0) | (jnp.asarray(top_p) < 1)
    last_B = jax.lax.cond(
        truncated, lambda: _last_kept(tempered_BV, top_p, top_k), lambda: jnp.full_like(peak_B, -jnp.inf)
    )
    token_B = jax.lax.cond(
        jnp.asarray(temperature) > 0,
        lambda: _categorical(keys_B, jnp.where(tempered_BV >= last_B[:, None], weight_BV, 0.0)),
        lambda: jnp.argmax(logits_BV, axis=-1).astype(jnp.int32),
    )
    chosen_B = jnp.take_along_axis(tempered_BV, token_B[:, None], axis=-1)[:, 0]
    return token_B, chosen_B - peak_B - jnp.log(jnp.sum(weight_BV, axis=-1))


def _categorical(keys_B: jax.Array, weight_BV: jax.Array) -> jax.Array:
    """An index of each row with probability proportional to its weight, i32 [B].

    By inverting the cumulative distribution, of blocks and then within the block: two uniform numbers a row, where
    the Gumbel trick wants one for every entry of the vocabulary.
    """
    B, V = weight_BV.shape
    blocks_BXY = jnp.pad(weight_BV, ((0, 0), (0, -V % _BLOCK))).reshape(B, -1, _BLOCK)
    uniform_2B = jax.vmap(lambda key: jax.random.uniform(key, (2,)), out_axes=1)(keys_B)
    block_B = _invert(uniform_2B[0], jnp.sum(blocks_BXY, axis=-1))
    within_BY = jnp.take_along_axis(blocks_BXY, block_B[:, None, None], axis=1)[:, 0]
    return block_B * _BLOCK + _invert(uniform_2B[1], within_BY)


def _invert(uniform_B: jax.Array, weight_BX: jax.Array) -> jax.Array:
    """The first index whose cumulative weight exceeds ``uniform`` times the row's: i32 [B]. Never one of weight 0."""
    cumulative_BX = jnp.where(weight_BX > 0, jnp.cumsum(weight_BX, axis=-1), 0.0)
    total_B = jnp.max(cumulative_BX, axis=-1)  # uniform is at most 1 - 2^-23, so that the product stays below it
    return jnp.argmax(cumulative_BX > (uniform_B * total_B)[:, None], axis=-1).astype(jnp.int32)

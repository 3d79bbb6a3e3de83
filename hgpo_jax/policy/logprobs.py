"""Log-probabilities of what was answered: the one thing that the learner wants of the decoder.

Shapes beyond the legend of ``types.py``: ``C`` response tokens of a row.
"""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.transformer import Params, Transformer
from hgpo_jax.sharding import batch_multiple, constrain
from hgpo_jax.types import Array

_LOGITS = 1 << 25  # at most this many at once on a device: 128 MiB


def temper(logits: jax.Array, temperature: chex.Numeric) -> jax.Array:
    """``logits / temperature``; a temperature of 0, greedy, has no distribution and counts as 1 here."""
    return logits / jnp.where(jnp.asarray(temperature) > 0, temperature, 1.0)


def response_logprobs(
    model: Transformer | ModelConfig,
    params: Params,
    tokens_BT: Array,
    positions_BT: Array,
    segment_ids_BT: Array,
    response_index_BC: Array | None = None,
    temperature: chex.Numeric = 1.0,
) -> tuple[jax.Array, ...]:
    """``log p(tokens[b, t] | what precedes it in its segment)``, and that distribution's entropy.

    Both align with the token that is predicted and are 0 where there is no prediction: at the first token of
    each segment, on padding, and at tokens that ``response_index`` doesn't name. Only for those that it names are
    logits made, in chunks where the vocabulary is large, and again in the backward pass: [tokens, V] never exists.

    Args:
      model: the decoder or its configuration.
      params: its parameters.
      tokens_BT, positions_BT, segment_ids_BT: i32 [B, T], as ``Transformer.__call__`` takes them.
      response_index_BC: i32 [B, C], columns of the tokens to predict, each once, -1 where a row has fewer; None
        predicts all.
      temperature: the one that sampled; the log-probabilities are those of the tempered distribution.

    Returns:
      (logprob f32 [B, T], entropy f32 [B, T] in nats); of a decoder with a value head also V f32 [B, T] of what
      precedes each response, at its first token, 0 elsewhere.
    """
    model = model if isinstance(model, Transformer) else Transformer(model)
    variables = {"params": params}
    B, T = tokens_BT.shape
    hidden_BTD: jax.Array = model.apply(variables, tokens_BT, positions_BT, segment_ids_BT)[0]
    if response_index_BC is None:
        response_index_BC = jnp.broadcast_to(jnp.arange(T), (B, T))
    # A token is predicted where its predecessor stands, if that belongs to its segment.
    before_BC = jnp.maximum(response_index_BC - 1, 0)
    segment_BC, before_segment_BC = (
        jnp.take_along_axis(segment_ids_BT, index, 1) for index in (jnp.maximum(response_index_BC, 0), before_BC)
    )
    predicted_BC = (response_index_BC > 0) & (segment_BC == before_segment_BC) & (segment_BC > 0)
    token_BC = jnp.take_along_axis(tokens_BT, jnp.maximum(response_index_BC, 0), 1)
    hidden_BCD = constrain(model.layout, jnp.take_along_axis(hidden_BTD, before_BC[..., None], 1), "batch", None, None)

    def predict(chunk):
        hidden, token = chunk
        logits: Any = model.apply(variables, hidden, method="unembed")
        logits = temper(logits, temperature)
        total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0] - total
        # H = log Z - E[logit]
        return chosen, total - jnp.sum(jnp.exp(logits - total[..., None]) * logits, axis=-1)

    values = _over_chunks(predict, (hidden_BCD, token_BC), _rows_on_a_device(model, B) * model.config.vocab_size)
    columns_BC = jnp.where(predicted_BC, response_index_BC, T)
    rows_B1 = jnp.arange(B)[:, None]

    def spread(x_BC):
        x_BT = jnp.zeros((B, T)).at[rows_B1, columns_BC].set(x_BC, mode="drop")
        return constrain(model.layout, x_BT, "batch", None)

    if not model.config.value_head:
        return spread(values[0]), spread(values[1])
    # Between two responses of a row there is a prompt.
    first_BC = predicted_BC & (jnp.diff(response_index_BC, axis=1, prepend=-2) != 1)
    value_BC: Any = model.apply(variables, hidden_BCD, method="value")
    return spread(values[0]), spread(values[1]), spread(jnp.where(first_BC, value_BC, 0))


def _rows_on_a_device(model: Transformer, rows: int) -> int:
    return max(rows // batch_multiple(model.layout and model.layout.mesh), 1)


def _over_chunks(function, arrays, logits_per_column: int):
    """``function(arrays)`` in equal chunks over axis 1, as few as keep the logits under the limit."""
    B, C = arrays[-1].shape
    chunks = next(n for n in range(1, C + 1) if C % n == 0 and (C // n * logits_per_column <= _LOGITS or n == C))
    if chunks == 1:
        return function(arrays)
    split = jax.tree.map(lambda x: jnp.moveaxis(x.reshape(B, chunks, C // chunks, *x.shape[2:]), 1, 0), arrays)
    mapped = jax.lax.map(jax.checkpoint(function), split)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(B, C), mapped)

"""Sampling with a key/value cache: one prefill, then one token a turn until every row has ended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.transformer import (
    KVCache,
    Params,
    Transformer,
    check_model_config,
    init_cache,
    temper,
)


class SampleOutput(NamedTuple):
    """Replies of at most R tokens. The end-of-sequence token is part of a reply and of its length."""

    tokens: jax.Array  # i32 [B, R]  ``pad_id`` after the end
    logprobs: jax.Array  # f32 [B, R]  0 after the end
    lengths: jax.Array  # i32 [B]  tokens drawn
    finished: jax.Array  # bool [B]  ended by itself; False where ``max_new_tokens`` cut it off
    turns: jax.Array  # i32 []  turns taken; the longest reply's length, at least 1


class _Loop(NamedTuple):
    """What the decoding loop carries; XLA updates it in place, the cache included."""

    output: SampleOutput
    token: jax.Array  # i32 [B]  drawn last turn, not yet read by the model
    cache: KVCache


def pad_prompts(
    prompts: Sequence[Sequence[int] | np.ndarray], pad_id: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts as one array, padded on the left so that all rows decode into the same cache slot.

    Args:
      prompts: B sequences of token ids.
      pad_id: what fills the left.
      length: P, columns of the array.

    Returns:
      (tokens i32 [B, P], lengths i32 [B]).

    Raises:
      ValueError: a prompt is longer than ``length``.
    """
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    if lengths.size and lengths.max() > length:
        raise ValueError(
            f"prompt {lengths.argmax()} has {lengths.max()} tokens, above the padded length {length}; "
            "cut it or choose a larger length"
        )
    tokens = np.full((len(prompts), length), pad_id, np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[length - len(prompt) :] = prompt
    return tokens, lengths


def truncate(logits_BV: jax.Array, top_p: chex.Numeric, top_k: chex.Numeric) -> jax.Array:
    """Sets the logits that top-k, then top-p over what is left (arXiv 1904.09751), rule out to -inf.

    Kept are the ``top_k`` largest (0: all), and of these the smallest set of the largest whose probability
    reaches ``top_p``; never fewer than one. Ties with the last one kept stay. Costs one sort.
    """
    chex.assert_rank(logits_BV, 2)
    V = logits_BV.shape[1]
    sorted_BV = jnp.sort(logits_BV, axis=-1, descending=True)
    rank_1V = jnp.arange(V)[None]
    in_k_1V = rank_1V < jnp.where(jnp.asarray(top_k) > 0, top_k, V)
    probability_BV = jax.nn.softmax(jnp.where(in_k_1V, sorted_BV, -jnp.inf), axis=-1)
    before_BV = jnp.cumsum(probability_BV, axis=-1) - probability_BV
    # A top_p of 1 keeps the last ones too, whatever the rounding of the sum.
    in_p_BV = (before_BV < top_p) | (rank_1V == 0) | (jnp.asarray(top_p) >= 1)
    last_B = jnp.min(jnp.where(in_p_BV & in_k_1V, sorted_BV, jnp.inf), axis=-1)
    return jnp.where(logits_BV >= last_B[:, None], logits_BV, -jnp.inf)


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
      temperature, top_p, top_k: scalars, as in ``make_sampler``.

    Returns:
      (tokens i32 [B], logprobs f32 [B]).
    """
    chex.assert_rank([keys_B, logits_BV], [1, 2])
    tempered_BV = temper(logits_BV, temperature)

    def categorical():
        on = (jnp.asarray(top_k) > 0) | (jnp.asarray(top_p) < 1)
        kept_BV = jax.lax.cond(on, lambda: truncate(tempered_BV, top_p, top_k), lambda: tempered_BV)
        return jax.vmap(jax.random.categorical)(keys_B, kept_BV).astype(jnp.int32)

    def greedy():
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)

    token_B = jax.lax.cond(jnp.asarray(temperature) > 0, categorical, greedy)
    chosen_B = jnp.take_along_axis(tempered_BV, token_B[:, None], axis=-1)[:, 0]
    return token_B, chosen_B - jax.nn.logsumexp(tempered_BV, axis=-1)


def make_sampler(config: ModelConfig, eos_ids: Sequence[int], pad_id: int) -> Callable[..., SampleOutput]:
    """Returns a jitted ``sample``, which compiles once per (B, P, capacity) and for no other argument.

    The call: ``sample(params, prompt_tokens, prompt_lengths, keys, temperature, top_p, top_k, max_new_tokens,
    *, capacity)``.

    Args of ``sample``:
      params: the model's parameters.
      prompt_tokens: i32 [B, P], padded on the left (see ``pad_prompts``).
      prompt_lengths: i32 [B]; a row of length 0 is padding, finished before it starts.
      keys: typed PRNG keys [B]. A reply depends on its own prompt and key, not on the batch around it.
      temperature: 0 is greedy.
      top_p, top_k: truncation (``truncate``); 1 and 0 turn it off, and its cost.
      max_new_tokens: at most ``capacity``.
      capacity: static; R, the columns of the output.

    Returns of ``sample``:
      SampleOutput. ``logprobs`` are those of the tempered, untruncated distribution (``draw``), as
      ``response_logprobs`` gives them.

    Raises:
      ValueError: bad sizes in ``config``, an id outside the vocabulary, no end-of-sequence id; from
        ``sample``: shapes that disagree, ``max_new_tokens`` outside 1 .. ``capacity``.
    """
    check_model_config(config)
    if not eos_ids:
        raise ValueError("eos_ids is empty; name at least one token that ends a reply")
    for name, token in [("pad_id", pad_id), *(("eos_ids", token) for token in eos_ids)]:
        if not 0 <= token < config.vocab_size:
            raise ValueError(f"{name} has {token}, outside the vocabulary of {config.vocab_size} tokens")
    generate = jax.jit(functools.partial(_generate, config, tuple(eos_ids), pad_id), static_argnames="capacity")

    @functools.wraps(generate)
    def sample(params, prompt_tokens, prompt_lengths, keys, temperature, top_p, top_k, max_new_tokens, *, capacity):
        _check_call(prompt_tokens, prompt_lengths, keys, max_new_tokens, capacity)
        # One dtype each, so that a 1 in place of a 1.0 does not compile anew.
        scalars = jnp.float32(temperature), jnp.float32(top_p), jnp.int32(top_k), jnp.int32(max_new_tokens)
        return generate(params, prompt_tokens, prompt_lengths, keys, *scalars, capacity=capacity)

    return sample


def _check_call(prompt_tokens, prompt_lengths, keys, max_new_tokens, capacity: int) -> None:
    if prompt_tokens.ndim != 2 or 0 in prompt_tokens.shape:
        raise ValueError(f"prompt_tokens has shape {prompt_tokens.shape}; expected [B, P], both at least 1")
    rows = prompt_tokens.shape[:1]
    if prompt_lengths.shape != rows or keys.shape != rows:
        raise ValueError(
            f"prompt_tokens has {rows[0]} rows, prompt_lengths the shape {prompt_lengths.shape} and keys "
            f"{keys.shape}; expected one length and one typed PRNG key per row"
        )
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}; expected at least 1")
    if not isinstance(max_new_tokens, jax.Array) and not 1 <= max_new_tokens <= capacity:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; expected 1 to capacity = {capacity}")


def _generate(
    config: ModelConfig,
    eos_ids: tuple[int, ...],
    pad_id: int,
    params: Params,
    prompt_tokens: jax.Array,
    prompt_lengths: jax.Array,
    keys: jax.Array,
    temperature: jax.Array,
    top_p: jax.Array,
    top_k: jax.Array,
    max_new_tokens: jax.Array,
    *,
    capacity: int,
) -> SampleOutput:
    """The program behind ``make_sampler``: prefill, first draw, then a loop of reading and drawing."""
    chex.assert_type([prompt_tokens, prompt_lengths], jnp.int32)
    B, P = prompt_tokens.shape
    params = in_compute_dtype(params, config)
    # Here a traced max_new_tokens, which could not be checked, meets the bound.
    turns_allowed = jnp.clip(max_new_tokens, 1, capacity)

    def draw_turn(output: SampleOutput, logits_BV):
        turn_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, output.turns)
        return _record(output, *draw(turn_keys, logits_BV, temperature, top_p, top_k), eos_ids, pad_id)

    def unfinished(loop: _Loop):
        return (loop.output.turns < turns_allowed) & ~loop.output.finished.all()

    def decode(loop: _Loop):
        # The token drawn in turn i is read at position length + i.
        positions_B = prompt_lengths + loop.output.turns - 1
        segment_ids_B = (prompt_lengths > 0).astype(jnp.int32)
        inputs_B1 = [x[:, None] for x in (loop.token, positions_B, segment_ids_B)]
        logits_BV, cache = _last_logits(config, params, *inputs_B1, cache=loop.cache)
        token_B, output = draw_turn(loop.output, logits_BV)
        return _Loop(output, token_B, cache)

    place_BP = jnp.arange(P)[None] - (P - prompt_lengths)[:, None]  # negative on the left padding
    inputs_BP = prompt_tokens, jnp.maximum(place_BP, 0), (place_BP >= 0).astype(jnp.int32)
    empty = init_cache(config, B, P + capacity - 1)
    logits_BV, cache = _last_logits(config, params, *inputs_BP, cache=empty)
    token_B, output = draw_turn(_nothing_drawn(prompt_lengths, pad_id, capacity), logits_BV)
    return jax.lax.while_loop(unfinished, decode, _Loop(output, token_B, cache)).output


def in_compute_dtype(params: Params, config: ModelConfig) -> Params:
    """Casts once what the model would cast in every turn; norms work in float32 and keep their scale."""

    def convert(path, leaf):
        return leaf if path[-1].key == "scale" else leaf.astype(config.dtype)

    return jax.tree_util.tree_map_with_path(convert, params)


def _last_logits(config, params, tokens_BT, positions_BT, segment_ids_BT, cache) -> tuple[Any, KVCache]:
    """Reads T tokens; logits [B, V] of the last only, for a whole prompt's would fill the memory."""
    model, variables = Transformer(config), {"params": params}
    inputs = tokens_BT, positions_BT, segment_ids_BT, cache
    hidden_BTD, cache = cast(tuple[jax.Array, KVCache], model.apply(variables, *inputs))
    return model.apply(variables, hidden_BTD[:, -1], method="unembed"), cache


def _nothing_drawn(prompt_lengths: jax.Array, pad_id: int, capacity: int) -> SampleOutput:
    B = prompt_lengths.shape[0]
    return SampleOutput(
        tokens=jnp.full((B, capacity), pad_id, jnp.int32),
        logprobs=jnp.zeros((B, capacity), jnp.float32),
        lengths=jnp.zeros(B, jnp.int32),
        finished=prompt_lengths == 0,
        turns=jnp.zeros((), jnp.int32),
    )


def _record(output: SampleOutput, token_B, logprob_B, eos_ids, pad_id) -> tuple[jax.Array, SampleOutput]:
    """Enters one turn's draw; rows that had ended take padding. Returns the tokens as entered, too."""
    live_B = ~output.finished
    token_B = jnp.where(live_B, token_B, pad_id)
    logprob_B = jnp.where(live_B, logprob_B, 0.0)
    ended_B = (token_B[:, None] == jnp.array(eos_ids, jnp.int32)[None]).any(axis=-1)
    return token_B, SampleOutput(
        tokens=output.tokens.at[:, output.turns].set(token_B),
        logprobs=output.logprobs.at[:, output.turns].set(logprob_B),
        lengths=output.lengths + live_B,
        finished=output.finished | (live_B & ended_B),
        turns=output.turns + 1,
    )

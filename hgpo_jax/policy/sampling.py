"""Sampling with a key/value cache: prompts are read once each, then every reply grows by a token a turn.

Shape beyond the legend of ``types.py``: ``U`` different prompts, which the B rows reply to.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.drawing import draw
from hgpo_jax.policy.transformer import KVCache, Params, Transformer, check_model_config
from hgpo_jax.sharding import Layout, constrain, mesh_of

_WORTH_MOVING = 8  # turns left from which on it pays to move the rows that go on into a smaller batch


class SampleOutput(NamedTuple):
    """Replies of at most R tokens. The end-of-sequence token is part of a reply and of its length."""

    tokens: Any  # i32 [B, R]  ``pad_id`` after the end
    logprobs: Any  # f32 [B, R]  0 after the end
    lengths: Any  # i32 [B]  tokens drawn
    finished: Any  # bool [B]  ended by itself; False where ``max_new_tokens`` cut it off
    turns: Any  # i32 []  turns taken; the longest reply's length, at least 1


class _Policy(NamedTuple):
    """What a sampler is made for."""

    config: ModelConfig
    eos_ids: tuple[int, ...]
    pad_id: int


class Settings(NamedTuple):
    """Traced scalars: none of them compiles anything anew."""

    temperature: Any  # f32 []  0 is greedy
    top_p: Any  # f32 []  1 turns it off
    top_k: Any  # i32 []  0 turns it off
    max_new_tokens: Any  # i32 []


class Prompts(NamedTuple):
    """What reading the prompts leaves."""

    cache: KVCache  # of U rows
    logits: jax.Array  # f32 [U, V]  of the first token of a reply
    lengths: jax.Array  # i32 [U]


class Replies(NamedTuple):
    """What the decoding loop carries; XLA updates it in place, the cache included."""

    output: SampleOutput
    token: jax.Array  # i32 [B]  drawn last turn, not yet read by the model
    cache: KVCache
    prompt_lengths: jax.Array  # i32 [B]
    keys: jax.Array  # typed PRNG keys [B]


def pad_prompts(
    prompts: Sequence[Sequence[int] | np.ndarray], pad_id: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts as one array, padded on the left so that all rows decode into the same cache slot.

    Args:
      prompts: U sequences of token ids.
      pad_id: what fills the left.
      length: P, columns of the array.

    Returns:
      (tokens i32 [U, P], lengths i32 [U]).

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


@dataclasses.dataclass(frozen=True)
class Sampler:
    """The programs of `make_sampler`, and the call that runs them; each compiles once per shape of its arrays."""

    read: Any  # (params, tokens [U, P], lengths [U]; capacity, layout) -> Prompts
    start: Any  # (Prompts, rows [B] | None, keys [B], Settings; capacity, layout) -> Replies with a token each
    decode: Any  # (params, Replies, Settings, stop_at []; layout) -> Replies
    keep: Any  # (Replies, rows [C]; layout) -> Replies of these rows

    def __call__(
        self,
        params: chex.ArrayTree,
        prompt_tokens: Any,
        prompt_lengths: Any,
        keys: jax.Array,
        temperature: chex.Numeric,
        top_p: chex.Numeric,
        top_k: chex.Numeric,
        max_new_tokens: chex.Numeric,
        *,
        capacity: int,
        rows: np.ndarray | None = None,
        bucket: Callable[[int], int] | None = None,
    ) -> SampleOutput:
        """Draws a reply for every key.

        Args:
          params: the model's parameters. Where they lie on a mesh of this process, its batch axes share the rows.
          prompt_tokens: i32 [U, P], padded on the left (see ``pad_prompts``).
          prompt_lengths: i32 [U]; a row of length 0 is padding, finished before it starts.
          keys: typed PRNG keys [B]. A reply depends on its own prompt and key, not on the batch around it.
          temperature: 0 is greedy.
          top_p, top_k: truncation (``drawing.truncate``); 1 and 0 turn it off, and its cost.
          max_new_tokens: at most ``capacity``.
          capacity: static; R, the columns of the output.
          rows: i32 [B], the prompt that each row replies to; None is 0, 1, .., U - 1.
          bucket: the batch size that so many unfinished rows go on in, once that is smaller; None keeps them all.

        Returns:
          SampleOutput as NumPy arrays. ``logprobs`` are those of the tempered, untruncated distribution
          (``drawing.draw``), as ``response_logprobs`` gives them.

        Raises:
          ValueError: shapes that disagree, ``max_new_tokens`` outside 1 .. ``capacity``.
        """
        _check_call(prompt_tokens, prompt_lengths, keys, rows, max_new_tokens, capacity)
        # One dtype each, so that a 1 in place of a 1.0 does not compile anew.
        settings = Settings(jnp.float32(temperature), jnp.float32(top_p), jnp.int32(top_k), jnp.int32(max_new_tokens))
        mesh = mesh_of(params)
        layout = None if mesh is None else Layout(mesh)
        prompt_tokens, prompt_lengths, keys = (_place(x, layout) for x in (prompt_tokens, prompt_lengths, keys))
        prompts = self.read(params, prompt_tokens, prompt_lengths, capacity=capacity, layout=layout)
        replies = self.start(prompts, rows, keys, settings, capacity=capacity, layout=layout)
        return self._finish(params, replies, settings, bucket or (lambda _: len(keys)), layout)

    def _finish(self, params, replies: Replies, settings: Settings, bucket, layout: Layout | None) -> SampleOutput:
        """Decodes until all have ended; those that go on move into a smaller batch when they fit one."""
        rows, out = np.arange(replies.token.shape[0]), None
        while True:
            size = replies.token.shape[0]
            stop_at = next((live for live in range(size - 1, 0, -1) if bucket(live) < size), 0)
            replies = self.decode(params, replies, settings, np.int32(stop_at), layout=layout)
            got = jax.device_get(replies.output)
            out = got if out is None else _insert(out, rows, got)
            live = np.flatnonzero(~got.finished)
            if not live.size or got.turns >= settings.max_new_tokens:
                return out
            # What fills the smaller batch has ended already.
            kept = np.concatenate([live, np.flatnonzero(got.finished)])[: bucket(live.size)]
            rows = rows[kept]
            replies = self.keep(replies, kept, layout=layout)


def make_sampler(config: ModelConfig, eos_ids: Sequence[int], pad_id: int) -> Sampler:
    """The sampler of a model.

    Raises:
      ValueError: bad sizes in ``config``, an id outside the vocabulary, no end-of-sequence id.
    """
    check_model_config(config)
    if not eos_ids:
        raise ValueError("eos_ids is empty; name at least one token that ends a reply")
    for name, token in [("pad_id", pad_id), *(("eos_ids", token) for token in eos_ids)]:
        if not 0 <= token < config.vocab_size:
            raise ValueError(f"{name} has {token}, outside the vocabulary of {config.vocab_size} tokens")
    policy = _Policy(config, tuple(eos_ids), pad_id)
    # What is donated comes back changed in place: a cache exists once.
    return Sampler(
        jax.jit(functools.partial(_read, policy), static_argnames=("capacity", "layout")),
        jax.jit(functools.partial(_start, policy), static_argnames=("capacity", "layout")),
        jax.jit(functools.partial(_decode, policy), static_argnames="layout", donate_argnums=1),
        jax.jit(_keep, static_argnames="layout"),
    )


def _check_call(prompt_tokens, prompt_lengths, keys, rows, max_new_tokens, capacity: int) -> None:
    if prompt_tokens.ndim != 2 or 0 in prompt_tokens.shape:
        raise ValueError(f"prompt_tokens has shape {prompt_tokens.shape}; expected [U, P], both at least 1")
    prompts = prompt_tokens.shape[:1]
    replies = prompts if rows is None else rows.shape
    typed = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    if prompt_lengths.shape != prompts or keys.shape != replies or not typed:
        raise ValueError(
            f"{prompts[0]} prompts have lengths {prompt_lengths.shape}, {replies[0]} replies have keys {keys.shape} of "
            f"type {keys.dtype}; expected one length per prompt and one typed PRNG key per reply"
        )
    if rows is not None and (rows.min() < 0 or rows.max() >= prompts[0]):
        raise ValueError(f"rows names prompts {rows.min()} to {rows.max()}; there are 0 to {prompts[0] - 1}")
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}; expected at least 1")
    if not 1 <= max_new_tokens <= capacity:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; expected 1 to capacity = {capacity}")


def _read(policy: _Policy, params: Params, tokens_UP, lengths_U, *, capacity: int, layout: Layout | None) -> Prompts:
    """Prefill: the prompts' keys and values, with room for the replies, and the logits after the last token only."""
    chex.assert_type([tokens_UP, lengths_U], jnp.int32)
    P = tokens_UP.shape[1]
    place_UP = jnp.arange(P)[None] - (P - lengths_U)[:, None]  # negative on the left padding
    inputs = tokens_UP, jnp.maximum(place_UP, 0), (place_UP >= 0).astype(jnp.int32)
    slots = P + capacity - 1  # the last token drawn is never read
    params = in_compute_dtype(params, policy.config)
    logits_UV, cache = _last_logits(policy.config, layout, params, *inputs, capacity=slots)
    return Prompts(_lay_out(cache, layout), logits_UV, lengths_U)


def _start(policy: _Policy, prompts: Prompts, rows_B, keys_B, settings: Settings, *, capacity: int, layout) -> Replies:
    """Gives each row its prompt's cache, and draws its first token."""
    cache, logits_BV, lengths_B = prompts
    if rows_B is not None:
        cache, logits_BV, lengths_B = _rows_of(cache, rows_B, layout), logits_BV[rows_B], lengths_B[rows_B]
    nothing = SampleOutput(
        tokens=jnp.full((keys_B.size, capacity), policy.pad_id, jnp.int32),
        logprobs=jnp.zeros((keys_B.size, capacity), jnp.float32),
        lengths=jnp.zeros(keys_B.size, jnp.int32),
        finished=lengths_B == 0,
        turns=jnp.zeros((), jnp.int32),
    )
    token_B, output = _draw_turn(policy, nothing, logits_BV, keys_B, settings, layout)
    return Replies(output, token_B, cache, lengths_B, keys_B)


def _decode(policy: _Policy, params: Params, replies: Replies, settings: Settings, stop_at, *, layout) -> Replies:
    """Reads the last tokens and draws the next, until all have ended or ``stop_at`` or fewer rows have long to go."""
    params = in_compute_dtype(params, policy.config)
    last_move = settings.max_new_tokens - _WORTH_MOVING

    def unfinished(loop: Replies):
        live, turns = jnp.sum(~loop.output.finished), loop.output.turns
        moves = (live <= stop_at) & (turns <= last_move)
        return (turns < settings.max_new_tokens) & (live > 0) & ~moves

    def turn(loop: Replies):
        # The token drawn in turn i is read at position length + i.
        positions_B = loop.prompt_lengths + loop.output.turns - 1
        segment_ids_B = (loop.prompt_lengths > 0).astype(jnp.int32)
        inputs_B1 = [x[:, None] for x in (loop.token, positions_B, segment_ids_B)]
        logits_BV, cache = _last_logits(policy.config, layout, params, *inputs_B1, cache=loop.cache)
        token_B, output = _draw_turn(policy, loop.output, logits_BV, loop.keys, settings, layout)
        return loop._replace(output=output, token=token_B, cache=_lay_out(cache, layout))

    return jax.lax.while_loop(unfinished, turn, replies)


def _keep(replies: Replies, rows_C: jax.Array, *, layout) -> Replies:
    """Some of the rows."""
    output, token_B, cache, lengths_B, keys_B = replies
    output = SampleOutput(*(x if x.ndim == 0 else x[rows_C] for x in output))
    return Replies(output, token_B[rows_C], _rows_of(cache, rows_C, layout), lengths_B[rows_C], keys_B[rows_C])


def _place(x: Any, layout: Layout | None) -> Any:
    return x if layout is None else jax.device_put(x, layout.sharding(x.shape, ("batch", *[None] * (x.ndim - 1))))


def _rows_of(cache: KVCache, rows_B, layout: Layout | None) -> KVCache:
    key, value, segment_ids, length = cache
    return _lay_out(KVCache(key[:, rows_B], value[:, rows_B], segment_ids[rows_B], length), layout)


def _lay_out(cache: KVCache, layout: Layout | None) -> KVCache:
    """Rows over the mesh's batch axes, heads over its tensor axis where they divide."""
    axes = None, "batch", "kv_heads", None, None
    key, value = (constrain(layout, x, *axes) for x in (cache.key, cache.value))
    return cache._replace(key=key, value=value)


def in_compute_dtype(params: Params, config: ModelConfig) -> Params:
    """Casts once what the model would cast in every turn; norms work in float32 and keep their scale."""

    def convert(path, leaf):
        return leaf if path[-1].key == "scale" else leaf.astype(config.dtype)

    return jax.tree_util.tree_map_with_path(convert, params)


def _last_logits(config, layout, params, tokens_BT, positions_BT, segment_ids_BT, **kept) -> tuple[Any, KVCache]:
    """Reads T tokens; logits [B, V] of the last only, for a whole prompt's would fill the memory."""
    model, variables = Transformer(config, layout), {"params": params}
    inputs = tokens_BT, positions_BT, segment_ids_BT
    hidden_BTD, cache = cast(tuple[jax.Array, KVCache], model.apply(variables, *inputs, **kept))
    return model.apply(variables, hidden_BTD[:, -1], method="unembed"), cache


def _draw_turn(policy: _Policy, output: SampleOutput, logits_BV, keys_B, settings: Settings, layout):
    """Draws a token for every row and enters it. Rows that had ended take padding."""
    keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, output.turns)
    logits_BV = constrain(layout, logits_BV, "batch", None)  # a row's whole vocabulary on one device
    token_B, logprob_B = draw(keys_B, logits_BV, settings.temperature, settings.top_p, settings.top_k)
    live_B = ~output.finished
    token_B = jnp.where(live_B, token_B, policy.pad_id)
    ended_B = (token_B[:, None] == jnp.array(policy.eos_ids, jnp.int32)[None]).any(axis=-1)
    return token_B, SampleOutput(
        tokens=output.tokens.at[:, output.turns].set(token_B),
        logprobs=output.logprobs.at[:, output.turns].set(jnp.where(live_B, logprob_B, 0.0)),
        lengths=output.lengths + live_B,
        finished=output.finished | (live_B & ended_B),
        turns=output.turns + 1,
    )


def _insert(out: SampleOutput, rows: np.ndarray, part: SampleOutput) -> SampleOutput:
    """``out`` with these rows as they are in ``part``."""
    arrays = {name: np.array(x) for name, x in out._asdict().items()}
    for name in ("tokens", "logprobs", "lengths", "finished"):
        arrays[name][rows] = getattr(part, name)
    return SampleOutput(**arrays | {"turns": part.turns})

"""Attention in plain JAX with memory linear in the length, forward and backward: FlashAttention-2 (arXiv 2307.08691).

Scores exist for one block of queries and one of keys at a time. The backward pass keeps the output and each query's
logsumexp, and makes the scores again.

Shapes beyond those of ``attention.py``: ``I`` blocks of ``P`` queries, ``J`` blocks of ``R`` keys, ``G = H / Q``.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

SAVED = "attention"  # name of what the backward pass keeps, for a rematerialisation policy

_LEAST = -1e30  # where the running maximum starts; finite, so that a query that sees nothing gives 0 and no NaN


def block_size(length: int, largest: int, multiple: int = 8) -> int:
    """Size of equal blocks, a multiple of ``multiple``, that cover ``length`` with little padding."""
    count = -(-length // largest)
    return -(-length // (count * multiple)) * multiple


def attend(
    q_BTHF, k_BSQF, v_BSQF, query_segments_BT, key_segments_BS, start: chex.Numeric = 0, *, block: int = 256
) -> jax.Array:
    """``attention.attend`` in blocks of at most ``block`` queries and keys; 0 where a token sees nothing."""
    B, T, H, F = q_BTHF.shape
    S, Q = k_BSQF.shape[1:3]
    P, R = block_size(T, block), block_size(S, block)

    def cut(x, size):  # [blocks, B, size, ..]; what is added belongs to segment 0
        x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % size)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(B, -1, size, *x.shape[2:]), 1, 0)

    q_IBQGPF = jnp.moveaxis(cut(q_BTHF.reshape(B, T, Q, H // Q, F), P), 2, 4)
    k_JBQRF, v_JBQRF = (jnp.swapaxes(cut(x, R), 2, 3) for x in (k_BSQF, v_BSQF))
    segments = cut(query_segments_BT, P), cut(key_segments_BS, R)
    out_IBQGPF = _attend(q_IBQGPF, k_JBQRF, v_JBQRF, *segments, jnp.asarray(start, jnp.int32))
    return jnp.transpose(out_IBQGPF, (1, 0, 4, 2, 3, 5)).reshape(B, -1, H, F)[:, :T]


def _key_blocks(query_segments_IBP, key_segments_JBR, start) -> tuple[jax.Array, jax.Array]:
    """First and one past the last block of keys that each block of queries reads: i32 [I], i32 [I].

    A block of keys is read where, in some row, it reaches back to the diagonal and its range of segments meets the
    queries'. That may be too many, never too few.
    """

    def segment_range(segments):  # padding: an empty range
        return jnp.min(jnp.where(segments > 0, segments, jnp.iinfo(jnp.int32).max), axis=-1), jnp.max(segments, axis=-1)

    (low_IB, high_IB), (low_JB, high_JB) = segment_range(query_segments_IBP), segment_range(key_segments_JBR)
    meet_IJB = (low_IB[:, None] <= high_JB[None]) & (low_JB[None] <= high_IB[:, None])
    J, _, R = key_segments_JBR.shape
    stop_slot_I = start + (jnp.arange(len(low_IB)) + 1) * query_segments_IBP.shape[2]
    causal_IJ = jnp.arange(J)[None, :] * R < stop_slot_I[:, None]
    read_IJ = jnp.any(meet_IJB, axis=-1) & causal_IJ
    first_I = jnp.argmax(read_IJ, axis=1)
    stop_I = jnp.where(jnp.any(read_IJ, axis=1), J - jnp.argmax(read_IJ[:, ::-1], axis=1), 0)
    return first_I, stop_I


def visible(query_segments_BT: jax.Array, key_segments_BS: jax.Array, start: chex.Numeric = 0) -> jax.Array:
    """Which slots each token sees, bool [B, T, S]: at or before slot ``start + t``, of its segment, not padding.

    ``start`` counts from the first key: of a block of keys after the queries it is negative.
    """
    token_T = jnp.arange(query_segments_BT.shape[1]) + start
    causal_TS = jnp.arange(key_segments_BS.shape[1])[None, :] <= token_T[:, None]
    same_BTS = query_segments_BT[:, :, None] == key_segments_BS[:, None, :]
    return causal_TS[None] & same_BTS & (key_segments_BS > 0)[:, None, :]


def _forward(q_IBQGPF, k_JBQRF, v_JBQRF, query_segments_IBP, key_segments_JBR, start):
    """Output [I, B, Q, G, P, F] and logsumexp f32 [I, B, Q, G, P]."""
    P, R = query_segments_IBP.shape[-1], key_segments_JBR.shape[-1]
    scale = q_IBQGPF.shape[-1] ** -0.5

    def query_block(inputs):
        i, first, stop, q, segments = inputs

        def key_block(j, carry):
            out, largest, total = carry
            seen_BPR = visible(segments, key_segments_JBR[j], start + i * P - j * R)
            scores = _product("bqgpf,bqrf->bqgpr", q, k_JBQRF[j]) * scale
            scores = jnp.where(seen_BPR[:, None, None], scores, -jnp.inf)
            new_largest = jnp.maximum(largest, jnp.max(scores, axis=-1))
            weights, shrink = jnp.exp(scores - new_largest[..., None]), jnp.exp(largest - new_largest)
            more = _product("bqgpr,bqrf->bqgpf", weights.astype(q.dtype), v_JBQRF[j])
            return out * shrink[..., None] + more, new_largest, total * shrink + jnp.sum(weights, axis=-1)

        zeros = jnp.zeros(q.shape[:-1], jnp.float32)
        carry = jnp.zeros(q.shape, jnp.float32), zeros + _LEAST, zeros
        out, largest, total = jax.lax.fori_loop(first, stop, key_block, carry)
        total = jnp.where(total > 0, total, 1.0)
        return (out / total[..., None]).astype(q.dtype), largest + jnp.log(total)

    blocks = _key_blocks(query_segments_IBP, key_segments_JBR, start)
    return jax.lax.map(query_block, (jnp.arange(q_IBQGPF.shape[0]), *blocks, q_IBQGPF, query_segments_IBP))


def _product(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _attend(q_IBQGPF, k_JBQRF, v_JBQRF, query_segments_IBP, key_segments_JBR, start):
    return _forward(q_IBQGPF, k_JBQRF, v_JBQRF, query_segments_IBP, key_segments_JBR, start)[0]


def _attend_forward(*inputs):
    out, logsumexp = (checkpoint_name(x, SAVED) for x in _forward(*inputs))
    return out, (inputs, out, logsumexp)


def _attend_backward(kept, dout_IBQGPF):
    """With weights w, ``dv = w^T dout``; ``ds = w * (dout v^T - sum(dout * out))``; ``dq = ds k``, ``dk = ds^T q``.

    w^T and ds^T are what is made, [R, G P] for each head of keys, and dq^T of k^T: no product has to transpose
    something as large as the scores.
    """
    (q_IBQGPF, k_JBQRF, v_JBQRF, query_segments_IBP, key_segments_JBR, start), out_IBQGPF, logsumexp_IBQGP = kept
    P, R = query_segments_IBP.shape[-1], key_segments_JBR.shape[-1]
    dtype, scale = q_IBQGPF.dtype, q_IBQGPF.shape[-1] ** -0.5
    k_JBQFR = jnp.swapaxes(k_JBQRF, 3, 4)

    def query_block(carry, inputs):
        i, first, stop, q, segments, out, logsumexp, dout = inputs
        inner = jnp.sum(out.astype(jnp.float32) * dout, axis=-1)

        def key_block(j, carry):
            dq, dk_JBQRF, dv_JBQRF = carry
            k, v = k_JBQRF[j], v_JBQRF[j]
            seen_BPR = visible(segments, key_segments_JBR[j], start + i * P - j * R)
            scores = _product("bqrf,bqgpf->bqrgp", k, q) * scale
            scores = jnp.where(jnp.swapaxes(seen_BPR, 1, 2)[:, None, :, None], scores, -jnp.inf)
            weights = jnp.exp(scores - logsumexp[:, :, None])
            dscores = weights * (_product("bqrf,bqgpf->bqrgp", v, dout) - inner[:, :, None]) * scale
            weights, dscores = weights.astype(dtype), dscores.astype(dtype)
            dq = dq + jnp.moveaxis(_product("bqfr,bqrgp->bqfgp", k_JBQFR[j], dscores), 2, -1)
            dk_JBQRF = dk_JBQRF.at[j].add(_product("bqrgp,bqgpf->bqrf", dscores, q))
            dv_JBQRF = dv_JBQRF.at[j].add(_product("bqrgp,bqgpf->bqrf", weights, dout))
            return dq, dk_JBQRF, dv_JBQRF

        dq, *carry = jax.lax.fori_loop(first, stop, key_block, (jnp.zeros(q.shape, jnp.float32), *carry))
        return tuple(carry), dq.astype(dtype)

    blocks = _key_blocks(query_segments_IBP, key_segments_JBR, start)
    each = (jnp.arange(q_IBQGPF.shape[0]), *blocks, q_IBQGPF, query_segments_IBP)
    zeros = jnp.zeros(k_JBQRF.shape, jnp.float32)
    (dk, dv), dq = jax.lax.scan(query_block, (zeros, zeros), (*each, out_IBQGPF, logsumexp_IBQGP, dout_IBQGPF))
    return dq, dk.astype(k_JBQRF.dtype), dv.astype(v_JBQRF.dtype), None, None, None


_attend.defvjp(_attend_forward, _attend_backward)

"""Grouped-query causal attention over packed rows, behind one switch; all but "plain" need memory linear in the row.

``out_t = sum_s w_ts v_s`` with ``w_t = softmax_s(q_t k_s / sqrt(F))`` over the slots s that token t sees: those at or
before its own, of its own segment. Segment 0 is padding and is seen by none.

Shapes beyond the legend of ``types.py``: ``S`` slots of keys and values, ``Q`` key/value heads (each serves
``H / Q`` query heads), ``F`` width of a head.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from hgpo_jax.policy import blockwise_attention
from hgpo_jax.policy.blockwise_attention import SAVED, visible
from hgpo_jax.types import Array

IMPLEMENTATIONS = ("plain", "blockwise", "cudnn", "splash")
_NEEDS = {"cudnn": "gpu", "splash": "tpu"}
_SHORT = 128  # rows up to here are one block of "blockwise", and plain attention does the same with less code
_CPU_BLOCK, _BLOCK = 256, 512  # queries and keys: what a CPU's cache holds, and the larger products others like
_LANES = 128  # what Pallas on a TPU wants widths and blocks to be a multiple of
_CUDNN_QUERIES = 1024  # queries per call of cuDNN
_CUDNN_HIDDEN = -float(2 << 40)  # bias of a slot that isn't seen, the value that JAX gives cuDNN for a mask


def choose_attention(attention: str, platform: str, length: int, dtype: str) -> str:
    """The implementation that ``ModelConfig.attention`` means for whole rows of ``length`` tokens.

    Args:
      attention: one of ``IMPLEMENTATIONS``, which stays, or "auto".
      platform: "cpu", "gpu" or "tpu": ``device.platform`` of where it will run.
      length: tokens in a row.
      dtype: of the computation, "float32" or "bfloat16".

    Returns:
      One of ``IMPLEMENTATIONS``. For "auto": "plain" for rows of a block or less; otherwise "splash" on a TPU,
      "cudnn" on a GPU in bfloat16, the only of the two dtypes that it takes, and else "blockwise".
    """
    if attention != "auto":
        return attention
    if length <= _SHORT:
        return "plain"
    if platform == "tpu":
        return "splash"
    return "cudnn" if platform == "gpu" and dtype == "bfloat16" else "blockwise"


def attend(
    q_BTHF: jax.Array,
    k_BSQF: jax.Array,
    v_BSQF: jax.Array,
    query_segments_BT: Array,
    key_segments_BS: Array,
    *,
    start: chex.Numeric = 0,
    implementation: str = "plain",
    mesh: Mesh | None = None,
    batch_axes: str | tuple[str, ...] | None = None,
    heads_axis: str | None = None,
    block: int | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Attention of T queries, which stand in slots ``start`` to ``start + T - 1``, over S slots of keys and values.

    Scores and softmax are float32 whatever the inputs are. A token that may see nothing, padding, gets something
    finite that nobody should read.

    "plain" makes all T x S scores; it is the one for decoding and short rows. "blockwise" is FlashAttention-2
    (arXiv 2307.08691) in plain JAX: memory linear in T and S, blocks of keys that no query sees are skipped. "cudnn"
    (GPU) and "splash" (the Pallas kernel for TPUs) take whole rows only: ``start`` 0 and the same T slots of keys.

    Args:
      q_BTHF: f32 or bf16 [B, T, H, F].
      k_BSQF, v_BSQF: same dtype [B, S, Q, F]; Q divides H, and query head h reads key/value head ``h // (H / Q)``.
      query_segments_BT, key_segments_BS: i32; 0 is padding, and a slot not yet written.
      start: slot of the first query, static or traced.
      implementation: one of ``IMPLEMENTATIONS``.
      mesh: where the arrays are sharded. "plain", and "blockwise" with a cache or with sizes that the mesh does not
        divide, leave that to the compiler; otherwise each device attends for its own rows and heads.
      batch_axes: mesh axes that B is divided over.
      heads_axis: mesh axis that H is divided over, and Q where it divides Q; otherwise key/value heads are repeated.
      block: the most queries, and keys, that "blockwise" holds scores of at once; None: 256 on a CPU, else 512.
      interpret: run "splash" without a TPU, slowly: for tests.

    Returns:
      [B, T, H, F] in q's dtype.

    Raises:
      ValueError: an unknown implementation, one that the platform lacks, heads or rows that the mesh does not divide,
        a cache where whole rows are needed, float32 with "cudnn".
    """
    # The mesh says where the program will run: it may be compiled on a host without such a device.
    platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    _check_platform(implementation, platform, interpret)
    _check_shapes(q_BTHF, k_BSQF, v_BSQF, query_segments_BT, key_segments_BS)
    query_segments_BT, key_segments_BS = jnp.asarray(query_segments_BT), jnp.asarray(key_segments_BS)
    B, T, H, _ = q_BTHF.shape
    if isinstance(start, int):  # slots after the last query are seen by none
        k_BSQF, v_BSQF, key_segments_BS = (x[:, : start + T] for x in (k_BSQF, v_BSQF, key_segments_BS))
    whole_rows = isinstance(start, int) and start == 0 and k_BSQF.shape[1] == T
    divided = mesh is not None and B % _size(mesh, batch_axes) == 0 and H % _size(mesh, heads_axis) == 0
    blockwise = functools.partial(
        blockwise_attention.attend, block=block or (_CPU_BLOCK if platform == "cpu" else _BLOCK)
    )
    if implementation == "plain" or (implementation == "blockwise" and not (whole_rows and divided)):
        function = plain if implementation == "plain" else blockwise
        return function(q_BTHF, k_BSQF, v_BSQF, query_segments_BT, key_segments_BS, start)
    if not whole_rows:
        raise ValueError(f"attention={implementation!r} reads whole rows, not a cache; use 'plain' or 'blockwise'")
    kernels: dict[str, Callable] = {
        "blockwise": lambda q, k, v, segments: blockwise(q, k, v, segments, segments),
        "cudnn": cudnn,
        "splash": functools.partial(splash, interpret=interpret),
    }
    return _per_shard(kernels[implementation], q_BTHF, k_BSQF, v_BSQF, query_segments_BT, mesh, batch_axes, heads_axis)


def _check_shapes(q_BTHF, k_BSQF, v_BSQF, query_segments_BT, key_segments_BS) -> None:
    chex.assert_rank([q_BTHF, k_BSQF, v_BSQF], 4)
    (B, T, H, F), (_, S, Q, _) = q_BTHF.shape, k_BSQF.shape
    chex.assert_shape([k_BSQF, v_BSQF], (B, S, Q, F))
    chex.assert_shape([query_segments_BT, key_segments_BS], [(B, T), (B, S)])
    if H % Q:
        raise ValueError(f"{H} query heads are not a multiple of {Q} key/value heads")


def _check_platform(implementation: str, platform: str, interpret: bool) -> None:
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"attention={implementation!r} is unknown; use one of {', '.join(IMPLEMENTATIONS)}")
    needed = _NEEDS.get(implementation)
    if needed is None or (interpret and implementation == "splash"):
        return
    if platform != needed:
        raise ValueError(f"attention={implementation!r} needs a {needed.upper()}, not a {platform}; use 'blockwise'")


def plain(q_BTHF, k_BSQF, v_BSQF, query_segments_BT, key_segments_BS, start: chex.Numeric = 0) -> jax.Array:
    """`attend` with all scores at once: memory B H T S. Where nothing is seen: the mean of all values."""
    B, T, H, F = q_BTHF.shape
    Q = k_BSQF.shape[2]
    mask_BTS = visible(query_segments_BT, key_segments_BS, start)
    q_BTQGF = q_BTHF.reshape(B, T, Q, H // Q, F)
    scores = jnp.einsum("btqgf,bsqf->bqgts", q_BTQGF, k_BSQF, preferred_element_type=jnp.float32) * F**-0.5
    scores = jnp.where(mask_BTS[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v_BSQF.dtype)
    return jnp.einsum("bqgts,bsqf->btqgf", weights, v_BSQF).reshape(B, T, H, F)


def attend_one(q_B1HF, k_BQFS, v_BQSF, query_segments_B1, key_segments_BS) -> jax.Array:
    """`plain` of one query a row, which stands after all written slots: [B, 1, H, F].

    Keys lie with the slots last and values with the width last, as the two products read them: a cache in this order is
    not transposed in every turn.
    """
    B, _, H, F = q_B1HF.shape
    Q, S = k_BQFS.shape[1], k_BQFS.shape[3]
    chex.assert_shape([k_BQFS, v_BQSF, key_segments_BS], [(B, Q, F, S), (B, Q, S, F), (B, S)])
    q_BQGF = q_B1HF.reshape(B, Q, H // Q, F)
    scores = jnp.einsum("bqgf,bqfs->bqgs", q_BQGF, k_BQFS, preferred_element_type=jnp.float32) * F**-0.5
    seen_BS = (key_segments_BS == query_segments_B1) & (key_segments_BS > 0)
    scores = jnp.where(seen_BS[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v_BQSF.dtype)
    return jnp.einsum("bqgs,bqsf->bqgf", weights, v_BQSF).reshape(B, 1, H, F)


def splash(q_BTHF, k_BTQF, v_BTQF, segments_BT, *, interpret: bool = False) -> jax.Array:
    """`attend` over whole rows on one TPU by JAX's Pallas kernel. Padding sees the padding before it."""
    # Imported here: experimental, so that only those who use it depend on where JAX keeps it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    T, H, F = q_BTHF.shape[1:]
    size = blockwise_attention.block_size(T, _BLOCK, multiple=_LANES)
    length = -(-T // size) * size
    q_BTHF = (q_BTHF.astype(jnp.float32) * F**-0.5).astype(q_BTHF.dtype)  # the kernel doesn't scale

    def arrange(x_BTXF):  # [B, heads, T, F], T in whole blocks and F in whole lanes
        padding = ((0, 0), (0, length - T), (0, 0), (0, -F % _LANES))
        return jnp.swapaxes(jnp.pad(x_BTXF, padding), 1, 2)

    segments = jnp.pad(segments_BT, ((0, 0), (0, length - T)))
    # Not the fused backward kernel: it holds a dq per block of keys, which is quadratic in T.
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    sizes: dict[str, Any] = {f"block_{name}": size for name in names}
    attention = kernel.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((length, length))] * H),
        block_sizes=kernel.BlockSizes(**sizes),
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=SAVED,
        interpret=interpret,
    )
    out: Any = jax.vmap(attention)(*map(arrange, (q_BTHF, k_BTQF, v_BTQF)), kernel.SegmentIds(segments, segments))
    return jnp.swapaxes(out, 1, 2)[:, :T, :, :F]


def cudnn(
    q_BTHF,
    k_BTQF,
    v_BTQF,
    segments_BT,
    *,
    implementation: Literal["cudnn", "xla"] = "cudnn",
    queries: int = _CUDNN_QUERIES,
) -> jax.Array:
    """`attend` over whole rows on one GPU by cuDNN's flash attention, one call per ``queries`` queries.

    cuDNN knows causal and padded rows but not packed ones (before Hopper), so who sees whom is an additive bias. To
    keep that linear in T it spans one call's queries, 2 B queries T bytes, and the backward pass makes it again.
    Each call sees only the keys up to its last query, so that about half of the work above the diagonal is saved.
    """
    if implementation == "cudnn" and q_BTHF.dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"attention='cudnn' takes bfloat16, not {q_BTHF.dtype}; set dtype or use 'blockwise'")
    T = q_BTHF.shape[1]
    pad = T % 2  # with a bias cuDNN's backward pass wants even lengths
    q, k, v = (jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, 0))) for x in (q_BTHF, k_BTQF, v_BTQF))
    segments = jnp.pad(segments_BT, ((0, 0), (0, pad)))

    @functools.partial(jax.checkpoint, policy=_is_cudnn, static_argnums=(4, 5))
    def attend_some(q, k, v, segments, start, stop):
        seen = visible(segments[:, start:stop], segments[:, :stop], start)
        own = jnp.arange(stop)[None, :] == jnp.arange(start, stop)[:, None]  # so that padding sees something
        bias = jnp.where(seen | own[None], 0.0, _CUDNN_HIDDEN).astype(q.dtype)[:, None]
        return jax.nn.dot_product_attention(
            q[:, start:stop], k[:, :stop], v[:, :stop], bias, implementation=implementation
        )

    bounds = [*range(0, T + pad, queries), T + pad]
    parts = [attend_some(q, k, v, segments, *pair) for pair in itertools.pairwise(bounds)]
    return jnp.concatenate(parts, axis=1)[:, :T]


def _size(mesh: Mesh, axes: str | tuple[str, ...] | None) -> int:
    return math.prod(mesh.shape[name] for name in ((axes,) if isinstance(axes, str) else axes or ()))


def _is_cudnn(primitive, *_, **__) -> bool:
    """What the backward pass keeps of a call of cuDNN: output and logsumexp. The rest is cheap to make again."""
    return primitive.name.startswith("dot_product_attention_fwd")


def _per_shard(kernel: Callable, q_BTHF, k_BTQF, v_BTQF, segments_BT, mesh, batch_axes, heads_axis) -> jax.Array:
    """Runs a kernel on every device's rows and heads, which need nothing of the others'.

    The compiler cannot divide cuDNN and Pallas. It could divide "blockwise", but where devices share a key/value head
    it would add up their gradients once per block.
    """
    if mesh is None:
        return kernel(q_BTHF, k_BTQF, v_BTQF, segments_BT)
    B, _, H, _ = q_BTHF.shape
    rows, shards = _size(mesh, batch_axes), _size(mesh, heads_axis)
    if B % rows or H % shards:
        raise ValueError(
            f"a mesh of {dict(mesh.shape)} does not divide {B} rows by {rows} or {H} heads by {shards}; "
            "change the mesh, or use attention='blockwise'"
        )
    Q = k_BTQF.shape[2]
    # The fewest copies of each key/value head that leave every shard those that its query heads read.
    copies = next(n for n in range(1, H // Q + 1) if H // Q % n == 0 and Q * n % shards == 0)
    k_BTQF, v_BTQF = (jnp.repeat(x, copies, axis=2) for x in (k_BTQF, v_BTQF))
    rows_heads, rows_only = PartitionSpec(batch_axes, None, heads_axis), PartitionSpec(batch_axes)
    return jax.shard_map(
        kernel, mesh=mesh, in_specs=(*[rows_heads] * 3, rows_only), out_specs=rows_heads, check_vma=False
    )(q_BTHF, k_BTQF, v_BTQF, segments_BT)

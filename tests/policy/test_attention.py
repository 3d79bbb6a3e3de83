import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from hgpo_jax.policy import attention
from hgpo_jax.policy.attention import attend, choose_attention

SPLASH = {"implementation": "splash", "interpret": True}


def example(B=2, T=37, H=4, Q=2, F=8, S=None, seed=0, dtype="float32"):
    """Normal q, k, v; segment ids i32 [B, S] of packed rows, padded on the left, the right or wholly; weights."""
    random = np.random.default_rng(seed)
    S = S or T
    q, k, v, weight = (
        jnp.asarray(random.normal(size=shape), dtype)
        for shape in ((B, T, H, F), (B, S, Q, F), (B, S, Q, F), (B, T, H, F))
    )
    cuts = np.sort(random.integers(1, S + 1, (B, 3)), axis=1)
    segments = np.stack([np.searchsorted(cut, np.arange(S), side="right") for cut in cuts]).astype(np.int32)
    segments[1::3] = np.where(segments[1::3] == 3, 0, segments[1::3] + 1)  # padding on the right
    segments[2::3] = 0
    return q, k, v, segments, weight


def slow_attend(q, k, v, query_segments, key_segments, start=0):
    """The definition, one token and head at a time, in float64; 0 where nothing is seen."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, T, H, F), Q = q.shape, k.shape[2]
    out = np.zeros(q.shape)
    for b, t, h in np.ndindex(B, T, H):
        slots = [s for s in range(start + t + 1) if 0 < key_segments[b, s] == query_segments[b, t]]
        if slots:
            scores = k[b, slots, h // (H // Q)] @ q[b, t, h] / np.sqrt(F)
            weights = np.exp(scores - scores.max())
            out[b, t, h] = weights / weights.sum() @ v[b, slots, h // (H // Q)]
    return out


def seen(out, segments):
    return jnp.where((segments > 0)[..., None, None], out, 0)


def output_and_gradients(attention_of, q, k, v, segments, weight):
    """Output where tokens see something, and the gradients of its weighted sum."""

    def loss(q, k, v):
        out = seen(attention_of(q, k, v), jnp.asarray(segments))
        return jnp.sum((out * weight).astype(jnp.float32)), out

    gradients, out = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
    return out, *gradients


def assert_like_plain(example, atol=1e-5, **chosen):
    q, k, v, segments, weight = example
    of = {
        name: functools.partial(attend, query_segments_BT=segments, key_segments_BS=segments, **options)
        for name, options in {"plain": {}, "chosen": chosen}.items()
    }
    want, got = (output_and_gradients(of[name], q, k, v, segments, weight) for name in ("plain", "chosen"))
    chex.assert_trees_all_equal_shapes_and_dtypes(got, want)
    chex.assert_tree_all_finite(got)
    for got_one, want_one in zip(got, want, strict=True):
        np.testing.assert_allclose(np.float32(got_one), np.float32(want_one), atol=atol, rtol=atol)


@pytest.mark.parametrize("options", [{}, {"implementation": "blockwise", "block": 8}, SPLASH], ids=str)
def test_agrees_with_the_definition(options):
    q, k, v, segments, _ = example(B=3, T=19)
    out = jax.jit(functools.partial(attend, **options))(q, k, v, segments, segments)
    chex.assert_shape(out, (3, 19, 4, 8))
    np.testing.assert_allclose(seen(out, segments), slow_attend(q, k, v, segments, segments), atol=1e-6)


def test_by_hand():
    """Scores of the second token: 0 and ln 3, so that it takes 1/4 of the first value and 3/4 of its own."""
    q = jnp.ones((1, 3, 1, 1))
    k, v = (jnp.array(x, jnp.float32).reshape(1, 3, 1, 1) for x in ([0, np.log(3), 5], [4, 8, 100]))
    segments = jnp.array([[1, 1, 2]])
    for implementation in ("plain", "blockwise"):
        out = attend(q, k, v, segments, segments, implementation=implementation)
        np.testing.assert_allclose(out[0, :, 0, 0], [4, 7, 100], rtol=1e-6)


SHAPES = {
    "one kv head": {"B": 3, "T": 37, "H": 3, "Q": 1, "F": 8},
    "grouped": {"B": 3, "T": 64, "H": 6, "Q": 2, "F": 16},
    "ungrouped": {"B": 2, "T": 50, "H": 2, "Q": 2, "F": 8},
    "less than a block": {"B": 1, "T": 5, "H": 2, "Q": 1, "F": 2},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_blockwise_equals_plain(shape):
    assert_like_plain(example(**shape), implementation="blockwise", block=16)


def test_blockwise_equals_plain_in_bfloat16():
    assert_like_plain(example(T=64, dtype="bfloat16"), atol=0.05, implementation="blockwise", block=16)


@functools.partial(jax.jit, static_argnames=("implementation", "block"))
def with_cache(q, k, v, query_segments, segments, start, weight, implementation, block=8):
    options = {"start": start, "implementation": implementation, "block": block}
    of = functools.partial(attend, query_segments_BT=query_segments, key_segments_BS=segments, **options)
    return output_and_gradients(of, q, k, v, query_segments, weight)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**16), st.integers(0, 7))
def test_blockwise_reads_a_cache(seed, start):
    """Any segments, not only packed ones; slots after the queries hold what nobody sees."""
    q, k, v, _, weight = example(T=19, S=26, seed=seed)
    segments = np.random.default_rng(seed).integers(0, 4, (2, 26)).astype(np.int32)
    arrays = q, k, v, segments[:, start : start + 19], segments, start, weight
    got = with_cache(*arrays, "blockwise")
    chex.assert_trees_all_close(got, with_cache(*arrays, "plain"), atol=1e-5)
    np.testing.assert_allclose(got[0], slow_attend(*arrays[:6]), atol=1e-5)


@pytest.mark.parametrize("Q", [1, 2, 4])
def test_one_query_reads_the_written_slots(Q):
    """Two rows of 4 heads, 6 of 9 slots written; the second row is padded on the left, the third is all padding."""
    rng = np.random.default_rng(Q)
    q, k, v = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 1, 4, 8), (3, 9, Q, 8), (3, 9, Q, 8)))
    keys = np.array([[1] * 6 + [0] * 3, [0] * 2 + [1] * 4 + [0] * 3, [0] * 9])
    query = np.array([[1], [1], [0]])
    got = jax.jit(attention.attend_one)(q, np.moveaxis(k, 1, 3), np.moveaxis(v, 1, 2), query, keys)
    chex.assert_tree_all_finite(got)
    np.testing.assert_allclose(got[:2], slow_attend(q, k, v, query, keys, start=5)[:2], atol=1e-5)


def test_slots_after_a_static_start_are_left_out():
    q, k, v, segments, _ = example(T=5, S=26, seed=1)
    segments = np.maximum(segments, 1)
    short = [attend(q, k[:, :n], v[:, :n], segments[:, 3:8], segments[:, :n], start=3) for n in (8, 26)]
    chex.assert_trees_all_equal(*short)
    text = str(jax.make_jaxpr(lambda k: attend(q, k, k, segments[:, 3:8], segments, start=3))(k))
    assert ",8]" in text  # the scores
    assert "2,2,5,26]" not in text


def test_splash_equals_plain():
    assert_like_plain(example(B=3, T=130, H=6, Q=2, F=16), **SPLASH)


def test_calls_of_cudnn_equal_plain():
    """What surrounds cuDNN, with XLA in its place, on a length that is odd."""
    q, k, v, segments, weight = example(B=3, T=19)
    calls = functools.partial(attention.cudnn, segments_BT=jnp.asarray(segments), implementation="xla", queries=16)
    got = output_and_gradients(calls, q, k, v, segments, weight)
    plain = functools.partial(attend, query_segments_BT=segments, key_segments_BS=segments)
    chex.assert_trees_all_close(got, output_and_gradients(plain, q, k, v, segments, weight), atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"implementation": "blockwise"}, SPLASH], ids=str)
def test_rows_of_padding_give_finite_values_and_gradients(options):
    q, k, v, _, weight = example(B=1, T=16)
    segments = jnp.zeros((1, 16), jnp.int32)

    def loss(q, k, v):
        return jnp.sum(attend(q, k, v, segments, segments, **options) * weight)

    chex.assert_tree_all_finite(jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v))


def temporary_bytes(implementation, T):
    q, kv = jax.ShapeDtypeStruct((1, T, 4, 16), "float32"), jax.ShapeDtypeStruct((1, T, 2, 16), "float32")
    segments = jax.ShapeDtypeStruct((1, T), "int32")

    def loss(q, k, v, segments):
        return jnp.sum(attend(q, k, v, segments, segments, implementation=implementation, block=128))

    analysis = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, kv, kv, segments).compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


def test_memory_is_linear_in_the_length():
    assert temporary_bytes("plain", 2048) / temporary_bytes("plain", 1024) > 3.5
    blockwise = [temporary_bytes("blockwise", T) for T in (1024, 2048, 4096)]
    assert blockwise[1] < 2.1 * blockwise[0]
    assert blockwise[2] < 2.1 * blockwise[1]
    assert blockwise[2] < temporary_bytes("plain", 1024)


def sharded(mesh, example, heads_axis="tensor"):
    q, k, v, segments, weight = example
    kv_axis = heads_axis if k.shape[2] % mesh.shape[heads_axis] == 0 else None
    specs = [(("data",), None, heads_axis), (("data",), None, kv_axis), (("data",), None, kv_axis), (("data",),)]
    arrays = [
        jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
        for x, spec in zip((q, k, v, segments), specs, strict=True)
    ]
    return *arrays, jax.device_put(weight, arrays[0].sharding)


def mesh_of(data, tensor):
    axes = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((data, tensor), ("data", "tensor"), axes, devices=jax.devices()[: data * tensor])


@functools.partial(jax.jit, static_argnames="options")
def attended(q, k, v, segments, weight, options):
    def of(q, k, v):
        return attend(q, k, v, segments, segments, **dict(options))

    return output_and_gradients(of, q, k, v, segments, weight)


@pytest.mark.parametrize("Q", [2, 1])
@pytest.mark.parametrize("options", [{"implementation": "blockwise", "block": 8}, SPLASH], ids=str)
def test_equal_on_a_mesh(options, Q):
    """With fewer key/value heads than the mesh axis has devices, each device holds those its query heads read."""
    mesh, rows = mesh_of(2, 2), example(B=4, T=24, Q=Q)
    options = {**options, "mesh": mesh, "batch_axes": ("data",), "heads_axis": "tensor"}
    got = attended(*sharded(mesh, rows), tuple(options.items()))
    chex.assert_trees_all_close(jax.device_get(got), jax.device_get(attended(*rows, ())), atol=1e-5)


def test_splash_repeats_just_the_heads_that_a_mesh_needs():
    mesh, rows = mesh_of(1, 4), example(B=1, T=16, H=8, Q=2)
    options = {**SPLASH, "mesh": mesh, "batch_axes": "data", "heads_axis": "tensor"}
    q, k, v, segments, _ = sharded(mesh, rows)
    got = jax.jit(functools.partial(attend, **options))(q, k, v, segments, segments)
    want = attend(*rows[:3], rows[3], rows[3])
    np.testing.assert_allclose(seen(got, segments), seen(want, rows[3]), atol=1e-5)


@pytest.mark.parametrize("per_shard", [False, True], ids=["by the compiler", "per shard"])
def test_blockwise_moves_no_rows_or_heads(per_shard):
    mesh = mesh_of(4, 2)
    options = {"implementation": "blockwise", "block": 8}
    if per_shard:
        options |= {"mesh": mesh, "batch_axes": "data", "heads_axis": "tensor"}
    text = attended.lower(*sharded(mesh, example(B=4, T=32)), tuple(options.items())).compile().as_text() or ""
    assert "f32[1,32,2,8]" in text  # a device's part of q
    assert not re.search(r" (all-gather|all-to-all|collective-permute)(-start)?\(", text)
    assert bool(re.search(r" all-reduce(-start)?\(", text)) == (not per_shard)  # which blocks are read, in any row


def test_blockwise_takes_heads_that_a_mesh_does_not_divide():
    q, k, v, segments, _ = example(T=8, H=3, Q=1)
    options = {"implementation": "blockwise", "mesh": mesh_of(1, 2), "heads_axis": "tensor"}
    got = jax.jit(functools.partial(attend, **options))(q, k, v, segments, segments)
    np.testing.assert_allclose(seen(got, segments), slow_attend(q, k, v, segments, segments), atol=1e-5)


def test_choice():
    choose = functools.partial(choose_attention, "auto", length=4608, dtype="bfloat16")
    assert [choose(platform) for platform in ("cpu", "gpu", "tpu")] == ["blockwise", "cudnn", "splash"]
    assert choose("gpu", dtype="float32") == "blockwise"
    assert [choose(platform, length=64) for platform in ("cpu", "gpu", "tpu")] == ["plain"] * 3
    assert choose_attention("splash", "cpu", 64, "float32") == "splash"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"implementation": "flash"}, "'flash' is unknown; use one of plain, blockwise, cudnn, splash"),
        ({"implementation": "cudnn"}, "attention='cudnn' needs a GPU, not a cpu; use 'blockwise'"),
        ({"implementation": "splash"}, "attention='splash' needs a TPU, not a cpu; use 'blockwise'"),
        ({**SPLASH, "start": 3}, "reads whole rows, not a cache"),
        ({**SPLASH, "start": jnp.int32(0)}, "reads whole rows, not a cache"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused(options, message):
    q, k, v, segments, _ = example(T=8)
    with pytest.raises(ValueError, match=message):
        attend(q, k, v, segments, segments, **options)


def test_sizes_that_do_not_fit_are_refused():
    q, k, v, segments, _ = example(T=8, H=3, Q=1)
    with pytest.raises(ValueError, match="3 heads by 2"):
        attend(q, k, v, segments, segments, mesh=mesh_of(1, 2), heads_axis="tensor", **SPLASH)
    with pytest.raises(ValueError, match="2 rows by 4"):
        attend(q, k, v, segments, segments, mesh=mesh_of(4, 1), batch_axes="data", **SPLASH)
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2"):
        attend(q, jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2), segments, segments)
    with pytest.raises(ValueError, match="takes bfloat16, not float32"):
        attention.cudnn(q, k, v, segments)

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_decoder import TINY, B, T, random_params, reference_logits, rows

from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.transformer import (
    Transformer,
    abstract_params,
    init_cache,
    init_params,
    rotate,
    rotation,
)

UNTIED = dataclasses.replace(TINY, tie_word_embeddings=False)


@functools.partial(jax.jit, static_argnums=0)
def apply(config, params, *inputs):
    return Transformer(config).apply({"params": params}, *inputs)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(config, params, *inputs):
    hidden, _ = apply(config, params, *inputs)
    return Transformer(config).apply({"params": params}, hidden, method="unembed")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_agrees_with_a_slow_decoder(num_kv_heads, tied):
    config = dataclasses.replace(TINY, num_kv_heads=num_kv_heads, tie_word_embeddings=tied)
    params, inputs = random_params(config), rows()
    logits = logits_of(config, params, *inputs)
    chex.assert_shape(logits, (B, T, TINY.vocab_size))
    chex.assert_type(logits, jnp.float32)
    real = inputs[2] > 0
    want = reference_logits(config, params, *inputs)
    np.testing.assert_allclose(logits[real], want[real], atol=2e-5, rtol=2e-5)


def test_rotation_by_hand():
    """One pair, position 1, frequency 1: the unit vector turns by one radian; position 0 does nothing."""
    x = jnp.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    turned = rotate(x, rotation(jnp.array([[1]]), head_dim=2, theta=10.0))
    np.testing.assert_allclose(turned.ravel(), [np.cos(1), np.sin(1)], atol=1e-6)
    np.testing.assert_array_equal(rotate(x, rotation(jnp.array([[0]]), head_dim=2, theta=10.0)), x)


def test_a_token_sees_only_what_precedes_it_in_its_segment():
    params, (tokens, positions, segment_ids) = random_params(TINY), rows()
    hidden, _ = apply(TINY, params, tokens, positions, segment_ids)
    other = tokens.copy()
    other[0, 2] = (other[0, 2] + 1) % TINY.vocab_size  # in segment 1 of row 0, at t = 2
    changed, _ = apply(TINY, params, other, positions, segment_ids)
    differs = (np.abs(hidden - changed) > 1e-6).any(axis=-1) & (segment_ids > 0)
    np.testing.assert_array_equal(differs[0], [0, 0, 1, 1, 0, 0, 0, 0, 0])
    assert not differs[1].any()


def test_packed_segments_are_separate_rows():
    params, (tokens, positions, segment_ids) = random_params(TINY), rows()
    packed = logits_of(TINY, params, tokens, positions, segment_ids)
    for at in (slice(0, 4), slice(4, 7)):
        alone = logits_of(TINY, params, tokens[:1, at], positions[:1, at], np.ones_like(tokens[:1, at]))
        np.testing.assert_allclose(packed[:1, at], alone, atol=1e-5)


def test_left_padding_changes_nothing():
    params, (tokens, positions, segment_ids) = random_params(TINY), rows()
    plain = logits_of(TINY, params, tokens, positions, segment_ids)
    padded = [np.pad(x, ((0, 0), (3, 0))) for x in (tokens, positions, segment_ids)]
    shifted, real = logits_of(TINY, params, *padded)[:, 3:], segment_ids > 0
    np.testing.assert_allclose(shifted[real], plain[real], atol=1e-5)


@pytest.mark.parametrize("chunks", [(4, 1, 1, 1, 1, 1), (5, 4), (9,)])
def test_decoding_with_a_cache_equals_the_whole_forward(chunks):
    """The cache has more slots than are written; row 0 is padded on the left."""
    params, tokens = random_params(TINY), rows()[0]
    positions = np.stack([np.maximum(np.arange(T) - 2, 0), np.arange(T)]).astype(np.int32)
    segment_ids = np.array([[0] * 2 + [1] * 7, [1] * 9], np.int32)
    want, none = apply(TINY, params, tokens, positions, segment_ids)
    assert none is None
    cache, got, start = init_cache(TINY, B, 12), [], 0
    for size in chunks:
        part = [x[:, start : start + size] for x in (tokens, positions, segment_ids)]
        hidden, cache = apply(TINY, params, *part, cache)
        got.append(hidden)
        start += size
    np.testing.assert_allclose(jnp.concatenate(got, 1)[segment_ids > 0], want[segment_ids > 0], atol=1e-5)
    chex.assert_shape(cache.key, (2, B, TINY.num_kv_heads, TINY.head_dim, 12))
    chex.assert_shape(cache.value, (2, B, TINY.num_kv_heads, 12, TINY.head_dim))
    assert cache.length == T
    np.testing.assert_array_equal(cache.segment_ids, np.pad(segment_ids, ((0, 0), (0, 3))))


@pytest.mark.parametrize("attention", ["plain", "blockwise"])
def test_a_cache_made_while_reading_equals_one_that_was_given(attention):
    """Prefill attends over the row alone, in the configured way, and comes back with room to decode."""
    params, tokens = random_params(TINY), rows()[0]
    positions = np.stack([np.maximum(np.arange(T) - 2, 0), np.arange(T)]).astype(np.int32)
    inputs = tokens, positions, np.array([[0] * 2 + [1] * 7, [1] * 9], np.int32)
    want, given = apply(TINY, params, *inputs, init_cache(TINY, B, 12))
    model = Transformer(dataclasses.replace(TINY, attention=attention))
    hidden, made = jax.jit(lambda *x: model.apply({"params": params}, *x, capacity=12))(*inputs)
    real = inputs[2] > 0
    np.testing.assert_allclose(hidden[real], want[real], atol=1e-5)
    chex.assert_trees_all_equal_shapes_and_dtypes(made, given)
    np.testing.assert_array_equal(made.segment_ids, given.segment_ids)
    assert made.length == given.length
    seen = np.pad(real, ((0, 0), (0, 3)))  # what padding leaves in the cache nobody reads
    for one, other, slots in ((made.key, given.key, -1), (made.value, given.value, -2)):
        one, other = (np.moveaxis(x, slots, 2)[:, seen] for x in (one, other))
        np.testing.assert_allclose(one, other, atol=1e-5)
    with pytest.raises(ValueError, match="a cache of 8 slots cannot hold the 9 tokens"):
        model.apply({"params": params}, *inputs, capacity=8)


def test_blockwise_attention_changes_no_logprob_and_no_gradient():
    params, inputs = random_params(TINY), rows()

    def value_and_gradient(attention):
        config = dataclasses.replace(TINY, attention=attention)
        loss = jax.value_and_grad(lambda p: response_logprobs(config, p, *inputs)[0].sum())
        return jax.jit(loss)(params)

    chex.assert_trees_all_close(value_and_gradient("blockwise"), value_and_gradient("plain"), rtol=1e-4, atol=1e-5)


def test_a_switch_that_the_machine_lacks_is_refused():
    config = dataclasses.replace(TINY, attention="splash")
    with pytest.raises(ValueError, match="attention='splash' needs a TPU, not a cpu; use 'blockwise'"):
        response_logprobs(config, random_params(TINY), *rows())


def test_parameters_and_their_logical_axes():
    """The tree that checkpoints are loaded into and that the sharding table maps."""
    boxed = abstract_params(UNTIED)
    axes = jax.tree.map(lambda x: tuple(x), nn.get_partition_spec(boxed), is_leaf=lambda x: not isinstance(x, dict))
    q = {"kernel": ("layers", "embed", "heads", "head_dim"), "bias": ("layers", "heads", "head_dim")}
    kv = {"kernel": ("layers", "embed", "kv_heads", "head_dim"), "bias": ("layers", "kv_heads", "head_dim")}
    wide, norm = {"kernel": ("layers", "embed", "mlp")}, {"scale": ("layers", "embed")}
    assert axes == {
        "embed": ("vocab", "embed"),
        "layers": {
            "attention": {
                "q": q,
                "k": kv,
                "v": kv,
                "o": {"kernel": ("layers", "heads", "head_dim", "embed")},
            },
            "attention_norm": norm,
            "mlp": {"gate": wide, "up": wide, "down": {"kernel": ("layers", "mlp", "embed")}},
            "mlp_norm": norm,
        },
        "final_norm": {"scale": ("embed",)},
        "unembed": ("embed", "vocab"),
    }
    params = init_params(UNTIED, jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(params, nn.unbox(boxed))
    chex.assert_type(jax.tree.leaves(params), jnp.float32)
    chex.assert_shape(params["layers"]["attention"]["q"]["kernel"], (2, 16, 4, 4))
    chex.assert_shape(params["layers"]["attention"]["k"]["bias"], (2, 2, 4))
    chex.assert_shape(params["layers"]["attention"]["o"]["kernel"], (2, 4, 4, 16))
    assert "unembed" not in init_params(TINY, jax.random.key(0))


@pytest.mark.parametrize("attention", ["splash", "cudnn"])
def test_parameters_need_no_device_of_a_kernels_kind(attention):
    there = dataclasses.replace(TINY, attention=attention)
    chex.assert_trees_all_equal(init_params(there, jax.random.key(0)), init_params(TINY, jax.random.key(0)))


def test_initialisation_is_finite_random_and_not_far_from_uniform():
    params = init_params(TINY, jax.random.key(0))
    chex.assert_tree_all_finite(params)
    kernel = params["layers"]["mlp"]["gate"]["kernel"]
    assert not np.allclose(kernel[0], kernel[1])  # each layer has a key of its own
    _, entropy = jax.jit(functools.partial(response_logprobs, TINY))(params, *rows())
    assert entropy[1, 1:].mean() > 0.7 * np.log(TINY.vocab_size)


def test_qwen3_has_norms_of_queries_and_keys_and_no_bias():
    config = dataclasses.replace(TINY, qk_norm=True, qkv_bias=False)
    params, inputs = random_params(config), rows()
    assert set(params["layers"]["attention"]) == {"q", "k", "v", "o", "q_norm", "k_norm"}
    assert all("bias" not in params["layers"]["attention"][name] for name in "qkvo")
    chex.assert_shape(params["layers"]["attention"]["q_norm"]["scale"], (config.num_layers, config.head_dim))
    logits, exact = logits_of(config, params, *inputs), reference_logits(config, params, *inputs)
    np.testing.assert_allclose(logits[inputs[2] > 0], exact[inputs[2] > 0], rtol=1e-4, atol=1e-4)


def test_parameters_in_bfloat16():
    params = init_params(dataclasses.replace(TINY, param_dtype="bfloat16"), jax.random.key(0))
    chex.assert_type(jax.tree.leaves(params), jnp.bfloat16)


@pytest.mark.parametrize(
    "change",
    [{"remat": "layer"}, {"remat": "products"}, {"remat": "products", "attention": "blockwise"}, {"unroll": 5}],
    ids=str,
)
def test_how_it_is_computed_changes_no_gradient(change):
    params, inputs = random_params(TINY), rows()

    def gradient(config):
        return jax.jit(jax.grad(lambda p: response_logprobs(config, p, *inputs)[0].sum()))(params)

    again = dataclasses.replace(TINY, **change)
    chex.assert_trees_all_close(gradient(again), gradient(TINY), rtol=1e-4, atol=1e-5)


def test_remat_of_products_runs_attention_once():
    """Its output is kept by name: the backward pass has no more exponentials than where everything is kept."""

    def exponentials(remat):
        config = dataclasses.replace(TINY, remat=remat, attention="blockwise")
        loss = jax.grad(lambda p: response_logprobs(config, p, *rows())[0].sum())
        return str(jax.make_jaxpr(loss)(nn.unbox(abstract_params(config)))).count(" exp ")

    assert exponentials("products") == exponentials("none") < exponentials("layer")


def test_bfloat16_computes_in_bfloat16_and_returns_float32_logits():
    params, inputs = random_params(TINY), rows()
    half = dataclasses.replace(TINY, dtype="bfloat16")
    hidden, cache = apply(half, params, *inputs, init_cache(half, B, T))
    chex.assert_type([hidden, cache.key], jnp.bfloat16)
    logits, exact = logits_of(half, params, *inputs), logits_of(TINY, params, *inputs)
    chex.assert_type(logits, jnp.float32)
    real = inputs[2] > 0
    assert np.abs(logits - exact)[real].max() < 0.05 * np.abs(exact).max()


def test_depth_lengthens_no_program():
    """The gradient of 2 and of 8 layers has as many equations, those inside of scans counted."""

    def size(num_layers):
        config = dataclasses.replace(TINY, num_layers=num_layers)
        params = nn.unbox(abstract_params(config))
        loss = jax.grad(lambda p: response_logprobs(config, p, *rows())[0].sum())
        return str(jax.make_jaxpr(loss)(params)).count(" = ")

    assert size(2) == size(8) > 100


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_kv_heads", 3, "multiple of num_kv_heads"),
        ("head_dim", 5, "head_dim is 5"),
        ("num_layers", 0, "num_layers is 0"),
        ("vocab_size", -1, "vocab_size is -1"),
        ("dtype", "float16", "dtype is 'float16'; use one of float32, bfloat16"),
        ("param_dtype", "int8", "param_dtype is 'int8'"),
        ("attention", "flash", "attention is 'flash'; use one of auto, plain, blockwise, cudnn, splash"),
        ("remat", "all", "remat is 'all'"),
        ("unroll", 0, "unroll is 0"),
        ("unroll", 2, "unroll is 2 and remat 'layer': .* set unroll to 1, or remat to 'none'"),
        ("rope_theta", 0.0, "rope_theta"),
    ],
)
def test_a_bad_config_names_the_field(field, value, message):
    config = dataclasses.replace(TINY, **{"remat": "layer", field: value})
    for use in (abstract_params, lambda c: init_params(c, jax.random.key(0))):
        with pytest.raises(ValueError, match=message):
            use(config)

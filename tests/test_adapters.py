"""Low-rank adapters: a start that changes nothing, what is trained, what a mesh does, and merging."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hgpo_jax import adapters
from hgpo_jax.config import LearnerConfig, LossConfig, MeshConfig, ModelConfig, OptimizerConfig, ReinforceConfig
from hgpo_jax.estimators import make_estimator
from hgpo_jax.learner.packing import pack_steps
from hgpo_jax.learner.update import init_state, make_optimizer, make_update
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.transformer import (
    Transformer,
    abstract_params,
    init_adapters,
    init_params,
)
from hgpo_jax.sharding import Layout, batch_shardings, make_mesh, state_shardings
from hgpo_jax.types import StepSignals

BASE = ModelConfig(
    vocab_size=16, hidden_size=16, intermediate_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4
)
LORA = dataclasses.replace(BASE, lora_rank=2, lora_alpha=6.0)
PROJECTIONS = {("attention", name) for name in "qkvo"} | {("mlp", name) for name in ("gate", "up", "down")}


def tokens_of(rows=3, length=8, seed=0):
    tokens = np.random.default_rng(seed).integers(0, BASE.vocab_size, (rows, length)).astype(np.int32)
    return tokens, np.tile(np.arange(length, dtype=np.int32), (rows, 1)), np.ones_like(tokens)


def test_split_and_join_by_hand():
    params = {"norm": {"scale": 1}, "q": {"kernel": 2, "lora_a": 3, "lora_b": 4}}
    trained, frozen = adapters.split(params)
    assert trained == {"q": {"lora_a": 3, "lora_b": 4}}
    assert frozen == {"norm": {"scale": 1}, "q": {"kernel": 2}}
    assert adapters.join(trained, frozen) == params
    assert adapters.split(frozen) == (frozen, {})
    assert adapters.join(frozen, {}) == frozen


def test_every_projection_has_one_and_the_start_changes_nothing():
    base, lora = init_params(BASE, jax.random.key(0)), init_adapters(LORA, jax.random.key(1))
    layers = lora["layers"]
    assert {(part, name) for part, modules in layers.items() for name in modules} == PROJECTIONS
    chex.assert_shape(layers["attention"]["q"]["lora_a"], (2, 16, 2))
    chex.assert_shape(layers["attention"]["q"]["lora_b"], (2, 2, 4, 4))
    chex.assert_shape(layers["attention"]["o"]["lora_a"], (2, 4, 4, 2))
    chex.assert_shape(layers["mlp"]["down"]["lora_b"], (2, 2, 16))
    params = adapters.join(lora, base)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, init_params(LORA, jax.random.key(0)))
    assert jnp.abs(layers["mlp"]["up"]["lora_a"]).min() > 0
    got, want = response_logprobs(LORA, params, *tokens_of()), response_logprobs(BASE, base, *tokens_of())
    chex.assert_trees_all_close(got, want, atol=1e-6)


def learned(params, seed=0):
    """Adapters as training would leave them: B is no longer 0."""
    rng = np.random.default_rng(seed)
    trained, frozen = adapters.split(params)
    noisy = jax.tree.map(lambda x: x + 0.3 * jnp.asarray(rng.normal(size=x.shape), x.dtype), trained)
    return adapters.join(noisy, frozen)


def test_merged_parameters_compute_the_same():
    params = learned(init_params(LORA, jax.random.key(0)))
    merged = adapters.merged(params, LORA)
    chex.assert_trees_all_equal_shapes_and_dtypes(merged, init_params(BASE, jax.random.key(0)))
    got, want = response_logprobs(BASE, merged, *tokens_of()), response_logprobs(LORA, params, *tokens_of())
    chex.assert_trees_all_close(got, want, atol=2e-5)
    kernel, (a, b) = params["layers"]["mlp"]["up"], (params["layers"]["mlp"]["up"][name] for name in adapters.NAMES)
    by_hand = kernel["kernel"][1] + 3.0 * a[1] @ b[1]
    np.testing.assert_allclose(merged["layers"]["mlp"]["up"]["kernel"][1], by_hand, atol=1e-5)
    assert adapters.merged(merged, BASE) is merged


def test_disabled_adapters_are_the_policy_it_started_from():
    start = init_params(LORA, jax.random.key(0))
    reference = adapters.disabled(learned(start))
    got, want = response_logprobs(LORA, reference, *tokens_of()), response_logprobs(LORA, start, *tokens_of())
    chex.assert_trees_all_equal(got, want)


def update_once(model: ModelConfig, mesh_shape=None):
    rng = np.random.default_rng(0)
    n, learner = 8, LearnerConfig(minibatch_steps=4, row_length=16)
    values, ids = rng.normal(size=n).astype(np.float32), np.arange(n, dtype=np.int32)
    signals = StepSignals(values, values, ids // 4, ids // 2, np.ones(n, bool), (ids // 4)[None])
    prompts, replies = ([rng.integers(0, 16, 4) for _ in range(n)] for _ in range(2))
    old = [np.full(4, -2.7, np.float32)] * n
    batch = pack_steps(prompts, replies, old, signals, config=learner, seed=0, row_multiple=8)
    optimizer = make_optimizer(OptimizerConfig(name="adamw", learning_rate=1e-2))
    mesh = None if mesh_shape is None else make_mesh(MeshConfig(*mesh_shape))
    layout = None if mesh is None else Layout(mesh)
    shardings = None if mesh is None else state_shardings(abstract_params(model), optimizer, mesh)
    state = init_state(model, optimizer, jax.random.key(3), mesh)
    before = jax.device_get(state.params)
    if mesh is not None:
        batch = jax.device_put(batch, batch_shardings(batch, mesh))
    logprob_fn = functools.partial(response_logprobs, Transformer(model, layout))
    loss, reinforce = LossConfig(kl_coef=0.0), make_estimator(ReinforceConfig())
    update = make_update(logprob_fn, reinforce, optimizer, loss, mesh=mesh, shardings=shardings)
    state, metrics = update(state, batch)
    return before, jax.device_get(state), jax.device_get(metrics)


def test_only_the_adapters_are_trained():
    before, state, metrics = update_once(LORA)
    assert metrics["optimizer_steps"] == 2
    (trained, frozen), (trained_before, frozen_before) = adapters.split(state.params), adapters.split(before)
    chex.assert_trees_all_equal(frozen, frozen_before)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), trained, trained_before)
    assert min(jax.tree.leaves(moved)) > 0
    moments = sum(x.size for x in jax.tree.leaves(state.opt_state))
    assert moments < 3 * sum(x.size for x in jax.tree.leaves(trained))


@pytest.mark.slow
def test_adapters_on_a_mesh():
    _, one, metrics = update_once(LORA)
    _, many, other = update_once(LORA, (2, 2, 2))
    np.testing.assert_allclose(metrics["grad_norm"], other["grad_norm"], rtol=1e-4)
    # Adam's step is about the gradient's sign: compare where that is no rounding, by all but a few entries.
    for a, b in zip(*(jax.tree.leaves(adapters.split(state.params)[0]) for state in (one, many)), strict=True):
        assert np.mean(np.abs(a - b) < 1e-4) > 0.98


@pytest.mark.slow
def test_parameters_in_bfloat16_have_moments_in_float32():
    before, state, _ = update_once(dataclasses.replace(BASE, param_dtype="bfloat16", dtype="bfloat16"))
    chex.assert_type(jax.tree.leaves(state.params), jnp.bfloat16)
    floats = [x for x in jax.tree.leaves(state.opt_state) if jnp.issubdtype(x.dtype, jnp.floating)]
    chex.assert_type(floats, jnp.float32)
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(state.params), strict=True))


@pytest.mark.parametrize(("rank", "alpha"), [(-1, 1.0), (2, 0.0)])
def test_bad_settings_are_named(rank, alpha):
    with pytest.raises(ValueError, match="lora_rank"):
        abstract_params(dataclasses.replace(BASE, lora_rank=rank, lora_alpha=alpha))

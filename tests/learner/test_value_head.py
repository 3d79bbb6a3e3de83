"""The critic: what it reads, what it is trained toward and how fast, on any mesh."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hgpo_jax import adapters
from hgpo_jax.config import GAEConfig, LearnerConfig, LossConfig, MeshConfig, ModelConfig, OptimizerConfig
from hgpo_jax.estimators import make_estimator, step_signals
from hgpo_jax.learner.losses import value_loss
from hgpo_jax.learner.packing import pack_steps
from hgpo_jax.learner.update import first_tokens, init_state, make_optimizer, make_update, make_values
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.transformer import Transformer, abstract_params, init_params
from hgpo_jax.sharding import Layout, batch_shardings, make_mesh, state_shardings
from hgpo_jax.types import StepBatch, StepSignals

MODEL = ModelConfig(
    vocab_size=16,
    hidden_size=8,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    value_head=True,
)
LOSS = LossConfig(kl_coef=0.0, entropy_coef=0.0, value_coef=0.7, value_clip=0.2)
SGD = OptimizerConfig(name="sgd", learning_rate=0.1, value_learning_rate=0.3, max_grad_norm=1e9)
LENGTHS = (4, 3, 1, 5)  # of the trajectories


def params_of(config: ModelConfig = MODEL) -> Any:
    """With a head that is not 0."""
    params = init_params(config, jax.random.key(0))
    kernel = jax.random.normal(jax.random.key(1), params["value_head"]["kernel"].shape)
    return params | {"value_head": {"kernel": kernel, "bias": jnp.array([0.5])}}


@functools.cache
def steps() -> dict[str, Any]:
    """Arguments of ``pack_steps``: 13 steps of four trajectories, with the signals of a critic."""
    rng = np.random.default_rng(0)
    n = sum(LENGTHS)
    trajectory = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    signals = step_signals(
        ["a"] * n,
        trajectory // 2,
        trajectory,
        rng.normal(size=n),
        rng.random(n) > 0.2,
        estimator=GAEConfig(),
        gamma=0.9,
        invalid_action_penalty=0.1,
        value=rng.normal(size=n),
        next_value=rng.normal(size=n),
    )
    ragged = [[rng.integers(0, 16, rng.integers(1, 6)) for _ in range(n)] for _ in range(2)]
    logprob = [np.full(len(response), -2.0, np.float32) for response in ragged[1]]
    return {"prompt_tokens": ragged[0], "response_tokens": ragged[1], "behavior_logprob": logprob, "signals": signals}


def packed(minibatch_steps: int = 5, row_multiple: int = 4, rows_per_device: int | None = 1) -> StepBatch:
    config = LearnerConfig(minibatch_steps=minibatch_steps, row_length=24, rows_per_device=rows_per_device)
    return pack_steps(**steps(), config=config, seed=0, row_multiple=row_multiple)


def value_alone(params: Any, prompt: np.ndarray, config: ModelConfig = MODEL) -> jax.Array:
    """V by hand: the prompt in a row of its own, its last hidden state, kernel and bias."""
    row = jnp.asarray(prompt)[None]
    hidden, _ = Transformer(config).apply({"params": params}, row, jnp.arange(len(prompt))[None], jnp.ones_like(row))  # pyright: ignore[reportGeneralTypeIssues]
    return hidden[0, -1] @ params["value_head"]["kernel"][:, 0] + params["value_head"]["bias"][0]


def test_v_is_read_at_the_last_token_of_each_prompt() -> None:
    """Of packed rows as of each prompt alone; the log-probabilities are those of the decoder without a head."""
    params, batch = params_of(), packed()
    logprob_fn = functools.partial(response_logprobs, MODEL)
    values = np.asarray(make_values(logprob_fn)(params, batch))
    prompts = steps()["prompt_tokens"]
    np.testing.assert_allclose(values[: len(prompts)], [value_alone(params, p) for p in prompts], atol=1e-5)
    assert (values[len(prompts) :] == 0).all()
    block = [np.asarray(x)[0, 0] for x in (batch.tokens, batch.positions, batch.segment_ids, batch.response_index)]
    logprob, entropy, value = response_logprobs(MODEL, params, *block)
    first = np.asarray(first_tokens(jnp.asarray(batch.loss_mask)))[0, 0]
    assert ((np.asarray(value) != 0) == first).all()
    headless = {name: leaf for name, leaf in params.items() if name != "value_head"}
    plain = response_logprobs(dataclasses.replace(MODEL, value_head=False), headless, *block)
    chex.assert_trees_all_equal((logprob, entropy), plain)


def test_a_head_changes_nothing_else_at_the_start() -> None:
    with_head, without = (
        init_params(dataclasses.replace(MODEL, value_head=head), jax.random.key(5)) for head in (True, False)
    )
    head = with_head.pop("value_head")
    chex.assert_trees_all_equal(with_head, without)
    chex.assert_trees_all_equal(head, {"kernel": jnp.zeros((8, 1)), "bias": jnp.zeros(1)})


def test_a_decoder_without_a_head_says_so() -> None:
    plain = dataclasses.replace(MODEL, value_head=False)
    with pytest.raises(ValueError, match=r"no critic: set ModelConfig.value_head"):
        Transformer(plain).apply({"params": init_params(plain, jax.random.key(0))}, jnp.zeros((1, 8)), method="value")
    optimizer = make_optimizer(SGD)
    update = make_update(functools.partial(response_logprobs, plain), make_estimator(GAEConfig()), optimizer, LOSS)
    with pytest.raises(ValueError, match=r"value targets, but the policy has no ModelConfig.value_head"):
        update(init_state(plain, optimizer, jax.random.key(0)), packed())


def test_value_loss_by_hand() -> None:
    # V moved from 1 to 2, target 4: free (2 - 4)^2 / 2 = 2; clipped at 1.5: (1.5 - 4)^2 / 2 = 3.125, the worse.
    # Target 0: the free error 2 is the worse. Moved by 0.1 only: no clip.
    value, old, target = jnp.array([2.0, 2.0, 1.1]), jnp.ones(3), jnp.array([4.0, 0.0, 1.0])
    np.testing.assert_allclose(value_loss(value, old, target, 0.5), [3.125, 2.0, 0.005], rtol=1e-5)
    np.testing.assert_allclose(value_loss(value, old, target, None), [2.0, 2.0, 0.005], rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda v: value_loss(v, old, target, 0.5).sum())(value), [0, 2, 0.1], atol=1e-6)


def run(
    mesh_shape: tuple[int, int, int] | None = None,
    loss: LossConfig = LOSS,
    rule: OptimizerConfig = SGD,
    **packing: Any,
) -> Any:
    """One update from `params_of`; state and metrics."""
    optimizer = make_optimizer(rule, value_head=True)
    mesh = None if mesh_shape is None else make_mesh(MeshConfig(*mesh_shape))
    shardings = None if mesh is None else state_shardings(abstract_params(MODEL), optimizer, mesh)
    model = Transformer(MODEL, None if mesh is None else Layout(mesh))
    update = make_update(
        functools.partial(response_logprobs, model),
        make_estimator(GAEConfig()),
        optimizer,
        loss,
        mesh=mesh,
        shardings=shardings,
    )
    params, batch = params_of(), packed(**packing)
    if mesh is not None:
        assert shardings is not None
        params = jax.device_put(params, shardings.params)
        batch = jax.device_put(batch, batch_shardings(batch, mesh))
    return update(init_state(MODEL, optimizer, jax.random.key(0), mesh, params), batch)


def test_the_update_is_that_of_each_step_alone() -> None:
    """One mini-batch, plain SGD: what the value term adds is the gradient of a mean over steps, each by itself."""
    (state, metrics), (without, _) = (
        run(loss=dataclasses.replace(LOSS, value_coef=coefficient), minibatch_steps=99) for coefficient in (0.7, 0.0)
    )
    signals: StepSignals = steps()["signals"]
    target = make_estimator(GAEConfig())(signals)[1]["value_target"]

    def loop(params: Any) -> jax.Array:
        total = jnp.zeros(())
        for i, prompt in enumerate(steps()["prompt_tokens"]):
            value, old = value_alone(params, prompt), jnp.asarray(signals.value)[i]
            clipped = jnp.clip(value, old - 0.2, old + 0.2)
            total += 0.5 * jnp.maximum((value - target[i]) ** 2, (clipped - target[i]) ** 2)
        return total / sum(LENGTHS)

    loss, gradient = jax.value_and_grad(loop)(params_of())
    np.testing.assert_allclose(metrics["value_loss"], loss, rtol=1e-4)
    rates = adapters.VALUE_HEAD, 0.3, 0.1
    added = jax.tree_util.tree_map_with_path(
        lambda path, g: -0.7 * g * (rates[1] if path[0].key == rates[0] else rates[2]), gradient
    )
    moved = jax.tree.map(lambda a, b: a - b, state.params, without.params)
    chex.assert_trees_all_close(moved, added, atol=1e-5)
    explained = 1 - np.var(np.asarray(target) - signals.value) / np.var(np.asarray(target))
    np.testing.assert_allclose(metrics["explained_variance"], explained, rtol=1e-4)
    assert "estimator/value_target" not in metrics


@pytest.mark.parametrize("mesh_shape", [(4, 1, 1), (2, 2, 2)])
def test_meshes_change_nothing(mesh_shape: tuple[int, int, int]) -> None:
    (state, metrics), (wanted, wanted_metrics) = run(mesh_shape), run()
    chex.assert_trees_all_close(jax.device_get(state.params), jax.device_get(wanted.params), atol=1e-5)
    for name in ("value_loss", "value_clip_fraction", "explained_variance", "advantage_std", "grad_norm"):
        np.testing.assert_allclose(metrics[name], wanted_metrics[name], rtol=1e-4, atol=1e-6)
    mesh = make_mesh(MeshConfig(*mesh_shape))
    batch = packed()
    values = make_values(functools.partial(response_logprobs, Transformer(MODEL, Layout(mesh))), mesh=mesh)
    optimizer = make_optimizer(SGD, value_head=True)
    places: Any = state_shardings(abstract_params(MODEL), optimizer, mesh)
    found = values(jax.device_put(params_of(), places.params), jax.device_put(batch, batch_shardings(batch, mesh)))
    alone = make_values(functools.partial(response_logprobs, MODEL))(params_of(), batch)
    np.testing.assert_allclose(found, alone, atol=1e-5)


def test_the_moments_of_both_optimizers_lie_on_the_mesh() -> None:
    state, _ = run((1, 4, 2), rule=OptimizerConfig(learning_rate=1e-3, value_learning_rate=1e-2))
    wanted, _ = run(rule=OptimizerConfig(learning_rate=1e-3, value_learning_rate=1e-2))
    chex.assert_trees_all_close(jax.device_get(state.opt_state), jax.device_get(wanted.opt_state), atol=1e-5)
    shapes = [
        moment.addressable_shards[0].data.shape for moment in jax.tree.leaves(state.opt_state) if moment.shape == (8, 1)
    ]
    assert shapes == [(2, 1), (2, 1)]


def test_parts_change_nothing() -> None:
    (state, metrics), (wanted, wanted_metrics) = run(rows_per_device=1), run(rows_per_device=None)
    chex.assert_trees_all_close(state.params, wanted.params, atol=1e-6)
    np.testing.assert_allclose(metrics["value_loss"], wanted_metrics["value_loss"], rtol=1e-5)


def test_the_head_has_a_rate_and_a_clip_of_its_own() -> None:
    """Adam's first step is the rate itself, whatever the gradient's size."""
    config = OptimizerConfig(learning_rate=1e-3, value_learning_rate=1e-2, weight_decay=0.0)
    optimizer = make_optimizer(config, value_head=True)
    params = {"embed": jnp.ones(3), "value_head": {"kernel": jnp.ones((3, 1)), "bias": jnp.ones(1)}}
    grads = jax.tree.map(lambda x: 1e6 * jnp.ones_like(x), params)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    chex.assert_trees_all_close(
        updates,
        {"embed": jnp.full(3, -1e-3), "value_head": {"kernel": jnp.full((3, 1), -1e-2), "bias": jnp.full(1, -1e-2)}},
        rtol=1e-4,
    )
    plain = make_optimizer(dataclasses.replace(SGD, max_grad_norm=1.0), value_head=True)
    huge = grads | {"embed": jnp.array([0.0, 0.6, 0.0])}
    updates, _ = plain.update(huge, plain.init(params), params)
    np.testing.assert_allclose(updates["embed"], [0, -0.06, 0], rtol=1e-5)  # pyright: ignore
    np.testing.assert_allclose(optax.tree.norm(updates["value_head"]), 0.3, rtol=1e-5)  # pyright: ignore


def test_adapters_are_trained_beside_the_head() -> None:
    config = dataclasses.replace(MODEL, lora_rank=2)
    params = init_params(config, jax.random.key(0))
    trained, frozen = adapters.split(params)
    assert "value_head" in trained
    assert "value_head" not in frozen
    assert {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(trained["layers"])} == set(adapters.NAMES)
    chex.assert_trees_all_equal(adapters.join(trained, frozen), params)
    chex.assert_trees_all_equal(adapters.merged(params, config)["value_head"], params["value_head"])
    boxed = jax.eval_shape(lambda: nn.unbox(abstract_params(config)))
    chex.assert_trees_all_equal_shapes(adapters.fresh(boxed), trained)

"""The mesh, the table from logical to mesh axes, and what it makes of a state and a batch."""

from __future__ import annotations

import chex
import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from hgpo_jax import sharding
from hgpo_jax.config import MeshConfig, ModelConfig, OptimizerConfig
from hgpo_jax.learner.update import init_state, make_optimizer
from hgpo_jax.policy import transformer
from hgpo_jax.sharding import (
    batch_multiple,
    batch_shardings,
    make_mesh,
    param_shardings,
    partition_spec,
    state_shardings,
)
from hgpo_jax.types import StepBatch, StepSignals

MODEL = ModelConfig(
    vocab_size=16,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MeshConfig(), (1, 1, 1)),
        (MeshConfig(8, 1, 1), (8, 1, 1)),
        (MeshConfig(2, 2, 2), (2, 2, 2)),
        (MeshConfig(1, -1, 2), (1, 4, 2)),
        (MeshConfig(data=-1), (8, 1, 1)),
        (MeshConfig(3, 1, 2), (3, 1, 2)),  # six of the eight devices
    ],
)
def test_mesh_sizes(config, shape):
    mesh = make_mesh(config)
    assert mesh.axis_names == ("data", "fsdp", "tensor")
    assert mesh.devices.shape == shape
    assert batch_multiple(mesh) == shape[0] * shape[1]
    assert batch_multiple(None) == 1


def test_mesh_of_given_devices():
    devices = jax.devices()[4:]
    mesh = make_mesh(MeshConfig(fsdp=-1), devices)
    assert set(mesh.devices.ravel()) == set(devices)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeshConfig(3, -1, 1), "3 does not divide the 8 devices; change the fixed sizes, or give fsdp a number"),
        (MeshConfig(4, 4, 1), "needs 16 devices, but there are 8"),
        (MeshConfig(-1, -1, 1), "at most one axis is -1"),
        (MeshConfig(0, 1, 1), "sizes are 1 or more"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(config)


def test_the_table_by_hand():
    mesh = make_mesh(MeshConfig(2, 2, 2))
    assert partition_spec("q", (2, 16, 4, 8), ("layers", "embed", "heads", "head_dim"), mesh) == P(
        None, "fsdp", "tensor", None
    )
    assert partition_spec("rows", (8, 512), ("batch", None), mesh) == P(("data", "fsdp"), None)


def test_what_the_table_refuses(monkeypatch):
    mesh = make_mesh(MeshConfig(2, 2, 2))
    with pytest.raises(ValueError, match=r"w: logical axes \('heads', 'mlp'\) use a mesh axis twice"):
        partition_spec("w", (4, 4), ("heads", "mlp"), mesh)
    with pytest.raises(ValueError, match=r"w: its axis 'embed' has size 7, .* choose a MeshConfig.fsdp that divides 7"):
        partition_spec("w", (7,), ("embed",), mesh)
    with pytest.raises(ValueError, match="w: no rule for the logical axis 'experts'"):
        partition_spec("w", (8,), ("experts",), mesh)
    with pytest.raises(ValueError, match="w has shape"):
        partition_spec("w", (8, 8), ("embed",), mesh)
    monkeypatch.setitem(sharding.RULES, "embed", ("data", "fsdp"))
    with pytest.raises(ValueError, match=r"rows: .* use a mesh axis twice"):
        partition_spec("rows", (8, 8), ("batch", "embed"), mesh)


def test_few_key_value_heads_are_replicated():
    """Two key/value heads over four devices: each holds both. Query heads have to divide."""
    mesh = make_mesh(MeshConfig(1, 2, 4))
    assert partition_spec("k", (16, 2, 8), ("embed", "kv_heads", "head_dim"), mesh) == P("fsdp", None, None)
    with pytest.raises(ValueError, match="its axis 'heads' has size 6"):
        partition_spec("q", (16, 6, 8), ("embed", "heads", "head_dim"), mesh)


def test_the_parameter_is_named():
    mesh = make_mesh(MeshConfig(1, 1, 8))
    with pytest.raises(ValueError, match=r"\['attention'\].*'heads' has size 4"):
        param_shardings(transformer.abstract_params(MODEL), mesh)


def test_every_parameter_of_the_transformer_has_a_place():
    mesh = make_mesh(MeshConfig(2, 2, 2))
    shardings = param_shardings(transformer.abstract_params(MODEL), mesh)
    specs = {jax.tree_util.keystr(k, simple=True): s.spec for k, s in jax.tree_util.tree_leaves_with_path(shardings)}
    assert all("fsdp" in spec or "tensor" in spec for spec in specs.values()), specs


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_moments_lie_where_their_parameters_lie(name):
    mesh = make_mesh(MeshConfig(2, 2, 2))
    optimizer = make_optimizer(OptimizerConfig(name=name, warmup_steps=3))
    shardings = state_shardings(transformer.abstract_params(MODEL), optimizer, mesh)
    state = init_state(MODEL, optimizer, jax.random.key(0), mesh)
    laid_out = jax.tree.map(lambda x: x.sharding, state)
    assert jax.tree.structure(laid_out) == jax.tree.structure(shardings)
    assert jax.tree.all(jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), state, shardings))
    specs = jax.tree.map(lambda s: s.spec, shardings)
    if name == "adamw":
        for moment in ("mu", "nu"):
            assert optax.tree.get(specs.opt_state, moment) == specs.params


def test_a_batch_has_its_rows_over_data_and_fsdp():
    mesh = make_mesh(MeshConfig(2, 2, 2))
    rows, steps = np.zeros((2, 1, 4, 16), np.int32), np.zeros(8, np.int32)
    signals = StepSignals(steps, steps, steps, steps, steps, np.zeros((2, 8), np.int32))
    batch = StepBatch(*[rows] * 9, steps=signals)
    shardings = batch_shardings(batch, mesh)
    placed = jax.device_put(batch, shardings)
    assert placed.tokens.sharding.spec == P(None, None, ("data", "fsdp"), None)
    assert placed.steps.score.sharding.spec == P(("data", "fsdp"))
    assert placed.steps.group_ids.sharding.spec == P(None, ("data", "fsdp"))
    np.testing.assert_array_equal(placed.tokens, batch.tokens)


@pytest.mark.parametrize("mesh_shape", [None, (2, 2, 2)], ids=str)
def test_loaded_weights_are_taken_over(mesh_shape):
    """No second copy of them exists: the state holds their very buffers."""
    mesh = None if mesh_shape is None else make_mesh(MeshConfig(*mesh_shape))
    loaded = transformer.init_params(MODEL, jax.random.key(5))
    if mesh is not None:
        loaded = jax.device_put(loaded, param_shardings(transformer.abstract_params(MODEL), mesh))
    values = jax.device_get(loaded)
    where = [x.addressable_shards[0].data.unsafe_buffer_pointer() for x in jax.tree.leaves(loaded)]
    state = init_state(MODEL, make_optimizer(OptimizerConfig()), jax.random.key(0), mesh, params=loaded)
    assert where == [x.addressable_shards[0].data.unsafe_buffer_pointer() for x in jax.tree.leaves(state.params)]
    chex.assert_trees_all_equal(jax.device_get(state.params), values)

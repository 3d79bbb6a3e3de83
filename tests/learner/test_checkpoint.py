"""Checkpoints come back bit for bit, onto any mesh; what does not fit is named; a kill leaves the last one whole."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import learner_toy as toy
import numpy as np
import pytest

from hgpo_jax.config import LearnerConfig, LossConfig, MeshConfig, OptimizerConfig
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.learner.update import make_optimizer, make_update
from hgpo_jax.sharding import make_mesh, state_shardings
from hgpo_jax.types import TrainState

OPTIMIZER = make_optimizer(OptimizerConfig(learning_rate=1e-2, warmup_steps=3))


def bits(state: TrainState) -> Any:
    """The state as NumPy arrays, the key as its words."""
    return jax.device_get(dataclasses.replace(state, key=jax.random.key_data(state.key)))


def other_state(seed: int, shardings: TrainState | None = None) -> TrainState:
    """A state none of whose arrays are at their initial values."""
    rng = np.random.default_rng(seed)

    def draw(x: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.asarray(rng.normal(size=x.shape), x.dtype)
        return jnp.asarray(rng.integers(1, 100), x.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else x

    state = jax.tree.map(draw, toy.make_state(OPTIMIZER))
    state = dataclasses.replace(state, key=jax.random.key(seed))
    return state if shardings is None else jax.device_put(state, shardings)


@pytest.fixture
def target() -> TrainState:
    return toy.make_state(OPTIMIZER)


def test_round_trip_is_exact(tmp_path, target):
    state = other_state(1)
    meta = {"iteration": 7, "config": {"lr": 1e-6, "name": "π"}, "tasks": [3, 1, 2]}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(7, state, meta, {"success": 0.5})
    with Checkpoints(tmp_path) as checkpoints:
        restored, got = checkpoints.restore(target)
        params, _ = checkpoints.restore_params(target.params)
        assert checkpoints.meta() == got == meta
        assert checkpoints.iterations() == [7]
    chex.assert_trees_all_equal(bits(restored), bits(state))
    chex.assert_trees_all_equal_dtypes(bits(restored), bits(state))
    chex.assert_trees_all_equal(params, state.params)
    assert restored.key.dtype == state.key.dtype


@pytest.mark.parametrize(("saved_on", "restored_on"), [((2, 2, 2), (1, 4, 2)), ((1, 8, 1), None)], ids=str)
def test_from_one_mesh_to_another(tmp_path, saved_on, restored_on):
    abstract = toy.abstract_params()
    saved = state_shardings(abstract, OPTIMIZER, make_mesh(MeshConfig(*saved_on)))
    target = toy.make_state(OPTIMIZER)
    if restored_on is not None:
        shardings = state_shardings(abstract, OPTIMIZER, make_mesh(MeshConfig(*restored_on)))
        target = jax.device_put(target, shardings)
    state = other_state(2, saved)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        restored, meta = checkpoints.restore(target)
    assert meta == {}
    chex.assert_trees_all_equal(bits(restored), bits(state))
    chex.assert_trees_all_equal(*(jax.tree.map(lambda x: x.sharding, s.params) for s in (restored, target)))


def test_best_and_latest_are_kept(tmp_path, target):
    """Successes .2, .9, .5, none, .7: the second is the best, the fifth the latest."""
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for iteration, success in enumerate([0.2, 0.9, 0.5, None, 0.7], 1):
            metrics = {"loss": 1.0} if success is None else {"success": success, "loss": 1.0}
            checkpoints.save(iteration, other_state(iteration), {"iteration": iteration}, metrics)
        assert checkpoints.restore(target)[1] == {"iteration": 5}
        assert checkpoints.iterations() == [2, 5]
        restored, meta = checkpoints.restore(target, "best")
        assert meta == {"iteration": 2}
        chex.assert_trees_all_equal(bits(restored), bits(other_state(2)))
        assert checkpoints.restore_params(target.params)[1] == {"iteration": 2}
        assert checkpoints.restore(target, 5)[1] == {"iteration": 5}
        with pytest.raises(ValueError, match=r"no checkpoint of iteration 3 in .*; there are \[2, 5\]"):
            checkpoints.restore(target, 3)


def test_without_evaluations_the_latest_is_the_best(tmp_path, target):
    with Checkpoints(tmp_path) as checkpoints:
        for iteration in (1, 2):
            checkpoints.save(iteration, target, {"iteration": iteration})
        assert checkpoints.restore(target, "best")[1] == {"iteration": 2}
        assert checkpoints.iterations() == [2]


def test_the_state_may_be_donated_right_after_save(tmp_path, target):
    """The save goes on in the background while the next update overwrites the arrays."""
    learner = LearnerConfig(minibatch_steps=8, row_length=16)
    update = make_update(toy.logprobs, toy.score_estimator, OPTIMIZER, LossConfig())
    state, _ = update(target, toy.make_batch(learner))
    expected = bits(state)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        update(state, toy.make_batch(learner))
        chex.assert_trees_all_equal(bits(checkpoints.restore(toy.make_state(OPTIMIZER))[0]), expected)


def test_an_empty_directory_is_named(tmp_path, target):
    with Checkpoints(tmp_path / "nothing") as checkpoints:
        for restore in (
            lambda: checkpoints.restore(target),
            lambda: checkpoints.restore(target, "best"),
            checkpoints.meta,
        ):
            with pytest.raises(ValueError, match=r"no checkpoint in .*nothing: check the path"):
                restore()


def test_a_checkpoint_of_another_model_is_refused(tmp_path, target):
    model = {"hidden_size": 8, "num_layers": 2, "ropes": [1, 2]}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, target, {"model": model})
        assert checkpoints.restore(target, expected={"model": model | {"ropes": (1, 2)}})[1] == {"model": model}
        with pytest.raises(ValueError, match=r"model.num_layers is 2 in the checkpoint, 3 in this run"):
            checkpoints.restore(target, expected={"model": model | {"num_layers": 3}})
        with pytest.raises(ValueError, match=r"model.extra is None in the checkpoint, 1 in this run"):
            checkpoints.restore(target, expected={"model": model | {"extra": 1}})

        def with_params(**changed: Any) -> TrainState:
            params = toy.init_params() | changed
            return TrainState(params=params, opt_state=OPTIMIZER.init(params), step=target.step, key=target.key)  # pyright: ignore[reportArgumentType]

        wider = with_params(embedding=jnp.zeros((16, 9)))
        with pytest.raises(
            ValueError, match=r"embedding is float32\[16, 8\] in the checkpoint, float32\[16, 9\] in this"
        ):
            checkpoints.restore(wider)
        with pytest.raises(ValueError, match=r"embedding is float32\[16, 8\]"):
            checkpoints.restore_params(wider.params)
        with pytest.raises(ValueError, match="gate is absent in the checkpoint"):
            checkpoints.restore(with_params(gate=jnp.zeros(3)))
        sgd = make_optimizer(OptimizerConfig(name="sgd"))
        with pytest.raises(ValueError, match=r"opt_state/.* in the checkpoint, absent in this run"):
            checkpoints.restore(toy.make_state(sgd))


KILLED = """
import os, signal, sys, threading, time
import jax.numpy as jnp, jax, pathlib
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.types import TrainState

def state(value):
    params = {"w": jnp.full((4096, 4096), value)}
    return TrainState(params=params, opt_state={}, step=jnp.int32(value), key=jax.random.key(0))

directory = pathlib.Path(sys.argv[1])
checkpoints = Checkpoints(directory)
checkpoints.save(1, state(1.0), {"iteration": 1})
checkpoints.wait()

def kill_when_it_has_begun():
    while not any(path.name.startswith("2.") for path in directory.iterdir()):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=kill_when_it_has_begun).start()
checkpoints.save(2, state(2.0), {"iteration": 2})
time.sleep(60)
"""


@pytest.mark.slow
def test_kill_in_the_middle_of_a_save(tmp_path):
    """kill -9 while the second checkpoint is being written: the first is the latest, and saving goes on."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=env, timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    assert any("tmp" in path.name for path in tmp_path.iterdir()), "the kill came too late to test anything"
    params = {"w": jnp.zeros((4096, 4096))}
    target = TrainState(params=params, opt_state={}, step=jnp.int32(0), key=jax.random.key(1))
    with Checkpoints(tmp_path) as checkpoints:
        restored, meta = checkpoints.restore(target)
        assert meta == {"iteration": 1}
        assert (restored.params["w"] == 1).all()  # pyright: ignore
        assert restored.step == 1
        checkpoints.save(2, target, {"iteration": 2})
        assert checkpoints.restore(target)[1] == {"iteration": 2}
    assert not any("tmp" in path.name for path in tmp_path.iterdir())

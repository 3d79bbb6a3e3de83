"""PPO with GAE through the commands: trained, resumed, replayed, evaluated, exported; and the critic on a mesh."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest
from tiny import SETTINGS, rows

from experiments import replay, train
from experiments.assembly import Learner, resolve, signals_of
from experiments.configs import RunConfig, config_from_json
from experiments.evaluate import main as evaluate
from experiments.export import main as export
from experiments.render import annotate
from experiments.rollout_files import load_rollouts
from experiments.transcripts import Episode, Turn
from hgpo_jax.config import MeshConfig, ModelConfig
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.types import TrainState, Trajectories

TINY_MODEL = ModelConfig(40, 16, 32, 1, 2, 1, 8)
EPISODE = Episode(0, "", "train", 0, 0, True, 1.0, [Turn("hall", "hall", "go", True, 1.0)])
GAE = [*SETTINGS, "--estimator", "gae", "--optimizer.value-learning-rate", "0.05"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two iterations, batches kept."""
    where = tmp_path_factory.mktemp("critic") / "whole"
    train.main([*GAE, "--iterations", "2", "--dump-rollouts", "--directory", str(where)])
    return where


def config_of(run: Path) -> RunConfig:
    return config_from_json(run / "config.json")


def final_state(run: Path) -> TrainState:
    with Checkpoints(run / "checkpoints") as checkpoints:
        return checkpoints.restore(Learner(config_of(run)).state)[0]


@pytest.fixture(scope="module")
def taught(finished: Path) -> Learner:
    """So small a policy never earns anything: here its steps are paid at random, and its critic hears of it."""
    learner, rng = Learner(config_of(finished)), np.random.default_rng(0)
    batch = load_rollouts(finished, 1)
    paid = dataclasses.replace(batch, reward=rng.normal(3, 1, batch.num_steps), value=None, next_value=None)
    metrics = [learner.learn(paid, iteration) for iteration in range(4)]
    assert metrics[0]["explained_variance"] == pytest.approx(0, abs=1e-5)  # V is 0 everywhere
    assert metrics[-1]["value_loss"] < metrics[0]["value_loss"]
    assert metrics[-1]["optimizer_steps"] >= 1
    return learner


@pytest.mark.slow
def test_the_critic_learns(taught: Learner) -> None:
    head: Any = taught.state.params["value_head"]  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue]
    assert np.abs(np.asarray(head["kernel"])).max() > 1e-2


@pytest.mark.slow
def test_it_is_logged_and_kept(finished: Path) -> None:
    assert config_of(finished).model.value_head
    for row in rows(finished)[1:]:
        assert row["update/value_loss"] >= 0
        assert row["update/explained_variance"] <= 1
        assert "estimator/value_target" not in row
    second = load_rollouts(finished, 2)
    assert second.value is not None
    assert second.next_value is not None
    assert second.next_prompt_tokens is not None
    np.testing.assert_array_equal([len(prompt) > 0 for prompt in second.next_prompt_tokens], second.truncated)


@pytest.mark.slow
def test_a_resumed_run_ends_the_same(finished: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    train.main([*GAE, "--iterations", "1", "--directory", str(half)])
    train.main(["--resume", str(half), "--iterations", "2"])
    state, wanted = final_state(half), final_state(finished)
    chex.assert_trees_all_equal(state.params, wanted.params)
    chex.assert_trees_all_equal(state.opt_state, wanted.opt_state)


@pytest.mark.slow
def test_its_batch_is_replayed(finished: Path) -> None:
    batch = load_rollouts(finished, 1)
    own = replay.advantages_of(config_of(finished), batch)
    np.testing.assert_allclose(own.std(), rows(finished)[1]["update/advantage_std"], rtol=1e-4)
    assert replay.replay(finished, 2, update=True)["optimizer_steps"] >= 1


@pytest.mark.slow
def test_it_is_evaluated_and_exported(finished: Path, tmp_path: Path) -> None:
    evaluate([str(finished), "--tasks", "4", "--seeds", "1", "--output", str(tmp_path / "evaluation")])
    export([str(finished), str(tmp_path / "model")])
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert b"value" not in (tmp_path / "model" / "model.safetensors").read_bytes()[:100_000]


def values_of(learner: Learner, batch: Trajectories) -> tuple[np.ndarray, np.ndarray]:
    valued = learner.with_values(batch)
    assert valued.value is not None
    assert valued.next_value is not None
    return valued.value, valued.next_value


@pytest.mark.slow
def test_values_on_a_mesh(finished: Path, taught: Learner) -> None:
    """And of the prompts after a cut: they are those of the prompts as steps of their own."""
    config, batch = config_of(finished), load_rollouts(finished, 2)
    bare = dataclasses.replace(batch, value=None, next_value=None)
    meshed = Learner(dataclasses.replace(config, mesh=MeshConfig(data=2, fsdp=2)))
    places = jax.tree.map(lambda x: x.sharding, meshed.state.params)
    meshed.start_from(jax.device_put(taught.state.params, places))
    (value, next_value), on_mesh = (values_of(learner, bare) for learner in (taught, meshed))
    assert np.abs(value).min() > 0
    np.testing.assert_array_equal(next_value != 0, bare.truncated)
    np.testing.assert_allclose((value, next_value), on_mesh, atol=1e-5)
    assert bare.next_prompt_tokens is not None
    cut = np.flatnonzero(bare.truncated)
    assert len(cut)
    prompts = [bare.next_prompt_tokens[int(i)] for i in cut]
    later = dataclasses.replace(bare.take(cut), prompt_tokens=prompts, next_prompt_tokens=None)
    np.testing.assert_allclose(values_of(taught, later)[0], next_value[cut], atol=1e-5)
    blind = Learner(dataclasses.replace(config, gae=dataclasses.replace(config.gae, bootstrap_truncated=False)))
    assert not values_of(blind, bare)[1].any()


def one_step() -> Trajectories:
    tokens = [np.ones(2, np.int32)]
    return Trajectories(
        anchor_state=np.array(["hall"], object),
        prompt_group=np.zeros(1, np.int32),
        trajectory=np.zeros(1, np.int32),
        step=np.zeros(1, np.int32),
        reward=np.ones(1),
        terminated=np.ones(1, bool),
        truncated=np.zeros(1, bool),
        action_valid=np.ones(1, bool),
        prompt_tokens=tokens,
        response_tokens=tokens,
        behavior_logprob=[np.zeros(2, np.float32)],
    )


def test_the_estimator_brings_its_critic() -> None:
    config = resolve(dataclasses.replace(RunConfig(model=TINY_MODEL, tokenizer="frozen_lake"), estimator="gae"))
    assert config.model.value_head
    assert not resolve(dataclasses.replace(config, estimator="hgpo", model=TINY_MODEL)).model.value_head
    assert signals_of(config, one_step()).value is None
    valued = dataclasses.replace(one_step(), value=np.array([2.0]), next_value=np.array([0.0]))
    signals = signals_of(config, valued)
    assert (signals.value, signals.reward, signals.next_step) == (2.0, 1.0, -1)


def test_long_replies_cost_the_critics_step_too() -> None:
    base = RunConfig(model=TINY_MODEL, tokenizer="frozen_lake", estimator="gae")
    returns = dataclasses.replace(base.returns, overlong_share=1.0, overlong_penalty=4.0)
    config = dataclasses.replace(
        base, returns=returns, rollout=dataclasses.replace(base.rollout, max_response_length=4)
    )
    valued = dataclasses.replace(one_step(), value=np.array([2.0]), response_cut=np.zeros(1, bool))
    signals = signals_of(config, valued)
    np.testing.assert_allclose(np.asarray(signals.penalty), 1.0 - np.asarray(signals.step_return))  # the reward is 1
    assert np.asarray(signals.penalty) > 0


def test_an_evaluation_has_no_critic_and_shows_no_advantages() -> None:
    config = RunConfig(model=TINY_MODEL, tokenizer="frozen_lake", estimator="gae")
    assert [turn.advantage for episode in annotate(config, one_step(), [EPISODE]) for turn in episode.turns] == [None]

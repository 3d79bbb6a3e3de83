"""Which prompt groups a rollout keeps, how many rounds it takes, and that a run goes on where it was cut."""

import dataclasses
import functools
import json
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from rounds import known_act, played, rollouts, told
from several import ROOT, start_several
from tiny import SETTINGS, rows

from experiments import train
from experiments.assembly import Learner, signals_of
from experiments.configs import config_from_json, load_config
from hgpo_jax.estimators import make_estimator
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.types import Trajectories


def first_prompts(batch: Trajectories) -> list[bytes]:
    """Of each prompt group: what its first step read, which differs from map to map."""
    return [batch.prompt_tokens[np.flatnonzero(batch.prompt_group == g)[0]].tobytes() for g in _groups(batch)]


def _groups(batch: Trajectories) -> np.ndarray:
    return np.unique(batch.prompt_group)


@functools.cache
def every_group(tasks: int) -> list[bytes]:
    """The same of the tasks 0, 1, .., none of them dropped."""
    made = rollouts(known_act(lambda _: True), 0, tasks=tasks)
    return first_prompts(made.train(None, 0, jax.random.key(0)).batch)


@pytest.mark.parametrize(
    ("mixed", "rounds", "kept", "played_rounds", "dropped", "surplus"),
    [
        ({0, 1}, 4, [0, 1], 1, 0, 0),
        ({2, 5}, 4, [2, 5], 3, 4, 0),
        ({0, 2, 3}, 4, [0, 2], 2, 1, 1),  # 3 comes too late
        ({0, 5}, 2, [0], 2, 3, 0),  # 5 is not reached
    ],
)
def test_groups_are_filled_up_in_the_order_of_the_tasks(
    mixed: set[int], rounds: int, kept: list[int], played_rounds: int, dropped: int, surplus: int
) -> None:
    batch, metrics = played(mixed, rounds)
    assert first_prompts(batch) == [every_group(6)[task] for task in kept]
    assert len(np.unique(batch.trajectory)) == 4 * len(kept)
    figures = ("rounds", "groups_dropped", "groups_surplus", "groups_kept_share", "episodes")
    assert [metrics[name] for name in figures] == [
        played_rounds,
        dropped,
        surplus,
        len(kept) / (2 * played_rounds),
        8 * played_rounds,
    ]
    won = 2 * len([task for task in mixed if task < 2 * played_rounds])
    assert metrics["success"] == won / metrics["episodes"], "of all that was rolled out"
    assert np.bincount(batch.prompt_group, batch.reward > 0)[_groups(batch)].tolist() == [2] * len(kept)
    signals = signals_of(load_config("frozen_lake"), batch)
    assert (np.asarray(make_estimator(load_config("frozen_lake").hgpo)(signals)[0]) != 0).any()


def test_all_won_is_dropped_though_the_lengths_differ() -> None:
    """Discounted returns differ there; the rule looks at rewards."""
    act = known_act(lambda task: task == 1, won=lambda task: task == 0)
    batch, metrics, outcomes = rollouts(act, 1).train(None, 0, jax.random.key(0))
    assert metrics["groups_dropped"] == 1
    assert first_prompts(batch) == [every_group(6)[1]]
    assert len(outcomes) == 8
    lengths = [outcome.steps for outcome in outcomes[:4]]
    assert lengths[1] == lengths[0] + 1
    assert all(outcome.won for outcome in outcomes[:4])


@pytest.mark.parametrize("estimator", ["hgpo", "gigpo", "grpo", "rloo", "reinforce"])
def test_without_a_group_there_is_no_advantage(estimator: str) -> None:
    batch, metrics = played(set(), 2)
    assert metrics["groups_kept_share"] == 0
    assert batch.num_steps == 2
    config = dataclasses.replace(load_config("frozen_lake"), estimator=estimator)
    advantages, _ = make_estimator(config.estimator_config)(signals_of(config, batch))
    np.testing.assert_array_equal(advantages, [0, 0])


def test_rounds_draw_anew_and_are_announced() -> None:
    act, keys, announced = known_act(lambda _: False), [], []

    def noting(params, requests, sampling):
        keys.extend(tuple(request.key.tolist()) for request in requests if request.turn == 0)
        return act(params, requests, sampling)

    rollouts(noting, 3).train(None, 0, jax.random.key(0), lambda: announced.append(len(keys)))
    assert len(set(keys)) == len(keys) == 24
    assert announced == [0, 8, 16]


def test_groups_of_one_are_refused() -> None:
    made = rollouts(known_act(lambda _: True), 3, group_size=1)
    with pytest.raises(ValueError, match=r"each group of one is: raise rollout.group_size, or set it to 0"):
        made.train(None, 0, jax.random.key(0))


@pytest.mark.slow
def test_two_processes_keep_what_one_keeps() -> None:
    expected = [told((2, 5)), told((0, 2))]
    with start_several(2, 1, str(ROOT / "tests/experiments/rounds.py"), options=False) as processes:
        assert processes.wait(120) == [0, 0], processes.outputs()
        lines = [processes.logs[i].read_text().splitlines() for i in range(2)]
    parts = [json.loads(next(line for line in own if line.startswith("told "))[5:]) for own in lines]
    for both, alone in zip(zip(*parts, strict=True), expected, strict=True):
        for part in both:
            assert {**part, "prompts": 0} == {**alone, "prompts": 0}
    assert parts[0][0]["prompts"] + parts[1][0]["prompts"] == expected[0]["prompts"]
    assert parts[0][1]["prompts"] == expected[1]["prompts"]
    nothing = parts[1][1]["prompts"]
    assert len(nothing) == 2, "a process without a group keeps a step, twice"
    assert nothing[0] == nothing[1]


@pytest.mark.slow
def test_a_run_with_the_recipe_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third task of the stream is informative: two of them take three rounds of two."""
    first = 1_000_000  # of seed 1's stream

    def known(*_: object) -> object:
        return known_act(lambda task: task >= first and task % 3 == 0)

    monkeypatch.setattr("experiments.rollouts.make_actor", known)
    args = [*SETTINGS, "--seed", "1", "--recipe", "dapo", "--warm-start.batches", "0", "--rollout.max-steps", "8"]
    args += ["--learner.old-logprob", "recompute", "--evaluation.every", "1"]
    train.main([*args, "--iterations", "3", "--directory", str(tmp_path / "whole")])
    train.main([*args, "--iterations", "2", "--directory", str(tmp_path / "cut")])
    train.main(["--resume", str(tmp_path / "cut"), "--iterations", "3"])
    states = []
    for name in ("whole", "cut"):
        config = config_from_json(tmp_path / name / "config.json")
        assert (config.loss.clip_high, config.loss.kl_coef, config.rollout.dynamic_sampling_rounds) == (0.28, 0, 10)
        with Checkpoints(tmp_path / name / "checkpoints") as checkpoints:
            state, meta = checkpoints.restore(Learner(config).state)
        assert meta["next_task"] == first + 3 * 6
        states.append((state.params, state.opt_state, jax.random.key_data(state.key)))
    chex.assert_trees_all_equal(*states)
    timing = ("seconds", "tokens_per_second")
    recorded = [
        [{k: v for k, v in row.items() if not k.endswith(timing)} for row in rows(tmp_path / n)]
        for n in ("whole", "cut")
    ]
    assert recorded[0] == recorded[1]
    for row in recorded[0][1:]:
        assert [row[f"train/{name}"] for name in ("rounds", "groups_dropped", "groups_kept_share")] == [3, 4, 1 / 3]
        assert row["update/optimizer_steps"] >= 1
        assert "update/kl" not in row

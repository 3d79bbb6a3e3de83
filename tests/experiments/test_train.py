"""The loop end to end: a run, its folder, stopping and resuming, and what a user may get wrong."""

import json
import shutil
import signal
import sys
import types
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest
from tiny import SETTINGS, rows, start, wait_for

from experiments import evaluate, replay, train
from experiments.assembly import Learner
from experiments.configs import config_from_json, config_to_json, load_config
from experiments.console import count_compilations
from experiments.records import Records
from experiments.rollout_files import load_rollouts
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.types import Trajectories

CHECKPOINT = Path(__file__).parents[1] / "golden/qwen/qwen2_tied"  # no run, though it has a config.json


def final_state(directory: Path) -> Any:
    learner = Learner(config_from_json(directory / "config.json"))
    with Checkpoints(directory / "checkpoints") as checkpoints:
        state, meta = checkpoints.restore(learner.state)
    return state, meta


def error_of(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        train.main(args)
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "whole"
    process = start(*SETTINGS, "--iterations", "4", "--directory", str(directory), "--dump-rollouts")
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert "held-out tasks" in output
    return directory


@pytest.mark.slow
def test_run_leaves_a_complete_folder(finished: Path) -> None:
    recorded = rows(finished)
    assert [row["iteration"] for row in recorded] == [0, 1, 2, 3, 4]
    assert ["eval/success" in row for row in recorded] == [True, False, True, False, True]
    wanted = {"train/success", "train/episode_length", "train/valid_action_share", "train/tokens_per_second"}
    assert all(wanted <= row.keys() for row in recorded[1:])
    # Behaviour log-probabilities come from the sampler: learner and sampler run the same model.
    assert all(row["update/sampler_gap_max"] < 1e-4 for row in recorded[1:])
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["versions"]["jax"] == jax.__version__
    assert (finished / "learning_curve.png").stat().st_size > 5_000
    assert (finished / "groups.png").stat().st_size > 5_000
    by_level = {"coverage", "mean_group_size", "used_share", "effective_weight"}
    assert all(len(row[f"estimator/{name}"]) == 3 for row in recorded[1:] for name in by_level)
    context = {"inconsistent_groups", "inconsistent_steps", "baseline_spread"}
    assert all(len(row[f"context/{name}"]) == 2 for row in recorded[1:] for name in context)
    assert all(0 <= row["estimator/no_signal"] <= 1 for row in recorded[1:])
    assert list((finished / "tensorboard").glob("events*"))


@pytest.mark.slow
def test_killed_and_resumed_run_ends_with_the_same_parameters(finished: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = start(*SETTINGS, "--iterations", "4", "--directory", str(killed))
    wait_for(lambda: len(rows(killed)) >= 3 and any((killed / "checkpoints").glob("[0-9]*")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(rows(killed)) < 5, "the run was over before it could be killed"
    process = start("--resume", str(killed))
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    (state, meta), (expected, expected_meta) = final_state(killed), final_state(finished)
    chex.assert_trees_all_equal(state.params, expected.params)
    chex.assert_trees_all_equal(state.opt_state, expected.opt_state)
    assert meta["next_task"] == expected_meta["next_task"] == 10
    assert [row["iteration"] for row in rows(killed)] == [0, 1, 2, 3, 4]
    timing = ("seconds", "tokens_per_second")
    for row, other in zip(rows(killed), rows(finished), strict=True):
        assert {k: v for k, v in row.items() if not k.endswith(timing)} == {
            k: v for k, v in other.items() if not k.endswith(timing)
        }


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    process = start(*SETTINGS, "--checkpoint-every", "1000", "--iterations", "1000", "--directory", str(tmp_path))
    wait_for(lambda: len(rows(tmp_path)) >= 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert f"--resume {tmp_path}" in output
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.iterations()[-1] == rows(tmp_path)[-1]["iteration"]


@pytest.mark.slow
def test_recorded_batch_replays_estimators_and_an_update(finished: Path) -> None:
    config = config_from_json(finished / "config.json")
    batch = load_rollouts(finished, 1)
    advantages = replay.advantages_of(config, batch)
    chex.assert_shape(advantages, (batch.num_steps,))
    # The figure logged while training is that of the same steps, packed in another order.
    np.testing.assert_allclose(advantages.std(), rows(finished)[1]["update/advantage_std"], rtol=1e-4)
    assert replay.replay(finished, 4, update=True)["optimizer_steps"] >= 1


@pytest.mark.slow
def test_a_batch_that_was_not_kept(finished: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no batch of iteration 12 in .*: train with --dump-rollouts; batches kept: 1, 2, 3, 4"
    ):
        replay.replay(finished, 12)


@pytest.mark.slow
def test_a_resumed_run_tells_what_changed(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both ways to write --resume start from the run's own config, not from the default."""
    again = tmp_path / "again"
    shutil.copytree(finished, again)
    assert "seed is 5, but the run was started with 0" in error_of(["--resume", str(again), "--seed", "5"], capsys)
    train.main([f"--resume={again}", "--iterations", "5", "--estimator", "gigpo"])
    said = capsys.readouterr().out
    assert "resuming with iterations = 5 (was 4)" in said
    assert "resuming with estimator = gigpo (was hgpo)" in said
    assert said.count("resuming with") == 2
    assert [row["iteration"] for row in rows(again)] == [0, 1, 2, 3, 4, 5]
    assert config_from_json(again / "config.json").model == config_from_json(finished / "config.json").model


@pytest.mark.slow
def test_evaluation_of_a_run(finished: Path) -> None:
    record = evaluate.evaluate(evaluate.EvaluateCommand(str(finished), seeds=(123, 456)))
    recorded, split = rows(finished)[-1], record["splits"]["test"]
    assert split["panel"]["name"] == recorded["eval/panel"]
    for name in ("success", "episode_length", "valid_action_share", "response_length"):
        figure = split["passes"][0]["metrics"][name]
        assert figure == recorded[f"eval/{name}"], "seed 123 is the one used in training"
    assert json.loads((finished / "evaluation.json").read_text()) == record


@pytest.mark.slow
def test_checkpoint_of_another_model(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = error_of(["--resume", str(finished), "--model.hidden-size", "32"], capsys)
    assert "does not fit: embed is float32[40, 16] in the checkpoint, float32[40, 32] in this run" in message


@pytest.mark.slow
def test_a_folder_with_a_run_is_not_overwritten(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "already holds a run" in error_of([*SETTINGS, "--directory", str(finished)], capsys)


@pytest.mark.slow
def test_a_run_needs_few_compilations(tmp_path: Path) -> None:
    count = count_compilations()
    train.main([*SETTINGS, "--iterations", "2", "--directory", str(tmp_path / "a")])
    assert len(rows(tmp_path / "a")) == 3
    first = len(count)
    assert 0 < first <= 40


@pytest.mark.slow
def test_a_mesh_gives_the_run_of_one_device(tmp_path: Path) -> None:
    """Sampling from sharded parameters, grouping, update and checkpoint on eight devices."""
    args = [*SETTINGS, "--iterations", "2", "--directory"]
    train.main([*args, str(tmp_path / "one")])
    mesh = ("--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2")
    train.main([*args, str(tmp_path / "eight"), *mesh])
    for one, eight in zip(rows(tmp_path / "one"), rows(tmp_path / "eight"), strict=True):
        for name in one:
            if name == "eval/panel":
                assert eight[name] == one[name]
            elif not name.endswith(("seconds", "tokens_per_second")):
                np.testing.assert_allclose(eight[name], one[name], rtol=2e-3, atol=2e-4, err_msg=name)
    assert all(row["update/optimizer_steps"] >= 1 for row in rows(tmp_path / "one")[1:]), "nothing was compared"
    one, eight = (final_state(tmp_path / name)[0] for name in ("one", "eight"))
    assert len(jax.tree.leaves(eight.params)[0].sharding.device_set) == 8
    chex.assert_trees_all_close(jax.device_get(eight.params), jax.device_get(one.params), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["gigpo", "grpo", "rloo", "reinforce"])
def test_every_rival_trains(estimator: str, tmp_path: Path) -> None:
    train.main([*SETTINGS, "--iterations", "1", "--directory", str(tmp_path), "--estimator", estimator])
    row = rows(tmp_path)[1]
    assert row["update/optimizer_steps"] >= 1
    assert row["update/signal_share"] > 0
    assert 0 < row["update/grad_norm"] < np.inf
    assert config_from_json(tmp_path / "config.json").estimator == estimator


@pytest.mark.slow
def test_profile_writes_a_trace(tmp_path: Path) -> None:
    train.main([*SETTINGS, "--iterations", "1", "--directory", str(tmp_path), "--profile"])
    traces = list((tmp_path / "profile").rglob("*.xplane.pb"))
    assert len(traces) == 1
    assert traces[0].stat().st_size > 10_000


def test_wandb_gets_every_scalar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is an extra; a stand-in notes the calls."""
    calls: list[Any] = []

    class Run:
        log = staticmethod(lambda scalars, step: calls.append((step, scalars)))
        finish = staticmethod(lambda: calls.append("finish"))

    stand_in = types.ModuleType("wandb")
    setattr(stand_in, "init", lambda **settings: calls.append(settings) or Run())  # noqa: B010 (a module has no such field)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    records = Records(tmp_path, wandb=True)
    records.add(3, {"eval/success": np.float32(0.5), "estimator/coverage": np.ones(2)})
    records.close()
    settings, logged, finish = calls
    assert settings["project"] == "hgpo_jax"
    assert settings["id"] == tmp_path.name, "a resumed run goes on in the same W&B run"
    assert logged == (3, {"iteration": 3, "eval/success": 0.5})
    assert finish == "finish"
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install 'hgpo_jax\[wandb\]'"):
        Records(tmp_path, wandb=True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["frozen_lakes"], "no config named 'frozen_lakes' in experiments/configs; similar names: frozen_lake"),
        (["--resume", "nowhere"], "nowhere/config.json is missing"),
        (["--resume", str(CHECKPOINT)], "not a run's config of this version"),
        (["--directory", f"{CHECKPOINT}/config.json"], "Not a directory"),
        (["--mesh.data", "3", "--mesh.tensor", "7"], "devices"),
        (["--model.vocab-size", "5"], "set model.vocab_size"),
        (["--tokenizer", "none"], "frozen_lake"),
        (["--iterations", "0"], "iterations is 0"),
        (["--evaluation.every", "0"], "evaluation.every is 0"),
        (["--evaluation.tasks", "-1"], "evaluation.tasks is -1"),
        (["--rollout.group-size", "0"], "rollout.group_size is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--env", "hgpo/Nope-v0"], "text environments here are hgpo/FrozenLakeText-v0"),
        (["--hgpo.alpha", "-1"], "alpha"),
        (["--hgpo.context-length", "-1"], "context_length"),
        (["--rollout.train-sampling.temperature", "0"], "temperature must be above 0"),
        (["--rollout.tensor", "2"], "rollout.tensor is 2, but without a mesh there is one device"),
        (["--mesh.fsdp", "8", "--rollout.tensor", "3"], "does not use the 8 devices of a process"),
    ],
)
def test_bad_settings_name_the_remedy(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    extra = [] if {"--resume", "--directory"} & {*args} else ["--directory", str(tmp_path / "run")]
    error = error_of([*args, *extra], capsys)
    assert words in error
    assert len(error) < 600, "one line, not a list of all that is wrong"


@pytest.mark.slow
def test_batch_without_advantage_skips_the_update(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("frozen_lake")
    learner = Learner(config)
    before = jax.device_get((learner.state.params, learner.state.opt_state))
    prompt, reply = np.arange(3, 9, dtype=np.int32), np.array([5, 1], np.int32)
    n = 8
    batch = Trajectories(
        anchor_state=np.array(["same"] * n, object),
        prompt_group=np.zeros(n, np.int32),
        trajectory=np.arange(n, dtype=np.int32),
        step=np.zeros(n, np.int32),
        reward=np.zeros(n, np.float32),
        terminated=np.ones(n, bool),
        truncated=np.zeros(n, bool),
        action_valid=np.ones(n, bool),
        prompt_tokens=[prompt] * n,
        response_tokens=[reply] * n,
        behavior_logprob=[np.full(2, -1.0, np.float32)] * n,
    )
    row = train._update(learner, batch, 7)
    assert row["update/signal_share"] == 0
    assert row["update/optimizer_steps"] == 0
    chex.assert_trees_all_equal((learner.state.params, learner.state.opt_state), before)
    said = " ".join(capsys.readouterr().out.split())
    assert "iteration 7: no advantage in the whole batch (every return is the same)" in said


def test_config_survives_json(tmp_path: Path) -> None:
    config = load_config("frozen_lake")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_to_json(config)))
    assert config_from_json(path) == config
    path.write_text(json.dumps(config_to_json(config) | {"sed": 1}))
    with pytest.raises(ValueError, match="sed"):
        config_from_json(path)

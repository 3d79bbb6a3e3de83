"""Fine-tuning end to end: transcripts, the folder, stopping and resuming, and reinforcement from what was learned."""

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
from tiny import ROOT, SETTINGS, rows, wait_for

from envs.core import Expert
from envs.frozen_lake import FrozenLakeText, shortest_path
from experiments import demonstrations, imitation, sft, train
from experiments.assembly import Learner
from experiments.configs import SFTConfig, config_from_json, load_config
from experiments.records import Records
from experiments.rollouts import Rollouts
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.policy.tokenization import Tokenizer, load_tokenizer
from hgpo_jax.types import Trajectories

QWEN = ROOT / "tests/golden/qwen/qwen2_tied"
ARGS = [*SETTINGS, "--rollout.max-steps", "8", "--episodes", "40", "--held-out", "0.1", "--learning-rate", "0.01"]
TIMING = ("seconds", "tokens_per_second")
make_expert = FrozenLakeText.make_expert


def start(*args: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error::UserWarning", "-m", "experiments.sft", *args]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def params_of(directory: Path) -> Any:
    learner = Learner(config_from_json(directory / "config.json"))
    with Checkpoints(directory / "checkpoints") as checkpoints:
        return checkpoints.restore_params(learner.state.params, "latest")[0]


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.endswith(TIMING)}


def error_of(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        sft.main(args)
    assert stop.value.code == 2
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "whole"
    process = start(*ARGS, "--directory", str(directory))
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    panel = rows(directory)[-1]["eval/panel"]
    assert panel.startswith("test-4-seed0-")
    assert f"success {rows(directory)[-1]['eval/success']:.3f} on panel {panel}" in " ".join(output.split())
    return directory


@pytest.mark.slow
def test_run_leaves_a_complete_folder(finished: Path) -> None:
    recorded = rows(finished)
    start, end = recorded[0], recorded[-1]
    played = Trajectories.load(finished / "expert.npz")
    assert start["expert/kept"] == start["expert/episodes"] == 40
    steps = 3 * -(-int((played.trajectory < 36).sum()) // 16)
    assert [row["iteration"] for row in recorded] == list(range(steps + 1))
    assert end["epoch"] == 3
    assert sum("held_out/loss" in row for row in recorded) == 4
    assert end["held_out/loss"] < 0.5 * start["held_out/loss"]
    assert end["held_out/token_accuracy"] > start["held_out/token_accuracy"]
    assert 0 <= end["held_out/reply_accuracy"] <= end["held_out/token_accuracy"] <= 1
    assert end["eval/valid_action_share"] > 0.5, "every expert's reply is valid, and so are most of the policy's"
    assert (finished / "loss_curve.png").stat().st_size > 5_000
    assert json.loads((finished / "environment.json").read_text())["versions"]["jax"]


@pytest.mark.slow
def test_killed_and_resumed_run_ends_with_the_same_parameters(finished: Path, tmp_path: Path) -> None:
    process = start(*ARGS, "--directory", str(tmp_path))
    epoch = len(rows(finished)) // 3

    def in_second_epoch() -> bool:
        return len(rows(tmp_path)) > epoch + 2 and any((tmp_path / "checkpoints").glob("[0-9]*"))

    wait_for(in_second_epoch, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(rows(tmp_path)) < len(rows(finished)), "the run was over before it could be killed"
    played = (tmp_path / "expert.npz").stat().st_mtime_ns
    process = start("--resume", str(tmp_path))
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert (tmp_path / "expert.npz").stat().st_mtime_ns == played, "the episodes were played again"
    chex.assert_trees_all_equal(params_of(tmp_path), params_of(finished))
    assert list(map(untimed, rows(tmp_path))) == list(map(untimed, rows(finished)))


@pytest.mark.slow
def test_ctrl_c_saves_in_the_middle_of_an_epoch(finished: Path, tmp_path: Path) -> None:
    process = start(*ARGS, "--directory", str(tmp_path))
    wait_for(lambda: len(rows(tmp_path)) >= 3, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert f"python -m experiments.sft --resume {tmp_path}" in output
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.iterations()[-1] == rows(tmp_path)[-1]["iteration"] < len(rows(finished)) - 1
    sft.main(["--resume", str(tmp_path)])
    assert list(map(untimed, rows(tmp_path))) == list(map(untimed, rows(finished)))


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["frozen_lake", ""])
def test_reinforcement_goes_on_from_the_model(finished: Path, tmp_path: Path, tokenizer: str) -> None:
    """With the shipped tokenizer and with the folder's own, the first evaluation is the last one of fine-tuning."""
    args = ["--rollout.max-steps", "8", "--iterations", "1", "--tokenizer", tokenizer]
    train.main([*SETTINGS, *args, "--init", str(finished / "model"), "--directory", str(tmp_path)])
    first, last = rows(tmp_path)[0], rows(finished)[-1]
    evaluation = {name: value for name, value in untimed(last).items() if name.startswith("eval/")}
    assert evaluation == {name: first[name] for name in evaluation}
    assert evaluation["eval/response_length"] > 1
    assert isinstance(load_tokenizer(finished / "model"), Tokenizer)


@pytest.mark.slow
def test_more_epochs_go_on_and_little_else_may_change(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [*ARGS, "--episodes", "16", "--held-out", "0", "--directory", str(tmp_path)]
    sft.main([*short, "--epochs", "1"])
    assert "already holds a run: go on with --resume" in error_of(short, capsys)
    done = len(rows(tmp_path)) - 1
    assert not any(name.startswith("held_out") for row in rows(tmp_path) for name in row)
    for name, was in (("episodes", "16"), ("learner.minibatch-steps", "16"), ("seed", "0")):
        error = error_of(["--resume", str(tmp_path), f"--{name}", "7"], capsys)
        assert f"{name.replace('-', '_')} is 7, but the run was started with {was}: leave it out" in error
    sft.main([f"--resume={tmp_path}", "--epochs", "2"])
    assert "resuming with epochs = 2 (was 1)" in capsys.readouterr().out
    assert rows(tmp_path)[-1]["iteration"] == 2 * done
    settings = (tmp_path / "sft.json").read_text()
    assert "epochs is 1, but this run has done 2.0" in error_of(["--resume", str(tmp_path), "--epochs", "1"], capsys)
    assert (tmp_path / "sft.json").read_text() == settings, "what was refused is not remembered"


@pytest.mark.slow
def test_epochs_lowered_to_those_done_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after the first of two epochs: resumed with one, it is evaluated and exported."""
    add, asked = Records.add, []

    def add_and_ask(records: Records, iteration: int, metrics: dict[str, Any]) -> dict[str, Any]:
        if metrics.get("epoch") == 1 and not asked:
            asked.append(iteration)
            signal.raise_signal(signal.SIGINT)
        return add(records, iteration, metrics)

    monkeypatch.setattr(Records, "add", add_and_ask)
    sft.main([*ARGS, "--episodes", "16", "--epochs", "2", "--directory", str(tmp_path)])
    assert rows(tmp_path)[-1]["iteration"] == asked[0]
    assert "eval/success" not in rows(tmp_path)[-1]
    before = rows(tmp_path)
    sft.main(["--resume", str(tmp_path), "--epochs", "1"])
    assert (tmp_path / "model" / "config.json").exists()
    assert rows(tmp_path)[:-1] == before[:-1], "a row for each step, as before"
    last = rows(tmp_path)[-1]
    assert last == before[-1] | {name: value for name, value in last.items() if name.startswith("eval/")}
    assert "eval/success" in last


@pytest.mark.slow
def test_a_mesh_gives_the_run_of_one_device(tmp_path: Path) -> None:
    args = [*ARGS, "--episodes", "16", "--epochs", "1", "--learner.rows-per-device", "1", "--directory"]
    sft.main([*args, str(tmp_path / "one")])
    sft.main([*args, str(tmp_path / "eight"), "--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2"])
    names = ("train/loss", "held_out/loss", "held_out/token_accuracy")
    one, eight = (rows(tmp_path / name) for name in ("one", "eight"))
    for row, other in zip(one, eight, strict=True):
        for name in names:
            np.testing.assert_allclose(other.get(name, 0), row.get(name, 0), rtol=1e-3, err_msg=name)


@pytest.mark.slow
def test_adapters_of_a_loaded_model_learn(tmp_path: Path) -> None:
    """The exported model has the base's shape and other weights than it; its tokenizer is the base's."""
    args = ["--init", str(QWEN), "--tokenizer", "", "--model.lora-rank", "2", "--warm-start.batches", "0"]
    sizes = ["--rollout.max-prompt-length", "192", "--rollout.max-response-length", "16", "--learner.row-length", "208"]
    fewer = ["--rollout.history-length", "0", "--episodes", "8", "--epochs", "1", "--minibatch-steps", "4"]
    sft.main([*ARGS, *args, *sizes, *fewer, "--directory", str(tmp_path)])
    losses = [row["train/loss"] for row in rows(tmp_path)[1:]]
    assert losses[-1] < 0.9 * losses[0]
    assert load_tokenizer(tmp_path / "model").encode_prompt("go") == load_tokenizer(QWEN).encode_prompt("go")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (QWEN, tmp_path / "model"))
    assert before["hidden_size"] == after["hidden_size"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--expert", "oracle"], "has no expert 'oracle'; there are: planner"),
        (["--episodes", "0"], "episodes is 0, but has to be at least 1"),
        (["--episodes", "500001"], "episodes is 500001, expected 500000 at most"),
        (["--slips", "1"], "slips is 1.0, expected a share from 0 to below 1"),
        (["--minibatch-steps", "0"], "minibatch_steps is 0, but has to be at least 1"),
        (["--epochs", "0"], "epochs is 0, but has to be at least 1"),
        (["--held-out", "1"], "held_out is 1.0, expected a share from 0 to below 1"),
        (["--learning-rate", "-1"], "learning_rate is -1.0, but has to be above 0"),
        (["--resume", "nowhere"], "nowhere/config.json is missing"),
        (["lake"], "no config named 'lake' in experiments/configs; there are: alfworld_"),
        (
            ["--processes.count", "2", "--processes.id", "0", "--processes.coordinator", "HOST:1"],
            "sft runs in one process: leave --processes out",
        ),
        (["--rollout.max-steps", "2"], "the expert won none of 8 episodes of at most 2 steps: raise --max-steps"),
        (["--max-steps", "2"], "the expert won none of 8 episodes of at most 2 steps"),
        (["--max-steps", "0"], "max_steps is 0, but has to be at least 1"),
        (["--prompt-weight", "-1"], "prompt_weight is -1.0, but has to be 0 or more"),
        (["--rollout.max-response-length", "2"], "longest reply has 5 tokens, but rollout.max_response_length is 2"),
        (["--episodes", "2", "--held-out", "0.9"], "episodes were kept, and 2 of them are to be held out"),
    ],
)
def test_bad_settings_name_the_remedy(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if not {"lake", "--resume"} & {*args}:
        args = [*SETTINGS, "--rollout.max-steps", "9", "--episodes", "8", *args, "--directory", str(tmp_path / "run")]
    assert words in error_of(args, capsys)


@pytest.mark.slow
def test_a_loss_that_explodes_ends_the_run_unsaved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    error = error_of([*ARGS, "--learning-rate", "1e38", "--directory", str(tmp_path)], capsys)
    assert "or its gradient is not finite: lower --learning-rate; --resume goes on from the last checkpoint" in error
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


def test_the_weight_of_prompts_reaches_the_update(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def update(*_: Any, prompt_weight: float, **__: Any) -> None:
        raise ValueError(f"prompts weigh {prompt_weight}")

    monkeypatch.setattr(imitation, "make_supervised_update", update)
    args = [*SETTINGS, "--rollout.max-steps", "9", "--episodes", "8", "--directory"]
    assert "prompts weigh 0.0" in error_of([*args, str(tmp_path / "without")], capsys)
    assert "prompts weigh 0.25" in error_of([*args, str(tmp_path / "with"), "--prompt-weight", "0.25"], capsys)


def make_clumsy_expert(name: str, task: int, split: str) -> Expert:
    """Walks against the shore where a task's number is even."""
    expert = make_expert(name, task, split)
    return expert if task % 2 else lambda observation, info: "go up"


def test_lost_episodes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tasks, four at a time: those of odd numbers are won."""
    config = load_config("frozen_lake")
    config = dataclasses.replace(config, seed=3, rollout=dataclasses.replace(config.rollout, tasks=4, group_size=1))
    monkeypatch.setattr(FrozenLakeText, "make_expert", staticmethod(make_clumsy_expert))
    shown: list[int] = []
    batch = demonstrations.play(Rollouts(config), SFTConfig(episodes=10), shown.append, lambda: False)
    assert batch is not None
    assert shown == [0, 4, 8, 10]
    assert batch.reward.sum() == 5 * 10
    episodes = np.unique(batch.trajectory)
    assert len(episodes) == 5
    prompts = [FrozenLakeText.fingerprint(3_500_000 + task, "train") for task in (1, 3, 5, 7, 9)]
    lengths = [len(shortest_path(prompt.split("/"))) for prompt in prompts]
    assert np.bincount(batch.trajectory)[episodes].tolist() == lengths, "tasks 500,000 to 500,009 of the seed"
    trained, held_out = demonstrations.split_off(batch, 0.4)
    assert held_out is not None
    assert set(trained.trajectory) == set(episodes[:3])
    assert set(held_out.trajectory) == set(episodes[3:])
    assert trained.num_steps + held_out.num_steps == batch.num_steps
    assert demonstrations.split_off(batch, 0.0) == (batch, None)
    assert demonstrations.play(Rollouts(config), SFTConfig(episodes=10), shown.append, lambda: True) is None
    everything = SFTConfig(episodes=10, only_won=False)
    batch = demonstrations.play(Rollouts(config), everything, shown.append, lambda: False)
    assert batch is not None
    assert batch.reward.sum() == 5 * 10
    assert len(np.unique(batch.trajectory)) == 10, "or of all, those that are lost too"

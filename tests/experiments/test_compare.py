"""Runs of several estimators from one warm start: done once, resumed where they were cut, and told in a table."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from tiny import SETTINGS, rows

from experiments import compare, train
from experiments.records import Records

pytestmark = pytest.mark.slow

COMMAND = [
    *("frozen_lake", *SETTINGS, "--rollout.max-steps", "8", "--iterations", "2", "--sft.episodes", "12"),
    *("--sft.epochs", "1", "--estimators", "hgpo", "grpo", "--seeds", "1"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    compare.main([*COMMAND, "--directory", str(folder)])
    return folder


def test_every_run_starts_from_the_warm_start(folder: Path) -> None:
    warm = rows(folder / "warm_start")[-1]
    runs = [rows(folder / f"{estimator}-seed0") for estimator in ("hgpo", "grpo")]
    for run in runs:
        assert [row["iteration"] for row in run] == [0, 1, 2]
        for name in ("eval/success", "eval/episode_length", "eval/panel"):
            assert run[0][name] == warm[name], "iteration 0 is the warm start"
    told = json.loads((folder / "comparison.json").read_text())
    assert told["panel"] == warm["eval/panel"]
    assert told["success"] == {
        estimator: {"before": [run[0]["eval/success"]], "after": [run[-1]["eval/success"]]}
        for estimator, run in zip(("hgpo", "grpo"), runs, strict=True)
    }
    assert (folder / "comparison.png").stat().st_size > 10_000


def test_the_same_command_does_nothing_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "train", lambda *_: pytest.fail("a finished run was run again"))
    monkeypatch.setattr(compare, "sft", lambda *_: pytest.fail("the warm start was made again"))
    compare.main([*COMMAND, "--directory", str(folder)])
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("finished before") == 2
    assert "hgpo │ 1" in out


def test_a_run_cut_short_is_resumed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a kill in the last iteration: it goes on from the checkpoint before."""
    command = [*COMMAND, "--init", str(folder / "warm_start" / "model"), "--estimators", "hgpo"]
    stopped: list[int] = []
    add = Records.add

    def cut(self: Records, iteration: int, metrics: dict) -> dict:
        if iteration == 2 and not stopped:
            stopped.append(iteration)
            raise OSError("the disk is full")
        return add(self, iteration, metrics)

    monkeypatch.setattr(Records, "add", cut)
    with pytest.raises(SystemExit):
        compare.main([*command, "--directory", str(tmp_path)])
    resumed = []
    real = train.train
    monkeypatch.setattr(compare, "train", lambda command: resumed.append(command.resume) or real(command))
    compare.main([*command, "--directory", str(tmp_path)])
    assert resumed == [tmp_path / "hgpo-seed0"]
    timing = ("seconds", "tokens_per_second")
    for row, wanted in zip(rows(tmp_path / "hgpo-seed0"), rows(folder / "hgpo-seed0"), strict=True):
        assert {k: v for k, v in row.items() if not k.endswith(timing)} == {
            k: v for k, v in wanted.items() if not k.endswith(timing)
        }


def test_more_iterations_go_on(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "hgpo-seed0", tmp_path / "hgpo-seed0")
    command = [*COMMAND, "--init", str(folder / "warm_start" / "model"), "--estimators", "hgpo"]
    compare.main([*command, "--iterations", "3", "--directory", str(tmp_path)])
    longer = rows(tmp_path / "hgpo-seed0")
    assert longer[:3] == rows(folder / "hgpo-seed0")
    assert [row["iteration"] for row in longer] == [0, 1, 2, 3]


def test_other_settings_are_not_mixed_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main([*COMMAND, "--optimizer.learning-rate", "0.5", "--directory", str(folder)])
    assert ended.value.code == 2
    assert "was run with optimizer.learning_rate = 0.001, not 0.5: choose another --directory" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_run_without_an_evaluation_is_not_counted(tmp_path: Path) -> None:
    """As of another program's folder: its last iteration is there, but no success before and after."""
    config = dataclasses.replace(compare.load_config("frozen_lake"), iterations=2, init="a/model")
    command = compare.CompareCommand(config, estimators=("hgpo",), seeds=1, directory=tmp_path)
    (tmp_path / "hgpo-seed0").mkdir()
    path = tmp_path / "hgpo-seed0" / "metrics.jsonl"
    path.write_text("".join(json.dumps({"iteration": i}) + "\n" for i in range(3)))
    assert compare._report(command, tmp_path) == {"hgpo": {"before": [], "after": []}}


def test_nothing_to_compare() -> None:
    command = compare.CompareCommand(compare.load_config("frozen_lake"))
    with pytest.raises(ValueError, match="nothing to compare: 3 estimators, 0 seeds"):
        compare.compare(dataclasses.replace(command, seeds=0))

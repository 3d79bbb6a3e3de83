"""Runs of several estimators from one warm start: done once, resumed where they were cut, and told in a table."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
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
    for estimator, run in zip(("hgpo", "grpo"), runs, strict=True):
        figures, gain = told["success"][estimator], run[-1]["eval/success"] - run[0]["eval/success"]
        assert (figures["before"], figures["after"]) == ([run[0]["eval/success"]], [run[-1]["eval/success"]])
        assert figures["interval"][0] <= gain <= figures["interval"][1]
        for row in (run[0], run[-1]):
            assert np.mean(row["eval/won_by_task"]) == row["eval/success"]
            assert len(row["eval/won_by_task"]) == row["eval/episodes"]
    assert "score" not in told, "FrozenLake gives none"
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


def test_settings_of_other_estimators_may_differ(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*COMMAND, "--estimators", "hgpo", "--grpo.normalize-std", "--directory", str(folder)]
    compare.main(command)
    assert capsys.readouterr().out.count("finished before") == 1
    with pytest.raises(SystemExit):
        compare.main([*command, "--estimators", "grpo"])
    assert "was run with grpo.normalize_std = False, not True" in " ".join(capsys.readouterr().out.split())


def test_a_run_without_an_evaluation_is_not_counted(tmp_path: Path) -> None:
    """As of another program's folder: its last iteration is there, but no success before and after."""
    config = dataclasses.replace(compare.load_config("frozen_lake"), iterations=2, init="a/model")
    command = compare.CompareCommand(config, estimators=("hgpo",), seeds=1, directory=tmp_path)
    (tmp_path / "hgpo-seed0").mkdir()
    path = tmp_path / "hgpo-seed0" / "metrics.jsonl"
    path.write_text("".join(json.dumps({"iteration": i}) + "\n" for i in range(3)))
    assert compare._report(command, tmp_path) == {"success": {"hgpo": {"before": [], "after": [], "interval": []}}}


def test_scores_are_compared_where_there_are_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs on a panel of four tasks: the gains of the tasks are 0.5, 0.5, 0 and 1, on the average of the runs."""
    config = dataclasses.replace(compare.load_config("webshop_tiny"), iterations=1, init="a/model")
    command = compare.CompareCommand(config, estimators=("hgpo",), seeds=2, directory=tmp_path)
    for seed, after in enumerate(([1.0, 0.5, 0.0, 1.0], [0.0, 0.5, 0.0, 1.0])):
        rows = [
            {"iteration": i, "eval/panel": "a-panel", "eval/success": float(np.mean(np.equal(scores, 1)))}
            | {"eval/won_by_task": np.equal(scores, 1).astype(float).tolist()}
            | {"eval/score": float(np.mean(scores)), "eval/score_by_task": scores}
            for i, scores in enumerate(([0.0, 0.0, 0.0, 0.0], after))
        ]
        (tmp_path / f"hgpo-seed{seed}").mkdir()
        path = tmp_path / f"hgpo-seed{seed}" / "metrics.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    figures = compare._report(command, tmp_path)
    assert figures["score"]["hgpo"]["after"] == [0.625, 0.375]
    assert figures["score"]["hgpo"]["interval"] == compare.bootstrap_interval(np.array([0.5, 0.5, 0.0, 1.0]))
    assert figures["success"]["hgpo"]["after"] == [0.5, 0.25]
    out = " ".join(capsys.readouterr().out.split())
    assert "score on a-panel, per cent, 1 iterations" in out
    assert "50.0 ± 12.5" in out


def test_a_bootstrap_interval() -> None:
    """Of n values 0 and 1 with mean 1/2 the mean's deviation is 1 / sqrt(4 n): 0.05 for 100."""
    low, high = compare.bootstrap_interval(np.repeat([0.0, 1.0], 50))
    np.testing.assert_allclose([low, high], [0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05], atol=0.011)
    assert compare.bootstrap_interval(np.full(10, 0.25)) == [0.25, 0.25]
    low, high = compare.bootstrap_interval(np.repeat([0.0, 1.0], 50), level=0.5)
    np.testing.assert_allclose([low, high], [0.5 - 0.674 * 0.05, 0.5 + 0.674 * 0.05], atol=0.011)


def test_nothing_to_compare() -> None:
    command = compare.CompareCommand(compare.load_config("frozen_lake"))
    with pytest.raises(ValueError, match="nothing to compare: 3 estimators, 0 seeds"):
        compare.compare(dataclasses.replace(command, seeds=0))

"""The command: its tables, files and figures, how it goes on, and what it refuses."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.image
import numpy as np
import pytest

from experiments.studies import learning_curves
from experiments.studies.arms import Arm
from experiments.studies.learning_curves import LEARNERS, LearningCurvesCommand, ablation_points, main, study
from hgpo_jax.types import StepSignals

SMALL = LearningCurvesCommand(
    lakes=("4x4", "4x4-slippery"),
    seeds=3,
    horizon=12,
    episodes=32,
    group_size=4,
    iterations=12,
    learning_rates=(1e-6, 0.3),
    context_lengths=(0, 2),
    alphas=(1.0, 2.0),
    group_sizes=(4, 8),
)
FEW = {name: LEARNERS[name] for name in ("REINFORCE", "HGPO K=2")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[LearningCurvesCommand, list[dict[str, object]]]:
    command = dataclasses.replace(SMALL, directory=tmp_path_factory.mktemp("curves"))
    return command, study(command, FEW)


@pytest.mark.slow
def test_a_small_study(trained: tuple[LearningCurvesCommand, list[dict[str, object]]]) -> None:
    command, rows = trained
    assert [(row["lake"], row["estimator"]) for row in rows] == [
        ("4x4", "REINFORCE"),
        ("4x4", "HGPO K=2"),
        ("4x4-slippery", "REINFORCE"),
        ("4x4-slippery", "HGPO K=2"),
        ("all", "REINFORCE"),
        ("all", "HGPO K=2"),
    ]
    assert [row["learning rate"] for row in rows if row["lake"] == "4x4"] == [0.3, 0.3]  # the other learns nothing
    for row in rows:
        for measure in ("over training", "at the end"):
            low, value, high = (row[f"{measure}{part}"] for part in ("_low", "", "_high"))
            assert isinstance(low, float)
            assert isinstance(value, float)
            assert isinstance(high, float)
            assert 0 <= low <= value <= high <= 1.05
    saved = json.loads((command.directory / "table.json").read_text())
    assert saved["rows"] == rows
    assert saved["settings"]["seeds"] == 3
    assert [row["estimator"] for row in saved["ablations"]] == [
        *("K = 0", "K = 2"),
        *("alpha = 1", "alpha = 2"),
        *("group size = 4", "group size = 8"),
    ]
    assert {tuple(pair[:2]) for pair in saved["duels"]["at the end"]} == {
        ("REINFORCE", "HGPO K=2"),
        ("HGPO K=2", "REINFORCE"),
    }
    with open(command.directory / "table.csv") as file:
        assert [float(row["over training"]) for row in csv.DictReader(file)] == [row["over training"] for row in rows]
    for name in ("curves", "intervals", "duels", "ablations"):
        assert np.ptp(matplotlib.image.imread(command.directory / f"{name}.png")[..., :3]) > 0.5


@pytest.mark.slow
def test_it_goes_on_where_it_was(
    trained: tuple[LearningCurvesCommand, list[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, rows = trained
    trainings = []

    def counted(*args: object, **settings: object) -> object:
        trainings.append(args[1])
        return train(*args, **settings)  # pyright: ignore[reportArgumentType]

    train = learning_curves.train_many
    monkeypatch.setattr(learning_curves, "train_many", counted)
    assert study(command, FEW) == rows
    assert trainings == []
    lost = command.directory / "runs" / "4x4 REINFORCE g4.npz"
    lost.unlink()
    assert study(command, FEW) == rows
    assert trainings == [FEW["REINFORCE"]]
    assert not list(lost.parent.glob("*.partial"))

    with pytest.raises(ValueError, match=r"4x4 REINFORCE g4.npz was trained with seeds = 3, not 4: choose another"):
        study(dataclasses.replace(command, seeds=4), FEW)
    with pytest.raises(ValueError, match=r"trained with learning_rates = \[1e-06, 0.3\], not \[0.1\]; iterations = 12"):
        study(dataclasses.replace(command, learning_rates=(0.1,), iterations=5), FEW)


def test_ablations_move_one_axis_at_a_time() -> None:
    axes = ablation_points(LearningCurvesCommand(lakes=("8x8",)))
    assert {axis: list(values) for axis, values in axes.items()} == {
        "K": [0, 1, 2, 4],
        "alpha": [0, 0.5, 1, 2],
        "group size": [2, 4, 8, 16],
    }
    default = axes["K"][2]
    assert default == axes["alpha"][1.0] == axes["group size"][8]
    points = {point for values in axes.values() for at in values.values() for point in at}
    assert len(points) == 4 + 4 + 4 - 2
    assert {point.arm.rows for point in axes["K"][4]} == {(0, 1, 2, 3, 4)}
    # What the estimators' comparison has trained already is not trained again.
    assert default[0].name == "HGPO K=2"
    assert default[0].arm == LEARNERS["HGPO K=2"]
    assert axes["K"][0][0].arm == LEARNERS["HGPO K=0"]
    assert axes["K"][4][0].arm == LEARNERS["HGPO K=4"]


def test_a_function_is_trained_anew_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it does may have changed under its name, or be bound to other arguments."""
    small = dataclasses.replace(SMALL, directory=tmp_path, ablations=False, lakes=("4x4",))

    def scaled(signals: StepSignals, *, factor: float) -> jax.Array:
        return jnp.asarray(signals.step_return * factor)

    for factor in (0.0, 1.0):
        pair = {"mine $a_$": functools.partial(scaled, factor=factor), "mine [1": Arm(lambda s: 0 * s.step_return)}
        rows = study(small, pair | {"HGPO K=2": LEARNERS["HGPO K=2"]})
        assert (rows[0]["at the end"] > 2 * rows[1]["at the end"]) == (factor > 0), "no file is another's"
        said = " ".join(capsys.readouterr().out.split())
        assert f"{3 if factor == 0 else 2} points trained in" in said
        assert "mine [1" in said
        assert "mine $a_$" in said
    assert len(list((tmp_path / "runs").iterdir())) == 3
    assert mpl.rcParams["text.parse_math"], "left as it was"


def test_a_single_estimator_has_nobody_to_beat(tmp_path: Path) -> None:
    small = dataclasses.replace(SMALL, directory=tmp_path, ablations=False, lakes=("4x4",), iterations=2)
    study(small, {"alone": LEARNERS["GAE"].estimator})
    assert {path.stem for path in tmp_path.glob("*.png")} == {"curves", "intervals"}


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    small = dataclasses.replace(SMALL, directory=tmp_path, ablations=False, lakes=("4x4",), iterations=2)
    one = {"REINFORCE": FEW["REINFORCE"]}
    study(small, one)
    path = tmp_path / "runs" / "4x4 REINFORCE g4.npz"
    whole = path.read_bytes()
    other = io.BytesIO()
    np.savez(other, success=np.zeros(3))
    for content in (whole[:100], b"", b"not an archive", other.getvalue()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"4x4 REINFORCE g4.npz is damaged .*delete it to train it anew"):
            study(small, one)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seeds": 1}, r"nothing to compare: 1 seeds \(2 or more are needed\)"),
        ({"lakes": ()}, "0 lakes"),
        ({"learning_rates": ()}, "0 learning rates"),
        ({"learning_rates": (0.1, float("nan"))}, "learning rates must be 0 or more and finite"),
        ({"learning_rates": (-0.1,)}, "learning rates must be 0 or more and finite"),
        ({"iterations": 0}, "iterations must be 1 or more, got 0"),
        ({"gamma": 2.0}, "gamma must be from 0 to 1, got 2"),
        ({"gamma": float("nan")}, "gamma must be from 0 to 1, got nan"),
        ({"horizon": 5}, "lake 4x4: nobody reaches the goal in 5 steps; raise horizon"),
        ({"seed": 2**32}, "seed must be from 0 to 2"),
        ({"seed": -1}, "seed must be from 0 to 2"),
        ({"ablations": True, "context_lengths": (-1,)}, "context_length must be 0 or more"),
        ({"ablations": True, "alphas": (float("nan"),)}, "alpha"),
        ({"ablations": True, "group_sizes": (3,)}, r"multiple of group_size \(3\)"),
    ],
)
def test_a_setting_out_of_range_is_told_before_anything_is_trained(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    command = dataclasses.replace(SMALL, directory=tmp_path, ablations=False, lakes=("4x4",))
    with pytest.raises(ValueError, match=words):
        study(dataclasses.replace(command, **changed), FEW)
    assert not list(tmp_path.rglob("*.npz"))


def test_an_axis_without_values_is_left_out() -> None:
    assert list(ablation_points(dataclasses.replace(SMALL, context_lengths=(), group_sizes=()))) == ["alpha"]


def test_what_cannot_be_compared_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = dataclasses.replace(SMALL, directory=tmp_path, ablations=False, iterations=2, lakes=("4x4",))
    nan = Arm(lambda signals: jnp.full_like(signals.step_return, jnp.nan))
    with pytest.raises(ValueError, match=r'estimator "mine", lake 4x4: .*not finite in iteration 0 of run 0'):
        study(small, {"mine": nan})
    assert not list((tmp_path / "runs").iterdir())
    with pytest.raises(ValueError, match=r'estimator "mine", lake 4x4: .*shape \[\], expected \[384\]'):
        study(small, {"mine": Arm(lambda signals: jnp.sum(signals.step_return))})
    with pytest.raises(ValueError, match="no estimators"):
        study(small, {})
    with pytest.raises(SystemExit):
        main(["--lakes", "4x4", "--episodes", "30", "--directory", str(tmp_path)])
    assert "multiple of group_size" in capsys.readouterr().out

"""The command: its tables, files and figures, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from experiments.studies.arms import ARMS, Arm
from experiments.studies.bias_variance import BiasVarianceCommand, main, study
from experiments.studies.keys import STATE_KEYS

SMALL = {
    "group_sizes": (2, 4),
    "group_size": 4,
    "horizon": 3,
    "horizons": (3,),
    "aliasings": (2,),
    "reward_stds": (0.0,),
    "lake_horizons": (7,),
    "worlds": 2,
    "max_steps": 4096,
}
FEW = ("RLOO", "level 0", "level 1", "level 2", "exact history", "HGPO K=2", "HGPO K=2 std")


@pytest.mark.slow
def test_a_study_with_an_estimator_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {name: ARMS[name] for name in FEW} | {
        "silent $0_$": Arm(lambda signals: jnp.zeros_like(signals.step_return))
    }
    rows = study(BiasVarianceCommand(**SMALL, directory=tmp_path), arms)
    assert [(row["axis"], row["at"]) for row in rows if row["arm"] == "RLOO"] == [
        ("default", 0),
        ("group_size", 2),
        ("lake", 7),
    ]
    keyed = {(row["at"], row["arm"]) for row in rows if row["axis"] == "keys"}
    assert keyed == {(keys, name) for keys in STATE_KEYS for name in ("level 0", "HGPO K=2", "silent $0_$")}
    for row in rows:
        if row["arm"] == "silent $0_$":
            # Always 0: the bias is the true advantage itself, which is the unit, and nothing varies.
            assert row["all: mse"] == pytest.approx(1, abs=0.15)
            assert row["all: variance"] == pytest.approx(0, abs=0.15)
            assert row["gradient: bias2"] == pytest.approx(1)
        if row["arm"] == "HGPO K=2 std":
            assert "all: bias2" not in row
            assert row["gradient: cosine"] > 0
    saved = json.loads((tmp_path / "table.json").read_text())
    assert saved["rows"] == rows
    assert saved["settings"]["group_size"] == 4
    with open(tmp_path / "table.csv") as file:
        assert [row["arm"] for row in csv.DictReader(file)] == [row["arm"] for row in rows]
    assert {path.stem for path in tmp_path.glob("*.png")} == {
        "trade_off", "levels", "advantage_axes", "gradient_axes", "gradient",
    }  # fmt: skip
    said = capsys.readouterr().out
    assert "silent $0_$" in said
    assert "…" not in said
    assert max(len(line) for line in said.splitlines() if "Figure" not in line) <= 80, (
        "all figures are whole on a narrow terminal"
    )


def test_settings_out_of_range_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="group sizes 2 or more"):
        study(BiasVarianceCommand(group_sizes=(1, 2), directory=tmp_path))
    small = SMALL | {"lake_horizons": (3,), "group_sizes": (), "worlds": 1}
    with pytest.raises(ValueError, match="no advantage to estimate: choose a longer horizon"):
        study(BiasVarianceCommand(**small, directory=tmp_path), {"RLOO": ARMS["RLOO"]})
    with pytest.raises(ValueError, match="no estimators"):
        study(BiasVarianceCommand(directory=tmp_path), {})
    with pytest.raises(ValueError, match="give 768 or more"):
        study(BiasVarianceCommand(max_steps=100, directory=tmp_path))
    with pytest.raises(ValueError, match="give 768 or more"):
        study(BiasVarianceCommand(max_steps=-5, directory=tmp_path))
    with pytest.raises(ValueError, match="seed must be 0 or more, got -1"):
        study(BiasVarianceCommand(seed=-1, directory=tmp_path))
    with pytest.raises(ValueError, match="temperature must be above 0, got nan"):
        study(BiasVarianceCommand(temperature=float("nan"), directory=tmp_path))
    with pytest.raises(ValueError, match="more than the limit"):  # though it stands at the end of all
        study(BiasVarianceCommand(lake_horizons=(40,), directory=tmp_path))
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit):
        main(["--horizon", "12", "--directory", str(tmp_path)])
    assert "simulate" in capsys.readouterr().out

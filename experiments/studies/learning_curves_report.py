"""Tables and files of the learning-curve study."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from experiments.console import CONSOLE
from experiments.records import replace_text
from experiments.studies.curve_statistics import MEASURES, Learned, duels, interquartile_mean
from experiments.studies.learning_curves_figures import draw
from experiments.studies.moments import Interval

Row = dict[str, Any]
Axes = Mapping[str, Mapping[float, Sequence[Learned]]]  # axis -> value -> lakes


def report(
    learned: Sequence[Learned], followed: Sequence[str], axes: Axes, settings: Mapping[str, Any], directory: Path
) -> list[Row]:
    """Prints the tables, writes table.csv and table.json, draws the figures; returns the rows.

    Args:
      learned: what became of each estimator on each lake.
      followed: names of the estimators whose curves are drawn.
      axes: the ablations, axis -> value -> lakes.
      settings: that are saved beside the rows.
      directory: where to.
    """
    by_arm: dict[str, list[Learned]] = {}
    for one in learned:
        by_arm.setdefault(one.point.name, []).append(one)
    lakes = list(dict.fromkeys(one.point.lake for one in learned))
    rows = [_row([one], one.point.name, one.point.lake, normalised=False) for one in learned]
    rows += [_row(runs, name, "all", normalised=True) for name, runs in by_arm.items()]
    won = {
        measure: duels({name: [one.normalised(measure) for one in runs] for name, runs in by_arm.items()})
        for measure in MEASURES
    }
    changed = [
        _row(runs, f"{axis} = {at:g}", "all", normalised=True) | {"axis": axis, "at": at}
        for axis, values in axes.items()
        for at, runs in values.items()
    ]
    replace_text(
        directory / "table.json",
        json.dumps(
            {
                "settings": settings,
                "rows": rows,
                "ablations": changed,
                "duels": {m: [[*pair, *told] for pair, told in of.items()] for m, of in won.items()},
            },
            indent=1,
        ),
    )
    with open(directory / "table.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)

    for lake in lakes:
        CONSOLE.print(_lake_table([row for row in rows if row["lake"] == lake], lake))
    CONSOLE.print(_wins_table([row for row in rows if row["lake"] == "all"], won))
    for axis, values in axes.items():
        CONSOLE.print(_ablation_table(axis, values))
    for path in draw(by_arm, followed, won["over training"], axes, directory):
        CONSOLE.print(f"Figure: {path}", soft_wrap=True)
    return rows


def _row(runs: Sequence[Learned], name: str, lake: str, *, normalised: bool) -> Row:
    row: Row = {"lake": lake, "estimator": name, "learning rate": runs[0].rate if len(runs) == 1 else None}
    for measure in MEASURES:
        figures = [one.normalised(measure) if normalised else one.runs(measure) for one in runs]
        value, low, high = interquartile_mean(figures)
        row |= {measure: value, f"{measure}_low": low, f"{measure}_high": high}
    return row


def _told(row: Row, measure: str) -> str:
    return f"{row[measure]:.3f} [{row[f'{measure}_low']:.3f}, {row[f'{measure}_high']:.3f}]"


def _lake_table(rows: Sequence[Row], lake: str) -> Table:
    table = _table(f"{lake}: success, interquartile mean over seeds [95 %]", "estimator", "rate", *MEASURES)
    for row in sorted(rows, key=lambda row: -row["over training"]):
        table.add_row(
            escape(row["estimator"]), f"{row['learning rate']:g}", *(_told(row, measure) for measure in MEASURES)
        )
    return table


def _wins_table(rows: Sequence[Row], won: Mapping[str, Mapping[tuple[str, str], Interval]]) -> Table:
    """Wins and losses: rivals over which P(better) has an interval above or below 1/2."""
    columns = [column for measure in MEASURES for column in (measure, "W-L")]
    table = _table("all lakes, 1 = best policy; W-L: wins and losses against the others", "estimator", *columns)
    for row in sorted(rows, key=lambda row: -row["over training"]):
        cells = []
        for measure, of in won.items():
            mine = [told for (name, _), told in of.items() if name == row["estimator"]]
            wins, losses = sum(told.low > 0.5 for told in mine), sum(told.high < 0.5 for told in mine)
            cells += [_near(row, measure), f"{wins}-{losses}"]
        table.add_row(escape(row["estimator"]), *cells)
    return table


def _near(row: Row, measure: str) -> str:
    return f"{row[measure]:.3f} ± {(row[f'{measure}_high'] - row[f'{measure}_low']) / 2:.3f}"


def _ablation_table(axis: str, values: Mapping[float, Sequence[Learned]]) -> Table:
    lakes = [one.point.lake for one in next(iter(values.values()))]
    title = f"HGPO, {axis} alone changed: success over training (all lakes: 1 = best policy)"
    table = _table(title, axis, *lakes, "all lakes")
    for at, runs in values.items():
        cells = [f"{_row([one], '', one.point.lake, normalised=False)['over training']:.3f}" for one in runs]
        cells.append(_near(_row(runs, "", "all", normalised=True), "over training"))
        table.add_row(f"{at:g}", *cells)
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, box=SIMPLE)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table

"""Compare estimators from one warm start: every estimator and seed a run of its own, then a table and a picture.

    python -m experiments.compare alfworld_tiny --estimators hgpo gigpo grpo --seeds 3
    python -m experiments.compare alfworld_tiny --estimators hgpo --seeds 1 --iterations 40
    python -m experiments.compare alfworld_tiny --recipe dapo                # dapo | dr_grpo | gspo, for all of them

First the policy learns from the expert (experiments.sft, with the settings of the config), unless ``--init`` names
a model; then each run goes on from there. The folder holds warm_start/, a run's folder <estimator>-seed<seed>/ each,
comparison.json and comparison.png. The same command goes on where it was interrupted: runs that are finished are
skipped, one that was cut short resumes from its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import matplotlib
import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.table import Table

from experiments.assembly import resolve
from experiments.configs import (
    EstimatorName,
    RunConfig,
    SFTConfig,
    changed_fields,
    config_from_json,
    load_config,
    load_sft_config,
    short_name,
)
from experiments.console import CONSOLE, run_command
from experiments.recipes import apply_recipe, take_recipe
from experiments.records import Records, replace_text
from experiments.sft import SFTCommand, sft
from experiments.train import TrainCommand, train

Row = dict[str, Any]  # of metrics.jsonl
Curves = dict[str, list[list[Row]]]  # estimator -> runs -> rows of evaluations
Figures = dict[str, list[float]]

BY_TASK = {"success": "won_by_task", "score": "score_by_task"}  # of ``eval/*``: the mean, and the values
MEASURES = tuple(BY_TASK)


@dataclasses.dataclass(frozen=True)
class CompareCommand:
    """The command line: what to run, how often, and where."""

    run: Annotated[RunConfig, tyro.conf.arg(name="")]
    sft: SFTConfig = SFTConfig()
    estimators: tuple[EstimatorName | str, ...] = ("hgpo", "gigpo", "grpo")  # in place of --estimator
    seeds: int = 3  # runs of each estimator, with the seeds 0, 1, .. in place of --seed
    directory: Path | None = None  # runs/compare-<env> when left out


def compare(command: CompareCommand) -> dict[str, dict[str, Figures]]:
    """Runs what is not done yet; returns ``figures["success"]["hgpo"]["after"]``, a value for each run.

    Beside ``after`` there are ``before`` and ``interval``, of the mean gain at 95 % confidence, from resampling the
    panel's tasks; beside ``success`` there is ``score`` where the environment gives one.

    Raises:
      ValueError: fewer than one seed or estimator, or a run in the folder had other settings.
    """
    if command.seeds < 1 or not command.estimators:
        raise ValueError(f"nothing to compare: {len(command.estimators)} estimators, {command.seeds} seeds")
    where = command.directory or Path("runs") / f"compare-{command.run.env_name}"
    base = command.run
    if not base.init:
        base = dataclasses.replace(base, init=str(_warm_start(command, where / "warm_start")))
    # Seed by seed, so that what is there when time runs out compares all estimators.
    for seed in range(command.seeds):
        for estimator in dict.fromkeys(command.estimators):
            run = dataclasses.replace(base, estimator=estimator, seed=seed)
            if not _finish_run(run, _folder(where, estimator, seed)):
                CONSOLE.print("Stopped: the same command goes on from here.")
                return _report(command, where)
    return _report(command, where)


def _warm_start(command: CompareCommand, where: Path) -> Path:
    """The model that all runs start from, made if it is not there."""
    if not (where / "model" / "config.json").exists():
        resume = where if (where / "config.json").exists() else None
        sft(SFTCommand(command.run, command.sft, directory=where, resume=resume))
        if not (where / "model" / "config.json").exists():
            sys.exit(0)  # stopped by the user, who has been told how to go on
    return where / "model"


def _folder(where: Path, estimator: str, seed: int) -> Path:
    return where / f"{short_name(estimator)}-seed{seed}"


def _finish_run(run: RunConfig, where: Path) -> bool:
    """Trains what is left of a run; False if it was stopped before its end."""
    resume = any((where / "checkpoints").glob("[0-9]*"))
    if resume:
        others = set(get_args(EstimatorName)) - {run.estimator_field}  # whose settings it does not use
        changes = changed_fields(config_from_json(where / "config.json"), resolve(run))
        changes = {name: change for name, change in changes.items() if name.split(".")[0] not in others}
        before, after = changes.get("iterations", (0, 0))
        if after > before:
            del changes["iterations"]  # it goes on
        if changes:
            told = ", ".join(f"{name} = {old}, not {new}" for name, (old, new) in changes.items())
            raise ValueError(f"{where} was run with {told}: choose another --directory, or the settings it had")
        if _finished(where, run):
            CONSOLE.print(f"{where}: finished before", highlight=False)
            return True
    CONSOLE.rule(f"{run.estimator}, seed {run.seed}")
    train(TrainCommand(run, directory=where, resume=where if resume else None))
    return _finished(where, run)


def _finished(where: Path, run: RunConfig) -> bool:
    """Whether the last iteration is recorded and saved, in this order."""
    rows = _rows(where)
    saved = (where / "checkpoints" / str(run.iterations)).exists()
    return bool(rows) and rows[-1]["iteration"] >= run.iterations and saved


def _rows(where: Path) -> list[Row]:
    return Records(where, writes=False).read()


def _report(command: CompareCommand, where: Path) -> dict[str, dict[str, Figures]]:
    """Tables, JSON and picture of the runs that are finished."""
    curves: Curves = {}
    for estimator in dict.fromkeys(command.estimators):
        folders = [_folder(where, estimator, seed) for seed in range(command.seeds)]
        rows = [_rows(folder) for folder in folders]
        curves[estimator] = [
            [row for row in run if "eval/success" in row]
            for run in rows
            if run and run[-1]["iteration"] >= command.run.iterations and "eval/success" in run[-1]
        ]
    measures = [m for m in MEASURES if any(f"eval/{m}" in run[0] for runs in curves.values() for run in runs)]
    figures = {measure: _figures(curves, measure) for measure in measures or MEASURES[:1]}
    panel = next((run[0]["eval/panel"] for runs in curves.values() for run in runs), "-")
    replace_text(where / "comparison.json", json.dumps({"panel": panel} | figures, indent=2))
    for measure, of_estimators in figures.items():
        CONSOLE.print(_table(of_estimators, f"{measure} on {panel}, per cent, {command.run.iterations} iterations"))
    if any(curves.values()):
        _draw(curves, measures, f"{command.run.env}, panel {panel}", where / "comparison.png")
        CONSOLE.print(f"Figure: {where / 'comparison.png'}", soft_wrap=True)
    return figures


def _figures(curves: Curves, measure: str) -> dict[str, Figures]:
    """Of each estimator: ``before`` and ``after`` of each run, and the ``interval`` of the mean gain."""
    figures: dict[str, Figures] = {}
    for estimator, runs in curves.items():
        ends = [[run[i][f"eval/{measure}"] for run in runs] for i in (0, -1)]
        name = f"eval/{BY_TASK[measure]}"
        gains = [np.subtract(run[-1][name], run[0][name]) for run in runs if name in run[0] and name in run[-1]]
        interval = bootstrap_interval(np.mean(gains, axis=0)) if gains else []
        figures[estimator] = {"before": ends[0], "after": ends[1], "interval": interval}
    return figures


def bootstrap_interval(values: np.ndarray, level: float = 0.95, resamples: int = 10_000) -> list[float]:
    """Percentile interval of the mean, from resampling the values with replacement.

    Args:
      values: [n], of which each is one draw: here a task's gain, so that the interval is of a panel drawn anew.
      level: of confidence.
      resamples: how many.

    Returns:
      Its lower and upper end, the same for the same values.
    """
    chosen = np.random.default_rng(0).integers(len(values), size=(resamples, len(values)))
    return np.quantile(values[chosen].mean(axis=1), [(1 - level) / 2, (1 + level) / 2]).tolist()


def _table(figures: dict[str, Figures], title: str) -> Table:
    """In per cent, mean and standard deviation over seeds."""
    table = Table(title=title)
    for column in ("estimator", "runs", "before", "after", "gain", "95 %, over tasks"):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    for estimator, of_runs in figures.items():
        before, after = 100 * np.array(of_runs["before"]), 100 * np.array(of_runs["after"])
        cells = [_mean_and_std(values) for values in (before, after, after - before)]
        interval = " to ".join(f"{100 * end:.1f}" for end in of_runs["interval"])
        table.add_row(estimator, str(len(after)), *cells, interval or "-")
    return table


def _mean_and_std(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {values.std():.1f}" if len(values) else "-"


def _draw(curves: Curves, measures: Sequence[str], title: str, path: Path) -> None:
    """Held-out success, and score where there is one, over iterations: runs thin, the mean of an estimator thick."""
    matplotlib.use("Agg")
    figure = Figure(figsize=(7, 4 * len(measures)), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    for axes, measure in zip(np.ravel(figure.subplots(len(measures))), measures, strict=True):
        for number, (estimator, runs) in enumerate(curves.items()):
            colour = f"C{number}"
            for run in runs:
                axes.plot(*_points(run, measure), color=colour, alpha=0.3, linewidth=1)
            if runs:
                iterations = _points(runs[0], measure)[0]
                mean = np.mean([_points(run, measure)[1] for run in runs], axis=0)
                axes.plot(iterations, mean, color=colour, linewidth=2, label=f"{estimator} ({len(runs)})")
        axes.set(xlabel="iteration", ylabel=measure, ylim=(0, 1.02))
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
    figure.savefig(path, dpi=150)


def _points(run: Sequence[Row], measure: str) -> tuple[list[int], list[float]]:
    return [row["iteration"] for row in run], [row[f"eval/{measure}"] for row in run]


def main(argv: list[str] | None = None) -> None:
    """The command line: an optional config name, then overrides."""
    args = list(sys.argv[1:] if argv is None else argv)

    def command() -> None:
        name = args.pop(0) if args and not args[0].startswith("-") else "alfworld_tiny"
        recipe, rest = take_recipe(args)
        default = CompareCommand(apply_recipe(load_config(name), recipe), load_sft_config(name))
        compare(tyro.cli(CompareCommand, args=rest, default=default, description=__doc__))

    run_command(command, [], None)


if __name__ == "__main__":
    main()

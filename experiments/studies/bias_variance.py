"""Bias and variance of every estimator's advantages and gradients, against the truth of worlds that are solved.

    python -m experiments.studies.bias_variance

On two cores of an AMD EPYC, 2 min 13 s, with the settings below: six random graphs, each with a policy of its own, 8
episodes a group, horizon 6; then every axis around it and FrozenLake 4x4. The unit is the root mean square of the
true advantage; intervals are 95 %. On the third of the steps that have a group at levels 0 to 2 and of equal
histories:

| | level 0 | level 1 | level 2 | exact history | HGPO K=2 |
|---|---|---|---|---|---|
| bias | 0.49 ± 0.01 | 0.48 ± 0.01 | 0.43 ± 0.01 | 0.37 ± 0.01 | 0.45 ± 0.01 |
| bias, own step left out | 0.51 ± 0.01 | 0.50 ± 0.01 | 0.46 ± 0.01 | 0.05 ± 0.05 | 0.49 ± 0.01 |
| standard deviation | 2.06 ± 0.01 | 2.06 ± 0.01 | 2.02 ± 0.01 | 1.79 ± 0.01 | 2.02 ± 0.01 |
| the same, own step left out | 2.15 ± 0.01 | 2.28 ± 0.01 | 2.46 ± 0.01 | 2.90 ± 0.02 | 2.32 ± 0.01 |
| over all steps: answers | 100 % | 83 % | 64 % | 66 % | 100 % |
| bias | 0.70 ± 0.01 | 0.67 ± 0.01 | 0.65 ± 0.01 | 0.88 ± 0.01 | 0.66 ± 0.01 |
| bias in an infinite group (exact) | 0.78 | 0.75 | 0.73 | 0 | |
| gradient: cosine of the mean | 1.00 | 0.99 | 0.96 | 0.82 | 1.00 |
| cosine of one group | 0.315 ± 0.004 | 0.324 ± 0.003 | 0.327 ± 0.004 | 0.154 ± 0.004 | 0.308 ± 0.004 |

What the paper proposes, at the 12 points that have such steps (all but horizon 2; `propositions` holds the questions):

- *Bias falls with k.* In an infinite group it does, exactly: its square is the mean square of V(h) - E[V | C_k]. At
  these group sizes it is never found to rise on the same steps once the own step is left out of the means, and falls
  with intervals apart at 5 points. With the own step in, equal histories keep a bias of 0.37: they are the smallest
  groups, which the factor (n - 1) / n shrinks most. Over all steps it fails at every point of the
  graphs, since a step without a group gets 0: a third have no other with their history.
- *States are the context.* They leave most of the bias: without the actions even C_4 has 0.60 in an infinite group.
- *Variance rises with k.* At 11 points with the own step left out; as the estimators are it falls from some level
  to the next at 11, for the same factor.
- *The mix lies between its levels.* In bias and variance it is never found outside.
- *So the mix is better.* That doesn't follow. The bias is one of the baseline, which hardly depends on the action:
  level 0 has a bias of 0.70 in its advantages and a mean gradient in the true direction (1.00). What the levels change
  is variance: one group's gradient is nearest to the truth at level 2, and HGPO K=2 is nowhere above level 0 by
  more than the intervals (0.308 and 0.315; FrozenLake, horizon 8: 0.363 ± 0.011 and 0.373 ± 0.012). Equal histories
  lose the direction, 0.82.
- At the default point every estimator from groups has a mean squared error above that of saying 0 (1): a small one
  mostly tells of silence.

Other weights, and a critic, over all steps; root of the mean squared error of the advantage, and cosine of one group's
gradient, at the default point and on FrozenLake with horizon 8:

| | rmse | cosine | rmse, lake | cosine, lake |
|---|---|---|---|---|
| level 0 | 2.18 ± 0.01 | 0.315 ± 0.004 | 1.94 ± 0.02 | 0.373 ± 0.012 |
| HGPO K=0 + episode | 2.34 ± 0.01 | 0.306 ± 0.004 | 2.28 ± 0.02 | 0.386 ± 0.012 |
| GiGPO | 4.73 ± 0.02 | 0.306 ± 0.004 | 4.46 ± 0.05 | 0.385 ± 0.012 |
| HGPO K=2 | 2.12 ± 0.01 | 0.308 ± 0.004 | 1.90 ± 0.02 | 0.363 ± 0.011 |
| HGPO K=2 leave-one-out | 2.39 ± 0.01 | 0.311 ± 0.004 | 2.51 ± 0.03 | 0.360 ± 0.011 |
| shrinkage K=2 | 2.17 ± 0.01 | 0.315 ± 0.004 | 1.94 ± 0.02 | 0.373 ± 0.012 |
| shrinkage K=2 leave-one-out | 2.28 ± 0.01 | 0.315 ± 0.004 | 2.34 ± 0.02 | 0.375 ± 0.012 |
| shrinkage K=2 task root | 2.18 ± 0.01 | 0.318 ± 0.004 | 2.02 ± 0.02 | 0.394 ± 0.012 |
| shrinkage K=2 task root, l.-o.-o. | 2.25 ± 0.01 | 0.318 ± 0.004 | 2.22 ± 0.02 | 0.396 ± 0.012 |
| REINFORCE | 2.32 ± 0.01 | 0.336 ± 0.003 | 2.40 ± 0.02 | 0.406 ± 0.010 |
| GAE λ=1, true V | 2.26 ± 0.01 | 0.338 ± 0.003 | 2.05 ± 0.02 | 0.430 ± 0.010 |
| GAE λ=0.95, true V | 1.99 ± 0.01 | 0.363 ± 0.003 | 1.79 ± 0.01 | 0.451 ± 0.009 |
| GAE λ=0, true V | 0.79 ± 0.01 | 0.532 ± 0.003 | 0.84 ± 0.01 | 0.589 ± 0.004 |

- *GiGPO* adds two comparisons: half as long it had a quarter of the squared error, and the same direction.
- *REINFORCE* has the task's true mean for a baseline, which a batch only guesses.
- *Weights.* The fixed ones have the smaller error. The estimated factors mostly fold the finer levels into level 0,
  whose figures they give. With the task as root shrinkage is ahead of HGPO in direction, intervals apart, and behind
  in error. None is ahead in both, so the default stays.
- *Leaving the own step out* takes most of the bias out of the gradient (0.09 of its length instead of 0.19; lake 0.06
  and 0.26) and costs more variance than that saves.
- *A critic* that knows V of what the policy sees beats every mix of groups: most of what a return adds beyond the next
  step is noise, which λ=0 leaves out, for a bias of its mean direction (0.953; lake 0.989) where the policy sees less
  than the state. It is the limit of what a trained critic can do.

States that never repeat exactly, at the default point: a view is told as a number with noise (0.2 of the distance of
two views), or as a text of 20 words, of which views share 12, with a clock:

| | answers | rmse, cosine: level 0 | rmse, cosine: HGPO K=2 |
|---|---|---|---|
| the view itself | 100 % | 2.18, 0.315 | 2.12, 0.308 |
| compared exactly | 0 % | 1.00, 0 | 1.00, 0 |
| number, bins of 0.25 | 98 % | 2.07, 0.299 | 1.97, 0.291 |
| number, bins of 1 | 99 % | 2.18, 0.314 | 2.12, 0.307 |
| number, bins of 4 | 100 % | 2.20, 0.319 | 2.20, 0.318 |
| text, 95 % alike | 100 % | 2.18, 0.315 | 2.12, 0.308 |
| text, 60 % alike | 100 % | 2.20, 0.319 | 2.20, 0.318 |

Compared exactly nothing has company. Similar texts find the views again; bins nearly do, and lose direction where
they are finer than the noise. Those that merge all views lose nothing here: what looks alike is a weak guide in these
worlds.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from experiments.console import CONSOLE, counting_progress, run_command, summary
from experiments.records import replace_text
from experiments.studies.arms import ARMS, Arm, checked_arms, critic_arms
from experiments.studies.bias_variance_figures import FOLLOWED, draw
from experiments.studies.keys import STATE_KEYS
from experiments.studies.measure import LEFT_OUT, Measured, Setting, measure, rms_advantage
from experiments.studies.moments import Interval
from experiments.studies.oracle import check_size, solve
from experiments.studies.propositions import propositions
from experiments.studies.worlds import graph_world, lake_world, random_policy
from hgpo_jax.estimators.advantages import Estimator

KEYED = ("level 0", "HGPO K=2")  # measured with other keys too
KEY_COLUMNS = ("answers", "rmse", "cosine, 1 group")
AXES = {"group_size": "group_sizes", "horizon": "horizons", "aliasing": "aliasings", "reward_std": "reward_stds"}

Row = dict[str, Any]  # one arm at one point of an axis; of each figure the value, and NAME_low, NAME_high


@dataclasses.dataclass(frozen=True)
class BiasVarianceCommand:
    """The default point, and the values of each axis, which is moved alone."""

    group_size: int = 8
    horizon: int = 6
    aliasing: int = 2  # hidden states that look the same, of 4 a layer
    reward_std: float = 0.0
    group_sizes: tuple[int, ...] = (2, 4, 8, 16)
    horizons: tuple[int, ...] = (2, 4, 6, 8)
    aliasings: tuple[int, ...] = (1, 2, 4)
    reward_stds: tuple[float, ...] = (0.0, 0.25, 1.0)
    lake_horizons: tuple[int, ...] = (8, 10)  # FrozenLake 4x4, of which the neighbouring tiles are seen; () for none
    keys: bool = True  # the default point once more with states that never repeat exactly
    worlds: int = 6  # random graphs, with a policy each, that every point is averaged over
    memory_length: int = 2  # of the policies: pairs of observation and action
    temperature: float = 1.0
    gamma: float = 0.95
    max_steps: int = 131_072  # sampled at each point in each world
    seed: int = 0
    directory: Path = Path("runs/bias_variance")


@dataclasses.dataclass(frozen=True)
class Point:
    """Where on which axis, and the settings to average over."""

    axis: str
    at: float | str
    settings: tuple[Setting, ...]


def points(command: BiasVarianceCommand) -> list[Point]:
    """The default first, then every axis around it; the default is measured once and stands on each."""
    default = {axis: getattr(command, axis) for axis in AXES}

    def graphs(**changed: Any) -> tuple[Setting, ...]:
        about = default | changed
        size = about.pop("group_size")
        seeds = range(command.seed, command.seed + command.worlds)
        return tuple(_setting(command, graph_world(seed, **about), seed, size, skill=1.0) for seed in seeds)

    default_point = Point("default", 0, graphs())
    result = [default_point]
    for axis, field in AXES.items():
        values = [value for value in getattr(command, field) if value != default[axis]]
        result += [Point(axis, value, graphs(**{axis: value})) for value in values]
    for horizon in command.lake_horizons:
        lake = _setting(command, lake_world(horizon=horizon), command.seed, command.group_size, skill=3.0)
        result.append(Point("lake", horizon, (lake,)))
    for name, keys in STATE_KEYS.items() if command.keys else ():
        settings = tuple(dataclasses.replace(setting, state_keys=keys) for setting in default_point.settings)
        result.append(Point("keys", name, settings))
    return result


def study(command: BiasVarianceCommand, arms: Mapping[str, Arm | Estimator] | None = None) -> list[Row]:
    """Measure, print and save; with ``arms`` of your own they appear in every table.

    Args:
      command: what is measured, and where its table.csv, table.json and figures go.
      arms: estimators by name, one that is no `Arm` reads the state level; `ARMS` and `critic_arms` when left out.

    Returns:
      A row for each arm at each point. Figures are relative to the root mean square of the true advantage: an
      estimator that always says 0 has bias 1, variance 0. Intervals (95 %) are of the sampling in these worlds.

    Raises:
      ValueError: a setting out of range, a world too large to solve, an estimator's bad result.
    """
    if command.worlds < 1 or command.group_size < 2 or min(command.group_sizes, default=2) < 2:
        raise ValueError(f"worlds must be 1 or more and group sizes 2 or more: {command.worlds}, {command.group_sizes}")
    if command.seed < 0:
        raise ValueError(f"seed must be 0 or more, got {command.seed}")
    known = ARMS | critic_arms(command.gamma)
    arms = checked_arms(known if arms is None else arms)
    todo = points(command)
    for world in dict.fromkeys(setting.world for point in todo for setting in point.settings):
        check_size(world)  # before anything is measured
    command.directory.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with counting_progress() as progress:
        bar = progress.add_task("", total=sum(len(point.settings) for point in todo))
        for point in todo:
            progress.update(bar, description=_place(point.axis, point.at))
            here = arms
            if point.axis == "keys":
                here = {name: arm for name, arm in arms.items() if name in KEYED or name not in known}
            by_arm: dict[str, list[tuple[Measured, float]]] = {name: [] for name in here}
            for setting in point.settings:
                scale = rms_advantage(solve(setting.world, setting.policy, gamma=setting.gamma))
                for name, measured in measure(setting, here) if here else ():
                    by_arm[name].append((measured, scale))
                progress.advance(bar)
            rows += [{"axis": point.axis, "at": point.at, "arm": name} | _row(runs) for name, runs in by_arm.items()]
    _save(rows, command)
    places = {"default": "default point"}
    if command.lake_horizons:
        places["lake"] = f"FrozenLake, horizon {command.lake_horizons[0]}"
    for axis, title in places.items():
        for table in (_advantage_table, _levels_table, _gradient_table):
            CONSOLE.print(table(rows, axis, title))
    if command.keys:
        CONSOLE.print(_keys_table(rows))
    CONSOLE.print(_propositions_table(rows))
    defaults = {axis: getattr(command, axis) for axis in AXES}
    shown = [name for name in arms if name in FOLLOWED or name not in known] or list(arms)
    for path in draw(rows, shown, defaults, command.directory):
        CONSOLE.print(f"Figure: {path}", soft_wrap=True)
    return rows


def _setting(command: BiasVarianceCommand, world: Any, seed: int, group_size: int, *, skill: float) -> Setting:
    policy = random_policy(world, command.memory_length, seed=seed, temperature=command.temperature, skill=skill)
    return Setting(world, policy, group_size, command.gamma, command.max_steps, seed)


def _row(runs: Sequence[tuple[Measured, float]]) -> Row:
    """The mean over worlds of each figure; standard errors of independent worlds add in squares."""
    first = runs[0][0]
    row: Row = {"answered": float(np.mean([measured.answered for measured, _ in runs]))}
    for which in first.steps:
        row[f"{which}: share"] = float(np.mean([measured.steps[which].share for measured, _ in runs]))
        for moment in ("bias2", "variance", "mse"):
            parts = [getattr(measured.steps[which], moment).scaled(scale**-2) for measured, scale in runs]
            row |= _cells(f"{which}: {moment}", _mean(parts))
    for moment in first.gradient:
        row |= _cells(f"gradient: {moment}", _mean([measured.gradient[moment] for measured, _ in runs]))
    if first.baseline_bias2 is not None:
        row["infinite group: bias2"] = float(np.mean([(m.baseline_bias2 or 0.0) / scale**2 for m, scale in runs]))
    return row


def _mean(parts: Sequence[Interval]) -> Interval:
    value = float(np.mean([part.value for part in parts]))
    half = float(np.sqrt(np.sum([(part.high - part.low) ** 2 for part in parts]))) / 2 / len(parts)
    return Interval(value, value - half, value + half)


def _cells(name: str, interval: Interval) -> Row:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _save(rows: Sequence[Row], command: BiasVarianceCommand) -> None:
    settings = dataclasses.asdict(command) | {"directory": str(command.directory)}
    replace_text(command.directory / "table.json", json.dumps({"settings": settings, "rows": rows}, indent=1))
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(command.directory / "table.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _told(row: Row, name: str, *, root: bool = False) -> str:
    """Value and the larger half of its interval; with ``root`` of the square root, the unit of the advantage."""
    if name not in row:
        return "-"
    interval = Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
    value, low, high = interval.root() if root else interval
    half = max(high - value, value - low)  # of a square that was cut at 0 the upper one
    return f"{value:.2f}±{half:.2f}" if root else f"{value:.3f}±{half:.3f}"


def _place(axis: str, at: float | str) -> str:
    """A point's name."""
    if axis == "default":
        return axis
    return f"{axis}: {at}" if isinstance(at, str) else f"{axis} {at:g}"


def _first_of(rows: Sequence[Row], axis: str) -> Iterator[Row]:
    start = next(row["at"] for row in rows if row["axis"] == axis)
    return (row for row in rows if row["axis"] == axis and row["at"] == start)


def _columns(title: str, first: str, *names: str, caption: str = "") -> Table:
    """Figures are whole in 80 columns: headers are wrapped here, so that rich has nothing but long names to wrap."""
    table = Table(title=title, caption=caption, box=SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column(first, overflow="fold")
    for name in names:
        table.add_column("\n".join(textwrap.wrap(name, max(map(len, name.split())))), justify="right")
    return table


def _advantage_table(rows: Sequence[Row], axis: str, title: str) -> Table:
    columns = ("answers", "bias", "bias, own step out", "std", "rmse", "bias, view")
    told = f"advantages, {title}, all steps; 1 = rms of the true advantage"
    table = _columns(told, "estimator", *columns, caption="view: against what the policy can know")
    for row in _first_of(rows, axis):
        if "all: bias2" in row:
            names = ("all: bias2", f"all{LEFT_OUT}: bias2", "all: variance", "all: mse", "view: bias2")
            table.add_row(
                escape(row["arm"]), f"{row['answered']:.0%}", *(_told(row, name, root=True) for name in names)
            )
    return table


def _gradient_table(rows: Sequence[Row], axis: str, title: str) -> Table:
    columns = ("bias", "std", "cosine, 1 group", "cosine of the mean")
    told = f"gradients, {title}; 1 = length of the true gradient"
    table = _columns(told, "estimator", *columns, caption="cosine of the mean: an estimate that may exceed 1")
    for row in _first_of(rows, axis):
        squares = [_told(row, f"gradient: {name}", root=True) for name in ("bias2", "variance")]
        table.add_row(
            escape(row["arm"]), *squares, *(_told(row, f"gradient: {name}") for name in ("cosine", "cosine_of_mean"))
        )
    return table


def _levels_table(rows: Sequence[Row], axis: str, title: str) -> Table:
    columns = ("bias", "std", "rmse", "bias, own step out", "std, own step out", "bias, infinite group, all steps")
    told = f"advantages, {title}, steps with a group at levels 0 to 2 and of equal histories"
    table = _columns(told, "estimator", *columns)
    for row in _first_of(rows, axis):
        if f"common{LEFT_OUT}: bias2" not in row:
            continue
        names = [f"common: {moment}" for moment in ("bias2", "variance", "mse")]
        names += [f"common{LEFT_OUT}: {moment}" for moment in ("bias2", "variance")]
        exact = row.get("infinite group: bias2")
        cells = [_told(row, name, root=True) for name in names]
        table.add_row(escape(row["arm"]), *cells, "-" if exact is None else f"{np.sqrt(exact):.2f}")
    return table


def _keys_table(rows: Sequence[Row]) -> Table:
    """What becomes of the groups where states are told with noise."""
    table = _columns("default point, states told with noise, all steps", "states", "estimator", *KEY_COLUMNS)
    table.columns[1].justify = "left"
    shown = {row["arm"] for row in rows if row["axis"] == "keys"}
    for row in rows:
        if row["arm"] in shown and row["axis"] in ("default", "keys"):
            states = row["at"] if row["axis"] == "keys" else "the view itself"
            figures = [_told(row, "all: mse", root=True), _told(row, "gradient: cosine")]
            table.add_row(states, escape(row["arm"]), f"{row['answered']:.0%}", *figures)
    return table


def _propositions_table(rows: Sequence[Row]) -> Table:
    """The answers at every point."""
    at_points: dict[tuple[str, float | str], dict[str, Row]] = {}
    for row in rows:
        if row["axis"] == "keys":
            continue
        at_points.setdefault((row["axis"], row["at"]), {})[row["arm"]] = row
    caption = "open: within the intervals; -: no estimators or steps to ask"
    table = _columns("the propositions at every point", "point", *propositions({}), caption=caption)
    for (axis, at), by_arm in at_points.items():
        answers = propositions(by_arm).values()
        table.add_row(_place(axis, at), *answers)
    return table


def main(argv: list[str] | None = None) -> None:
    """The command line."""

    def command(command: Annotated[BiasVarianceCommand, tyro.conf.arg(name="")]) -> None:
        study(command)

    run_command(command, argv, summary(__doc__))


if __name__ == "__main__":
    main()

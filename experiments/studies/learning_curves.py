"""Who learns fastest and best: 20 seeds of every estimator on frozen lakes, whole trainings compiled; and ablations.

    python -m experiments.studies.learning_curves
    python -m experiments.studies.learning_curves --no-ablations --lakes 4x4 --seeds 5

A table of logits learns FrozenLake with horizon 50, 64 episodes an iteration in groups of 8, each estimator at the best
of three learning rates (by the same seeds). Where moves are certain the policy sees the tiles around its last three
cells (100 iterations); where they slip it sees its cell (400). On two cores the 16 estimators, 3 rates and 20 seeds on
four lakes took 9 min 20 s, the ablations 4 min 35 s more.

Success over training, interquartile mean over 20 seeds ± half of the 95 % bootstrap interval (where moves are certain
all reach 1.000 at the end, exact history on 8x8 excepted); for all lakes 1 is the best policy, and W-L counts rivals
over which P(more success with the same seed) has its interval above or below 1/2:

| | 4x4 | 8x8 | 4x4-slippery | 8x8-slippery | all lakes | W-L |
|---|---|---|---|---|---|---|
| GAE | 0.923 ± 0.011 | 0.780 ± 0.058 | 0.422 ± 0.013 | 0.134 ± 0.008 | 0.767 ± 0.024 | 15-0 |
| GiGPO | 0.918 ± 0.010 | 0.774 ± 0.061 | 0.407 ± 0.029 | 0.035 ± 0.012 | 0.731 ± 0.032 | 8-1 |
| GiGPO std | 0.920 ± 0.010 | 0.776 ± 0.062 | 0.398 ± 0.016 | 0.029 ± 0.011 | 0.727 ± 0.029 | 8-1 |
| RLOO | 0.919 ± 0.010 | 0.774 ± 0.062 | 0.392 ± 0.023 | 0.036 ± 0.013 | 0.725 ± 0.029 | 7-1 |
| HGPO K=0 + episode | 0.919 ± 0.010 | 0.775 ± 0.061 | 0.402 ± 0.021 | 0.036 ± 0.013 | 0.724 ± 0.033 | 9-1 |
| GRPO | 0.916 ± 0.010 | 0.769 ± 0.060 | 0.394 ± 0.029 | 0.027 ± 0.008 | 0.718 ± 0.033 | 7-4 |
| REINFORCE | 0.921 ± 0.011 | 0.774 ± 0.062 | 0.382 ± 0.021 | 0.042 ± 0.013 | 0.713 ± 0.031 | 8-1 |
| GRPO std | 0.917 ± 0.010 | 0.768 ± 0.061 | 0.387 ± 0.024 | 0.039 ± 0.012 | 0.712 ± 0.031 | 7-3 |
| shrinkage K=2 task root | 0.920 ± 0.011 | 0.767 ± 0.061 | 0.381 ± 0.027 | 0.028 ± 0.007 | 0.704 ± 0.034 | 7-1 |
| HGPO K=0 | 0.901 ± 0.010 | 0.698 ± 0.073 | 0.367 ± 0.024 | 0.018 ± 0.008 | 0.670 ± 0.034 | 5-9 |
| shrinkage K=2 | 0.900 ± 0.012 | 0.701 ± 0.077 | 0.363 ± 0.026 | 0.020 ± 0.009 | 0.668 ± 0.039 | 4-9 |
| HGPO K=2 | 0.899 ± 0.010 | 0.688 ± 0.068 | 0.345 ± 0.027 | 0.012 ± 0.004 | 0.653 ± 0.033 | 3-11 |
| HGPO K=4 | 0.896 ± 0.010 | 0.686 ± 0.056 | 0.347 ± 0.033 | 0.011 ± 0.005 | 0.644 ± 0.036 | 1-13 |
| HGPO K=2 leave-one-out | 0.899 ± 0.010 | 0.689 ± 0.067 | 0.343 ± 0.040 | 0.016 ± 0.008 | 0.638 ± 0.040 | 2-10 |
| HGPO K=2 std | 0.896 ± 0.011 | 0.690 ± 0.069 | 0.287 ± 0.033 | 0.007 ± 0.004 | 0.595 ± 0.038 | 1-12 |
| exact history | 0.734 ± 0.047 | 0.001 ± 0.001 | 0.039 ± 0.015 | 0.001 ± 0.000 | 0.052 ± 0.023 | 0-15 |

- *Three layers.* A critic (GAE's, trained beside the policy) beats all others. Next come those that also compare
  whole episodes or all steps of a task; then those that compare only steps with the same state or a longer context.
  Groups of exact histories hardly learn: where rewards are rare, few steps have company whose returns differ.
- *GiGPO, HGPO K=0 and HGPO K=0 with the episode are three things*: 0.731, 0.670, 0.724. The episode is what K=0 lacks.
- *Finer levels slow learning here.* HGPO K=2 loses to K=0, P = 0.31, interval below 1/2. Where the cell is seen a
  history tells nothing, so this is cost without gain; but with aliased views no K is ahead either.
- *Ablations* of HGPO K=2, success over training on all lakes: K = 0, 1, 2, 4: 0.670, 0.640, 0.653, 0.644 (± 0.04);
  alpha = 0, 0.5, 1, 2: 0.625, 0.636, 0.653, 0.622 (± 0.04); group size 2, 4, 8, 16: 0.467, 0.567, 0.653, 0.672
  (all ± 0.04). The group size matters; K and alpha hardly do.
- *Weights*: shrinkage with the task as root beats HGPO K=2 in success (P = 0.89) but has the larger error in
  `bias_variance`. None wins in both, so the default stays.

One task is trained on at a time, by a table, without text: this says what the advantages do, not what a language model
makes of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import jax
import numpy as np
import tyro
from rich.markup import escape

from experiments.console import CONSOLE, counting_progress, run_command, summary
from experiments.studies.arms import ARMS, Arm, checked_arms, hierarchy_arm
from experiments.studies.curve_statistics import Learned, Point, interquartile_mean
from experiments.studies.learning_curves_figures import FOLLOWED
from experiments.studies.learning_curves_report import report
from experiments.studies.tabular import Training, train_many
from experiments.studies.worlds import World, best_score, lake_world
from hgpo_jax.config import GAEConfig
from hgpo_jax.estimators import make_estimator
from hgpo_jax.estimators.advantages import Estimator, estimator_name

LakeName = Literal["4x4", "8x8", "4x4-slippery", "8x8-slippery"]
LAKES: tuple[LakeName, ...] = ("4x4", "8x8", "4x4-slippery", "8x8-slippery")

LEARNERS: dict[str, Arm] = {
    **{name: ARMS[name] for name in ("REINFORCE", "GRPO", "RLOO", "GiGPO")},
    "HGPO K=0": hierarchy_arm(0),
    **{name: ARMS[name] for name in ("HGPO K=0 + episode", "HGPO K=2", "HGPO K=4", "HGPO K=2 leave-one-out")},
    **{name: ARMS[name] for name in ("shrinkage K=2", "shrinkage K=2 task root", "exact history")},
    **{name: ARMS[name] for name in ("GRPO std", "GiGPO std", "HGPO K=2 std")},
    "GAE": Arm(GAEConfig()),
}


@dataclasses.dataclass(frozen=True)
class LearningCurvesCommand:
    """What is trained and where it is kept; the same command goes on where it was stopped."""

    lakes: tuple[LakeName, ...] = LAKES
    seeds: int = 20
    horizon: int = 50
    episodes: int = 64  # an iteration
    group_size: int = 8
    iterations: int | None = None  # 100 where moves are certain, 400 where they slip, if left out
    learning_rates: tuple[float, ...] = (0.03, 0.1, 0.3)  # Adam's; each estimator is shown at its best, lake by lake
    gamma: float = 0.95
    ablations: bool = True
    context_lengths: tuple[int, ...] = (0, 1, 2, 4)  # of HGPO, at the default alpha and group size
    alphas: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    group_sizes: tuple[int, ...] = (2, 4, 8, 16)
    seed: int = 0
    directory: Path = Path("runs/learning_curves")


def study(command: LearningCurvesCommand, arms: Mapping[str, Arm | Estimator] | None = None) -> list[dict[str, Any]]:
    """Train what is not there yet, then print, save and draw; ``arms`` of your own appear in every table.

    Args:
      command: what is trained, and where its runs/, table.csv, table.json and figures go.
      arms: estimators by name, one that is no `Arm` reads the state level; `LEARNERS` when left out. A function is
        trained anew each time, since it may have changed.

    Returns:
      A row for each estimator on each lake, and on all together (``lake`` "all", where 1 is the best policy).

    Raises:
      ValueError: a setting out of range, a result in the folder that had other settings, an estimator's bad result.
    """
    arms = checked_arms(LEARNERS if arms is None else arms)
    if command.seeds < 2 or not command.lakes or not command.learning_rates:
        raise ValueError(
            f"nothing to compare: {command.seeds} seeds (2 or more are needed), {len(command.lakes)} lakes, "
            f"{len(command.learning_rates)} learning rates"
        )
    if not 0 <= command.seed < 2**32:
        raise ValueError(f"seed must be from 0 to 2^32 - 1, got {command.seed}")
    rivals = [Point(lake, name, arm, command.group_size) for lake in command.lakes for name, arm in arms.items()]
    by_axis = ablation_points(command) if command.ablations else {}
    ablated = [point for points in by_axis.values() for at in points.values() for point in at]
    for point in [*rivals, *ablated]:  # what is wrong is told before anything is trained
        _task(point, command)
        make_estimator(point.arm.estimator)
    (command.directory / "runs").mkdir(parents=True, exist_ok=True)
    learned = _learn(rivals, command, "estimators")
    axes: dict[str, dict[float, list[Learned]]] = {}
    if ablated:
        more = _learn(ablated, command, "ablations")
        axes = {
            axis: {at: [more[point] for point in points] for at, points in values.items()}
            for axis, values in by_axis.items()
        }
    settings = dataclasses.asdict(command) | {"directory": str(command.directory)}
    followed = [name for name in arms if name in FOLLOWED or name not in LEARNERS] or list(arms)
    return report(list(learned.values()), followed, axes, settings, command.directory)


def ablation_points(command: LearningCurvesCommand) -> dict[str, dict[float, list[Point]]]:
    """HGPO K=2, alpha=1 at the command's group size, with one of the three changed: axis -> value -> lakes."""

    def points(context_length: int = 2, alpha: float = 1.0, group_size: int = command.group_size) -> list[Point]:
        arm = hierarchy_arm(context_length, alpha)
        name = f"HGPO K={context_length}" + (f" α={alpha:g}" if alpha != 1 else "")
        return [Point(lake, name, arm, group_size) for lake in command.lakes]

    axes = {
        "K": {k: points(context_length=k) for k in command.context_lengths},
        "alpha": {alpha: points(alpha=alpha) for alpha in command.alphas},
        "group size": {size: points(group_size=size) for size in command.group_sizes},
    }
    return {axis: values for axis, values in axes.items() if values}


def _learn(points: Sequence[Point], command: LearningCurvesCommand, what: str) -> dict[Point, Learned]:
    """What became of every point; those that are in the folder are not trained again."""
    todo = list(dict.fromkeys(points))
    learned: dict[Point, Learned] = {}
    with counting_progress() as progress:
        bar = progress.add_task("", total=len(todo))
        for point in todo:
            told = f"{what}: {point.lake}, {point.name}, groups of {point.group_size}"
            progress.update(bar, description=escape(told))
            learned[point] = _finish(point, command)
            progress.advance(bar)
    trained = [one.seconds for one in learned.values() if not one.found]
    told = f"{len(trained)} points trained in {sum(trained):.0f} s, {len(todo) - len(trained)} found in"
    CONSOLE.print(f"{what}: {told} {command.directory / 'runs'}", soft_wrap=True, highlight=False)
    return learned


def _task(point: Point, command: LearningCurvesCommand) -> tuple[World, Training]:
    """Where the point's runs learn, and with which settings."""
    slippery = point.lake.endswith("slippery")
    # Where moves are certain the policy sees the tiles around its last three cells; on slippery ice it sees its cell.
    world = lake_world(
        horizon=command.horizon,
        size=int(point.lake[0]),
        slippery=slippery,
        view="cell" if slippery else "neighbours",
    )
    training = Training(
        group_size=point.group_size,
        episodes=command.episodes,
        iterations=(400 if slippery else 100) if command.iterations is None else command.iterations,
        memory_length=0 if slippery else 2,
        gamma=command.gamma,
    )
    if not best_score(world):
        raise ValueError(f"lake {point.lake}: nobody reaches the goal in {command.horizon} steps; raise horizon")
    return world, training


def _finish(point: Point, command: LearningCurvesCommand) -> Learned:
    world, training = _task(point, command)
    settings = {
        "name": point.name,
        "estimator": estimator_name(point.arm.estimator),
        "rows": list(point.arm.rows),
        "world": world.name,
        "learning_rates": list(command.learning_rates),
        "seeds": command.seeds,
        "seed": command.seed,
    } | dataclasses.asdict(training)
    name = quote(f"{point.lake} {point.name} g{point.group_size}", safe=" =+")  # another one for each point
    path = command.directory / "runs" / f"{name}.npz"
    found = path.exists() and not callable(point.arm.estimator)
    if found:
        success, seconds = _read(path, settings)
    else:
        start = time.perf_counter()
        success = _train(point, world, training, command)
        seconds = time.perf_counter() - start
        _write(path, settings, success, seconds)
    # The rate that is best over the whole training; the middle half of the seeds decides.
    rate = int(np.argmax([interquartile_mean([runs.mean(1)]).value for runs in success]))
    best = best_score(world) / float(world.reward.max())
    return Learned(point, command.learning_rates[rate], success[rate], best, command.episodes, seconds, found)


def _train(point: Point, world: World, training: Training, command: LearningCurvesCommand) -> np.ndarray:
    try:
        curves = train_many(
            world,
            point.arm,
            training,
            seeds=command.seeds,
            learning_rates=command.learning_rates,
            seed=command.seed,
        )
    except ValueError as error:
        raise ValueError(f'estimator "{point.name}", lake {point.lake}: {error}') from error
    return np.asarray(curves.success)


def _read(path: Path, settings: dict[str, Any]) -> tuple[np.ndarray, float]:
    try:
        with open(path, "rb") as raw, np.load(raw) as file:
            before = json.loads(str(file["settings"]))
            success, seconds = file["success"], float(file["seconds"])
    except (zipfile.BadZipFile, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to train it anew") from error
    changed = [
        f"{name} = {before.get(name)}, not {value}" for name, value in settings.items() if before.get(name) != value
    ]
    if changed:
        raise ValueError(
            f"{path} was trained with {'; '.join(changed)}: choose another --directory, or delete the file to train "
            "it anew"
        )
    return success, seconds


def _write(path: Path, settings: dict[str, Any], success: np.ndarray, seconds: float) -> None:
    """Whoever is killed meanwhile leaves no half a file."""
    beside = path.with_suffix(f".{os.getpid()}.partial")
    with open(beside, "wb") as file:
        np.savez_compressed(file, settings=json.dumps(settings), success=success, seconds=seconds)
    beside.replace(path)


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    if jax.config.values["jax_num_cpu_devices"] < 0:
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # runs are split over devices

    def run(command: Annotated[LearningCurvesCommand, tyro.conf.arg(name="")]) -> None:
        study(command)

    run_command(run, argv, summary(__doc__))


if __name__ == "__main__":
    main()

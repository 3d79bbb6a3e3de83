"""Evaluate a trained run on its held-out panel, over several seeds of the replies' draws.

    python -m experiments.evaluate runs/hgpo-FrozenLakeText-seed0 --seeds 123 456 789

Prints mean and standard deviation over seeds and writes evaluation.json into the run's folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.table import Table

from envs.core import make_panel
from experiments.assembly import Learner, Rollouts
from experiments.configs import config_from_json
from experiments.console import CONSOLE, run_command
from experiments.records import replace_text
from hgpo_jax.learner.checkpoint import Checkpoints

REPORTED = ("success", "episode_return", "episode_length", "valid_action_share", "response_length")


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    which: Literal["best", "latest"] = "latest",
    tasks: int = 200,
    seeds: tuple[int, ...] = (123, 456, 789),
) -> dict[str, list[float]]:
    """Returns each metric's value per seed.

    Args:
      run: a folder that train.py has made.
      which: checkpoint to load; best is the best on this very panel during training, so its figure flatters.
      tasks: how many held-out tasks.
      seeds: of the draws, one pass over the tasks each.
    """
    if not seeds or tasks < 1:
        raise ValueError(f"evaluation needs at least one seed and one task, got seeds {seeds} and tasks {tasks}")
    config = config_from_json(run / "config.json")
    panel = make_panel(config.env, config.evaluation.split, tasks, config.evaluation.panel_seed, **config.env_options)
    learner, rollouts = Learner(config), Rollouts(config)
    with Checkpoints(run / "checkpoints") as checkpoints:
        params, _ = checkpoints.restore_params(learner.state.params, which)
    params = learner.sampling_params(params)
    passes = [rollouts.evaluate(params, panel=panel, seed=seed).metrics for seed in seeds]
    figures = {name: [float(metrics[name]) for metrics in passes] for name in REPORTED}
    record = {"which": which, "tasks": tasks, "seeds": list(seeds), "metrics": figures}
    replace_text(run / "evaluation.json", json.dumps(record, indent=2))
    table = Table(title=f"{run}, {which} checkpoint, {tasks} held-out tasks, {len(seeds)} seeds")
    for column in ("metric", "mean", "std over seeds"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for name, values in figures.items():
        table.add_row(name.replace("_", " "), f"{np.mean(values):.3f}", f"{np.std(values):.3f}")
    CONSOLE.print(table)
    return figures


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    run_command(evaluate, argv, __doc__)


if __name__ == "__main__":
    main()

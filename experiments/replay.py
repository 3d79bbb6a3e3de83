"""Replay a batch that ``train.py --dump-rollouts`` has written: other estimators on it, and one update.

    python -m experiments.replay runs/NAME 12

Every estimator of the run's config takes the same steps (GAE where a run with it has left its values); the table shows
what each makes of them. With ``--update`` the run's latest checkpoint takes one update on the batch (nothing is saved),
and the metrics are printed.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import tyro
from rich.table import Table

from experiments.assembly import Learner, signals_of
from experiments.configs import EstimatorName, RunConfig, config_from_json, short_name
from experiments.console import CONSOLE, run_command
from experiments.rollout_files import load_rollouts
from hgpo_jax.estimators import make_estimator
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.types import Metrics, Trajectories


def advantages_of(config: RunConfig, batch: Trajectories) -> np.ndarray:
    """f32 [N]: what ``config.estimator`` makes of a recorded batch."""
    advantages, _ = make_estimator(config.estimator_config)(signals_of(config, batch))
    return np.asarray(advantages)


def replay(
    run: Annotated[Path, tyro.conf.Positional],
    iteration: Annotated[int, tyro.conf.Positional],
    update: bool = False,
) -> Metrics:
    """Compares the estimators on one iteration's batch.

    Args:
      run: a folder that train.py has made with --dump-rollouts.
      iteration: whose batch.
      update: also take one update with the latest checkpoint's state.
    """
    config = config_from_json(run / "config.json")
    batch = load_rollouts(run, iteration)
    names = dict.fromkeys([*get_args(EstimatorName), config.estimator])  # one of the user's own comes last
    names = [name for name in names if name != "gae" or batch.value is not None]
    advantages = {name: advantages_of(dataclasses.replace(config, estimator=name), batch) for name in names}
    table = Table(title=f"iteration {iteration}: {batch.num_steps} steps")
    for column in ("estimator", "mean", "std", "share with signal", f"correlation with {config.estimator_name}"):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    own = advantages[config.estimator]
    for name, values in advantages.items():
        varies = values.std() > 0 and own.std() > 0
        correlation = f"{np.corrcoef(values, own)[0, 1]:.3f}" if varies else "-"
        signal = f"{(values != 0).mean():.3f}"
        table.add_row(short_name(name), f"{values.mean():.3f}", f"{values.std():.3f}", signal, correlation)
    CONSOLE.print(table)
    return _update(config, run, batch, iteration) if update else {}


def _update(config: RunConfig, run: Path, batch: Trajectories, iteration: int) -> Metrics:
    learner = Learner(config)
    with Checkpoints(run / "checkpoints") as checkpoints:
        learner.state, _ = checkpoints.restore(learner.state)
    metrics = {k: v for k, v in learner.learn(batch, iteration).items() if np.ndim(v) == 0}
    for name, value in metrics.items():
        CONSOLE.print(f"{name:32s} {float(value): .6g}")
    return metrics


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    run_command(replay, argv, __doc__)


if __name__ == "__main__":
    main()

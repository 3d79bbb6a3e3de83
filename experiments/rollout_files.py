"""The batches that ``train.py --dump-rollouts`` keeps, one file an iteration and process, and their reading."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hgpo_jax.types import Trajectories


def save_rollouts(batch: Trajectories, run: Path, iteration: int) -> None:
    """Writes this process's batch into the folder of a run; files of the same iteration by other counts go."""
    folder, count = run / "rollouts", jax.process_count()
    folder.mkdir(exist_ok=True)
    for path in folder.glob(f"{iteration:05d}-*of*.npz") if jax.process_index() == 0 else ():
        if not path.stem.endswith(f"of{count}"):
            path.unlink()
    batch.save(folder / f"{iteration:05d}-{jax.process_index() + 1}of{count}.npz")


def load_rollouts(run: Path, iteration: int) -> Trajectories:
    """The whole batch of an iteration, in the order of the processes.

    Raises:
      ValueError: it was not kept, or a part of it is missing.
    """
    folder = run / "rollouts"
    paths = list(folder.glob(f"{iteration:05d}-*of*.npz"))
    if not paths:
        kept = sorted({int(path.stem.split("-")[0]) for path in folder.glob("*-*of*.npz")})
        raise ValueError(
            f"no batch of iteration {iteration} in {folder}: train with --dump-rollouts; batches kept: "
            f"{', '.join(map(str, kept)) or 'none'}"
        )
    count = int(paths[0].stem.split("of")[1])
    parts = [folder / f"{iteration:05d}-{i}of{count}.npz" for i in range(1, count + 1)]
    if missing := [path.name for path in parts if path not in paths]:
        raise ValueError(f"the batch of iteration {iteration} in {folder} lacks {', '.join(missing)}")
    return join([Trajectories.load(path) for path in parts])


def join(parts: Sequence[Trajectories]) -> Trajectories:
    """One batch of several; ids are moved past those of the parts before, so that their groups stay apart."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(Trajectories):
        values = [getattr(part, field.name) for part in parts]
        if values[0] is None:
            continue
        if field.name in ("prompt_group", "trajectory"):
            first = np.cumsum([0, *(ids.max() + 1 for ids in values[:-1])])
            values = [ids + offset for ids, offset in zip(values, first, strict=True)]
        ragged = isinstance(values[0], tuple)
        columns[field.name] = sum(values, ()) if ragged else np.concatenate(values)
    return Trajectories(**columns)

"""What a run leaves behind: metrics.jsonl, TensorBoard (and W&B) scalars, the environment it ran in, a figure."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from tensorboardX import SummaryWriter


class Records:
    """Scalars of each iteration, appended to ``metrics.jsonl`` and TensorBoard, and to W&B when asked.

    Args:
      directory: of the run.
      resume_at: drop what is recorded for later iterations, so that a resumed run leaves one line for each.
      wandb: also log there (extra ``wandb``).
      writes: False in all processes but one, of several.
    """

    def __init__(self, directory: Path, resume_at: int | None = None, wandb: bool = False, writes: bool = True):
        self.path = directory / "metrics.jsonl"
        self._writes = writes
        if not writes:
            return
        kept = [] if resume_at is None else [r for r in self.read() if r["iteration"] <= resume_at]
        replace_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        purge = None if resume_at is None else resume_at + 1
        self._board = SummaryWriter(str(directory / "tensorboard"), purge_step=purge)
        self._wandb = _start_wandb(directory) if wandb else None

    def add(self, iteration: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Writes one iteration; arrays (per-level diagnostics) go to metrics.jsonl as lists."""
        row = {"iteration": iteration} | {k: np.asarray(v).tolist() for k, v in metrics.items()}
        if not self._writes:
            return row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        scalars = {k: v for k, v in row.items() if not isinstance(v, list | str)}
        for name, value in scalars.items():
            self._board.add_scalar(name, value, iteration)
        if self._wandb is not None:
            self._wandb.log(scalars, step=iteration)
        return row

    def read(self) -> list[dict[str, Any]]:
        """The rows so far; a last line cut short by a kill is left out.

        Raises:
          ValueError: a line is no row; the message names it.
        """
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        return [self._row(number, line) for number, line in enumerate(lines, 1) if line.endswith(b"\n")]

    def _row(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
            raise ValueError(
                f"{self.path}, line {number} does not hold an iteration's metrics: restore the file, or start the run "
                "again in another folder"
            )
        return row

    def close(self) -> None:
        """Flushes everything."""
        if not self._writes:
            return
        self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def replace_text(path: Path, text: str) -> None:
    """Writes a file such that whoever is killed meanwhile leaves the old one whole."""
    beside = path.with_name(path.name + ".partial")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _start_wandb(directory: Path) -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError("--wandb needs the extra: pip install 'hgpo_jax[wandb]'") from error
    return wandb.init(project="hgpo_jax", name=directory.name, dir=str(directory), resume="allow", id=directory.name)


def environment() -> dict[str, Any]:
    """Versions, devices and commit, as they were when the run started."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "gymnasium", "hgpo_jax")
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,  # an installed copy has no repository
    )
    return {
        "commit": git.stdout.strip() or None,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "devices": [str(device) for device in jax.devices()],
        "processes": jax.process_count(),
        "versions": {name: importlib.metadata.version(name) for name in names},
    }


def draw_learning_curve(rows: list[dict[str, Any]], title: str, path: Path) -> None:
    """Success on the training tasks and on the held-out panel, and the share of valid replies, over iterations."""
    matplotlib.use("Agg")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    curves = (
        ("train/success", "training tasks (success)", "tab:blue", "-", None),
        ("train/valid_action_share", "valid replies (share)", "tab:gray", ":", None),
        ("eval/success", "held-out tasks (success)", "tab:orange", "-", "o"),
    )
    for name, label, colour, style, marker in curves:
        points = [(row["iteration"], row[name]) for row in rows if name in row]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, color=colour, linestyle=style, marker=marker)
    axes.set(xlabel="iteration", ylabel="share", ylim=(0, 1.02), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")
    figure.savefig(path, dpi=150)


def draw_groups(rows: list[dict[str, Any]], levels: Sequence[str], title: str, path: Path) -> None:
    """What the estimator compared, over iterations: size, reach and weight of the groups by level, and context.

    Rows of another number of levels, which a run leaves that is resumed with another estimator, are passed over. Of an
    estimator that compares nothing, for a policy without memory, there is no figure.

    Args:
      rows: of metrics.jsonl.
      levels: the names of the rows of the estimator's per-level figures, coarsest first.
      title: of the figure.
      path: where it goes, as a PNG.
    """
    matplotlib.use("Agg")
    contexts = [row["context/inconsistent_steps"] for row in rows if "context/inconsistent_steps" in row]
    depths = len(contexts[-1]) if contexts else 0
    past = ["last state", *(f"last {k} states" for k in range(2, depths + 1))]
    panels = {
        "estimator/mean_group_size": ("groups of two or more", "steps in a group, mean", levels),
        "estimator/coverage": ("steps with a group", "share of steps", levels),
        "estimator/effective_weight": ("weight in the advantage", "share, mean over steps with signal", levels),
        "estimator/no_signal": ("steps with advantage 0", "share of steps", [""]),
        "context/inconsistent_steps": ("same state, but not the same ..", "share of steps in state groups", past),
        "context/baseline_spread": ("baselines of groups that share the ..", "distance from state's, in return", past),
    }
    curves = {
        name: [
            (row["iteration"], np.atleast_1d(row[name])) for row in rows if np.size(row.get(name, ())) == len(labels)
        ]
        for name, (_, _, labels) in panels.items()
    }
    panels = {name: panel for name, panel in panels.items() if curves[name]}
    if not panels:
        return
    height = -(-len(panels) // 2)
    figure = Figure(figsize=(9, 3 * height), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(height, 2, squeeze=False).ravel()
    for axes, (name, (heading, unit, labels)) in zip(grid, panels.items(), strict=False):
        _draw_levels(axes, curves[name], labels)
        axes.set(title=heading, ylabel=unit, xlabel="iteration")
        if "share" in unit:
            axes.set_ylim(0, 1.02)
    for axes in grid[len(panels) :]:
        axes.remove()
    figure.savefig(path, dpi=150)


def _draw_levels(axes: Any, points: list[tuple[int, np.ndarray]], labels: Sequence[str]) -> None:
    iterations, values = zip(*points, strict=True)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(labels)))
    # The finer a level the thinner its line, so that none hides another that it lies on.
    for number, (label, colour, curve) in enumerate(zip(labels, colours, np.array(values).T, strict=True)):
        marker = "." if len(iterations) < 20 else None
        axes.plot(iterations, curve, label=label, color=colour, marker=marker, linewidth=max(3 - 0.8 * number, 1))
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if len(labels) > 1:
        axes.legend(loc="lower left", fontsize="small", framealpha=0.6)

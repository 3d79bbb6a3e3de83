"""The pictures of the bias-variance study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.studies.measure import LEFT_OUT
from experiments.studies.propositions import MIX, NESTED

Row = dict[str, Any]

UNIT = "1 = rms of the true advantage"
FOLLOWED = (
    "REINFORCE",
    "RLOO",
    "GiGPO",
    "level 0",
    "level 2",
    "exact history",
    "HGPO K=2",
    "GAE λ=0.95, true V",
)  # along the axes
LABELS = {
    "group_size": "group size, episodes a task",
    "horizon": "horizon, steps",
    "aliasing": "hidden states that look the same",
    "reward_std": "reward noise, standard deviation a step",
}


def draw(rows: Sequence[Row], shown: Sequence[str], defaults: Mapping[str, float], directory: Path) -> list[Path]:
    """Writes the figures that the rows allow.

    Args:
      rows: of `bias_variance.study`.
      shown: estimators that are followed along the axes.
      defaults: the value of each axis at the default point.
      directory: where to.

    Returns:
      Their paths.
    """
    matplotlib.use("Agg")
    with matplotlib.rc_context({"text.parse_math": False}):  # names of estimators are taken as they are
        error, cosine = f"rms error of the advantage\n({UNIT})", "cosine with the true gradient,\nmean over groups"
        figures = {
            "trade_off": _trade_off([row for row in rows if row["arm"] in shown]),
            "advantage_axes": _axes(rows, shown, defaults, "all: mse", error, root=True),
            "gradient_axes": _axes(rows, shown, defaults, "gradient: cosine", cosine),
            "gradient": _gradient(rows),
        }
        if {row["arm"] for row in rows} & {*NESTED}:
            figures["levels"] = _levels(rows)
        for name, figure in figures.items():
            figure.savefig(directory / f"{name}.png", dpi=150)
    return [directory / f"{name}.png" for name in figures]


def _at(rows: Sequence[Row], axis: str) -> list[Row]:
    return [row for row in rows if row["axis"] == axis]


def _root(row: Row, name: str) -> tuple[float, list[list[float]]]:
    """The root of a mean square with the lengths of its error bar."""
    value, low, high = (float(np.sqrt(max(row[key], 0))) for key in (name, f"{name}_low", f"{name}_high"))
    return value, [[max(value - low, 0)], [max(high - value, 0)]]


def _trade_off(rows: Sequence[Row]) -> Figure:
    """Bias against standard deviation: who is where; circles are equal errors."""
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.subplots()
    shown = [row for row in _at(rows, "default") if "all: bias2" in row]
    for number, row in enumerate(shown):
        (bias, bias_bar), (deviation, deviation_bar) = _root(row, "all: bias2"), _root(row, "all: variance")
        axes.errorbar(
            bias, deviation, xerr=bias_bar, yerr=deviation_bar, fmt="o", color=f"C{number}", label=row["arm"],
            markersize=5, linewidth=1,
        )  # fmt: skip
    axes.set(xlim=(0, None), ylim=(0, None), xlabel=f"rms bias ({UNIT})", ylabel=f"standard deviation ({UNIT})")
    right, top = max(axes.get_xlim()[1], 1.05), axes.get_ylim()[1]
    angle = np.linspace(0, np.pi / 2, 100)
    for radius in range(1, min(int(np.hypot(right, top)), 20) + 1):
        axes.plot(radius * np.cos(angle), radius * np.sin(angle), color="0.85", linewidth=0.8, zorder=0)
    axes.plot(1, 0, "x", color="black", clip_on=False, label="always 0")
    axes.set(xlim=(0, right), ylim=(0, top), title="Default point, all steps (grey: equal rms error)")
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def _levels(rows: Sequence[Row]) -> Figure:
    """Does bias fall and variance rise with k? On the same steps."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = {"bias2": "rms bias", "variance": "standard deviation"}
    for axes, (moment, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for number, (which, told) in enumerate(
            {"common": "as it is", f"common{LEFT_OUT}": "own step left out"}.items()
        ):
            found = {row["arm"]: row for row in _at(rows, "default") if f"{which}: {moment}" in row}
            here = [name for name in NESTED if name in found]
            _line(axes, [_root(found[name], f"{which}: {moment}") for name in here], f"C{number}", told)
            if MIX in found:
                value = _root(found[MIX], f"{which}: {moment}")[0]
                axes.axhline(value, color=f"C{number}", linestyle=":", label=f"{MIX}, {told}")
            axes.set_xticks(range(len(here)), [name.replace("level ", "k = ") for name in here])
        axes.set(ylim=(0, None), xlabel="past states that a group's steps share", ylabel=f"{label}\n({UNIT})")
        axes.grid(alpha=0.3)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle("Single levels and the mix, on the steps that have a group at each of these levels")
    return figure


def _line(axes: Axes, values: Sequence[tuple[float, list[list[float]]]], colour: str, label: str) -> None:
    if values:
        bars = np.concatenate([bar for _, bar in values], axis=1)
        middle = [value for value, _ in values]
        axes.errorbar(range(len(values)), middle, yerr=bars, fmt="o-", color=colour, label=label, capsize=2)


def _axes(
    rows: Sequence[Row],
    shown: Sequence[str],
    defaults: Mapping[str, float],
    name: str,
    label: str,
    *,
    root: bool = False,
) -> Figure:
    """One figure of merit along every axis."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    for axes, axis in zip(panels, LABELS, strict=True):
        for number, arm in enumerate(shown):
            here = [(row["at"], row) for row in _at(rows, axis) if row["arm"] == arm]
            here += [(defaults[axis], row) for row in _at(rows, "default") if row["arm"] == arm]
            here = sorted((pair for pair in here if name in pair[1]), key=lambda pair: pair[0])
            if not here:
                continue
            found = [_root(row, name) if root else _plain(row, name) for _, row in here]
            bars = np.concatenate([bar for _, bar in found], axis=1)
            place = [at for at, _ in here]
            axes.errorbar(place, [v for v, _ in found], yerr=bars, fmt="o-", color=f"C{number}", label=arm, capsize=2)
        if axis in ("group_size", "aliasing"):
            axes.set_xscale("log", base=2)
        ticks = sorted({row["at"] for row in _at(rows, axis)} | {defaults[axis]})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel=LABELS[axis], ylim=(0, None))
        axes.grid(alpha=0.3)
    for axes in panels[::2]:
        axes.set_ylabel(label)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    return figure


def _plain(row: Row, name: str) -> tuple[float, list[list[float]]]:
    value = row[name]
    return value, [[value - row[f"{name}_low"]], [row[f"{name}_high"] - value]]


def _gradient(rows: Sequence[Row]) -> Figure:
    """Cosine of one group's gradient, and of the mean gradient, with the true one, for every estimator."""
    found = _at(rows, "default")
    figure = Figure(figsize=(9, 0.28 * len(found) + 1.5), layout="constrained")
    panels = {
        "cosine": "cosine with the true gradient,\none prompt group, mean",
        "cosine_of_mean": "cosine with the true gradient\nof the mean gradient (bias of direction)",
    }
    for axes, (name, label) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        for place, row in enumerate(found):
            value, bar = _plain(row, f"gradient: {name}")
            colour = {"HGPO": "C1", "shri": "C2", "GAE ": "C3"}.get(row["arm"][:4], "C0")
            axes.errorbar(value, place, xerr=bar, fmt="o", color=colour, capsize=2)
        axes.set_yticks(range(len(found)), [row["arm"] for row in found])
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    figure.axes[0].invert_yaxis()
    return figure

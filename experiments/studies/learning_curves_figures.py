"""The pictures of the learning-curve study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from experiments.studies.curve_statistics import MEASURES, Learned, interquartile_mean
from experiments.studies.moments import Interval

FOLLOWED = ("GAE", "REINFORCE", "RLOO", "GiGPO", "HGPO K=0", "HGPO K=2", "HGPO K=4", "exact history")  # in the curves
UNIT = "1 = best policy"


def draw(
    by_arm: Mapping[str, Sequence[Learned]],
    followed: Sequence[str],
    won: Mapping[tuple[str, str], Interval],
    axes: Mapping[str, Mapping[float, Sequence[Learned]]],
    directory: Path,
) -> list[Path]:
    """Writes the figures.

    Args:
      by_arm: of each estimator what it learned, lake by lake.
      followed: names of the estimators whose curves are drawn.
      won: of each pair P(the first is better).
      axes: the ablations, axis -> value -> lakes; may be empty.
      directory: where to.

    Returns:
      Their paths.
    """
    matplotlib.use("Agg")
    with matplotlib.rc_context({"text.parse_math": False}):  # names of estimators are taken as they are
        figures = {"curves": _curves({name: by_arm[name] for name in followed}), "intervals": _intervals(by_arm)}
        if won:
            figures["duels"] = _duels(list(by_arm), won)
        if axes:
            figures["ablations"] = _ablations(axes)
        for name, figure in figures.items():
            figure.savefig(directory / f"{name}.png", dpi=150)
    return [directory / f"{name}.png" for name in figures]


def _curves(shown: Mapping[str, Sequence[Learned]]) -> Figure:
    """Success over episodes, a panel a lake: the interquartile mean of the seeds and the middle half."""
    lakes = len(next(iter(shown.values())))
    figure = Figure(figsize=(9, 3.2 * -(-lakes // 2) + 0.6), layout="constrained")
    panels = np.ravel(figure.subplots(-(-lakes // 2), min(lakes, 2), squeeze=False))
    for place, panel in enumerate(panels[:lakes]):
        for number, (name, runs) in enumerate(shown.items()):
            one = runs[place]
            window = max(one.success.shape[1] // 50, 1)
            usable = one.success.shape[1] // window * window
            smooth = one.success[:, :usable].reshape(len(one.success), -1, window).mean(2)
            episodes = (np.arange(smooth.shape[1]) + 0.5) * window * one.episodes
            panel.plot(episodes, stats.trim_mean(smooth, 0.25), color=f"C{number}", label=name)
            panel.fill_between(
                episodes, *np.quantile(smooth, [0.25, 0.75], axis=0), color=f"C{number}", alpha=0.15, linewidth=0
            )
        one = next(iter(shown.values()))[place]
        panel.axhline(one.best, color="0.6", linestyle=":", linewidth=1)
        panel.set(title=f"{one.point.lake} (dotted: best policy)", xlabel="episodes", ylabel="success", ylim=(0, None))
        panel.grid(alpha=0.3)
    for panel in panels[lakes:]:
        panel.remove()
    figure.suptitle("Line: interquartile mean over seeds; shaded: their middle half", fontsize="medium")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    return figure


def _intervals(by_arm: Mapping[str, Sequence[Learned]]) -> Figure:
    """The interquartile mean over lakes and seeds of both measures, best estimator first."""
    found = {
        measure: {name: interquartile_mean([one.normalised(measure) for one in runs]) for name, runs in by_arm.items()}
        for measure in MEASURES
    }
    names = sorted(by_arm, key=lambda name: -found["over training"][name].value)
    figure = Figure(figsize=(10, 0.28 * len(names) + 1.5), layout="constrained")
    for panel, (measure, told) in zip(figure.subplots(1, 2, sharey=True), MEASURES.items(), strict=True):
        for place, name in enumerate(names):
            value, low, high = found[measure][name]
            bars = [[max(value - low, 0)], [max(high - value, 0)]]
            colour = {"HGPO": "C1", "shri": "C2", "GAE": "C3"}.get(name[:4].strip(), "C0")
            panel.errorbar(value, place, xerr=bars, fmt="o", color=colour, capsize=2)
        panel.set_yticks(range(len(names)), names)
        panel.set(title=told, xlabel=f"success ({UNIT})", ylabel="estimator")
        panel.label_outer()
        panel.grid(alpha=0.3)
    figure.axes[0].invert_yaxis()
    figure.suptitle("All lakes: interquartile mean over lakes and seeds, 95 % interval")
    return figure


def _duels(names: Sequence[str], won: Mapping[tuple[str, str], Interval]) -> Figure:
    """P(row better than column); bold where the interval leaves out one half."""
    strength = {name: np.mean([told.value for (a, _), told in won.items() if a == name] or [0.5]) for name in names}
    order = sorted(names, key=lambda name: -strength[name])
    none = Interval(np.nan, np.nan, np.nan)
    table = np.array([[won.get((a, b), none).value for b in order] for a in order])
    figure = Figure(figsize=(0.55 * len(order) + 3, 0.42 * len(order) + 2.4), layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(table, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    for row, a in enumerate(order):
        for column, b in enumerate(order):
            if a != b:
                told = won[a, b]
                sure = told.low > 0.5 or told.high < 0.5
                panel.text(
                    column,
                    row,
                    f"{told.value:.2f}".lstrip("0") if told.value < 1 else "1",
                    ha="center",
                    va="center",
                    fontsize="x-small",
                    fontweight="bold" if sure else "normal",
                    color="white" if abs(told.value - 0.5) > 0.3 else "black",
                )
    panel.set_xticks(range(len(order)), order, rotation=60, ha="right", fontsize="small")
    panel.set_yticks(range(len(order)), order, fontsize="small")
    panel.set(xlabel="than", ylabel="a run of")
    figure.colorbar(image, label="P(more success over training), mean over lakes")
    figure.suptitle("Who beats whom (bold: the 95 % interval leaves out 1/2)", fontsize="medium")
    return figure


def _ablations(axes: Mapping[str, Mapping[float, Sequence[Learned]]]) -> Figure:
    """Success over training along each axis, a line a lake, the rest at its default."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, (axis, values) in zip(panels, axes.items(), strict=True):
        places = range(len(values))
        lakes = [one.point.lake for one in next(iter(values.values()))]
        for number, lake in enumerate(lakes):
            told = [interquartile_mean([runs[number].normalised("over training")]) for runs in values.values()]
            bars = [[max(t.value - t.low, 0) for t in told], [max(t.high - t.value, 0) for t in told]]
            panel.errorbar(
                places, [t.value for t in told], yerr=bars, fmt="o-", color=f"C{number}", label=lake, capsize=2
            )
        panel.set_xticks(places, [f"{at:g}" for at in values])
        panel.set(xlabel={"K": "context length K", "group size": "group size, episodes a task"}.get(axis, axis))
        panel.grid(alpha=0.3)
    panels[0].set(ylabel=f"success over training\n({UNIT})", ylim=(0, None))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    return figure

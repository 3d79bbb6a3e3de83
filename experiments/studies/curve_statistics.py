"""How runs are summed up: interquartile means, who beats whom, and how sure that is (Agarwal et al. 2021)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from experiments.studies.arms import Arm
from experiments.studies.moments import Interval

LEVEL = 0.95
RESAMPLES = 2000
FEWEST = 6  # pairs of runs that can settle a comparison: all of five go one way by chance once in 16 times
MEASURES = {
    "over training": "mean over all iterations",
    "at the end": "mean over the last tenth of them",
}


@dataclasses.dataclass(frozen=True)
class Point:
    """One estimator on one lake with one group size: all its rates and seeds."""

    lake: str
    name: str
    arm: Arm
    group_size: int


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """What became of a point, at the learning rate that is best for it over training."""

    point: Point
    rate: float
    success: np.ndarray  # f32 [seeds, iterations]
    best: float  # success of the best policy that knows where it is
    episodes: int  # an iteration
    seconds: float  # of training, compilation included
    found: bool  # whether an earlier command has trained it

    def runs(self, measure: str) -> np.ndarray:
        """Each run's figure, f64 [seeds]: a key of MEASURES."""
        tenth = max(self.success.shape[1] // 10, 1)
        part = self.success if measure == "over training" else self.success[:, -tenth:]
        return part.mean(1, dtype=np.float64)

    def normalised(self, measure: str) -> np.ndarray:
        """The same, 1 for the best policy."""
        return self.runs(measure) / self.best


def interquartile_mean(runs: Sequence[np.ndarray]) -> Interval:
    """The mean of the middle half of all runs, with a stratified bootstrap interval of 95 %.

    Args:
      runs: of each world the runs' figures, [n] with n of 2 or more; each world's runs are resampled among
        themselves.

    Returns:
      The figure and the percentiles of its resamples, the same for the same runs.
    """

    def middle(*samples: np.ndarray, axis: int) -> np.ndarray:
        return stats.trim_mean(np.concatenate(samples, axis), 0.25, axis=axis)

    drawn = stats.bootstrap(
        tuple(runs),
        middle,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = drawn.confidence_interval
    return Interval(float(middle(*runs, axis=0)), float(low), float(high))


def improvement(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> Interval:
    """P(our run is better than theirs of the same seed), a tie counting half, averaged over worlds.

    Args:
      ours, theirs: of each world the runs' figures, [n], in the order of their seeds: with the same keys both see the
        same first episodes.

    Returns:
      The probability, with a stratified bootstrap interval of 95 % over seeds; of fewer than `FEWEST` pairs, of which
      a bootstrap would be too sure, 0 to 1.
    """
    rng = np.random.default_rng(0)
    values, drawn = [], []
    for a, b in zip(ours, theirs, strict=True):
        better = (a > b) + 0.5 * (a == b)
        values.append(better.mean())
        drawn.append(better[rng.integers(len(better), size=(RESAMPLES, len(better)))].mean(1))
    low, high = np.quantile(np.mean(drawn, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    if sum(map(len, ours)) < FEWEST:
        low, high = 0.0, 1.0
    return Interval(float(np.mean(values)), float(low), float(high))


def duels(figures: Mapping[str, Sequence[np.ndarray]]) -> dict[tuple[str, str], Interval]:
    """`improvement` of every estimator over every other; a win is an interval above 1/2, a loss one below."""
    return {(a, b): improvement(figures[a], figures[b]) for a in figures for b in figures if a != b}

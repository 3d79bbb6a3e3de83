"""How runs are summed up: literals, and intervals that hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.studies.arms import ARMS
from experiments.studies.curve_statistics import Learned, Point, duels, improvement, interquartile_mean


def test_the_middle_half_of_all_runs_counts() -> None:
    assert interquartile_mean([np.arange(8.0)]).value == 3.5  # of 2, 3, 4, 5
    assert interquartile_mean([np.array([0.0, 9, 1, 8]), np.array([2.0, 3, 4, 100])]).value == 3.5 + 0.75  # 2, 3, 4, 8
    assert interquartile_mean([np.full(5, 0.25)]) == (0.25, 0.25, 0.25)


def test_worlds_are_resampled_by_themselves() -> None:
    """Constant in each world, and unlike between them: only resampling across worlds would give an interval a width."""
    assert interquartile_mean([np.zeros(8), np.ones(8)]) == (0.5, 0.5, 0.5)


def test_equal_runs_give_equal_intervals() -> None:
    runs = [np.random.default_rng(0).normal(size=20)]
    assert interquartile_mean(runs) == interquartile_mean(runs)
    value, low, high = interquartile_mean(runs)
    assert low < value < high


def test_intervals_cover() -> None:
    """Of 200 samples of 20 normal runs, whose interquartile mean is 0, about 95 % of the intervals hold it; and about
    as many of those of two estimators that are alike hold 1/2."""
    rng = np.random.default_rng(1)
    samples = rng.normal(size=(200, 2, 20))
    middle = [interquartile_mean([ours]) for ours, _ in samples]
    even = [improvement([ours], [theirs]) for ours, theirs in samples]
    assert np.mean([told.low <= 0 <= told.high for told in middle]) > 0.87
    assert np.mean([told.low <= 0.5 <= told.high for told in even]) > 0.87


def test_improvement_compares_seed_by_seed() -> None:
    ours, theirs = np.array([1.0, 2, 3, 4]), np.array([0.0, 2, 4, 1])  # wins, ties, loses, wins
    assert improvement([ours], [theirs]).value == 0.625
    assert improvement([ours, ours], [theirs, ours - 1]).value == pytest.approx((0.625 + 1) / 2)
    assert improvement([ours] * 2, [ours - 1] * 2) == (1, 1, 1)
    assert improvement([ours] * 2, [ours] * 2) == (0.5, 0.5, 0.5)
    # Five of five prove nothing yet: by chance it happens once in 16 times, one way or the other.
    assert improvement([np.ones(5)], [np.zeros(5)]) == (1, 0, 1)
    assert improvement([np.ones(3)] * 2, [np.zeros(3)] * 2) == (1, 1, 1)
    with pytest.raises(ValueError, match="zip"):
        improvement([ours], [theirs, theirs])


def test_duels_are_mirrored() -> None:
    rng = np.random.default_rng(2)
    figures = {name: [rng.random(9) + shift, rng.random(9)] for name, shift in (("a", 0.0), ("b", 0.4), ("c", 0.8))}
    told = duels(figures)
    assert set(told) == {(a, b) for a in "abc" for b in "abc" if a != b}
    for a, b in told:
        assert told[a, b].value == pytest.approx(1 - told[b, a].value)
        assert told[a, b].low == pytest.approx(1 - told[b, a].high)
    assert told["c", "a"].value > 0.5


def test_a_run_is_measured_over_training_and_at_its_end() -> None:
    success = np.tile(np.arange(20, dtype=np.float32) / 20, (3, 1))
    one = Learned(Point("4x4", "GRPO", ARMS["GRPO"], 8), 0.1, success, best=0.5, episodes=64, seconds=1.0, found=False)
    np.testing.assert_allclose(one.runs("over training"), [0.475] * 3)
    np.testing.assert_allclose(one.runs("at the end"), [0.925] * 3)  # the last two of twenty
    np.testing.assert_allclose(one.normalised("over training"), [0.95] * 3)

"""Group statistics: shapes, values by hand, robustness that single-precision sums would not have."""

import chex
import numpy as np

from hgpo_jax.estimators.statistics import group_statistics, group_summary, standardised

VALUES = np.array([[1, 3, 8, 5, 5]], np.float32)
IDS = np.array([[0, 0, -1, 1, 1]], np.int32)


def test_by_hand():
    statistics = group_statistics(VALUES, IDS, 2)
    chex.assert_shape(list(statistics), (1, 5))
    chex.assert_type(list(statistics), np.float32)
    assert statistics.size.tolist() == [[2, 2, 0, 2, 2]]
    assert statistics.mean.tolist() == [[2, 2, 0, 5, 5]]
    assert statistics.deviation.tolist() == [[-1, 1, 0, 0, 0]]
    assert statistics.sum_of_squares.tolist() == [[2, 2, 0, 0, 0]]
    assert statistics.magnitude.tolist() == [[3, 3, 0, 5, 5]]


def test_only_counted_steps_enter_but_all_read():
    counted = np.array([True, False, True, True, True])
    statistics = group_statistics(VALUES, IDS, 2, counted)
    assert statistics.size.tolist() == [[1, 1, 0, 2, 2]]
    assert statistics.deviation.tolist() == [[0, 2, 0, 0, 0]]


def test_standard_deviations_population_and_unbiased():
    statistics = group_statistics(VALUES, IDS, 2)
    np.testing.assert_allclose(standardised(statistics, ddof=0, normalize_std=True), [[-1, 1, 0, 0, 0]], atol=2e-6)
    unbiased = standardised(statistics, ddof=1, normalize_std=True)
    np.testing.assert_allclose(unbiased, [[-(0.5**0.5), 0.5**0.5, 0, 0, 0]], atol=2e-6)


def test_one_winner_among_many_keeps_its_precision():
    values = np.zeros((1, 20_000), np.float32) + np.float32(1000)
    values[0, 7] += 10
    statistics = group_statistics(values, np.zeros((1, 20_000), np.int32), 1)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(statistics.deviation, exact - exact.mean(), atol=1e-6)
    np.testing.assert_allclose(statistics.sum_of_squares, ((exact - exact.mean()) ** 2).sum(), rtol=1e-4)


def test_summary():
    summary = group_summary(group_statistics(VALUES, IDS, 2), np.array([True] * 5))
    assert summary["coverage"].tolist() == [np.float32(0.8)]
    assert summary["mean_group_size"].tolist() == [2]
    assert summary["baseline"].tolist() == [[2, 2, 0, 5, 5]]

"""Bias, variance and mean squared error of estimates that are seen in independent replications, with intervals.

The square of a mean error overstates the squared bias by variance / n. Here only products of *different* replications
enter: for cell c (a history and an action) let X_r be the summed errors of replication r there and d_c the expected
number of visits. Then

    bias²_c = mean over r != r' of X_r X_r' / d_c²      mse_c = mean of the summed squares / d_c
    bias² = sum_c d_c bias²_c / sum_c d_c               variance = mse - bias²

have no bias of their own, however rarely a cell is visited, where d_c is known. Replications are first summed within
`BLOCKS` blocks, which costs one pair in sixteen; leaving out a block at a time gives standard errors (jackknife).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

BLOCKS = 16
QUANTILE = 2.131  # of Student's t with 15 degrees of freedom, 97.5 %


class Interval(NamedTuple):
    """An estimate and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def root(self) -> Interval:
        """Of the square root; what is negative is cut to 0."""
        return Interval(*np.sqrt(np.maximum(self, 0)).tolist())

    def scaled(self, factor: float) -> Interval:
        """Times a positive number."""
        return Interval(*(factor * end for end in self))


class Moments(NamedTuple):
    """Mean squares, averaged over visits."""

    bias2: Interval
    variance: Interval
    mse: Interval
    share: float  # of the steps that the average is over


class CellSums(NamedTuple):
    """Sums over blocks, which a block can be taken from again; [C] each, but for ``blocks``."""

    visits: np.ndarray
    visits2: np.ndarray
    error: np.ndarray
    error2: np.ndarray  # squares of the blocks' sums
    square: np.ndarray  # of each step's error
    blocks: int


def jackknife(statistic: Callable[[int | None], np.ndarray]) -> list[Interval]:
    """Intervals of smooth statistics of `BLOCKS` blocks: ``statistic(b)`` leaves block b out, ``None`` none."""
    whole = statistic(None)
    without = np.stack([statistic(block) for block in range(BLOCKS)])
    error = np.sqrt((BLOCKS - 1) / BLOCKS * ((without - without.mean(0)) ** 2).sum(0))
    return [
        Interval(v, v - QUANTILE * e, v + QUANTILE * e) for v, e in zip(whole.tolist(), error.tolist(), strict=True)
    ]


def advantage_moments(
    error: np.ndarray,
    cell: np.ndarray,
    block: np.ndarray,
    expected: np.ndarray | None = None,
    total: float | None = None,
    kept: np.ndarray | None = None,
) -> Moments:
    """Bias², variance and MSE of the advantages, averaged over the visits of (history, action).

    Args:
      error: f64 [N], estimate minus truth of each step.
      cell: i64 [N], from 0 to C - 1, the cell of each step.
      block: i64 [N], from 0 to BLOCKS - 1; the same number of replications in each.
      expected: f64 [C] visits of each cell expected in a block. When left out (the steps kept hang on the outcome),
        the visits seen take their place: pairs are counted, and cells seen in a single block are left out, which
        matters in small samples.
      total: expected visits of all cells in a block, also of those that never occurred; with ``expected``.
      kept: bool [N] steps to look at; all when left out.

    Returns:
      The moments; ``share`` is that of the N steps in the cells used.
    """
    steps = len(error)
    cells = int(cell.max()) + 1
    if kept is not None:
        error, cell, block = error[kept], cell[kept], block[kept]
    place = block * cells + cell
    count, errors, square = (
        np.bincount(place, weight, BLOCKS * cells).reshape(BLOCKS, cells)
        for weight in (np.ones(len(error)), error, error**2)
    )

    rows = (count, count**2, errors, errors**2, square)
    totals = [row.sum(0) for row in rows]

    def statistic(left_out: int | None) -> np.ndarray:
        if left_out is None:
            return _means(CellSums(*totals, blocks=BLOCKS), expected, total)
        rest = (whole - row[left_out] for whole, row in zip(totals, rows, strict=True))
        return _means(CellSums(*rest, blocks=BLOCKS - 1), expected, total)

    bias2, variance, mse, used = jackknife(statistic)
    return Moments(bias2, variance, mse, 1.0 if expected is not None else used.value / steps)


def _means(sums: CellSums, expected: np.ndarray | None, total: float | None) -> np.ndarray:
    """bias², variance, mse and the visits they are averaged over."""
    cross = sums.error**2 - sums.error2
    if expected is not None and total is not None:
        visits = sums.blocks * total
        bias2 = (cross / ((sums.blocks - 1) * expected)).sum() / visits
        mse = sums.square.sum() / visits
    else:
        pairs = sums.visits**2 - sums.visits2
        seen = pairs > 0
        visits = float(sums.visits[seen].sum())
        bias2 = (sums.visits[seen] * cross[seen] / pairs[seen]).sum() / max(visits, 1.0)
        mse = sums.square[seen].sum() / max(visits, 1.0)
    return np.array([bias2, mse - bias2, mse, visits])


class GradientMoments(NamedTuple):
    """Of the gradient of one prompt group, beside the true one g; squares are fractions of |g|²."""

    bias2: Interval  # |E g_hat - g|²
    variance: Interval  # E |g_hat - E g_hat|²
    mse: Interval
    cosine: Interval  # mean over prompt groups of cos(g_hat, g)
    cosine_of_mean: Interval  # cos(E g_hat, g), with |E g_hat| freed of noise: an estimate may exceed 1


def gradient_moments(
    advantage: np.ndarray,
    action: np.ndarray,
    memory: np.ndarray,
    group: np.ndarray,
    probability: np.ndarray,
    truth: np.ndarray,
    groups: int,
    group_size: int,
) -> GradientMoments:
    """Moments of g_hat = 1 / group_size * sum over a prompt group's steps of A_hat grad log pi(a | memory).

    The parameters are the logits of the policy's table, for which grad log pi(a) is e_a - pi in the memory's row.

    Args:
      advantage, action, memory, group: [N], of each step; groups are numbered in order.
      probability: f64 [D, A], the policy's table (of the memories that can occur, which ``memory`` numbers).
      truth: f64 [D, A], the true gradient.
      groups: how many; a multiple of BLOCKS.
      group_size: episodes a prompt group.

    Returns:
      The moments.
    """
    a_size, norm = probability.shape[1], np.linalg.norm(truth)
    score = np.eye(a_size)[action] - probability[memory]
    per_block = groups // BLOCKS
    edges = np.searchsorted(group, np.arange(BLOCKS + 1) * per_block)
    mean, square, cosine = np.zeros((BLOCKS, truth.size)), np.zeros(BLOCKS), np.zeros(BLOCKS)
    for b in range(BLOCKS):
        steps = slice(edges[b], edges[b + 1])
        row = (group[steps] - b * per_block) * truth.size + memory[steps] * a_size
        weight = advantage[steps, None] * score[steps] / group_size
        gradient = np.bincount((row[:, None] + np.arange(a_size)).ravel(), weight.ravel(), per_block * truth.size)
        gradient = gradient.reshape(per_block, -1)
        length = np.linalg.norm(gradient, axis=1)
        mean[b] = gradient.mean(0)
        square[b] = ((gradient - truth.ravel()) ** 2).sum(1).mean()
        cosine[b] = (gradient @ truth.ravel() / np.maximum(length * norm, 1e-30)).mean()

    def statistic(left_out: int | None) -> np.ndarray:
        means, squares, cosines = (
            np.delete(x, [] if left_out is None else left_out, 0) for x in (mean, square, cosine)
        )
        mse = squares.mean()
        bias2 = _product(means - truth.ravel())
        length2 = _product(means)  # 0 or less where noise is all there is, and then there is no direction
        cosine_of_mean = means.mean(0) @ truth.ravel() / (np.sqrt(length2) * norm) if length2 > 0 else 0.0
        return np.array([bias2 / norm**2, (mse - bias2) / norm**2, mse / norm**2, cosines.mean(), cosine_of_mean])

    return GradientMoments(*jackknife(statistic))


def _product(means: np.ndarray) -> float:
    """|E x|² from independent rows x_b: the mean of x_b . x_b' over b != b'."""
    blocks = len(means)
    return float(((means.sum(0) ** 2).sum() - (means**2).sum()) / (blocks * (blocks - 1)))

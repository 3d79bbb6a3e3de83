"""Bias, variance and gradient figures against full enumeration, and their own lack of bias."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from small_worlds import forgetful, two_doors

from experiments.studies.arms import ARMS, advantages_of, signals_of
from experiments.studies.measure import LEFT_OUT, Setting, measure
from experiments.studies.moments import BLOCKS, Interval, advantage_moments, gradient_moments
from experiments.studies.oracle import policy_gradient, solve
from experiments.studies.rollouts import Rollouts

PAY = np.array([[8.0, 0.0], [0.0, 4.0]])  # by door and lever
GAMMA = 0.5


def near(interval: Interval, exact: float, slack: float = 1.5) -> bool:
    """Within the 95 % interval, widened; the seeds are fixed."""
    half = slack * (interval.high - interval.low) / 2
    return abs(interval.value - exact) <= half + 1e-9


def every_pair() -> tuple[Rollouts, np.ndarray]:
    """All 16 prompt groups of two episodes in two doors, and their probabilities."""
    plays = list(itertools.product((0, 1), repeat=2))
    episodes = [play for pair in itertools.product(plays, repeat=2) for play in pair]
    door, lever = np.array(episodes).T
    chance = (np.where(door == 0, 0.75, 0.25) * 0.5).reshape(-1, 2).prod(1)
    one = np.ones(len(door), int)
    columns = {
        "observation": (0 * one, one),
        "action": (door, lever),
        "reward": (0.0 * one, PAY[door, lever]),
        "memory": (0 * one, one),
        "episode": (np.arange(len(door)),) * 2,
        "step": (0 * one, one),
        "node": (0 * one, 1 + door),
    }
    return Rollouts(*(np.stack(pair, 1).ravel() for pair in columns.values())), chance


@pytest.mark.slow
@pytest.mark.parametrize("name", ["level 0", "level 1", "exact history", "GRPO", "RLOO", "HGPO K=1"])
def test_figures_equal_full_enumeration(name: str) -> None:
    world, policy = two_doors(), forgetful()
    oracle = solve(world, policy, gamma=GAMMA)
    rollouts, chance = every_pair()
    estimate = advantages_of(name, ARMS[name], signals_of(rollouts, 2, gamma=GAMMA, size=len(rollouts.node)))
    weight = chance[rollouts.episode // 2]
    cell = rollouts.node * 2 + rollouts.action
    visits, first, second = (np.bincount(cell, weight * x, 6) for x in (np.ones(len(cell)), estimate, estimate**2))
    truth = oracle.advantage.ravel()
    bias2 = visits @ (first / visits - truth) ** 2 / visits.sum()
    variance = visits @ (second / visits - (first / visits) ** 2) / visits.sum()
    mse = weight @ (estimate - truth[cell]) ** 2 / visits.sum()
    assert bias2 + variance == pytest.approx(mse)

    ((_, measured),) = measure(Setting(world, policy, 2, GAMMA, max_steps=40_000), {name: ARMS[name]})
    moments = measured.steps["all"]
    for interval, exact in zip(moments, (bias2, variance, mse), strict=False):
        assert isinstance(interval, Interval)
        assert near(interval, exact), (interval, exact)
        assert interval.high - interval.low < 0.3 * max(exact, 1)
    assert moments.bias2.value + moments.variance.value == pytest.approx(moments.mse.value)

    goal = policy_gradient(oracle, 2)
    score = np.eye(2)[rollouts.action] - policy.probability[rollouts.memory]
    gradients = np.zeros((16, 2, 2))
    np.add.at(gradients, (rollouts.episode // 2, rollouts.memory), estimate[:, None] * score / 2)
    mean = np.einsum("g,gma->ma", chance, gradients)
    length = (goal**2).sum()
    spread = chance @ ((gradients - mean) ** 2).sum((1, 2)) / length
    assert near(measured.gradient["bias2"], ((mean - goal) ** 2).sum() / length)
    assert near(measured.gradient["variance"], spread)
    cosines = (gradients * goal).sum((1, 2)) / np.maximum(np.sqrt((gradients**2).sum((1, 2)) * length), 1e-30)
    assert near(measured.gradient["cosine"], chance @ cosines)
    assert near(measured.gradient["cosine_of_mean"], (mean * goal).sum() / np.sqrt((mean**2).sum() * length))


def test_equal_histories_have_no_bias_once_the_own_step_is_left_out() -> None:
    """Among two steps of one history the own step halves the deviation: E A_hat = A / 2, so bias² = A² / 4."""
    setting = Setting(two_doors(0.5), forgetful(), 2, GAMMA, max_steps=40_000)
    ((_, measured),) = measure(setting, {"exact history": ARMS["exact history"]})
    with_own, without = (measured.steps[f"answered{which}"].bias2 for which in ("", LEFT_OUT))
    assert near(without, 0)
    assert without.value < 0.1 * with_own.value
    oracle = solve(setting.world, setting.policy, gamma=GAMMA)
    # A history is met by both episodes with probability d², and then twice.
    met = 2 * oracle.visit**2
    quarter = met @ (oracle.policy * oracle.advantage**2).sum(1) / met.sum() / 4
    assert near(with_own, quarter)


def test_bias_of_pure_noise_is_not_overstated() -> None:
    """300 cells with bias 0 or 1/2 and unit noise: a plain square of means would add the noise's 1 / n."""
    rng = np.random.default_rng(0)
    steps, cells = 12_000, 300
    block = np.arange(steps) % BLOCKS
    cell = rng.integers(cells, size=steps)
    error = np.where(cell < 150, 0.5, 0.0) + rng.normal(size=steps)
    expected = np.full(cells, steps / BLOCKS / cells)
    known = advantage_moments(error, cell, block, expected, steps / BLOCKS)
    counted = advantage_moments(error, cell, block)
    for moments in (known, counted):
        assert near(moments.bias2, 0.125)
        assert near(moments.variance, 1)
        assert moments.bias2.high - moments.bias2.low < 0.04
    plain = np.bincount(cell, error, cells) / np.bincount(cell, minlength=cells)
    assert (plain**2).mean() > known.bias2.high + 0.01
    half = advantage_moments(error, cell, block, kept=cell < 150)
    assert half.share == pytest.approx((cell < 150).mean())
    assert near(half.bias2, 0.25)


def test_intervals_cover() -> None:
    """Of 200 studies of 16 blocks about 95 % hold the truth."""
    rng = np.random.default_rng(1)
    block, cell = np.arange(1600) % BLOCKS, np.arange(1600) // BLOCKS % 20
    held = 0
    for _ in range(200):
        moments = advantage_moments(0.3 + rng.normal(size=1600), cell, block)
        held += moments.bias2.low <= 0.09 <= moments.bias2.high
    assert 180 <= held <= 198


def test_a_true_gradient_has_no_error() -> None:
    """One memory, two actions, pi = 1/2: an episode that takes action 0 with A = 4 has the gradient (2, -2)."""
    steps = np.arange(BLOCKS)
    moments = gradient_moments(
        np.full(BLOCKS, 4.0), 0 * steps, 0 * steps, steps, np.full((1, 2), 0.5), np.array([[2.0, -2.0]]), BLOCKS, 1
    )
    assert moments.bias2.value == moments.variance.value == 0
    assert moments.cosine.value == pytest.approx(1)
    assert moments.cosine_of_mean.value == pytest.approx(1)

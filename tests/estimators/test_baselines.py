"""GRPO, Dr. GRPO, RLOO, GiGPO and REINFORCE: by hand, against the loops, exact zeros, bad input."""

import itertools
from typing import Any

import batches
import chex
import numpy as np
import pytest
import reference

from hgpo_jax.config import GiGPOConfig, GRPOConfig, ReinforceConfig
from hgpo_jax.estimators.advantages import compute_advantages, make_estimator
from hgpo_jax.estimators.baselines import gigpo_advantages, grpo_advantages, reinforce_advantages

SIZE = 192
# Task 0: rollout "a" of two steps scores 3, "b" of one step scores 6; task 1: one rollout of one step.
STEPS: dict[str, Any] = {
    "anchor_state": list("xyxz"),
    "prompt_group": [0, 0, 0, 1],
    "trajectory": list("aabc"),
    "reward": [0, 3, 6, 9],
}


@pytest.mark.filterwarnings("ignore:.*single rollout")
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GRPOConfig(normalize_std=False), [-1, -1, 2, 0]),  # mean of 3, 3, 6
        (GRPOConfig(normalize_std=False, over="trajectories"), [-1.5, -1.5, 1.5, 0]),  # mean of 3, 6
        (GRPOConfig(), [-1 / 3**0.5, -1 / 3**0.5, 2 / 3**0.5, 0]),  # unbiased std
        (GRPOConfig(normalize_std=False, leave_one_out=True), [-1.5, -1.5, 3, 0]),
        (GRPOConfig(normalize_std=False, leave_one_out=True, over="trajectories"), [-3, -3, 3, 0]),
        (GiGPOConfig(omega=2.0, normalize_std=False), [-1 - 3, -1, 2 + 3, 0]),  # state x: returns 3 and 6
        (ReinforceConfig(), [-2.25, -2.25, 0.75, 3.75]),  # returns 3, 3, 6, 9
        (ReinforceConfig(normalize_std=True), np.array([-2.25, -2.25, 0.75, 3.75]) / np.std([3, 3, 6, 9])),
    ],
)
def test_by_hand(config, expected):
    advantages, found = compute_advantages(**STEPS, gamma=1.0, estimator=config, return_diagnostics=True)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)
    np.testing.assert_allclose(found["no_signal"], np.mean(advantages == 0), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*single rollout")
def test_baselines_in_the_diagnostics():
    config = GRPOConfig(normalize_std=False, leave_one_out=True, over="trajectories")
    _, found = compute_advantages(**STEPS, gamma=1.0, estimator=config, return_diagnostics=True)
    np.testing.assert_allclose(found["baseline"], [[6, 6, 3, 0]])  # the other trajectory's score
    np.testing.assert_allclose(found["coverage"], [2 / 3])
    np.testing.assert_allclose(found["mean_group_size"], [2])


@pytest.mark.parametrize(
    ("over", "normalize", "leave_one_out"),
    list(itertools.product(["steps", "trajectories"], [True, False], [False, True])),
)
def test_grpo_agrees_with_the_loops(over, normalize, leave_one_out):
    config = GRPOConfig(normalize, leave_one_out, over)
    for seed in range(8):
        batch = batches.random_batch(seed, dense=seed % 2 == 0)
        signals = batch.signals(config, size=SIZE)
        advantages, _ = grpo_advantages(signals, config)
        chex.assert_shape(advantages, (SIZE,))
        expected = reference.grpo(
            np.asarray(signals.score)[: len(batch.reward)],
            batch.prompt_group,
            batch.trajectory,
            over=over,
            normalize_std=normalize,
            leave_one_out=leave_one_out,
        )
        np.testing.assert_allclose(advantages[: len(expected)], expected, atol=2e-5, rtol=2e-5)
        assert not advantages[len(expected) :].any()


@pytest.mark.parametrize("normalize", [True, False])
def test_gigpo_agrees_with_the_loops(normalize):
    config = GiGPOConfig(0.7, normalize)
    for seed in range(8):
        batch = batches.random_batch(seed, dense=seed % 2 == 0)
        signals = batch.signals(config, size=SIZE)
        size = len(batch.reward)
        expected = reference.gigpo(*batch.for_loops(signals), omega=0.7, normalize_std=normalize)
        np.testing.assert_allclose(gigpo_advantages(signals, config)[0][:size], expected, atol=2e-5)


def test_reinforce_leaves_out_padding():
    batch = batches.random_batch(0, dense=True)
    advantages, _ = reinforce_advantages(batch.signals(ReinforceConfig(), size=SIZE), ReinforceConfig())
    size = len(batch.reward)
    returns = batch.signals(ReinforceConfig()).step_return
    np.testing.assert_allclose(advantages[:size], returns - returns.mean(), atol=2e-6)
    assert not advantages[size:].any()


@pytest.mark.parametrize(
    "config",
    [
        *(GRPOConfig(std, loo, over) for std in (True, False) for loo in (True, False)
          for over in ("steps", "trajectories")),
        GiGPOConfig(),
        GiGPOConfig(normalize_std=False),
        ReinforceConfig(normalize_std=True),
    ],
)  # fmt: skip
def test_equal_scores_give_exactly_zero(config):
    for size in range(2, 17):
        score = np.full(size, 7.3509189, np.float32)
        advantages = compute_advantages(["x"] * size, [0] * size, range(size), score, estimator=config)
        assert (advantages == 0).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GRPOConfig(over="tokens"), 'GRPOConfig.over must be "steps" or "trajectories"'),  # pyright: ignore
        (GiGPOConfig(omega=float("nan")), "GiGPOConfig.omega must be a finite number, got nan"),
    ],
)
def test_settings_out_of_range_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        make_estimator(config)


def test_gigpo_needs_the_state_level():
    signals = batches.random_batch(0).signals(GiGPOConfig())
    with pytest.raises(ValueError, match="GiGPO needs group_ids"):
        gigpo_advantages(signals._replace(group_ids=np.zeros((0, len(signals.valid)), np.int32)), GiGPOConfig())

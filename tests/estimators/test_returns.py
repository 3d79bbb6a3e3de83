"""Returns and scores: by hand, against the loops, bit-equal where they should be, bad input."""

import batches
import numpy as np
import pytest
import reference

from hgpo_jax.estimators.returns import discounted_returns, episode_scores, step_returns

REWARD, TRAJECTORY, VALID = [1.0, 0.0, 8.0, 4.0], ["a", "b", "a", "b"], [True, True, False, True]


def test_by_hand():
    returns = discounted_returns(REWARD, TRAJECTORY, 0.5)
    assert returns.dtype == np.float32
    assert returns.tolist() == [5.0, 2.0, 8.0, 4.0]
    penalised = step_returns(REWARD, TRAJECTORY, VALID, gamma=0.5, invalid_action_penalty=0.25)
    assert penalised.tolist() == [5.0, 2.0, 7.75, 4.0]  # after discounting: step 0 is not touched
    scores = episode_scores(REWARD, TRAJECTORY, VALID, invalid_action_penalty=0.25)
    assert scores.tolist() == [9.0, 4.0, 8.75, 4.0]


def test_step_numbers_override_appearance():
    assert discounted_returns(REWARD, TRAJECTORY, 0.5, step=[1, 0, 0, 1]).tolist() == [1.0, 2.0, 8.5, 4.0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("gamma", [0.0, 0.95, 1.0])
def test_agrees_with_the_loops(seed, gamma):
    batch = batches.random_batch(seed, max_steps=40, dense=seed % 2 == 0)
    expected = reference.returns(batch.reward, batch.trajectory, gamma)
    np.testing.assert_allclose(discounted_returns(batch.reward, batch.trajectory, gamma), expected, atol=2e-6)
    scores = episode_scores(batch.reward, batch.trajectory, batch.action_valid, invalid_action_penalty=0.1)
    expected = reference.scores(batch.reward, batch.trajectory, batch.action_valid, 0.1)
    np.testing.assert_allclose(scores, expected, atol=2e-6)


def test_equal_futures_give_bit_equal_returns():
    rng = np.random.default_rng(0)
    future = rng.normal(size=20)
    rewards = [np.append(rng.normal(size=length), future) for length in (0, 1, 7, 200)]
    trajectory = np.repeat(np.arange(4), [len(r) for r in rewards])
    returns = discounted_returns(np.concatenate(rewards), trajectory, 0.95)
    ends = [returns[trajectory == t][-20:] for t in range(4)]
    assert all((end == ends[0]).all() for end in ends)


def test_one_long_trajectory():
    returns = discounted_returns(np.ones(100_000), np.zeros(100_000, int), 0.5)
    np.testing.assert_allclose(returns[:-30], 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: discounted_returns([0.0, float("nan")], [0, 0], 0.9), "reward of step 1 is nan"),
        (lambda: episode_scores([float("inf")], [0], invalid_action_penalty=0.0), "reward of step 0 is inf"),
        (lambda: discounted_returns([0.0], [0, 0], 0.9), "reward 1, trajectory 2"),
        (lambda: discounted_returns([], [], 0.9), "batch is empty"),
        (lambda: discounted_returns([0.0], [0], 1.5), "gamma must be from 0 to 1, got 1.5"),
        (lambda: step_returns([0.0], [0], gamma=0.9, invalid_action_penalty=-1), "invalid_action_penalty"),
        (
            lambda: step_returns([0.0], [0], np.array([2]), gamma=0.9, invalid_action_penalty=0),
            "action_valid must hold",
        ),
        (lambda: discounted_returns(np.zeros((1, 1)), [0], 0.9), "reward must be flat"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Generalized advantages: by hand, against the recursion, and what they turn into at lambda 0 and 1."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_jax import GAEConfig, compute_advantages, make_estimator, step_signals
from hgpo_jax.estimators.gae import generalized_advantages
from hgpo_jax.estimators.returns import next_steps


def test_three_steps_by_hand() -> None:
    # delta: 0 + 0.5 * 2 - 1 = 0;  1 + 0.5 * 4 - 2 = 1;  10 - 4 = 6.  A: 6;  1 + 0.25 * 6 = 2.5;  0 + 0.25 * 2.5
    reward, value, ahead = np.array([[0, 1, 10], [1, 2, 4], [2, 4, 0]], np.float32)
    got = generalized_advantages(reward, np.full(3, 0.5), value, ahead, np.array([1, 2, -1]), 0.5)
    np.testing.assert_allclose(got, [0.625, 2.5, 6.0], rtol=1e-6)


@settings(deadline=None)  # the first example compiles
@given(st.data())
def test_the_recursion_in_any_order(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    gamma, lambda_ = data.draw(st.sampled_from([0.0, 0.5, 1.0])), data.draw(st.sampled_from([0.0, 0.9, 1.0]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    size = sum(lengths)
    place = rng.permutation(size + 2)  # two of padding
    reward, value, ahead = np.zeros((3, size + 2), np.float32)
    next_step, wanted = np.full(size + 2, -1, np.int32), np.zeros(size + 2)
    at = 0
    for length in lengths:
        steps = place[at : at + length]
        at += length
        reward[steps], value[steps] = rng.normal(size=(2, length))
        next_step[steps[:-1]] = steps[1:]
        ahead[steps[:-1]], ahead[steps[-1]] = value[steps[1:]], rng.normal()  # cut at the step cap
        advantage = 0.0
        for i in steps[::-1]:
            advantage = reward[i] + gamma * ahead[i] - value[i] + gamma * lambda_ * advantage
            wanted[i] = advantage
    got = generalized_advantages(reward, np.full(size + 2, gamma), value, ahead, next_step, lambda_)
    np.testing.assert_allclose(got, wanted, atol=1e-4)


@pytest.mark.parametrize("lambda_", [0.0, 1.0])
def test_its_two_ends(lambda_: float) -> None:
    reward, value, ahead = np.array([[1, 2, 3], [5, 7, 9], [7, 9, 0]], np.float32)
    got = jax.jit(generalized_advantages)(reward, np.ones(3), value, ahead, np.array([1, 2, -1]), lambda_)
    wanted = np.array([6, 5, 3]) - value if lambda_ else reward + ahead - value
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_the_next_steps_of_mixed_trajectories() -> None:
    assert next_steps(["a", "b", "a", "a", "b", "c"]).tolist() == [2, 4, 3, -1, -1, -1]
    assert next_steps([7, 7, 7], step=[2, 0, 1]).tolist() == [-1, 2, 0]
    assert next_steps([0, 0, 1, 1]).tolist() == [1, -1, 3, -1]


# Two trajectories, mixed; the first ends won, the second is cut where the critic says 3. Gamma 0.5, lambda 0.5.
TRAJECTORY, REWARD = [0, 1, 0, 1], [0.0, 1.0, 10.0, 0.0]
VALUE, NEXT_VALUE, VALID = [2.0, 1.0, 4.0, 2.0], [9.0, 9.0, 0.0, 3.0], [True, True, True, False]
# delta: 0 + 0.5 * 4 - 2 = 0;  1 + 0.5 * 2 - 1 = 1;  10 - 4 = 6;  0 + 0.5 * 3 - 2 = -0.5
RAW = [0 + 0.25 * 6, 1 + 0.25 * -0.5, 6.0, -0.5]
CRITIC = {"value": VALUE, "next_value": NEXT_VALUE, "gamma": 0.5, "invalid_action_penalty": 0.25}


def test_a_penalty_stays_with_its_step() -> None:
    """And is no part of what the critic learns. What a step of the batch led to is read there, whatever is given."""
    config = GAEConfig(lambda_=0.5, normalize_std=False)
    states, group = ["s"] * 4, [0] * 4
    advantages, diagnostics = compute_advantages(
        states, group, TRAJECTORY, REWARD, VALID, estimator=config, return_diagnostics=True, **CRITIC
    )
    np.testing.assert_allclose(advantages, np.subtract(RAW, [0, 0, 0, 0.25]), rtol=1e-6)
    np.testing.assert_allclose(diagnostics["value_target"], np.add(RAW, VALUE), rtol=1e-6)
    whitened = compute_advantages(states, group, TRAJECTORY, REWARD, estimator=GAEConfig(lambda_=0.5), **CRITIC)
    np.testing.assert_allclose(whitened, (np.array(RAW) - np.mean(RAW)) / np.std(RAW), rtol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_a_true_critic_leaves_nothing(lambda_: float) -> None:
    """Where nothing is left to chance, V is the return and every advantage 0; one rollout of a task is enough."""
    value = [0.25 * 8, 0.5 * 8, 8.0]
    got = compute_advantages(
        ["s"] * 3, [0] * 3, [0] * 3, [0, 0, 8.0], estimator=GAEConfig(lambda_, False), gamma=0.5, value=value
    )
    np.testing.assert_allclose(got, 0, atol=1e-6)


def test_at_lambda_1_it_is_the_return_above_the_value() -> None:
    rng = np.random.default_rng(0)
    trajectory, reward, value = rng.integers(0, 5, 40), rng.normal(size=40), rng.normal(size=40)
    step = rng.permutation(40)
    signals = step_signals(
        ["s"] * 40,
        [0] * 40,
        trajectory,
        reward,
        estimator=GAEConfig(),
        gamma=0.9,
        invalid_action_penalty=0.0,
        step=step,
        size=64,
        value=value,
    )
    got, _ = make_estimator(GAEConfig(1.0, normalize_std=False))(signals)
    np.testing.assert_allclose(got[:40], signals.step_return[:40] - value, atol=1e-5)
    assert (np.asarray(got)[40:] == 0).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value": None}, "GAE needs a critic: give `value`, V of each step's state"),
        ({"value": [1.0]}, r"value has shape \[1\], expected one value per step: \[4\]"),
        ({"value": [1.0, float("nan"), 0, 0]}, "value of step 1 is nan, expected a finite number"),
        ({"next_value": [0, 0, float("inf"), 0]}, "next_value of step 2 is inf"),
        ({"estimator": GAEConfig(lambda_=1.5)}, "GAEConfig.lambda_ must be from 0 to 1, got 1.5"),
        ({"estimator": GAEConfig(lambda_=float("nan"))}, "GAEConfig.lambda_ must be from 0 to 1, got nan"),
    ],
)
def test_bad_input(changes: dict, message: str) -> None:
    arguments = {"estimator": GAEConfig(), **CRITIC} | changes
    with pytest.raises(ValueError, match=message):
        compute_advantages(["s"] * 4, [0] * 4, TRAJECTORY, REWARD, **arguments)

"""Generalized advantages: by hand, against the recursion, and what they turn into at lambda 0 and 1."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_jax.estimators.gae import generalized_advantages


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

"""Which prompt groups dynamic sampling keeps, and what is cut out of a batch."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hgpo_jax.rollout.dynamic_sampling import first_of, informative_groups, without_signal
from hgpo_jax.types import Trajectories


def test_groups_by_hand():

    assert informative_groups([0, 0, 0, 10, 10, 10, 10, 0, 0], 3).tolist() == [False, False, True]
    assert informative_groups([5], 1).tolist() == [False]


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 10.0]), min_size=3, max_size=3), min_size=1, max_size=9))
def test_order_and_shift_do_not_matter(groups):
    returns = np.array(groups)
    got = informative_groups(returns.ravel(), 3)
    assert got.tolist() == [len(set(group)) > 1 for group in groups]
    np.testing.assert_array_equal(informative_groups(returns[:, ::-1].ravel() + 7, 3), got)


def test_episodes_that_fill_no_group():
    with pytest.raises(ValueError, match="5 episodes do not make groups of 2"):
        informative_groups([0] * 5, 2)


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 7))
def test_first_of(flags, count):
    got = first_of(np.array(flags).reshape(2, 3), count)
    wanted = [i for i, flag in enumerate(flags) if flag][:count]
    assert np.flatnonzero(got).tolist() == wanted
    assert got.shape == (2, 3)


def batch() -> Trajectories:
    n = 3
    return Trajectories(
        anchor_state=np.array(["a", "b", "c"], object),
        prompt_group=np.array([4, 4, 5]),
        trajectory=np.array([0, 0, 1]),
        step=np.array([0, 1, 0]),
        reward=np.array([1, 2, 3], np.float32),
        terminated=np.array([False, True, True]),
        truncated=np.zeros(n, bool),
        action_valid=np.ones(n, bool),
        prompt_tokens=[np.arange(i + 1, dtype=np.int32) for i in range(n)],
        response_tokens=[np.arange(i + 1, dtype=np.int32) for i in range(n)],
        behavior_logprob=[np.full(i + 1, -1.0, np.float32) for i in range(n)],
    )


def test_steps_are_taken_whole():
    taken = batch().take(np.array([2, 0]))
    assert taken.anchor_state.tolist() == ["c", "a"]
    assert taken.prompt_group.tolist() == [5, 4]
    assert taken.reward.tolist() == [3, 1]
    assert [len(row) for row in taken.prompt_tokens] == [3, 1]
    assert taken.response_cut is None
    assert batch().take(np.array([True, False, True])).anchor_state.tolist() == ["a", "c"]


def test_one_step_against_itself():
    left = without_signal(batch())
    assert left.trajectory.tolist() == [0, 1]
    assert left.prompt_group.tolist() == [4, 4]
    assert left.reward.tolist() == [1, 1]

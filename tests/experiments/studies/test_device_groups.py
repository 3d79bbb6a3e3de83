"""Grouping on the device gives the partitions that grouping on the host gives."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.studies.device_groups import history_ids, level_ids, shared_ids
from hgpo_jax.estimators import group_steps

HORIZON, EPISODES, GROUP, LEVELS = 6, 8, 4, 4
MANY = 10_000_000  # states: an id and its place no longer fit one key


@functools.lru_cache
def compiled(num_states: int):
    return jax.jit(functools.partial(level_ids, levels=LEVELS, num_states=num_states))


def same_partition(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal up to the numbers of the groups; -1 stays -1."""
    return np.array_equal(a >= 0, b >= 0) and np.array_equal((a[:, None] == a) & (a >= 0), (b[:, None] == b) & (b >= 0))


def rectangle(seed: int, states: int, stay: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, actions and which steps are there; a state is often the last one again."""
    rng = np.random.default_rng(seed)
    state = rng.integers(states, size=(HORIZON, EPISODES))
    for t in range(1, HORIZON):
        state[t] = np.where(rng.random(EPISODES) < stay, state[t - 1], state[t])
    length = rng.integers(1, HORIZON + 1, size=EPISODES)
    return state, rng.integers(2, size=(HORIZON, EPISODES)), np.arange(HORIZON)[:, None] < length


@pytest.mark.parametrize("num_states", [3, MANY])
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.floats(0, 1))
def test_levels_are_the_hosts(num_states: int, seed: int, states: int, stay: float) -> None:
    state, _, valid = rectangle(seed, states, stay)
    state = state * (num_states // 3)
    group = np.arange(EPISODES) // GROUP
    found = np.asarray(compiled(num_states)(state, valid, group))
    kept = valid.ravel()
    group_N, episode_N = (np.broadcast_to(x, state.shape).ravel()[kept] for x in (group, np.arange(EPISODES)))
    wanted = group_steps(state.ravel()[kept], group_N, episode_N, context_length=LEVELS - 1)
    assert (found[:, ~kept] == -1).all()
    for k in range(LEVELS):
        assert same_partition(found[k, kept], wanted[k])
        assert set(found[k]) - {-1} == set(range(found[k].max() + 1))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.floats(0, 1))
def test_histories_are_those_of_a_dictionary(seed: int, states: int, stay: float) -> None:
    state, action, valid = rectangle(seed, states, stay)
    found = np.asarray(jax.jit(functools.partial(history_ids, group_size=GROUP))(state, action, valid))
    members: dict[object, list[int]] = {}
    for t, e in np.ndindex(HORIZON, EPISODES):
        if valid[t, e]:
            key = e // GROUP, tuple(state[: t + 1, e]), tuple(action[:t, e])
            members.setdefault(key, []).append(t * EPISODES + e)
    wanted = np.full(HORIZON * EPISODES, -1)
    for number, steps in enumerate(steps for steps in members.values() if len(steps) > 1):
        wanted[steps] = number
    assert same_partition(found, wanted)
    assert set(found) - {-1} == set(range(found.max() + 1))


@pytest.mark.parametrize("bound", [4, 2**30])
def test_keys_that_occur_once_have_no_group(bound: int) -> None:
    keys, known = jnp.array([3, 1, 3, 0, 1, 3]), jnp.array([True, True, True, True, False, True])
    assert shared_ids(keys, jnp.ones(6, bool), bound=bound).tolist() == [1, 0, 1, -1, 0, 1]
    assert shared_ids(keys, known, bound=bound).tolist() == [0, -1, 0, -1, -1, 0]
    assert shared_ids(keys, jnp.zeros(6, bool), bound=bound).tolist() == [-1] * 6


def test_two_visits_of_one_episode_are_a_group() -> None:
    state, valid = jnp.array([[5], [5], [5]]), jnp.ones((3, 1), bool)
    assert level_ids(state, valid, jnp.zeros(1, int), levels=3, num_states=6).tolist() == [
        [0, 0, 0],
        [-1, 0, 0],
        [-1, -1, -1],
    ]


def test_too_many_states_are_refused() -> None:
    state = jnp.zeros((50, 64), int)
    with pytest.raises(ValueError, match="50 x 64 steps of 2000000 states do not fit 32-bit keys"):
        level_ids(state, state == 0, jnp.zeros(64, int), levels=1, num_states=2_000_000)

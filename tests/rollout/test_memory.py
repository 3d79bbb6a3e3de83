"""The memory: the last K pairs, oldest first; adding makes a new one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_jax.rollout.memory import Memory

PAIRS = st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=8)


@given(PAIRS, st.integers(0, 5))
def test_it_holds_the_last_pairs(pairs, history_length):
    memory = Memory(history_length)
    for observation, action in pairs:
        memory = memory.add(observation, action)
    assert list(memory.entries) == (pairs[-history_length:] if history_length else [])


def test_adding_leaves_the_old_one_alone():
    first = Memory(2).add("a", "go to the left")
    first.add("b", "go up")
    assert first.entries == (("a", "go to the left"),)


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match="history_length must be at least 0, got -1"):
        Memory(-1)

"""Rows of unequal length and states of any kind as plain arrays: keys agree with what grouping compares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hgpo_jax.estimators.grouping import state_keys
from hgpo_jax.recording import flatten, state_key, state_of, unflatten


def grouped(a, b):
    """Whether grouping takes two states as equal."""
    first, second = state_keys([a, b])
    return first == second


STATES = st.recursive(
    st.text(max_size=2) | st.binary(max_size=2) | st.integers(-2, 2) | st.sampled_from([0.5, 1.0, True, None]),
    lambda inner: st.tuples(inner, inner) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(STATES, STATES)
def test_keys_are_equal_exactly_where_states_are(a, b):
    assert (state_key(a) == state_key(b)) == grouped(a, b) == (a == b)


@settings(max_examples=30)
@given(hnp.arrays(np.int8, (2, 2), elements=st.integers(0, 1)), hnp.arrays(np.int8, (2, 2)))
def test_arrays_are_compared_by_value(a, b):
    assert state_key(a) == state_key(np.asfortranarray(a))
    assert (state_key(a) == state_key(b)) == np.array_equal(a, b)


@given(st.lists(hnp.arrays(np.int32, st.integers(0, 3)), min_size=1, max_size=5))
def test_rows_come_back(rows):
    arrays = flatten("x", rows)
    assert set(arrays) == {"x_flat", "x_offsets"}
    assert arrays["x_offsets"].shape == (len(rows) + 1,)
    back = unflatten("x", arrays)
    assert len(back) == len(rows)
    for row, expected in zip(back, rows, strict=True):
        np.testing.assert_array_equal(row, expected)


@given(st.text())
def test_strings_come_back_as_they_are(text):
    assert state_of(state_key(text)) == text


@pytest.mark.parametrize("state", [object(), (1, object()), {"x": object()}, np.array([object()])])
def test_a_state_without_a_value_is_refused(state):
    with pytest.raises(ValueError, match="anchor state of step 7 holds a object, which cannot be stored"):
        state_key(state, 7)

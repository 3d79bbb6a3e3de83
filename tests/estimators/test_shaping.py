"""The soft overlong punishment, by hand and by its properties."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from hgpo_jax.estimators.shaping import overlong_penalties

PUBLISHED = {"max_length": 20480, "share": 0.2, "penalty": 1.0}


def test_published_lengths_by_hand():
    """L_max 20480, L_cache 4096: nothing up to 16384, half at 18432, all from 20480 on."""
    got = overlong_penalties([1, 16384, 17408, 18432, 20480, 30000], **PUBLISHED)
    np.testing.assert_allclose(got, [0, 0, 0.25, 0.5, 1, 1], atol=1e-6)
    assert got.dtype == np.float32


def test_a_cut_reply_costs_all_of_it():
    got = overlong_penalties([3, 3], [True, False], max_length=10, share=0.5, penalty=3.0)
    np.testing.assert_allclose(got, [3, 0])


def test_off_costs_nothing_even_where_replies_are_cut():
    np.testing.assert_array_equal(overlong_penalties([10, 3], [True, False], max_length=10, share=0, penalty=3), [0, 0])


@given(st.lists(st.integers(1, 64), min_size=1, max_size=8), st.integers(1, 64), st.floats(0.01, 1), st.floats(0, 5))
def test_the_formula_length_by_length(lengths, max_length, share, penalty):
    """Eq. 13, case by case; never above the penalty, and no cheaper for more tokens."""
    cache = share * max_length
    expected = []
    for length in lengths:
        if length <= max_length - cache:
            expected.append(0.0)
        elif length <= max_length:
            expected.append(-penalty * ((max_length - cache) - length) / cache)
        else:
            expected.append(penalty)
    got = overlong_penalties(lengths, max_length=max_length, share=share, penalty=penalty)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert (np.diff(got[np.argsort(lengths)]) >= 0).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"share": 1.5}, "overlong_share must be from 0 to 1, got 1.5"),
        ({"penalty": float("nan")}, "overlong_penalty must be 0 or more, got nan"),
        ({"cut": [True]}, "cut"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        overlong_penalties([1, 2], **(PUBLISHED | settings))

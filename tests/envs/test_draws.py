from hypothesis import given
from hypothesis import strategies as st

from envs.draws import Draws


def test_draws_are_the_same_on_every_machine():
    draws = Draws("a seed")
    assert [draws.between(1, 6) for _ in range(8)] == [3, 1, 5, 3, 6, 6, 5, 1]
    assert draws.shuffled("abcdef") == ["d", "f", "c", "e", "a", "b"]
    assert [draws.weighted("xyz", [1, 0, 9]) for _ in range(8)] == ["z", "x", "z", "x", "z", "z", "z", "z"]


@given(st.text(max_size=3), st.integers(-5, 5), st.integers(0, 9))
def test_draws_stay_within_their_bounds(seed, low, width):
    draws = Draws(seed)
    assert {draws.between(low, low + width) for _ in range(200)} <= set(range(low, low + width + 1))
    assert sorted(draws.shuffled(range(width))) == list(range(width))
    assert draws.weighted(["never", "always"], [0, 1]) == "always"

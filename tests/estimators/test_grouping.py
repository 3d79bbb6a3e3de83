"""Grouping: by hand, the loop oracle, nesting and relabelling, states of every kind, bad input."""

import enum
import tracemalloc
import warnings

import batches
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_jax.estimators.grouping import compact_ids, group_steps, state_keys


def as_sets(ids_N):
    """The groups of one level as a set of frozensets of steps: what is left when labels are forgotten."""
    return {frozenset(np.flatnonzero(ids_N == g)) for g in range(ids_N.max() + 1)}


def test_two_rollouts_by_hand():
    #        rollout 7: x y x y        rollout 9: x y z
    state = ["x", "y", "x", "y", "x", "y", "z"]
    ids_LN = group_steps(state, [0] * 7, [7, 7, 7, 7, 9, 9, 9], context_length=2)
    assert ids_LN.shape == (3, 7)
    assert ids_LN.dtype == np.int32
    assert as_sets(ids_LN[0]) == {frozenset({0, 2, 4}), frozenset({1, 3, 5})}  # revisits count, z is alone
    assert as_sets(ids_LN[1]) == {frozenset({1, 3, 5})}  # (x, y); the first steps have no predecessor
    assert as_sets(ids_LN[2]) == set()  # (x, y, x), (y, x, y) and (x, y, z) come once each
    assert (ids_LN[0] == -1).tolist() == [False] * 6 + [True]


def test_prompt_root_puts_the_prompt_groups_first():
    ids_LN = group_steps(["x", "x", "y", "y"], [0, 0, 5, 5], [0, 1, 2, 3], context_length=0, root="prompt")
    deeper_LN = group_steps(["x", "x", "y", "z"], [0, 0, 5, 5], [0, 1, 2, 3], context_length=1, root="prompt")
    assert ids_LN.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1]]
    assert deeper_LN.tolist() == [[0, 0, 1, 1], [0, 0, -1, -1], [-1] * 4]


def test_equal_states_of_two_prompt_groups_never_meet():
    ids_LN = group_steps(["x"] * 4, ["a", "a", "b", "b"], [0, 1, 2, 3], context_length=0)
    assert ids_LN.tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("seed", range(12))
def test_agrees_with_the_loops(seed):
    batch = batches.random_batch(seed, max_steps=20, states=2 + seed % 3)
    ids_LN = group_steps(*batch[:3], context_length=8, root="prompt")
    for row, k in enumerate([None, *range(9)]):
        expected = {frozenset(steps) for steps in reference.groups(*batch[:3], k)}
        assert as_sets(ids_LN[row]) == expected
        assert sorted(set(ids_LN[row]) - {-1}) == list(range(len(expected)))  # compact


def test_step_numbers_order_a_shuffled_batch():
    batch = batches.random_batch(3, interleaved=False)
    step = np.concatenate([np.arange(n) for n in np.unique(compact_ids(batch.trajectory), return_counts=True)[1]])
    order = np.random.default_rng(0).permutation(len(step))
    in_order_LN = group_steps(*batch[:3], context_length=3)
    shuffled_LN = group_steps(*batch.take(order)[:3], context_length=3, step=step[order])
    for row in range(4):
        restored = np.empty_like(shuffled_LN[row])
        restored[order] = shuffled_LN[row]
        assert as_sets(restored) == as_sets(in_order_LN[row])


@given(
    states=st.lists(st.integers(0, 2), min_size=2, max_size=40),
    owners=st.lists(st.integers(0, 3), min_size=40, max_size=40),
    context_length=st.integers(0, 5),
)
@settings(deadline=None, max_examples=60)
@pytest.mark.filterwarnings("ignore:.*single rollout")
def test_levels_are_nested_and_labels_do_not_matter(states, owners, context_length):
    trajectory = np.array(owners[: len(states)])
    ids_LN = group_steps(states, trajectory % 2, trajectory, context_length=context_length)
    renamed = [("state", s) for s in states]
    other_LN = group_steps(renamed, trajectory % 2 + 100, -trajectory, context_length=context_length)
    for k in range(context_length + 1):
        assert as_sets(ids_LN[k]) == as_sets(other_LN[k])
        assert all(len(group) > 1 for group in as_sets(ids_LN[k]))
        if k:
            assert all(any(fine <= coarse for coarse in as_sets(ids_LN[k - 1])) for fine in as_sets(ids_LN[k]))


class Place(enum.Enum):
    KITCHEN = 1
    ATTIC = 2


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ("attic", "".join(["att", "ic"]), "Attic"),
        (b"attic", bytes(bytearray(b"attic")), "attic"),
        (3, np.int64(3), 4),
        (0.5, np.float32(0.5), 0.25),
        (float("nan"), np.float64("nan"), 0.0),
        (None, None, "None"),
        (Place.ATTIC, Place(2), Place.KITCHEN),
        ((1, "a"), [1, "a"], (1, "b")),
        ({"a": 1, "b": [2, 3]}, {"b": (2, 3), "a": 1}, {"a": 1, "b": [3, 2]}),
        ({1, "a"}, frozenset({"a", 1}), {1}),
        (np.arange(4), np.arange(8, dtype=np.int16)[:4], np.arange(4).reshape(2, 2)),
        (np.array([0.0, 1.0]), np.array([-0.0, 1.0], np.float32), np.array([0.0, 2.0])),
        (np.array(["a", "bc"]), np.array(["a", "bc"], dtype=object), np.array(["a", "b"])),
        ({"map": np.eye(2)}, {"map": np.eye(2).T.copy(order="F")}, {"map": np.zeros((2, 2))}),
    ],
)
def test_states_are_compared_by_value(one, same, other):
    keys = state_keys([one, same, other])
    assert keys[0] == keys[1] != keys[2]
    assert group_steps([one, same, other], [0] * 3, [0, 1, 2], context_length=0).tolist() == [[0, 0, -1]]
    assert state_keys(keys) == keys or one != one  # NaN's key has no equal but itself


def test_whole_arrays_of_states():
    image = np.array([[0, 1], [0, 1], [1, 1]], np.uint8)
    for states in (
        image,
        image.astype(float),
        np.array(["x", "x", "y"]),
        np.array([5, 5, -9]),
        np.array([0.5, 0.5, 1]),
    ):
        assert group_steps(states, [0] * 3, [0, 1, 2], context_length=0).tolist() == [[0, 0, -1]]


def test_compact_ids_number_by_first_appearance():
    for labels in (
        [9, 4, 9, -1],
        ["b", "a", "b", "c"],
        np.array([10**12, 3, 10**12, 5]),
        [True, False, True, 2],
        [2**63 + 11, 2**63, 2**63 + 11, 2**63 + 1],
        np.array([2**64 - 1, 0, 2**64 - 1, 7], np.uint64),
        np.array([-128, 127, -128, 0], np.int8),
        [-(2**63), 2**63 - 1, -(2**63), 0],
    ):
        assert compact_ids(labels).tolist() == [0, 1, 0, 2]
    assert compact_ids(np.array([True, False, True])).tolist() == [0, 1, 0]
    assert compact_ids(np.array([2, 1], np.uint8)).dtype == np.int32


GOOD = {
    "anchor_state": ["x", "y", "x", "y"],
    "prompt_group": [0] * 4,
    "trajectory": [0, 0, 1, 1],
    "context_length": 1,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anchor_state": ["x"]}, "anchor_state 1, prompt_group 4, trajectory 4"),
        ({"step": [0]}, "step 1"),
        ({"anchor_state": [], "prompt_group": [], "trajectory": []}, "batch is empty"),
        ({"anchor_state": "xyxy"}, "single str"),
        ({"context_length": -1}, "context_length must be 0 or more, got -1"),
        ({"context_length": 1.5}, "must be an integer"),
        ({"root": "task"}, 'root must be "state" or "prompt"'),
        ({"prompt_group": ["a", "b", "b", "b"]}, "trajectory 0 is in two prompt groups, 'a' and 'b'"),
        ({"step": [0, 0, 0, 1]}, "step 0 of trajectory 0 occurs twice"),
        ({"step": [0.0, 1.0, 0.0, 1.0]}, "array of integers"),
        ({"anchor_state": ["x", "y", bytearray(b"x"), "y"]}, "step 2 holds a bytearray"),
        ({"anchor_state": ["x", {"inside": object()}, "x", "y"]}, "step 1 holds a object"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        group_steps(**(GOOD | change))


def test_a_single_rollout_warns_once():
    with pytest.warns(UserWarning, match="2 of 3 prompt groups hold a single rollout") as caught:
        group_steps(["x"] * 4, [0, 0, 1, 2], [0, 1, 2, 3], context_length=0)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group_steps(**GOOD)


@pytest.mark.slow
def test_memory_of_a_large_batch_is_bounded():
    steps = 200_000
    states = [f"task {i // 400}, room {i * 7919 % 10}" for i in range(steps)]
    trajectory = np.arange(steps) // 50
    tracemalloc.start()
    group_steps(states, trajectory // 8, trajectory, context_length=4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / steps < 1000  # bytes a step: a GiB is left over for a million

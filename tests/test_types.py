"""`Trajectories`: the shapes, what it refuses, and the way to disk and back."""

import dataclasses
from typing import Any

import chex
import numpy as np
import pytest

from hgpo_jax.estimators.grouping import state_keys
from hgpo_jax.types import Trajectories


def make(**changes):
    """Two trajectories of one prompt group, steps mixed, replies of 1, 3 and 2 tokens."""
    fields: dict[str, Any] = {
        "anchor_state": ["a", "a", "b"],
        "prompt_group": [4, 4, 4],
        "trajectory": [0, 7, 0],
        "step": [0, 0, 1],
        "reward": [0.0, 10.0, 0.0],
        "terminated": [False, True, False],
        "truncated": [False, False, True],
        "action_valid": [True, True, False],
        "prompt_tokens": [[1, 2], [1, 2], [1, 2, 3]],
        "response_tokens": [[5], [5, 6, 7], [8, 7]],
        "behavior_logprob": [[-0.5], [-0.1, -0.2, -0.3], [-1.0, -2.0]],
    }
    return Trajectories(**(fields | changes))


def assert_same(a, b):
    for field in dataclasses.fields(Trajectories):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, tuple):
            assert len(left) == len(right)
            for x, y in zip(left, right, strict=True):
                assert x.dtype == y.dtype
                np.testing.assert_array_equal(x, y)
        elif field.name != "anchor_state":
            assert (left is None) == (right is None)
            np.testing.assert_array_equal(left, right)


def partition(states):
    """Which states grouping takes as equal, as the first place of each."""
    keys = state_keys(states)
    return [keys.index(key) for key in keys]


def test_columns_have_the_declared_shapes_and_types():
    batch = make(value=[0.0, 1.0, 2.0])
    n = batch.num_steps
    assert n == 3
    columns = (batch.prompt_group, batch.trajectory, batch.step, batch.reward, batch.value)
    chex.assert_shape(columns, (n,))
    chex.assert_type(columns, [np.int32, np.int32, np.int32, np.float32, np.float32])
    chex.assert_shape((batch.terminated, batch.truncated, batch.action_valid, batch.anchor_state), (n,))
    chex.assert_type((batch.terminated, batch.truncated, batch.action_valid), bool)
    for prompt, response, logprob in zip(
        batch.prompt_tokens, batch.response_tokens, batch.behavior_logprob, strict=True
    ):
        chex.assert_rank((prompt, response, logprob), 1)
        chex.assert_type((prompt, response, logprob), [np.int32, np.int32, np.float32])
        chex.assert_equal_shape((response, logprob))


@pytest.mark.parametrize("value", [None, [0.5, 1.5, 2.5]])
def test_a_batch_comes_back_from_disk(tmp_path, value):
    batch = make(value=value, anchor_state=["", "b\x00", "\ud800 ü"])
    batch.save(tmp_path / "batch.dump")  # the path is taken as it is
    back = Trajectories.load(tmp_path / "batch.dump")
    assert_same(batch, back)
    assert back.anchor_state.tolist() == batch.anchor_state.tolist()


@pytest.mark.parametrize(
    "states",
    [
        [1, 1.0, 2],
        [(1, "a"), (1, "a"), (1, b"a")],
        [{"x": 1, "y": 2}, {"y": 2, "x": 1}, {"x": 1}],
        [np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(4)],
        [np.array([0.0, -0.0]), np.zeros(2, np.float32), np.zeros(2, np.int8)],
        [np.array(["a", "b"]), np.array(["a", "b"], object), np.array(["a", "c"])],
        [[1, 2], (1, 2), {1, 2}],
        ["n1", 1, b"n1"],
        [None, "", b""],
        [np.float32(0.5), 0.5, float("inf")],
        [float("nan"), np.float32("nan"), 1 + 1j],
        [1 + 0j, True, np.uint8(1)],
    ],
)
def test_states_of_any_kind_form_the_same_groups_after_the_disk(tmp_path, states):
    batch = make(anchor_state=states)
    batch.save(tmp_path / "batch.npz")
    once = Trajectories.load(tmp_path / "batch.npz")
    once.save(tmp_path / "again.npz")
    again = Trajectories.load(tmp_path / "again.npz")
    assert partition(states) == partition(once.anchor_state) == partition(again.anchor_state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": [0.0, 1.0]}, "one entry per step, got lengths .*'reward': 2"),
        ({"value": [0.0]}, "one entry per step, got lengths .*'value': 1"),
        ({"reward": [0.0, np.nan, 0.0]}, r"reward of step 1 \(trajectory 7, its step 0\) is not finite"),
        (
            {"behavior_logprob": [[-0.5], [-0.1, -0.2, -0.3], [-1.0, np.nan]]},
            r"behavior_logprob of step 2 \(trajectory 0, its step 1\) is not finite",
        ),
        ({"value": [np.inf, 0.0, 0.0]}, "value of step 0 .* is not finite"),
        ({"prompt_group": [4, 4, 5]}, r"trajectory 0 lies in prompt groups \[4, 5\], it must lie in one"),
        ({"step": [1, 0, 1]}, "step 1 of trajectory 0 comes up more than once"),
        ({"prompt_tokens": [[1], [], [2]]}, "step 1 needs a prompt and a response, got 0 and 3 tokens"),
        (
            {"response_tokens": [[5], [5, 6], [8, 7]]},
            "step 1 has 2 response tokens but 3 log-probabilities",
        ),
        ({"step": [0.0, 0.0, 1.0]}, "step must be one-dimensional int32, got float64"),
        ({"prompt_tokens": [[1], [[2]], [3]]}, "prompt_tokens of step 1 must be one-dimensional int32"),
        ({"terminated": [0, 1, 0]}, "terminated must be one-dimensional bool"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_an_empty_batch_is_refused():
    names = [field.name for field in dataclasses.fields(Trajectories) if field.name != "value"]
    fields: dict[str, Any] = {key: [] for key in names}
    with pytest.raises(ValueError, match="at least one step, got none"):
        Trajectories(**fields)


def test_a_state_that_cannot_be_stored_is_named(tmp_path):
    with pytest.raises(ValueError, match="anchor state of step 1 holds a object, which cannot be stored"):
        make(anchor_state=["a", (object(),), "b"]).save(tmp_path / "batch.npz")


def test_another_file_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", reward=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz is not a recorded batch: it lacks 'anchor_state_flat'"):
        Trajectories.load(tmp_path / "other.npz")

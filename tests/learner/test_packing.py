"""Packing: what a batch looks like, and that no token is lost, doubled or moved."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_toy import make_batch, make_signals, make_steps

from hgpo_jax.config import LearnerConfig
from hgpo_jax.learner.packing import Share, pack_steps, unpack_tokens, with_logprobs, without_steps

CONFIG = LearnerConfig(minibatch_steps=4, row_length=8)


def literal_steps():
    """Three steps of 5, 4 and 3 tokens."""
    return {
        "prompt_tokens": [np.array([1, 2, 3]), np.array([4]), np.array([5, 6])],
        "response_tokens": [np.array([11, 12]), np.array([13, 14, 15]), np.array([16])],
        "behavior_logprob": [np.array([-1.0, -2.0]), np.array([-3.0, -4.0, -5.0]), np.array([-6.0])],
        "signals": make_signals(np.array([1.0, 2.0, 3.0])),
    }


def test_rows_by_hand():
    """First-fit decreasing into rows of 8: 5 tokens, then 4 in a new row, then 3 behind the first."""
    batch = pack_steps(**literal_steps(), config=CONFIG, seed=0)
    rows = jax.tree.map(lambda x: x[0, 0], dataclasses.replace(batch, steps=None))  # one mini-batch, one part
    np.testing.assert_array_equal(rows.tokens, [[1, 2, 3, 11, 12, 5, 6, 16], [4, 13, 14, 15, 0, 0, 0, 0]])
    np.testing.assert_array_equal(rows.positions, [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 0, 0, 0]])
    np.testing.assert_array_equal(rows.segment_ids, [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(rows.loss_mask, [[0, 0, 0, 1, 1, 0, 0, 1], [0, 1, 1, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(rows.step_index, [[0, 0, 0, 0, 0, 2, 2, 2], [1, 1, 1, 1, -1, -1, -1, -1]])
    np.testing.assert_array_equal(rows.response_index, [[3, 4, 7, -1, -1, -1, -1, -1], [1, 2, 3] + [-1] * 5])
    np.testing.assert_array_equal(rows.behavior_logprob, [[0, 0, 0, -1, -2, 0, 0, -6], [0, -3, -4, -5, 0, 0, 0, 0]])
    np.testing.assert_array_equal(rows.old_logprob, rows.behavior_logprob)
    np.testing.assert_array_equal(rows.ref_logprob, np.zeros((2, 8)))
    padding = [0] * 13
    np.testing.assert_array_equal(batch.steps.valid, [True, True, True, *padding])
    np.testing.assert_array_equal(batch.steps.score, [1, 2, 3, *padding])
    np.testing.assert_array_equal(batch.steps.prompt_group, [0, 0, 0] + [-1] * 13)
    np.testing.assert_array_equal(batch.steps.group_ids, [[0, 0, 1] + [-1] * 13] * 2)


@pytest.mark.parametrize("process", [0, 1])
def test_steps_left_out_of_the_loss_by_hand(process):
    """The second of the three, also where the numbers of another process's steps come before."""
    share = Share(process, 3 * process, 3 + 3 * process, lambda values: values)
    batch = pack_steps(**literal_steps(), config=CONFIG, seed=0, share=share)
    left = without_steps(batch, np.array([False, True, False]), process)
    mask = {step: left.loss_mask[batch.step_index == step + process * len(batch.steps.valid)] for step in range(3)}
    assert [int(mask[step].sum()) for step in range(3)] == [2, 0, 1]
    for before, after in ((batch.behavior_logprob, left.behavior_logprob), (batch.old_logprob, left.old_logprob)):
        np.testing.assert_array_equal(np.sort(after[after != 0]), [-6, -2, -1])
        assert (before != 0).sum() == 6
    np.testing.assert_array_equal(left.tokens, batch.tokens)


def test_shapes_and_types():
    """Five mini-batches are padded to eight; the empty ones hold no token."""
    batch = make_batch(LearnerConfig(minibatch_steps=4, rows_per_device=1, row_length=12), n=18, row_multiple=2)
    M, A, B, T, C, N = 8, 2, 2, 12, 12, 32
    token_arrays = [batch.tokens, batch.positions, batch.segment_ids, batch.step_index]
    floats = [batch.behavior_logprob, batch.old_logprob, batch.ref_logprob]
    chex.assert_shape([*token_arrays, batch.loss_mask, *floats], (M, A, B, T))
    chex.assert_shape(batch.response_index, (M, A, B, C))
    chex.assert_shape([batch.steps.score, batch.steps.valid, batch.steps.trajectory], (N,))
    chex.assert_shape(batch.steps.group_ids, (2, N))
    chex.assert_type([*token_arrays, batch.response_index], np.int32)
    chex.assert_type([*floats, batch.steps.score], np.float32)
    chex.assert_type([batch.loss_mask, batch.steps.valid], np.bool_)
    sizes = [len(set(block[block >= 0])) for block in batch.step_index.reshape(M, -1)]
    assert sizes == [4, 4, 4, 3, 3, 0, 0, 0]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    minibatch_steps=st.integers(1, 16),
    rows_per_device=st.none() | st.integers(1, 3),
    row_length=st.integers(11, 40),
    row_multiple=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_every_token_exactly_once(n, minibatch_steps, rows_per_device, row_length, row_multiple, seed):
    config = LearnerConfig(minibatch_steps, rows_per_device, row_length)
    steps = make_steps(n, seed)
    batch = pack_steps(**steps, config=config, seed=seed, row_multiple=row_multiple)
    used = batch.segment_ids > 0
    np.testing.assert_array_equal(used, batch.step_index >= 0)
    assert used.sum() == sum(map(len, steps["prompt_tokens"])) + sum(map(len, steps["response_tokens"]))
    assert (
        batch.tokens.shape[1] == 1
        if rows_per_device is None
        else batch.tokens.shape[2] <= rows_per_device * row_multiple
    )
    assert batch.tokens.shape[2] % row_multiple == batch.steps.score.shape[0] % row_multiple == 0
    flat = {name: x.reshape(-1, x.shape[-1]) for name, x in vars(batch).items() if name != "steps"}
    used = flat["segment_ids"] > 0
    for i in range(n):
        row, column = np.nonzero(flat["step_index"] == i)
        prompt, response = steps["prompt_tokens"][i], steps["response_tokens"][i]
        assert len(set(row)) == 1, "a step lies in one row"
        np.testing.assert_array_equal(np.diff(column), 1)
        np.testing.assert_array_equal(flat["tokens"][row, column], np.concatenate([prompt, response]))
        np.testing.assert_array_equal(flat["positions"][row, column], np.arange(len(prompt) + len(response)))
        np.testing.assert_array_equal(flat["loss_mask"][row, column], [False] * len(prompt) + [True] * len(response))
        assert len(set(flat["segment_ids"][row, column])) == 1
    for row, mask in enumerate(flat["loss_mask"]):
        pairs = set(zip(flat["segment_ids"][row][used[row]], flat["step_index"][row][used[row]], strict=True))
        assert sorted(segment for segment, _ in pairs) == list(range(1, len(pairs) + 1))
        index = flat["response_index"][row]
        np.testing.assert_array_equal(index[: mask.sum()], np.flatnonzero(mask))
        assert (index[mask.sum() :] == -1).all()
    unpacked = unpack_tokens(batch.behavior_logprob, batch)
    for got, given_ in zip(unpacked, steps["behavior_logprob"], strict=True):
        np.testing.assert_array_equal(got, given_.astype(np.float32))
    assert not batch.behavior_logprob[~batch.loss_mask].any()


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 20), min_size=2, max_size=4),
    minibatch_steps=st.integers(1, 16),
    rows_per_device=st.none() | st.integers(1, 2),
    seed=st.integers(0, 100),
)
def test_processes_pack_the_minibatches_that_one_would(counts, minibatch_steps, rows_per_device, seed):
    """Each packs its own steps; put side by side as the rows of one array, they are the batch of one process."""
    config = LearnerConfig(minibatch_steps, rows_per_device, row_length=16)
    steps = make_steps(sum(counts), seed)
    lone = pack_steps(**steps, config=config, seed=seed)
    parts = pack_in_processes(steps, counts, config, seed)
    shapes = {jax.tree.map(np.shape, vars(part)).__repr__() for part in parts}
    assert len(shapes) == 1, "global arrays need equal parts"
    offset = np.concatenate([[0], np.cumsum(counts)])
    N = len(parts[0].steps.valid)

    def global_steps(p: int, x: Any) -> set[int]:
        return set((x[x >= 0] - p * N + offset[p]).tolist())

    assert len(parts[0].tokens) == len(lone.tokens)
    for m in range(len(lone.tokens)):
        index = lone.step_index[m]
        whole = set(index[index >= 0].tolist())
        assert whole == set().union(*(global_steps(p, part.step_index[m]) for p, part in enumerate(parts)))
    for p, part in enumerate(parts):
        got = unpack_tokens(part.behavior_logprob, part)
        for i, values in enumerate(got):
            np.testing.assert_array_equal(values, steps["behavior_logprob"][offset[p] + i].astype(np.float32))


def pack_in_processes(steps, counts, config, seed, row_multiple=1):
    """One after the other: a first round to see what each needs, as they would agree on it, a second to pack."""
    offset = np.concatenate([[0], np.cumsum(counts)])
    needs: list[list[int]] = []

    def pack(p: int, agree):
        own = slice(int(offset[p]), int(offset[p + 1]))
        signals = make_signals(steps["signals"].score[own])
        ragged = {name: steps[name][own] for name in ("prompt_tokens", "response_tokens", "behavior_logprob")}
        share = Share(p, int(offset[p]), int(offset[-1]), agree)
        return pack_steps(**ragged, signals=signals, config=config, seed=seed, row_multiple=row_multiple, share=share)

    def note(values):
        needs.append(list(values))
        return values

    for p in range(len(counts)):
        pack(p, note)
    return [pack(p, lambda _: np.max(needs, axis=0).tolist()) for p in range(len(counts))]


def test_groups_of_two_processes_never_meet():
    """Both call theirs 0, 1, ..; in the global arrays every id belongs to one process."""
    config = LearnerConfig(minibatch_steps=4, row_length=16)
    one, two = pack_in_processes(make_steps(22), [9, 13], config, 0)
    N = len(one.steps.valid)
    for name in ("prompt_group", "trajectory", "group_ids"):
        first, second = getattr(one.steps, name), getattr(two.steps, name)
        assert 0 in first
        assert not set(first[first >= 0].tolist()) & set(second[second >= 0].tolist())
        # The kernels make room for 2 N ids, for half as many where a group has two members or more.
        assert second.max() < (N if name == "group_ids" else 2 * N)
    assert one.step_index.max() < N <= two.step_index[two.step_index >= 0].min()


def test_the_next_steps_of_two_processes_never_meet():
    signals = make_signals(np.zeros(3))._replace(next_step=np.array([2, -1, -1], np.int32))
    steps: dict[str, Any] = literal_steps() | {"signals": signals}
    for process in (0, 1):
        share = Share(process, 3 * process, 3 + 3 * process, lambda values: values)
        found = pack_steps(**steps, config=CONFIG, seed=0, share=share).steps
        assert found.next_step is not None
        size = len(found.valid)
        assert found.next_step.tolist() == [2 + process * size, *[-1] * (size - 1)]


def test_a_share_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="3 steps after the first 4 don't fit into 6 steps of all processes"):
        pack_steps(**literal_steps(), config=CONFIG, seed=0, share=Share(1, 4, 6))


def test_seed_alone_decides():
    config = LearnerConfig(minibatch_steps=4, row_length=16)
    one, two = (pack_steps(**make_steps(), config=config, seed=5) for _ in range(2))
    chex.assert_trees_all_equal(one, two)
    other = pack_steps(**make_steps(), config=config, seed=6)
    assert one.step_index.shape != other.step_index.shape or (one.step_index != other.step_index).any()


def test_padded_signals_are_padded_anew():
    steps = literal_steps()
    plain = pack_steps(**steps, config=CONFIG, seed=0)
    signals = steps["signals"]
    longer = signals._replace(
        **{k: np.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, 9)]) for k, v in signals._asdict().items() if v is not None}
    )
    chex.assert_trees_all_equal(pack_steps(**steps | {"signals": longer}, config=CONFIG, seed=0), plain)


def test_few_shapes_over_many_batches():
    """From 100 to 1000 steps of random lengths a run meets few shapes."""
    config = LearnerConfig(minibatch_steps=64, row_length=32)
    rng = np.random.default_rng(0)
    shapes = set()
    for n in rng.integers(100, 1000, 40):
        tokens = [np.zeros(k, int) for k in rng.integers(1, 12, n)]
        zeros = [np.zeros(len(t)) for t in tokens]
        batch = pack_steps(tokens, tokens, zeros, make_signals(np.zeros(n)), config=config, seed=0)
        shapes.add((batch.tokens.shape, batch.response_index.shape, batch.steps.score.shape))
    assert len(shapes) <= 10, shapes


def test_replaced_logprobs_keep_to_the_mask():
    batch = make_batch(LearnerConfig(minibatch_steps=4, row_length=16))
    ones = np.ones(batch.tokens.shape)
    new = with_logprobs(batch, old=-ones, ref=-2 * ones)
    np.testing.assert_array_equal(new.old_logprob, np.where(batch.loss_mask, -1, 0))
    np.testing.assert_array_equal(new.ref_logprob, np.where(batch.loss_mask, -2, 0))
    np.testing.assert_array_equal(with_logprobs(batch, old=ones).ref_logprob, batch.ref_logprob)
    on_device = with_logprobs(jax.device_put(batch), old=jnp.asarray(-ones))
    assert isinstance(on_device.old_logprob, jax.Array)
    np.testing.assert_array_equal(on_device.old_logprob, new.old_logprob)
    with pytest.raises(ValueError, match=r"old_logprob has shape \(1, 2\)"):
        with_logprobs(batch, old=np.ones((1, 2)))
    with pytest.raises(ValueError, match=r"values have shape \(3,\)"):
        unpack_tokens(np.ones(3), batch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_tokens": [np.array([1])]}, "response_tokens has 1 steps, but prompt_tokens has 3"),
        ({"prompt_tokens": [], "response_tokens": [], "behavior_logprob": []}, "empty batch"),
        ({"prompt_tokens": [np.array([1]), np.array([]), np.array([1])]}, "step 1 has an empty prompt"),
        (
            {"response_tokens": [np.array([1, 2]), np.array([1, 2, 3]), np.array([])]},
            "step 2 has an empty response",
        ),
        (
            {"prompt_tokens": [np.zeros(3), np.zeros(6), np.zeros(2)]},
            "step 1 has 6 prompt and 3 response tokens, more than a row of 8: raise LearnerConfig.row_length",
        ),
        ({"behavior_logprob": [np.zeros(2), np.zeros(2), np.zeros(1)]}, "step 1: behavior_logprob has 2 entries for 3"),
        (
            {"behavior_logprob": [np.zeros(2), np.zeros(3), np.array([np.nan])]},
            "step 2: behavior_logprob is not finite",
        ),
        ({"signals": make_signals(np.array([1.0, np.nan, 0.0]))}, "step 1: signals.step_return is nan"),
        ({"signals": make_signals(np.zeros(2))}, "valid marks 2 of 2 entries, but there are 3 steps"),
        ({"signals": make_signals(np.zeros(4))}, "valid marks 4 of 4 entries, but there are 3 steps"),
        (
            {"signals": make_signals(np.zeros(3))._replace(score=np.zeros(2, np.float32))},
            "signals.score has 2 steps, but there are 3",
        ),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        pack_steps(**literal_steps() | change, config=CONFIG, seed=0)


@pytest.mark.parametrize("field", ["minibatch_steps", "rows_per_device", "row_length"])
def test_settings_below_one_are_named(field):
    with pytest.raises(ValueError, match=f"LearnerConfig.{field} is 0"):
        pack_steps(**literal_steps(), config=dataclasses.replace(CONFIG, **{field: 0}), seed=0)

"""Packing: what a batch looks like, and that no token is lost, doubled or moved."""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_toy import make_batch, make_signals, make_steps

from hgpo_jax.config import LearnerConfig
from hgpo_jax.learner.packing import pack_steps, unpack_tokens, with_logprobs

CONFIG = LearnerConfig(minibatch_steps=4, accumulation=1, row_length=8)


def literal_steps():
    """Three steps of 5, 4 and 3 tokens."""
    return {
        "prompt_tokens": [np.array([1, 2, 3]), np.array([4]), np.array([5, 6])],
        "response_tokens": [np.array([11, 12]), np.array([13, 14, 15]), np.array([16])],
        "old_logprob": [np.array([-1.0, -2.0]), np.array([-3.0, -4.0, -5.0]), np.array([-6.0])],
        "signals": make_signals(np.array([1.0, 2.0, 3.0])),
    }


def test_rows_by_hand():
    """First-fit decreasing into rows of 8: 5 tokens, then 4 in a new row, then 3 behind the first."""
    batch = pack_steps(**literal_steps(), config=CONFIG, seed=0)
    assert batch.num_minibatches == 1
    np.testing.assert_array_equal(batch.tokens, [[1, 2, 3, 11, 12, 5, 6, 16], [4, 13, 14, 15, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.positions, [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.segment_ids, [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.loss_mask, [[0, 0, 0, 1, 1, 0, 0, 1], [0, 1, 1, 1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.step_index, [[0, 0, 0, 0, 0, 2, 2, 2], [1, 1, 1, 1, -1, -1, -1, -1]])
    np.testing.assert_array_equal(batch.old_logprob, [[0, 0, 0, -1, -2, 0, 0, -6], [0, -3, -4, -5, 0, 0, 0, 0]])
    np.testing.assert_array_equal(batch.ref_logprob, np.zeros((2, 8)))
    np.testing.assert_array_equal(batch.steps.valid, [True, True, True, False])
    np.testing.assert_array_equal(batch.steps.score, [1, 2, 3, 0])
    np.testing.assert_array_equal(batch.steps.prompt_group, [0, 0, 0, -1])
    np.testing.assert_array_equal(batch.steps.group_ids, [[0, 0, 1, -1], [0, 0, 1, -1]])


def test_shapes_and_types():
    """Five mini-batches are padded to eight blocks; the empty blocks hold no token."""
    batch = make_batch(LearnerConfig(minibatch_steps=4, accumulation=2, row_length=16), n=18, row_multiple=3)
    M, N = 8, 32
    B = len(batch.tokens)
    assert batch.num_minibatches == M
    assert B % (M * 2 * 3) == 0
    chex.assert_shape([batch.tokens, batch.positions, batch.segment_ids, batch.step_index], (B, 16))
    chex.assert_shape([batch.loss_mask, batch.old_logprob, batch.ref_logprob], (B, 16))
    chex.assert_shape([batch.steps.score, batch.steps.valid, batch.steps.trajectory], (N,))
    chex.assert_shape(batch.steps.group_ids, (2, N))
    chex.assert_type([batch.tokens, batch.positions, batch.segment_ids, batch.step_index], np.int32)
    chex.assert_type([batch.old_logprob, batch.ref_logprob, batch.steps.score], np.float32)
    chex.assert_type([batch.loss_mask, batch.steps.valid], np.bool_)
    sizes = [len(set(block[block >= 0])) for block in batch.step_index.reshape(M, -1)]
    assert sizes == [4, 4, 4, 3, 3, 0, 0, 0]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    minibatch_steps=st.integers(1, 16),
    accumulation=st.integers(1, 3),
    row_length=st.integers(11, 40),
    row_multiple=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_every_token_exactly_once(n, minibatch_steps, accumulation, row_length, row_multiple, seed):
    config = LearnerConfig(minibatch_steps, accumulation, row_length)
    steps = make_steps(n, seed)
    batch = pack_steps(**steps, config=config, seed=seed, row_multiple=row_multiple)
    used = batch.segment_ids > 0
    np.testing.assert_array_equal(used, batch.step_index >= 0)
    assert used.sum() == sum(map(len, steps["prompt_tokens"])) + sum(map(len, steps["response_tokens"]))
    assert len(batch.tokens) % (batch.num_minibatches * accumulation * row_multiple) == 0
    for i in range(n):
        row, column = np.nonzero(batch.step_index == i)
        prompt, response = steps["prompt_tokens"][i], steps["response_tokens"][i]
        assert len(set(row)) == 1, "a step lies in one row"
        np.testing.assert_array_equal(np.diff(column), 1)
        np.testing.assert_array_equal(batch.tokens[row, column], np.concatenate([prompt, response]))
        np.testing.assert_array_equal(batch.positions[row, column], np.arange(len(prompt) + len(response)))
        np.testing.assert_array_equal(batch.loss_mask[row, column], [False] * len(prompt) + [True] * len(response))
        assert len(set(batch.segment_ids[row, column])) == 1
    for row in range(len(batch.tokens)):
        pairs = set(zip(batch.segment_ids[row][used[row]], batch.step_index[row][used[row]], strict=True))
        assert sorted(segment for segment, _ in pairs) == list(range(1, len(pairs) + 1))
    for name in ("old_logprob", "ref_logprob"):
        for got, given_ in zip(unpack_tokens(getattr(batch, name), batch), steps[name], strict=True):
            np.testing.assert_array_equal(got, given_.astype(np.float32))
        assert not getattr(batch, name)[~batch.loss_mask].any()


def test_seed_alone_decides():
    config = LearnerConfig(minibatch_steps=4, row_length=16)
    one, two = (pack_steps(**make_steps(), config=config, seed=5) for _ in range(2))
    chex.assert_trees_all_equal(one, two)
    other = pack_steps(**make_steps(), config=config, seed=6)
    assert (one.step_index[0] != other.step_index[0]).any()


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
        shapes.add((batch.num_minibatches, batch.tokens.shape, batch.steps.score.shape))
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
        ({"prompt_tokens": [], "response_tokens": [], "old_logprob": []}, "empty batch"),
        ({"prompt_tokens": [np.array([1]), np.array([]), np.array([1])]}, "step 1 has an empty prompt"),
        (
            {"response_tokens": [np.array([1, 2]), np.array([1, 2, 3]), np.array([])]},
            "step 2 has an empty response",
        ),
        (
            {"prompt_tokens": [np.zeros(3), np.zeros(6), np.zeros(2)]},
            "step 1 has 6 prompt and 3 response tokens, more than a row of 8: raise LearnerConfig.row_length",
        ),
        ({"old_logprob": [np.zeros(2), np.zeros(2), np.zeros(1)]}, "step 1: old_logprob has 2 entries for 3"),
        (
            {"old_logprob": [np.zeros(2), np.zeros(3), np.array([np.nan])]},
            "step 2: old_logprob is not finite",
        ),
        (
            {"ref_logprob": [np.zeros(2), np.array([0, -np.inf, 0]), np.zeros(1)]},
            "step 1: ref_logprob is not finite",
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


@pytest.mark.parametrize("field", ["minibatch_steps", "accumulation", "row_length"])
def test_settings_below_one_are_named(field):
    with pytest.raises(ValueError, match=f"LearnerConfig.{field} is 0"):
        pack_steps(**literal_steps(), config=dataclasses.replace(CONFIG, **{field: 0}), seed=0)

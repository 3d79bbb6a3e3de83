"""Maximum likelihood on packed rows: the loss by hand, parts, and empty mini-batches."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hgpo_jax.config import LearnerConfig
from hgpo_jax.learner.packing import pack_steps
from hgpo_jax.learner.supervised import make_supervised_update
from hgpo_jax.types import StepBatch, StepSignals

VOCAB = 5


def logprob_fn(
    params: jax.Array, tokens_BT: jax.Array, positions_BT: jax.Array, *_: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One distribution [V] for every token: its likelihood is a count."""
    logprob_BT = jnp.where(positions_BT > 0, jax.nn.log_softmax(params)[tokens_BT], 0.0)
    return logprob_BT, jnp.zeros_like(logprob_BT)


def pack(responses: list[list[int]], rows_per_device: int | None = None) -> StepBatch:
    n = len(responses)
    zeros = np.zeros(n, np.float32)
    ids = np.arange(n, dtype=np.int32)
    signals = StepSignals(zeros, zeros, ids, ids, np.ones(n, bool), np.full((1, n), -1, np.int32))
    config = LearnerConfig(minibatch_steps=4, row_length=16, rows_per_device=rows_per_device)
    replies = [np.array(r, np.int32) for r in responses]
    behaviour = [np.zeros(len(r), np.float32) for r in responses]
    return pack_steps([np.array([3, 4], np.int32)] * n, replies, behaviour, signals, config=config, seed=0)


def run(batch: StepBatch) -> tuple[Any, float]:
    optimizer = optax.sgd(0.5)
    update = make_supervised_update(logprob_fn, optimizer)
    params = jnp.zeros(VOCAB)
    params, _, loss = update(params, optimizer.init(params), batch)
    chex.assert_shape(params, (VOCAB,))
    chex.assert_shape(loss, ())
    return params, float(loss)


def test_one_step_by_hand() -> None:
    # Five response tokens: 1 1 2 | 1 2. Gradient of the mean: softmax - frequencies.
    params, loss = run(pack([[1, 1, 2], [1, 2]]))
    np.testing.assert_allclose(loss, np.log(VOCAB), rtol=1e-6)
    frequency = np.array([0, 3, 2, 0, 0]) / 5
    np.testing.assert_allclose(params, -0.5 * (1 / VOCAB - frequency), atol=1e-6)


def test_parts_change_nothing() -> None:
    responses = [[1] * 9, [1, 2] * 4, [0] * 7, [2] * 12]  # one to a row
    whole, _ = run(pack(responses))
    batch = pack(responses, rows_per_device=1)
    assert batch.tokens.shape[:3] == (1, 4, 1)
    parts, _ = run(batch)
    np.testing.assert_allclose(parts, whole, atol=1e-6)


def test_loss_falls_and_padding_minibatches_take_no_step() -> None:
    batch = pack([[1, 2]] * 18)  # five mini-batches, padded to a bucket
    optimizer = optax.adam(0.1)
    update = make_supervised_update(logprob_fn, optimizer)
    params = jnp.zeros(VOCAB)
    opt_state = optimizer.init(params)
    losses = []
    for _ in range(5):
        params, opt_state, loss = update(params, opt_state, batch)
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert int(optax.tree.get(opt_state, "count")) == 5 * 5

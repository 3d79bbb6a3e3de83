"""Maximum likelihood on packed rows: the loss by hand, parts, and empty mini-batches."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hgpo_jax import adapters
from hgpo_jax.config import LearnerConfig, ModelConfig
from hgpo_jax.learner.packing import unpack_tokens
from hgpo_jax.learner.supervised import imitation_metrics, make_supervised_update, minibatches, pack_replies
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.transformer import Transformer, init_params
from hgpo_jax.types import StepBatch

VOCAB = 5


def logprob_fn(
    params: Any, tokens_BT: jax.Array, positions_BT: jax.Array, *_: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One distribution [V] for every token: its likelihood is a count."""
    logits = sum(jnp.asarray(leaf, jnp.float32) for leaf in jax.tree.leaves(params))
    logprob_BT = jnp.where(positions_BT > 0, jax.nn.log_softmax(logits)[tokens_BT], 0.0)
    return logprob_BT, jnp.zeros_like(logprob_BT)


def pack(responses: list[list[int]], rows_per_device: int | None = None) -> StepBatch:
    config = LearnerConfig(minibatch_steps=4, row_length=16, rows_per_device=rows_per_device)
    replies = [np.array(r, np.int32) for r in responses]
    return pack_replies([np.array([3, 4], np.int32)] * len(replies), replies, config=config, seed=0)


def run(batch: StepBatch, prompt_weight: float = 0.0) -> tuple[Any, float]:
    optimizer = optax.sgd(0.5)
    update = make_supervised_update(logprob_fn, optimizer, prompt_weight=prompt_weight)
    params = {"logits": jnp.zeros(VOCAB)}
    params, _, loss = update(params, optimizer.init(params), batch)
    chex.assert_shape(params["logits"], (VOCAB,))
    chex.assert_shape(loss, ())
    return params["logits"], float(loss)


def test_one_step_by_hand() -> None:
    # Five response tokens: 1 1 2 | 1 2. Gradient of the mean: softmax - frequencies.
    params, loss = run(pack([[1, 1, 2], [1, 2]]))
    np.testing.assert_allclose(loss, np.log(VOCAB), rtol=1e-6)
    frequency = np.array([0, 3, 2, 0, 0]) / 5
    np.testing.assert_allclose(params, -0.5 * (1 / VOCAB - frequency), atol=1e-6)


def test_prompts_count_by_their_weight_but_for_their_first_token() -> None:
    # Prompts 3 4 | 3 4, of which the 4s follow something; weights 5 of replies and 2 * 0.5 of prompts.
    params, loss = run(pack([[1, 1, 2], [1, 2]]), prompt_weight=0.5)
    np.testing.assert_allclose(loss, np.log(VOCAB), rtol=1e-6)
    frequency = np.array([0, 3, 2, 0, 2 * 0.5]) / 6
    np.testing.assert_allclose(params, -0.5 * (1 / VOCAB - frequency), atol=1e-6)


def test_a_real_decoder_predicts_prompts_where_they_count() -> None:
    model = ModelConfig(VOCAB, 8, 16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4)
    params, fn = init_params(model, jax.random.key(0)), functools.partial(response_logprobs, Transformer(model))
    batch, optimizer = pack([[1, 1, 2], [1, 2]]), optax.sgd(0.5)
    row = {name: array[0, 0] for name, array in vars(batch).items() if name != "steps"}
    logprob, _ = fn(params, row["tokens"], row["positions"], row["segment_ids"])  # of every token that follows one
    weight = np.where(row["loss_mask"], 1, 0.25 * ((row["segment_ids"] > 0) & (row["positions"] > 0)))
    update = make_supervised_update(fn, optimizer, prompt_weight=0.25)
    _, _, loss = update(params, optimizer.init(params), batch)
    np.testing.assert_allclose(loss, -(weight * logprob).sum() / weight.sum(), rtol=1e-5)
    assert weight.sum() == 5 + 2 * 0.25


def test_parts_change_nothing() -> None:
    responses = [[1] * 9, [1, 2] * 4, [0] * 7, [2] * 12]  # one to a row
    whole, _ = run(pack(responses))
    batch = pack(responses, rows_per_device=1)
    assert batch.tokens.shape[:3] == (1, 4, 1)
    parts, _ = run(batch)
    np.testing.assert_allclose(parts, whole, atol=1e-6)
    np.testing.assert_allclose(run(batch, 0.3)[0], run(pack(responses), 0.3)[0], atol=1e-6)


def test_loss_falls_and_padding_minibatches_take_no_step() -> None:
    batch = pack([[1, 2]] * 18)  # five mini-batches, padded to a bucket
    optimizer = optax.adam(0.1)
    update = make_supervised_update(logprob_fn, optimizer)
    params = {"logits": jnp.zeros(VOCAB)}
    opt_state = optimizer.init(params)
    losses = []
    for _ in range(5):
        params, opt_state, loss = update(params, opt_state, batch)
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True)
    assert int(optax.tree.get(opt_state, "count")) == 5 * 5


def test_one_minibatch_at_a_time_is_the_same_training() -> None:
    batch = pack([[1, 2, i % VOCAB] for i in range(18)])  # five mini-batches, padded to eight
    optimizer = optax.adam(0.1)
    update = make_supervised_update(logprob_fn, optimizer)

    def start() -> tuple[Any, Any]:
        params = {"logits": jnp.zeros(VOCAB)}
        return params, optimizer.init(params)

    together, _, loss = update(*start(), batch)
    (params, opt_state), losses = start(), []
    for one in minibatches(batch):
        assert one.tokens.shape == (1, *batch.tokens.shape[1:])
        params, opt_state, part = update(params, opt_state, one)
        losses.append(float(part))
    assert len(losses) == 5
    np.testing.assert_allclose(params["logits"], together["logits"], rtol=1e-5)
    np.testing.assert_allclose(np.mean(losses), loss, rtol=1e-6)


def test_adapters_learn_and_the_rest_stays() -> None:
    """The optimizer's state is float32 whatever the parameters are."""
    base = jnp.arange(VOCAB, dtype=jnp.bfloat16)
    params = {"map": {"kernel": base, "lora_a": jnp.zeros(VOCAB, jnp.bfloat16), "lora_b": jnp.zeros(VOCAB)}}
    optimizer = optax.adam(0.1)
    opt_state = optimizer.init(jax.tree.map(lambda x: x.astype(jnp.float32), adapters.split(params)[0]))
    update = make_supervised_update(logprob_fn, optimizer)
    params, opt_state, _ = update(params, opt_state, pack([[1, 1, 2]]))
    np.testing.assert_array_equal(params["map"]["kernel"], np.arange(VOCAB))
    # Adam's first step is the rate against the gradient's sign: up where the frequency exceeds the probability.
    for name, dtype in (("lora_a", jnp.bfloat16), ("lora_b", jnp.float32)):
        assert params["map"][name].dtype == dtype
        np.testing.assert_allclose(params["map"][name], [-0.1, 0.1, 0.1, -0.1, -0.1], rtol=1e-2)
    assert {leaf.dtype for leaf in jax.tree.leaves(opt_state)} == {jnp.dtype("float32"), jnp.dtype("int32")}


def test_a_gradient_that_is_not_finite_shows_in_the_loss() -> None:
    """sqrt(x) at 0 is finite, its slope is not."""

    def at_the_edge(params: Any, tokens_BT: jax.Array, *_: jax.Array) -> tuple[jax.Array, jax.Array]:
        logprob_BT = jnp.zeros(tokens_BT.shape) + jnp.sqrt(params["x"])
        return logprob_BT, logprob_BT

    optimizer, params = optax.sgd(0.5), {"x": jnp.zeros(())}
    update = make_supervised_update(at_the_edge, optimizer)
    *_, loss = update(params, optimizer.init(params), pack([[1, 2]]))
    assert np.isnan(loss)


def test_imitation_metrics_by_hand() -> None:
    """Of two replies the first is predicted whole, of the second the first token alone."""
    loss = [np.log([0.5, 0.25]), np.log([0.5, 0.125])]
    cold = [np.log([0.99, 0.6]), np.log([0.9, 0.1])]
    metrics = imitation_metrics(loss, cold)
    assert metrics["token_accuracy"] == 0.75
    assert metrics["reply_accuracy"] == 0.5
    np.testing.assert_allclose(metrics["loss"], np.log(2) * (1 + 2 + 1 + 3) / 4)


def test_packed_replies_come_back_in_order() -> None:
    replies = [[1, 2], [0], [3, 3, 1], [2, 0], [4]]
    batch = pack(replies)
    assert [tokens.tolist() for tokens in unpack_tokens(batch.tokens, batch)] == replies
    assert not batch.old_logprob.any()

"""Maximum likelihood of recorded replies, on the same packed rows as the policy gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hgpo_jax import adapters
from hgpo_jax.config import LearnerConfig
from hgpo_jax.learner.packing import pack_steps
from hgpo_jax.learner.update import Block, LogprobFn, in_float32, predict, token_arrays
from hgpo_jax.types import StepBatch, StepSignals, TrainState


def make_supervised_update(
    logprob_fn: LogprobFn,
    optimizer: optax.GradientTransformation,
    *,
    prompt_weight: float = 0.0,
    shardings: TrainState | None = None,
) -> Callable[[Any, Any, StepBatch], tuple[Any, Any, jax.Array]]:
    """``update(params, opt_state, batch) -> (params, opt_state, loss)``, one jit, the first two donated.

        loss = -sum_t w_t log p(token_t | what precedes it) / sum_t w_t

    over a mini-batch, with w = 1 for response tokens and ``prompt_weight`` for those of prompts but the first. Each
    takes one optimizer step, its gradient summed over its parts. Empty mini-batches take none. ``loss`` f32 [] is the
    mean over the mini-batches that are not empty, in nats a token; NaN where a gradient is not finite.

    ``opt_state`` is float32 whatever the parameters are. Where they hold low-rank adapters, it is that of the adapters,
    and the rest stays as it is (`hgpo_jax.learner.update.init_state` makes such a one).

    Args:
      logprob_fn: the policy.
      optimizer: any of optax's.
      prompt_weight: 0 or more. A model from random weights learns to read by it, on many more tokens than replies have.
      shardings: on a mesh, of a state with this optimizer; kept, so that the next call compiles nothing.
    """
    places = None if shardings is None else adapters.split(shardings.params)[0]

    def part_loss(trained: Any, frozen: Any, part: Block, total_weight: jax.Array) -> jax.Array:
        mask_BT = part["loss_mask"]
        if prompt_weight:  # predict every token
            part = part | {"response_index": jnp.broadcast_to(jnp.arange(mask_BT.shape[1]), mask_BT.shape)}
        logprob_BT = predict(logprob_fn, adapters.join(trained, frozen), part)[0]
        weight_BT = _token_weights(part, prompt_weight)
        return -jnp.where(weight_BT > 0, weight_BT * logprob_BT, 0.0).sum() / total_weight

    def step(trained: Any, opt_state: Any, frozen: Any, block: Block) -> tuple[Any, Any, jax.Array]:
        total_weight = _token_weights(block, prompt_weight).sum()

        def accumulate(total: Any, part: Block) -> tuple[Any, jax.Array]:
            loss, grads = jax.value_and_grad(part_loss)(trained, frozen, part, total_weight)
            grads = in_float32(grads)
            if places is not None:
                grads = jax.lax.with_sharding_constraint(grads, places)
            return jax.tree.map(jnp.add, total, grads), loss

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), trained)
        grads, losses = jax.lax.scan(accumulate, zeros, block)
        updates, opt_state = optimizer.update(grads, opt_state, in_float32(trained))
        loss = jnp.where(jnp.isfinite(optax.tree.norm(grads)), losses.sum(), jnp.nan)
        return optax.apply_updates(trained, updates), opt_state, loss

    def update(params: Any, opt_state: Any, batch: StepBatch) -> tuple[Any, Any, jax.Array]:
        trained, frozen = adapters.split(params)

        def minibatch(carry: tuple[Any, Any], block: Block) -> tuple[tuple[Any, Any], jax.Array]:
            trained, opt_state, loss = jax.lax.cond(
                block["loss_mask"].any(), step, lambda p, o, *_: (p, o, jnp.float32(0)), *carry, frozen, block
            )
            return (trained, opt_state), loss

        blocks = token_arrays(batch)
        (trained, opt_state), loss_M = jax.lax.scan(minibatch, (trained, opt_state), blocks)
        used = blocks["loss_mask"].any(axis=(1, 2, 3)).sum()
        return adapters.join(trained, frozen), opt_state, loss_M.sum() / jnp.maximum(used, 1)

    if shardings is None:
        return jax.jit(update, donate_argnums=(0, 1))
    outputs = shardings.params, shardings.opt_state, shardings.step
    return jax.jit(update, donate_argnums=(0, 1), out_shardings=outputs)


def _token_weights(block: Block, prompt_weight: float) -> jax.Array:
    """1 for response tokens, ``prompt_weight`` for the others that something precedes, 0 for padding: f32 [.., T]."""
    follows = (block["segment_ids"] > 0) & (block["positions"] > 0)
    return jnp.where(block["loss_mask"], 1.0, prompt_weight * follows)


def pack_replies(
    prompt_tokens: Sequence[np.ndarray],
    response_tokens: Sequence[np.ndarray],
    *,
    config: LearnerConfig,
    seed: int | Sequence[int],
    row_multiple: int = 1,
) -> StepBatch:
    """Steps as rows of tokens without what only reinforcement needs. Arguments and errors as ``pack_steps``."""
    n = len(prompt_tokens)
    zero, ids = np.zeros(n, np.float32), np.arange(n, dtype=np.int32)
    signals = StepSignals(zero, zero, ids, ids, np.ones(n, bool), np.full((1, n), -1, np.int32))
    unknown = [np.zeros(len(response), np.float32) for response in response_tokens]
    return pack_steps(
        prompt_tokens, response_tokens, unknown, signals, config=config, seed=seed, row_multiple=row_multiple
    )


def minibatches(batch: StepBatch) -> Iterator[StepBatch]:
    """The mini-batches of a batch on the host that hold something, one at a time and all of one shape."""
    for m in np.flatnonzero(np.asarray(batch.loss_mask).any(axis=(1, 2, 3))):
        one = {name: array[m : m + 1] for name, array in token_arrays(batch).items()}
        yield dataclasses.replace(batch, **one)


def imitation_metrics(logprobs: Sequence[np.ndarray], greedy_logprobs: Sequence[np.ndarray]) -> dict[str, float]:
    """How well replies are predicted: ``loss`` (nats a token), ``token_accuracy`` and ``reply_accuracy``.

    A token counts as right if it is the likeliest one, given what precedes it; a reply if all of its tokens are, which
    is to say if the policy, asked for its likeliest tokens, writes just this reply.

    Args:
      logprobs: n arrays [length of the reply]: log-probabilities of its tokens.
      greedy_logprobs: the same at a temperature near 0, where the likeliest token has all of the probability.
    """
    right = [greedy > np.log(0.5) for greedy in greedy_logprobs]
    return {
        "loss": -float(np.concatenate(logprobs).mean()),
        "token_accuracy": float(np.concatenate(right).mean()),
        "reply_accuracy": float(np.mean([tokens.all() for tokens in right])),
    }

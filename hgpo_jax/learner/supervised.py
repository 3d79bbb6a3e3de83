"""Maximum likelihood of recorded replies, on the same packed rows as the policy gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hgpo_jax.learner.update import Block, LogprobFn, predict, token_arrays
from hgpo_jax.types import StepBatch, TrainState


def make_supervised_update(
    logprob_fn: LogprobFn,
    optimizer: optax.GradientTransformation,
    *,
    shardings: TrainState | None = None,
) -> Callable[[Any, Any, StepBatch], tuple[Any, Any, jax.Array]]:
    """``update(params, opt_state, batch) -> (params, opt_state, loss)``, one jit, the first two donated.

    The loss of a mini-batch is -mean of log p(token | what precedes it) over its response tokens; each takes one
    optimizer step, its gradient summed over its parts. Empty mini-batches take none. ``loss``
    f32 [] is the mean over the mini-batches that are not empty, in nats a token.

    Args:
      logprob_fn: the policy.
      optimizer: any of optax's.
      shardings: on a mesh, of a state with this optimizer; kept, so that the next call compiles nothing.
    """

    def part_loss(params: Any, part: Block, num_tokens: jax.Array) -> jax.Array:
        logprob_BT, _ = predict(logprob_fn, params, part)
        return -jnp.where(part["loss_mask"], logprob_BT, 0.0).sum() / num_tokens

    def step(params: Any, opt_state: Any, block: Block) -> tuple[Any, Any, jax.Array]:
        num_tokens = block["loss_mask"].sum().astype(jnp.float32)

        def accumulate(total: Any, part: Block) -> tuple[Any, jax.Array]:
            loss, grads = jax.value_and_grad(part_loss)(params, part, num_tokens)
            return jax.tree.map(jnp.add, total, grads), loss

        grads, losses = jax.lax.scan(accumulate, jax.tree.map(jnp.zeros_like, params), block)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, losses.sum()

    def update(params: Any, opt_state: Any, batch: StepBatch) -> tuple[Any, Any, jax.Array]:
        def minibatch(carry: tuple[Any, Any], block: Block) -> tuple[tuple[Any, Any], jax.Array]:
            params, opt_state, loss = jax.lax.cond(
                block["loss_mask"].any(), step, lambda p, o, _: (p, o, jnp.float32(0)), *carry, block
            )
            return (params, opt_state), loss

        blocks = token_arrays(batch)
        (params, opt_state), loss_M = jax.lax.scan(minibatch, (params, opt_state), blocks)
        used = blocks["loss_mask"].any(axis=(1, 2, 3)).sum()
        return params, opt_state, loss_M.sum() / jnp.maximum(used, 1)

    if shardings is None:
        return jax.jit(update, donate_argnums=(0, 1))
    places = shardings.params, shardings.opt_state, shardings.step
    return jax.jit(update, donate_argnums=(0, 1), out_shardings=places)

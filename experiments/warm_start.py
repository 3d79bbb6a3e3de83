"""Teaches a random policy the form of a reply, and nothing of what to do.

A language model knows how to answer before it is trained to act; one with random weights does not. Here it imitates an
agent that replies in the environment's grammar but chooses its moves by lot, so that its first rollouts are a random
walk. What it then learns about the task comes from reinforcement alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from envs.core import random_reply
from experiments.assembly import Learner, Rollouts
from hgpo_jax.config import OptimizerConfig, SamplingConfig
from hgpo_jax.learner.supervised import make_supervised_update
from hgpo_jax.learner.update import make_optimizer
from hgpo_jax.policy.transformer import abstract_params
from hgpo_jax.rollout.collector import Act, Reply
from hgpo_jax.sharding import state_shardings

PASSES = 4  # over each batch


def warm_start(learner: Learner, rollouts: Rollouts, first_task: int) -> list[float]:
    """Gives ``learner.state`` (and its reference) parameters that reply validly and at random.

    Args:
      learner, rollouts: of the run, changed in place.
      first_task: of the training tasks walked.

    Returns:
      The loss of each pass, in nats a token.
    """
    config, settings = learner.config, learner.config.warm_start
    optimizer = make_optimizer(OptimizerConfig(learning_rate=settings.learning_rate, weight_decay=0.0))
    mesh = learner.mesh
    shardings = None if mesh is None else state_shardings(abstract_params(config.model), optimizer, mesh)
    update = make_supervised_update(learner.logprob_fn, optimizer, shardings=shardings)
    params = jax.tree.map(lambda x: x.copy(), learner.state.params)
    opt_state = jax.jit(optimizer.init, out_shardings=shardings and shardings.opt_state)(params)
    act = _by_lot(rollouts, config.seed)
    losses: list[float] = []
    for i in range(settings.batches):
        tasks = range(first_task + i * config.rollout.tasks, first_task + (i + 1) * config.rollout.tasks)
        batch, _ = rollouts.collect(act, None, tasks, jax.random.key(i))
        for j in range(PASSES):
            params, opt_state, loss = update(params, opt_state, learner.pack(batch, (i, j)))
            losses.append(float(loss))
    learner.start_from(params)
    return losses


def _by_lot(rollouts: Rollouts, seed: int) -> Act:
    """Draws each row's reply by its key, so that a row's reply does not depend on the rows beside it."""
    tokenizer, env = rollouts.tokenizer, rollouts.config.env

    def act(_params: object, _prompts: Sequence[np.ndarray], keys: np.ndarray, _: SamplingConfig) -> list[Reply]:
        texts = [random_reply(env)(np.random.default_rng([seed, *key])) for key in keys]
        replies = [np.array([*tokenizer.encode(text), tokenizer.eos_ids[0]], np.int32) for text in texts]
        return [Reply(reply, np.zeros(len(reply), np.float32), cut=False) for reply in replies]

    return act

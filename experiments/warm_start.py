"""Teaches a random policy the form of a reply, and nothing of what to do.

A language model knows how to answer before it is trained to act; one with random weights does not. Here it imitates an
agent that replies in the environment's grammar but chooses its moves by lot, so that its first rollouts are a random
walk. What it then learns about the task comes from reinforcement alone.
"""

from __future__ import annotations

import jax

from experiments.assembly import Learner
from experiments.rollouts import Rollouts
from experiments.scripted import random_policy, scripted_act
from hgpo_jax.config import OptimizerConfig
from hgpo_jax.learner.supervised import make_supervised_update
from hgpo_jax.learner.update import in_float32, make_optimizer
from hgpo_jax.policy.transformer import abstract_params
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
    init = jax.jit(lambda params: optimizer.init(in_float32(params)), out_shardings=shardings and shardings.opt_state)
    opt_state = init(params)
    act = scripted_act(random_policy(config.env, config.seed), rollouts.tokenizer)
    losses: list[float] = []
    for i in range(settings.batches):
        tasks = range(first_task + i * config.rollout.tasks, first_task + (i + 1) * config.rollout.tasks)
        batch = rollouts.collect(act, None, tasks, jax.random.key(i)).batch
        for j in range(PASSES):
            params, opt_state, loss = update(params, opt_state, learner.pack(batch, (i, j)))
            losses.append(float(loss))
    learner.start_from(params)
    return losses

"""Turns a RunConfig into the parts that run it: what train, evaluate and replay share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from envs.core import held_out_tasks, make_vector, prompt_format
from experiments.configs import RunConfig
from hgpo_jax.estimators import make_estimator, step_signals
from hgpo_jax.learner.packing import pack_steps, with_logprobs
from hgpo_jax.learner.update import init_state, make_logprobs, make_optimizer, make_update
from hgpo_jax.policy.tokenization import Tokenizer, load_tokenizer
from hgpo_jax.policy.transformer import Transformer, abstract_params, response_logprobs
from hgpo_jax.rollout.collector import Act, collect, make_actor
from hgpo_jax.sharding import Layout, batch_multiple, batch_shardings, make_mesh, state_shardings
from hgpo_jax.types import Metrics, StepBatch, StepSignals, TrainState, Trajectories


def signals_of(config: RunConfig, batch: Trajectories) -> StepSignals:
    """What the config's estimator reads of a recorded batch."""
    return step_signals(
        batch.anchor_state,
        batch.prompt_group,
        batch.trajectory,
        batch.reward,
        batch.action_valid,
        step=batch.step,
        estimator=config.estimator_config,
        gamma=config.returns.gamma,
        invalid_action_penalty=config.returns.invalid_action_penalty,
    )


class Rollouts:
    """Environments and actor of a run, made once; ``train`` and ``evaluate`` collect with them."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.tokenizer: Tokenizer = load_tokenizer(config.tokenizer)
        if self.tokenizer.vocab_size > config.model.vocab_size:
            raise ValueError(
                f"tokenizer {config.tokenizer!r} has {self.tokenizer.vocab_size} tokens, but model.vocab_size is "
                f"{config.model.vocab_size}: set model.vocab_size to at least the former"
            )
        self._act = make_actor(config.model, self.tokenizer, config.rollout)
        self._envs = make_vector(config.env, config.rollout.tasks * config.rollout.group_size, **config.env_options)

    def train(self, params: Any, first_task: int, key: jax.Array) -> tuple[Trajectories, Metrics]:
        """``rollout.tasks`` new tasks, ``rollout.group_size`` rollouts of each."""
        tasks = range(first_task, first_task + self.config.rollout.tasks)
        return self.collect(self._act, params, tasks, key)

    def collect(self, act: Act, params: Any, tasks: Sequence[int], key: jax.Array) -> tuple[Trajectories, Metrics]:
        """``rollout.group_size`` rollouts of each training task by any ``act``."""
        rollout = self.config.rollout
        return self._collect(act, params, tasks, rollout.group_size, key, "train", rollout.train_sampling)

    def evaluate(self, params: Any, tasks: int | None = None, seed: int | None = None) -> tuple[Trajectories, Metrics]:
        """One rollout of each task of the held-out panel; size and seed are the config's unless given."""
        panel = self.config.evaluation
        numbers = held_out_tasks(self.config.env, panel.tasks if tasks is None else tasks, **self.config.env_options)
        key = jax.random.key(panel.seed if seed is None else seed)
        return self._collect(self._act, params, numbers, 1, key, "test", self.config.rollout.eval_sampling)

    def _collect(
        self, act: Act, params: Any, tasks: Sequence[int], group_size: int, key: jax.Array, split: str, sampling: Any
    ) -> tuple[Trajectories, Metrics]:
        return collect(
            act,
            params,
            self._envs,
            tasks,
            group_size,
            self.config.rollout,
            key,
            split=split,
            sampling=sampling,
            format_prompt=prompt_format(self.config.env),
            tokenizer=self.tokenizer,
        )


class Learner:
    """State and update of a run on its mesh; ``learn`` takes a recorded batch and returns metrics."""

    def __init__(self, config: RunConfig):
        self.config = config
        mesh_size = config.mesh
        single = (mesh_size.data, mesh_size.fsdp, mesh_size.tensor) == (1, 1, 1)
        self.mesh: Mesh | None = None if single else make_mesh(mesh_size)
        self.optimizer: optax.GradientTransformation = make_optimizer(config.optimizer)
        shardings = (
            None if self.mesh is None else state_shardings(abstract_params(config.model), self.optimizer, self.mesh)
        )
        model = Transformer(config.model, None if self.mesh is None else Layout(self.mesh))
        self.logprob_fn = functools.partial(
            response_logprobs, model, temperature=config.rollout.train_sampling.temperature
        )
        self._update = make_update(
            self.logprob_fn,
            make_estimator(config.estimator_config),
            self.optimizer,
            config.loss,
            config.learner,
            mesh=self.mesh,
            shardings=shardings,
        )
        self._logprobs = make_logprobs(self.logprob_fn, config.learner, mesh=self.mesh)
        self.state: TrainState = init_state(config.model, self.optimizer, jax.random.key(config.seed), self.mesh)
        self.reference: Any = None
        self.start_from(self.state.params)

    def start_from(self, params: Any) -> None:
        """Sets the parameters, and the frozen reference where the loss has one."""
        self.state = self.state.replace(params=params)  # pyright: ignore[reportAttributeAccessIssue]
        if self.config.loss.kl_coef:
            # A copy, since the update is given the state's own buffers.
            self.reference = jax.tree.map(lambda x: x.copy(), params)

    def pack(self, batch: Trajectories, seed: tuple[int, int]) -> StepBatch:
        """The recorded batch as token rows, with the log-probabilities that the loss compares with."""
        packed = pack_steps(
            batch.prompt_tokens,
            batch.response_tokens,
            batch.behavior_logprob,
            signals_of(self.config, batch),
            config=self.config.learner,
            seed=seed,
            row_multiple=batch_multiple(self.mesh),
        )
        if self.mesh is not None:
            packed = jax.device_put(packed, batch_shardings(packed, self.mesh))
        if self.reference is not None:
            packed = with_logprobs(packed, ref=self._logprobs(self.reference, packed))
        return packed

    def learn(self, batch: Trajectories, iteration: int) -> Metrics:
        """One update on ``batch``; metrics as NumPy values.

        Raises:
          FloatingPointError: a log-probability, return or gradient is not finite; names the step.
        """
        packed = self.pack(batch, (self.config.seed, iteration))
        if self.config.learner.old_logprob == "recompute":
            packed = with_logprobs(packed, old=self._logprobs(self.state.params, packed))
        self.state, metrics = self._update(self.state, packed)
        metrics = jax.device_get(metrics)
        if metrics["nonfinite_step"] >= 0:
            i = int(metrics["nonfinite_step"])
            raise FloatingPointError(
                f"iteration {iteration}: step {i} (trajectory {batch.trajectory[i]}, step {batch.step[i]}) gave a "
                "value that is not finite; its optimizer step was not taken. Lower optimizer.learning_rate, or look "
                "at the batch: --dump-rollouts writes it"
            )
        return metrics

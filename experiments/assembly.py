"""From a config to what learns: mesh, parameters, the update; what an estimator reads of a batch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, SingleDeviceSharding

from experiments.configs import RunConfig
from hgpo_jax import adapters
from hgpo_jax.config import GiGPOConfig, GRPOConfig, HGPOConfig, MeshConfig, ShrinkageConfig
from hgpo_jax.estimators import (
    context_diagnostics,
    context_sums,
    make_estimator,
    similar_states,
    step_signals,
)
from hgpo_jax.estimators.advantages import Estimator
from hgpo_jax.estimators.shaping import overlong_penalties
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.learner.packing import Share, pack_steps, with_logprobs, without_steps
from hgpo_jax.learner.update import init_state, make_logprobs, make_optimizer, make_update, make_values
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.sampling import in_compute_dtype
from hgpo_jax.policy.transformer import Transformer, abstract_params, init_adapters
from hgpo_jax.policy.weights import load_params, model_config_of, resolve_checkpoint
from hgpo_jax.processes import agree_max, check_mesh, gather, local_mesh, local_replica
from hgpo_jax.sharding import Layout, batch_multiple, batch_shardings, make_mesh, param_shardings, state_shardings
from hgpo_jax.types import Metrics, StepBatch, StepSignals, TrainState, Trajectories


def state_keys_of(config: RunConfig, batch: Trajectories) -> np.ndarray:
    """What says which steps are in the same state: the environment's own keys, or clusters of similar ones."""
    keys = config.state_keys
    if keys.similarity is None:
        return batch.anchor_state
    return similar_states(batch.anchor_state, batch.prompt_group, keys.similarity, rule=keys.rule)


def signals_of(config: RunConfig, batch: Trajectories, state_keys: np.ndarray | None = None) -> StepSignals:
    """What the config's estimator reads of a recorded batch; ``state_keys`` saves making them again."""
    returns = config.returns
    signals = step_signals(
        state_keys_of(config, batch) if state_keys is None else state_keys,
        batch.prompt_group,
        batch.trajectory,
        batch.reward,
        batch.action_valid,
        step=batch.step,
        estimator=config.estimator_config,
        gamma=returns.gamma,
        invalid_action_penalty=returns.invalid_action_penalty,
        grouping=config.grouping,
        value=batch.value,
        next_value=batch.next_value,
    )
    if not returns.overlong_share:
        return signals
    penalty = overlong_penalties(
        [len(tokens) for tokens in batch.response_tokens],
        batch.response_cut,
        max_length=config.rollout.max_response_length,
        share=returns.overlong_share,
        penalty=returns.overlong_penalty,
    )
    signals = signals._replace(step_return=signals.step_return - penalty, score=signals.score - penalty)
    return signals if signals.penalty is None else signals._replace(penalty=signals.penalty + penalty)


def context_metrics(
    config: RunConfig, batch: Trajectories, state_keys: np.ndarray, step_return: np.ndarray
) -> dict[str, np.ndarray]:
    """``context/*`` [K] of all processes' parts together; empty where neither estimator nor prompt looks back.

    K is the estimator's, or that of the prompt's memory where the estimator compares states alone.
    """
    depth = config.grouping.context_length or config.rollout.history_length
    if not depth:
        return {}
    sums = context_sums(
        state_keys, batch.prompt_group, batch.trajectory, step_return, context_length=depth, step=batch.step
    )
    return {f"context/{name}": value for name, value in context_diagnostics(gather(sums).sum(0)).items()}


def level_names(estimator: Estimator) -> list[str]:
    """What each row of the estimator's per-level diagnostics is about."""
    match estimator:
        case HGPOConfig() | ShrinkageConfig():
            levels = [
                "same state",
                "+ last state",
                *(f"+ last {k} states" for k in range(2, estimator.context_length + 1)),
            ]
            levels = levels[: estimator.context_length + 1]
            return ["same task"] * (estimator.root == "prompt") + levels
        case GiGPOConfig():
            return ["same task", "same state"]
        case GRPOConfig():
            return ["same task"]
    return ["whole batch"]


def resolve(config: RunConfig) -> RunConfig:
    """The config with its model's shape read from ``init``, where it starts from a Hugging Face model.

    The model gets a value head where the estimator needs one.

    Raises:
      ValueError: no such folder or model, or one of another architecture.
    """
    if config.estimator == "gae":
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, value_head=True))
    if not config.init:
        return config
    own = ("dtype", "param_dtype", "lora_rank", "lora_alpha", "attention", "remat", "unroll", "value_head")
    kept = {name: getattr(config.model, name) for name in own}
    return dataclasses.replace(config, model=model_config_of(resolve_checkpoint(config.init), **kept))


def mesh_for(config: RunConfig) -> Mesh | None:
    """The config's mesh; None where it is a single device."""
    return None if config.mesh == MeshConfig() else make_mesh(config.mesh)


def make_sampling_copy(config: RunConfig, mesh: Mesh | None) -> Callable[[Any], Any]:
    """A function from a run's parameters to the sampler's: a copy on this process's devices where there is a mesh.

    So processes whose episodes differ in length need not wait for each other. All have to call it together.

    Raises:
      ValueError: ``rollout.tensor`` does not fit the devices.
    """
    if mesh is None:
        if config.rollout.tensor != 1:
            raise ValueError(f"rollout.tensor is {config.rollout.tensor}, but without a mesh there is one device")
        return lambda params: params
    sampling_mesh = local_mesh(MeshConfig(data=-1, tensor=config.rollout.tensor), mesh)
    shardings = param_shardings(abstract_params(config.model), sampling_mesh)
    cast = functools.partial(in_compute_dtype, config=config.model)
    return lambda params: local_replica(params, shardings, cast)


def restore_params(config: RunConfig, run: Path, which: Literal["best", "latest"]) -> Any:
    """The parameters of a run's checkpoint, where the config lays them; nothing of a learner is made.

    Raises:
      ValueError: no checkpoint, or one of another model.
    """
    boxed, mesh = abstract_params(config.model), mesh_for(config)
    alone = SingleDeviceSharding(jax.devices()[0])
    places = jax.tree.map(lambda _: alone, nn.unbox(boxed)) if mesh is None else param_shardings(boxed, mesh)
    target = jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), nn.unbox(boxed), places
    )
    with Checkpoints(run / "checkpoints") as checkpoints:
        return checkpoints.restore_params(target, which)[0]


def _own_part(count: int) -> Share:
    """This process's part of what all pack, of which it has ``count`` steps. All have to call it."""
    steps, own = gather(count), jax.process_index()
    return Share(own, int(steps[:own].sum()), int(steps.sum()), agree_max)


class Learner:
    """State and update of a run on its mesh; ``learn`` takes a recorded batch and returns metrics."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.mesh = mesh_for(config)
        check_mesh(self.mesh)
        self.optimizer: optax.GradientTransformation = make_optimizer(
            config.optimizer, value_head=config.model.value_head
        )
        abstract = abstract_params(config.model)
        shardings = None if self.mesh is None else state_shardings(abstract, self.optimizer, self.mesh)
        self._sampling_copy = make_sampling_copy(config, self.mesh)
        model = Transformer(config.model, None if self.mesh is None else Layout(self.mesh))
        self.logprob_fn = functools.partial(
            response_logprobs, model, temperature=config.rollout.train_sampling.temperature
        )
        self._update = make_update(
            self.logprob_fn,
            make_estimator(config.estimator_config),
            self.optimizer,
            config.loss,
            mesh=self.mesh,
            shardings=shardings,
        )
        self._logprobs = make_logprobs(self.logprob_fn, mesh=self.mesh)
        self._values = make_values(self.logprob_fn, mesh=self.mesh)
        key = jax.random.key(config.seed)
        loaded = self._load(abstract, key) if config.init else None
        self.state: TrainState = init_state(config.model, self.optimizer, key, self.mesh, loaded)
        self._reference: Any = None
        self.start_from(self.state.params)

    def _load(self, abstract: Any, key: jax.Array) -> Any:
        """The parameters of ``config.init``, and fresh adapters beside them where the model has some."""
        model = self.config.model
        shardings = None if self.mesh is None else param_shardings(abstract, self.mesh)
        base = None if shardings is None else adapters.split(shardings)[1] or shardings
        params = load_params(resolve_checkpoint(self.config.init), model, base)
        if not model.lora_rank and not model.value_head:
            return params
        places = None if shardings is None else adapters.fresh(shardings)
        return adapters.join(jax.jit(lambda: init_adapters(model, key), out_shardings=places)(), params)

    def start_from(self, params: Any) -> None:
        """Sets the parameters, and the frozen reference where the loss has one."""
        self.state = self.state.replace(params=params)  # pyright: ignore[reportAttributeAccessIssue]
        if self.config.loss.kl_coef and not self.config.model.lora_rank:
            # A copy, since the update is given the state's own buffers; in the dtype that the model casts them to.
            copy = jax.jit(lambda params: jax.tree.map(jnp.copy, in_compute_dtype(params, self.config.model)))
            self._reference = copy(params)

    @property
    def reference(self) -> Any:
        """The frozen policy that the loss compares with; None where it has none."""
        if self.config.loss.kl_coef and self.config.model.lora_rank:
            return adapters.disabled(self.state.params)
        return self._reference

    def sampling_params(self) -> Any:
        """The state's parameters for the sampler. All processes have to call it together."""
        return self._sampling_copy(self.state.params)

    def sampling_key(self) -> jax.Array:
        """The key of the rollout that comes next, typed []."""
        data = jax.random.key_data(jax.random.fold_in(self.state.key, 0))
        return jax.random.wrap_key_data(jnp.asarray(np.asarray(data)))  # this process's own

    def pack(self, batch: Trajectories, seed: tuple[int, int], signals: StepSignals | None = None) -> StepBatch:
        """The recorded batch as token rows, with the log-probabilities that the loss compares with.

        ``signals`` are those of `signals_of`, where they have been made already. In several processes each passes its
        own part, and gets arrays of all of them together.
        """
        own = jax.process_index()
        packed = pack_steps(
            batch.prompt_tokens,
            batch.response_tokens,
            batch.behavior_logprob,
            signals_of(self.config, batch) if signals is None else signals,
            config=self.config.learner,
            seed=seed,
            row_multiple=self._own_rows,
            share=_own_part(batch.num_steps),
        )
        if self.config.loss.mask_cut and batch.response_cut is not None:
            packed = without_steps(packed, batch.response_cut, own)
        if self.mesh is not None:
            packed = jax.make_array_from_process_local_data(batch_shardings(packed, self.mesh), packed)
        reference = self.reference
        if reference is not None:
            packed = with_logprobs(packed, ref=self._logprobs(reference, packed))
        return packed

    @property
    def _own_rows(self) -> int:
        """What this process's rows of a part have to be a multiple of."""
        return batch_multiple(self.mesh) // jax.process_count()

    def with_values(self, batch: Trajectories) -> Trajectories:
        """The batch with the value head's V of each step's prompt, and of the prompt after each truncated step.

        All processes have to call it together.
        """
        after = (batch.next_prompt_tokens or ()) if self.config.gae.bootstrap_truncated else ()
        cut = [i for i, prompt in enumerate(after) if len(prompt)]
        prompts = [*batch.prompt_tokens, *(after[i] for i in cut)]
        value = self._values(self.state.params, self._pack_prompts(prompts))
        size = len(value) // jax.process_count()
        own = np.asarray(value)[jax.process_index() * size :][: len(prompts)]
        next_value = np.zeros(batch.num_steps, np.float32)
        next_value[cut] = own[batch.num_steps :]
        return dataclasses.replace(batch, value=own[: batch.num_steps], next_value=next_value)

    def _pack_prompts(self, prompts: list[np.ndarray]) -> StepBatch:
        """Rows of prompts, each with one token after it, before which the value head is read."""
        count = len(prompts)
        ids, nothing = np.full(count, -1, np.int32), np.zeros(count, np.float32)
        packed = pack_steps(
            prompts,
            [np.zeros(1, np.int32)] * count,
            [np.zeros(1, np.float32)] * count,
            StepSignals(nothing, nothing, ids, ids, np.ones(count, bool), ids[None]),
            config=self.config.learner,
            seed=0,
            row_multiple=self._own_rows,
            share=_own_part(count),
        )
        if self.mesh is None:
            return packed
        return jax.make_array_from_process_local_data(batch_shardings(packed, self.mesh), packed)

    def learn(self, batch: Trajectories, iteration: int) -> Metrics:
        """One update on ``batch``; metrics as NumPy values.

        Raises:
          FloatingPointError: a log-probability, return or gradient is not finite; names the step.
        """
        if self.config.reads_values and batch.value is None:
            batch = self.with_values(batch)
        state_keys = state_keys_of(self.config, batch)
        signals = signals_of(self.config, batch, state_keys)
        packed = self.pack(batch, (self.config.seed, iteration), signals)
        if self.config.learner.old_logprob == "recompute":
            packed = with_logprobs(packed, old=self._logprobs(self.state.params, packed))
        self.state, metrics = self._update(self.state, packed)
        # Per-step arrays stay out of the log: baselines [L, N] are for the laboratory.
        per_step = packed.steps.valid.shape
        metrics = {k: v for k, v in metrics.items() if np.ndim(v) < 2 and np.shape(v) != per_step}
        metrics = jax.device_get(metrics)
        if metrics["nonfinite_step"] >= 0:
            process, i = divmod(int(metrics["nonfinite_step"]), packed.steps.valid.shape[0] // jax.process_count())
            where = f"step {i} of process {process}"
            if process == jax.process_index():
                where = f"step {i} (trajectory {batch.trajectory[i]}, step {batch.step[i]})"
            if not np.isfinite(metrics["advantage_mean"]):
                raise FloatingPointError(
                    f"iteration {iteration}: estimator {self.config.estimator} gave {where} an advantage that is not "
                    "finite; no optimizer step was taken. Look at the batch: --dump-rollouts writes it"
                )
            raise FloatingPointError(
                f"iteration {iteration}: {where} gave a value that is not finite; its optimizer step was not taken. "
                "Lower optimizer.learning_rate, or look at the batch: --dump-rollouts writes it"
            )
        return metrics | context_metrics(self.config, batch, state_keys, np.asarray(signals.step_return))

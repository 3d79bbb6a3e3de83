"""Turns a RunConfig into the parts that run it: what train, evaluate and replay share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, SingleDeviceSharding

from envs.core import Panel, environment_class, make_panel, make_vector
from experiments.configs import RunConfig
from experiments.rollout_files import join
from hgpo_jax import adapters
from hgpo_jax.config import MeshConfig
from hgpo_jax.estimators import make_estimator, step_signals
from hgpo_jax.estimators.shaping import overlong_penalties
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.learner.packing import Share, pack_steps, with_logprobs
from hgpo_jax.learner.update import init_state, make_logprobs, make_optimizer, make_update
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.sampling import in_compute_dtype
from hgpo_jax.policy.tokenization import AnyTokenizer, load_tokenizer
from hgpo_jax.policy.transformer import Transformer, abstract_params, init_adapters
from hgpo_jax.policy.weights import load_params, model_config_of, resolve_checkpoint
from hgpo_jax.processes import agree_max, check_mesh, gather, local_mesh, local_replica, own_share
from hgpo_jax.rollout.collector import Act, Rollout, collect, make_actor, merge_metrics
from hgpo_jax.rollout.dynamic_sampling import first_of, informative_groups, without_signal
from hgpo_jax.sharding import Layout, batch_multiple, batch_shardings, make_mesh, param_shardings, state_shardings
from hgpo_jax.types import Metrics, StepBatch, StepSignals, TrainState, Trajectories


def signals_of(config: RunConfig, batch: Trajectories) -> StepSignals:
    """What the config's estimator reads of a recorded batch."""
    returns = config.returns
    signals = step_signals(
        batch.anchor_state,
        batch.prompt_group,
        batch.trajectory,
        batch.reward,
        batch.action_valid,
        step=batch.step,
        estimator=config.estimator_config,
        gamma=returns.gamma,
        invalid_action_penalty=returns.invalid_action_penalty,
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
    return signals._replace(step_return=signals.step_return - penalty, score=signals.score - penalty)


def resolve(config: RunConfig) -> RunConfig:
    """The config with its model's shape read from ``init``, where it starts from a Hugging Face model.

    Raises:
      ValueError: no such folder or model, or one of another architecture.
    """
    if not config.init:
        return config
    own = ("dtype", "param_dtype", "lora_rank", "lora_alpha", "attention", "remat", "unroll")
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


class Rollouts:
    """Environments and actor of a run, made once; ``train`` and ``evaluate`` collect with them.

    Several processes share the tasks: each returns the batch of its own, and all the same metrics, of all of them.

    Args:
      config: of the run.
      tokenizer: in place of the config's, where no model of it acts.
    """

    def __init__(self, config: RunConfig, tokenizer: AnyTokenizer | None = None):
        self.config = config
        name = config.tokenizer or (str(resolve_checkpoint(config.init)) if tokenizer is None else "")
        self.tokenizer: AnyTokenizer = tokenizer or load_tokenizer(name)
        if self.tokenizer.vocab_size > config.model.vocab_size:
            raise ValueError(
                f"tokenizer {name!r} has {self.tokenizer.vocab_size} tokens, but model.vocab_size is "
                f"{config.model.vocab_size}: set model.vocab_size to at least the former"
            )
        tasks, processes = config.rollout.tasks, jax.process_count()
        if tasks % processes:
            raise ValueError(
                f"rollout.tasks is {tasks}, which {processes} processes cannot share: take a multiple of it"
            )
        self._act = make_actor(config.model, self.tokenizer, config.rollout)
        num_envs = tasks // processes * config.rollout.group_size
        self._envs = make_vector(config.env, num_envs, config.rollout.env_workers, **config.env_settings)

    def train(
        self, params: Any, first_task: int, key: jax.Array, each_round: Callable[[], None] = lambda: None
    ) -> Rollout:
        """``rollout.tasks`` new tasks, ``rollout.group_size`` rollouts of each.

        With ``rollout.dynamic_sampling_rounds`` (DAPO, arXiv 2503.14476) so many rounds of as many tasks at most: the
        batch holds the first ``rollout.tasks`` prompt groups whose rewards differ, or as many as there are. Metrics
        and outcomes are those of all that was rolled out, plus ``rounds``, ``groups_dropped`` (their rewards all
        equal), ``groups_surplus`` (beyond ``rollout.tasks``) and ``groups_kept_share``. The processes agree on what
        stays; the part of one left without a group is a step of a dropped one, set against itself.

        Args:
          params: of the sampler. first_task: the first number of those not yet played. key: typed PRNG key [].
          each_round: called before each round.

        Raises:
          ValueError: dynamic sampling in groups of one.
        """
        rollout = self.config.rollout
        if rollout.dynamic_sampling_rounds and rollout.group_size < 2:
            raise ValueError(
                "rollout.dynamic_sampling_rounds drops groups of equal rewards, which each group of one is: raise "
                "rollout.group_size, or set it to 0"
            )

        def play(number: int) -> Rollout:
            each_round()
            first = number * rollout.tasks
            tasks = range(first_task + first, first_task + first + rollout.tasks)
            return self.collect(self._act, params, tasks, key, first * rollout.group_size)

        if not rollout.dynamic_sampling_rounds:
            return play(0)
        rounds: list[Rollout] = []
        parts: list[Trajectories] = []
        informative = 0
        while len(rounds) < rollout.dynamic_sampling_rounds and informative < rollout.tasks:
            rounds.append(play(len(rounds)))
            part, found = self._informative(rounds[-1], rollout.tasks - informative)
            parts += part
            informative += found
        played, kept = len(rounds) * rollout.tasks, min(informative, rollout.tasks)
        metrics = _merge_rounds([done.metrics for done in rounds]) | {
            "rounds": len(rounds),
            "groups_dropped": played - informative,
            "groups_surplus": informative - kept,
            "groups_kept_share": kept / played,
        }
        batch = join(parts or [without_signal(rounds[-1].batch)])
        return Rollout(batch, metrics, [outcome for done in rounds for outcome in done.outcomes])

    def _informative(self, done: Rollout, room: int) -> tuple[list[Trajectories], int]:
        """This process's steps of a round's first ``room`` informative groups, if any; how many groups all found."""
        returns = [outcome.episode_return for outcome in done.outcomes]
        flags_PG = gather(informative_groups(returns, self.config.rollout.group_size))
        own = np.flatnonzero(first_of(flags_PG, room)[jax.process_index()])
        steps = np.flatnonzero(np.isin(done.batch.prompt_group, own))
        return [done.batch.take(steps)] if len(steps) else [], int(flags_PG.sum())

    def collect(self, act: Act, params: Any, tasks: Sequence[int], key: jax.Array, first_episode: int = 0) -> Rollout:
        """``rollout.group_size`` rollouts of each training task by any ``act``, numbered from ``first_episode``."""
        rollout, split = self.config.rollout, environment_class(self.config.env).splits[0]
        return self._collect(act, params, tasks, rollout.group_size, key, split, rollout.train_sampling, first_episode)

    @property
    def about(self) -> str:
        """Which tasks are played."""
        return environment_class(self.config.env).about(**self.config.env_settings)

    @functools.cached_property
    def panel(self) -> Panel:
        """The held-out tasks of the config."""
        config = self.config.evaluation
        return make_panel(self.config.env, config.split, config.tasks, config.panel_seed, **self.config.env_settings)

    def evaluate(
        self,
        params: Any,
        *,
        panel: Panel | None = None,
        seed: int | None = None,
        act: Act | None = None,
        group_size: int = 1,
    ) -> Rollout:
        """``group_size`` rollouts of each task; panel, seed of the draws and policy are the run's unless given."""
        panel = panel or self.panel
        key = jax.random.key(self.config.evaluation.seed if seed is None else seed)
        sampling = self.config.rollout.eval_sampling
        return self._collect(act or self._act, params, panel.tasks, group_size, key, panel.split, sampling)

    def evaluation_row(self, params: Any) -> dict[str, Any]:
        """``eval/*``: the metrics on the run's panel, its name, and of each of its tasks ``won`` and ``score``."""
        rollout = self.evaluate(params)
        per_task = {"won_by_task": [float(outcome.won) for outcome in rollout.outcomes]}
        if "score" in rollout.metrics:
            per_task["score_by_task"] = [outcome.score or 0.0 for outcome in rollout.outcomes]
        row = rollout.metrics | {name: self._of_all(values) for name, values in per_task.items()}
        return {f"eval/{k}": v for k, v in row.items()} | {"eval/panel": str(self.panel)}

    def _of_all(self, own_values: Sequence[float]) -> np.ndarray:
        """f64 [tasks of the panel], where each process knows those of its own tasks."""
        values, own = np.zeros(len(self.panel.tasks)), own_share(len(self.panel.tasks))
        values[own.start : own.stop] = own_values
        return gather(values).sum(0)

    def _collect(
        self,
        act: Act,
        params: Any,
        tasks: Sequence[int],
        group_size: int,
        key: jax.Array,
        split: str,
        sampling: Any,
        first_episode: int = 0,
    ) -> Rollout:
        if len(tasks) < jax.process_count():
            raise ValueError(
                f"{jax.process_count()} processes cannot share {len(tasks)} tasks: each needs one at least"
            )
        own, env = own_share(len(tasks)), environment_class(self.config.env)
        rollout = collect(
            act,
            params,
            self._envs,
            tasks[own.start : own.stop],
            group_size,
            self.config.rollout,
            key,
            split=split,
            sampling=sampling,
            format_prompt=env.format_prompt,
            tokenizer=self.tokenizer,
            first_episode=first_episode + own.start * group_size,
            task_types=env.task_types,
        )
        parts = gather(list(rollout.metrics.values()))
        metrics = merge_metrics([dict(zip(rollout.metrics, part, strict=True)) for part in parts])
        absent = [name for name in metrics if name.startswith("success/") and np.isnan(metrics[name])]
        return rollout._replace(metrics={name: value for name, value in metrics.items() if name not in absent})


def _merge_rounds(parts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of rounds that ran one after the other; a type of task that none of a round had is missing there."""
    names = dict.fromkeys(name for part in parts for name in part)
    merged = merge_metrics([{name: part.get(name, np.nan) for name in names} for part in parts])
    seconds = sum(part["seconds"] for part in parts)
    return merged | {"seconds": seconds, "tokens_per_second": merged["tokens"] / seconds}


def _without_cut(batch: StepBatch, cut: np.ndarray, process: int) -> StepBatch:
    """This process's packed rows with the steps whose reply was cut, bool [n], left out of the loss."""
    size = len(batch.steps.valid)
    cut = np.pad(cut, (0, size - len(cut)))
    mask = np.asarray(batch.loss_mask) & ~cut[np.maximum(np.asarray(batch.step_index) - process * size, 0)]
    logprob = np.where(mask, batch.behavior_logprob, np.float32(0))
    return dataclasses.replace(batch, loss_mask=mask, behavior_logprob=logprob, old_logprob=logprob)


class Learner:
    """State and update of a run on its mesh; ``learn`` takes a recorded batch and returns metrics."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.mesh = mesh_for(config)
        check_mesh(self.mesh)
        self.optimizer: optax.GradientTransformation = make_optimizer(config.optimizer)
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
        if not model.lora_rank:
            return params
        places = None if shardings is None else adapters.split(shardings)[0]
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

    def pack(self, batch: Trajectories, seed: tuple[int, int]) -> StepBatch:
        """The recorded batch as token rows, with the log-probabilities that the loss compares with.

        In several processes each passes its own part, and gets arrays of all of them together.
        """
        steps, processes, own = gather(batch.num_steps), jax.process_count(), jax.process_index()
        packed = pack_steps(
            batch.prompt_tokens,
            batch.response_tokens,
            batch.behavior_logprob,
            signals_of(self.config, batch),
            config=self.config.learner,
            seed=seed,
            row_multiple=batch_multiple(self.mesh) // processes,
            share=Share(own, int(steps[:own].sum()), int(steps.sum()), agree_max),
        )
        if self.config.loss.mask_cut and batch.response_cut is not None:
            packed = _without_cut(packed, batch.response_cut, own)
        if self.mesh is not None:
            packed = jax.make_array_from_process_local_data(batch_shardings(packed, self.mesh), packed)
        reference = self.reference
        if reference is not None:
            packed = with_logprobs(packed, ref=self._logprobs(reference, packed))
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
            process, i = divmod(int(metrics["nonfinite_step"]), packed.steps.valid.shape[0] // jax.process_count())
            where = f"step {i} of process {process}"
            if process == jax.process_index():
                where = f"step {i} (trajectory {batch.trajectory[i]}, step {batch.step[i]})"
            raise FloatingPointError(
                f"iteration {iteration}: {where} gave a value that is not finite; its optimizer step was not taken. "
                "Lower optimizer.learning_rate, or look at the batch: --dump-rollouts writes it"
            )
        return metrics

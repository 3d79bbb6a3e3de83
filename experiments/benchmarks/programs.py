"""A run's programs on abstract arrays: lowered for a mesh of any devices, also absent ones, with nothing allocated."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.benchmarks import slices
from experiments.configs import RunConfig
from hgpo_jax.config import MeshConfig
from hgpo_jax.estimators import make_estimator
from hgpo_jax.learner.update import init_state, make_logprobs, make_optimizer, make_update
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.sampling import Settings, in_compute_dtype, make_sampler
from hgpo_jax.policy.transformer import Transformer, abstract_params
from hgpo_jax.sharding import (
    BATCH_AXES,
    Layout,
    batch_shardings,
    make_mesh,
    param_shardings,
    state_shardings,
)
from hgpo_jax.types import StepBatch, StepSignals, TrainState

ProgramName = Literal["update", "logprobs", "prefill", "decode", "estimator"]
SAMPLING = ("prefill", "decode")  # what a process runs on its own devices

_Shape: Any = jax.ShapeDtypeStruct


class Program(NamedTuple):
    """What ``jax.jit`` made, and what to lower it on."""

    lower: Callable[..., jax.stages.Lowered]
    arguments: tuple[Any, ...]  # abstract, each array with its place on the mesh


def prepare(program: ProgramName, config: RunConfig, mesh: Mesh, rows: int) -> Program:
    """One of a run's programs at the run's largest shapes: each step fills a row.

    Args:
      program: "update", a whole iteration's; "logprobs", of the old or the reference policy; "prefill" and "decode"
        of the rollout; "estimator", the advantages alone.
      config: of the run.
      mesh: from ``make_mesh``.
      rows: of a part of a mini-batch, or that are sampled together; the estimator doesn't read it.
    """
    if program == "estimator":
        signals = _signals(config, num_steps(config))
        return Program(jax.jit(make_estimator(config.estimator_config)).lower, (_along(mesh, signals),))
    if program in SAMPLING:
        return _sampling(program, config, mesh, rows)
    state = abstract_state(config, mesh)
    batch = abstract_batch(config, mesh, rows)
    logprob_fn = functools.partial(response_logprobs, Transformer(config.model, Layout(mesh)))
    if program == "logprobs":
        logprobs: Any = make_logprobs(logprob_fn, mesh=mesh)
        return Program(logprobs.lower, (state.params, batch))
    update: Any = make_update(
        logprob_fn,
        make_estimator(config.estimator_config),
        make_optimizer(config.optimizer),
        config.loss,
        mesh=mesh,
        shardings=jax.tree.map(lambda x: x.sharding, state),
    )
    return Program(update.lower, (state, batch))


def abstract_state(config: RunConfig, mesh: Mesh) -> TrainState:
    """The run's state, each array with its place on the mesh."""
    optimizer = make_optimizer(config.optimizer)
    shapes = jax.eval_shape(lambda: init_state(config.model, optimizer, jax.random.key(0)))
    return _placed(shapes, state_shardings(abstract_params(config.model), optimizer, mesh))


def reference_params(config: RunConfig, mesh: Mesh) -> Any:
    """What is kept of the frozen reference: a copy in the dtype of the computation; beside adapters, nothing."""
    if not config.loss.kl_coef or config.model.lora_rank:
        return ()
    abstract = abstract_params(config.model)
    return _placed(_cast(config, abstract), param_shardings(abstract, mesh))


def sampling_mesh(config: RunConfig, mesh: Mesh) -> Mesh:
    """The devices of one process: each samples its own episodes from weights of its own."""
    own = slices.one_host(list(mesh.devices.flat))
    return make_mesh(MeshConfig(data=-1, tensor=config.rollout.tensor), own)


def sampling_params(config: RunConfig, mesh: Mesh) -> Any:
    """What is sampled from: on several devices a copy in the dtype of the computation, otherwise the state's own."""
    if mesh.size == 1:
        return abstract_state(config, mesh).params
    abstract = abstract_params(config.model)
    return _placed(_cast(config, abstract), param_shardings(abstract, sampling_mesh(config, mesh)))


def abstract_batch(config: RunConfig, mesh: Mesh, rows: int) -> StepBatch:
    """An iteration's batch when every step fills a row, in parts of ``rows`` rows."""
    steps = config.learner.minibatch_steps
    minibatches = 1 << (math.ceil(num_steps(config) / steps) - 1).bit_length()  # as pack_steps rounds them up
    leading = minibatches, math.ceil(steps / rows), rows
    length = row_length(config)
    long, flag, real = (_Shape((*leading, length), dtype) for dtype in (jnp.int32, jnp.bool_, jnp.float32))
    batch = StepBatch(
        tokens=long,
        positions=long,
        segment_ids=long,
        loss_mask=flag,
        step_index=long,
        response_index=_Shape((*leading, config.rollout.max_response_length), jnp.int32),
        behavior_logprob=real,
        old_logprob=real,
        ref_logprob=real,
        steps=_signals(config, minibatches * steps),
    )
    return _placed(batch, batch_shardings(batch, mesh))


def num_steps(config: RunConfig) -> int:
    """N: environment steps of an iteration, when every episode is as long as it may be."""
    return config.rollout.tasks * config.rollout.group_size * config.rollout.max_steps


def row_length(config: RunConfig) -> int:
    """T: the longest prompt and response."""
    return config.rollout.max_prompt_length + config.rollout.max_response_length


def bytes_per_device(tree: Any) -> int:
    """What one device holds of abstract arrays with shardings."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _sampling(program: ProgramName, config: RunConfig, mesh: Mesh, rows: int) -> Program:
    """Reading ``rows`` different prompts, or drawing replies to them."""
    sampler = make_sampler(config.model, eos_ids=(0,), pad_id=0)
    layout = Layout(sampling_mesh(config, mesh))
    static: Any = {"capacity": config.rollout.max_response_length, "layout": layout}

    def place(x: Any, axes: tuple[str | None, ...] = ("batch",)) -> Any:
        axes = (*axes, *[None] * (x.ndim - len(axes)))[: x.ndim]
        return _Shape(x.shape, x.dtype, sharding=layout.sharding(x.shape, axes))

    tokens = place(_Shape((rows, config.rollout.max_prompt_length), jnp.int32))
    read = sampling_params(config, mesh), tokens, place(_Shape((rows,), jnp.int32))
    if program == "prefill":
        return Program(functools.partial(sampler.read.lower, **static), read)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    settings = jax.tree.map(place, Settings(*(_Shape((), t) for t in (jnp.float32, jnp.float32, jnp.int32, jnp.int32))))
    prompts = jax.eval_shape(functools.partial(sampler.read, **static), *read)
    replies = jax.eval_shape(functools.partial(sampler.start, **static), prompts, None, keys, settings)
    heads = {name: place(getattr(replies.cache, name), (None, "batch", "kv_heads")) for name in ("key", "value")}
    replies = jax.tree.map(place, replies)
    replies = replies._replace(cache=replies.cache._replace(**heads))
    lower = functools.partial(sampler.decode.lower, layout=layout)
    return Program(lower, (read[0], replies, settings, place(_Shape((), jnp.int32))))


def _cast(config: RunConfig, abstract: Any) -> Any:
    return jax.eval_shape(functools.partial(in_compute_dtype, config=config.model), nn.unbox(abstract))


def _signals(config: RunConfig, steps: int) -> StepSignals:
    grouping = config.grouping
    levels = grouping.context_length + 1 + (grouping.root == "prompt")
    real, number = _Shape((steps,), jnp.float32), _Shape((steps,), jnp.int32)
    signals: Any = StepSignals(
        real, real, number, number, _Shape((steps,), jnp.bool_), _Shape((levels, steps), jnp.int32)
    )
    return signals


def _along(mesh: Mesh, signals: StepSignals) -> StepSignals:
    """The N steps divided over the mesh's batch axes."""

    def place(x: Any) -> Any:
        spec = PartitionSpec(*[None] * (len(x.shape) - 1), BATCH_AXES)
        return _Shape(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(place, signals)


def _placed(shapes: Any, shardings: Any) -> Any:
    """Shapes with their places: a tree of shardings, or one for all."""
    if isinstance(shardings, NamedSharding):
        shardings = jax.tree.map(lambda _: shardings, shapes)
    return jax.tree.map(lambda x, place: _Shape(x.shape, x.dtype, sharding=place), shapes, shardings)

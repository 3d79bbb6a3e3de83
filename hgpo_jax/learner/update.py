"""One iteration's update as one jit: advantages, then an optimizer step per mini-batch, on any mesh."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hgpo_jax import adapters
from hgpo_jax.config import LossConfig, ModelConfig, OptimizerConfig
from hgpo_jax.learner.losses import policy_loss, token_weights, value_loss
from hgpo_jax.policy import transformer
from hgpo_jax.sharding import BATCH_AXES, state_shardings
from hgpo_jax.types import Metrics, StepBatch, StepSignals, TrainState

LogprobFn = Callable[[Any, jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]
"""(params, tokens, positions, segment_ids [B, T], response_index [B, C]) -> (logprob, entropy) [B, T], or with V.

They align with the token that is predicted and are needed at the indexed ones only; V, a critic's value of what
precedes a response, at its first token."""

Estimator = Callable[[StepSignals], tuple[jax.Array, dict[str, jax.Array]]]
"""signals -> (advantages [N], diagnostics)."""

Block = dict[str, Any]
"""The token arrays of a ``StepBatch``: all of them, or a mini-batch's or a part's."""

_TOKEN_ARRAYS = tuple(field.name for field in dataclasses.fields(StepBatch) if field.name != "steps")
_NO_STEP = jnp.iinfo(jnp.int32).max
_NOT_DECAYED = ("bias", "scale", "norm")


def make_optimizer(config: OptimizerConfig, *, value_head: bool = False) -> optax.GradientTransformation:
    """AdamW (arXiv 1711.05101) or SGD behind a clip of the gradient's global norm.

    The rate is ``learning_rate * min(1, (steps taken + 1) / warmup_steps)``, and with ``decay_steps`` it then falls
    linearly, to a tenth after that many steps, where it stays. Weight decay leaves biases and
    norm scales alone, as is usual; torch's AdamW in the released code decays them too, by lr * 0.01 = 1e-8 a
    step. A value head takes its steps at ``value_learning_rate``, and its gradient is clipped on its own, so that the
    policy's are of the same length whatever the critic's error.

    Raises:
      ValueError: a name other than "adamw" or "sgd".
    """
    if value_head:
        of_value = dataclasses.replace(config, learning_rate=config.value_learning_rate)
        return optax.multi_transform({"policy": make_optimizer(config), "value": make_optimizer(of_value)}, _owners)
    full, length = config.learning_rate, max(config.warmup_steps - 1, 0)
    rise = optax.linear_schedule(full / max(config.warmup_steps, 1), full, length)
    fall = optax.linear_schedule(full, full / 10, config.decay_steps)  # of no length: constant
    rate = optax.join_schedules([rise, fall], [length])
    if config.name == "adamw":
        rule = optax.adamw(rate, config.b1, config.b2, weight_decay=config.weight_decay, mask=_decayed)
    elif config.name == "sgd":
        rule = optax.sgd(rate)
    else:
        raise ValueError(f'OptimizerConfig.name is {config.name!r}, but has to be "adamw" or "sgd"')
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), rule)


def init_state(
    config: ModelConfig,
    optimizer: optax.GradientTransformation,
    key: jax.Array,
    mesh: Mesh | None = None,
    params: Any = None,
) -> TrainState:
    """A state to start from, each array made where it lives.

    Args:
      config: of the model.
      optimizer: from ``make_optimizer``.
      key: typed PRNG key []; one half draws the parameters, the other goes on in the state.
      mesh: None for a single device.
      params: loaded weights, where they belong on the mesh. The state takes them over: who needs them besides, as a
        reference, copies them. None draws some.

    The optimizer's state is float32 whatever the parameters are. Where the parameters hold low-rank adapters it is
    that of the adapters alone.
    """
    param_key, state_key = jax.random.split(key)

    def beside(params: Any) -> TrainState:
        opt_state: Any = optimizer.init(in_float32(adapters.split(params)[0]))
        return TrainState(params=(), opt_state=opt_state, step=jnp.int32(0), key=state_key)

    draw = functools.partial(transformer.init_params, config, param_key)
    if mesh is None:
        params = draw() if params is None else params
        return jax.jit(beside)(params).replace(params=params)  # pyright: ignore[reportAttributeAccessIssue]
    places: Any = state_shardings(transformer.abstract_params(config), optimizer, mesh)
    params = jax.jit(draw, out_shardings=places.params)() if params is None else params
    return jax.jit(beside, out_shardings=places.replace(params=()))(params).replace(params=params)


def make_update(
    logprob_fn: LogprobFn,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    loss: LossConfig,
    *,
    mesh: Mesh | None = None,
    shardings: TrainState | None = None,
) -> Callable[[TrainState, StepBatch], tuple[TrainState, Metrics]]:
    """``update(state, batch) -> (state, metrics)``, one jit whose first argument is donated.

    Advantages come from the whole batch. Then every mini-batch takes one optimizer step, its gradient summed
    over its parts. No step is taken, parameters and optimizer untouched, by

    - an empty mini-batch (padding; its passes are not run either),
    - every mini-batch, when no step has an advantage or a return or advantage is not finite,
    - a mini-batch with a log-probability or gradient that is not finite.

    Metrics, means over the mini-batches that took a step (0 when none did):

    - ``loss``, ``policy_loss``, ``kl`` (absent when kl_coef is 0), ``kl_old``, ``entropy``,
      ``clip_fraction_low``, ``clip_fraction_high``, ``dual_clip_fraction``, ``ratio``, ``grad_norm`` (before
      the clip),
    - ``ratio_max`` and ``grad_norm_max``, the largest,
    - ``sampler_gap``, ``sampler_gap_max``: |logprob - behavior_logprob| on the first mini-batch, before any step:
      how far the learner's arithmetic is from the sampler's,

    and over the whole batch:

    - ``advantage_mean``, ``advantage_std``, ``signal_share`` (share of steps with an advantage other than 0),
    - ``optimizer_steps`` taken,
    - with a value head that the estimator has targets for, ``explained_variance``, 1 - Var(target - V) / Var(target) of
      the rollout's V; ``value_loss`` and ``value_clip_fraction`` (of the steps) stand above,
    - ``nonfinite_step``: the first environment step with a value that is not finite, -1 when there is none;
      the first of its mini-batch where the gradient alone overflows,
    - ``estimator/*``: the estimator's diagnostics, but for ``value_target``.

    Args:
      logprob_fn: the policy. estimator: the method. optimizer: from ``make_optimizer``.
      loss: clips, coefficients, aggregation.
      mesh: None for a single device; otherwise pass ``shardings`` too.
      shardings: of the state, from ``state_shardings``.

    Raises:
      ValueError: ``mesh`` without ``shardings`` or the reverse.
    """
    if (mesh is None) != (shardings is None):
        raise ValueError("make_update takes mesh and shardings together, or neither")
    gradient = _minibatch_gradient(logprob_fn, loss, None if shardings is None else adapters.split(shardings.params)[0])

    def update(state: TrainState, batch: StepBatch) -> tuple[TrainState, Metrics]:
        advantage_N, diagnostics = estimator(batch.steps)
        advantage_N, summary, bad_step = _inspect_advantages(advantage_N, batch.steps)
        target_N = diagnostics.pop("value_target", None)
        critic = None
        if target_N is not None:
            critic = CriticTargets(jnp.asarray(batch.steps.value), target_N)
            summary["explained_variance"] = _explained_variance(critic, jnp.asarray(batch.steps.valid))
        if mesh is not None:  # once, and not in every part that reads its own steps' entries
            whole = NamedSharding(mesh, PartitionSpec())
            advantage_N, critic = jax.lax.with_sharding_constraint((advantage_N, critic), whole)
        run = (summary["signal_share"] > 0) & (bad_step == _NO_STEP)

        trained, frozen = adapters.split(state.params)

        def step(trained: Any, opt_state: Any, block: Block) -> tuple[Any, Any, Metrics]:
            grads, metrics = gradient(trained, frozen, block, advantage_N, critic)

            def apply(trained: Any, opt_state: Any) -> tuple[Any, Any]:
                updates, opt_state = optimizer.update(grads, opt_state, in_float32(trained))
                return optax.apply_updates(trained, updates), opt_state

            # cond and not where: a select would keep both copies of parameters and moments alive.
            trained, opt_state = jax.lax.cond(metrics["taken"], apply, lambda *kept: kept, trained, opt_state)
            return trained, opt_state, metrics

        def minibatch(carry: tuple[Any, Any], block: Block) -> tuple[tuple[Any, Any], Metrics]:
            skipped = _metrics_of_nothing(jax.eval_shape(step, *carry, block)[2])
            trained, opt_state, metrics = jax.lax.cond(
                run & block["loss_mask"].any(), step, lambda p, o, _: (p, o, skipped), *carry, block
            )
            return (trained, opt_state), metrics

        blocks = token_arrays(batch)
        (trained, opt_state), stacked = jax.lax.scan(minibatch, (trained, state.opt_state), blocks)
        metrics = summary | _average(stacked, bad_step) | {f"estimator/{k}": v for k, v in diagnostics.items()}
        new_state = dataclasses.replace(
            state,
            params=adapters.join(trained, frozen),
            opt_state=opt_state,
            step=state.step + metrics["optimizer_steps"],
            key=jax.random.split(state.key)[0],
        )
        return new_state, metrics

    if mesh is None:
        return jax.jit(update, donate_argnums=0)
    # Pinned: left free, the compiler changed the layout of a norm's scale, and the next call compiled anew.
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(update, donate_argnums=0, out_shardings=(shardings, replicated))


def make_logprobs(logprob_fn: LogprobFn, *, mesh: Mesh | None = None) -> Callable[[Any, StepBatch], jax.Array]:
    """``logprobs(params, batch) -> f32 [M, A, B, T]``, 0 outside the loss mask: for old and reference policies.

    Blocks of the same size as in the update run one after the other; the empty ones are skipped.
    """

    def logprobs(params: Any, batch: StepBatch) -> jax.Array:
        def part(_: None, block: Block) -> tuple[None, jax.Array]:
            def compute() -> jax.Array:
                logprob_BT = predict(logprob_fn, params, block)[0]
                return jnp.where(block["loss_mask"], logprob_BT, 0.0)

            zeros_BT = jnp.zeros(block["tokens"].shape)
            return None, jax.lax.cond(block["loss_mask"].any(), compute, lambda: zeros_BT)

        def minibatch(_: None, block: Block) -> tuple[None, jax.Array]:
            return jax.lax.scan(part, None, block)

        return jax.lax.scan(minibatch, None, token_arrays(batch))[1]

    if mesh is None:
        return jax.jit(logprobs)
    return jax.jit(logprobs, out_shardings=NamedSharding(mesh, PartitionSpec(None, None, BATCH_AXES, None)))


def make_values(logprob_fn: LogprobFn, *, mesh: Mesh | None = None) -> Callable[[Any, StepBatch], jax.Array]:
    """``values(params, batch) -> f32 [N]``: the value head's V of each step's prompt, whole on every device."""

    def values(params: Any, batch: StepBatch) -> jax.Array:
        size = batch.steps.valid.shape[0]

        def part(total_N: jax.Array, block: Block) -> tuple[jax.Array, None]:
            def add() -> jax.Array:
                value_BT = predict(logprob_fn, params, block)[2]
                place_BT = jnp.where(block["step_index"] >= 0, block["step_index"], size)
                return total_N.at[place_BT].add(value_BT, mode="drop")  # 0 but at a response's first token

            return jax.lax.cond(block["loss_mask"].any(), add, lambda: total_N), None

        def minibatch(total_N: jax.Array, block: Block) -> tuple[jax.Array, None]:
            return jax.lax.scan(part, total_N, block)

        return jax.lax.scan(minibatch, jnp.zeros(size), token_arrays(batch))[0]

    return jax.jit(values) if mesh is None else jax.jit(values, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _owners(params: Any) -> Any:
    """Whose optimizer a parameter belongs to, "policy" or "value"."""

    def owner(path: tuple[Any, ...], _: Any) -> str:
        return "value" if path[0].key == adapters.VALUE_HEAD else "policy"

    return jax.tree_util.tree_map_with_path(owner, params)


def _decayed(params: Any) -> Any:
    def decayed(path: tuple[Any, ...], _: Any) -> bool:
        return not any(word in jax.tree_util.keystr(path).lower() for word in _NOT_DECAYED)

    return jax.tree_util.tree_map_with_path(decayed, params)


def token_arrays(batch: StepBatch) -> Block:
    """The arrays [M, A, B, ..] that an update scans over."""
    return {name: getattr(batch, name) for name in _TOKEN_ARRAYS}


def predict(logprob_fn: LogprobFn, params: Any, part: Block) -> tuple[jax.Array, ...]:
    """Log-probability and entropy f32 [B, T] of a part's response tokens; of a decoder with a value head also V."""
    inputs = (part[name] for name in ("tokens", "positions", "segment_ids", "response_index"))
    return logprob_fn(params, *inputs)


def _inspect_advantages(advantage_N: jax.Array, steps: StepSignals) -> tuple[jax.Array, Metrics, jax.Array]:
    """Advantages with 0 for padding; their statistics; the first step whose values are not finite, if any."""
    chex.assert_rank(advantage_N, 1)
    valid_N = jnp.asarray(steps.valid)
    chex.assert_equal_shape([advantage_N, valid_N])
    # A return that is not finite spoils the advantages of its whole group: name the step it came from.
    cause_N = valid_N & ~(jnp.isfinite(steps.step_return) & jnp.isfinite(steps.score))
    effect_N = valid_N & ~jnp.isfinite(advantage_N)
    index_N = jnp.arange(len(advantage_N), dtype=jnp.int32)
    bad_N = jnp.where(cause_N.any(), cause_N, effect_N)
    bad_step = jnp.where(bad_N, index_N, _NO_STEP).min()
    advantage_N = jnp.where(valid_N, advantage_N, 0.0)
    count = jnp.maximum(valid_N.sum(), 1)
    mean = advantage_N.sum() / count
    variance = jnp.where(valid_N, (advantage_N - mean) ** 2, 0.0).sum() / count
    summary = {
        "advantage_mean": mean,
        "advantage_std": jnp.sqrt(variance),
        "signal_share": (advantage_N != 0).sum() / count,
    }
    return advantage_N, summary, bad_step


class CriticTargets(NamedTuple):
    """What the value head is trained by, [N] each."""

    old_value: jax.Array  # of the rollout
    target: jax.Array


def _explained_variance(critic: CriticTargets, valid_N: jax.Array) -> jax.Array:
    """1 - Var(target - V) / Var(target), over the valid steps; 0 where the targets don't vary."""

    def variance(x_N: jax.Array) -> jax.Array:
        count = jnp.maximum(valid_N.sum(), 1)
        mean = jnp.where(valid_N, x_N, 0).sum() / count
        return jnp.where(valid_N, (x_N - mean) ** 2, 0).sum() / count

    spread = variance(critic.target)
    return jnp.where(spread > 0, 1 - variance(critic.target - critic.old_value) / jnp.where(spread > 0, spread, 1), 0)


def first_tokens(mask_BT: jax.Array) -> jax.Array:
    """The first token of each response: bool [.., B, T]. Between two responses of a row there is a prompt."""
    before_BT = jnp.pad(mask_BT[..., :-1], [(0, 0)] * (mask_BT.ndim - 1) + [(1, 0)])
    return mask_BT & ~before_BT


def in_float32(params: Any) -> Any:
    """What the optimizer sees of the parameters, so that its moments are not rounded as they may be."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), params)


def _minibatch_gradient(
    logprob_fn: LogprobFn, loss: LossConfig, param_sharding: Any
) -> Callable[[Any, Any, Block, jax.Array, CriticTargets | None], tuple[Any, Metrics]]:
    """(trained, frozen parameters, block of [A, B, T], advantages [N], critic's targets) -> gradient and metrics []."""

    def part_loss(
        trained: Any,
        frozen: Any,
        part: Block,
        advantage_N: jax.Array,
        num_tokens: jax.Array,
        critic: CriticTargets | None,
    ) -> tuple[jax.Array, Metrics]:
        mask_BT, step_BT = part["loss_mask"], part["step_index"]
        logprob_BT, entropy_BT, *value_BT = predict(logprob_fn, adapters.join(trained, frozen), part)
        # Index -1 would read the last step's advantage.
        advantage_BT = jnp.where(mask_BT, advantage_N[jnp.maximum(step_BT, 0)], 0.0)
        value, metrics = policy_loss(
            logprob_BT,
            entropy_BT,
            part["behavior_logprob"],
            part["old_logprob"],
            part["ref_logprob"],
            advantage_BT,
            mask_BT,
            part["segment_ids"],
            part["weight"],
            num_tokens,
            loss,
        )
        if critic is not None:
            if not value_BT:
                raise ValueError("the estimator gives value targets, but the policy has no ModelConfig.value_head")
            old_BT, target_BT = (x[jnp.maximum(step_BT, 0)] for x in critic)
            loss_BT = part["step_weight"] * value_loss(value_BT[0], old_BT, target_BT, loss.value_clip)
            moved_BT = jnp.abs(value_BT[0] - old_BT) > (jnp.inf if loss.value_clip is None else loss.value_clip)
            value += loss.value_coef * loss_BT.sum()
            clipped = (part["step_weight"] * moved_BT).sum()
            metrics |= jax.lax.stop_gradient({"value_loss": loss_BT.sum(), "value_clip_fraction": clipped})
        finite_BT = jnp.isfinite(logprob_BT + entropy_BT + part["old_logprob"] + part["ref_logprob"])
        return value, metrics | {"bad_step": jnp.where(mask_BT & ~finite_BT, step_BT, _NO_STEP).min()}

    def gradient(
        trained: Any, frozen: Any, block: Block, advantage_N: jax.Array, critic: CriticTargets | None
    ) -> tuple[Any, Metrics]:
        mask_ABT = block["loss_mask"]
        num_tokens = mask_ABT.sum().astype(jnp.float32)
        weighted = block | {"weight": token_weights(mask_ABT, block["segment_ids"], loss)}
        if critic is not None:
            first_ABT = first_tokens(mask_ABT).astype(jnp.float32)
            weighted["step_weight"] = first_ABT / jnp.maximum(first_ABT.sum(), 1)

        def part_gradient(part: Block) -> tuple[Any, Metrics]:
            grads, metrics = jax.grad(part_loss, has_aux=True)(trained, frozen, part, advantage_N, num_tokens, critic)
            grads = in_float32(grads)
            if param_sharding is not None:
                grads = jax.lax.with_sharding_constraint(grads, param_sharding)
            return grads, metrics

        def accumulate(total: Any, part: Block) -> tuple[Any, Metrics]:
            grads, metrics = part_gradient(part)
            return jax.tree.map(jnp.add, total, grads), metrics

        def accumulate_if_any(total: Any, part: Block) -> tuple[Any, Metrics]:
            nothing = _metrics_of_nothing(jax.eval_shape(accumulate, total, part)[1])
            return jax.lax.cond(part["loss_mask"].any(), accumulate, lambda total, _: (total, nothing), total, part)

        if len(mask_ABT) == 1:  # no sum, which would read and write every gradient once more
            grads, metrics = part_gradient(jax.tree.map(lambda x: x[0], weighted))
            parts = jax.tree.map(lambda x: x[None], metrics)
        else:
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), trained)
            grads, parts = jax.lax.scan(accumulate_if_any, zeros, weighted)
        bad_step = parts.pop("bad_step").min()
        metrics = {k: v.max() if k.endswith("_max") else v.sum() for k, v in parts.items()}
        metrics["grad_norm"] = metrics["grad_norm_max"] = optax.tree.norm(grads)
        taken = (bad_step == _NO_STEP) & jnp.isfinite(metrics["grad_norm"])
        first = jnp.where(mask_ABT, block["step_index"], _NO_STEP).min()
        bad_step = jnp.where(taken | (bad_step != _NO_STEP), bad_step, first)
        return grads, metrics | {"taken": taken, "bad_step": bad_step}

    return gradient


def _metrics_of_nothing(shapes: Any) -> Metrics:
    """What a part or a mini-batch that is left out adds to the metrics of these shapes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes) | {"bad_step": jnp.int32(_NO_STEP)}


def _average(stacked: Metrics, bad_step: jax.Array) -> Metrics:
    """Metrics [M] -> [], over the mini-batches that took a step."""
    taken_M = stacked.pop("taken")
    bad_step = jnp.minimum(stacked.pop("bad_step").min(), bad_step)
    kept = {k: jnp.where(taken_M, v, 0.0) for k, v in stacked.items()}  # a NaN times 0 would stay NaN
    gap_M, gap_max_M = kept.pop("logprob_gap"), kept.pop("logprob_gap_max")
    count = jnp.maximum(taken_M.sum(), 1)
    metrics = {k: v.max() if k.endswith("_max") else v.sum() / count for k, v in kept.items()}
    return metrics | {
        "sampler_gap": gap_M[0],
        "sampler_gap_max": gap_max_M[0],
        "optimizer_steps": taken_M.sum().astype(jnp.int32),
        "nonfinite_step": jnp.where(bad_step == _NO_STEP, -1, bad_step),
    }

"""A policy of a few hundred parameters and random steps for it, for the learner's tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import LearnerConfig
from hgpo_jax.learner.packing import pack_steps, with_logprobs
from hgpo_jax.types import StepBatch, StepSignals, TrainState

VOCAB, EMBED, MLP = 16, 8, 32
MAX_STEPS = 128
AXES = {
    "embedding": ("vocab", "embed"),
    "up": {"kernel": ("embed", "mlp"), "bias": ("mlp",)},
    "down": {"kernel": ("mlp", "embed")},
}


def init_params(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) * 0.5, jnp.float32)

    return {
        "embedding": normal(VOCAB, EMBED),
        "up": {"kernel": normal(EMBED, MLP), "bias": normal(MLP)},
        "down": {"kernel": normal(MLP, EMBED)},
    }


def abstract_params() -> Any:
    """Shapes, annotated with logical axes as flax annotates them."""
    return jax.tree.map(
        lambda x, names: nn.LogicallyPartitioned(jax.ShapeDtypeStruct(x.shape, x.dtype), names),
        init_params(),
        AXES,
    )


def logprobs(
    params: Any, tokens_BT: Any, positions_BT: Any, segment_ids_BT: Any, response_index_BC: Any = None
) -> tuple[jax.Array, jax.Array]:
    """Predicts every token from the previous one, and from the one before that in the same segment."""

    def back(distance: int) -> jax.Array:
        shifted = jnp.pad(tokens_BT, ((0, 0), (distance, 0)))[:, :-distance]
        return jnp.where((positions_BT >= distance)[..., None], params["embedding"][shifted], 0.0)

    h_BTD = back(1) + 0.5 * back(2)
    up_BTF = jnp.tanh(h_BTD @ params["up"]["kernel"] + params["up"]["bias"][None, None])
    logits_BTV = (h_BTD + up_BTF @ params["down"]["kernel"]) @ params["embedding"].T
    logp_BTV = jax.nn.log_softmax(logits_BTV)
    entropy_BT = -(jnp.exp(logp_BTV) * logp_BTV).sum(-1)
    return jnp.take_along_axis(logp_BTV, tokens_BT[..., None], -1)[..., 0], entropy_BT


def score_estimator(signals: StepSignals) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The score itself: an estimator needs no more than this."""
    return jnp.where(signals.valid, signals.score, 0.0), {}


def make_state(optimizer: Any, shardings: TrainState | None = None) -> TrainState:
    params = init_params()
    state = TrainState(params=params, opt_state=optimizer.init(params), step=jnp.int32(0), key=jax.random.key(3))
    return state if shardings is None else jax.device_put(state, shardings)


def make_signals(score: np.ndarray) -> StepSignals:
    n = len(score)
    return StepSignals(
        step_return=score.astype(np.float32),
        score=score.astype(np.float32),
        prompt_group=np.arange(n, dtype=np.int32) // 4,
        trajectory=np.arange(n, dtype=np.int32) // 2,
        valid=np.ones(n, bool),
        group_ids=np.tile(np.arange(n, dtype=np.int32) // 2, (2, 1)),
    )


def make_steps(n: int = 22, seed: int = 0, score: np.ndarray | None = None) -> dict[str, Any]:
    """Arguments of ``pack_steps``: n steps with log-probabilities near those of the toy policy."""
    return _steps_and_reference(n, seed, score)[0]


def make_batch(config: LearnerConfig, n: int = 22, seed: int = 0, row_multiple: int = 1, **kwargs: Any) -> StepBatch:
    steps, reference = _steps_and_reference(n, seed, **kwargs)
    batch = pack_steps(**steps, config=config, seed=seed, row_multiple=row_multiple)
    ref = np.zeros(batch.tokens.shape, np.float32)
    for i, values in enumerate(reference):
        ref[batch.loss_mask & (batch.step_index == i)] = values
    return with_logprobs(batch, ref=ref)


def recut(batch: StepBatch, parts: int) -> StepBatch:
    """The same rows in another number of parts."""
    cut = {
        field.name: x.reshape(len(x), parts, -1, x.shape[-1])
        for field in dataclasses.fields(batch)
        if field.name != "steps" and (x := getattr(batch, field.name)) is not None
    }
    return dataclasses.replace(batch, **cut)


def _steps_and_reference(n: int, seed: int, score: np.ndarray | None = None) -> tuple[dict[str, Any], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, VOCAB, rng.integers(1, 6)) for _ in range(n)]
    responses = [rng.integers(0, VOCAB, rng.integers(1, 7)) for _ in range(n)]
    tokens = np.zeros((MAX_STEPS, 12), np.int32)  # one shape for every n: compiled once
    for row, step in zip(tokens, zip(prompts, responses, strict=True), strict=False):
        row[: sum(map(len, step))] = np.concatenate(step)
    logprob, _ = jax.jit(logprobs)(init_params(), tokens, np.tile(np.arange(12), (MAX_STEPS, 1)), tokens)
    ends = [(len(prompt), len(prompt) + len(response)) for prompt, response in zip(prompts, responses, strict=True)]
    here = [row[start:end] for row, (start, end) in zip(np.asarray(logprob), ends, strict=False)]
    old = [x + rng.normal(size=x.shape).astype(np.float32) * 0.1 for x in here]
    ref = [x + rng.normal(size=x.shape).astype(np.float32) * 0.3 for x in here]
    score = rng.normal(size=n) if score is None else score
    signals = make_signals(score)
    steps = {"prompt_tokens": prompts, "response_tokens": responses, "behavior_logprob": old, "signals": signals}
    return steps, ref

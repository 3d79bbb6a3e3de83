"""What an update may hold at once, read off the compiled program: nothing runs."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from hgpo_jax.config import HGPOConfig, LossConfig, ModelConfig, OptimizerConfig
from hgpo_jax.estimators import make_estimator
from hgpo_jax.learner.update import init_state, make_logprobs, make_optimizer, make_update
from hgpo_jax.policy import logprobs
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.types import StepBatch, StepSignals

MODEL = ModelConfig(
    vocab_size=32768,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    attention="blockwise",
    remat="layer",
)
PARTS = 2
PARAMETERS = 4 * (MODEL.vocab_size * MODEL.hidden_size + 2 * 10_000)


def batch_of(rows: int, length: int, responses: int) -> StepBatch:
    """Shapes of a batch of one mini-batch in two parts."""

    def array(dtype: type, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    tokens, steps = (1, PARTS, rows, length), 16
    ints, floats = array(np.int32, *tokens), array(np.float32, *tokens)
    ids, values = array(np.int32, steps), array(np.float32, steps)
    signals = StepSignals(values, values, ids, ids, array(np.bool_, steps), array(np.int32, 3, steps))
    index = array(np.int32, *tokens[:-1], responses)
    return StepBatch(ints, ints, ints, array(np.bool_, *tokens), ints, index, floats, floats, floats, signals)


def temporary_bytes(kind: str, rows: int, length: int, responses: int) -> int:
    logprob_fn, optimizer = functools.partial(response_logprobs, MODEL), make_optimizer(OptimizerConfig())
    state = jax.eval_shape(lambda: init_state(MODEL, optimizer, jax.random.key(0)))
    batch = batch_of(rows, length, responses)
    if kind == "logprobs":
        lowered = jax.jit(make_logprobs(logprob_fn)).lower(state.params, batch)
    else:
        update = make_update(logprob_fn, make_estimator(HGPOConfig()), optimizer, LossConfig())
        lowered = jax.jit(update, donate_argnums=0).lower(state, batch)
    analysis: Any = lowered.compile().memory_analysis()
    return analysis.temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["update", "logprobs"])
def test_the_logits_of_all_tokens_never_exist(kind):
    """4 rows of 2,048 tokens: with their logits, 1 GiB, an update that kept them would hold several times as much."""
    held = temporary_bytes(kind, 4, 2048, 1024)
    chunk = 4 * logprobs._LOGITS
    # The gradient of a chunk needs its logits a few times; then the gradients of a part and of the sum.
    bound = {"update": 4 * chunk + 5 * PARAMETERS, "logprobs": chunk + PARAMETERS}[kind]
    assert held < bound < 4 * 4 * 2048 * MODEL.vocab_size


@pytest.mark.slow
def test_memory_is_linear_in_the_row():
    """Scores of 4,096 x 4,096 in four heads would take 256 MiB a row; twice the row takes about twice the memory."""
    short, long = (temporary_bytes("update", 2, length, 64) for length in (2048, 4096))
    fixed = 4 * PARAMETERS
    assert long < 1.5 * short
    assert long - fixed < 4 * MODEL.num_heads * 4096**2

import functools

import chex
import jax
import numpy as np
import pytest
from reference_decoder import TINY, B, T, random_params, reference_logits, rows

from hgpo_jax.policy import logprobs
from hgpo_jax.policy.logprobs import response_logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.4, 0.0])
def test_response_logprobs_align_with_the_predicted_token(temperature):
    params, (tokens, positions, segment_ids) = random_params(TINY), rows()
    score = jax.jit(functools.partial(response_logprobs, TINY))
    logprob, entropy = score(params, tokens, positions, segment_ids, temperature=temperature)
    chex.assert_shape([logprob, entropy], (B, T))
    logits = reference_logits(TINY, params, tokens, positions, segment_ids) / (temperature or 1.0)
    full = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for b in range(B):
        for t in range(T):
            first = t == 0 or segment_ids[b, t] != segment_ids[b, t - 1]
            if first or segment_ids[b, t] == 0:
                assert logprob[b, t] == entropy[b, t] == 0
            else:
                before = full[b, t - 1]
                np.testing.assert_allclose(logprob[b, t], before[tokens[b, t]], rtol=2e-5, atol=2e-5)
                np.testing.assert_allclose(entropy[b, t], -(np.exp(before) * before).sum(), rtol=2e-4, atol=2e-5)


def test_only_the_named_tokens_are_predicted():
    params, (tokens, positions, segment_ids) = random_params(TINY), rows()
    index = np.full((B, 4), -1, np.int32)
    index[0, :3], index[1, :2] = [1, 2, 5], [0, T - 1]
    score = jax.jit(functools.partial(response_logprobs, TINY))
    every, some = score(params, tokens, positions, segment_ids), score(params, tokens, positions, segment_ids, index)
    named = np.zeros((B, T), bool)
    for b in range(B):
        named[b, index[b][index[b] >= 0]] = True
    for whole, part in zip(every, some, strict=True):
        np.testing.assert_allclose(part, np.where(named, whole, 0), rtol=1e-5, atol=1e-6)
    logits = jax.make_jaxpr(score)(params, tokens, positions, segment_ids, index).pretty_print()
    assert f"{B},{T},{TINY.vocab_size}]" not in logits
    assert f"{B},4,{TINY.vocab_size}]" in logits


def test_logits_in_chunks_change_nothing(monkeypatch):
    params, inputs = random_params(TINY), rows()

    def value_and_gradient():
        loss = jax.value_and_grad(lambda p: sum(x.sum() for x in response_logprobs(TINY, p, *inputs)))
        return jax.jit(loss)(params)

    whole = value_and_gradient()
    monkeypatch.setattr(logprobs, "_LOGITS", 3 * B * TINY.vocab_size)  # three chunks of three tokens
    chex.assert_trees_all_close(value_and_gradient(), whole, rtol=1e-4, atol=1e-5)

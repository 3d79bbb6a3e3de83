import dataclasses
import functools
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from reference_decoder import TINY, random_params, reference_logits

from hgpo_jax.policy.sampling import draw, make_sampler, pad_prompts, truncate
from hgpo_jax.policy.transformer import abstract_params, response_logprobs

PAD, NEVER, P, R = 0, 12, 6, 5  # token 12 is never drawn, see params
PROMPTS = [[3, 4, 5, 6, 7, 8], [9, 2], [1, 1, 5]]


@functools.cache
def params():
    """Hidden entry 0 is 1 throughout, and lowers the logit of NEVER against all others by about 30."""
    tree = random_params(TINY)
    tree["embed"] = tree["embed"].at[:, 0].set(1.0).at[NEVER, 0].set(-1.0)
    for part, name in (("attention", "o"), ("mlp", "down")):
        kernel = tree["layers"][part][name]["kernel"]
        tree["layers"][part][name]["kernel"] = kernel.at[..., 0].set(0.0)
    tree["final_norm"]["scale"] = tree["final_norm"]["scale"].at[0].set(50.0)
    return tree


@functools.cache
def sampler(*eos_ids):
    return make_sampler(TINY, eos_ids, PAD)


def reply(prompts, keys=None, eos=(NEVER,), temperature=1.0, top_p=1.0, top_k=0, new=R, length=P, capacity=R):
    tokens, lengths = pad_prompts(prompts, PAD, length)
    keys = jax.random.split(jax.random.key(7), len(prompts)) if keys is None else keys
    return sampler(*eos)(params(), tokens, lengths, keys, temperature, top_p, top_k, new, capacity=capacity)


def test_prompts_are_padded_on_the_left():
    tokens, lengths = pad_prompts([[5, 6], np.array([7]), []], pad_id=9, length=3)
    np.testing.assert_array_equal(tokens, [[9, 5, 6], [9, 9, 7], [9, 9, 9]])
    np.testing.assert_array_equal(lengths, [2, 1, 0])
    assert tokens.dtype == lengths.dtype == np.int32
    with pytest.raises(ValueError, match="prompt 1 has 4 tokens, above the padded length 3"):
        pad_prompts([[1], [1, 2, 3, 4]], pad_id=0, length=3)


def test_what_sample_returns():
    out = reply(PROMPTS)
    chex.assert_shape([out.tokens, out.logprobs], (3, R))
    chex.assert_shape([out.lengths, out.finished], (3,))
    chex.assert_type([out.tokens, out.lengths, out.turns], jnp.int32)
    chex.assert_type(out.logprobs, jnp.float32)
    chex.assert_type(out.finished, bool)
    chex.assert_tree_all_finite(out)
    assert (out.logprobs < 0).all()


def greedy_by_hand(prompt, count):
    """Greedy tokens from the slow decoder, which reads everything anew for each."""
    read = list(prompt)
    for _ in range(count):
        tokens = np.array([read])
        positions = np.arange(len(read))[None]
        read.append(int(reference_logits(TINY, params(), tokens, positions, tokens * 0 + 1)[0, -1].argmax()))
    return read[len(prompt) :]


def test_greedy_is_the_slow_decoder_with_argmax():
    out = reply(PROMPTS, temperature=0.0)
    np.testing.assert_array_equal(out.tokens, [greedy_by_hand(prompt, R) for prompt in PROMPTS])
    assert out.turns == R
    assert not out.finished.any()


@pytest.mark.parametrize("eos_at", [(0,), (2,), (3, 1)])
def test_a_reply_ends_with_the_first_of_its_end_tokens(eos_at):
    greedy = greedy_by_hand(PROMPTS[0], R)
    eos = tuple(greedy[i] for i in eos_at)
    end = min(greedy.index(token) for token in eos) + 1
    out = reply([PROMPTS[0], []], eos=eos, temperature=0.0)
    np.testing.assert_array_equal(out.tokens[0], greedy[:end] + [PAD] * (R - end))
    np.testing.assert_array_equal(out.lengths, [end, 0])
    assert (out.logprobs[0, :end] < 0).all()
    assert not out.logprobs[0, end:].any()
    assert out.finished.all()
    assert out.turns == end  # the loop stopped there, and the padding row did not keep it alive


def test_a_batch_of_padding_rows_ends_at_once():
    out = reply([[], []])
    np.testing.assert_array_equal(out.tokens, np.full((2, R), PAD))
    np.testing.assert_array_equal(out.lengths, [0, 0])
    assert out.finished.all()
    assert not out.logprobs.any()
    assert out.turns == 1


def test_the_limit_cuts_and_says_unfinished():
    full, cut = reply(PROMPTS), reply(PROMPTS, new=3)
    np.testing.assert_array_equal(cut.tokens, np.pad(full.tokens[:, :3], ((0, 0), (0, 2))))
    np.testing.assert_array_equal(cut.lengths, [3, 3, 3])
    assert not cut.finished.any()
    assert cut.turns == 3


def test_a_reply_does_not_depend_on_its_batch():
    """Other rows, their order, the padded length and the capacity change nothing; another key does."""
    keys = jax.random.split(jax.random.key(3), 3)
    together = reply(PROMPTS, keys)
    order = np.array([2, 0, 1])
    moved = reply([PROMPTS[i] for i in order], keys[order], length=9, capacity=8)
    np.testing.assert_array_equal(moved.tokens[:, :R], together.tokens[order])
    for i, prompt in enumerate(PROMPTS):
        alone = reply([prompt], keys[i : i + 1])
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[i])
        np.testing.assert_allclose(alone.logprobs[0], together.logprobs[i], atol=1e-5)
    assert (reply(PROMPTS, keys).tokens == together.tokens).all()
    assert (reply(PROMPTS, jax.random.split(jax.random.key(4), 3)).tokens != together.tokens).any()


@pytest.mark.parametrize(("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 0.8, 4), (0.0, 1.0, 0)])
def test_logprobs_are_those_that_the_learner_computes(temperature, top_p, top_k):
    """Prompt and reply laid out as training rows; the truncation does not enter."""
    out = reply(PROMPTS, temperature=temperature, top_p=top_p, top_k=top_k)
    tokens, positions, segment_ids = (np.zeros((3, P + R), np.int32) for _ in range(3))
    for i, prompt in enumerate(PROMPTS):
        size = len(prompt) + R
        tokens[i, :size] = [*prompt, *np.asarray(out.tokens[i])]
        positions[i, :size], segment_ids[i, :size] = range(size), 1
    score = jax.jit(functools.partial(response_logprobs, TINY))
    logprobs, _ = score(params(), tokens, positions, segment_ids, temperature)
    for i, prompt in enumerate(PROMPTS):
        np.testing.assert_allclose(out.logprobs[i], logprobs[i, len(prompt) : len(prompt) + R], atol=1e-5)


def test_no_setting_compiles_anew():
    sample: Any = make_sampler(TINY, [NEVER], PAD)
    tokens, lengths = pad_prompts(PROMPTS, PAD, P)
    settings = [(1.0, 1.0, 0, R), (0, 1, 0, 1), (0.4, 0.9, 5, 3), (np.float32(2), 0.5, np.int64(2), 4)]
    for i, setting in enumerate(settings):
        sample(params(), tokens, lengths, jax.random.split(jax.random.key(i), 3), *setting, capacity=R)
    assert sample.__wrapped__._cache_size() == 1


def test_no_logits_of_the_whole_prompt():
    """Nowhere in the program is there an array of B * P * V entries or more."""
    config = dataclasses.replace(TINY, vocab_size=50_000)
    sample = make_sampler(config, [1], PAD)
    arrays = jax.ShapeDtypeStruct((4, 64), jnp.int32), jax.ShapeDtypeStruct((4,), jnp.int32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
    trace = functools.partial(sample, capacity=R)
    jaxpr = jax.make_jaxpr(trace)(nn.unbox(abstract_params(config)), *arrays, keys, 1.0, 1.0, 0, R)

    def largest(jaxpr):
        inner = [largest(j) for e in jaxpr.eqns for j in jax.extend.core.jaxprs_in_params(e.params)]
        return max(inner + [v.aval.size for e in jaxpr.eqns for v in e.outvars], default=0)

    assert largest(jaxpr.jaxpr) < 4 * 64 * config.vocab_size


@pytest.mark.slow
def test_sharded_parameters_draw_the_same():
    """Key/value heads and the MLP over two devices, rows over four."""
    tokens, lengths = pad_prompts([*PROMPTS, [4]], PAD, P)
    keys = jax.random.split(jax.random.key(0), 4)
    want = sampler(NEVER)(params(), tokens, lengths, keys, 1.0, 1.0, 0, R, capacity=R)
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "tensor"))
    table = {"heads": "tensor", "kv_heads": "tensor", "mlp": "tensor"}

    def place(box, leaf):
        names = PartitionSpec(*(table.get(name) for name in box.names))
        return jax.device_put(leaf, NamedSharding(mesh, names))

    sharded = jax.tree.map(place, abstract_params(TINY), params(), is_leaf=lambda x: hasattr(x, "names"))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    tokens, lengths, keys = jax.device_put((tokens, lengths, keys), rows)
    got = sampler(NEVER)(sharded, tokens, lengths, keys, 1.0, 1.0, 0, R, capacity=R)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-5)


LOGITS = np.log([[0.5, 0.2, 0.15, 0.1, 0.05]]).astype(np.float32)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [
        (1.0, 0, 5),
        (1.0, 2, 2),
        (1.0, 99, 5),
        (0.5, 0, 1),
        (0.51, 0, 2),
        (0.8, 0, 3),
        (0.0, 0, 1),
        (0.75, 3, 2),  # of what top-k leaves: 0.5 / 0.85 and 0.2 / 0.85
    ],
)
def test_truncation_by_hand(top_p, top_k, kept):
    """The vocabulary in another order, so that the places have to come back right."""
    order = np.array([3, 0, 4, 2, 1])
    got = np.asarray(truncate(jnp.array(LOGITS[:, order]), top_p, top_k))
    want = np.where(order < kept, LOGITS[0, order], -np.inf)
    np.testing.assert_array_equal(got, want[None])


def draws(count, **settings):
    keys = jax.random.split(jax.random.key(11), count)
    setting = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, **settings}
    return jax.jit(draw)(keys, jnp.tile(LOGITS, (count, 1)), **setting)


@pytest.mark.parametrize("temperature", [1.0, 0.4, 3.0])
def test_draws_follow_the_tempered_distribution(temperature):
    """The chi-square statistic of 20,000 draws, 4 degrees of freedom: above 18.5 once in a thousand seeds."""
    tokens, logprobs = draws(20_000, temperature=temperature)
    chex.assert_shape([tokens, logprobs], (20_000,))
    weight = np.exp(LOGITS[0] / temperature)
    probability = weight / weight.sum()
    counts = np.bincount(tokens, minlength=5)
    assert ((counts - 20_000 * probability) ** 2 / (20_000 * probability)).sum() < 18.5
    np.testing.assert_allclose(logprobs, np.log(probability)[tokens], atol=1e-5)


def test_truncated_draws_renormalise_but_report_the_whole_distribution():
    tokens, logprobs = draws(20_000, top_p=0.8, temperature=1.0)
    counts = np.bincount(tokens, minlength=5)
    expected = 20_000 * np.array([0.5, 0.2, 0.15]) / 0.85
    assert not counts[3:].any()
    assert ((counts[:3] - expected) ** 2 / expected).sum() < 13.8  # 2 degrees of freedom
    np.testing.assert_allclose(logprobs, LOGITS[0][tokens], atol=1e-5)


def test_greedy_ignores_truncation_and_reports_temperature_one():
    tokens, logprobs = draws(3, temperature=0.0, top_p=0.1, top_k=3)
    np.testing.assert_array_equal(tokens, [0, 0, 0])
    np.testing.assert_allclose(logprobs, np.log(0.5), atol=1e-6)


@pytest.mark.parametrize(
    ("eos_ids", "pad_id", "message"),
    [([], 0, "eos_ids is empty"), ([13], 0, "eos_ids has 13"), ([1], -1, "pad_id has -1")],
)
def test_bad_token_ids(eos_ids, pad_id, message):
    with pytest.raises(ValueError, match=message):
        make_sampler(TINY, eos_ids, pad_id)
    with pytest.raises(ValueError, match="multiple of num_kv_heads"):
        make_sampler(dataclasses.replace(TINY, num_kv_heads=3), [1], 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"new": R + 1}, "max_new_tokens is 6; expected 1 to capacity = 5"),
        ({"new": 0}, "max_new_tokens is 0"),
        ({"capacity": 0}, "capacity is 0"),
        ({"prompts": []}, r"shape \(0, 6\); expected \[B, P\]"),
        (
            {"keys": jnp.zeros((3, 2), jnp.uint32)},
            r"keys \(3, 2\); expected one length and one typed PRNG key",
        ),
    ],
)
def test_bad_calls(change, message):
    with pytest.raises(ValueError, match=message):
        reply(**{"prompts": PROMPTS, **change})

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from reference_decoder import TINY, random_params, reference_logits

from hgpo_jax.config import MeshConfig
from hgpo_jax.policy.logprobs import response_logprobs
from hgpo_jax.policy.sampling import Settings, make_sampler, pad_prompts
from hgpo_jax.policy.transformer import abstract_params
from hgpo_jax.sharding import Layout, make_mesh, param_shardings

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
    assert [x.dtype for x in out] == [np.int32, np.float32, np.int32, np.bool_, np.int32]
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
    logprobs, _ = score(params(), tokens, positions, segment_ids, temperature=temperature)
    for i, prompt in enumerate(PROMPTS):
        np.testing.assert_allclose(out.logprobs[i], logprobs[i, len(prompt) : len(prompt) + R], atol=1e-5)


def test_no_setting_compiles_anew():
    sample = make_sampler(TINY, [NEVER], PAD)
    tokens, lengths = pad_prompts(PROMPTS, PAD, P)
    settings = [(1.0, 1.0, 0, R), (0, 1, 0, 1), (0.4, 0.9, 5, 3), (np.float32(2), 0.5, np.int64(2), 4)]
    for i, setting in enumerate(settings):
        keys = jax.random.split(jax.random.key(i), 3)
        sample(params(), tokens, lengths, keys, *setting, capacity=R, bucket=lambda _: 3)
    assert [part._cache_size() for part in (sample.read, sample.start, sample.decode)] == [1, 1, 1]


def test_no_logits_of_the_whole_prompt():
    """Nowhere in the program is there an array of B * P * V entries or more."""
    config = dataclasses.replace(TINY, vocab_size=50_000)
    sample = make_sampler(config, [1], PAD)
    arrays = jax.ShapeDtypeStruct((4, 64), jnp.int32), jax.ShapeDtypeStruct((4,), jnp.int32)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))

    def whole(params, tokens, lengths, keys):
        settings, options = Settings(1.0, 1.0, 0, R), {"layout": None}
        prompts = sample.read(params, tokens, lengths, capacity=R, **options)
        replies = sample.start(prompts, None, keys, settings, capacity=R, **options)
        return sample.decode(params, replies, settings, 0, **options).output

    jaxpr = jax.make_jaxpr(whole)(nn.unbox(abstract_params(config)), *arrays, keys)

    def largest(jaxpr):
        parts = (getattr(x, "jaxpr", x) for e in jaxpr.eqns for x in jax.tree.leaves(e.params))
        inner = [largest(part) for part in parts if hasattr(part, "eqns")]
        return max(inner + [v.aval.size for e in jaxpr.eqns for v in e.outvars], default=0)

    assert largest(jaxpr.jaxpr) < 4 * 64 * config.vocab_size


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_prompt_read_once_serves_several_rows(temperature):
    asked = np.array([2, 0, 0])
    tokens, lengths = pad_prompts(PROMPTS, PAD, P)
    call = functools.partial(sampler(NEVER), params(), capacity=R)
    settings = jax.random.split(jax.random.key(1), 3), temperature, 1.0, 0, R
    shared, apart = call(tokens, lengths, *settings, rows=asked), call(tokens[asked], lengths[asked], *settings)
    np.testing.assert_array_equal(shared.tokens, apart.tokens)
    np.testing.assert_allclose(shared.logprobs, apart.logprobs, atol=1e-5)
    with pytest.raises(ValueError, match="rows names prompts 0 to 3; there are 0 to 2"):
        call(tokens, lengths, *settings, rows=np.array([0, 3, 1]))


def test_rows_that_go_on_move_into_a_smaller_batch():
    """Of 16 rows some end early; the others go on among 8 or 4, and say what they would have said."""
    long, sample = 40, make_sampler(TINY, [1, 2, 3], PAD)
    prompts = [PROMPTS[i % 3] for i in range(16)]
    tokens, lengths = pad_prompts(prompts, PAD, P)
    keys = jax.random.split(jax.random.key(2), 16)
    sizes = []

    def bucket(rows):
        return max(4, 1 << (rows - 1).bit_length())

    def decode(params, replies, settings, stop_at, layout):
        before = int(replies.output.turns)
        out = sample.decode(params, replies, settings, stop_at, layout=layout)
        sizes.append((len(replies.token), int(out.output.turns) - before))
        return out

    moving = dataclasses.replace(sample, decode=decode)
    setting = 1.0, 1.0, 0, long
    want = sample(params(), tokens, lengths, keys, *setting, capacity=long)
    got = moving(params(), tokens, lengths, keys, *setting, capacity=long, bucket=bucket)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-5)
    np.testing.assert_array_equal(got.lengths, want.lengths)
    np.testing.assert_array_equal(got.finished, want.finished)
    assert got.turns == want.turns
    # In each batch as many turns as it takes until the rows that go on fit the next.
    batches, start = [size for size, _ in sizes], 1
    assert batches in ([16, 8], [16, 8, 4], [16, 4])
    for size, turns in sizes:
        start += turns
        live = (want.lengths > start) | ((want.lengths == start) & ~want.finished)
        assert bucket(max(int(live.sum()), 1)) < size or start == want.turns
    assert sum(size * turns for size, turns in sizes) < 16 * (want.turns - 1)


@pytest.mark.slow
def test_sharded_parameters_draw_the_same():
    """Rows over fsdp; heads over tensor, the two key/value heads whole since four devices don't divide them."""
    mesh = make_mesh(MeshConfig(fsdp=2, tensor=4))
    config = dataclasses.replace(TINY, vocab_size=16)
    whole, sample = random_params(config), make_sampler(config, [15], PAD)
    sharded = jax.tree.map(jax.device_put, whole, param_shardings(abstract_params(config), mesh))
    asked = np.array([0, 1, 2, 0, 0, 1, 2, 2])
    tokens, lengths = pad_prompts([*PROMPTS, []], PAD, P)
    keys = jax.random.split(jax.random.key(0), 8)
    for temperature in (0.0, 1.0):
        setting = temperature, 1.0, 0, R
        want, got = (sample(p, tokens, lengths, keys, *setting, capacity=R, rows=asked) for p in (whole, sharded))
        np.testing.assert_array_equal(got.tokens, want.tokens)
        np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-5)
    cache = sample.read(sharded, tokens, lengths, capacity=R, layout=Layout(mesh)).cache
    assert cache.key.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "fsdp")), 5)


def test_a_bfloat16_cache_is_half_the_size():
    """And what a reply starts with is as likely as in float32, within the precision."""
    half = make_sampler(dataclasses.replace(TINY, dtype="bfloat16"), [NEVER], PAD)
    tokens, lengths = pad_prompts(PROMPTS, PAD, P)
    read, exact = (s.read(params(), tokens, lengths, capacity=R, layout=None) for s in (half, sampler(NEVER)))
    chex.assert_type([read.cache.key, read.cache.value], jnp.bfloat16)
    chex.assert_type(read.logits, jnp.float32)
    assert np.abs(read.logits - exact.logits).max() < 0.05 * np.abs(exact.logits).max()


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
        ({"prompts": []}, r"shape \(0, 6\); expected \[U, P\]"),
        (
            {"keys": jnp.zeros((3, 2), jnp.uint32)},
            r"keys \(3, 2\) of type uint32; expected one length per prompt and one typed PRNG key",
        ),
    ],
)
def test_bad_calls(change, message):
    with pytest.raises(ValueError, match=message):
        reply(**{"prompts": PROMPTS, **change})

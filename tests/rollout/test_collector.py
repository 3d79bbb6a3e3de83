"""Collecting: groups, compaction, truncation, memory, keys with scripted replies; then a real sampler."""

import dataclasses
from typing import Any

import chex
import jax
import numpy as np
import pytest

from envs.core import TextVectorEnv, environment_class, make_vector
from envs.frozen_lake import MOVES, FrozenLakeText, lake_map, shortest_path
from hgpo_jax.config import MeshConfig, ModelConfig, RolloutConfig, SamplingConfig
from hgpo_jax.policy.sampling import SampleOutput, Sampler, make_sampler
from hgpo_jax.policy.tokenization import load_tokenizer
from hgpo_jax.policy.transformer import abstract_params, init_params
from hgpo_jax.rollout import collector
from hgpo_jax.rollout.collector import Reply, Request, bucket_length, bucket_rows, collect, make_actor, merge_metrics
from hgpo_jax.sharding import make_mesh, param_shardings
from hgpo_jax.types import Trajectories

LAKE = "hgpo/FrozenLakeText-v0"
TOKENIZER = load_tokenizer("frozen_lake")
EOS = TOKENIZER.eos_ids[0]
CONFIG = RolloutConfig(max_steps=6, history_length=2, max_prompt_length=128, max_response_length=8)


class Script:
    """An ``act`` that says what ``reply(row, prompt, turn)`` says and remembers what it was asked."""

    def __init__(self, reply):
        self.reply, self.sizes, self.keys, self.prompts = reply, [], [], []

    def __call__(self, params, requests, sampling):
        turn = len(self.sizes)
        self.sizes.append(len(requests))
        self.keys.append(np.stack([request.key for request in requests]))
        self.prompts.append([TOKENIZER.decode(request.prompt) for request in requests])
        replies = [self.reply(i, prompt, turn) for i, prompt in enumerate(self.prompts[-1])]
        tokens = [np.array([*TOKENIZER.encode(text), EOS], np.int32) for text in replies]
        return [
            Reply(row, np.full(len(row), -0.5, np.float32), cut="right" in text)
            for row, text in zip(tokens, replies, strict=True)
        ]


def roll(act, tasks=(0, 1), group_size=2, num_envs=None, config=CONFIG, vector_env=None, key=0, **changes):
    options: dict[str, Any] = {
        "sampling": SamplingConfig(),
        "format_prompt": environment_class(LAKE).format_prompt,
        "params": {},
    }
    options |= changes
    vector_env = vector_env or make_vector(LAKE, num_envs or len(tasks) * group_size)
    return collect(
        act,
        vector_env=vector_env,
        tasks=tasks,
        group_size=group_size,
        config=config,
        key=jax.random.key(key),
        tokenizer=TOKENIZER,
        **options,
    )[:2]


def test_the_expert_wins_every_episode():
    ways = [shortest_path(lake_map(task, "test")) for task in (3, 4)]
    act = Script(lambda i, prompt, turn: f"i go {MOVES[ways[i // 2][turn]]}")
    batch, metrics = roll(act, tasks=(3, 4), split="test")
    n = batch.num_steps
    assert n == 2 * sum(map(len, ways))
    chex.assert_shape((batch.anchor_state, batch.reward, batch.terminated, batch.truncated), (n,))
    np.testing.assert_array_equal(batch.reward.reshape(4, 6), [[0, 0, 0, 0, 0, 10]] * 4)
    np.testing.assert_array_equal(batch.terminated.reshape(4, 6)[:, -1], True)
    assert not batch.truncated.any()
    assert {name: metrics[name] for name in ("success", "episode_return", "episode_length", "episodes")} == {
        "success": 1.0,
        "episode_return": 10.0,
        "episode_length": 6.0,
        "episodes": 4,
    }
    assert (metrics["valid_action_share"], metrics["response_length"], metrics["tokens"]) == (1.0, 5.0, 120)
    assert metrics["tokens_per_second"] == pytest.approx(120 / metrics["seconds"])


def test_two_processes_collect_what_one_would():
    """Each takes some of the tasks; what a row draws hangs on the number of its episode among all."""

    def by_key(params, requests, sampling):
        del params, sampling
        moves = [TOKENIZER.encode(f"i go {[*MOVES.values()][request.key[1] % 4]}") for request in requests]
        return [Reply(np.array([*move, EOS], np.int32), np.zeros(len(move) + 1, np.float32), False) for move in moves]

    whole, metrics = roll(by_key, tasks=(0, 4, 9), group_size=2)
    collected = roll(by_key, tasks=(0,)), roll(by_key, tasks=(4, 9), first_episode=2)
    parts, figures = [batch for batch, _ in collected], [figure for _, figure in collected]
    assert figures[0]["episode_length"] != figures[1]["episode_length"], "weights would not matter"
    for name in ("reward", "step", "terminated", "action_valid", "anchor_state"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
    merged = merge_metrics(figures)
    timing = ("seconds", "tokens_per_second")
    assert {k: v for k, v in merged.items() if k not in timing} == pytest.approx(
        {k: v for k, v in metrics.items() if k not in timing}
    )
    assert merged["seconds"] == max(f["seconds"] for f in figures)
    assert merged["tokens_per_second"] == merged["tokens"] / merged["seconds"]


def test_scores_are_averaged_over_episodes_of_any_length():
    """Of an unfinished episode too: it says so itself."""
    env = FrozenLakeText()

    class Scored(FrozenLakeText):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, terminated, truncated, info | {"score": 0.25 if terminated else 0.0}

    act = Script(lambda i, prompt, turn: "go down" if i == 0 else "go up")  # into a hole, one episode after another
    half = dataclasses.replace(CONFIG, max_steps=2)
    rollout = collect(
        act,
        {},
        TextVectorEnv([Scored] * 4),
        [0],
        4,
        half,
        jax.random.key(0),
        sampling=SamplingConfig(),
        format_prompt=env.format_prompt,
        tokenizer=TOKENIZER,
    )
    assert [outcome.score for outcome in rollout.outcomes] == [0.25, 0.25, 0.0, 0.0]
    assert rollout.metrics["score"] == 0.125
    assert rollout.metrics["success"] == 0
    more = rollout.metrics | {"episodes": 12, "score": 0.625, "episode_length": 99.0}
    assert merge_metrics([rollout.metrics, more])["score"] == 0.5


def test_environments_without_a_score_have_no_such_metric():
    _, metrics = roll(Script(lambda *_: "go up"), tasks=(0,), group_size=1)
    assert "score" not in metrics


def test_groups_trajectories_and_steps_are_numbered_in_order():
    batch, _ = roll(Script(lambda *_: "go up"), tasks=(7, 5, 7), group_size=2)
    steps = np.arange(6)
    np.testing.assert_array_equal(batch.trajectory, np.repeat(np.arange(6), 6))
    np.testing.assert_array_equal(batch.prompt_group, np.repeat([0, 0, 1, 1, 2, 2], 6))  # 7 twice: two groups
    np.testing.assert_array_equal(batch.step, np.tile(steps, 6))
    starts = batch.anchor_state.reshape(6, 6)[:, 0]
    assert starts[0] == starts[1] == starts[4] == starts[5]
    env = FrozenLakeText()
    assert [env.reset(options={"task": task})[0] for task in (7, 5)] == [starts[0], starts[2]]


def test_finished_episodes_leave_the_batch():
    # Task 0 is SFFF HHFF FHHF HFFG: down falls, up stays.
    act = Script(lambda i, prompt, turn: "go down" if i == 0 else "go up")
    batch, metrics = roll(act, tasks=(0,), group_size=4)
    assert act.sizes == [4, 3, 2, 1]
    np.testing.assert_array_equal(np.bincount(batch.trajectory), [1, 2, 3, 4])
    np.testing.assert_array_equal(batch.terminated[np.cumsum([1, 2, 3, 4]) - 1], True)
    assert metrics["episode_length"] == 2.5
    assert metrics["success"] == 0.0


def test_the_step_cap_truncates_the_last_step():
    batch, _ = roll(Script(lambda *_: "go up"), tasks=(0,), group_size=1)
    np.testing.assert_array_equal(batch.truncated, [False] * 5 + [True])
    assert not batch.terminated.any()


def test_an_end_at_the_cap_is_no_truncation():
    act = Script(lambda i, prompt, turn: "go down" if turn == 5 else "go up")
    batch, _ = roll(act, tasks=(0,), group_size=1)
    assert batch.terminated[-1]
    assert not batch.truncated.any()


def test_an_environments_own_step_cap_truncates_too():
    vector_env = make_vector(LAKE, 2, max_episode_steps=3)
    batch, _ = roll(Script(lambda *_: "go up"), tasks=(0,), vector_env=vector_env)
    np.testing.assert_array_equal(batch.truncated, [False, False, True] * 2)


def test_invalid_replies_are_marked_and_remembered():
    act = Script(lambda i, prompt, turn: "go" if turn == 1 else "walk up")
    batch, metrics = roll(act, tasks=(0,), group_size=1)
    np.testing.assert_array_equal(batch.action_valid, [True, False, True, True, True, True])
    assert metrics["valid_action_share"] == pytest.approx(5 / 6)
    assert len(set(batch.anchor_state)) == 1
    seen = batch.anchor_state[0]
    start = "cross the frozen lake to the goal reply with one move like go up or go to the left"
    assert act.prompts[0] == [f"{start} now {seen} you"]
    assert act.prompts[1] == [f"{start} before {seen} you go up now {seen} you"]
    assert act.prompts[2] == [f"{start} before {seen} you go up before {seen} you invalid now {seen} you"]
    assert act.prompts[3] == [f"{start} before {seen} you invalid before {seen} you go up now {seen} you"]


def test_the_batch_holds_what_was_read_and_said():
    act = Script(lambda i, prompt, turn: "so i go to the right" if turn == 0 else "go up")
    batch, _ = roll(act, tasks=(0,), group_size=1)
    assert [TOKENIZER.decode(prompt) for prompt in batch.prompt_tokens] == [row[0] for row in act.prompts]
    assert TOKENIZER.decode(batch.response_tokens[0]) == "so i go to the right"
    assert [len(row) for row in batch.response_tokens] == [7, 3, 3, 3, 3, 3]
    for response, logprob in zip(batch.response_tokens, batch.behavior_logprob, strict=True):
        assert response[-1] == EOS
        chex.assert_equal_shape((response, logprob))
        np.testing.assert_array_equal(logprob, -0.5)


def test_half_a_surrogate_pair_in_a_prompt_becomes_a_question_mark():
    act = Script(lambda *_: "go up")
    config = RolloutConfig(max_steps=1, max_prompt_length=40, max_response_length=4)
    asked = []

    def noting(params, requests, sampling):
        asked.extend(request.text for request in requests)
        return act(params, requests, sampling)

    roll(noting, config=config, format_prompt=lambda *_: "now \ud800 you \udfff")
    assert set(asked) == {"now ? you ?"}


def test_prompts_are_cut_from_the_left():
    act = Script(lambda *_: "go up")
    batch, metrics = roll(act, config=RolloutConfig(max_steps=2, max_prompt_length=5, max_response_length=4))
    assert {len(prompt) for prompt in batch.prompt_tokens} == {5}
    assert metrics["prompt_cut_share"] == 1.0
    assert all(prompt.endswith("you") for prompt in act.prompts[1])


def test_a_rows_key_depends_on_its_episode_and_turn_alone():
    staying = Script(lambda *_: "go up")
    falling = Script(lambda i, *_: "go down" if i == 0 else "go up")
    roll(staying, tasks=(0,), group_size=3)
    roll(falling, tasks=(0,), group_size=3)
    assert falling.sizes[:2] == [3, 2]
    np.testing.assert_array_equal(staying.keys[0], falling.keys[0])
    np.testing.assert_array_equal(staying.keys[1][1:], falling.keys[1])
    every_key = np.concatenate(staying.keys)
    assert len(np.unique(every_key, axis=0)) == len(every_key) == 18
    expected = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 1), 4)
    np.testing.assert_array_equal(staying.keys[4][1], jax.random.key_data(expected))


@pytest.mark.parametrize("num_envs", [1, 3, 4, 9])
def test_waves_change_nothing(num_envs):
    def reply(i, prompt, turn):
        return "go down" if prompt.count("before") == 2 else "go to the right"

    whole, _ = roll(Script(reply), num_envs=4)
    waves, metrics = roll(Script(reply), num_envs=num_envs)
    assert metrics["episodes"] == 4
    for name in ("trajectory", "prompt_group", "step", "reward", "terminated", "truncated", "anchor_state"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(waves, name))


def test_environments_are_used_again():
    vector_env = make_vector(LAKE, 4)
    batches = [roll(Script(lambda *_: "go down"), vector_env=vector_env)[0] for _ in range(2)]
    np.testing.assert_array_equal(batches[0].anchor_state, batches[1].anchor_state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": (), "num_envs": 1}, "at least one task, got none"),
        ({"group_size": 0, "num_envs": 1}, "group_size must be at least 1, got 0"),
        ({"config": RolloutConfig(max_steps=0)}, "max_steps must be at least 1, got 0"),
        ({"config": RolloutConfig(max_prompt_length=0)}, "max_prompt_length must be at least 1, got 0"),
        ({"config": RolloutConfig(max_response_length=-1)}, "max_response_length must be at least 1, got -1"),
        ({"config": RolloutConfig(rows_at_a_time=0)}, "rows_at_a_time must be at least 1, or None for all, got 0"),
        ({"format_prompt": lambda *_: ""}, "the prompt of task 0 has no tokens: ''"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        roll(Script(lambda *_: "go up"), **changes)


@pytest.mark.parametrize(("size", "bucket"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (128, 128), (129, 256)])
def test_row_buckets(size, bucket):
    assert bucket_rows(size) == bucket


@pytest.mark.parametrize(
    ("length", "bucket"),
    [(1, 32), (32, 32), (33, 64), (256, 256), (257, 384), (385, 512), (513, 768), (3073, 4096), (4096, 4096)],
)
def test_length_buckets(length, bucket):
    assert bucket_length(length) == bucket


MODEL = ModelConfig(
    vocab_size=TOKENIZER.vocab_size + 1,  # 40, which a mesh can divide
    hidden_size=32,
    intermediate_size=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
)


@pytest.mark.slow
def test_a_random_model_rolls_out_the_same_way_twice():
    act = make_actor(MODEL, TOKENIZER, CONFIG)
    params = init_params(MODEL, jax.random.key(1))
    batches = [roll(act, group_size=4, params=params, key=2)[0] for _ in range(2)]
    lengths = [len(row) for row in batches[0].response_tokens]
    assert 1 <= min(lengths) < max(lengths) == CONFIG.max_response_length
    for one, other in zip(*(batch.response_tokens for batch in batches), strict=True):
        np.testing.assert_array_equal(one, other)
    for response, logprob in zip(batches[0].response_tokens, batches[0].behavior_logprob, strict=True):
        chex.assert_equal_shape((response, logprob))
        assert (logprob < 0).all()
        assert EOS not in response[:-1]  # ends at the first end token, which is part of the reply
        assert response[-1] == EOS or len(response) == CONFIG.max_response_length
    # Evaluation is the same function with one rollout a task.
    greedy = SamplingConfig(temperature=0.0)
    _, metrics = roll(act, (0, 1, 2), 1, params=params, split="test", sampling=greedy)
    assert metrics["episodes"] == 3


def test_replies_that_the_length_limit_cut_are_marked(tmp_path):
    act = Script(lambda i, prompt, turn: "i go to the right" if turn in (1, 2, 4) else "go up")
    batch, metrics = roll(act, tasks=(0,), group_size=1)
    assert batch.response_cut is not None
    np.testing.assert_array_equal(batch.response_cut, [False, True, True, False, True, False])
    assert metrics["response_cut_share"] == 0.5
    assert metrics["prompt_cut_share"] == 0.0
    batch.save(tmp_path / "batch.npz")
    np.testing.assert_array_equal(Trajectories.load(tmp_path / "batch.npz").response_cut, batch.response_cut)


class Recorder:
    """Stands in for a sampler: notes what the actor asks and lets row r say its prompt's first token, r times."""

    def __init__(self):
        self.calls: list[dict[str, Any]] = []

    def __call__(self, params, tokens, lengths, keys, temperature, top_p, top_k, new, *, capacity, rows, bucket):
        self.calls.append({"tokens": tokens, "lengths": lengths, "keys": keys, "rows": rows})
        read = np.arange(len(tokens)) if rows is None else rows
        first = [tokens[i, tokens.shape[1] - lengths[i]] if lengths[i] else 0 for i in read]
        size = np.arange(len(read)) % capacity
        said = np.repeat(np.array(first)[:, None], capacity, axis=1).astype(np.int32)
        return SampleOutput(said, said * -0.5, size, size < 3, np.int32(capacity))


def test_equal_prompts_are_read_once(monkeypatch):
    """16 tasks of 8: 16 prompts are read for 128 replies. Where no smaller batch would come of it, all are."""
    recorder = Recorder()
    monkeypatch.setattr(collector, "make_sampler", lambda *_: recorder)
    act = make_actor(MODEL, TOKENIZER, CONFIG)
    keys = np.arange(256, dtype=np.uint32).reshape(128, 2)

    def ask(first_tokens):
        asked = [Request(np.full(5, token, np.int32), keys[i]) for i, token in enumerate(first_tokens)]
        replies = act({}, asked, SamplingConfig())
        assert [len(reply.tokens) for reply in replies] == [i % 8 for i in range(len(asked))]
        assert [reply.cut for reply in replies] == [i % 8 >= 3 for i in range(len(asked))]
        assert all((reply.tokens == token).all() for reply, token in zip(replies, first_tokens, strict=True))
        return recorder.calls[-1]

    shared = ask(np.repeat(np.arange(3, 19), 8))
    chex.assert_shape(shared["tokens"], (16, 32))
    np.testing.assert_array_equal(shared["rows"], np.repeat(np.arange(16), 8))
    np.testing.assert_array_equal(jax.random.key_data(shared["keys"]), keys)
    # 20 replies go in a batch of 32; its other rows reply to an empty prompt, which is passed over.
    padded = ask([4, 5] * 10)
    chex.assert_shape(padded["tokens"], (8, 32))
    np.testing.assert_array_equal(padded["rows"], [0, 1] * 10 + [2] * 12)
    np.testing.assert_array_equal(padded["lengths"], [5, 5] + [0] * 6)
    different = ask(range(3, 15))
    chex.assert_shape(different["tokens"], (16, 32))
    assert different["rows"] is None


@pytest.mark.slow
def test_decoding_halves_when_half_of_the_episodes_are_over(monkeypatch):
    """Rows times turns of the decoding, and compilations, when 16 episodes go on and when 8 do."""
    cost: list[int] = []
    samplers: list[Sampler] = []

    def counting(*args):
        samplers.append(make_sampler(*args))

        def decode(params, replies, *args, **kwargs):
            rows, before = len(replies.token), int(replies.output.turns)
            out = samplers[0].decode(params, replies, *args, **kwargs)
            cost.append(rows * (int(out.output.turns) - before))
            return out

        return dataclasses.replace(samplers[0], decode=decode)

    monkeypatch.setattr(collector, "make_sampler", counting)
    act = make_actor(MODEL, TOKENIZER, CONFIG)
    params = init_params(MODEL, jax.random.key(1))
    request = Request(np.arange(3, 9, dtype=np.int32), np.full(2, 7, np.uint32))
    for live in (16, 8, 16, 5):
        replies = act(params, [request] * live, SamplingConfig())
        assert {len(reply.tokens) for reply in replies} == {CONFIG.max_response_length}
    assert cost == [16 * 7, 8 * 7, 16 * 7, 8 * 7]
    # Both batches decode; the one prompt is read in a batch of eight for either.
    assert [part._cache_size() for part in (samplers[0].read, samplers[0].start, samplers[0].decode)] == [1, 2, 2]


@pytest.mark.slow
def test_a_rows_reply_does_not_depend_on_the_rows_beside_it():
    params = init_params(MODEL, jax.random.key(1))
    act = make_actor(MODEL, TOKENIZER, CONFIG)
    texts = ("now up ice", "now down hole you", "you")
    keys = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(5), 3)))
    asked = [Request(np.array(TOKENIZER.encode(t), np.int32), key) for t, key in zip(texts, keys, strict=True)]
    together = act(params, asked, SamplingConfig())
    one_by_one = make_actor(MODEL, TOKENIZER, dataclasses.replace(CONFIG, rows_at_a_time=1))
    alone = one_by_one(params, asked, SamplingConfig())
    mesh = make_mesh(MeshConfig(data=3, tensor=2))  # three do not divide the usual eight rows
    spread = jax.device_put(params, param_shardings(abstract_params(MODEL), mesh))
    spread_replies = act(spread, asked, SamplingConfig())
    for reply, expected in zip(together * 2, alone + spread_replies, strict=True):
        np.testing.assert_array_equal(reply.tokens, expected.tokens)
        np.testing.assert_allclose(reply.logprobs, expected.logprobs, atol=1e-5)
        assert reply.cut == expected.cut == (reply.tokens[-1] != EOS)


def test_the_prompt_after_a_cut_is_kept():
    """What the policy would have read next without the limit; nothing after a step that goes on or ends."""
    longer = roll(Script(lambda row, prompt, turn: "go up"), config=dataclasses.replace(CONFIG, max_steps=4))[0]
    cut = roll(Script(lambda row, prompt, turn: "go up"), config=dataclasses.replace(CONFIG, max_steps=3))[0]
    assert cut.next_prompt_tokens is not None
    for i in range(cut.num_steps):
        after = (longer.trajectory == cut.trajectory[i]) & (longer.step == cut.step[i] + 1)
        wanted = longer.prompt_tokens[int(np.flatnonzero(after)[0])].tolist() if cut.truncated[i] else []
        assert cut.next_prompt_tokens[i].tolist() == wanted
    assert cut.truncated.any()
    short = dataclasses.replace(CONFIG, max_steps=3, max_prompt_length=5)
    kept = roll(Script(lambda row, prompt, turn: "go up"), config=short)[0].next_prompt_tokens
    assert kept is not None
    assert {len(tokens) for tokens in kept} == {0, 5}

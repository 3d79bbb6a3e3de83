"""What was said, on disk and back."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest

from envs.core import make_vector
from envs.frozen_lake import FrozenLakeText
from experiments.scripted import random_policy, scripted_act
from experiments.transcripts import Episode, Log, Turn, episodes_of, read_transcripts, recorded, write_transcripts
from hgpo_jax.config import RolloutConfig, SamplingConfig
from hgpo_jax.policy.tokenization import ByteTokenizer
from hgpo_jax.rollout.collector import collect

ENV = "hgpo/FrozenLakeText-v0"
EPISODE = Episode(
    task=3,
    task_type="",
    split="test",
    episode=1,
    seed=123,
    won=True,
    episode_return=10.0,
    turns=[
        Turn("ice\n'\u2028é", "prompt", "<think>", True, 0.0),
        Turn("goal", "prompt 2", "", False, 10.0, advantage=-0.5, group_sizes=[4, 2]),
    ],
)


def test_one_line_an_episode_and_back(tmp_path: Path) -> None:
    path = tmp_path / "transcripts.jsonl"
    write_transcripts(path, [EPISODE, EPISODE])
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    fields = ("task", "task_type", "split", "episode", "seed", "won", "episode_return", "turns", "score")
    assert tuple(json.loads(lines[0])) == fields
    assert json.loads(lines[0])["turns"][1] == {
        "observation": "goal",
        "prompt": "prompt 2",
        "reply": "",
        "valid": False,
        "reward": 10.0,
        "advantage": -0.5,
        "group_sizes": [4, 2],
    }
    assert read_transcripts(path) == [EPISODE, EPISODE]
    write_transcripts(path, [])
    assert read_transcripts(path) == []


@pytest.mark.parametrize("damage", ["{}", "no", json.dumps(dataclasses.asdict(EPISODE) | {"turns": [{"reply": 1}]})])
def test_a_damaged_line_is_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "transcripts.jsonl"
    write_transcripts(path, [EPISODE])
    path.write_text(path.read_text() + damage + "\n")
    with pytest.raises(ValueError, match=r"transcripts.jsonl, line 2 is no episode of a transcript"):
        read_transcripts(path)


def test_a_rollout_is_noted_as_it_was() -> None:
    """In waves, in groups: prompts, replies and rewards belong to their steps."""
    tokenizer, log = ByteTokenizer(), Log()
    config = RolloutConfig(max_steps=6, max_prompt_length=10_000)
    act = recorded(scripted_act(random_policy(ENV, 0), tokenizer), tokenizer, log)
    vector = make_vector(ENV, 3)
    rollout = collect(
        act, {}, vector, [4, 0], 2, config, jax.random.key(0), split="test", sampling=SamplingConfig(),
        format_prompt=FrozenLakeText.format_prompt, tokenizer=tokenizer,
    )  # fmt: skip
    vector.close()
    episodes = episodes_of(rollout, log, "test", 9)
    assert [(e.task, e.episode, e.seed, e.split) for e in episodes] == [
        (4, 0, 9, "test"),
        (4, 1, 9, "test"),
        (0, 2, 9, "test"),
        (0, 3, 9, "test"),
    ]
    batch = rollout.batch
    turns = [turn for episode in episodes for turn in episode.turns]
    assert [turn.prompt for turn in turns] == [tokenizer.decode(tokens) for tokens in batch.prompt_tokens]
    assert [turn.reply for turn in turns] == [tokenizer.decode(tokens) for tokens in batch.response_tokens]
    assert [turn.observation for turn in turns] == list(batch.anchor_state)
    assert [turn.reward for turn in turns] == batch.reward.tolist()
    assert [len(e.turns) for e in episodes] == [outcome.steps for outcome in rollout.outcomes]
    assert [sum(turn.reward for turn in e.turns) for e in episodes] == [e.episode_return for e in episodes]

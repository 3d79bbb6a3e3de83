"""What was said in an evaluation: one line of JSON an episode, and the recording of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import chex
import pydantic

from experiments.records import replace_text
from hgpo_jax.config import SamplingConfig
from hgpo_jax.policy.tokenization import AnyTokenizer
from hgpo_jax.rollout.collector import Act, Reply, Request, Rollout


@dataclasses.dataclass(frozen=True)
class Turn:
    """One step of an episode."""

    observation: str
    prompt: str  # whole, as it was before a model's length limit
    reply: str
    valid: bool
    reward: float
    advantage: float | None = None
    group_sizes: list[int] | None = None  # of each level, the coarsest first


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode from its start to its end."""

    task: int
    task_type: str  # "" where the environment has no types
    split: str
    episode: int  # its number in its pass over the panel
    seed: int  # of the pass's draws
    won: bool
    episode_return: float
    turns: list[Turn]
    score: float | None = None  # the benchmark's own, 0 to 1, where the environment gives one


class Asked(NamedTuple):
    """What a policy was asked in a turn, and what it said."""

    observation: str
    prompt: str
    reply: str


Log = dict[tuple[int, int], Asked]  # (episode, turn) ->


def recorded(act: Act, tokenizer: AnyTokenizer, log: Log) -> Act:
    """``act``, which writes into ``log`` what it is asked and says."""

    def wrapped(params: chex.ArrayTree, requests: Sequence[Request], sampling: SamplingConfig) -> list[Reply]:
        replies = act(params, requests, sampling)
        for request, reply in zip(requests, replies, strict=True):
            asked = Asked(request.observation, request.text, tokenizer.decode(reply.tokens))
            log[request.episode, request.turn] = asked
        return replies

    return wrapped


def episodes_of(rollout: Rollout, log: Log, split: str, seed: int) -> list[Episode]:
    """The episodes of a rollout whose policy was `recorded`, in order.

    Args:
      rollout: of all the episodes in the log.
      log: what `recorded` has written.
      split, seed: of the pass, noted in every episode.
    """
    batch = rollout.batch
    turns: list[list[Turn]] = [[] for _ in rollout.outcomes]
    columns = zip(batch.trajectory, batch.step, batch.action_valid, batch.reward, strict=True)
    for trajectory, step, valid, reward in columns:  # sorted by trajectory and step
        asked = log[int(trajectory), int(step)]
        turns[trajectory].append(Turn(*asked, bool(valid), float(reward)))
    return [
        Episode(o.task, o.task_type, split, i, seed, o.won, o.episode_return, turns[i], o.score)
        for i, o in enumerate(rollout.outcomes)
    ]


def write_transcripts(path: Path, episodes: Iterable[Episode]) -> None:
    """Writes the file, whole or not at all."""
    replace_text(path, "".join(json.dumps(dataclasses.asdict(episode)) + "\n" for episode in episodes))


def read_transcripts(path: Path) -> list[Episode]:
    """What `write_transcripts` has written.

    Raises:
      ValueError: a line is no episode; the message names it.
    """
    adapter, episodes = pydantic.TypeAdapter(Episode), []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            episodes.append(adapter.validate_json(line))
        except pydantic.ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise ValueError(f"{path}, line {number} is no episode of a transcript: {where} {fault['msg']}") from error
    return episodes

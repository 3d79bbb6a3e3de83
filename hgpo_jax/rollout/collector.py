"""Environments times policy: the rollout of an iteration; evaluation is the same with one rollout a task."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import SyncVectorEnv

from hgpo_jax.config import ModelConfig, RolloutConfig, SamplingConfig
from hgpo_jax.policy.sampling import make_sampler, pad_prompts
from hgpo_jax.policy.tokenization import AnyTokenizer
from hgpo_jax.rollout.memory import Memory
from hgpo_jax.sharding import batch_multiple, mesh_of
from hgpo_jax.types import Trajectories


class Reply(NamedTuple):
    """What the policy said in one turn."""

    tokens: np.ndarray  # i32 [length], the end token included if drawn
    logprobs: np.ndarray  # f32 [length]
    cut: bool  # by the length limit, before it ended


class Request(NamedTuple):
    """What a policy is asked in one turn of one episode. A model reads the first two, a scripted policy the rest."""

    prompt: np.ndarray  # i32 [length], cut from the left at the limit
    key: np.ndarray  # u32 [2], data of the reply's own PRNG key
    text: str = ""  # the whole prompt
    observation: str = ""
    info: Mapping[str, Any] = {}
    episode: int = 0  # its number among all that are collected
    turn: int = 0
    task: int = 0


class Outcome(NamedTuple):
    """How one episode ended."""

    task: int
    task_type: str  # "" where the environment has no types
    won: bool
    episode_return: float
    steps: int
    score: float | None = None  # the benchmark's own, 0 to 1, where the environment gives one


class Rollout(NamedTuple):
    """What `collect` returns."""

    batch: Trajectories
    metrics: dict[str, float]
    outcomes: list[Outcome]  # of each episode, in order; this process's own


Act = Callable[[chex.ArrayTree, Sequence[Request], SamplingConfig], list[Reply]]
PromptFormat = Callable[[str, Sequence[tuple[str, str]], Mapping[str, Any]], str]

SMALLEST_BATCH = 8


def bucket_rows(rows: int) -> int:
    """The next power of two, at least 8: a batch that shrinks compiles a handful of times."""
    return max(SMALLEST_BATCH, 1 << (rows - 1).bit_length())


def bucket_length(length: int) -> int:
    """The next multiple of 32 up to 256, then the next of 384, 512, 768, 1024, 1536, ..."""
    if length <= 256:
        return -(-length // 32) * 32
    power = 1 << (length - 1).bit_length()
    return power * 3 // 4 if length <= power * 3 // 4 else power


def make_actor(model: ModelConfig, tokenizer: AnyTokenizer, config: RolloutConfig) -> Act:
    """Ties a sampler to shape buckets. Equal prompts are read once; rows that have ended leave the batch.

    Args:
        model: the policy's shape.
        tokenizer: for the end and padding tokens.
        config: for ``max_response_length``, and ``rows_at_a_time``, which changes memory and time, not the replies.

    Returns:
        ``act(params, requests, sampling)``: a reply to each. Where ``params`` lie on a mesh, its batch axes share the
        rows.
    """
    sample = make_sampler(model, tokenizer.eos_ids, tokenizer.pad_id)

    def act(params: chex.ArrayTree, requests: Sequence[Request], sampling: SamplingConfig) -> list[Reply]:
        size = config.rows_at_a_time or len(requests)
        parts = [requests[first : first + size] for first in range(0, len(requests), size)]
        return [
            reply
            for part in parts
            for reply in act_together(params, [r.prompt for r in part], np.stack([r.key for r in part]), sampling)
        ]

    def act_together(
        params: chex.ArrayTree, prompts: Sequence[np.ndarray], keys: np.ndarray, sampling: SamplingConfig
    ) -> list[Reply]:
        multiple = batch_multiple(mesh_of(params))

        def bucket(rows: int) -> int:
            return -(-bucket_rows(rows) // multiple) * multiple

        batch = bucket(len(prompts))
        read, rows = _share(prompts, batch, bucket)
        tokens_UP, lengths_U = pad_prompts(read, tokenizer.pad_id, bucket_length(max(map(len, prompts))))
        out = sample(
            params,
            tokens_UP,
            lengths_U,
            jax.random.wrap_key_data(jnp.asarray(np.pad(keys, ((0, batch - len(prompts)), (0, 0))))),
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            config.max_response_length,
            capacity=config.max_response_length,
            rows=rows,
            bucket=bucket,
        )
        arrays = zip(out.tokens, out.logprobs, out.lengths, out.finished, strict=True)
        replies = [Reply(tokens[:end], logprobs[:end], not finished) for tokens, logprobs, end, finished in arrays]
        return replies[: len(prompts)]

    return act


def _share(
    prompts: Sequence[np.ndarray], batch: int, bucket: Callable[[int], int]
) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The prompts to read, filled up to their bucket with empty ones, and which of them each row replies to.

    None for the rows where sharing would not make the batch that is read smaller.
    """
    empty = np.zeros(0, np.int32)  # a row that the sampler passes over
    asked = [*prompts, *[empty] * (batch - len(prompts))]
    index: dict[bytes, int] = {}
    rows = np.array([index.setdefault(prompt.tobytes(), len(index)) for prompt in asked], np.int32)
    size = bucket(len(index))
    if size >= batch:
        return asked, None
    read = [asked[i] for i in np.unique(rows, return_index=True)[1]]
    return [*read, *[empty] * (size - len(read))], rows


def collect(
    act: Act,
    params: chex.ArrayTree,
    vector_env: SyncVectorEnv,
    tasks: Sequence[int],
    group_size: int,
    config: RolloutConfig,
    key: jax.Array,
    *,
    split: str = "train",
    sampling: SamplingConfig,
    format_prompt: PromptFormat,
    tokenizer: AnyTokenizer,
    first_episode: int = 0,
    task_types: Sequence[str] = (),
) -> Rollout:
    """Rolls out ``group_size`` episodes of each task, from the same start.

    Every turn, the episodes that are not finished are put into one batch; finished ones leave it. What a row
    draws depends on ``fold_in(fold_in(key, first_episode + episode), turn)`` alone, not on who else is in the batch.
    Episodes that the environments don't hold at once run in waves. The last step at ``config.max_steps`` is truncated.

    Args:
        act: from `make_actor`, or any function of its signature.
        params: handed to ``act``.
        vector_env: text environments, autoreset disabled, finished ones idle (`envs.core.make_vector`).
        tasks: number of each task; entry g gives prompt group g. A number may come up twice.
        group_size: rollouts per task; 1 for evaluation.
        config: lengths and the step cap.
        key: typed PRNG key [].
        split: "train" or "test", handed to the environment.
        sampling: how replies are drawn.
        format_prompt: the environment's wording.
        tokenizer: between text and tokens.
        first_episode: number of the first one among all that are collected, where several processes share them.
        task_types: that ``info["task_type"]`` may name; success and episodes of each are counted apart.

    Returns:
        The batch, sorted by trajectory and step, and the metrics ``success``, ``episode_return``,
        ``episode_length``, ``valid_action_share``, ``response_length``, ``response_cut_share`` and
        ``prompt_cut_share`` (of the steps), ``episodes``, ``tokens`` (of the responses), ``seconds`` and
        ``tokens_per_second``; ``score`` where ``info["score"]`` gives one; with ``task_types`` also
        ``success/<type>`` (NaN without an episode) and ``episodes/<type>``. And the outcome of each episode.

    Raises:
        ValueError: without tasks, or for a ``group_size`` or a limit of ``config`` below 1.
    """
    _check(tasks, group_size, config)
    start = time.perf_counter()
    episodes = [
        _Episode(i, i // group_size, int(tasks[i // group_size]), Memory(config.history_length))
        for i in range(len(tasks) * group_size)
    ]
    indices = np.arange(first_episode, first_episode + len(episodes), dtype=np.uint32)
    steps: list[_Step] = []
    prompts_cut = 0
    for first in range(0, len(episodes), vector_env.num_envs):
        wave = episodes[first : first + vector_env.num_envs]
        _reset(vector_env, wave, split)
        for turn in range(config.max_steps):
            live = {slot: episode for slot, episode in enumerate(wave) if not episode.done}
            if not live:
                break
            keys = np.asarray(_row_keys(key, indices, np.uint32(turn)))
            requests = []
            for episode in live.values():
                text, tokens = _prompt(episode, format_prompt, tokenizer)
                prompts_cut += len(tokens) > config.max_prompt_length
                requests.append(
                    Request(
                        tokens[-config.max_prompt_length :],
                        keys[episode.index],
                        text,
                        episode.observation,
                        episode.info,
                        first_episode + episode.index,
                        turn,
                        episode.task,
                    )
                )
            replies = act(params, requests, sampling)
            last = turn == config.max_steps - 1
            played = _step(vector_env, live, turn, last, requests, replies, tokenizer)
            for episode, row in zip(live.values(), played, strict=True):
                cut = (
                    _prompt(episode, format_prompt, tokenizer)[1][-config.max_prompt_length :] if row.truncated else ()
                )
                steps.append(row._replace(next_prompt_tokens=np.asarray(cut, np.int32)))
    batch = _assemble(steps)
    outcomes = _outcomes(batch, episodes)
    metrics = _metrics(batch, outcomes, task_types, time.perf_counter() - start)
    return Rollout(batch, metrics | {"prompt_cut_share": prompts_cut / batch.num_steps}, outcomes)


@dataclasses.dataclass
class _Episode:
    index: int
    group: int
    task: int
    memory: Memory
    observation: str = ""
    info: dict[str, Any] = dataclasses.field(default_factory=dict)
    done: bool = False


class _Step(NamedTuple):
    """One row of `Trajectories`."""

    trajectory: int
    step: int
    prompt_group: int
    anchor_state: Any
    reward: float
    terminated: bool
    truncated: bool
    action_valid: bool
    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    behavior_logprob: np.ndarray
    response_cut: bool
    next_prompt_tokens: np.ndarray = np.zeros(0, np.int32)


@jax.jit
def _row_keys(key: jax.Array, episodes: jax.Array, turn: jax.Array) -> jax.Array:
    """Key data [E, 2]. For all episodes at once: one shape, one compilation."""
    fold = jax.vmap(lambda episode: jax.random.fold_in(jax.random.fold_in(key, episode), turn))
    return jax.random.key_data(fold(episodes))


def _check(tasks: Sequence[int], group_size: int, config: RolloutConfig) -> None:
    if not len(tasks):
        raise ValueError("collect needs at least one task, got none")
    if config.rows_at_a_time is not None and config.rows_at_a_time < 1:
        raise ValueError(f"rows_at_a_time must be at least 1, or None for all, got {config.rows_at_a_time}")
    limits = {"group_size": group_size} | {
        name: getattr(config, name) for name in ("max_steps", "max_prompt_length", "max_response_length")
    }
    for name, limit in limits.items():
        if limit < 1:
            raise ValueError(f"{name} must be at least 1, got {limit}")


def _reset(vector_env: SyncVectorEnv, wave: Sequence[_Episode], split: str) -> None:
    """Starts each episode in its slot; all of a group from the same task and seed."""
    groups = np.full(vector_env.num_envs, -1)
    groups[: len(wave)] = [episode.group for episode in wave]
    for group, task in {episode.group: episode.task for episode in wave}.items():
        mask = groups == group
        seeds: list[int | None] = [task] * vector_env.num_envs
        observations, infos = vector_env.reset(seed=seeds, options={"task": task, "split": split, "reset_mask": mask})
        for slot, episode in enumerate(wave):
            if mask[slot]:
                episode.observation, episode.info = observations[slot], _info_of(infos, slot)


def _prompt(episode: _Episode, format_prompt: PromptFormat, tokenizer: AnyTokenizer) -> tuple[str, np.ndarray]:
    text = format_prompt(episode.observation, episode.memory.entries, episode.info)
    # Half of a surrogate pair, which data or a reply may hold, is read by no tokenizer: it becomes a question mark.
    text = text.encode("utf-8", "replace").decode("utf-8")
    tokens = np.asarray(tokenizer.encode_prompt(text), np.int32)
    if not len(tokens):
        raise ValueError(f"the prompt of task {episode.task} has no tokens: {text!r}")
    return text, tokens


def _step(
    vector_env: SyncVectorEnv,
    live: Mapping[int, _Episode],
    turn: int,
    last: bool,
    requests: Sequence[Request],
    replies: Sequence[Reply],
    tokenizer: AnyTokenizer,
) -> list[_Step]:
    """Sends the replies to the environments and moves the live episodes on."""
    actions = [""] * vector_env.num_envs  # the idle ones don't read it
    for slot, reply in zip(live, replies, strict=True):
        actions[slot] = tokenizer.decode(reply.tokens)
    observations, rewards, terminated, truncated, infos = vector_env.step(tuple(actions))
    rows = []
    for (slot, episode), request, reply in zip(live.items(), requests, replies, strict=True):
        info, state = _info_of(infos, slot), episode.info["anchor_state"]
        ended = bool(terminated[slot])
        cut = not ended and (last or bool(truncated[slot]))
        valid, reward = bool(info["action_valid"]), float(rewards[slot])
        row = _Step(episode.index, turn, episode.group, state, reward, ended, cut, valid, request.prompt, *reply)
        rows.append(row)
        episode.memory = episode.memory.add(episode.observation, info["action"])
        episode.observation, episode.info, episode.done = observations[slot], info, ended or cut
    return rows


def _info_of(infos: Mapping[str, Any], slot: int) -> dict[str, Any]:
    """One environment's entries of gymnasium's vectorised infos, where ``_name`` masks who has ``name``."""
    return {name: entries[slot] for name, entries in infos.items() if f"_{name}" in infos}


def _assemble(steps: Sequence[_Step]) -> Trajectories:
    ordered = sorted(steps, key=lambda row: (row.trajectory, row.step))
    columns: dict[str, Any] = dict(zip(_Step._fields, zip(*ordered, strict=True), strict=True))
    return Trajectories(**columns)


def merge_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a collection from those of its parts, that ran side by side: means weighted, counts summed."""
    episodes = np.array([part["episodes"] for part in parts])
    steps = episodes * [part["episode_length"] for part in parts]

    def merge(name: str, values: np.ndarray) -> float:
        if name in ("episodes", "tokens") or name.startswith("episodes/"):
            return int(values.sum())
        if name == "seconds":
            return float(values.max())
        if name.startswith("success/"):
            weights = np.array([part[name.replace("success", "episodes")] for part in parts])
            return float(values[weights > 0] @ weights[weights > 0] / weights.sum()) if weights.any() else np.nan
        per_episode = name in ("success", "score", "episode_return", "episode_length")
        return float(np.average(values, weights=episodes if per_episode else steps))

    merged = {name: merge(name, np.array([part[name] for part in parts])) for name in parts[0]}
    return merged | {"tokens_per_second": merged["tokens"] / merged["seconds"]}


def _outcomes(batch: Trajectories, episodes: Sequence[_Episode]) -> list[Outcome]:
    returns = np.bincount(batch.trajectory, batch.reward, len(episodes))
    steps = np.bincount(batch.trajectory, minlength=len(episodes))

    def ended(e: _Episode) -> Outcome:
        won, task_type, score = bool(e.info["won"]), e.info.get("task_type", ""), e.info.get("score")
        score = None if score is None else float(score)
        return Outcome(e.task, task_type, won, float(returns[e.index]), int(steps[e.index]), score)

    return [ended(episode) for episode in episodes]


def _metrics(
    batch: Trajectories, outcomes: Sequence[Outcome], task_types: Sequence[str], seconds: float
) -> dict[str, float]:
    tokens = sum(map(len, batch.response_tokens))
    assert batch.response_cut is not None
    metrics: dict[str, float] = {
        "success": float(np.mean([outcome.won for outcome in outcomes])),
        "episode_return": float(batch.reward.sum()) / len(outcomes),
        "episode_length": batch.num_steps / len(outcomes),
        "valid_action_share": float(batch.action_valid.mean()),
        "response_length": tokens / batch.num_steps,
        "response_cut_share": float(batch.response_cut.mean()),
        "episodes": len(outcomes),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }
    scores = [outcome.score for outcome in outcomes if outcome.score is not None]
    if scores:
        metrics["score"] = float(np.mean(scores))
    for name in task_types:
        won = [outcome.won for outcome in outcomes if outcome.task_type == name]
        metrics |= {f"success/{name}": float(np.mean(won)) if won else np.nan, f"episodes/{name}": len(won)}
    return metrics

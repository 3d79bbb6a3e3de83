"""Expert episodes to imitate: played once, in the run's own environment and prompts, and kept in its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs.core import environment_class
from experiments.configs import SFTConfig
from experiments.rollout_files import join
from experiments.rollouts import Rollouts
from experiments.scripted import expert_policy, scripted_act, with_slips
from hgpo_jax.types import Trajectories

# A seed's training tasks start at seed * 1_000_000. Demonstrations take the second half of the million, so that a run
# that goes on from them with the same seed meets other tasks.
FIRST_TASK = 500_000
MOST_EPISODES = 500_000


def play(
    rollouts: Rollouts, sft: SFTConfig, show: Callable[[int], None], stopped: Callable[[], bool]
) -> Trajectories | None:
    """Lets the expert play ``sft.episodes`` training tasks, once each, from task ``seed * 1_000_000 + FIRST_TASK`` on.

    Args:
      rollouts: of the run, with groups of one and as many steps as the expert may take.
      sft: who plays, how many episodes, and how often it slips.
      show: told how many are over.
      stopped: asked between two waves of episodes; True ends it.

    Returns:
      The steps of the episodes that were won, or with ``only_won`` off of all, without the slips; None if it was
      stopped.

    Raises:
      ValueError: no such expert, too many episodes, none was won, or a reply is longer than the policy's may be.
    """
    config, episodes = rollouts.config, sft.episodes
    if episodes > MOST_EPISODES:
        raise ValueError(f"episodes is {episodes}, expected {MOST_EPISODES} at most: the next seed's tasks follow")
    policy, slips = with_slips(_policy(rollouts, sft.expert), config.env, sft.slips)
    act = scripted_act(policy, rollouts.tokenizer)
    first = config.seed * 1_000_000 + FIRST_TASK
    parts: list[Trajectories] = []
    for done in range(0, episodes, config.rollout.tasks):
        if stopped():
            return None
        show(done)
        tasks = range(first + done, first + min(done + config.rollout.tasks, episodes))
        batch, _, outcomes = rollouts.collect(act, None, tasks, jax.random.key(done))
        kept = np.array([outcome.won or not sft.only_won for outcome in outcomes])[batch.trajectory]
        slipped = np.array([step in slips for step in zip(batch.trajectory.tolist(), batch.step.tolist(), strict=True)])
        slips.clear()
        if (kept & ~slipped).any():
            parts.append(batch.take(kept & ~slipped))
    show(episodes)
    if not parts:
        raise ValueError(
            f"the expert won none of {episodes} episodes of at most {config.rollout.max_steps} steps: raise "
            "--max-steps, or choose another --expert"
        )
    batch, most = join(parts), config.rollout.max_response_length
    longest = max(map(len, batch.response_tokens))
    if longest > most:
        raise ValueError(
            f"the expert's longest reply has {longest} tokens, but rollout.max_response_length is {most}: raise it, "
            "or the policy could not say what it has learned"
        )
    return batch


def _policy(rollouts: Rollouts, expert: str) -> Any:
    config = rollouts.config
    split = environment_class(config.env).splits[0]
    return expert_policy(config.env, expert, split, **config.env_settings)


def save(batch: Trajectories, path: Path) -> None:
    """Writes the batch such that whoever is killed meanwhile leaves no half of it."""
    beside = path.with_name(path.name + ".partial")
    batch.save(beside)
    beside.replace(path)


def split_off(batch: Trajectories, share: float) -> tuple[Trajectories, Trajectories | None]:
    """The batch without its last episodes, and these: ``share`` of all, one at least where it is above 0.

    Raises:
      ValueError: nothing would be left to train on.
    """
    episodes = np.unique(batch.trajectory)
    if not share:
        return batch, None
    held_out = max(1, round(share * len(episodes)))
    if held_out >= len(episodes):
        raise ValueError(
            f"{len(episodes)} episodes were kept, and {held_out} of them are to be held out: raise --episodes, or "
            "lower --held-out"
        )
    late = batch.trajectory >= episodes[-held_out]
    return batch.take(~late), batch.take(late)

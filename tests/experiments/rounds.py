"""Rollouts whose outcome is known: FrozenLake played by its expert in some episodes, and by staying put in the rest."""

import dataclasses
import json
import sys
from collections.abc import Callable, Collection
from typing import Any

import jax

from experiments.configs import load_config
from experiments.rollouts import Rollouts
from experiments.scripted import expert_policy, scripted_act
from hgpo_jax.policy.tokenization import load_tokenizer
from hgpo_jax.rollout.collector import Act, Request
from hgpo_jax.types import Trajectories


def known_act(mixed: Callable[[int], bool], won: Callable[[int], bool] = lambda _: False) -> Act:
    """Of the mixed tasks every other episode is won; of those ``won`` all, some a step late; of the rest none."""
    expert = expert_policy("hgpo/FrozenLakeText-v0", "", "train")

    def policy(request: Request) -> str:
        odd = request.episode % 2
        if won(request.task) and request.turn >= odd:
            return expert(request._replace(turn=request.turn - odd))
        return expert(request) if mixed(request.task) and not odd else "go up"  # from the top row

    return scripted_act(policy, load_tokenizer("frozen_lake"))


def rollouts(act: Act, rounds: int, tasks: int = 2, group_size: int = 4) -> Rollouts:
    """Of ``tasks`` tasks a round, played by ``act``."""
    config = load_config("frozen_lake")
    settings = {"tasks": tasks, "group_size": group_size, "dynamic_sampling_rounds": rounds, "max_steps": 12}
    made = Rollouts(dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, **settings)))
    made._act = act
    return made


def played(mixed: Collection[int], rounds: int) -> tuple[Trajectories, dict[str, float]]:
    """Batch and metrics of the tasks from 0 on, of which ``mixed`` are informative."""
    made = rollouts(known_act(lambda task: task in mixed), rounds)
    batch, metrics, _ = made.train(None, 0, jax.random.key(0))
    return batch, metrics


def told(mixed: Collection[int]) -> dict[str, Any]:
    """What two ways to play the same tasks can be compared by."""
    batch, metrics = played(mixed, 4)
    names = ("rounds", "groups_dropped", "groups_surplus", "success", "episodes")
    return {name: metrics[name] for name in names} | {"prompts": [tokens.tolist() for tokens in batch.prompt_tokens]}


def main() -> None:
    """ADDRESS COUNT ID: what this process gets where each has a group to keep, and where the second has none."""
    address, count, process = sys.argv[1:]
    jax.distributed.initialize(address, int(count), int(process))
    print("told " + json.dumps([told((2, 5)), told((0, 2))]))


if __name__ == "__main__":
    main()

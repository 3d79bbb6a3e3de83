"""gymnasium's FrozenLake on random maps, told in words.

The agent is told the four neighbouring tiles and the direction of the goal, nothing else: the same words come
up at many places of a lake, and only the history tells them apart.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map
from gymnasium.spaces import Text

from envs.core import ASCII, Expert

Split = Literal["train", "test"]

VERBS = ("go", "move", "step", "walk")
DIRECTIONS = {
    "left": (0, -1),
    "down": (1, 0),
    "right": (0, 1),
    "up": (-1, 0),
}  # in the order of FrozenLake's actions
MOVES = {"left": "to the left", "down": "down", "right": "to the right", "up": "up"}  # what follows a verb
REWARD_GOAL = 10
TILE_PROBABILITY = 0.75
TEST_SHARE = 5  # one layout in five is held out
SEEDS_PER_TASK = 1000

_TILES = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}
_COMMAND = re.compile(rf"\b(?:{'|'.join(VERBS)})\s+(?:to\s+the\s+(left|right)|(up|down))\b")
_INSTRUCTION = "cross the frozen lake to the goal\nreply with one move like go up or go to the left"


def split_of(layout: Sequence[str]) -> Split:
    """Which split a layout belongs to: a stable hash of its rows, so train and test maps are disjoint."""
    return "test" if zlib.crc32("".join(layout).encode()) % TEST_SHARE == 0 else "train"


@functools.lru_cache(maxsize=65536)
def lake_map(task: int, split: Split = "train", size: int = 4) -> tuple[str, ...]:
    """The solvable map of a task: the first of the task's own seeds whose layout falls into ``split``.

    A layout may come up under several task numbers of its split (`distinct_tasks` picks different ones),
    never in both splits.

    Args:
        task: number of the task, >= 0.
        split: "train" or "test".
        size: side of the map, >= 3.

    Returns:
        ``size`` rows of tiles: S start, F frozen, H hole, G goal.

    Raises:
        ValueError: if an argument is out of range.
    """
    if task < 0:
        raise ValueError(f"task must be at least 0, got {task}")
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    if size < 3:
        raise ValueError(f"size must be at least 3 (smaller lakes leave nothing to hold out), got {size}")
    for seed in range(task * SEEDS_PER_TASK, (task + 1) * SEEDS_PER_TASK):
        layout = tuple(generate_random_map(size, p=TILE_PROBABILITY, seed=seed))
        if split_of(layout) == split:
            return layout
    raise ValueError(f"no {split} map of size {size} among the {SEEDS_PER_TASK} seeds of task {task}")


def distinct_tasks(count: int, split: Split = "test", size: int = 4, first: int = 0) -> list[int]:
    """The ``count`` task numbers from ``first`` on whose layouts all differ: a panel of as many different maps."""
    tasks: dict[tuple[str, ...], int] = {}
    task = first
    while len(tasks) < count:
        if task - first > 1000 + 20 * count:
            raise ValueError(f"{count} different {split} maps of size {size} asked for, {len(tasks)} found")
        tasks.setdefault(lake_map(task, split, size), task)
        task += 1
    return list(tasks.values())


def describe(layout: Sequence[str], row: int, column: int) -> str:
    """What is seen: ``up wall down ice left wall right hole goal down right``; at the end ``goal here``."""
    size = len(layout)

    def tile(name: str) -> str:
        r, c = row + DIRECTIONS[name][0], column + DIRECTIONS[name][1]
        return _TILES[layout[r][c]] if 0 <= r < size and 0 <= c < size else "wall"

    goal = ("down " if row < size - 1 else "") + ("right" if column < size - 1 else "")
    sides = " ".join(f"{name} {tile(name)}" for name in ("up", "down", "left", "right"))
    return f"{sides} goal {goal.strip() or 'here'}"


def parse_reply(reply: str) -> str | None:
    """The direction of the one command (``go to the left``, ``walk up``, ..) in a reply; None for no or several.

    Other words may stand around it, and are not understood: the agent can think aloud, but "do not go up" goes up.
    """
    commands = _COMMAND.findall(reply.lower())
    return "".join(commands[0]) if len(commands) == 1 else None


def shortest_path(layout: Sequence[str], start: tuple[int, int] = (0, 0)) -> list[str]:
    """Directions of a shortest way from ``start`` to the goal (breadth first): the expert.

    Raises:
        ValueError: if there is no way.
    """
    size = len(layout)
    paths: dict[tuple[int, int], list[str]] = {start: []}
    queue = deque([start])
    while queue:
        row, column = here = queue.popleft()
        if layout[row][column] == "G":
            return paths[here]
        for name, (d_row, d_column) in DIRECTIONS.items():
            there = row + d_row, column + d_column
            inside = all(0 <= x < size for x in there)
            if inside and there not in paths and layout[there[0]][there[1]] != "H":
                paths[there] = [*paths[here], name]
                queue.append(there)
    raise ValueError(f"the map {'/'.join(layout)} has no way from {start} to the goal")


class FrozenLakeText(gymnasium.Env[str, str]):
    """FrozenLake without slipping as a text environment (protocol: `envs.core.TextEnv`).

    Reward 10 on the goal, else 0; the episode terminates on the goal and in a hole, and has no step
    cap of its own. A reply without exactly one command changes nothing and repeats the observation.
    """

    splits: ClassVar = ("train", "test")
    task_types: ClassVar = ()
    experts: ClassVar = ("planner",)
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium's name and type)

    def __init__(self, size: int = 4, render_mode: str | None = None):
        lake_map(0, "train", size)  # a bad size fails here
        self.size = size
        self.render_mode = render_mode
        self.observation_space = Text(96, charset="abcdefghijklmnopqrstuvwxyz ")
        self.action_space = Text(512, min_length=0, charset=ASCII)
        self.layout: tuple[str, ...] = ()
        self.lake: FrozenLakeEnv | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        options = options or {}
        task = options.get("task")
        if task is None:
            task = self.np_random.integers(2**20)
        self.layout = lake_map(int(task), options.get("split", "train"), self.size)
        self.lake = FrozenLakeEnv(
            self.render_mode, list(self.layout), is_slippery=False, reward_schedule=(REWARD_GOAL, 0, 0)
        )
        self.lake.reset(seed=seed)
        return self._observation(), self._info("", action_valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.lake is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        direction = parse_reply(action)
        if direction is None:
            return self._observation(), 0.0, False, False, self._info("invalid", action_valid=False)
        _, reward, terminated, _, _ = self.lake.step(list(DIRECTIONS).index(direction))
        info = self._info(f"go {MOVES[direction]}", action_valid=True, won=reward > 0)
        return self._observation(), float(reward), bool(terminated), False, info

    def render(self) -> Any:
        return None if self.lake is None else self.lake.render()

    def _observation(self) -> str:
        assert self.lake is not None
        return describe(self.layout, *divmod(int(self.lake.s), self.size))

    def _info(self, action: str, *, action_valid: bool, won: bool = False) -> dict[str, Any]:
        return {
            "anchor_state": self._observation(),
            "action_valid": action_valid,
            "action": action,
            "won": won,
        }

    @staticmethod
    def about(size: int = 4) -> str:
        """The size of the lakes."""
        return f"FrozenLake: random lakes of {size}x{size} tiles"

    @staticmethod
    def format_prompt(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        """At most 66 words with two past pairs; ends where the agent's reply begins."""
        del info
        past = "".join(f"before {seen}\nyou {action}\n" for seen, action in history)
        return f"{_INSTRUCTION}\n{past}now {observation}\nyou"

    @staticmethod
    def panel_tasks(split: str, count: int, seed: int, /, **kwargs: Any) -> list[int]:
        """The first ``count`` tasks from ``1_000_000 * seed`` on whose maps differ."""
        if count < 1:
            raise ValueError("lakes have no end: give the panel a size of at least 1")
        return distinct_tasks(count, cast(Split, split), first=1_000_000 * seed, **kwargs)

    @staticmethod
    def fingerprint(task: int, split: str, **kwargs: Any) -> str:
        """The map."""
        return "/".join(lake_map(task, cast(Split, split), **kwargs))

    @staticmethod
    def make_expert(name: str, task: int, split: str, **kwargs: Any) -> Expert:
        """A shortest way across, by heart."""
        if name not in FrozenLakeText.experts:
            raise ValueError(f"no expert {name!r} on frozen lakes; there is: {', '.join(FrozenLakeText.experts)}")
        way = iter(shortest_path(lake_map(task, cast(Split, split), **kwargs)))
        return lambda observation, info: f"go {MOVES[next(way, 'up')]}"

    @staticmethod
    def random_reply(rng: np.random.Generator, info: Mapping[str, Any]) -> str:
        """``go to the left``, ``i walk up``, ...: every direction as likely as any other."""
        del info
        words = (rng.choice(["", "i"]), rng.choice(VERBS), rng.choice(list(MOVES.values())))
        return " ".join(filter(None, words))

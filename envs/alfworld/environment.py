"""ALFWorld as a text environment (protocol: `envs.core.TextEnv`), on the original games or on generated ones."""

from __future__ import annotations

import functools
import hashlib
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Text

from envs.alfworld import protocol
from envs.alfworld.data import HOW_TO_GET, game_files
from envs.alfworld.engine import Engine
from envs.alfworld.experts import SearchingExpert, plan
from envs.alfworld.game import TASK_TYPES, Game, read_game
from envs.alfworld.generator import draw_problem, generate
from envs.alfworld.protocol import PromptStyle, check_style, parse_reply
from envs.core import ASCII, Expert
from envs.draws import Draws
from envs.replies import format_reply

REWARD_WON = 10.0
VARIABLE = "ALFWORLD_DATA"  # of the environment: where the original data lies, unless the option ``data`` says
KEPT_GAMES = 4096  # parsed games kept in memory, at most
PANEL_STRIDE = 1_000_000  # generated games between the panels of two seeds


class ALFWorld(gymnasium.Env[str, str]):
    """A household in words, and a task such as "put a hot apple in fridge".

    Reward 10 when the task is done, which ends the episode, else 0. A reply is read as `protocol.parse_reply` says; an
    action that is not possible here costs its step and changes nothing. There is no step cap of its own.

    ``info``, beside what `envs.core.StepInfo` names: ``task_type``, ``goal``, ``step`` (actions taken),
    ``admissible_commands`` and ``style`` (`protocol.PromptStyle`). The anchor state is the raw observation.

    Args:
        data: folder of the original games (json_2.1.1, or the one that holds it); "" takes the variable ALFWORLD_DATA,
            and where that is not set, generated games.
        receptacles: of generated games: how many in a scene, at least 4; 0 for full scenes.
        task_types: of generated games: comma-separated; "" for all six.
        think: whether replies have to hold <think> tags.
        strict: whether a reply whose action is not possible here counts as invalid too, so that a penalty on invalid
            actions falls on it; in the published runs it is valid.
        actions, prompt: see `protocol.PromptStyle`.

    Raises:
        ValueError: an option that is not possible, or a folder without games.
    """

    splits: ClassVar = ("train", "seen", "unseen")
    task_types: ClassVar = TASK_TYPES
    experts: ClassVar = ("planner", "searcher", "hesitant")
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium's name and type)

    def __init__(
        self,
        data: str = "",
        receptacles: int = 0,
        task_types: str = "",
        think: bool = True,
        strict: bool = False,
        actions: str = "listed",
        prompt: str = "full",
        render_mode: str | None = None,
    ):
        self.render_mode = render_mode
        self.observation_space = Text(8192, charset=ASCII)
        self.action_space = Text(8192, min_length=0, charset=ASCII)
        style = PromptStyle(think, cast(protocol.Actions, actions), cast(protocol.Wording, prompt))
        self._style = check_style(style)
        self._strict = strict
        self._source = (_folder(data), receptacles, task_types)
        self._engine: Engine | None = None
        self._step = 0
        check_source(data, receptacles, task_types)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        options = options or {}
        task = options.get("task")
        if task is None:
            task = self.np_random.integers(2**20)
        self._engine = Engine(_load(options.get("split", "train"), int(task), *self._source))
        self._step = 0
        return self._engine.observation, self._info("", action_valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._engine is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        command, valid = parse_reply(action, self._style.think)
        if self._strict and command not in self._engine.admissible_commands:
            valid = False
        observation = self._engine.step(command)
        self._step += 1
        won = self._engine.won
        return observation, REWARD_WON * won, won, False, self._info(command, action_valid=valid)

    def render(self) -> Any:
        return None if self._engine is None else self._engine.observation

    def _info(self, action: str, *, action_valid: bool) -> dict[str, Any]:
        assert self._engine is not None
        game = self._engine.game
        return {
            "anchor_state": self._engine.observation,
            "action_valid": action_valid,
            "action": action,
            "won": self._engine.won,
            "task_type": game.task_type,
            "goal": game.task,
            "step": self._step,
            "admissible_commands": self._engine.admissible_commands,
            "style": self._style,
        }

    @staticmethod
    def about(data: str = "", receptacles: int = 0, task_types: str = "", **_: Any) -> str:
        """Which games are played, and where there are none of the original's, how to get them."""
        if folder := _folder(data):
            return f"ALFWorld: the original games in {folder}"
        scale = f"scenes of {receptacles} receptacles" if receptacles else "full scenes"
        return (
            f"ALFWorld: generated games, {scale}{', ' + task_types if task_types else ''}. For the original ones: "
            f"pip install alfworld && alfworld-download, then --data FOLDER or {VARIABLE}=FOLDER (it holds json_2.1.1)"
        )

    @staticmethod
    def format_prompt(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        """See `protocol.format_prompt`."""
        return protocol.format_prompt(observation, history, info)

    @staticmethod
    def random_reply(rng: np.random.Generator, info: Mapping[str, Any]) -> str:
        """One of the admissible actions, but for "help", each as likely as any other."""
        commands = [command for command in info["admissible_commands"] if command != "help"]
        return format_reply(commands[rng.integers(len(commands))], info["style"].think)

    @staticmethod
    def make_expert(
        name: str,
        task: int,
        split: str,
        data: str = "",
        receptacles: int = 0,
        task_types: str = "",
        think: bool = True,
        **_: Any,
    ) -> Expert:
        """ "planner" knows the scene and takes a shortest way by heart; "searcher" sees what an agent sees, and goes on
        from there whoever acted before. "hesitant" is a searcher that spends half of its steps on looking around: one
        that reinforcement can better.
        """
        if name == "planner":
            commands = iter(plan(_load(split, task, _folder(data), receptacles, task_types)))
            return lambda observation, info: format_reply(next(commands, "look"), think)
        if name in ("searcher", "hesitant"):
            expert, draws = SearchingExpert(), Draws(f"{split}/{task}")

            def reply(observation: str, info: Mapping[str, Any]) -> str:
                command = expert.act(observation, info["admissible_commands"], info["action"])
                hesitates = name == "hesitant" and draws.between(0, 1)
                return format_reply("look" if hesitates else command, think)

            return reply
        raise ValueError(f"no expert {name!r} in ALFWorld; there are: {', '.join(ALFWorld.experts)}")

    @staticmethod
    def panel_tasks(
        split: str, count: int, seed: int, /, data: str = "", receptacles: int = 0, task_types: str = "", **_: Any
    ) -> list[int]:
        """Original games: of the seed's own shuffle of the split. Generated: the first different ones of the seed."""
        if folder := _folder(data):
            games = len(_files(folder, split))
            return list(range(seed * games, seed * games + (count or games)))
        if count < 1:
            raise ValueError("generated games have no end: give the panel a size of at least 1")
        tasks: dict[str, int] = {}
        task = seed * PANEL_STRIDE
        while len(tasks) < count:
            if task >= seed * PANEL_STRIDE + 1000 + 20 * count:
                raise ValueError(f"{count} different {split} games asked for, {len(tasks)} found: raise receptacles")
            tasks.setdefault(draw_problem(split, task, **_generator_options(receptacles, task_types)).fingerprint, task)
            task += 1
        return list(tasks.values())

    @staticmethod
    def fingerprint(task: int, split: str, data: str = "", receptacles: int = 0, task_types: str = "", **_: Any) -> str:
        """Of an original game the SHA-256 of its file, of a generated one all that a player could tell it by."""
        if folder := _folder(data):
            return hashlib.sha256(_file(folder, split, task).read_bytes()).hexdigest()
        return draw_problem(split, task, **_generator_options(receptacles, task_types)).fingerprint


def _folder(data: str) -> str:
    return data or os.environ.get(VARIABLE, "")


@functools.lru_cache(maxsize=16)
def _files(folder: str, split: str) -> list[Path]:
    return game_files(Path(folder), split)


@functools.lru_cache(maxsize=64)
def _order(folder: str, split: str, turn: int) -> list[int]:
    """Every game once, in an order of this turn's own: the same on any machine, since the files are sorted."""
    draws = random.Random(f"{split} {turn}")  # only ``random()`` gives the same on any version of Python
    keys = [draws.random() for _ in _files(folder, split)]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _file(folder: str, split: str, task: int) -> Path:
    """Tasks run through all games, then again in another order."""
    files = _files(folder, split)
    turn, place = divmod(task, len(files))
    return files[_order(folder, split, turn)[place]]


def _generator_options(receptacles: int, task_types: str) -> dict[str, Any]:
    named = [name.strip() for name in task_types.split(",") if name.strip()]
    return {"receptacles": receptacles, **({"task_types": named} if named else {})}


def check_source(data: str, receptacles: int, task_types: str) -> None:
    """Raises a ValueError where no games can come from."""
    if not (folder := _folder(data)):
        draw_problem(ALFWorld.splits[0], 0, **_generator_options(receptacles, task_types))
    elif receptacles or task_types:
        source = f"data ({data})" if data else f"the variable {VARIABLE} ({folder})"
        raise ValueError(
            f"receptacles and task_types choose generated games, {source} the original ones: set receptacles to 0 "
            f"and task_types to nothing, or leave {'data out' if data else f'{VARIABLE} unset'}"
        )
    elif not Path(folder).is_dir():
        raise ValueError(f"no folder {folder} with the original games: {HOW_TO_GET}")


@functools.lru_cache(maxsize=KEPT_GAMES)
def _load(split: str, task: int, folder: str, receptacles: int, task_types: str) -> Game:
    """The game of a task, kept: a group's episodes and a panel's evaluations share it. ``folder`` is `_folder`'s."""
    if split not in ALFWorld.splits:
        raise ValueError(f"ALFWorld has no split {split!r}; there are: {', '.join(ALFWorld.splits)}")
    if task < 0:
        raise ValueError(f"task must be at least 0, got {task}")
    if folder:
        return read_game(_file(folder, split, task))
    return generate(split, task, **_generator_options(receptacles, task_types))

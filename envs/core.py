"""What a text environment is, and how many of them run side by side.

A text environment is a ``gymnasium.Env`` whose observations and actions are strings inside finite ``Text``
spaces. Whatever else a rollout needs travels in ``info`` (`StepInfo`). The prompt's wording belongs to the
environment's class, so that prompts are built without an instance.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, SupportsFloat, TypedDict, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv

ENTRY_POINTS = {
    "hgpo/FrozenLakeText-v0": "envs.frozen_lake:FrozenLakeText",
    "hgpo/ALFWorld-v0": "envs.alfworld.environment:ALFWorld",
    "hgpo/WebShop-v0": "envs.webshop.environment:WebShop",
    "hgpo/Discrete-v0": "envs.discrete:DiscreteText",
}


ASCII = "".join(map(chr, range(32, 127))) + "\n"  # the characters that samples of text spaces are drawn from

Expert = Callable[[str, Mapping[str, Any]], str]  # (observation, info) -> reply; called once a step, from the first


def check_choice(option: str, value: object, choices: Sequence[object]) -> None:
    """Raises a ValueError where an environment's option has a value that is none of its choices."""
    if value not in choices:
        raise ValueError(f"the option {option} is {value!r}, expected one of {', '.join(map(str, choices))}")


class StepInfo(TypedDict):
    """The ``info`` of ``reset`` and ``step``."""

    anchor_state: Any  # key of the current observation: str, bytes, number, tuple, or array compared by value
    action_valid: bool  # whether the reply has the form that the environment asks for, as it says; True after a reset
    action: str  # the action as the memory shows it; "" after a reset
    won: bool  # the task is finished successfully


class TextEnv(Protocol):
    """The protocol; implementations derive from ``gymnasium.Env[str, str]`` and pass its ``check_env``.

    Tasks are numbered from 0 in each split. What is static takes the environment's own options as ``kwargs``.
    """

    observation_space: Text
    action_space: Text
    splits: ClassVar[tuple[str, ...]]  # the first is trained on, the others are held out
    task_types: ClassVar[tuple[str, ...]]  # that ``info["task_type"]`` may name; none where tasks are all alike
    experts: ClassVar[tuple[str, ...]]  # names that `make_expert` knows, the best one first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts ``options["task"]`` (an int) of ``options["split"]`` (the first one if absent).

        Without a task one is drawn from the seeded generator. The same task and seed give the same start.
        """
        ...

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Reads the action out of a reply in free text; returns gymnasium's five values."""
        ...

    @staticmethod
    def about(**kwargs: Any) -> str:
        """Which tasks are played, in a line for the terminal: their source and scale."""
        ...

    @staticmethod
    def format_prompt(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        """The prompt for ``observation``, given past (observation, action) pairs, oldest first."""
        ...

    @staticmethod
    def random_reply(rng: np.random.Generator, info: Mapping[str, Any]) -> str:
        """A valid reply whose action is drawn by lot."""
        ...

    @staticmethod
    def make_expert(name: str, task: int, split: str, **kwargs: Any) -> Expert:
        """Something that solves one episode of this task."""
        ...

    @staticmethod
    def panel_tasks(split: str, count: int, seed: int, /, **kwargs: Any) -> list[int]:
        """The tasks of an evaluation panel: the same on any machine; a larger count goes on where a smaller ends.

        Tasks are different as long as there are so many; then some come again. 0 asks for each once.
        """
        ...

    @staticmethod
    def fingerprint(task: int, split: str, **kwargs: Any) -> str:
        """Text that differs where the task's content does, whatever its number."""
        ...


class IdleAfterEnd(gymnasium.Wrapper[str, str, str, str]):
    """Before the first reset and after an episode's end, a step does nothing and repeats what was last seen.

    Episodes in a vector end at different times; this lets the others go on at no cost.
    """

    def __init__(self, env: gymnasium.Env[str, str]):
        super().__init__(env)
        self._last: tuple[str, bool, bool, dict[str, Any]] | None = ("", False, False, {})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._last = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._last is not None:
            observation, terminated, truncated, info = self._last
            return observation, 0.0, terminated, truncated, dict(info)
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            self._last = (observation, terminated, truncated, info)
        return observation, reward, terminated, truncated, info


class TextVectorEnv(SyncVectorEnv):
    """gymnasium's `SyncVectorEnv` without autoreset, in which finished episodes idle until they are reset."""

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env[str, str]]]):
        wrapped = [lambda make=make: IdleAfterEnd(make()) for make in env_fns]
        super().__init__(wrapped, autoreset_mode=AutoresetMode.DISABLED)

    def step(self, actions: Any) -> Any:
        # The parent refuses steps after the end; here each environment answers for itself.
        self._autoreset_envs[:] = False
        return super().step(actions)


def register_environments() -> None:
    """Makes the ids known to gymnasium. Entry points are strings: nothing is imported before it is made."""
    for env_id, entry_point in ENTRY_POINTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=entry_point)


def make_vector(env_id: str, num_envs: int, workers: int = 0, **kwargs: Any) -> TextVectorEnv:
    """``num_envs`` environments side by side, autoreset disabled, finished ones idle.

    Reset some of them with gymnasium's ``options={"task": .., "split": .., "reset_mask": bool [num_envs]}``.

    Args:
        env_id: a gymnasium id, such as "hgpo/FrozenLakeText-v0".
        num_envs: how many, at least 1.
        workers: processes that share them (`envs.workers`); 0 keeps all in this one.
        **kwargs: passed on to ``gymnasium.make`` and the environment.

    Raises:
        ValueError: if ``num_envs`` is not positive, ``workers`` is negative, gymnasium knows no such id, or the
            environment no such option.
    """
    gymnasiums = inspect.signature(gymnasium.make).parameters
    environment_class(env_id, **{name: value for name, value in kwargs.items() if name not in gymnasiums})
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    if workers < 0:
        raise ValueError(f"workers must be at least 0, got {workers}")
    if workers:
        from envs.workers import ProcessVectorEnv  # which builds on this module

        return ProcessVectorEnv(env_id.rpartition(":")[2], num_envs, workers, kwargs)
    return TextVectorEnv([lambda: gymnasium.make(env_id, disable_env_checker=True, **kwargs) for _ in range(num_envs)])


def environment_class(env_id: str, **kwargs: Any) -> type[TextEnv]:
    """The class behind an id: what needs no instance hangs on it.

    Args:
        env_id: a gymnasium id, such as "hgpo/FrozenLakeText-v0"; "module:id" imports first what registers it.
        **kwargs: the environment's own options, of which names and types are checked.

    Raises:
        ValueError: if gymnasium knows no such id, or the environment no such option of this type.
    """
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        entry_point = gymnasium.spec(name).entry_point
    except ImportError as error:
        raise ValueError(f"{env_id}: {error}; the module has to be installed, or lie in the current folder") from error
    except gymnasium.error.Error as error:
        raise ValueError(f"{error}; the text environments here are {', '.join(ENTRY_POINTS)}") from error
    env = cast(type[TextEnv], load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point)
    parameters = inspect.signature(env).parameters
    known = [name for name in parameters if name != "render_mode"]
    if unknown := [name for name in kwargs if name not in known]:
        raise ValueError(f"{env_id} has no option {', '.join(unknown)}; there are: {', '.join(known)}")
    for name, value in kwargs.items():
        kind = type(parameters[name].default)  # each option has a default of its own type
        if name in known and type(value) is not kind:  # from a command line "no" is text, which would count as True
            example = "True or False" if kind is bool else {int: "a whole number", str: "text"}[kind]
            raise ValueError(f"{env_id}: the option {name} is {value!r}, expected {example}")
    return env


@dataclasses.dataclass(frozen=True)
class Panel:
    """A fixed list of tasks to evaluate on; ``str()`` names it in logs: "test-200-seed0-8f0c2ad1b7e3"."""

    split: str
    seed: int
    tasks: tuple[int, ...]
    hash: str  # of the tasks' contents, in order: 12 hexadecimal digits

    def __str__(self) -> str:
        return f"{self.split}-{len(self.tasks)}-seed{self.seed}-{self.hash}"


def make_panel(env_id: str, split: str = "", count: int = 0, seed: int = 0, /, **kwargs: Any) -> Panel:
    """The evaluation panel of this name: the same list of tasks on any machine and any number of workers.

    Args:
        env_id: a gymnasium id.
        split: "" is the first that is held out.
        count: how many tasks; 0 for each of the split once.
        seed: of the choice of tasks.
        **kwargs: as the environment's own.

    Raises:
        ValueError: an unknown id or split, or a count or seed that is not possible.
    """
    env = environment_class(env_id, **kwargs)
    held_out = env.splits[1:]
    if split and split not in env.splits:
        raise ValueError(f"{env_id} has no split {split!r}; there are: {', '.join(env.splits)}")
    if count < 0 or seed < 0:
        raise ValueError(f"a panel's size and seed have to be at least 0, got size {count} and seed {seed}")
    split = split or held_out[0]
    tasks = env.panel_tasks(split, count, seed, **kwargs)
    content = hashlib.sha256()
    for task in tasks:
        content.update(env.fingerprint(task, split, **kwargs).encode() + b"\0")
    return Panel(split, seed, tuple(tasks), content.hexdigest()[:12])

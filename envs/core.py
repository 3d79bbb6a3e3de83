"""What a text environment is, and how many of them run side by side.

A text environment is a ``gymnasium.Env`` whose observations and actions are strings inside finite ``Text``
spaces. Whatever else a rollout needs travels in ``info`` (`StepInfo`). The prompt's wording belongs to the
environment's class, so that prompts are built without an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, SupportsFloat, TypedDict

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv

ENTRY_POINTS = {"hgpo/FrozenLakeText-v0": "envs.frozen_lake:FrozenLakeText"}

PromptFormat = Callable[[str, Sequence[tuple[str, str]], Mapping[str, Any]], str]


class StepInfo(TypedDict):
    """The ``info`` of ``reset`` and ``step``."""

    anchor_state: Any  # key of the current observation: str, bytes, number, tuple, or array compared by value
    action_valid: bool  # False: the reply held no legal action and nothing happened; True after a reset
    action: str  # the action as the memory shows it; "" after a reset
    won: bool  # the task is finished successfully


class TextEnv(Protocol):
    """The protocol; implementations derive from ``gymnasium.Env[str, str]`` and pass its ``check_env``."""

    observation_space: Text
    action_space: Text

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts ``options["task"]`` (an int) of ``options["split"]`` ("train" or "test"; train if absent).

        Without a task one is drawn from the seeded generator. The same task and seed give the same start.
        """
        ...

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Reads the action out of a reply in free text; returns gymnasium's five values."""
        ...

    @staticmethod
    def format_prompt(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        """The prompt for ``observation``, given past (observation, action) pairs, oldest first."""
        ...

    @staticmethod
    def random_reply(rng: np.random.Generator) -> str:
        """A valid reply whose action is drawn by lot."""
        ...

    @staticmethod
    def held_out_tasks(count: int, **kwargs: Any) -> list[int]:
        """The first ``count`` different tasks of the test split; ``kwargs`` as the environment's own."""
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


def make_vector(env_id: str, num_envs: int, **kwargs: Any) -> TextVectorEnv:
    """``num_envs`` environments side by side, autoreset disabled, finished ones idle.

    Reset some of them with gymnasium's ``options={"task": .., "split": .., "reset_mask": bool [num_envs]}``.

    Args:
        env_id: a gymnasium id, such as "hgpo/FrozenLakeText-v0".
        num_envs: how many, at least 1.
        **kwargs: passed on to the environment.

    Raises:
        ValueError: if ``num_envs`` is not positive, or gymnasium knows no such id.
    """
    try:
        gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise ValueError(f"{error}; the text environments here are {', '.join(ENTRY_POINTS)}") from error
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    return TextVectorEnv([lambda: gymnasium.make(env_id, disable_env_checker=True, **kwargs) for _ in range(num_envs)])


def prompt_format(env_id: str) -> PromptFormat:
    """The environment's ``format_prompt``, without making the environment."""
    return _creator(env_id).format_prompt


def held_out_tasks(env_id: str, count: int, **kwargs: Any) -> list[int]:
    """Numbers of ``count`` different tasks of the test split: an evaluation panel, the same on any machine."""
    return _creator(env_id).held_out_tasks(count, **kwargs)


def random_reply(env_id: str) -> Callable[[np.random.Generator], str]:
    """The environment's ``random_reply``: valid replies, their actions drawn by lot."""
    return _creator(env_id).random_reply


def _creator(env_id: str) -> Any:
    entry_point = gymnasium.spec(env_id).entry_point
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point

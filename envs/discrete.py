"""Any gymnasium environment whose actions are numbered, as a text environment: Taxi, Blackjack, one of your own.

What is observed becomes words (Taxi, CliffWalking, Blackjack, FrozenLake) or numbers (all others), actions get names.
A task is a reset seed, so episodes of one task meet the same chance, draw for draw. The splits share no seed; where a
game has few starts, such as Taxi's 300, they do share those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Text

from envs.core import ASCII, Expert
from envs.discrete_games import bins_of, is_certain, kept_game, open_game, plan_of, wording_of
from envs.replies import format_reply

FIRST_TEST_SEED = 2**30  # training seeds lie below
PANEL_STRIDE = 1_000_000  # tasks between the panels of two seeds
PANEL_WINDOW = 10_000  # of them looked at for starts that differ

_REPLY = re.compile(r"<action>(.*?)</action>", re.DOTALL)


def seed_of(task: int, split: str) -> int:
    """The reset seed of a task: train from 0, test from 2^30.

    Raises:
        ValueError: an unknown split, or a task outside [0, 2^30).
    """
    if split not in DiscreteText.splits:
        raise ValueError(f"split must be 'train' or 'test', got {split!r}")
    if not 0 <= task < FIRST_TEST_SEED:
        raise ValueError(f"task must be at least 0 and below {FIRST_TEST_SEED}, got {task}")
    return task + FIRST_TEST_SEED * (split == "test")


class DiscreteText(gymnasium.Env[str, str]):
    """A gymnasium environment with numbered actions in words (protocol: `envs.core.TextEnv`).

    The reward is the game's own. A reply needs one ``<action>name</action>``; without it nothing changes and nothing
    is paid, so where each step costs something, let the penalty on invalid actions cost more. The anchor state is the
    observation as told, or with ``bins`` the bin of each number: floor(x / width + 1/2). There is no step cap but the
    game's own.

    ``info``, beside what `envs.core.StepInfo` names: ``title``, ``goal`` and ``admissible``, the names of the actions
    that the game's ``action_mask`` allows; without one, all.

    Args:
        game: a gymnasium id, of the latest version where it names none; "module:id" imports first what registers it.
        settings: a JSON object of the game's own arguments, such as ``{"is_slippery": true}``.
        actions: comma-separated names of the actions, in order; "" takes the known ones, else "action 0", ..
        goal: the task in a sentence, for the prompt; "" takes the known one.
        win_above: an episode is won that the game terminates with a last reward above this; 0 leaves it to what is
            known of the game: the goal of CliffWalking, else a reward above 0. A game that is won by lasting, such as
            CartPole, has no success here, only a return: set this above its rewards.
        strict: whether an action that is not admissible is an invalid reply; it is carried out all the same.
        bins: for observations that never repeat exactly, such as CartPole's: the width of a bin, comma-separated
            for each number, in its own units. Steps with all numbers in the same bins count as in the same state.

    Raises:
        ValueError: no such game, one of other spaces, or an option that does not fit it.
    """

    splits: ClassVar = ("train", "test")
    task_types: ClassVar = ()
    experts: ClassVar = ("planner",)
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (gymnasium's name and type)

    def __init__(
        self,
        game: str = "Taxi",
        settings: str = "",
        actions: str = "",
        goal: str = "",
        win_above: int = 0,
        strict: bool = False,
        bins: str = "",
        render_mode: str | None = None,
    ):
        self.render_mode = render_mode
        self._env: Any = open_game(game, settings)
        self._told = wording_of(self._env, actions)
        self._about = {"title": self._env.spec.name, "goal": goal or self._told.goal}
        self._win_above = win_above or self._told.win_above
        self._strict = strict
        self._bins = bins_of(self._env, bins)
        own = self._env.observation_space if isinstance(self._env.observation_space, Text) else Text(1)
        longest, charset = max(8192, own.max_length), own.character_set | set(ASCII)
        self.observation_space = Text(longest, min_length=0, charset=charset)
        self.action_space = Text(8192, min_length=0, charset=ASCII)
        self._seen: str | None = None
        self._state = ""
        self._admissible: tuple[str, ...] = ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        options = options or {}
        task = options.get("task")
        if task is None:
            task = self.np_random.integers(2**20)
        self._look(*self._env.reset(seed=seed_of(int(task), options.get("split", "train"))))
        return self._seen or "", self._info("", action_valid=True)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._seen is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        name = parse_reply(action, self._told.actions)
        if name is None:
            return self._seen, 0.0, False, False, self._info("invalid", action_valid=False)
        valid = not self._strict or name in self._admissible
        number = int(self._env.action_space.start) + self._told.actions.index(name)
        observation, reward, terminated, truncated, info = self._env.step(number)
        self._look(observation, info)
        own = self._info(name, action_valid=valid, won=bool(terminated and reward > self._win_above))
        return self._seen, float(reward), bool(terminated), bool(truncated), own

    def render(self) -> Any:
        return self._seen

    def close(self) -> None:
        self._env.close()

    def _look(self, observation: Any, info: Mapping[str, Any]) -> None:
        names = self._told.actions
        self._seen = self._told.tell(self._env.unwrapped, observation)
        self._state = self._seen if self._bins is None else self._bins(observation)
        mask = info.get("action_mask", ())
        self._admissible = tuple(name for name, allowed in zip(names, mask, strict=False) if allowed) or names

    def _info(self, action: str, *, action_valid: bool, won: bool = False) -> dict[str, Any]:
        own = {"anchor_state": self._state, "action_valid": action_valid, "action": action, "won": won}
        return own | self._about | {"admissible": self._admissible}

    @staticmethod
    def about(game: str = "Taxi", settings: str = "", actions: str = "", **_: Any) -> str:
        """The game, its settings and actions."""
        env = kept_game(game, settings)
        names = ", ".join(wording_of(env, actions).actions)
        return f"{env.spec.id}{' with ' + settings if settings else ''}, in words: {names}"

    @staticmethod
    def format_prompt(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
        """The goal, what was seen and done, what is seen, and what can be done."""
        past = "".join(f"Before: {seen}\nYou chose: {action}\n" for seen, action in history)
        return (
            f"You play {info['title']}. {info['goal']}\n{past}Now: {observation}\n"
            f"You can choose: {', '.join(info['admissible'])}\nGive one of them inside <action> </action> tags."
        )

    @staticmethod
    def random_reply(rng: np.random.Generator, info: Mapping[str, Any]) -> str:
        """One of the admissible actions, each as likely as any other."""
        return format_reply(info["admissible"][rng.integers(len(info["admissible"]))], think=False)

    @staticmethod
    def make_expert(
        name: str, task: int, split: str, game: str = "Taxi", settings: str = "", actions: str = "", **_: Any
    ) -> Expert:
        """ "planner" knows the game's table of transitions, and goes on from wherever it is led."""
        seed_of(task, split)
        if name not in DiscreteText.experts:
            raise ValueError(f"no expert {name!r} of {game}; there is: {', '.join(DiscreteText.experts)}")
        plan, names = plan_of(game, settings), wording_of(kept_game(game, settings), actions).actions
        return lambda observation, info: format_reply(names[plan[observation]], think=False)

    @staticmethod
    def panel_tasks(split: str, count: int, seed: int, /, **kwargs: Any) -> list[int]:
        """The first tasks from ``1_000_000 * seed`` on that differ; where there are no more, the same again."""
        if not count and not is_certain(kwargs.get("game", "Taxi"), kwargs.get("settings", "")):
            raise ValueError("games of chance have no end: give the panel a size of at least 1")
        tasks: dict[str, int] = {}
        for task in range(seed * PANEL_STRIDE, seed * PANEL_STRIDE + PANEL_WINDOW):
            tasks.setdefault(DiscreteText.fingerprint(task, split, **kwargs), task)
            if len(tasks) == count:
                break
        different = list(tasks.values())
        return [different[i % len(different)] for i in range(count or len(different))]

    @staticmethod
    def fingerprint(task: int, split: str, game: str = "Taxi", settings: str = "", **_: Any) -> str:
        """The start, and where there is chance after it, the seed."""
        env, seed = kept_game(game, settings), seed_of(task, split)
        start = wording_of(env).tell(env.unwrapped, env.reset(seed=seed)[0])
        return f"{env.spec.id} {settings} {start}{'' if is_certain(game, settings) else f' seed {seed}'}"


def parse_reply(reply: str, names: Sequence[str]) -> str | None:
    """The action named in the reply's one ``<action>name</action>``; None for no or several, or an unknown name."""
    found = _REPLY.findall(reply.lower())
    name = " ".join(found[0].split()) if len(found) == 1 else ""
    return name if name in names else None

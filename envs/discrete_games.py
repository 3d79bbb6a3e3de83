"""Gymnasium environments with numbered actions: how they are opened, told in words, and solved by table."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Text
from gymnasium.spaces import Tuple as TupleSpace

LARGEST_BOX = 16  # numbers in an observation
DISCOUNT = 0.999  # the plan's: without one it would not mind when it arrives

_PADS = ("red", "green", "yellow", "blue")


def _taxi(env: Any, state: Any) -> str:
    row, column, passenger, destination = env.decode(int(state))
    places = [f"{name} (row {r} column {c})" for name, (r, c) in zip(_PADS, env.locs, strict=True)]
    where = "in the taxi" if passenger == len(places) else f"at {places[passenger]}"
    return f"taxi at row {row} column {column}, passenger {where}, destination {places[destination]}"


def _cell(env: Any, state: Any) -> str:
    row, column = divmod(int(state), env.ncol if hasattr(env, "ncol") else env.shape[1])
    return f"row {row} column {column}"


def _blackjack(_: Any, hand: Any) -> str:
    total, dealer, ace = map(int, hand)
    return f"your sum {total}, dealer shows {dealer}, {'a' if ace else 'no'} usable ace"


class Wording(NamedTuple):
    """How a game is told."""

    goal: str  # a sentence
    actions: tuple[str, ...]  # their names, in lower case and in order
    tell: Callable[[Any, Any], str]  # of the unwrapped environment and what it observes
    win_above: float = 0.0  # the game is won where it terminates with a reward above this


_CLIFF = Wording(
    "Reach row 3 column 11. The cells between it and row 3 column 0 are a cliff: who falls starts again.",
    ("up", "right", "down", "left"),
    _cell,
    -2.0,  # the last step costs 1 as any other, and nothing but the goal ends the game
)
_LAKE = Wording("Cross the frozen lake to its goal, around the holes.", ("left", "down", "right", "up"), _cell)
KNOWN = {
    "Taxi": Wording(
        "Fetch the passenger and set them down at the destination.",
        ("south", "north", "east", "west", "pick up", "drop off"),
        _taxi,
    ),
    "CliffWalking": _CLIFF,
    "CliffWalkingSlippery": _CLIFF,
    "FrozenLake": _LAKE,
    "FrozenLake8x8": _LAKE,
    "Blackjack": Wording("Come closer to 21 than the dealer, but not above it.", ("stick", "hit"), _blackjack),
}


def _numbers(_: Any, observation: Any) -> str:
    """Whole numbers as they are, others to two decimals."""
    return "numbers " + " ".join(f"{round(float(x), 2) + 0.0:g}" for x in np.ravel(observation))


def _teller(env: Any) -> Callable[[Any, Any], str]:
    """How what is observed is told where the game is not known."""
    space = env.observation_space
    if isinstance(space, Discrete):
        return lambda _, state: f"state {state}"
    if isinstance(space, Text):
        return lambda _, text: text
    small = isinstance(space, Box) and np.prod(space.shape) <= LARGEST_BOX
    flat = isinstance(space, TupleSpace) and all(isinstance(part, Discrete) for part in space.spaces)
    if small or flat or isinstance(space, MultiDiscrete):
        return _numbers
    raise ValueError(
        f"game {env.spec.id}: its observations are {space}; expected Discrete, MultiDiscrete, a Tuple of Discrete, "
        f"Text, or a Box of at most {LARGEST_BOX} numbers: register it with a wrapper that gives one of these"
    )


def open_game(game: str, settings: str = "") -> gymnasium.Env[Any, Any]:
    """The gymnasium environment behind the options ``game`` and ``settings`` of `DiscreteText`.

    Raises:
        ValueError: there is none of this id or with these settings, or its actions are not numbered.
    """
    try:
        kwargs = json.loads(settings or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"settings is {settings!r}, which is not JSON ({error})") from error
    if not isinstance(kwargs, dict):
        raise ValueError(f'settings is {settings!r}, expected a JSON object such as {{"is_slippery": true}}')
    module, colon, name = game.rpartition(":")
    try:
        space, stem, version = parse_env_id(name)
        # gymnasium itself takes the latest version too, but warns each time.
        version = find_highest_version(space, stem) if version is None else version
        env = gymnasium.make(f"{module}{colon}{get_env_id(space, stem, version)}", disable_env_checker=True, **kwargs)
    except (gymnasium.error.Error, ImportError) as error:
        raise ValueError(f"game {game!r} does not open: {error}; name a gymnasium id, or module:id") from error
    except (TypeError, KeyError) as error:
        raise ValueError(f"game {game!r} does not open with settings {kwargs}: {error!r}") from error
    if not isinstance(env.action_space, Discrete):
        raise ValueError(f"game {game}: its actions are {env.action_space}, expected Discrete")
    return env


def wording_of(env: Any, actions: str = "") -> Wording:
    """How a game of `open_game` is told, its actions by the names in ``actions`` where there are some.

    Raises:
        ValueError: as many names as the game has actions are not there, or it observes what cannot be told.
    """
    first, count = int(env.action_space.start), int(env.action_space.n)
    told = None if env.spec.namespace else KNOWN.get(env.spec.name)
    if told is None:
        names = tuple(f"action {number}" for number in range(first, first + count))
        told = Wording("Collect as much reward as you can.", names, _teller(env))
    if not actions:
        return told
    names = tuple(" ".join(name.lower().split()) for name in actions.split(","))
    if len(names) != count or len(set(names)) != count or not all(names):
        raise ValueError(f"actions is {actions!r}, expected {count} different names of {env.spec.id}, comma-separated")
    return told._replace(actions=names)


def bins_of(env: Any, bins: str) -> Callable[[Any], str] | None:
    """What names the bins that a game's numbers lie in, floor(x / width + 1/2); None for ``bins`` "".

    Raises:
        ValueError: widths that are not above 0, or not one for each number of a Box.
    """
    if not bins:
        return None
    space = env.observation_space
    if not isinstance(space, Box):
        raise ValueError(f"bins is {bins!r}, but {env.spec.id} observes {space}, which repeats exactly: leave bins out")
    try:
        widths = np.array([float(width) for width in bins.split(",")])
    except ValueError as error:
        raise ValueError(f"bins is {bins!r}, expected numbers, comma-separated") from error
    size = int(np.prod(space.shape))
    if len(widths) != size or not (np.isfinite(widths) & (widths > 0)).all():
        raise ValueError(f"bins is {bins!r}, expected {size} widths above 0, one for each number of {env.spec.id}")

    def name(observation: Any) -> str:
        places = np.floor(np.ravel(observation).astype(np.float64) / widths + 0.5)
        return f"bins {' '.join(f'{place + 0.0:.0f}' for place in places)}"

    return name


@functools.lru_cache(maxsize=16)
def kept_game(game: str, settings: str) -> Any:
    """For what needs no episode of its own: names, starts, transitions."""
    return open_game(game, settings)


@functools.lru_cache(maxsize=16)
def is_certain(game: str, settings: str) -> bool:
    """Whether the game is known to hold no chance after its start."""
    env = kept_game(game, settings).unwrapped
    # Taxi's passengers may change their mind, which its table does not hold.
    table = getattr(env, "P", None)
    if not isinstance(table, dict) or getattr(env, "fickle_passenger", False):
        return False
    return all(len(outcomes) == 1 for actions in table.values() for outcomes in actions.values())


@functools.lru_cache(maxsize=16)
def plan_of(game: str, settings: str = "") -> dict[str, int]:
    """The best action (counted from 0) in each state as told: value iteration over the game's transition table.

    Raises:
        ValueError: the game has no table ``P`` of transitions, state -> action -> (probability, state, reward, end).
    """
    env = kept_game(game, settings)
    table = getattr(env.unwrapped, "P", None)
    if not isinstance(table, dict) or not isinstance(env.observation_space, Discrete):
        raise ValueError(f"the planner needs numbered states and a table of transitions, as Taxi's P; {game} has none")
    states = sorted(table)
    outcomes = [table[state][action] for state in states for action in sorted(table[state])]
    longest = max(map(len, outcomes))
    padded = [[*rows, *[(0.0, 0, 0.0, True)] * (longest - len(rows))] for rows in outcomes]
    probability, following, reward, end = np.moveaxis(np.array(padded, float), -1, 0)
    following, goes_on = np.searchsorted(states, following), 1 - end
    value, change = np.zeros(len(states)), np.inf
    choices = np.zeros((len(states), 1))
    while change > 1e-9:
        outcome = probability * (reward + DISCOUNT * goes_on * value[following])
        choices = outcome.sum(-1).reshape(len(states), -1)
        change = np.abs(choices.max(1) - value).max()
        value = choices.max(1)
    tell = wording_of(env).tell
    return {tell(env.unwrapped, state): int(best) for state, best in zip(states, choices.argmax(1), strict=True)}

"""Worlds small enough to solve, and policies that remember the last few steps; NumPy, all states integers."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

AnyArray = Any  # NumPy on the host, JAX on the device

LARGEST_TABLE = 2_000_000  # memories a policy may tell apart
GOAL_REWARD = 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """A partially observed decision process with a step limit; one world is one task.

    The agent starts in a state drawn from ``initial``, sees ``observation[state]`` (the anchor state), acts, and ends
    on entering a terminal state or after ``horizon`` steps.
    """

    name: str
    initial: np.ndarray  # f64 [S]
    transition: np.ndarray  # f64 [S, A, S]
    reward: np.ndarray  # f64 [S, A, S], mean reward of a transition
    observation: np.ndarray  # i64 [S], from 0 to O - 1
    terminal: np.ndarray  # bool [S]
    horizon: int  # steps at most
    reward_std: float = 0.0  # of the normal noise on every reward

    def __post_init__(self) -> None:
        states, actions = self.transition.shape[:2]
        shapes = {
            "initial": (states,),
            "transition": (states, actions, states),
            "reward": (states, actions, states),
            "observation": (states,),
            "terminal": (states,),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"World.{name} has shape {getattr(self, name).shape}, expected {shape}")
        for name in ("initial", "transition"):
            values = getattr(self, name)
            if (values < 0).any() or not np.allclose(values.sum(-1), 1):
                raise ValueError(f"World.{name} must hold probabilities that sum to 1 over its last axis")
        if self.initial[self.terminal].any():
            raise ValueError("World.initial starts in a terminal state: start elsewhere")
        if self.horizon < 1 or self.reward_std < 0 or self.observation.min() < 0:
            raise ValueError("World: horizon must be 1 or more, reward_std and observation 0 or more")

    @property
    def num_actions(self) -> int:
        return self.transition.shape[1]

    @property
    def num_observations(self) -> int:
        return int(self.observation.max()) + 1


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """pi(a | last m (observation, action) pairs, observation): a softmax table, one row for each memory.

    The pairs are the digits of ``past``, a number in base O A + 1 (0: before the first step), the newest last. With
    ``actions`` False the memory holds observations alone.
    """

    probability: np.ndarray  # f64 [memories, A]
    memory_length: int  # m
    num_observations: int
    actions: bool = True

    @property
    def base(self) -> int:
        return _memory_base(self.num_observations, self.probability.shape[1], self.actions)

    def memory(self, past: AnyArray, observation: AnyArray) -> AnyArray:
        """The row of the table."""
        return past * self.num_observations + observation

    def remember(self, past: AnyArray, observation: AnyArray, action: AnyArray) -> AnyArray:
        """The past one step later; what is older than m steps is forgotten."""
        pair = observation * self.probability.shape[1] + action if self.actions else observation
        return (past * self.base + pair + 1) % self.base**self.memory_length


def random_policy(
    world: World, memory_length: int, *, seed: int, temperature: float = 1.0, skill: float = 0.0, actions: bool = True
) -> Policy:
    """A fixed policy: softmax(normal noise / temperature + skill * mean optimal Q of the states that look so).

    Args:
      world: what it acts in.
      memory_length: m, the past steps it tells apart.
      seed: of the noise, one number for each memory and action.
      temperature: above 0; small ones make a decided policy whose actions hang on the memory.
      skill: 0 knows nothing of the task; the unit is 1 / reward.
      actions: whether it remembers its actions as well.

    Returns:
      The policy.

    Raises:
      ValueError: a setting out of range, or more memories than a table should hold.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    memories, observations = _num_memories(world, memory_length, actions), world.num_observations
    noise = np.random.default_rng(seed).normal(size=(memories, world.num_actions)) / temperature
    logits = noise + skill * _optimal_by_observation(world)[np.arange(memories) % observations]
    weight = np.exp(logits - logits.max(1, keepdims=True))
    return Policy(weight / weight.sum(1, keepdims=True), memory_length, observations, actions)


def uniform_policy(world: World, memory_length: int, *, actions: bool = True) -> Policy:
    """All actions alike, whatever it remembers: where training starts.

    Raises:
      ValueError: a negative length, or more memories than a table should hold.
    """
    shape = _num_memories(world, memory_length, actions), world.num_actions
    return Policy(np.full(shape, 1 / world.num_actions), memory_length, world.num_observations, actions)


def best_score(world: World) -> float:
    """The largest mean sum of rewards that an agent which sees the state can reach."""
    return float(world.initial @ _optimal_action_value(world, 1.0).max(1))


def graph_world(
    seed: int = 0,
    *,
    horizon: int = 6,
    width: int = 4,
    actions: int = 2,
    aliasing: int = 2,
    slip: float = 0.1,
    reward_std: float = 0.0,
    dense: float = 0.0,
    timed: bool = False,
) -> World:
    """A random layered graph: one start, then ``width`` hidden states a layer, every ``aliasing`` of them alike.

    An action permutes the places from one layer to the next (with probability ``slip`` it leads to any of them).
    The states of the last layer pay prizes of 1 / width, 2 / width, .. 1, each for half of its actions.

    Args:
      seed: of the graph.
      horizon: layers, and steps of every episode.
      width: states a layer.
      actions: branching.
      aliasing: hidden states of a layer that share an observation, from 1 (none) to ``width``.
      slip: share of random moves.
      reward_std: noise on each step's reward.
      dense: standard deviation of a mean reward on every (state, action).
      timed: whether the observation tells the layer; when it doesn't, states recur along an episode.

    Returns:
      The world.

    Raises:
      ValueError: a setting out of range.
    """
    if not 1 <= aliasing <= width or not 0 <= slip <= 1 or min(horizon, actions) < 1:
        raise ValueError(
            f"graph_world needs 1 <= aliasing <= width, slip in [0, 1], horizon and actions of 1 or more; got "
            f"aliasing={aliasing}, width={width}, slip={slip}, horizon={horizon}, actions={actions}"
        )
    rng = np.random.default_rng(seed)
    # State 0 starts, 1 + layer * width + place follow for the layers 1.., the last state is the end.
    states = 2 + (horizon - 1) * width
    layers = [np.array([0])] + [1 + layer * width + np.arange(width) for layer in range(horizon - 1)]
    transition = np.zeros((states, actions, states))
    reward = dense * rng.normal(size=(states, actions, 1))
    for here, ahead in zip(layers, [*layers[1:], np.array([states - 1])], strict=True):
        transition[np.ix_(here, np.arange(actions), ahead)] = slip / len(ahead)
        for action in range(actions):
            # No two states are led together, or a few layers would leave nothing to choose between.
            target = rng.permutation(ahead)[np.arange(len(here)) % len(ahead)]
            transition[here, action, target] += 1 - slip
    last = layers[-1]
    pays = rng.permuted(np.tile(np.arange(actions) < max(actions // 2, 1), (len(last), 1)), axis=1)
    reward[last, :, 0] += pays * (1 + rng.permutation(len(last))[:, None]) / len(last)
    transition[-1, :, -1] = 1
    reward[-1] = 0
    looks = np.zeros(states, np.int64)
    for layer, here in enumerate(layers):
        # The order in which places are paired is drawn anew in each layer, so that no place is special.
        kind = rng.permutation(len(here)) // aliasing
        looks[here] = kind + (layer * -(-width // aliasing) if timed else 0)
    name = f"graph(seed={seed}, T={horizon}, aliasing={aliasing}, noise={reward_std:g})"
    terminal = np.arange(states) == states - 1
    start = (np.arange(states) == 0).astype(np.float64)
    spread = np.broadcast_to(reward, transition.shape).copy()
    return World(name, start, transition, spread, looks, terminal, horizon, reward_std)


def lake_world(
    *,
    horizon: int = 8,
    slippery: bool = False,
    size: int = 4,
    reward_std: float = 0.0,
    view: Literal["neighbours", "cell"] = "neighbours",
) -> World:
    """gymnasium's FrozenLake (4x4 or 8x8), of which only the four neighbouring tiles are seen: wall, ice, hole, goal.

    Many cells of ice look alike, and only the history tells them apart. Reaching the goal pays 10.

    Args:
      horizon: steps at most.
      slippery: a move goes astray to either side with probability 1/3 each.
      size: 4 or 8.
      reward_std: noise on each step's reward.
      view: "cell" shows where the agent is instead, as gymnasium does: then history tells nothing.

    Returns:
      The world.

    Raises:
      ValueError: another size or view.
    """
    if view not in ("neighbours", "cell"):
        raise ValueError(f'lake_world shows "neighbours" or the "cell", not {view!r}')
    if size not in (4, 8):
        raise ValueError(f"lake_world has the maps of gymnasium, size 4 or 8, got {size}")
    made = gymnasium.make("FrozenLake-v1", map_name=f"{size}x{size}", is_slippery=slippery)
    lake = cast(FrozenLakeEnv, made.unwrapped)
    tiles = np.pad(lake.desc, 1, constant_values=b"W")
    tiles = np.where(tiles == b"S", b"F", tiles)
    views = np.stack([tiles[1:-1, :-2], tiles[2:, 1:-1], tiles[1:-1, 2:], tiles[:-2, 1:-1]], -1).reshape(-1, 4)
    views = np.where(np.isin(lake.desc, [b"G", b"H"]).reshape(-1, 1), b"E", views)  # the end is never looked at
    states = size * size
    alike = np.unique(views, axis=0, return_inverse=True)[1].reshape(-1)
    observation = alike if view == "neighbours" else np.arange(states)
    transition, reward = np.zeros((2, states, 4, states))
    for state in range(states):
        for action in range(4):
            for probability, ahead, pay, _ in lake.P[state][action]:
                transition[state, action, ahead] += probability
                reward[state, action, ahead] = GOAL_REWARD * pay
    terminal = np.isin(lake.desc, [b"G", b"H"]).reshape(-1)
    name = f"lake(T={horizon}{', slippery' if slippery else ''}{', cell seen' if view == 'cell' else ''})"
    return World(name, lake.initial_state_distrib, transition, reward, observation, terminal, horizon, reward_std)


def _num_memories(world: World, memory_length: int, actions: bool) -> int:
    if memory_length < 0:
        raise ValueError(f"memory_length must be 0 or more, got {memory_length}")
    observations = world.num_observations
    memories = _memory_base(observations, world.num_actions, actions) ** memory_length * observations
    if memories > LARGEST_TABLE:
        raise ValueError(
            f"a policy with memory_length={memory_length} tells {memories:,} memories apart, more than "
            f"{LARGEST_TABLE:,}: shorten the memory, or leave the actions out of it"
        )
    return memories


def _memory_base(observations: int, actions: int, with_actions: bool) -> int:
    return (observations * actions if with_actions else observations) + 1


def _optimal_action_value(world: World, gamma: float) -> np.ndarray:
    """Q of acting optimally from the start on with the state in view: f64 [S, A]."""
    pay = (world.transition * world.reward).sum(-1)
    action_value = pay
    for _ in range(world.horizon - 1):
        action_value = pay + gamma * world.transition @ np.where(world.terminal, 0, action_value.max(1))
    return action_value


def _optimal_by_observation(world: World, gamma: float = 0.95) -> np.ndarray:
    """The optimal Q averaged over each observation's states: f64 [O, A]."""
    action_value = _optimal_action_value(world, gamma)
    table = np.zeros((world.num_observations, world.num_actions))
    for kind in range(world.num_observations):
        members = (world.observation == kind) & ~world.terminal
        if members.any():
            table[kind] = action_value[members].mean(0)
    return table

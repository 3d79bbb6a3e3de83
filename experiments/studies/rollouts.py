"""Many episodes at once in a small world, and the oracle's values by simulation where it is too large to solve."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from experiments.studies.oracle import Oracle
from experiments.studies.worlds import Policy, World


class Rollouts(NamedTuple):
    """N steps in whole episodes, one after another; every array is [N]."""

    observation: np.ndarray  # i64, the anchor state
    action: np.ndarray  # i64
    reward: np.ndarray  # f64, with its noise
    memory: np.ndarray  # i64, row of the policy's table
    episode: np.ndarray  # i64, 0, 1, ..
    step: np.ndarray  # i64, t
    node: np.ndarray  # i64, the oracle's number of the history; -1 without an oracle


def roll_out(
    world: World,
    policy: Policy,
    episodes: int,
    rng: np.random.Generator,
    *,
    oracle: Oracle | None = None,
) -> Rollouts:
    """Independent episodes of the policy.

    Args:
      world, policy: who acts where.
      episodes: how many.
      rng: of all draws.
      oracle: numbers the histories, if given.

    Returns:
      The steps.
    """
    state = _draw(np.broadcast_to(world.initial, (episodes, len(world.initial))), rng)
    return _play(world, policy, state, np.zeros(episodes, np.int64), world.horizon, rng, oracle)


def simulate_action_values(
    world: World,
    policy: Policy,
    observations: np.ndarray,
    actions: np.ndarray,
    *,
    samples: int,
    rng: np.random.Generator,
    gamma: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q(h, a) and the advantage at one history by simulation, for worlds that are too large to solve.

    The belief over hidden states follows from the history by Bayes' rule, exactly; each action is then tried
    ``samples`` times from states drawn from it.

    Args:
      world, policy: who acts where.
      observations, actions: the history, [t + 1] and [t].
      samples: episodes for each action.
      rng: of all draws.
      gamma: discount.

    Returns:
      Q f64 [A], the advantage f64 [A] and its standard error f64 [A].

    Raises:
      ValueError: a history that cannot happen, or as long as the horizon.
    """
    if len(observations) != len(actions) + 1 or len(observations) > world.horizon:
        raise ValueError(
            f"a history has one action fewer than observations and at most {world.horizon} observations; got "
            f"{len(observations)} and {len(actions)}"
        )
    belief, past = _filtered(world, policy, observations, actions)
    steps = world.horizon - len(actions)
    mean, variance = np.zeros((2, world.num_actions))
    for action in range(world.num_actions):
        state = _draw(np.broadcast_to(belief, (samples, len(belief))), rng)
        first = np.full(samples, action)
        played = _play(world, policy, state, np.full(samples, past), steps, rng, None, first)
        returns = np.bincount(played.episode, played.reward * gamma**played.step, samples)
        mean[action], variance[action] = returns.mean(), returns.var(ddof=1) / samples
    chance = policy.probability[policy.memory(np.array(past), np.array(observations[-1]))]
    # The advantage of a is a weighted sum of independent means, with weights 1{a = b} - pi(b).
    weight = np.eye(world.num_actions) - chance
    return mean, weight @ mean, np.sqrt(weight**2 @ variance)


def _filtered(world: World, policy: Policy, observations: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, int]:
    """The belief after a history, and what the policy remembers of it."""
    belief, past = world.initial, np.array(0)
    for t, observation in enumerate(observations):
        if t:
            past = policy.remember(past, np.array(observations[t - 1]), np.array(actions[t - 1]))
            belief = belief @ world.transition[:, actions[t - 1]]
        belief = np.where((world.observation == observation) & ~world.terminal, belief, 0)
        if not belief.sum():
            raise ValueError(f"the history cannot happen in {world.name}: observation {observation} at step {t}")
        belief = belief / belief.sum()
    return belief, int(past)


def _play(
    world: World,
    policy: Policy,
    state: np.ndarray,
    past: np.ndarray,
    steps: int,
    rng: np.random.Generator,
    oracle: Oracle | None,
    first_action: np.ndarray | None = None,
) -> Rollouts:
    """Episodes from the given hidden states and memories; those that have ended drop out."""
    episode = np.arange(len(state))
    node = np.full(len(state), -1) if oracle is None else oracle.root[world.observation[state]]
    parts: list[Rollouts] = []
    for t in range(steps):
        observation = world.observation[state]
        memory = policy.memory(past, observation)
        action = first_action if t == 0 and first_action is not None else _draw(policy.probability[memory], rng)
        ahead = _draw(world.transition[state, action], rng)
        noise = world.reward_std * rng.normal(size=len(state))
        reward = world.reward[state, action, ahead] + noise
        parts.append(Rollouts(observation, action, reward, memory, episode, np.full(len(state), t), node))
        on = ~world.terminal[ahead]
        past = policy.remember(past, observation, action)[on]
        if oracle is not None:
            node = oracle.child[node, action, world.observation[ahead]][on].astype(np.int64)
        else:
            node = node[on]
        state, episode = ahead[on], episode[on]
        if not len(state):
            break
    together = Rollouts(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))
    order = np.argsort(together.episode, kind="stable")
    return Rollouts(*(field[order] for field in together))


def _draw(probability: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One index from each row of probabilities [n, k]: i64 [n]."""
    edges = probability.cumsum(1)
    # Scaled by the last edge, which rounding may leave below 1, an index never runs over.
    return (rng.random((len(edges), 1)) * edges[:, -1:] >= edges).sum(1)

"""The oracle against literals, a recursion over histories, and simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import forgetful, two_doors

from experiments.studies.oracle import contexts, count_histories, marginal, policy_gradient, solve
from experiments.studies.rollouts import roll_out, simulate_action_values
from experiments.studies.worlds import Policy, World, graph_world, lake_world, random_policy


def test_two_doors_by_hand() -> None:
    """gamma 1/2. Behind door 0: Q = (8, 0), V = 4; behind door 1: Q = (0, 4), V = 2. In the hall Q = (2, 1),
    V = 3/4 * 2 + 1/4 * 1 = 7/4."""
    oracle = solve(two_doors(), forgetful(), gamma=0.5)
    assert oracle.observation.tolist() == [0, 1, 1]
    assert oracle.visit.tolist() == [1, 0.75, 0.25]
    np.testing.assert_allclose(oracle.action_value, [[2, 1], [8, 0], [0, 4]])
    np.testing.assert_allclose(oracle.advantage, [[0.25, -0.75], [4, -4], [-2, 2]])
    assert oracle.expected_return == 1.75


def test_what_the_policy_sees_by_hand() -> None:
    """The rooms look alike: Q = 3/4 (8, 0) + 1/4 (0, 4) = (6, 1), V = 3.5; the gradient there is 1/2 (2.5, -2.5)."""
    oracle = solve(two_doors(), forgetful(), gamma=0.5)
    action_value, value = marginal(oracle, oracle.memory)
    np.testing.assert_allclose(action_value[1:], [[6, 1], [6, 1]])
    np.testing.assert_allclose(value, [1.75, 3.5, 3.5])
    np.testing.assert_allclose(policy_gradient(oracle, 2), [[0.1875, -0.1875], [1.25, -1.25]])


def brute_values(world: World, policy: Policy, gamma: float) -> dict[tuple[int, ...], np.ndarray]:
    """Q(h, a) by summing over all paths of hidden states: h is (o_0, a_0, .., o_t)."""
    weight: dict[tuple[int, ...], float] = {}
    total: dict[tuple[tuple[int, ...], int], float] = {}

    def walk(history: tuple[int, ...], state: int, past: int, chance: float, steps: int) -> list[tuple[float, float]]:
        """Returns (probability of the rest, its return) of every continuation, and adds up Q on the way."""
        weight[history] = weight.get(history, 0.0) + chance
        seen = int(world.observation[state])
        pi = policy.probability[int(policy.memory(np.array(past), np.array(seen)))]
        rest: list[tuple[float, float]] = []
        for action in range(world.num_actions):
            for ahead in np.flatnonzero(world.transition[state, action]):
                p, r = world.transition[state, action, ahead], world.reward[state, action, ahead]
                later = [(1.0, 0.0)]
                if steps > 1 and not world.terminal[ahead]:
                    longer = (*history, action, int(world.observation[ahead]))
                    after = int(policy.remember(np.array(past), np.array(seen), np.array(action)))
                    later = walk(longer, int(ahead), after, chance * pi[action] * p, steps - 1)
                mean = r + gamma * sum(q * g for q, g in later)
                total[history, action] = total.get((history, action), 0.0) + chance * p * mean
                rest.append((float(pi[action] * p), float(mean)))
        return rest

    for state in np.flatnonzero(world.initial):
        walk((int(world.observation[state]),), int(state), 0, float(world.initial[state]), world.horizon)
    return {h: np.array([total[h, a] / weight[h] for a in range(world.num_actions)]) for h in weight}


@given(seed=st.integers(0, 50), memory=st.integers(0, 2), aliasing=st.integers(1, 3), actions=st.booleans())
@settings(max_examples=15, deadline=None)
def test_values_equal_a_sum_over_hidden_paths(seed: int, memory: int, aliasing: int, actions: bool) -> None:
    world = graph_world(seed, horizon=3, width=3, aliasing=aliasing, slip=0.3, dense=1.0)
    policy = random_policy(world, memory, seed=seed, actions=actions)
    oracle = solve(world, policy, gamma=0.9)
    expected = brute_values(world, policy, 0.9)
    assert len(oracle.depth) == len(expected) == count_histories(world)
    for i in range(len(oracle.depth)):
        history, at = (int(oracle.observation[i]),), i
        while oracle.parent[at] >= 0:
            action, at = int(oracle.parent_action[at]), int(oracle.parent[at])
            history = (int(oracle.observation[at]), action, *history)
        np.testing.assert_allclose(oracle.action_value[i], expected[history], atol=1e-12)
    for depth in range(3):
        assert oracle.visit[oracle.depth == depth].sum() == pytest.approx(1)


def test_values_equal_simulation() -> None:
    """Each action's mean return at every often visited history lies within 4.5 standard errors of Q."""
    world = lake_world(horizon=5, slippery=True, reward_std=0.3)
    policy = random_policy(world, 1, seed=0, skill=3.0)
    oracle = solve(world, policy)
    played = roll_out(world, policy, 20_000, np.random.default_rng(1), oracle=oracle)
    discounted = np.bincount(played.episode, played.reward * 0.95**played.step)
    error = discounted.std() / np.sqrt(len(discounted))
    assert abs(discounted.mean() - oracle.expected_return) < 4 * error
    cell = played.node * 4 + played.action
    to_go = np.zeros(len(cell))
    ahead = 0.0
    for i in range(len(cell) - 1, -1, -1):
        last = i + 1 == len(cell) or played.episode[i + 1] != played.episode[i]
        ahead = to_go[i] = played.reward[i] + (0.0 if last else 0.95 * ahead)
    often = np.flatnonzero(np.bincount(cell) > 800)
    assert len(often) > 10
    for c in often:
        own = to_go[cell == c]
        assert abs(own.mean() - oracle.action_value.ravel()[c]) < 4.5 * own.std() / np.sqrt(len(own))
    visits = np.bincount(played.node, minlength=len(oracle.visit)) / 20_000
    assert np.abs(visits - oracle.visit).max() < 0.01


def test_simulated_action_values_state_their_errors() -> None:
    world = graph_world(1, horizon=4, slip=0.2, reward_std=0.3)
    policy = random_policy(world, 1, seed=1)
    oracle = solve(world, policy)
    node = int(np.flatnonzero(oracle.depth == 2)[3])
    before = int(oracle.parent[node])
    observations = oracle.observation[[oracle.parent[before], before, node]]
    actions = np.array([oracle.parent_action[before], oracle.parent_action[node]])
    rng = np.random.default_rng(0)
    _, advantage, error = simulate_action_values(world, policy, observations, actions, samples=4000, rng=rng)
    assert (error < 0.02).all()
    assert (error > 0).all()
    assert (np.abs(advantage - oracle.advantage[node]) < 4 * error).all()


def test_with_gamma_1_the_gradient_is_that_of_the_return() -> None:
    world = graph_world(2, horizon=4, dense=0.5)
    policy = random_policy(world, 1, seed=0)
    gradient = policy_gradient(solve(world, policy, gamma=1.0), len(policy.probability))
    logits = np.log(policy.probability)
    for row, action in [(0, 0), (1, 1), (3, 0), (7, 1)]:
        ends = []
        for change in (1e-5, -1e-5):
            moved = logits.copy()
            moved[row, action] += change
            table = np.exp(moved) / np.exp(moved).sum(1, keepdims=True)
            ends.append(solve(world, Policy(table, 1, world.num_observations), gamma=1.0).expected_return)
        assert gradient[row, action] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-8)


@given(seed=st.integers(0, 30))
@settings(max_examples=10, deadline=None)
def test_longer_contexts_miss_less_of_the_value(seed: int) -> None:
    """E (V(h) - E[V | C_k])^2 cannot rise with k, and is 0 once C_k and the actions tell all there is."""
    world = graph_world(seed, horizon=5, slip=0.2)
    oracle = solve(world, random_policy(world, 1, seed=seed))
    missed = [oracle.visit @ (oracle.value - marginal(oracle, contexts(oracle, k))[1]) ** 2 for k in range(5)]
    assert all(finer <= coarser + 1e-12 for coarser, finer in itertools.pairwise(missed))
    assert oracle.visit @ (oracle.value - marginal(oracle, np.arange(len(oracle.value)))[1]) ** 2 < 1e-20


def test_too_many_histories_are_counted_and_refused() -> None:
    world = lake_world(horizon=9, slippery=True)
    with pytest.raises(ValueError, match=r"has 73,448,121 histories, more than the limit of 400,000.*simulate"):
        solve(world, random_policy(world, 0, seed=0))


def test_bad_input_is_told() -> None:
    world, policy = two_doors(), forgetful()
    with pytest.raises(ValueError, match="gamma must be from 0 to 1"):
        solve(world, policy, gamma=1.5)
    with pytest.raises(ValueError, match="too long to be numbered"):
        contexts(solve(world, policy), 60)
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="cannot happen in two doors: observation 0 at step 1"):
        simulate_action_values(world, policy, np.array([0, 0]), np.array([1]), samples=10, rng=rng)
    with pytest.raises(ValueError, match="one action fewer than observations"):
        simulate_action_values(world, policy, np.array([0]), np.array([1]), samples=10, rng=rng)

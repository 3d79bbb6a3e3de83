"""Worlds and policies: what they promise, and what they refuse."""

import numpy as np
import pytest
from small_worlds import two_doors

from experiments.studies.worlds import (
    Policy,
    World,
    best_score,
    graph_world,
    lake_world,
    random_policy,
    uniform_policy,
)


@pytest.mark.parametrize("aliasing", [1, 2, 4])
def test_a_graph_shows_fewer_observations_the_more_states_look_alike(aliasing: int) -> None:
    world = graph_world(3, horizon=5, width=4, aliasing=aliasing)
    middle = world.observation[1:5]
    assert np.bincount(middle).tolist() == [aliasing] * (4 // aliasing)
    assert world.num_observations == 4 // aliasing
    timed = graph_world(3, horizon=5, width=4, aliasing=aliasing, timed=True)
    assert not set(timed.observation[1:5]) & set(timed.observation[5:9])


def test_a_graph_pays_in_its_last_layer_alone() -> None:
    world = graph_world(0, horizon=4, width=4, actions=2)
    pays = world.reward.max(2)
    assert sorted(pays[9:13].max(1)) == [0.25, 0.5, 0.75, 1]
    assert (pays[9:13] > 0).sum() == 4
    assert pays[:9].sum() == 0 == pays[13:].sum()
    assert np.allclose(world.transition.sum(-1), 1)


def test_the_lake_is_seen_through_its_neighbours() -> None:
    """FrozenLake 4x4: SFFF FHFH FFFH HFFG. The cells 8 and 10 have other neighbours, 0 has two walls."""
    world = lake_world()
    assert world.observation[0] != world.observation[8]
    assert world.num_observations == 12
    assert np.flatnonzero(world.terminal).tolist() == [5, 7, 11, 12, 15]
    assert world.transition[14, 2, 15] == 1
    assert world.reward[14, 2, 15] == 10
    assert lake_world(slippery=True).transition[14, 2, 15] == pytest.approx(1 / 3)


def test_the_memory_holds_the_last_pairs() -> None:
    """Two observations, two actions, m = 1: past 0 is nothing, then 1 + 2 o + a."""
    policy = Policy(np.full((10, 2), 0.5), memory_length=1, num_observations=2)
    past = np.array([0])
    assert policy.memory(past, np.array([1])).tolist() == [1]
    past = policy.remember(past, np.array([1]), np.array([0]))
    assert past.tolist() == [3]
    assert policy.memory(past, np.array([0])).tolist() == [6]
    assert policy.remember(past, np.array([0]), np.array([1])).tolist() == [2]


def test_skill_makes_a_better_policy_and_memory_a_table() -> None:
    world = lake_world()
    knows = random_policy(world, 0, seed=0, temperature=10.0, skill=5.0)
    # Beside the goal, at state 14, right is the move.
    assert knows.probability[world.observation[14]].argmax() == 2
    assert random_policy(world, 2, seed=0, actions=False).probability.shape == (13**2 * 12, 4)


def test_a_lake_may_show_the_cell() -> None:
    world = lake_world(view="cell", size=8, slippery=True)
    assert world.observation.tolist() == list(range(64))
    assert "cell seen" in world.name
    assert world.transition.sum() == lake_world(size=8, slippery=True).transition.sum()


def test_the_best_score() -> None:
    """Door 0 and lever 0 pay 8. The goal of FrozenLake 4x4 is six moves away; where moves slip, even the best policy
    falls into a hole in three of 17 episodes."""
    assert best_score(two_doors()) == 8
    assert [best_score(lake_world(horizon=horizon)) for horizon in (5, 6, 50)] == [0, 10, 10]
    slippery = [best_score(lake_world(horizon=horizon, slippery=True)) for horizon in (6, 20, 50, 1000)]
    assert slippery == sorted(slippery)
    assert slippery[-1] == pytest.approx(10 * 14 / 17, abs=0.01)


def test_a_policy_to_start_from_knows_nothing() -> None:
    policy = uniform_policy(lake_world(), 1, actions=False)
    assert policy.probability.shape == (13 * 12, 4)
    assert (policy.probability == 0.25).all()
    assert policy.base == 13


def test_bad_input_is_named() -> None:
    world = two_doors()
    with pytest.raises(ValueError, match=r"World.initial has shape \(2,\), expected \(4,\)"):
        World("w", np.ones(2) / 2, world.transition, world.reward, world.observation, world.terminal, 2)
    with pytest.raises(ValueError, match=r"World\.transition must hold probabilities"):
        World("w", world.initial, 2 * world.transition, world.reward, world.observation, world.terminal, 2)
    with pytest.raises(ValueError, match="1 <= aliasing <= width"):
        graph_world(width=4, aliasing=5)
    with pytest.raises(ValueError, match="shorten the memory"):
        random_policy(world, 20, seed=0)
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        random_policy(world, 0, seed=0, temperature=0)
    with pytest.raises(ValueError, match="memory_length must be 0 or more, got -1"):
        uniform_policy(world, -1)
    with pytest.raises(ValueError, match="size 4 or 8"):
        lake_world(size=5)
    with pytest.raises(ValueError, match='"neighbours" or the "cell", not \'map\''):
        lake_world(view="map")  # pyright: ignore[reportArgumentType]

"""Training on the device: its signals are the host's, its step is the policy gradient, its runs are independent."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_worlds import two_doors

from experiments.studies.arms import Arm, advantages_of, signals_of
from experiments.studies.learning_curves import LEARNERS
from experiments.studies.rollouts import Rollouts
from experiments.studies.tabular import Episodes, Training, make_training, play, signals_on_device, train_many
from experiments.studies.worlds import World, lake_world, random_policy, uniform_policy
from hgpo_jax.config import GAEConfig, ReinforceConfig
from hgpo_jax.estimators import make_estimator
from hgpo_jax.types import StepSignals

GAMMA, GROUP = 0.9, 4
REINFORCE = Arm(ReinforceConfig())
SHORT = Training(group_size=4, episodes=16, iterations=6, memory_length=1)


class Played(NamedTuple):
    world: World
    episodes: Episodes
    value: np.ndarray  # [D]
    host: StepSignals
    order: np.ndarray  # place on the device of the host's steps


@pytest.fixture(scope="module")
def played() -> Played:
    """24 episodes on a lake, some of which end early, on the device and as the host reads them."""
    world = lake_world(horizon=9, slippery=True, reward_std=1.0)
    policy = random_policy(world, 1, seed=0, skill=1.0, actions=False)
    episodes = jax.tree.map(np.asarray, play(world, policy, jnp.log(policy.probability), 24, jax.random.key(0)))
    horizon, count = episodes.valid.shape
    order = np.array([t * count + e for e in range(count) for t in range(horizon) if episodes.valid[t, e]])
    step, episode = np.divmod(order, count)
    assert 0 < (step == horizon - 1).sum() < count  # some are cut, some end
    histories: dict[object, int] = {}
    node = [
        histories.setdefault((tuple(episodes.observation[: t + 1, e]), tuple(episodes.action[:t, e])), len(histories))
        for t, e in zip(step, episode, strict=True)
    ]
    names = ("observation", "action", "reward", "memory")
    rollouts = Rollouts(
        **{name: getattr(episodes, name).ravel()[order] for name in names},
        episode=episode,
        step=step,
        node=np.array(node),
    )
    value = np.random.default_rng(0).normal(size=len(policy.probability)).astype(np.float32)
    return Played(world, episodes, value, signals_of(rollouts, GROUP, gamma=GAMMA, size=256), order)


def on_device(played: Played, arm: Arm) -> StepSignals:
    settings = {"gamma": GAMMA, "num_observations": played.world.num_observations, "value_D": jnp.asarray(played.value)}
    signals = jax.jit(functools.partial(signals_on_device, arm=arm, group_size=GROUP, **settings))
    return jax.tree.map(np.asarray, signals(jax.tree.map(jnp.asarray, played.episodes)))


def own_advantages(arm: Arm, signals: StepSignals) -> np.ndarray:
    return np.asarray(jax.jit(make_estimator(arm.estimator))(signals)[0])[signals.valid]


def test_episodes_follow_the_world(played: Played) -> None:
    """Each observed move is possible; memory, reward and end are the world's."""
    world, rows = played.world, played.episodes
    policy = uniform_policy(world, 1, actions=False)
    for e in range(24):
        past = np.array(0)
        for t in np.flatnonzero(rows.valid[:, e]):
            observation, action = rows.observation[t, e], rows.action[t, e]
            assert rows.memory[t, e] == policy.memory(past, observation)
            past = policy.remember(past, observation, action)
            ends = t + 1 == 9 or not rows.valid[t + 1, e]
            assert rows.over[t, e] or t + 1 == 9 or not ends
            if not ends:
                assert rows.next_memory[t, e] == rows.memory[t + 1, e]
            here = (world.observation == observation) & ~world.terminal
            assert world.transition[here][:, action][:, world.observation == policy_sees(rows, t, e, world)].any()
    assert np.abs(rows.reward[rows.valid]).min() > 0  # the noise
    assert (rows.reward[~rows.valid] == 0).all()
    assert not (rows.valid[1:] & ~rows.valid[:-1]).any()


def policy_sees(rows: Episodes, t: np.intp, e: int, world: World) -> int:
    return int(rows.next_memory[t, e]) % world.num_observations


def test_play_is_as_the_worlds_probabilities_say() -> None:
    """On slippery ice the first move down from the corner goes left (stays), down or right, a third each."""
    world = lake_world(horizon=2, slippery=True, view="cell")
    policy = uniform_policy(world, 0)
    down = jnp.tile(jnp.where(jnp.arange(4) == 1, 0.0, -jnp.inf), (16, 1))
    episodes = play(world, policy, down, 3000, jax.random.key(1))
    share = np.bincount(np.asarray(episodes.observation[1]), minlength=16) / 3000
    np.testing.assert_allclose(share[[0, 1, 4]], 1 / 3, atol=0.03)
    assert share[[0, 1, 4]].sum() == pytest.approx(1)


def test_reward_noise_has_its_spread() -> None:
    world = two_doors(reward_std=0.5)
    episodes = play(world, uniform_policy(world, 0), jnp.zeros((2, 2)), 4000, jax.random.key(0))
    assert float(episodes.reward[0].std()) == pytest.approx(0.5, rel=0.05)
    assert float(episodes.reward[0].mean()) == pytest.approx(0, abs=0.04)


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "GAE"])
def test_advantages_are_the_hosts(played: Played, name: str) -> None:
    arm = LEARNERS[name]
    found = own_advantages(arm, on_device(played, arm))
    # The device's valid steps lie time before episode.
    kept = np.flatnonzero(played.episodes.valid.ravel())
    wanted = advantages_of(name, arm, played.host)
    assert np.abs(wanted).max() > 0
    np.testing.assert_allclose(found[np.searchsorted(kept, played.order)], wanted, atol=2e-5)


def test_a_critics_advantages_are_the_recursions(played: Played) -> None:
    rows, value = played.episodes, played.value
    arm = Arm(GAEConfig(lambda_=0.5, normalize_std=False))
    found = own_advantages(arm, on_device(played, arm))
    wanted = np.zeros(rows.valid.shape)
    for e in range(24):
        ahead = 0.0
        for t in reversed(np.flatnonzero(rows.valid[:, e])):
            after = 0 if rows.over[t, e] else value[rows.next_memory[t, e]]
            ahead = rows.reward[t, e] + GAMMA * after - value[rows.memory[t, e]] + 0.5 * GAMMA * ahead
            wanted[t, e] = ahead
    np.testing.assert_allclose(found, wanted[rows.valid], atol=1e-4)


def test_the_first_step_is_adams_up_the_policy_gradient() -> None:
    """logits = rate g / (|g| + 1e-8), with g = mean over steps of A (1{a = b} - 1/4) on the row of the memory."""
    world, rate = lake_world(horizon=8, reward_std=1.0), 0.25
    key = jax.random.key(3)
    learner, _ = jax.jit(make_training(world, REINFORCE, Training(4, 64, 1, 1, GAMMA)))(key, rate)
    policy = uniform_policy(world, 1, actions=False)
    uniform = jnp.zeros(policy.probability.shape)
    rows = jax.tree.map(np.asarray, play(world, policy, uniform, 64, jax.random.split(key, 1)[0]))
    returns = np.zeros((9, 64))
    for t in reversed(range(8)):
        returns[t] = rows.reward[t] + GAMMA * returns[t + 1]
    steps = [(t, e) for t, e in np.ndindex(8, 64) if rows.valid[t, e]]
    mean = np.mean([returns[t, e] for t, e in steps])
    gradient = np.zeros(policy.probability.shape)
    for t, e in steps:
        gradient[rows.memory[t, e]] += (returns[t, e] - mean) * (np.eye(4)[rows.action[t, e]] - 0.25) / len(steps)
    sure = (np.abs(gradient) > 1e-4) | (gradient == 0)
    assert (gradient != 0).sum() > 20
    np.testing.assert_allclose(np.asarray(learner.logits)[sure], rate * np.sign(gradient)[sure], atol=1e-3)
    assert (learner.value == 0).all()


def test_a_critic_learns_the_value_of_the_policy() -> None:
    """At rate 0 the policy stays uniform: V(hall) = gamma V(room), V(room) = (8 / 2 + 4 / 2) / 2."""
    arm = Arm(GAEConfig(lambda_=0.0))
    settings = Training(4, 256, 200, 0, GAMMA, value_rate=0.05)
    learner, curves = jax.jit(make_training(two_doors(), arm, settings))(jax.random.key(0), 0.0)
    assert (learner.logits == 0).all()
    np.testing.assert_allclose(learner.value, [GAMMA * 3, 3], rtol=0.04)
    np.testing.assert_allclose(curves.entropy, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(curves.length, 2)


@pytest.mark.parametrize("name", ["REINFORCE", "RLOO", "GiGPO", "HGPO K=2", "GAE"])
def test_two_doors_are_learned(name: str) -> None:
    settings = Training(4, 64, 150, 1)
    curves = train_many(two_doors(), LEARNERS[name], settings, seeds=4, learning_rates=(0.2,))
    assert curves.score.shape == (1, 4, 150)
    np.testing.assert_allclose(curves.score[..., 0], 3, atol=1.6)
    assert (curves.score[..., -20:].mean(-1) > 7.5).sum() >= 3  # one run may settle behind the other door
    assert (curves.entropy[..., -1] < 0.2).all()
    assert (curves.success <= 1).all()
    # A batch whose episodes are all alike tells those nothing who compare like with like.
    assert (curves.no_signal[..., -1] > curves.no_signal[..., 0]).any() == (name not in ("REINFORCE", "GAE"))


def test_a_bonus_keeps_the_policy_open() -> None:
    settings = [Training(4, 64, 60, 0, entropy_coef=coefficient) for coefficient in (0.0, 5.0)]
    closed, open_ = (train_many(two_doors(), REINFORCE, s, seeds=2, learning_rates=(0.2,)) for s in settings)
    assert open_.entropy[..., -1].min() > 0.6 > closed.entropy[..., -1].max()


def test_a_run_does_not_depend_on_those_beside_it() -> None:
    """Not on how many there are, nor on how many devices they are spread over (8, 6, and one alone)."""
    world, arm = lake_world(horizon=8), LEARNERS["HGPO K=2"]
    eight = train_many(world, arm, SHORT, seeds=8, learning_rates=(0.1,))
    three = train_many(world, arm, SHORT, seeds=3, learning_rates=(0.0, 0.1))
    learner, alone = jax.jit(make_training(world, arm, SHORT))(jax.random.fold_in(jax.random.key(0), 2), 0.1)
    assert np.isfinite(learner.logits).all()
    for wide, narrow, one in zip(eight, three, alone, strict=True):
        np.testing.assert_allclose(narrow[1], wide[0, :3], rtol=1e-5)
        np.testing.assert_allclose(one, wide[0, 2], rtol=1e-5)
    other = train_many(world, arm, SHORT, seeds=3, learning_rates=(0.1,), seed=1)
    assert (other.length != three.length[1]).any()


def test_bad_estimators_are_named() -> None:
    def late(signals: StepSignals) -> jax.Array:
        return jnp.where(jnp.abs(signals.step_return).sum() > 0, jnp.nan, 0.0) * signals.step_return

    settings = Training(4, 8, 3, 0)
    with pytest.raises(ValueError, match=r"late gave \d+ advantages that are not finite in iteration 0 of run 0, "):
        train_many(two_doors(), Arm(late), settings, seeds=2, learning_rates=(0.1,))

    def short(signals: StepSignals) -> jax.Array:
        return jnp.asarray(signals.step_return)[1:]

    with pytest.raises(ValueError, match=r"short returned advantages of shape \[15\], expected \[16\]"):
        train_many(two_doors(), Arm(short), settings, seeds=2, learning_rates=(0.1,))


def test_an_estimator_that_fails_late_is_found_where_it_does() -> None:
    """Neither in the first iteration nor at the rate that learns nothing: it takes a policy that has learned."""

    def sharp(signals: StepSignals) -> jax.Array:
        returns = jnp.asarray(signals.step_return)
        return jnp.where(signals.score.sum() / 2 > 8 * 6, jnp.inf, returns - returns.mean())

    settings = Training(4, 8, 40, 0)
    message = r"sharp gave 16 advantages that are not finite in iteration [1-9]\d* of run \d, learning rate 0.3"
    with pytest.raises(ValueError, match=message):
        train_many(two_doors(), Arm(sharp), settings, seeds=4, learning_rates=(1e-9, 0.3))


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"episodes \(9\) must be a multiple of group_size \(4\)"):
        Training(4, 9)
    with pytest.raises(ValueError, match=r"group_size \(1\), which is 2 or more"):
        Training(1, 8)
    with pytest.raises(ValueError, match="iterations must be 1 or more, got 0"):
        Training(iterations=0)
    with pytest.raises(ValueError, match="nothing to train: 0 seeds, 1 learning rates"):
        train_many(two_doors(), REINFORCE, SHORT, seeds=0, learning_rates=(0.1,))
    with pytest.raises(ValueError, match="shorten the memory"):
        train_many(two_doors(), REINFORCE, Training(memory_length=20), seeds=1, learning_rates=(0.1,))

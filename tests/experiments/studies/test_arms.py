"""The estimators under study: what they are given, and what they may not return."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies.arms import (
    ARMS,
    HISTORY,
    TASK,
    Arm,
    advantages_of,
    answered,
    checked_arms,
    critic_arm,
    hierarchy_arm,
    shrinkage_arm,
    signals_of,
    without_own_step,
)
from experiments.studies.measure import Setting, measure, sample
from experiments.studies.oracle import contexts, solve
from experiments.studies.rollouts import Rollouts, roll_out
from experiments.studies.worlds import graph_world, random_policy
from hgpo_jax.config import HGPOConfig
from hgpo_jax.estimators import group_steps, make_estimator
from hgpo_jax.types import StepSignals


@pytest.fixture(scope="module")
def played() -> tuple[Rollouts, StepSignals, np.ndarray]:
    """64 episodes in groups of 8, their signals, and the prompt group of each step."""
    world = graph_world(0, horizon=4, reward_std=0.2)
    policy = random_policy(world, 1, seed=0)
    rollouts = roll_out(world, policy, 64, np.random.default_rng(0), oracle=solve(world, policy))
    return rollouts, signals_of(rollouts, 8, gamma=0.9, size=300), rollouts.episode // 8


def test_equal_histories_are_grouped(played: tuple[Rollouts, StepSignals, np.ndarray]) -> None:
    rollouts, signals, group = played
    ids = np.asarray(signals.group_ids)[HISTORY]
    assert (ids[len(group) :] == -1).all()
    histories = {}
    for i in range(len(group)):
        own = rollouts.episode == rollouts.episode[i]
        upto = own & (rollouts.step <= rollouts.step[i])
        past = (*rollouts.observation[upto], -1, *rollouts.action[own & (rollouts.step < rollouts.step[i])])
        histories.setdefault((group[i], *past), []).append(i)
    for members in histories.values():
        assert len(set(ids[members])) == 1
        assert (ids[members[0]] >= 0) == (len(members) > 1)


def test_tasks_are_grouped(played: tuple[Rollouts, StepSignals, np.ndarray]) -> None:
    _, signals, group = played
    ids = np.asarray(signals.group_ids)[TASK]
    assert (ids[len(group) :] == -1).all()
    np.testing.assert_array_equal(ids[: len(group)][:, None] == ids[: len(group)], group[:, None] == group)


def test_all_weight_on_the_task_gives_returns_above_its_mean(
    played: tuple[Rollouts, StepSignals, np.ndarray],
) -> None:
    """Without trust in finer groups the baseline of every step is the mean over its task."""
    _, signals, group = played
    arm = shrinkage_arm(2, root="prompt", leave_one_out=False, prior_size=1e9)
    returns = np.asarray(signals.step_return)[: len(group)].astype(np.float64)
    wanted = returns - (np.bincount(group, returns) / np.bincount(group))[group]
    np.testing.assert_allclose(advantages_of("task", arm, signals), wanted, atol=1e-5)
    assert answered(arm, signals).all()


def test_leaving_the_own_step_out_equals_a_loop(played: tuple[Rollouts, StepSignals, np.ndarray]) -> None:
    """R_i minus the mean of the others at each level, mixed by the weights of the levels used."""
    _, signals, group = played
    arm = ARMS["HGPO K=2 α=2"]
    mixed = without_own_step(arm, signals)
    assert mixed is not None
    returns = np.asarray(signals.step_return)[: len(group)].astype(np.float64)
    for i in range(0, len(group), 7):
        total = weights = 0.0
        for k in range(3):
            ids = np.asarray(signals.group_ids)[k, : len(group)]
            others = (ids == ids[i]) & (np.arange(len(ids)) != i)
            if ids[i] >= 0:
                total += (k + 1) ** 2 * (returns[i] - returns[others].mean())
                weights += (k + 1) ** 2
        assert mixed[i] == pytest.approx(total / weights if weights else 0, abs=1e-5)
    np.testing.assert_array_equal(mixed, advantages_of("own", hierarchy_arm(2, 2.0, leave_one_out=True), signals))
    assert without_own_step(ARMS["GRPO"], signals) is None
    assert without_own_step(ARMS["HGPO K=2 std"], signals) is None


def test_one_level_alone_equals_the_mix_with_all_weight_there(
    played: tuple[Rollouts, StepSignals, np.ndarray],
) -> None:
    _, signals, group = played
    finest = advantages_of("level 2", ARMS["level 2"], signals)
    mixed = advantages_of("HGPO", ARMS["HGPO K=2 α=∞"], signals)
    has = answered(ARMS["level 2"], signals)
    assert 0 < has.sum() < len(group)
    np.testing.assert_allclose(mixed[has], finest[has], atol=1e-5)
    assert (finest[~has] == 0).all()
    assert answered(ARMS["GRPO"], signals).all()


def test_a_critic_of_zeros_gives_returns_at_lambda_1_and_rewards_at_0(
    played: tuple[Rollouts, StepSignals, np.ndarray],
) -> None:
    rollouts, signals, group = played
    signals = signals._replace(value=np.zeros(len(signals.valid), np.float32))
    returns = np.asarray(signals.step_return)[: len(group)]
    np.testing.assert_allclose(advantages_of("critic", critic_arm(0.9, 1.0), signals), returns, atol=1e-5)
    np.testing.assert_allclose(advantages_of("critic", critic_arm(0.9, 0.0), signals), rollouts.reward, atol=1e-5)


def test_a_critic_against_the_recursion(played: tuple[Rollouts, StepSignals, np.ndarray]) -> None:
    rollouts, signals, group = played
    value = np.random.default_rng(1).normal(size=len(group)).astype(np.float32)
    padded = signals._replace(value=np.pad(value, (0, len(signals.valid) - len(group))))
    got = advantages_of("critic", critic_arm(0.9, 0.5), padded)
    wanted = np.zeros(len(group) + 1)
    for i in range(len(group) - 1, -1, -1):
        on = i + 1 < len(group) and rollouts.episode[i + 1] == rollouts.episode[i]
        error = rollouts.reward[i] + 0.9 * (value[i + 1] if on else 0) - value[i]
        wanted[i] = error + 0.45 * (wanted[i + 1] if on else 0)
    np.testing.assert_allclose(got, wanted[:-1], atol=1e-5)


def test_an_estimator_of_your_own(played: tuple[Rollouts, StepSignals, np.ndarray]) -> None:
    _, signals, group = played

    def returns_above_zero(signals: StepSignals) -> jnp.ndarray:
        return jnp.where(signals.group_ids[0] >= 0, signals.step_return, 0)

    own = advantages_of("mine", Arm(returns_above_zero, (HISTORY,)), signals)
    grouped = np.asarray(signals.group_ids)[HISTORY, : len(group)] >= 0
    np.testing.assert_array_equal(own, np.where(grouped, np.asarray(signals.step_return)[: len(group)], 0))


def test_bad_results_name_the_estimator(played: tuple[Rollouts, StepSignals, np.ndarray]) -> None:
    _, signals, _ = played
    with pytest.raises(ValueError, match='estimator "mine" gave step 0 the advantage nan: not finite'):
        advantages_of("mine", Arm(lambda s: s.step_return * jnp.nan), signals)
    with pytest.raises(ValueError, match=r'estimator "mine": .*returned advantages of shape \[299\], expected \[300\]'):
        advantages_of("mine", Arm(lambda s: s.step_return[1:]), signals)


@pytest.mark.parametrize("k", [5, 7])
def test_levels_beyond_those_with_arms_are_levels_too(k: int) -> None:
    """Not the tasks' and the histories' rows, which lie behind the levels."""
    world = graph_world(0, horizon=9, width=2, reward_std=0.2)
    setting = Setting(world, random_policy(world, 1, seed=0), 4, 0.9, 4096)
    found = dict(measure(setting, {"mix": hierarchy_arm(k), "level": Arm(hierarchy_arm(0).estimator, (k,))}))
    data = sample(setting)
    rollouts, group = data.rollouts, data.rollouts.episode // 4
    ids = group_steps(rollouts.observation, group, rollouts.episode, context_length=k)
    assert found["level"].answered == pytest.approx((ids[k] >= 0).mean())
    signals = data.signals._replace(group_ids=np.pad(ids, [(0, 0), (0, 4096 - ids.shape[1])], constant_values=-1))
    error = (
        make_estimator(hierarchy_arm(k).estimator)(signals)[0][: len(group)]
        - data.oracle.advantage[rollouts.node, rollouts.action]
    )
    # The measure weighs cells by how often they are expected; so few of them are seen often enough to differ little.
    assert found["mix"].steps["all"].mse.value == pytest.approx(float((error**2).mean()), rel=0.05)
    with pytest.raises(ValueError, match=f"level {k} is read, but the signals hold the levels 0 to 4"):
        advantages_of("mix", hierarchy_arm(k), data.signals)


def test_what_is_no_arm_is_made_one_or_told() -> None:
    def own(signals: StepSignals) -> jnp.ndarray:
        return jnp.asarray(signals.step_return)

    config = HGPOConfig(context_length=0)
    assert checked_arms({"own": own, "K=0": config}) == {"own": Arm(own, (0,)), "K=0": Arm(config, (0,))}
    for rows in (2, (), (-3,), ("0",), [0]):
        with pytest.raises(ValueError, match=r'estimator "own" reads the rows .*expected a tuple of levels from 0 on'):
            checked_arms({"own": Arm(own, rows)})  # pyright: ignore[reportArgumentType]

    @dataclasses.dataclass
    class Loose:
        def __call__(self, signals: StepSignals) -> jnp.ndarray:
            return own(signals)

    with pytest.raises(ValueError, match='estimator "loose" cannot be hashed'):
        checked_arms({"loose": Loose()})


def test_contexts_agree_with_the_groups(played: tuple[Rollouts, StepSignals, np.ndarray]) -> None:
    """Steps share a group at level 2 when their histories have equal contexts (of full length)."""
    rollouts, signals, group = played
    world = graph_world(0, horizon=4, reward_std=0.2)
    code = contexts(solve(world, random_policy(world, 1, seed=0)), 2)[rollouts.node]
    ids = np.asarray(signals.group_ids)[2, : len(group)]
    late = np.flatnonzero(rollouts.step >= 2)
    same_code = (code[late, None] == code[late]) & (group[late, None] == group[late])
    same_id = (ids[late, None] == ids[late]) & (ids[late] >= 0)
    assert (same_id == (same_code & (ids[late] >= 0))).all()

"""Training a table of logits in a small world, whole runs in one program: rollout, grouping, estimator, step.

The policy is `worlds.Policy`'s table over what it saw last; the critic, for estimators that want one, is a table of
the same rows. Nothing leaves the device until a run is over, and runs are vmapped, so that twenty seeds cost little
more than one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

from experiments.studies.arms import HISTORY, TASK, Arm
from experiments.studies.device_groups import history_ids, level_ids
from experiments.studies.worlds import Policy, World, uniform_policy
from hgpo_jax.estimators import make_estimator
from hgpo_jax.estimators.advantages import estimator_name
from hgpo_jax.types import Array, StepSignals


@dataclasses.dataclass(frozen=True)
class Training:
    """What every estimator trains with."""

    group_size: int = 8  # episodes a prompt group
    episodes: int = 64  # of an iteration
    iterations: int = 200  # one step of Adam each
    memory_length: int = 2  # past observations that the policy sees
    gamma: float = 0.95
    # A bonus for entropy is no small matter to Adam where most advantages are 0: it would rule such estimators' steps.
    entropy_coef: float = 0.0
    value_rate: float = 0.3  # share of the way that a visited row of the critic goes to its targets' mean

    def __post_init__(self) -> None:
        if self.group_size < 2 or self.episodes % self.group_size or self.episodes < 1:
            raise ValueError(
                f"episodes ({self.episodes}) must be a multiple of group_size ({self.group_size}), which is 2 or more"
            )
        for name, share in {"gamma": self.gamma, "value_rate": self.value_rate}.items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {share}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be 1 or more, got {self.iterations}")


class Episodes(NamedTuple):
    """E episodes side by side, [T, E]; what lies behind an episode's end is not valid."""

    observation: jax.Array  # i32
    memory: jax.Array  # i32, row of the tables
    action: jax.Array  # i32
    reward: jax.Array  # f32
    valid: jax.Array  # bool
    next_memory: jax.Array  # i32, row of the state that the step led to
    over: jax.Array  # bool, whether that state is terminal


class Curves(NamedTuple):
    """Of each iteration's batch, before its step; [.., iterations]."""

    success: Array  # share of the batch's episodes with a score above 0
    score: Array  # mean sum of rewards
    length: Array  # mean steps of an episode
    entropy: Array  # mean over steps, in nats
    no_signal: Array  # share of steps with advantage 0
    not_finite: Array  # advantages that are NaN or infinite


class Learner(NamedTuple):
    """What an iteration changes."""

    logits: jax.Array  # f32 [D, A], a row for each memory of `worlds.Policy`
    value: jax.Array  # f32 [D], 0 without a critic
    moments: optax.OptState


def play(world: World, policy: Policy, logits: jax.Array, episodes: int, key: jax.Array) -> Episodes:
    """Episodes of softmax(logits), one row for each memory of ``policy``."""
    arrive_SAS = jnp.asarray(world.transition.cumsum(-1), jnp.float32)
    reward_SAS, observation_S = jnp.asarray(world.reward, jnp.float32), jnp.asarray(world.observation, jnp.int32)
    terminal_S = jnp.asarray(world.terminal)
    start_key, key = jax.random.split(key)
    state_E = jax.random.choice(start_key, len(world.initial), (episodes,), p=jnp.asarray(world.initial, jnp.float32))

    def step(carry: tuple[jax.Array, ...], key: jax.Array) -> tuple[tuple[jax.Array, ...], Episodes]:
        state_E, past_E, valid_E = carry
        act_key, move_key, noise_key = jax.random.split(key, 3)
        observation_E = observation_S[state_E]
        memory_E = policy.memory(past_E, observation_E)
        action_E = jax.random.categorical(act_key, logits[memory_E])
        edges_ES = arrive_SAS[state_E, action_E]
        # Scaled by the last edge, which rounding may leave below 1, an index never runs over.
        drawn_E1 = jax.random.uniform(move_key, (episodes, 1)) * edges_ES[:, -1:]
        ahead_E = (drawn_E1 >= edges_ES).sum(1)
        reward_E = reward_SAS[state_E, action_E, ahead_E]
        if world.reward_std:
            reward_E += world.reward_std * jax.random.normal(noise_key, (episodes,))
        past_E = policy.remember(past_E, observation_E, action_E)
        over_E = terminal_S[ahead_E]
        ahead_memory_E = policy.memory(past_E, observation_S[ahead_E])
        reward_E = jnp.where(valid_E, reward_E, 0)
        row = Episodes(observation_E, memory_E, action_E, reward_E, valid_E, ahead_memory_E, over_E)
        return (ahead_E, past_E, valid_E & ~over_E), row

    first = (state_E, jnp.zeros(episodes, jnp.int32), jnp.ones(episodes, bool))
    return jax.lax.scan(step, first, jax.random.split(key, world.horizon))[1]


def signals_on_device(
    played: Episodes, arm: Arm, group_size: int, *, gamma: float, num_observations: int, value_D: jax.Array
) -> StepSignals:
    """What the arm's estimator reads, N = T E steps, time before episode; as `arms.signals_of` gives it on the host.

    Args:
      played: the episodes, ``group_size`` successive ones a prompt group.
      arm: says which rows of group ids are made.
      group_size, num_observations: static.
      gamma: discount.
      value_D: f32 [D] the critic's table; a step cut by the horizon goes on with its value.

    Returns:
      The signals; fields of steps that are not valid are 0, their ids -1.
    """
    horizon, episodes = played.valid.shape
    valid_N = played.valid.ravel()
    group_E = jnp.arange(episodes, dtype=jnp.int32) // group_size

    def discount(ahead_E: jax.Array, reward_E: jax.Array) -> tuple[jax.Array, jax.Array]:
        here_E = reward_E + gamma * ahead_E
        return here_E, here_E

    return_TE = jax.lax.scan(discount, jnp.zeros(episodes), played.reward, reverse=True)[1]
    score_TE = jnp.broadcast_to(played.reward.sum(0), played.reward.shape)
    goes_on_TE = jnp.concatenate([played.valid[1:], jnp.zeros((1, episodes), bool)])
    next_step_TE = jnp.arange(horizon * episodes).reshape(horizon, episodes) + episodes

    def over_steps(x_E: jax.Array) -> jax.Array:
        return jnp.where(played.valid, jnp.broadcast_to(x_E, played.valid.shape), -1).ravel()

    def of_valid(x_TE: jax.Array) -> jax.Array:
        return jnp.where(played.valid, x_TE, 0).ravel()

    depth = max((row for row in arm.rows if row >= 0), default=-1) + 1
    rows: dict[int, jax.Array] = {TASK: over_steps(group_E)}
    if depth:
        levels = level_ids(played.observation, played.valid, group_E, levels=depth, num_states=num_observations)
        rows |= dict(enumerate(levels))
    if HISTORY in arm.rows:
        rows[HISTORY] = history_ids(played.observation, played.action, played.valid, group_size=group_size)
    return StepSignals(
        step_return=of_valid(return_TE),
        score=of_valid(score_TE),
        prompt_group=over_steps(group_E),
        trajectory=over_steps(jnp.arange(episodes, dtype=jnp.int32)),
        valid=valid_N,
        group_ids=jnp.stack([rows[row] for row in arm.rows]),
        value=of_valid(value_D[played.memory]),
        next_value=of_valid(jnp.where(played.over, 0, value_D[played.next_memory])),
        next_step=jnp.where(goes_on_TE & played.valid, next_step_TE, -1).ravel(),
        reward=played.reward.ravel(),
        penalty=jnp.zeros(valid_N.shape),
        discount=jnp.full(valid_N.shape, gamma),
    )


def make_training(
    world: World, arm: Arm, settings: Training
) -> Callable[[jax.Array, jax.Array], tuple[Learner, Curves]]:
    """A whole run as one pure function of its key and learning rate.

    Each iteration plays ``episodes`` episodes of the policy, asks the estimator for the advantages of all steps, and
    takes one step of Adam up the gradient of

        mean over steps of A log pi(a | memory) + entropy_coef H(pi(. | memory))

    which is on-policy, so that no ratio has to be clipped. An estimator whose diagnostics hold ``value_target`` has a
    critic: each row of its table that was visited moves ``value_rate`` of the way to the mean of its targets.

    Args:
      world: where, one task.
      arm: the estimator and the group ids that it reads.
      settings: all else.

    Returns:
      ``run(key, learning_rate)`` -> what it ends with, and its curves [iterations].

    Raises:
      ValueError: more memories than a table should hold; when called, an estimator's result of a wrong shape.
    """
    policy = uniform_policy(world, settings.memory_length, actions=False)
    estimator = make_estimator(arm.estimator)
    adam = optax.scale_by_adam()

    def objective(logits: jax.Array, played: Episodes, advantages_N: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_NA = jax.nn.log_softmax(logits[played.memory.ravel()])
        taken_N = jnp.take_along_axis(log_NA, played.action.reshape(-1, 1), axis=1)[:, 0]
        entropy_N = -(jnp.exp(log_NA) * log_NA).sum(1)
        valid_N = played.valid.ravel()
        steps = valid_N.sum()
        entropy = jnp.where(valid_N, entropy_N, 0).sum() / steps
        gain = jnp.where(valid_N, advantages_N * taken_N, 0).sum() / steps
        return gain + settings.entropy_coef * entropy, entropy

    def iterate(learner: Learner, key: jax.Array, learning_rate: jax.Array) -> tuple[Learner, Curves]:
        played = play(world, policy, learner.logits, settings.episodes, key)
        signals = signals_on_device(
            played,
            arm,
            settings.group_size,
            gamma=settings.gamma,
            num_observations=world.num_observations,
            value_D=learner.value,
        )
        advantages_N, diagnostics = estimator(signals)
        gradient, entropy = jax.grad(objective, has_aux=True)(learner.logits, played, advantages_N)
        step, moments = adam.update(gradient, learner.moments)
        value = learner.value
        if "value_target" in diagnostics:
            value = _regressed(value, played.memory.ravel(), diagnostics["value_target"], signals, settings.value_rate)
        score_E = played.reward.sum(0)
        steps = played.valid.sum()
        curves = Curves(
            success=(score_E > 0).mean(),
            score=score_E.mean(),
            length=steps / settings.episodes,
            entropy=entropy,
            no_signal=(signals.valid & (advantages_N == 0)).sum() / steps,
            not_finite=(signals.valid & ~jnp.isfinite(advantages_N)).sum(),
        )
        assert isinstance(step, jax.Array)
        return Learner(learner.logits + learning_rate * step, value, moments), curves

    def run(key: jax.Array, learning_rate: jax.Array) -> tuple[Learner, Curves]:
        logits = jnp.zeros(policy.probability.shape)
        start = Learner(logits, jnp.zeros(len(logits)), adam.init(logits))
        keys = jax.random.split(key, settings.iterations)
        return jax.lax.scan(lambda learner, key: iterate(learner, key, learning_rate), start, keys)

    return run


def train_many(
    world: World, arm: Arm, settings: Training, *, seeds: int, learning_rates: tuple[float, ...], seed: int = 0
) -> Curves:
    """Every learning rate with every seed, side by side on all devices.

    Args:
      world, arm, settings: as for `make_training`.
      seeds: runs of each rate; run i has the same key with each estimator and rate, however many there are.
      learning_rates: Adam's.
      seed: of the keys.

    Returns:
      NumPy arrays [rates, seeds, iterations].

    Raises:
      ValueError: as `make_training`; an advantage that is not finite, naming iteration, run and rate.
    """
    if seeds < 1 or not learning_rates:
        raise ValueError(f"nothing to train: {seeds} seeds, {len(learning_rates)} learning rates")
    if not all(0 <= rate < float("inf") for rate in learning_rates):
        raise ValueError(f"learning rates must be 0 or more and finite, got {learning_rates}")
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(seeds))
    keys_R = jnp.tile(keys, len(learning_rates))
    rates_R = jnp.repeat(jnp.asarray(learning_rates, jnp.float32), seeds)
    runs = len(rates_R)
    devices = max(d for d in range(1, jax.device_count() + 1) if runs % d == 0)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("runs",))
    train = make_training(world, arm, settings)
    many = jax.vmap(lambda key, rate: train(key, rate)[1])
    spec = PartitionSpec("runs")
    split = jax.shard_map(many, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False)
    curves = jax.tree.map(np.asarray, jax.jit(split)(keys_R, rates_R))
    bad = curves.not_finite
    if bad.any():
        first = int(bad.any(0).argmax())
        run = int((bad[:, first] > 0).argmax())
        raise ValueError(
            f"{estimator_name(arm.estimator)} gave {bad[run, first]} advantages that are not finite in "
            f"iteration {first} of run {run % seeds}, learning rate {learning_rates[run // seeds]:g}: look for a "
            "division by a spread or a count of 0"
        )
    return jax.tree.map(lambda x: x.reshape(len(learning_rates), seeds, -1), curves)


def _regressed(
    value_D: jax.Array, memory_N: jax.Array, target_N: Array, signals: StepSignals, rate: float
) -> jax.Array:
    """The critic's table after one regression: visited rows move toward the mean of their targets."""
    valid_N = jnp.asarray(signals.valid)
    if jnp.shape(target_N) != valid_N.shape:
        raise ValueError(f"value_target has shape {list(jnp.shape(target_N))}, expected {list(valid_N.shape)}")
    error_N = jnp.where(valid_N, target_N - value_D[memory_N], 0)
    visits_D = jnp.zeros_like(value_D).at[memory_N].add(valid_N.astype(jnp.float32))
    total_D = jnp.zeros_like(value_D).at[memory_N].add(error_N)
    return value_D + rate * total_D / jnp.maximum(visits_D, 1)

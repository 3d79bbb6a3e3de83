"""The estimators under study, by name; one of your own is one more entry.

An `Arm` says which rows of group ids its estimator reads: k is the level of `group_steps`, `TASK` the prompt groups,
`HISTORY` the groups of steps with the same entire history of observations and actions.
``{**ARMS, "mine": Arm(my_function, (0, 1, 2))}``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.rollouts import Rollouts
from hgpo_jax.config import GiGPOConfig, GRPOConfig, HGPOConfig, ReinforceConfig, ShrinkageConfig
from hgpo_jax.estimators import Grouping, compact_ids, group_steps, make_estimator, step_signals
from hgpo_jax.estimators.advantages import Estimator
from hgpo_jax.estimators.gae import generalized_advantages
from hgpo_jax.types import Array, StepSignals

LEVELS = 5  # k = 0..4 have arms of their own
TASK, HISTORY = -2, -1  # the last rows of the group ids


class Arm(NamedTuple):
    """An estimator and what it reads."""

    estimator: Estimator  # settings, or a function of StepSignals
    rows: tuple[int, ...] = (0,)  # of the group ids, in the order that the estimator expects
    standardised: bool = False  # its unit isn't the reward's: only directions can be compared

    @property
    def by_level(self) -> HGPOConfig | None:
        """The settings of HGPO in units of reward, its own steps in the means; None for other estimators."""
        config = self.estimator
        if not isinstance(config, HGPOConfig) or self.standardised or config.episode_level or config.leave_one_out:
            return None
        return config


def checked_arms(arms: Mapping[str, Arm | Estimator]) -> dict[str, Arm]:
    """Arms by name; bare estimators read the state level.

    Raises:
      ValueError: no arm, or rows that name no group ids.
    """
    if not arms:
        raise ValueError("no estimators: give the study at least one arm")
    made = {name: arm if isinstance(arm, Arm) else Arm(arm) for name, arm in arms.items()}
    for name, arm in made.items():
        if type(arm.estimator).__hash__ is None:
            raise ValueError(f'estimator "{name}" cannot be hashed, so that it would be compiled each time: freeze it')
        rows: Any = arm.rows
        if not isinstance(rows, tuple) or not rows or not all(isinstance(k, int) and k >= TASK for k in rows):
            raise ValueError(
                f'estimator "{name}" reads the rows {rows!r}: expected a tuple of levels from 0 on, TASK ({TASK}) and '
                f"HISTORY ({HISTORY})"
            )
    return made


def hierarchy_arm(context_length: int, alpha: float = 1.0, *, normalize_std: bool = False, **settings: Any) -> Arm:
    """HGPO over the levels 0..K."""
    config = HGPOConfig(context_length=context_length, alpha=alpha, normalize_std=normalize_std, **settings)
    return Arm(config, tuple(range(context_length + 1)), normalize_std)


def shrinkage_arm(context_length: int, **settings: Any) -> Arm:
    """Nested shrinkage over the levels 0..K, with ``root="prompt"`` the task above them."""
    config = ShrinkageConfig(context_length=context_length, **settings)
    return Arm(config, (TASK,) * (config.root == "prompt") + tuple(range(context_length + 1)))


def level_arm(row: int) -> Arm:
    """One level alone, or the exact histories."""
    return Arm(HGPOConfig(context_length=0, normalize_std=False), (row,))


def critic_arm(gamma: float, lambda_: float) -> Arm:
    """GAE with ``signals.value`` as its critic; the steps of an episode lie one after another (`Rollouts`)."""

    def gae(signals: StepSignals) -> jax.Array:
        assert signals.value is not None
        size = len(signals.trajectory)
        here = jnp.arange(size)
        goes_on = (signals.trajectory == jnp.roll(signals.trajectory, -1)) & signals.valid & (here < size - 1)

        def ahead(values: Array) -> jax.Array:
            return jnp.where(goes_on, jnp.roll(values, -1), 0)

        reward = signals.step_return - gamma * ahead(signals.step_return)
        next_step = jnp.where(goes_on, here + 1, -1)
        return generalized_advantages(
            reward, jnp.full(size, gamma), signals.value, ahead(signals.value), next_step, lambda_
        )

    return Arm(gae)


def critic_arms(gamma: float) -> dict[str, Arm]:
    """GAE as good as it can be: its critic knows V of what the policy sees."""
    return {f"GAE λ={lambda_:g}, true V": critic_arm(gamma, lambda_) for lambda_ in (0.0, 0.95, 1.0)}


# REINFORCE's batch is the whole sample, so its baseline is the task's true mean: a batch without end of one task.
ARMS: dict[str, Arm] = {
    "REINFORCE": Arm(ReinforceConfig()),
    "GRPO": Arm(GRPOConfig(normalize_std=False)),
    "RLOO": Arm(GRPOConfig(normalize_std=False, leave_one_out=True, over="trajectories")),
    "GiGPO": Arm(GiGPOConfig(normalize_std=False)),
    **{f"level {k}": level_arm(k) for k in range(LEVELS)},
    "exact history": level_arm(HISTORY),
    "HGPO K=0 + episode": hierarchy_arm(0, episode_level=True),
    "HGPO K=1": hierarchy_arm(1),
    "HGPO K=2": hierarchy_arm(2),
    "HGPO K=4": hierarchy_arm(4),
    "HGPO K=2 α=0": hierarchy_arm(2, 0.0),
    "HGPO K=2 α=2": hierarchy_arm(2, 2.0),
    "HGPO K=2 α=∞": hierarchy_arm(2, float("inf")),
    "HGPO K=2 leave-one-out": hierarchy_arm(2, leave_one_out=True),
    "shrinkage K=2": shrinkage_arm(2, leave_one_out=False),
    "shrinkage K=2 leave-one-out": shrinkage_arm(2),
    "shrinkage K=2 task root": shrinkage_arm(2, leave_one_out=False, root="prompt"),
    "shrinkage K=2 task root, l.-o.-o.": shrinkage_arm(2, root="prompt"),
    "GRPO std": Arm(GRPOConfig(), standardised=True),
    "GiGPO std": Arm(GiGPOConfig(), standardised=True),
    "HGPO K=2 std": hierarchy_arm(2, normalize_std=True),
    "HGPO K=4 std": hierarchy_arm(4, normalize_std=True),
}


def signals_of(
    rollouts: Rollouts,
    group_size: int,
    *,
    gamma: float,
    size: int,
    value: np.ndarray | None = None,
    levels: int = LEVELS,
    state: Any = None,
) -> StepSignals:
    """What the estimators read, ``group_size`` successive episodes a prompt group, padded to ``size`` steps.

    Args:
      rollouts: N steps, with the numbers of their histories.
      group_size: episodes a prompt group.
      gamma: discount.
      size: one for all batches, so that each estimator is compiled once.
      value: f32 [N] a critic's values, for estimators that read them.
      levels: that are grouped.
      state: [N] what is compared as the state, in place of the observation.

    Returns:
      The signals, NumPy; ``group_ids`` [levels + 2, size], the tasks and the exact histories last.
    """
    group = rollouts.episode // group_size
    signals = step_signals(
        rollouts.observation if state is None else state,
        group,
        rollouts.episode,
        rollouts.reward,
        estimator=HGPOConfig(),
        gamma=gamma,
        invalid_action_penalty=0.0,
        grouping=Grouping(levels - 1, "state"),
        size=size,
    )
    pad = (0, size - len(group))
    # The number of a history is a state that holds all of the past; of a task all steps share one.
    more = [
        group_steps(state, group, rollouts.episode, context_length=0)
        for state in (np.zeros_like(group), compact_ids(rollouts.node))
    ]
    ids = np.concatenate([signals.group_ids, np.pad(np.concatenate(more), [(0, 0), pad], constant_values=-1)])
    signals = signals._replace(group_ids=ids)
    return signals if value is None else signals._replace(value=np.pad(value.astype(np.float32), pad))


def advantages_of(name: str, arm: Arm, signals: StepSignals) -> np.ndarray:
    """The arm's advantages of the valid steps: f64 [N].

    Raises:
      ValueError: what the estimator returns is not one finite number a step; the message names it.
    """
    try:
        result, _ = _compiled(arm.estimator)(signals._replace(group_ids=_ids_read(arm, signals)))
    except ValueError as error:
        raise ValueError(f'estimator "{name}": {error}') from error
    advantages = np.asarray(result, np.float64)[signals.valid]
    if not np.isfinite(advantages).all():
        step = int(np.argmin(np.isfinite(advantages)))
        raise ValueError(f'estimator "{name}" gave step {step} the advantage {advantages[step]}: not finite')
    return advantages


def answered(arm: Arm, signals: StepSignals) -> np.ndarray:
    """Which valid steps the arm has a group for: bool [N]; all of them for estimators not made of levels."""
    ids = _ids_read(arm, signals)[:, np.asarray(signals.valid)]
    config = arm.estimator
    levels = isinstance(config, ShrinkageConfig) or (isinstance(config, HGPOConfig) and not config.episode_level)
    return np.any(ids >= 0, axis=0) if levels else np.ones(ids.shape[1], bool)


def without_own_step(arm: Arm, signals: StepSignals) -> np.ndarray | None:
    """The same mix with the own step left out of each level's mean, f64 [N]; None for other estimators than HGPO."""
    config = arm.by_level
    if config is None:
        return None
    left_out = Arm(dataclasses.replace(config, leave_one_out=True), arm.rows)
    return advantages_of(repr(left_out.estimator), left_out, signals)


def _ids_read(arm: Arm, signals: StepSignals) -> np.ndarray:
    ids = np.asarray(signals.group_ids)
    levels = len(ids) + TASK
    if max(arm.rows) >= levels:
        raise ValueError(f"level {max(arm.rows)} is read, but the signals hold the levels 0 to {levels - 1}")
    return ids[list(arm.rows)]


@functools.lru_cache(maxsize=64)
def _compiled(estimator: Estimator) -> Any:
    return jax.jit(make_estimator(estimator))

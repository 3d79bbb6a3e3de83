"""One setting of the bias-variance study: a world, a policy and a group size, and every arm measured in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.studies.arms import (
    HISTORY,
    LEVELS,
    Arm,
    advantages_of,
    answered,
    checked_arms,
    signals_of,
    without_own_step,
)
from experiments.studies.keys import StateKeys
from experiments.studies.moments import (
    BLOCKS,
    Interval,
    Moments,
    advantage_moments,
    gradient_moments,
)
from experiments.studies.oracle import Oracle, contexts, marginal, policy_gradient, solve
from experiments.studies.rollouts import Rollouts, roll_out
from experiments.studies.worlds import Policy, World
from hgpo_jax.estimators.advantages import Estimator
from hgpo_jax.types import StepSignals

COMMON_ROWS = (0, 1, 2, HISTORY)  # levels whose groups all have to exist for a step to be among the common ones

SMALLEST_ADVANTAGE = 1e-9  # root mean square; below it is rounding
LEFT_OUT = ", own step left out"


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """Who acts where, and how often."""

    world: World
    policy: Policy
    group_size: int
    gamma: float = 0.95
    max_steps: int = 131_072  # what the sample is padded to; as many prompt groups as fit
    seed: int = 0
    state_keys: StateKeys | None = None  # how the groups' states come from the observations; as they are when left out

    def __post_init__(self) -> None:
        if self.groups < 1:
            need = BLOCKS * self.group_size * self.world.horizon
            raise ValueError(
                f"max_steps of {self.max_steps} is too few for {BLOCKS} prompt groups: give {need} or more"
            )

    @property
    def groups(self) -> int:
        """Prompt groups, the independent replications: a multiple of BLOCKS."""
        return self.max_steps // (self.group_size * self.world.horizon) // BLOCKS * BLOCKS


class Measured(NamedTuple):
    """An arm in a setting. Mean squares are in units of reward squared; None where the unit isn't the reward's."""

    answered: float  # share of the steps that have a group
    steps: dict[str, Moments]  # against A(h, a), by set of steps; "own step left out" also without that factor
    gradient: dict[str, Interval]
    baseline_bias2: float | None  # of a single level in an infinite group, exactly: E (V(h) - V(C_k))²


class Sampled(NamedTuple):
    """Rollouts of a setting beside the truth."""

    rollouts: Rollouts
    signals: StepSignals
    oracle: Oracle


def sample(setting: Setting, levels: int = LEVELS) -> Sampled:
    """Solve the world, play the prompt groups; ``signals.value`` is V of what the policy sees, a perfect critic's."""
    oracle = solve(setting.world, setting.policy, gamma=setting.gamma)
    if rms_advantage(oracle) < SMALLEST_ADVANTAGE:
        raise ValueError(
            f"{setting.world.name}: every action is as good as any other, so there is no advantage to estimate: "
            "choose a longer horizon, a higher temperature or another seed"
        )
    episodes = setting.groups * setting.group_size
    rng = np.random.default_rng(setting.seed)
    rollouts = roll_out(setting.world, setting.policy, episodes, rng, oracle=oracle)
    seen = marginal(oracle, oracle.memory)[1][rollouts.node]
    state = None
    if setting.state_keys is not None:
        state = setting.state_keys(rollouts.observation, rollouts.episode // setting.group_size, rng)
    signals = signals_of(
        rollouts,
        setting.group_size,
        gamma=setting.gamma,
        size=setting.max_steps,
        value=seen,
        levels=levels,
        state=state,
    )
    return Sampled(rollouts, signals, oracle)


def measure(setting: Setting, arms: Mapping[str, Arm | Estimator]) -> Iterator[tuple[str, Measured]]:
    """Bias, variance and gradient of every arm.

    Sets of steps: ``all``; ``answered``, those for which the arm has a group; ``common``, those with a group at the
    levels 0, 1, 2 and of equal histories, the same for all arms; ``view`` is all, against the second oracle, which
    knows only what the policy sees, with its cells.

    Args:
      setting: where.
      arms: estimators by name; one that is no `Arm` reads the state level.

    Yields:
      Name and figures.

    Raises:
      ValueError: as `solve` and `advantages_of`.
    """
    made = checked_arms(arms)
    finest = max(max(arm.rows) for arm in made.values())
    data = sample(setting, max(finest + 1, LEVELS))
    cells = _Cells(setting, data)
    for name, arm in made.items():
        advantage = advantages_of(name, arm, data.signals)
        kept = answered(arm, data.signals)
        steps = {}
        if not arm.standardised:
            steps = cells.moments(advantage, kept) | {"view": cells.moments_seen(advantage)}
        own_left_out = without_own_step(arm, data.signals)
        if own_left_out is not None:
            corrected = cells.moments(own_left_out, kept)
            steps |= {f"{which}{LEFT_OUT}": moments for which, moments in corrected.items()}
        gradient = cells.gradient(advantage)
        if arm.standardised:
            gradient = {which: gradient[which] for which in ("cosine", "cosine_of_mean")}
        yield name, Measured(float(kept.mean()), steps, gradient, _baseline_bias2(arm, data.oracle))


def rms_advantage(oracle: Oracle) -> float:
    """Root mean square of A(h, a) over visits: the error of an estimator that always says 0."""
    return float(np.sqrt((oracle.pair_visit * oracle.advantage**2).sum() / oracle.visit.sum()))


def _baseline_bias2(arm: Arm, oracle: Oracle) -> float | None:
    if arm.by_level is None or len(arm.rows) != 1:
        return None
    (row,) = arm.rows
    known = oracle.value if row == HISTORY else marginal(oracle, contexts(oracle, row))[1]
    return float(oracle.visit @ (oracle.value - known) ** 2 / oracle.visit.sum())


class _Cells:
    """The cells of a sample, which are the same for all arms."""

    def __init__(self, setting: Setting, data: Sampled) -> None:
        oracle, rollouts = data.oracle, data.rollouts
        actions = oracle.policy.shape[1]
        group = rollouts.episode // setting.group_size
        # Episodes expected in a block, the number by which an episode's visit probabilities are multiplied.
        episodes = setting.groups // BLOCKS * setting.group_size
        self.total = episodes * float(oracle.visit.sum())
        self.block = group // (setting.groups // BLOCKS)
        visited, self.cell = np.unique(rollouts.node * actions + rollouts.action, return_inverse=True)
        self.expected = episodes * oracle.pair_visit.ravel()[visited]
        self.truth = oracle.advantage[rollouts.node, rollouts.action]

        memories, memory = np.unique(oracle.memory, return_inverse=True)
        seen_q, seen_v = marginal(oracle, oracle.memory)
        self.truth_seen = (seen_q - seen_v[:, None])[rollouts.node, rollouts.action]
        visits = [np.bincount(memory, column, len(memories)) for column in oracle.pair_visit.T]
        seen, self.cell_seen = np.unique(memory[rollouts.node] * actions + rollouts.action, return_inverse=True)
        self.expected_seen = episodes * np.stack(visits, 1).ravel()[seen]

        ids = np.asarray(data.signals.group_ids)[:, : len(group)]
        self.common: np.ndarray = np.all(ids[list(COMMON_ROWS)] >= 0, axis=0)
        table = setting.policy.probability
        true_gradient = policy_gradient(oracle, len(table))[memories]
        self.about_gradient: dict[str, Any] = {
            "action": rollouts.action,
            "memory": memory[rollouts.node],
            "group": group,
            "probability": table[memories],
            "truth": true_gradient,
            "groups": setting.groups,
            "group_size": setting.group_size,
        }

    def moments(self, advantage: np.ndarray, kept: np.ndarray) -> dict[str, Moments]:
        error, cell, block = advantage - self.truth, self.cell, self.block
        everywhere = advantage_moments(error, cell, block, self.expected, self.total)
        return {
            "all": everywhere,
            "answered": everywhere if kept.all() else advantage_moments(error, cell, block, kept=kept),
            "common": advantage_moments(error, cell, block, kept=self.common),
        }

    def moments_seen(self, advantage: np.ndarray) -> Moments:
        error = advantage - self.truth_seen
        return advantage_moments(error, self.cell_seen, self.block, self.expected_seen, self.total)

    def gradient(self, advantage: np.ndarray) -> dict[str, Interval]:
        return gradient_moments(advantage, **self.about_gradient)._asdict()

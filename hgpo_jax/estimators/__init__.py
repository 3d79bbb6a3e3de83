"""Advantage estimators: one entry per step in, one advantage per step out."""

from hgpo_jax.estimators.advantages import (
    Grouping,
    compute_advantages,
    grouping_for,
    make_estimator,
    step_signals,
)
from hgpo_jax.estimators.baselines import gigpo_advantages, grpo_advantages, reinforce_advantages
from hgpo_jax.estimators.grouping import compact_ids, group_steps, state_keys
from hgpo_jax.estimators.hierarchy import hierarchy_advantages
from hgpo_jax.estimators.returns import discounted_returns, episode_scores, step_returns

__all__ = [
    "Grouping",
    "compact_ids",
    "compute_advantages",
    "discounted_returns",
    "episode_scores",
    "gigpo_advantages",
    "group_steps",
    "grouping_for",
    "grpo_advantages",
    "hierarchy_advantages",
    "make_estimator",
    "reinforce_advantages",
    "state_keys",
    "step_returns",
    "step_signals",
]

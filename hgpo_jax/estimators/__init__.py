"""Advantage estimators: one entry per step in, one advantage per step out."""

from hgpo_jax.estimators.advantages import (
    Grouping,
    compute_advantages,
    grouping_for,
    make_estimator,
    step_signals,
)
from hgpo_jax.estimators.baselines import gigpo_advantages, grpo_advantages, reinforce_advantages
from hgpo_jax.estimators.context import context_diagnostics, context_sums
from hgpo_jax.estimators.grouping import compact_ids, group_steps, state_keys
from hgpo_jax.estimators.hierarchy import hierarchy_advantages
from hgpo_jax.estimators.returns import discounted_returns, episode_scores, step_returns
from hgpo_jax.estimators.shrinkage import shrinkage_advantages
from hgpo_jax.estimators.similarity import quantised_states, similar_states

__all__ = [
    "Grouping",
    "compact_ids",
    "compute_advantages",
    "context_diagnostics",
    "context_sums",
    "discounted_returns",
    "episode_scores",
    "gigpo_advantages",
    "group_steps",
    "grouping_for",
    "grpo_advantages",
    "hierarchy_advantages",
    "make_estimator",
    "quantised_states",
    "reinforce_advantages",
    "shrinkage_advantages",
    "similar_states",
    "state_keys",
    "step_returns",
    "step_signals",
]

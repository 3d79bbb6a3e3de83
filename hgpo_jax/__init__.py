"""HGPO and its rivals for language-model agents, in JAX.

The names here are what another trainer needs; the parts of a whole run are in ``estimators`` (advantages), ``policy``
(decoder, sampler, tokenizer), ``rollout`` (environments to batches) and ``learner`` (losses, the sharded update).
"""

from hgpo_jax.config import GAEConfig, GiGPOConfig, GRPOConfig, HGPOConfig, ReinforceConfig, ShrinkageConfig
from hgpo_jax.estimators import (
    compute_advantages,
    group_steps,
    make_estimator,
    quantised_states,
    similar_states,
    step_returns,
    step_signals,
)
from hgpo_jax.types import StepBatch, StepSignals, TrainState, Trajectories

__all__ = [
    "GAEConfig",
    "GRPOConfig",
    "GiGPOConfig",
    "HGPOConfig",
    "ReinforceConfig",
    "ShrinkageConfig",
    "StepBatch",
    "StepSignals",
    "TrainState",
    "Trajectories",
    "compute_advantages",
    "group_steps",
    "make_estimator",
    "quantised_states",
    "similar_states",
    "step_returns",
    "step_signals",
]

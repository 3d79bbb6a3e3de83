"""What the published ALFWorld runs have in common; the experiments beside this file differ in model and estimator."""

from __future__ import annotations

import dataclasses

from experiments.configs import EstimatorName, RunConfig
from hgpo_jax.config import HGPOConfig, ShrinkageConfig


def alfworld(model: RunConfig, estimator: EstimatorName, history_length: int) -> RunConfig:
    """The published settings: 16 tasks in groups of 8, 50 steps, mini-batches of 256 steps, std in the advantages.

    Args:
        model: the config of a Qwen2.5, whose defaults these settings are.
        estimator: of the advantages.
        history_length: K: past (observation, action) pairs in the prompt, and for HGPO the longest shared history.
    """
    return dataclasses.replace(
        model,
        env="hgpo/ALFWorld-v0",
        estimator=estimator,
        hgpo=HGPOConfig(context_length=history_length, alpha=1.0),
        hgpo_shrinkage=ShrinkageConfig(context_length=history_length, normalize_std=True),
        rollout=dataclasses.replace(model.rollout, history_length=history_length, max_steps=50),
        learner=dataclasses.replace(model.learner, minibatch_steps=256),
        evaluation=dataclasses.replace(model.evaluation, split="seen"),
    )

"""What the published WebShop runs have in common; the experiments beside this file differ in model and estimator."""

from __future__ import annotations

import dataclasses

from experiments.configs import EstimatorName, RunConfig
from hgpo_jax.config import GiGPOConfig, GRPOConfig, HGPOConfig, ShrinkageConfig


def webshop(model: RunConfig, estimator: EstimatorName, history_length: int, max_steps: int = 30) -> RunConfig:
    """The published settings: 16 tasks in groups of 8, mini-batches of 64 steps, no std in the advantages.

    Args:
        model: the config of a Qwen2.5, whose defaults these settings are.
        estimator: of the advantages.
        history_length: K: past (observation, action) pairs in the prompt, and for HGPO the longest shared history.
        max_steps: of an episode: 30 in the HGPO paper, 15 in GiGPO's.
    """
    return dataclasses.replace(
        model,
        env="hgpo/WebShop-v0",
        estimator=estimator,
        hgpo=HGPOConfig(context_length=history_length, alpha=1.0, normalize_std=False),
        hgpo_shrinkage=ShrinkageConfig(context_length=history_length),
        gigpo=GiGPOConfig(normalize_std=False),
        grpo=GRPOConfig(normalize_std=False),
        rollout=dataclasses.replace(model.rollout, history_length=history_length, max_steps=max_steps),
        learner=dataclasses.replace(model.learner, minibatch_steps=64),
        evaluation=dataclasses.replace(model.evaluation, split="eval"),
    )

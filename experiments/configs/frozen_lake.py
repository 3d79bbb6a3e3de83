"""The embedded default: HGPO teaches a 0.2M-parameter decoder, from random weights, to cross frozen lakes."""

from experiments.configs import EvaluationConfig, RunConfig, WarmStartConfig
from hgpo_jax.config import (
    HGPOConfig,
    LearnerConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    SamplingConfig,
)

CONFIG = RunConfig(
    tokenizer="frozen_lake",
    model=ModelConfig(
        vocab_size=38,
        hidden_size=64,
        intermediate_size=192,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rope_theta=10_000.0,
    ),
    iterations=100,
    warm_start=WarmStartConfig(batches=3),
    hgpo=HGPOConfig(context_length=2, alpha=1.0),
    # No reference: the start is random, and a pull toward it only slows learning.
    loss=LossConfig(kl_coef=0.0, entropy_coef=0.02),
    optimizer=OptimizerConfig(learning_rate=5e-4, warmup_steps=10),
    learner=LearnerConfig(minibatch_steps=64, row_length=128, old_logprob="behavior"),
    rollout=RolloutConfig(
        tasks=16,
        group_size=8,
        history_length=2,
        max_steps=15,
        max_prompt_length=96,
        max_response_length=6,
        eval_sampling=SamplingConfig(temperature=0.4),
    ),
    evaluation=EvaluationConfig(every=10, tasks=200),
)

"""ALFWorld on two CPU cores: a decoder of 0.4 million parameters, rooms of five receptacles.

python -m experiments.compare alfworld_tiny --estimators hgpo --seeds 1
"""

from experiments.configs import EvaluationConfig, RunConfig, SFTConfig
from hgpo_jax.config import (
    GiGPOConfig,
    GRPOConfig,
    HGPOConfig,
    LearnerConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RolloutConfig,
    SamplingConfig,
)

SFT = SFTConfig(expert="searcher", episodes=4096, epochs=1, slips=0.2, learning_rate=2e-3, minibatch_steps=32)

CONFIG = RunConfig(
    env="hgpo/ALFWorld-v0",
    env_options={"receptacles": 5, "think": False, "actions": "short", "prompt": "brief"},
    tokenizer="alfworld",
    model=ModelConfig(
        vocab_size=296,  # 293 words, rounded up so that a mesh can divide them
        hidden_size=96,
        intermediate_size=240,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=24,
        rope_theta=10_000.0,
    ),
    iterations=100,
    hgpo=HGPOConfig(context_length=2, alpha=1.0, normalize_std=False),
    gigpo=GiGPOConfig(normalize_std=False),
    grpo=GRPOConfig(normalize_std=False),
    loss=LossConfig(kl_coef=0.02, entropy_coef=0.0),
    optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=5, b2=0.95),
    learner=LearnerConfig(minibatch_steps=128, row_length=256, old_logprob="behavior"),
    rollout=RolloutConfig(
        tasks=8,
        group_size=8,
        history_length=2,
        max_steps=15,
        max_prompt_length=240,
        max_response_length=12,
        eval_sampling=SamplingConfig(temperature=0.4),
    ),
    evaluation=EvaluationConfig(every=10, tasks=120, split="unseen"),
)

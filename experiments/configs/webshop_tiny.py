"""WebShop on two CPU cores: a decoder of 0.4 million parameters in a generated shop of 2,000 products.

    python -m experiments.sft webshop_tiny                                              the warm start alone
    python -m experiments.compare webshop_tiny --estimators hgpo --seeds 1              and HGPO from there
    python -m experiments.compare webshop_tiny --estimators hgpo gigpo grpo --seeds 3   and its rivals

Not trained yet. Prompts are brief: listed products are numbered, their names cut, prices rounded up to tens of dollars.
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

SFT = SFTConfig(
    expert="hasty",
    episodes=12_288,
    only_won=False,
    epochs=1,
    slips=0.2,
    learning_rate=4e-3,
    minibatch_steps=32,
    prompt_weight=0.3,
)

CONFIG = RunConfig(
    env="hgpo/WebShop-v0",
    env_options={
        "products": 2000,
        "human": False,
        "strict": True,
        "goal_split": "products",
        "reward": "score",
        "think": False,
        "actions": "none",
        "prompt": "brief",
    },
    tokenizer="webshop",
    model=ModelConfig(
        vocab_size=848,  # 845 words, rounded up so that a mesh can divide them
        hidden_size=128,
        intermediate_size=320,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        rope_theta=10_000.0,
    ),
    iterations=30,
    hgpo=HGPOConfig(context_length=2, alpha=1.0, normalize_std=False),
    gigpo=GiGPOConfig(normalize_std=False),
    grpo=GRPOConfig(normalize_std=False),
    loss=LossConfig(kl_coef=0.0, entropy_coef=0.0),
    optimizer=OptimizerConfig(learning_rate=5e-4, warmup_steps=5, b2=0.95),
    learner=LearnerConfig(minibatch_steps=256, row_length=288, old_logprob="behavior"),
    rollout=RolloutConfig(
        tasks=16,
        group_size=8,
        history_length=2,
        max_steps=10,
        max_prompt_length=240,
        max_response_length=32,
        eval_sampling=SamplingConfig(temperature=1.0),  # the policy as it is trained
    ),
    evaluation=EvaluationConfig(every=10, tasks=240, split="eval"),
)

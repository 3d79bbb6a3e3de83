"""WebShop on two CPU cores: a decoder of 0.4 million parameters in a generated shop of 2,000 products.

    python -m experiments.compare webshop_tiny --estimators hgpo --seeds 1              warm start and HGPO: 23 minutes
    python -m experiments.compare webshop_tiny --estimators hgpo gigpo grpo --seeds 3   and its rivals: 7 minutes a run
    python -m experiments.sft webshop_tiny                                              the warm start alone

Claim: the score on goals for products that were never trained on rises by 10 points or more over the warm start within
30 minutes.

Ours, AMD EPYC, two cores that other jobs shared: the warm start took 16 minutes, a run of 30 iterations 7. In per cent
on 240 held-out goals (panel eval-240-seed0-0b020fdf1b00), one seed, a warm start, replies drawn at temperature 1, the
policy as it is trained; the intervals (95 %) come from resampling the goals, they do not cover other seeds:

                    score                                           success
            before   after 10    20      30    gain                 before   after   gain
    hgpo      43.7       50.0  54.8    58.9    15.2 (11.6 to 18.8)     3.8    20.4   16.7 (11.7 to 21.7)
    gigpo     43.7       50.6  54.7    55.5    11.8 ( 8.2 to 15.3)     3.8    17.5   13.8 ( 8.8 to 18.8)
    grpo      43.7       49.5  60.9    69.6    25.9 (21.7 to 30.0)     3.8     9.2    5.4 ( 1.7 to  9.6)

What is learned: the expert that the warm start imitates buys the product as it is at half of its steps on the product's
page ("hasty": 68.8 and 14.3 on 300 goals of the split; a shopper that takes the time 92.3 and 69.7), and the model
copies names and options with mistakes. A purchase pays its score. HGPO and GiGPO learn to choose options first, so that
more purchases are all that was asked for, but some episodes run out of steps; GRPO learns to buy the right product
fast. With advantages divided by their std HGPO does as GRPO does (score 68.7, success 4.6 after 30); where only a
perfect purchase pays, it gains 16.7 in success and 3.3 in score after 20. In a shop of 300 products the warm start
learned the 1,107 goals by heart (score 62.0 on them, 36.0 on others).

Prompts are brief: listed products are numbered, their names cut, prices rounded up to tens of dollars.
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

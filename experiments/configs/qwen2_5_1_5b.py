"""Qwen2.5-1.5B-Instruct, trained with HGPO (K = 2) at the published settings, on any text environment.

    python -m experiments.train qwen2_5_1_5b --env hgpo/FrozenLakeText-v0 --mesh.fsdp -1
    python -m experiments.train qwen2_5_1_5b --init DIR      a checkpoint on disk, of any size of Qwen2.5 or Qwen3

Published: 16 tasks in groups of 8, 50 steps, prompts of 4,096 and replies of 512 tokens, AdamW at 1e-6, 160 iterations,
mini-batches of 256 steps; evaluation on 128 tasks every 5 iterations. Here, besides: the weights are read once to f32
and computed with in bfloat16, a layer is computed again in the backward pass, and a device takes one row at a time.

Not run at this size on the machine it was written on. What each device needs of memory:
``python -m experiments.benchmarks.memory_plan --model qwen2_5_1_5b --topology v5e:2x4 --mesh.fsdp 8``; the README has
the table. On one card of 24 GB train adapters: ``--model.lora-rank 32 --model.param-dtype bfloat16``.
"""

from experiments.configs import RunConfig
from hgpo_jax.config import LearnerConfig, ModelConfig, RolloutConfig

CONFIG = RunConfig(
    init="Qwen/Qwen2.5-1.5B-Instruct",
    tokenizer="",
    model=ModelConfig(
        vocab_size=151_936,
        hidden_size=1_536,
        intermediate_size=8_960,
        num_layers=28,
        num_heads=12,
        num_kv_heads=2,
        head_dim=128,
        dtype="bfloat16",
        remat="layer",
    ),
    learner=LearnerConfig(minibatch_steps=256, rows_per_device=1, row_length=4_608),
    rollout=RolloutConfig(history_length=2),
)

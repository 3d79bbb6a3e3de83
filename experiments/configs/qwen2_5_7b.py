"""Qwen2.5-7B-Instruct, trained with HGPO (K = 2) at the published settings, on any text environment.

    python -m experiments.train qwen2_5_7b --env hgpo/FrozenLakeText-v0 --mesh.fsdp 16

All but the model is as in ``qwen2_5_1_5b``; four devices share the copy of the weights that replies are sampled from.
Not run at this size on the machine it was written on. The plan for a slice of sixteen v5e:
``python -m experiments.benchmarks.memory_plan --model qwen2_5_7b --topology v5e:4x4 --mesh.fsdp 16``.
"""

import dataclasses

from experiments.configs.qwen2_5_1_5b import CONFIG as SMALLER
from hgpo_jax.config import ModelConfig

CONFIG = dataclasses.replace(
    SMALLER,
    init="Qwen/Qwen2.5-7B-Instruct",
    model=ModelConfig(
        vocab_size=152_064,
        hidden_size=3_584,
        intermediate_size=18_944,
        num_layers=28,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        tie_word_embeddings=False,
        dtype="bfloat16",
        remat="layer",
    ),
    rollout=dataclasses.replace(SMALLER.rollout, tensor=4),
)

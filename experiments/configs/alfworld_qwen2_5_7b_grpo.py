"""ALFWorld with Qwen2.5-7B-Instruct, GRPO, history of 2.

    python -m experiments.train alfworld_qwen2_5_7b_grpo --data FOLDER --mesh.fsdp -1
    python -m experiments.evaluate runs/grpo-ALFWorld-seed0 --splits seen unseen --tasks 512 --seeds 123 456 789

Published: 78.6 / 76.8 % success in / out of distribution (valid_seen / valid_unseen), the mean of three seeds.
Ours: not run at this size. 160 iterations; memory fits a v5e 4x4 slice or 8 devices of 80 GB (the README's table).
"""

from experiments.configs._alfworld import alfworld
from experiments.configs.qwen2_5_7b import CONFIG as MODEL

CONFIG = alfworld(MODEL, "grpo", history_length=2)

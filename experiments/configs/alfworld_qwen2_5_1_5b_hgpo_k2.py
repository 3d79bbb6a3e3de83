"""ALFWorld with Qwen2.5-1.5B-Instruct, HGPO, K = 2.

    python -m experiments.train alfworld_qwen2_5_1_5b_hgpo_k2 --data FOLDER --mesh.fsdp -1
    python -m experiments.evaluate runs/hgpo-ALFWorld-seed0 --splits seen unseen --tasks 512 --seeds 123 456 789

Published: 92.77 / 90.16 % success in / out of distribution (valid_seen / valid_unseen), the mean of three seeds.
Ours: not run at this size. 160 iterations; memory fits 8 devices of 80 GB or a v5e 2x4 slice (the README's table).
"""

from experiments.configs._alfworld import alfworld
from experiments.configs.qwen2_5_1_5b import CONFIG as MODEL

CONFIG = alfworld(MODEL, "hgpo", history_length=2)

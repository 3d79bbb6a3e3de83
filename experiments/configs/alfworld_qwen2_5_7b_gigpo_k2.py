"""ALFWorld with Qwen2.5-7B-Instruct, GiGPO, history of 2.

    python -m experiments.train alfworld_qwen2_5_7b_gigpo_k2 --data FOLDER --mesh.fsdp -1
    python -m experiments.evaluate runs/gigpo-ALFWorld-seed0 --splits seen unseen --tasks 512 --seeds 123 456 789

The HGPO paper gives no figure for it; it is here to be compared with.
Ours: not run at this size. 160 iterations; memory fits a v5e 4x4 slice or 8 devices of 80 GB (the README's table).
"""

from experiments.configs._alfworld import alfworld
from experiments.configs.qwen2_5_7b import CONFIG as MODEL

CONFIG = alfworld(MODEL, "gigpo", history_length=2)

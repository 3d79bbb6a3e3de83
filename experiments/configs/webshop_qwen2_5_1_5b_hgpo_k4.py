"""WebShop with Qwen2.5-1.5B-Instruct, HGPO, K = 4.

    python -m experiments.train webshop_qwen2_5_1_5b_hgpo_k4 --data FOLDER --mesh.fsdp -1
    python -m experiments.evaluate runs/hgpo-WebShop-seed0 --splits test --tasks 512 --seeds 123 456 789

Published: score 90.64, success 78.12 %, the mean of three seeds, on goals that its training may have met: there is no
held-out set in those runs. Here eval and test are held out; ``--env-options goal_split leaky`` is nearer to them.
Ours: not run at this size. 160 iterations; memory fits 8 devices of 80 GB or a v5e 2x4 slice (the README's table).
"""

from experiments.configs._webshop import webshop
from experiments.configs.qwen2_5_1_5b import CONFIG as MODEL

CONFIG = webshop(MODEL, "hgpo", history_length=4)

"""WebShop with Qwen2.5-7B-Instruct, HGPO, K = 2.

    python -m experiments.train webshop_qwen2_5_7b_hgpo_k2 --data FOLDER --mesh.fsdp -1
    python -m experiments.evaluate runs/hgpo-WebShop-seed0 --splits test --tasks 512 --seeds 123 456 789

Published: score 88.96, success 78.51 %, the mean of three seeds, on goals that its training may have met: there is no
held-out set in those runs. Here eval and test are held out; ``--env-options goal_split leaky`` is nearer to them.
Ours: not run at this size. 160 iterations; memory fits a v5e 4x4 slice or 8 devices of 80 GB (the README's table).
"""

from experiments.configs._webshop import webshop
from experiments.configs.qwen2_5_7b import CONFIG as MODEL

CONFIG = webshop(MODEL, "hgpo", history_length=2)

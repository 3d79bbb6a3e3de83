"""Frozen dataclasses, one per part. Defaults are the published ones (SPEC of the method) where they exist."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Qwen2, Qwen2.5 or Qwen3 family."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 1_000_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    qkv_bias: bool = True  # Qwen2; Qwen3 has none
    qk_norm: bool = False  # Qwen3: each head's query and key pass an RMS norm before they are rotated
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation
    param_dtype: Literal["float32", "bfloat16"] = "float32"  # bfloat16 rounds small optimizer steps away
    # Train low-rank adapters of this rank on all projections and freeze the rest; 0 trains every parameter.
    lora_rank: int = 0
    lora_alpha: float = 32.0  # the adapters' product is scaled by lora_alpha / lora_rank
    # How the learner attends. "plain" needs memory quadratic in the row, the others linear; "cudnn" runs on GPUs,
    # "splash" on TPUs; "auto" takes what fits the backend and the length.
    attention: Literal["auto", "plain", "blockwise", "cudnn", "splash"] = "auto"
    # What the backward pass makes again: nothing, all of a layer, or a layer's cheap parts (products and attention are
    # kept).
    remat: Literal["none", "layer", "products"] = "none"
    # Layers written out in a turn of the loop over layers: faster on a CPU, longer to compile, and not with remat.
    unroll: int = 1
    value_head: bool = False  # a critic: V of a step's prompt, read off its last token's hidden state


@dataclasses.dataclass(frozen=True)
class HGPOConfig:
    """Hierarchy-of-Groups Policy Optimization: nested groups of equal histories, mixed by (k + offset)^alpha."""

    context_length: int = 2  # K: how many past states the finest groups share
    alpha: float = 1.0  # 0 mixes the levels evenly, larger trusts the finer ones
    normalize_std: bool = True  # divide by the group's (population) standard deviation
    weight_offset: int = 1  # 1 as in the paper, 2 as in the released code
    episode_level: bool = False  # the released code's `base_group`: one more item of weight 1
    skip_zero_levels: bool = True  # a level whose advantage is zero takes no weight
    root: Literal["state", "prompt"] = "state"  # "prompt" puts the whole prompt group first
    leave_one_out: bool = False  # each level's baseline is the mean of the others in the group


@dataclasses.dataclass(frozen=True)
class ShrinkageConfig:
    """HGPO's groups with weights from the data: each level's baseline is pulled toward that of the level above."""

    context_length: int = 2  # K: how many past states the finest groups share
    root: Literal["state", "prompt"] = "state"  # "prompt" puts the whole prompt group first
    leave_one_out: bool = True  # the own return takes no part in the baseline
    normalize_std: bool = False  # divide by the (population) standard deviation of the coarsest group
    # How many steps the coarser baseline counts for: s = n / (n + prior_size). None estimates it from the spread
    # within and between the groups.
    prior_size: float | None = None
    pool: Literal["batch", "prompt"] = "batch"  # what that estimate is made from; "prompt": each prompt group its own


@dataclasses.dataclass(frozen=True)
class GRPOConfig:
    """Episode scores normalised within the prompt group. With leave_one_out and no std it is RLOO."""

    normalize_std: bool = True  # False: Dr. GRPO
    leave_one_out: bool = False
    over: Literal["steps", "trajectories"] = "steps"  # what the statistics run over


@dataclasses.dataclass(frozen=True)
class GiGPOConfig:
    """Episode advantage plus omega times the advantage among steps in the same state."""

    omega: float = 1.0
    normalize_std: bool = True


@dataclasses.dataclass(frozen=True)
class ReinforceConfig:
    """Discounted return minus the batch mean."""

    normalize_std: bool = False


@dataclasses.dataclass(frozen=True)
class GAEConfig:
    """Generalized advantages from the policy's value head: PPO's estimator."""

    lambda_: float = 0.95  # 0 trusts the critic from the next step on, 1 never
    normalize_std: bool = True  # advantages minus the batch's mean, over its (population) standard deviation
    bootstrap_truncated: bool = True  # an episode cut at the step cap goes on with V of where it stood; False: with 0


EstimatorConfig = HGPOConfig | ShrinkageConfig | GRPOConfig | GiGPOConfig | ReinforceConfig | GAEConfig


@dataclasses.dataclass(frozen=True)
class StateKeysConfig:
    """Which states count as the same."""

    similarity: float | None = None  # texts at least so similar do, 0 to 1; None: equal ones only. GiGPO's: 0.95
    rule: Literal["released", "subsequence"] = "released"  # what similar means: that of GiGPO's code, or a faster one


@dataclasses.dataclass(frozen=True)
class ReturnsConfig:
    """How rewards become returns and scores."""

    gamma: float = 0.95
    invalid_action_penalty: float = 0.1  # taken off the return of that step only, after discounting
    # DAPO's soft overlong punishment: over the last so large a share of rollout.max_response_length the penalty grows
    # from 0 to overlong_penalty. Published: 4096 of 20480 tokens, 0.2; 0 turns it off.
    overlong_share: float = 0.0
    overlong_penalty: float = 1.0  # at the limit, in units of reward; taken off as the invalid-action penalty is


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The clipped surrogate and what is added to it."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0  # for A < 0 the surrogate is bounded by dual_clip * A; None turns it off
    kl_coef: float = 0.01  # k3 estimate against the frozen reference; 0 also saves its forward pass
    entropy_coef: float = 0.001
    ratio: Literal["token", "sequence"] = "token"  # "sequence" is GSPO
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    constant_length: int = 512  # Dr. GRPO's divisor per step, for aggregation="constant"
    mask_cut: bool = False  # DAPO's overlong filtering: a reply that the length limit cut takes no part in the loss
    # Weighs a token by min(old / behavior probability, this), where the sampler's distribution is not the old one.
    importance_cap: float | None = None
    # The critic's, where the estimator gives value targets: mean over steps of half its squared error.
    value_coef: float = 0.5
    value_clip: float | None = None  # V counts as moved by so much at most since the rollout; None: by any amount


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (or plain SGD, for tests) behind a clip of the gradient's norm."""

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 1e-6
    value_learning_rate: float = 1e-5  # of the value head alone, with the same warm-up and decay
    warmup_steps: int = 0
    decay_steps: int = 0  # after warm-up, over which the rate falls linearly to a tenth; 0 keeps it constant
    b1: float = 0.9
    b2: float = 0.999
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """How a batch is cut into optimizer steps and rows."""

    minibatch_steps: int = 256  # environment steps per optimizer step
    # Rows that a device takes at a time, the gradients of a mini-batch's parts summed; None takes all of them at once.
    # Changes memory and time, not the result.
    rows_per_device: int | None = None
    row_length: int = 512  # tokens in a packed row; at least the longest prompt plus response
    old_logprob: Literal["behavior", "recompute"] = "recompute"


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; their product is the number of devices used. -1 on one axis takes the rest."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How replies are drawn. All three are traced: changing them compiles nothing."""

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 keeps the whole vocabulary


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """What one iteration collects."""

    tasks: int = 16
    group_size: int = 8
    history_length: int = 2  # past (observation, action) pairs in the prompt
    max_steps: int = 50
    max_prompt_length: int = 4096  # longer prompts are cut from the left
    max_response_length: int = 512
    train_sampling: SamplingConfig = SamplingConfig()
    eval_sampling: SamplingConfig = SamplingConfig(temperature=0.4)
    env_workers: int = 0  # processes that share a process's environments; 0 keeps them in this one
    rows_at_a_time: int | None = None  # replies that a process draws together; None: all of a turn's
    # DAPO's dynamic sampling: prompt groups whose episodes all earned the same are dropped, and ``tasks`` further tasks
    # rolled out, until ``tasks`` groups are there or this many rounds are done. 0 keeps every group.
    dynamic_sampling_rounds: int = 0
    tensor: int = 1  # devices over which the sampler's copy of the weights is cut; a process's others take other rows

"""The contracts between the parts, with a shape behind every field.

Shape legend, used as suffixes throughout (``logits_BTV``, ``group_ids_LN``):

====== ============================================ ====== ==============================
letter axis                                         letter axis
====== ============================================ ====== ==============================
N      steps of a rollout batch, all trajectories   L      levels of the hierarchy
B      rows of packed tokens                        T      tokens in a row
M      mini-batches of an update                    V      vocabulary
G      groups at one level                          D      hidden size
H      attention heads                              K      ``context_length``
====== ============================================ ====== ==============================
"""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import flax.struct
import jax
import numpy as np

Array = jax.Array | np.ndarray


class StepSignals(NamedTuple):
    """What an estimator reads: one entry per step, and the group ids per level.

    A pure function ``estimator(signals) -> advantages [N]`` is all that a new method needs; it may
    also return ``(advantages, diagnostics)``. Padding steps have ``valid`` False, ids -1, values 0.
    """

    step_return: Array  # f32 [N]  discounted return, the invalid-action penalty taken off this step only
    score: Array  # f32 [N]  the trajectory's summed reward, minus the penalty if this step is invalid
    prompt_group: Array  # i32 [N]  compact ids, -1 for padding
    trajectory: Array  # i32 [N]  compact ids, -1 for padding
    valid: Array  # bool [N]  False for padding
    group_ids: Array  # i32 [L, N]  compact per level, -1 where the step has no group of two or more
    value: Array | None = None  # f32 [N]  a critic's estimate, where there is one


@flax.struct.dataclass
class StepBatch:
    """Everything that crosses from host to device for one update: packed tokens and step signals.

    Rows come in ``num_minibatches`` equal blocks: rows [m * B / M, (m + 1) * B / M) hold mini-batch m.
    A step lies in one row, whole. The token arrays align with the token that is *predicted*:
    ``old_logprob[b, t]`` is the log-probability of ``tokens[b, t]`` given what precedes it in its segment.
    """

    tokens: Array  # i32 [B, T]
    positions: Array  # i32 [B, T]  0, 1, .. within each segment
    segment_ids: Array  # i32 [B, T]  1, 2, .. per row; 0 is padding
    loss_mask: Array  # bool [B, T]  True on response tokens
    step_index: Array  # i32 [B, T]  which of the N steps the token belongs to, -1 for padding
    old_logprob: Array  # f32 [B, T]  under the policy that sampled; 0 outside the loss mask
    ref_logprob: Array  # f32 [B, T]  under the frozen reference; 0 outside the loss mask
    steps: StepSignals  # [N] and [L, N]
    num_minibatches: int = flax.struct.field(pytree_node=False, default=1)


@flax.struct.dataclass
class TrainState:
    """The state that an update carries, donated to it. All that is random hangs on ``key``."""

    params: chex.ArrayTree
    opt_state: chex.ArrayTree
    step: Array  # i32 []  optimizer steps taken
    key: Array  # typed PRNG key []


Metrics = dict[str, Any]

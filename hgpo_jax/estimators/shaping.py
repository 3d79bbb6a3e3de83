"""Reward shaping on the host: what a reply's length costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hgpo_jax.estimators.grouping import check_lengths


def overlong_penalties(
    length: Sequence[int] | np.ndarray,
    cut: Sequence[bool] | np.ndarray | None = None,
    *,
    max_length: int,
    share: float,
    penalty: float,
) -> np.ndarray:
    """DAPO's soft overlong punishment, as an amount to take off (arXiv 2503.14476, eq. 13):

        P(y) = penalty * clip((|y| - (L_max - L_cache)) / L_cache, 0, 1),   L_cache = share * L_max

    and the whole penalty for a reply that was cut. In episodes of many replies it comes off the return and the score
    of the reply's own step, after discounting, as the invalid-action penalty does: a long reply says nothing about
    the steps before it.

    Args:
      length: [N] tokens of each reply.
      cut: [N] bool, whether the length limit ended it; none when left out.
      max_length: L_max, the limit in tokens.
      share: L_cache / L_max, from 0 to 1; at 0 there is no penalty at all.
      penalty: at the limit, in units of reward, 0 or more.

    Returns:
      f32 [N], from 0 to ``penalty``.

    Raises:
      ValueError: lengths that disagree, a setting out of range.
    """
    check_lengths(length=length, cut=cut)
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, got {max_length}")
    if not 0 <= share <= 1:
        raise ValueError(f"overlong_share must be from 0 to 1, got {share}")
    if not 0 <= penalty < np.inf:
        raise ValueError(f"overlong_penalty must be 0 or more, got {penalty}")
    length_N = np.asarray(length, np.float64)
    if not share:
        return np.zeros(length_N.shape, np.float32)
    cache = share * max_length
    part_N = np.clip((length_N - (max_length - cache)) / cache, 0.0, 1.0)
    if cut is not None:
        part_N = np.where(np.asarray(cut, bool), 1.0, part_N)
    return (penalty * part_N).astype(np.float32)

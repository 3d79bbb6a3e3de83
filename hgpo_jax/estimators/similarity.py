"""Keys for states that never repeat exactly, on the host: similar texts, and numbers in bins.

What comes out goes into `group_steps` as the anchor states; a partition, so that groups stay nested.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal, get_args

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Indel

from hgpo_jax.estimators.grouping import check_lengths, compact_ids

Rule = Literal["released", "subsequence"]
_SLACK = 1e-9  # two ratios of the same integers may round differently
_CUTOFF_SLACK = 1e-3  # rapidfuzz rounds at its own cutoff: "aa" and "aaa", of ratio 0.8, fall below one of 0.8
_LARGEST = 2.0**62  # of a bin's number


def similar_states(
    anchor_state: Sequence[str] | np.ndarray,
    prompt_group: Sequence[Any] | np.ndarray,
    threshold: float = 0.95,
    *,
    rule: Rule = "released",
) -> np.ndarray:
    """Cluster the texts of each prompt group, greedily, as the released GiGPO code does (arXiv 2505.10978).

    In order of appearance a text joins the first cluster whose founder is similar enough, else it founds one:

        released      SequenceMatcher(None, text, founder).ratio() >= threshold, of Python's difflib
        subsequence   2 LCS(text, founder) / (|text| + |founder|) >= threshold, LCS the longest common subsequence

    The matching blocks of difflib are a common subsequence, so the second ratio is never below the first and its
    fast bit-parallel form rules out nearly all founders before difflib is asked: the partition is that of asking
    every time. "subsequence" doesn't ask at all. It merges all that the other rule finds similar, and more: in a
    founder of 200 characters or more difflib passes over those characters that make up more than a hundredth of
    it, so that long texts with a few edits seem less alike to it the shorter the untouched pieces are.

    Args:
      anchor_state: [N] texts, in the order of the batch.
      prompt_group: [N] labels; texts of different groups are never compared.
      threshold: from above 0 to 1, at which only equal texts are similar.
      rule: what similar means.

    Returns:
      i32 [N] cluster ids, 0, 1, .. in order of first appearance; no id is in two prompt groups.

    Raises:
      ValueError: a state that is not a text (the message names the step), lengths that disagree, a setting out of
        range.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}")
    size = check_lengths(anchor_state=anchor_state, prompt_group=prompt_group)
    for step, state in enumerate(anchor_state):
        if not isinstance(state, str):
            raise ValueError(
                f"anchor_state of step {step} is a {type(state).__name__}, but only texts are compared by similarity: "
                "use quantised_states for numbers, or str(state)"
            )
    clusters: defaultdict[int, _Clusters] = defaultdict(lambda: _Clusters(threshold, rule))
    group_N = compact_ids(prompt_group).astype(np.int64)
    place_N = [clusters[group].place(text) for group, text in zip(group_N.tolist(), anchor_state, strict=True)]
    return compact_ids(group_N * size + np.array(place_N))


def quantised_states(
    observations: Sequence[float] | Sequence[Sequence[float]] | np.ndarray,
    step_size: float | Sequence[float] | np.ndarray,
) -> np.ndarray:
    """The bin of each number: round(x / step_size), so that a bin is centred on 0.

    Observations of one bin in every dimension count as the same state. Neighbours on either side of a border do
    not, however near: a partition can't have it otherwise.

    Args:
      observations: [N, D], or [N] for a single number.
      step_size: a bin's width, in the observation's units; one for all dimensions, or [D].

    Returns:
      i64 [N, D], a row for each step: the anchor states for `group_steps`. The same bins in every batch.

    Raises:
      ValueError: an observation or width that is not finite (the message names the step), a width not above 0, so
        small that a bin's number overflows, or not one for each dimension.
    """
    values_ND = np.asarray(observations, np.float64)
    values_ND = values_ND[:, None] if values_ND.ndim == 1 else values_ND
    if values_ND.ndim != 2:
        raise ValueError(f"observations must be [N, D], got shape {list(values_ND.shape)}: flatten each of them")
    width = np.asarray(step_size, np.float64)
    if width.shape not in ((), values_ND.shape[1:]):
        dimensions = values_ND.shape[1]
        raise ValueError(
            f"step_size has shape {list(width.shape)}, expected one number, or one for each of {dimensions}"
        )
    if not (np.isfinite(width) & (width > 0)).all():
        raise ValueError(f"step_size must be above 0 and finite, got {step_size}")
    finite_N = np.isfinite(values_ND).all(1)
    if not finite_N.all():
        raise ValueError(f"observation of step {np.argmin(finite_N)} is not finite")
    bins_ND = np.floor(values_ND / np.broadcast_to(width, values_ND.shape) + 0.5)
    fits_N = (np.abs(bins_ND) < _LARGEST).all(1)
    if not fits_N.all():
        raise ValueError(f"observation of step {np.argmin(fits_N)} is too many bins from 0: raise step_size")
    return bins_ND.astype(np.int64)


class _Clusters:
    """The clusters of one prompt group so far."""

    def __init__(self, threshold: float, rule: Rule):
        self._threshold, self._rule = threshold, rule
        self._founders: list[str] = []
        self._matchers: dict[int, SequenceMatcher[str]] = {}
        # The founders before a text's own can't become similar later, so a text that comes again stays where it was.
        self._known: dict[str, int] = {}

    def place(self, text: str) -> int:
        """The number of the text's cluster, founded if need be."""
        if text not in self._known:
            found = next(filter(self._confirms(text), self._candidates(text)), len(self._founders))
            if found == len(self._founders):
                self._founders.append(text)
            self._known[text] = found
        return self._known[text]

    def _candidates(self, text: str) -> Iterator[int]:
        """Those founders, in order, that share a long enough subsequence with the text."""
        if not self._founders:
            return iter(())
        cutoff = max(self._threshold - _CUTOFF_SLACK, 0.0)
        ratios = process.cdist(
            [text], self._founders, scorer=Indel.normalized_similarity, score_cutoff=cutoff, dtype=np.float64
        )
        return iter(np.flatnonzero(ratios[0] >= self._threshold - _SLACK).tolist())

    def _confirms(self, text: str) -> Callable[[int], bool]:
        if self._rule == "subsequence":
            return lambda number: True

        def confirm(number: int) -> bool:
            # A matcher's work lies in its second text.
            matcher = self._matchers.get(number) or SequenceMatcher(None, "", self._founders[number])
            self._matchers[number] = matcher
            matcher.set_seq1(text)
            return matcher.ratio() >= self._threshold

        return confirm

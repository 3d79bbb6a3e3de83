"""What the paper proposes of nested groups, asked of the figures of the bias-variance study.

1. The finer the level, the smaller the bias: level 0 > 1 > 2 > equal histories.
2. The finer the level, the larger the variance.
3. The mix lies between its coarsest and its finest level in both.

Each is asked of single levels on the same steps (those with a group at levels 0 to 2 and of equal histories), as the
estimators are and with the own step left out of the means; the first also over all steps, where a level without a
group says 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from experiments.studies.measure import LEFT_OUT

Row = dict[str, Any]
Answer = Literal["holds", "fails", "open", "-"]

NESTED = ("level 0", "level 1", "level 2", "exact history")
MIX = "HGPO K=2"


def ordered(figures: Sequence[tuple[float, float]]) -> Answer:
    """Whether figures (value, half of its 95 % interval) rise from one to the next.

    Returns:
      "holds" if every one is larger than the one before by more than the two intervals together allow (as
      independent errors), "fails" if one is smaller by more than that, else "open".
    """
    steps = [
        (ahead - here) / max(float(np.hypot(half, half_ahead)), 1e-12)
        for (here, half), (ahead, half_ahead) in itertools.pairwise(figures)
    ]
    if min(steps) < -1:
        return "fails"
    return "holds" if min(steps) > 1 else "open"


def propositions(by_arm: Mapping[str, Row]) -> dict[str, Answer]:
    """The answers at one point.

    Args:
      by_arm: the rows of `bias_variance.study` at a point, by estimator.

    Returns:
      An answer to each question; "-" where the estimators or the steps are missing.
    """

    def figures(names: Sequence[str], key: str, sign: int = 1) -> list[tuple[float, float]] | None:
        if any(f"{key}_low" not in by_arm.get(name, {}) for name in names):
            return None
        rows = [by_arm[name] for name in names]
        if any(not row[f"{key.split(':')[0]}: share"] for row in rows):
            return None
        return [(sign * row[key], (row[f"{key}_high"] - row[f"{key}_low"]) / 2) for row in rows]

    def ask(names: Sequence[str], key: str, sign: int = 1) -> Answer:
        found = figures(names, key, sign)
        return "-" if found is None else ordered(found)

    between = (NESTED[0], MIX, NESTED[2])
    return {
        "bias falls": ask(NESTED, "common: bias2", -1),
        "bias falls, own step out": ask(NESTED, f"common{LEFT_OUT}: bias2", -1),
        "bias falls, all steps": ask(NESTED, "all: bias2", -1),
        "variance rises": ask(NESTED, "common: variance"),
        "variance rises, own step out": ask(NESTED, f"common{LEFT_OUT}: variance"),
        "mix between, bias": ask(between, "common: bias2", -1),
        "mix between, variance, own step out": ask(between, f"common{LEFT_OUT}: variance"),
    }

"""Random choices that a seed decides on any machine: what the generators of games and catalogues draw with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Random choices that are the same everywhere: only the stream of ``Random.random`` is promised by Python."""

    def __init__(self, seed: str):
        self._random = random.Random(seed).random

    def between(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int(self._random() * (high - low + 1))

    def choose(self, items: Sequence[T]) -> T:
        """One of ``items``, each as likely as any other."""
        return items[self.between(0, len(items) - 1)]

    def weighted(self, items: Sequence[T], weights: Sequence[int]) -> T:
        """One of ``items``, as likely as its weight says."""
        left = self.between(1, sum(weights))
        for item, weight in zip(items, weights, strict=True):
            left -= weight
            if left <= 0:
                return item
        raise ValueError(f"no positive weight in {weights}")

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """``items`` in another order."""
        mixed = list(items)
        for i in range(len(mixed) - 1, 0, -1):
            j = self.between(0, i)
            mixed[i], mixed[j] = mixed[j], mixed[i]
        return mixed

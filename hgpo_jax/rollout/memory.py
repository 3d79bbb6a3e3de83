"""What an episode remembers of itself."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Memory:
    """The last ``history_length`` (observation, action) pairs of one episode, oldest first."""

    history_length: int
    entries: tuple[tuple[str, str], ...] = ()

    def __post_init__(self):
        if self.history_length < 0:
            raise ValueError(f"history_length must be at least 0, got {self.history_length}")

    def add(self, observation: str, action: str) -> Memory:
        """The memory after one more step."""
        entries = (*self.entries, (observation, action))
        return Memory(self.history_length, entries[max(0, len(entries) - self.history_length) :])

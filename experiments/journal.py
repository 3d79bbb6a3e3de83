"""Answers that cost something, kept on disk as they come: one line of JSON each, behind a line of settings."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Key(NamedTuple):
    """What an answer was given to."""

    split: str
    panel: str  # its hash
    seed: int
    episode: int
    turn: int
    prompt: str  # its hash


class Answer(NamedTuple):
    """What a server said at last, and what it took."""

    text: str
    cut: bool = False  # by the limit on its tokens
    bad: str = ""  # why nothing can be made of it; "" for a proper answer
    prompt_tokens: int = 0
    completion_tokens: int = 0
    calls: int = 1  # that were answered until then, this one included


class Journal:
    """The answers of earlier processes, and of this one. Whoever is killed loses the line under way at most.

    Args:
      path: of the file, made if it is not there.
      settings: what the answers depend on besides their keys, of JSON's types.

    Raises:
      ValueError: the file holds answers of other settings, or something else.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self.path = path
        self._lock = threading.Lock()
        self._answers: dict[Key, Answer] = {}
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]  # a kill may have cut the last one short
        if whole:
            self._read(whole, settings)
        self._file = path.open("ab")
        if len(whole) < len(lines):  # else another process may have written since
            self._file.truncate(sum(map(len, whole)))
        if not whole:
            self._write({"settings": dict(settings)})

    def _read(self, lines: list[bytes], settings: Mapping[str, Any]) -> None:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                there = row["settings"] if number == 1 else None
                if number > 1:
                    key = Key(*(row[name] for name in Key._fields))
                    self._answers[key] = Answer(*(row[name] for name in Answer._fields))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number} is no line of a journal of answers: remove it, or choose another "
                    "--output"
                ) from error
            if there is not None and there != settings:
                self._refuse(there, settings)

    def _refuse(self, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        differences = ", ".join(f"{name} was {there.get(name)!r} and is {here.get(name)!r}" for name in names)
        raise ValueError(
            f"{self.path} holds answers of other settings ({differences}): choose another --output, or remove the file"
        )

    def __len__(self) -> int:
        return len(self._answers)

    def __contains__(self, key: Key) -> bool:
        return key in self._answers

    def __getitem__(self, key: Key) -> Answer:
        return self._answers[key]

    def items(self) -> Iterator[tuple[Key, Answer]]:
        """All answers, the oldest first."""
        return iter(list(self._answers.items()))

    def add(self, key: Key, answer: Answer) -> None:
        """Keeps an answer: on disk when it returns. Any thread may call it."""
        with self._lock:
            self._write(key._asdict() | answer._asdict())
            self._answers[key] = answer

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

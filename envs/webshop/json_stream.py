"""JSON files larger than memory: the elements of one array or object, one at a time."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

_CHUNK = 1 << 20  # characters
_LONGEST = 1 << 26  # characters: an element that is still incomplete then is damaged, whatever may follow
_IN_NUMBERS = "0123456789+-.eE"  # and "", which is what follows the last character
_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder().raw_decode


def read_array(path: str | Path) -> Iterator[Any]:
    """The elements of a file that is one JSON array; what is not asked for is not read.

    Args:
        path: the file, in UTF-8; packed with gzip if its name ends in ``.gz``.

    Raises:
        OSError: if the file can't be read.
        ValueError: if it is no array or damaged: names the file and the number of the element, from 0.
    """
    return (value for _, value in _members(Path(path), "array"))


def read_object(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The members of a file that is one JSON object. Arguments and errors as in `read_array`."""
    return _members(Path(path), "object")


def _members(path: Path, kind: str) -> Iterator[tuple[str, Any]]:
    number = 0
    first, last = "[]" if kind == "array" else "{}"
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8-sig")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig") as file
        ):
            stream = _Stream(file)
            stream.take(first)
            more = stream.peek() != last
            while more:
                key = ""
                if kind == "object":
                    key = stream.value()
                    if not isinstance(key, str):
                        raise ValueError(f"expected a string as the key, found {key!r:.40}")
                    stream.take(":")
                yield key, stream.value()
                number += 1
                more = stream.peek() == ","
                if more:
                    stream.take(",")
            stream.take(last)
            if stream.peek():
                raise ValueError(f"goes on after its closing {last!r}")
    except (ValueError, RecursionError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a complete JSON {kind}, at element {number}: {error}") from error


class _Stream:
    """A position in a text of which only the part being decoded is in memory."""

    def __init__(self, file: TextIO):
        self._file, self._text, self._at = file, "", 0

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def take(self, expected: str) -> None:
        """Steps over a character that has to be there."""
        if (found := self.peek()) != expected:
            raise ValueError(f"expected {expected!r}, found {repr(found) if found else 'the end of the file'}")
        self._at += 1

    def value(self) -> Any:
        """Decodes the next value, reading on until it is complete."""
        self.peek()
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._read_on():
                    raise ValueError(error.msg) from error
                continue
            # A number may go on in the next chunk; also one that seems to end before its fraction or exponent.
            if self._text[end : end + 1] in _IN_NUMBERS and self._read_on():
                continue
            self._at = end
            return value

    def _read_on(self) -> bool:
        """Reads more of a value, unless it is too long to be one."""
        return len(self._text) - self._at <= _LONGEST and self._read()

    def _read(self) -> bool:
        """Drops what is decoded and reads as much again as is left, so that a long value is not decoded too often."""
        left = self._text[self._at :]
        more = self._file.read(max(_CHUNK, len(left)))
        self._text, self._at = left + more, 0
        return bool(more)

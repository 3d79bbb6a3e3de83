"""How ragged rows and anchor states of any kind become plain arrays: a batch is stored without pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def flatten(name: str, rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of unequal length, at least one, as ``name_flat`` and ``name_offsets`` [rows + 1]."""
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return {f"{name}_flat": np.concatenate(rows), f"{name}_offsets": offsets}


def unflatten(name: str, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The rows that `flatten` took."""
    return np.split(arrays[f"{name}_flat"], arrays[f"{name}_offsets"][1:-1])


def state_key(state: Any, step: int = 0) -> bytes:
    """A key of bytes, the same for two anchor states exactly where grouping takes them as equal.

    Args:
        state: str, bytes, a number, None, or a tuple, list, dict, set or NumPy array of such.
        step: named in the error.

    Raises:
        ValueError: for a state of another type.
    """
    if isinstance(state, np.generic):
        state = state.item()
    match state:
        case str():
            return b"s" + state.encode("utf-8", "surrogatepass")
        case bytes():
            return b"b" + state
        case None:
            return b"0"
        case bool() | int() | float() | complex():
            return b"n" + _number(state)
        case tuple() | list():
            return _join(b"t", [state_key(part, step) for part in state])
        case Mapping():
            items = sorted((state_key(k, step), state_key(v, step)) for k, v in state.items())
            return _join(b"d", [part for item in items for part in item])
        case set() | frozenset():
            return _join(b"e", sorted(state_key(part, step) for part in state))
        case np.ndarray():
            return _join(b"a", [repr(state.shape).encode(), *_array_parts(state, step)])
    raise ValueError(
        f"the anchor state of step {step} holds a {type(state).__name__}, which cannot be stored: use str, "
        "bytes, numbers, or tuples, dicts and NumPy arrays of these"
    )


def state_of(key: bytes) -> str | bytes:
    """The anchor state that a stored key stands for: strings as they were, others as their key."""
    return key[1:].decode("utf-8", "surrogatepass") if key[:1] == b"s" else key


def _join(tag: bytes, parts: Sequence[bytes]) -> bytes:
    return tag + b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _number(number: complex) -> bytes:
    """1, 1.0, 1 + 0j and True are one number."""
    if isinstance(number, complex):
        if number.imag:
            return repr(number + 0).encode()
        number = number.real
    whole = not isinstance(number, float) or number.is_integer()
    return repr(int(number) if whole else number).encode()


def _array_parts(array: np.ndarray, step: int) -> list[bytes]:
    """The values, whatever the width of the numbers."""
    if array.dtype.kind in "bi":
        array = array.astype(np.int64)
    elif array.dtype.kind == "f":
        array = array.astype(np.float64) + 0.0  # -0.0 equals 0.0
    elif array.dtype.kind not in "uc":
        return [state_key(part, step) for part in array.ravel().tolist()]
    return [array.dtype.kind.encode(), array.tobytes()]

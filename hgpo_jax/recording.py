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
    """A key of bytes, the same for two anchor states exactly where they are equal by value.

    Args:
        state: str, bytes, a real number, None, or a tuple, dict or NumPy array of such.
        step: named in the error.

    Raises:
        ValueError: for a state of another type.
    """
    match state:
        case str():
            return b"s" + state.encode("utf-8", "surrogatepass")
        case bytes():
            return b"b" + state
        case None:
            return b"0"
        case bool() | int() | float() | np.bool_() | np.integer() | np.floating():
            number = state.item() if isinstance(state, np.generic) else state
            return b"n" + repr(int(number) if number == number // 1 else number).encode()  # 1 == 1.0 == True
        case tuple():
            return _join(b"t", [state_key(part, step) for part in state])
        case dict():
            items = sorted((state_key(k, step), state_key(v, step)) for k, v in state.items())
            return _join(b"d", [part for item in items for part in item])
        case np.ndarray() if state.dtype != object:
            return _join(b"a", [state.dtype.str.encode(), repr(state.shape).encode(), state.tobytes()])
    raise ValueError(
        f"the anchor state of step {step} is a {type(state).__name__}; it must be a str, bytes, a number, "
        "or a tuple, dict or array of such"
    )


def state_of(key: bytes) -> str | bytes:
    """The anchor state that a stored key stands for: strings as they were, others as their key."""
    return key[1:].decode("utf-8", "surrogatepass") if key[:1] == b"s" else key


def _join(tag: bytes, parts: Sequence[bytes]) -> bytes:
    return tag + b"".join(len(part).to_bytes(8, "little") + part for part in parts)

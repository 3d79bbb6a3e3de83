"""Context-aware hierarchical grouping, on the host: which steps are compared (HGPO, arXiv 2602.22817).

NumPy only. States become integers once; from there on each level refines the one before it by one sort of
integers, and only the steps that still have a companion take part.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard

import numpy as np

_PLAIN = (str, bytes, int, complex, type(None))


class TrajectoryLayout(NamedTuple):
    """The steps of a batch sorted by trajectory, each trajectory in its own order."""

    order: np.ndarray | slice  # i64 [N]  layout place -> step; a slice over everything where they agree
    trajectory: np.ndarray  # i32 [N]  compact trajectory id at each place
    position: np.ndarray  # i64 [N]  0, 1, .. within the trajectory


def group_steps(
    anchor_state: Sequence[Any] | np.ndarray,
    prompt_group: Sequence[Any] | np.ndarray,
    trajectory: Sequence[Any] | np.ndarray,
    *,
    context_length: int,
    step: Sequence[int] | np.ndarray | None = None,
    root: Literal["state", "prompt"] = "state",
) -> np.ndarray:
    """Group the steps of each prompt group that share their last k + 1 states, for k = 0..context_length.

    With the context operator C_k(s_t) = (s_{t-k}, .., s_t), step j is in the group of step i at level k when
    both are of one prompt group and C_k(j) = C_k(i). Repeated visits within a trajectory count; the levels
    are nested.

    Args:
      anchor_state: [N] the key of what each step observed: str, bytes, numbers, and tuples, lists, dicts,
        sets or NumPy arrays of such, compared by value.
      prompt_group: [N] labels of the prompt groups (rollouts of one task from one initial state).
      trajectory: [N] labels of the trajectories; their steps may be mixed in any way.
      context_length: K, the number of past states that the finest groups share.
      step: [N] the order inside each trajectory; that of appearance when left out.
      root: "prompt" puts one more level first, all the steps of the prompt group.

    Returns:
      i32 [L, N] with L = K + 1 (K + 2 with root="prompt"): group ids, compact per level; -1 where a step has
      no group of two or more at that level (nobody shares its context, or it has fewer than k predecessors).

    Raises:
      ValueError: lengths disagree, the batch is empty, the context length is negative, a trajectory is in two
        prompt groups or has two steps of one number, or a state cannot be compared by value.
    """
    _check_options(context_length, root)
    check_lengths(anchor_state=anchor_state, prompt_group=prompt_group, trajectory=trajectory, step=step)
    layout = trajectory_layout(trajectory, step)
    group = compact_ids(prompt_group)[layout.order]
    _check_prompt_groups(group, layout, prompt_group, trajectory)
    state = _state_ids(anchor_state)[layout.order]
    num_states = int(state.max()) + 1

    ids_LN = np.full((context_length + 1 + (root == "prompt"), len(state)), -1, np.int32)
    everyone = np.arange(len(state))
    if root == "prompt":
        ids_LN[0] = _shared_ids(group.astype(np.int64))
    ids_LN[-context_length - 1] = _shared_ids(group.astype(np.int64) * num_states + state)
    for k in range(1, context_length + 1):
        ids_N, coarser_N = ids_LN[k - context_length - 1], ids_LN[k - context_length - 2]
        # A step alone at the coarser level stays alone: only the others are looked at again.
        kept = everyone[(coarser_N >= 0) & (layout.position >= k)]
        ids_N[kept] = _shared_ids(coarser_N[kept].astype(np.int64) * num_states + state[kept - k])
    return _in_batch_order(ids_LN, layout)


def state_keys(anchor_state: Sequence[Any] | np.ndarray) -> list[Hashable]:
    """One hashable, printable key per step; two keys are equal exactly when the states are equal by value.

    Numbers, strings and bytes are kept; dicts, sets and arrays become tagged tuples. Keys of keys are the
    same keys.

    Args:
      anchor_state: [N] a sequence of states, or an array whose first axis is N.

    Returns:
      N keys.

    Raises:
      ValueError: a state has no value to compare by (the message names the step and the type).
    """
    if isinstance(anchor_state, str | bytes | Mapping):
        raise ValueError(f"anchor_state is a single {type(anchor_state).__name__}; give one state per step")
    states = anchor_state.tolist() if _is_flat(anchor_state) else list(anchor_state)
    if set(map(type, states)) <= {str, bytes, int, bool}:
        return states
    return [_key(state, index) for index, state in enumerate(states)]


def compact_ids(labels: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Number the distinct labels 0, 1, .. in order of first appearance.

    Args:
      labels: [N] integers, strings or anything hashable.

    Returns:
      i32 [N].
    """
    labels = labels if isinstance(labels, np.ndarray) else list(labels)
    array = np.asarray(labels) if len(labels) and isinstance(labels[0], int | np.integer) else labels
    if not (isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "iub" and array.size):
        return _intern(state_keys(labels))
    low, high = int(array.min()), int(array.max())
    if high - low > 4 * array.size + 1024:
        array = np.unique(array, return_inverse=True)[1]
        low, high = 0, int(array.max())
    # Unsigned labels may lie beyond int64, signed ones further apart than their own type reaches.
    offset = (array - array.min()).astype(np.int64) if array.dtype.kind == "u" else array.astype(np.int64) - low
    first = np.full(high - low + 1, -1)
    first[offset[::-1]] = np.arange(array.size)[::-1]  # written last, so the earliest step stays
    is_first = first[offset] == np.arange(array.size)
    number = (np.cumsum(is_first) - 1)[first]
    return number[offset].astype(np.int32)


def trajectory_layout(
    trajectory: Sequence[Any] | np.ndarray, step: Sequence[int] | np.ndarray | None = None
) -> TrajectoryLayout:
    """Sort the steps by trajectory, and inside each by ``step`` (by appearance when it is left out).

    Args:
      trajectory: [N] labels.
      step: [N] integers, or None.

    Returns:
      The layout. ``x[layout.order]`` puts an array [N] into it.

    Raises:
      ValueError: the batch is empty, ``step`` is not of integers, or a trajectory has two steps of one
        number.
    """
    ids = compact_ids(trajectory)
    if not len(ids):
        raise ValueError("the batch is empty: at least one step is needed")
    number = None if step is None else _step_numbers(step)
    order: np.ndarray | slice = slice(None)
    if not _sorted(ids, number):
        # NumPy sorts 16-bit keys by radix: a stable order in linear time.
        narrow = ids.astype(np.uint16) if ids.max() < 2**16 else ids
        order = np.argsort(narrow, kind="stable") if number is None else np.lexsort((number, ids))
    ids = ids[order]
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    position = np.arange(len(ids)) - np.repeat(starts, np.diff(starts, append=len(ids)))
    if number is not None:
        number = number[order]
        twice = np.flatnonzero((np.diff(ids) == 0) & (np.diff(number) == 0))
        if twice.size:
            label = _label(trajectory, np.arange(len(ids))[order][twice[0]])
            raise ValueError(f"step {number[twice[0]]} of trajectory {label!r} occurs twice")
    return TrajectoryLayout(order, ids, position)


def check_lengths(**arrays: Sequence[Any] | np.ndarray | None) -> int:
    """The common length N of the arrays given (None is passed over); a ValueError where they differ."""
    lengths = {name: len(array) for name, array in arrays.items() if array is not None}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"the arrays disagree on the number of steps N: {told}")
    (size,) = set(lengths.values())
    if not size:
        raise ValueError("the batch is empty: at least one step is needed")
    return size


def _check_options(context_length: int, root: str) -> None:
    if isinstance(context_length, bool) or not isinstance(context_length, int | np.integer):
        raise ValueError(f"context_length must be an integer, got {context_length!r}")
    if context_length < 0:
        raise ValueError(f"context_length must be 0 or more, got {context_length}")
    if root not in ("state", "prompt"):
        raise ValueError(f'root must be "state" or "prompt", got {root!r}')


def _check_prompt_groups(group: np.ndarray, layout: TrajectoryLayout, groups: Any, trajectories: Any) -> None:
    """Refuse a trajectory in two prompt groups; warn where a prompt group is a single rollout."""
    torn = np.flatnonzero((np.diff(layout.trajectory) == 0) & (np.diff(group) != 0))
    if torn.size:
        steps = np.arange(len(group))[layout.order][torn[0] : torn[0] + 2]
        label, one, other = _label(trajectories, steps[0]), _label(groups, steps[0]), _label(groups, steps[1])
        raise ValueError(
            f"trajectory {label!r} is in two prompt groups, {one!r} and {other!r} (steps {steps[0]} and "
            f"{steps[1]}): give every rollout its own trajectory label"
        )
    rollouts = np.bincount(group[layout.position == 0])
    if (rollouts == 1).any():
        warnings.warn(
            f"{(rollouts == 1).sum()} of {len(rollouts)} prompt groups hold a single rollout, which can be "
            "compared with no other and gives no episode-level signal: roll out each task twice or more",
            UserWarning,
            stacklevel=3,
        )


def _label(labels: Any, index: Any) -> Any:
    """A label as its owner wrote it: 5 rather than np.int64(5)."""
    label = labels[index]
    return label.item() if isinstance(label, np.generic) else label


def _step_numbers(step: Sequence[int] | np.ndarray) -> np.ndarray:
    number = np.asarray(step)
    if number.ndim != 1 or number.dtype.kind not in "iu":
        raise ValueError(f"step must be a flat array of integers, got {number.dtype} of shape {number.shape}")
    return number.astype(np.int64)


def _sorted(ids: np.ndarray, number: np.ndarray | None) -> bool:
    """Whether the batch lies in layout order already, as a collector usually leaves it."""
    along = np.diff(ids)
    if (along < 0).any():
        return False
    return number is None or bool(((along > 0) | (np.diff(number) > 0)).all())


def _in_batch_order(ids_LN: np.ndarray, layout: TrajectoryLayout) -> np.ndarray:
    if isinstance(layout.order, slice):
        return ids_LN
    batch_LN = np.empty_like(ids_LN)
    batch_LN[:, layout.order] = ids_LN
    return batch_LN


def _shared_ids(key: np.ndarray) -> np.ndarray:
    """Compact ids i32 [n] of the keys (i64 [n], 0 or more) that occur twice or more; -1 for the others."""
    n = len(key)
    shared = np.full(n, -1, np.int32)
    if n < 2:
        return shared
    bits = n.bit_length()
    if int(key.max()) < 2 ** (63 - bits):
        # The index rides in the low bits: one plain integer sort, several times faster than an argsort.
        packed = np.sort((key << bits) | np.arange(n))
        ordered, index = packed >> bits, packed & (2**bits - 1)
    else:
        index = np.argsort(key, kind="stable")
        ordered = key[index]
    same = ordered[1:] == ordered[:-1]
    like_previous, like_next = np.append(False, same), np.append(same, False)
    number = np.cumsum(like_next & ~like_previous, dtype=np.int32) - 1
    member = like_previous | like_next
    shared[index[member]] = number[member]
    return shared


def _intern(keys: list[Hashable]) -> np.ndarray:
    """Number hashables by first appearance; the second look-up finds each string's hash cached."""
    table = dict.fromkeys(keys)
    table = dict(zip(table, range(len(table)), strict=True))
    return np.fromiter(map(table.__getitem__, keys), np.int32, count=len(keys))


def _state_ids(anchor_state: Sequence[Any] | np.ndarray) -> np.ndarray:
    if _is_flat(anchor_state) and anchor_state.dtype.kind in "iu":
        return compact_ids(anchor_state)
    return _intern(state_keys(anchor_state))


def _is_flat(x: Any) -> TypeGuard[np.ndarray]:
    return isinstance(x, np.ndarray) and x.ndim == 1


def _key(state: Any, index: int) -> Hashable:
    """The key of one (possibly nested) state; ``index`` is for the message."""
    if isinstance(state, np.generic):
        state = state.item()
    if isinstance(state, _PLAIN):
        return state
    if isinstance(state, float):
        return state if state == state else ("nan",)  # NaN is a value like any other here
    if isinstance(state, tuple | list):
        return tuple(_key(part, index) for part in state)
    if isinstance(state, Mapping):
        items = ((_key(name, index), _key(value, index)) for name, value in state.items())
        return ("dict", *sorted(items, key=repr))
    if isinstance(state, set | frozenset):
        return ("set", *sorted((_key(part, index) for part in state), key=repr))
    if hasattr(state, "__array__"):
        return _array_key(np.asarray(state), index)
    # An object without its own __eq__ would only ever equal itself: every step its own group, without a word.
    if type(state).__hash__ in (None, object.__hash__):
        raise ValueError(
            f"anchor_state of step {index} holds a {type(state).__name__}, which cannot be compared by "
            "value: use str, bytes, numbers, or tuples, dicts and NumPy arrays of these"
        )
    return state


def _array_key(array: np.ndarray, index: int) -> Hashable:
    """Shape and values, whatever the width of the numbers or the layout in memory."""
    kind = array.dtype.kind
    if kind in "bi" or (kind == "u" and array.itemsize < 8):
        array = array.astype(np.int64)
    elif kind in "fc":
        array = array.astype(np.float64 if kind == "f" else np.complex128) + 0.0  # -0.0 equals 0.0
    elif kind != "u":
        return ("array", array.shape, *(_key(part, index) for part in array.ravel().tolist()))
    return ("array", array.shape, array.dtype.kind, array.tobytes())

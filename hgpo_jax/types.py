"""The contracts between the parts, with a shape behind every field.

Shape legend, used as suffixes throughout (``logits_BTV``, ``group_ids_LN``):

====== ============================================ ====== ==============================
letter axis                                         letter axis
====== ============================================ ====== ==============================
N      steps of a rollout batch, all trajectories   L      levels of the hierarchy
B      rows of packed tokens                        T      tokens in a row
M      mini-batches of an update                    A      parts of a mini-batch, their gradients summed
C      room for response tokens in a row            V      vocabulary
G      groups at one level                          D      hidden size
H      attention heads                              K      ``context_length``
====== ============================================ ====== ==============================
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import flax.struct
import jax
import numpy as np

from hgpo_jax import recording

Array = jax.Array | np.ndarray


class StepSignals(NamedTuple):
    """What an estimator reads: one entry per step, and the group ids per level.

    A pure function ``estimator(signals) -> advantages [N]`` is all that a new method needs; it may
    also return ``(advantages, diagnostics)``; a diagnostic ``value_target`` [N] is what the policy's value head, if
    it has one, is trained toward. Padding steps have ``valid`` False, ids -1, values 0. The last five fields are
    there where ``value`` is.
    """

    step_return: Array  # f32 [N]  discounted return, the invalid-action penalty taken off this step only
    score: Array  # f32 [N]  the trajectory's summed reward, minus the penalty if this step is invalid
    prompt_group: Array  # i32 [N]  compact ids, -1 for padding
    trajectory: Array  # i32 [N]  compact ids, -1 for padding
    valid: Array  # bool [N]  False for padding
    group_ids: Array  # i32 [L, N]  compact per level, -1 where the step has no group of two or more
    value: Array | None = None  # f32 [N]  a critic's estimate, where there is one
    next_value: Array | None = None  # f32 [N]  its estimate of the state that the step led to, 0 where all is over
    next_step: Array | None = None  # i32 [N]  index of the trajectory's next step, -1 for its last
    reward: Array | None = None  # f32 [N]  the environment's, no penalty taken off
    penalty: Array | None = None  # f32 [N]  what was taken off step_return
    discount: Array | None = None  # f32 [N]  gamma


@flax.struct.dataclass
class StepBatch:
    """Everything that crosses from host to device for one update: packed tokens and step signals.

    Each of M mini-batches takes one optimizer step; its rows come in A parts of B rows, whose gradients are summed.
    A step lies in one row, whole. The token arrays align with the token that is *predicted*:
    ``old_logprob[.., t]`` is the log-probability of ``tokens[.., t]`` given what precedes it in its segment.
    In several processes B and N are made of each process's own rows and steps, in the order of the processes.
    """

    tokens: Array  # i32 [M, A, B, T]
    positions: Array  # i32 [M, A, B, T]  0, 1, .. within each segment
    segment_ids: Array  # i32 [M, A, B, T]  1, 2, .. per row; 0 is padding
    loss_mask: Array  # bool [M, A, B, T]  True on response tokens
    step_index: Array  # i32 [M, A, B, T]  which of the N steps the token belongs to, -1 for padding
    response_index: Array  # i32 [M, A, B, C]  where the row's response tokens lie, in order, -1 after the last
    behavior_logprob: Array  # f32 [M, A, B, T]  under the policy that sampled; 0 outside the loss mask
    old_logprob: Array  # f32 [M, A, B, T]  what the ratio divides by; 0 outside the loss mask
    ref_logprob: Array  # f32 [M, A, B, T]  under the frozen reference; 0 outside the loss mask
    steps: StepSignals  # [N] and [L, N]


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectories:
    """What a rollout leaves on the host: N steps as a struct of arrays. Every estimator reads these.

    Steps of different trajectories may be mixed in any way; ids say what belongs together.

    Raises:
        ValueError: lengths that disagree, no steps, a reward, value or log-probability that isn't finite
            (named by its step), an empty prompt or response, a repeated step, a trajectory in two groups.
    """

    anchor_state: np.ndarray  # object [N]  str, bytes, numbers, tuples, dicts or arrays, compared by value
    prompt_group: np.ndarray  # i32 [N]  rollouts of one task from one initial state share it
    trajectory: np.ndarray  # i32 [N]
    step: np.ndarray  # i32 [N]  0, 1, .. within the trajectory
    reward: np.ndarray  # f32 [N]  the environment's, no penalty taken off
    terminated: np.ndarray  # bool [N]  the environment ended the episode with this step
    truncated: np.ndarray  # bool [N]  the step cap did
    action_valid: np.ndarray  # bool [N]
    prompt_tokens: Sequence[np.ndarray]  # N x i32 [prompt length]
    response_tokens: Sequence[np.ndarray]  # N x i32 [response length], the end token included if drawn
    behavior_logprob: Sequence[np.ndarray]  # N x f32 [response length], under the policy that sampled
    value: np.ndarray | None = None  # f32 [N]  a critic's estimate, where there is one
    next_value: np.ndarray | None = None  # f32 [N]  its estimate of where a truncated step led to, else 0
    next_prompt_tokens: Sequence[np.ndarray] | None = None  # N x i32, the prompt after a truncated step, else empty
    response_cut: np.ndarray | None = None  # bool [N]  the length limit ended the response, where that is known

    def __post_init__(self):
        # Lists are welcome: columns are set to their declared dtype, which never loses a fraction.
        for name, dtype in _COLUMNS.items():
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, _column(name, given, dtype))
        object.__setattr__(self, "anchor_state", _object_column(self.anchor_state))
        for name, dtype in _RAGGED.items():
            if (given := getattr(self, name)) is not None:
                rows = tuple(_column(f"{name} of step {i}", row, dtype) for i, row in enumerate(given))
                object.__setattr__(self, name, rows)
        self._check_lengths()
        self._check_finite()
        self._check_ids()

    @property
    def num_steps(self) -> int:
        """N."""
        return len(self.reward)

    def take(self, steps: np.ndarray) -> Trajectories:
        """The steps at these places, i64 [n], or those where a mask, bool [N], is True."""
        places = np.arange(self.num_steps)[steps]

        def chosen(column: Any) -> Any:
            return column[places] if isinstance(column, np.ndarray) else [column[i] for i in places]

        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Trajectories(**{name: chosen(column) for name, column in columns.items() if column is not None})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one ``.npz`` without pickle.

        Anchor states that are strings come back as they are; others come back as a key of bytes, equal where
        the states were equal, so that the same groups are formed.
        """
        arrays = {name: getattr(self, name) for name in _COLUMNS if getattr(self, name) is not None}
        for name in _RAGGED:
            if getattr(self, name) is not None:
                arrays |= recording.flatten(name, getattr(self, name))
        keys = [recording.state_key(state, step) for step, state in enumerate(self.anchor_state)]
        index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        arrays["anchor_state_index"] = np.array([index[key] for key in keys], np.int32)
        arrays |= recording.flatten("anchor_state", [np.frombuffer(key, np.uint8) for key in index])
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trajectories:
        """Reads what `save` wrote.

        Raises:
            ValueError: if the file lacks an array, naming it.
        """
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        try:
            keys = [row.tobytes() for row in recording.unflatten("anchor_state", arrays)]
            states = [recording.state_of(key) for key in keys]
            anchor_state = _object_column([states[i] for i in arrays["anchor_state_index"]])
            columns: dict[str, Any] = {
                name: arrays[name] for name in _COLUMNS if name in arrays or name not in _OPTIONAL
            }
            ragged: dict[str, Any] = {
                name: recording.unflatten(name, arrays)
                for name in _RAGGED
                if f"{name}_flat" in arrays or name not in _OPTIONAL
            }
        except KeyError as missing:
            raise ValueError(f"{os.fspath(path)} is not a recorded batch: it lacks {missing}") from missing
        return cls(anchor_state=anchor_state, **columns, **ragged)

    def _check_lengths(self) -> None:
        lengths = {
            name: len(getattr(self, name))
            for name in ("anchor_state", *_COLUMNS, *_RAGGED)
            if getattr(self, name) is not None
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"every field needs one entry per step, got lengths {lengths}")
        if self.num_steps == 0:
            raise ValueError("a batch needs at least one step, got none")
        for i in range(self.num_steps):
            prompt, response, logprob = (
                len(column[i]) for column in (self.prompt_tokens, self.response_tokens, self.behavior_logprob)
            )
            if not prompt or not response:
                raise ValueError(f"step {i} needs a prompt and a response, got {prompt} and {response} tokens")
            if response != logprob:
                raise ValueError(f"step {i} has {response} response tokens but {logprob} log-probabilities")

    def _check_finite(self) -> None:
        logprob = np.array([row.sum() for row in self.behavior_logprob])
        columns = {
            "reward": self.reward,
            "behavior_logprob": logprob,
            "value": self.value,
            "next_value": self.next_value,
        }
        for name, entries in columns.items():
            if entries is not None and not np.isfinite(entries).all():
                i = int(np.flatnonzero(~np.isfinite(entries))[0])
                where = f"step {i} (trajectory {self.trajectory[i]}, its step {self.step[i]})"
                raise ValueError(f"{name} of {where} is not finite")

    def _check_ids(self) -> None:
        pairs = np.unique(np.stack([self.trajectory, self.prompt_group]), axis=1)
        trajectories, counts = np.unique(pairs[0], return_counts=True)
        if (counts > 1).any():
            i = trajectories[counts > 1][0]
            groups = pairs[1, pairs[0] == i].tolist()
            raise ValueError(f"trajectory {i} lies in prompt groups {groups}, it must lie in one")
        pairs, counts = np.unique(np.stack([self.trajectory, self.step]), axis=1, return_counts=True)
        if (counts > 1).any():
            i, step = pairs[:, counts > 1][:, 0]
            raise ValueError(f"step {step} of trajectory {i} comes up more than once")


_COLUMNS = {
    "prompt_group": np.int32,
    "trajectory": np.int32,
    "step": np.int32,
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "action_valid": np.bool_,
    "value": np.float32,
    "next_value": np.float32,
    "response_cut": np.bool_,
}
_RAGGED = {
    "prompt_tokens": np.int32,
    "response_tokens": np.int32,
    "behavior_logprob": np.float32,
    "next_prompt_tokens": np.int32,
}
_OPTIONAL = ("value", "next_value", "response_cut", "next_prompt_tokens")


def _column(name: str, entries: Any, dtype: Any) -> np.ndarray:
    array = np.asarray(entries) if len(entries) else np.zeros(0, dtype)
    if array.ndim != 1 or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"{name} must be one-dimensional {np.dtype(dtype)}, got {array.dtype} of shape {array.shape}")
    return array.astype(dtype)


def _object_column(states: Sequence[Any] | np.ndarray) -> np.ndarray:
    column = np.empty(len(states), object)
    for i, state in enumerate(states):  # one by one: NumPy would unpack tuples and arrays
        column[i] = state
    return column


@flax.struct.dataclass
class TrainState:
    """The state that an update carries, donated to it. All that is random hangs on ``key``."""

    params: chex.ArrayTree
    opt_state: chex.ArrayTree
    step: Array  # i32 []  optimizer steps taken
    key: Array  # typed PRNG key []


Metrics = dict[str, Any]

"""Steps of text into rows of tokens, on the host: shuffle, cut into mini-batches, pack, pad to a bucket."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import LearnerConfig
from hgpo_jax.types import Array, StepBatch, StepSignals


class Share(NamedTuple):
    """Which part of a batch this process packs, where several pack one together."""

    process: int = 0
    first_step: int = 0  # steps of the processes before
    total_steps: int | None = None  # of all processes; None: this process packs them all
    agree: Callable[[Sequence[int]], Sequence[int]] = list  # entry by entry the largest over the processes


def pack_steps(
    prompt_tokens: Sequence[np.ndarray],
    response_tokens: Sequence[np.ndarray],
    behavior_logprob: Sequence[np.ndarray],
    signals: StepSignals,
    *,
    config: LearnerConfig,
    seed: int | Sequence[int],
    row_multiple: int = 1,
    share: Share = Share(),  # noqa: B008 (immutable)
) -> StepBatch:
    """Shuffle steps into mini-batches and pack each first-fit-decreasing, several steps to a row.

    The steps go into ceil(steps / minibatch_steps) mini-batches whose sizes differ by one at most, so that no
    optimizer step rests on a few left-over steps. Shapes come from few buckets, to compile few times: the numbers
    of mini-batches (the empty ones cost nothing, the update skips them) and steps are powers of two, rows and room for
    responses have four sizes to the octave.

    Several processes shuffle the steps of all with the same seed, so that each mini-batch holds the steps it would
    hold in one process; each packs its own of them. Its ids are moved past those of the processes before: group 0 of
    two processes never meets.

    Args:
      prompt_tokens: n int arrays [length of the prompt], what the policy read.
      response_tokens: n int arrays [length of the response], what it wrote, the end token included.
      behavior_logprob: n float arrays, as long as the response: log-probabilities under the sampling policy. They
        also serve as the old ones, until ``with_logprobs`` puts others there.
      signals: of the n steps in the same order; may be padded, with ``valid`` False from entry n on.
      config: mini-batch size, rows per device and row length.
      seed: of the shuffle; a sequence of ints (run, iteration) is taken as well.
      row_multiple: this process's devices along the mesh's batch axes; it divides B and N.
      share: where several processes pack one batch, this one's part.

    Returns:
      A ``StepBatch`` of NumPy arrays, this process's rows and steps.

    Raises:
      ValueError: a setting below 1, lengths that disagree, an empty prompt or response, a step longer than a row, a
        log-probability or signal that is not finite; the message names the step.
    """
    for name in ("minibatch_steps", "rows_per_device", "row_length"):
        if (setting := getattr(config, name)) is not None and setting < 1:
            raise ValueError(f"LearnerConfig.{name} is {setting}, but has to be 1 or more")
    lengths = _check_steps(prompt_tokens, response_tokens, behavior_logprob, config.row_length)
    n, T = len(lengths), config.row_length
    response_lengths = np.array([len(response) for response in response_tokens])
    M, members = _own_minibatches(n, config.minibatch_steps, seed, share)

    row_of_step, start_of_step = np.zeros(n, np.int64), np.zeros(n, np.int64)
    rows_needed, room_needed = 1, 1
    for steps in members:
        if not len(steps):  # all of this mini-batch's steps are another process's
            continue
        row_of_step[steps], start_of_step[steps] = _first_fit_decreasing(lengths[steps], T)
        rows_needed = max(rows_needed, int(row_of_step[steps].max()) + 1)
        room_needed = max(room_needed, int(np.bincount(row_of_step[steps], response_lengths[steps]).max()))
    rows_needed, room_needed, steps_needed = share.agree([rows_needed, room_needed, n])
    A, B = _parts(rows_needed, config.rows_per_device, row_multiple)
    C = min(_bucket(room_needed, 16), T)
    N = _power_of_two(steps_needed, math.lcm(16, row_multiple))
    for m, steps in enumerate(members):
        row_of_step[steps] += m * A * B

    segments = [np.concatenate(pair) for pair in zip(prompt_tokens, response_tokens, strict=True)]
    shape = (M, A, B, T)
    at = _flat_positions(row_of_step * T + start_of_step, lengths)
    in_segment = _flat_positions(np.zeros(n, np.int64), lengths)
    respond = in_segment >= np.repeat(lengths - response_lengths, lengths)

    def lay(values: np.ndarray, dtype: type, fill: int = 0, where: np.ndarray = at) -> np.ndarray:
        flat = np.full(math.prod(shape), fill, dtype)
        flat[where] = values
        return flat.reshape(shape)

    logprob = lay(np.concatenate(behavior_logprob), np.float32, where=at[respond])
    mask = lay(respond, np.bool_)
    return StepBatch(
        tokens=lay(np.concatenate(segments), np.int32),
        positions=lay(in_segment, np.int32),
        segment_ids=lay(np.repeat(_rank_in_row(row_of_step, start_of_step), lengths), np.int32),
        loss_mask=mask,
        step_index=lay(np.repeat(np.arange(n) + share.process * N, lengths), np.int32, fill=-1),
        response_index=_response_index(mask, C),
        behavior_logprob=logprob,
        old_logprob=logprob,
        ref_logprob=np.zeros(shape, np.float32),
        steps=_pad_signals(signals, n, N, share.process),
    )


def unpack_tokens(values: Array, batch: StepBatch) -> list[np.ndarray]:
    """Take packed per-token values apart again, into the order in which the steps were given.

    Args:
      values: [M, A, B, T], aligned with ``batch.tokens``, for example the result of ``make_logprobs``.
      batch: where the steps lie.

    Returns:
      One array [length of the response] for each step.
    """
    values, mask = np.asarray(values), np.asarray(batch.loss_mask)
    if values.shape != mask.shape:
        raise ValueError(f"values have shape {values.shape}, but the batch's rows have shape {mask.shape}")
    step = np.asarray(batch.step_index)[mask]
    order = np.argsort(step, kind="stable")
    counts = np.bincount(step - step.min())
    return np.split(values[mask][order], np.cumsum(counts)[:-1])


def with_logprobs(batch: StepBatch, *, old: Array | None = None, ref: Array | None = None) -> StepBatch:
    """The batch with old and/or reference log-probabilities replaced by [M, A, B, T] arrays; 0 outside the mask.

    A batch on the host stays there, one on devices stays on them.
    """
    mask, new = batch.loss_mask, {}
    for name, values in {"old_logprob": old, "ref_logprob": ref}.items():
        if values is None:
            continue
        if values.shape != mask.shape:
            raise ValueError(f"{name} has shape {values.shape}, but the batch's rows have shape {mask.shape}")
        if isinstance(mask, np.ndarray):
            new[name] = np.where(mask, np.asarray(values, np.float32), np.float32(0))
        else:
            new[name] = jnp.where(mask, jnp.asarray(values, jnp.float32), 0.0)
    return dataclasses.replace(batch, **new)


def without_steps(batch: StepBatch, left_out: np.ndarray, process: int = 0) -> StepBatch:
    """The same rows with some steps taken out of the loss; their tokens stay, with log-probabilities of 0.

    Args:
      batch: as `pack_steps` returns it, of this process.
      left_out: bool [n], of the n steps that were packed.
      process: its number, of several.
    """
    size = len(batch.steps.valid)
    left_out = np.pad(left_out, (0, size - len(left_out)))
    mask = np.asarray(batch.loss_mask) & ~left_out[np.maximum(np.asarray(batch.step_index) - process * size, 0)]
    logprob = np.where(mask, batch.behavior_logprob, np.float32(0))
    return dataclasses.replace(batch, loss_mask=mask, behavior_logprob=logprob, old_logprob=logprob)


def _check_steps(
    prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray], logprobs: Sequence[np.ndarray], row_length: int
) -> np.ndarray:
    n = len(prompts)
    for name, values in {"response_tokens": responses, "behavior_logprob": logprobs}.items():
        if len(values) != n:
            raise ValueError(f"{name} has {len(values)} steps, but prompt_tokens has {n}")
    if n == 0:
        raise ValueError("no steps to pack: the rollout collected an empty batch")
    for i, (prompt, response, logprob) in enumerate(zip(prompts, responses, logprobs, strict=True)):
        if len(prompt) == 0:
            raise ValueError(f"step {i} has an empty prompt: its first response token has nothing to follow")
        if len(response) == 0:
            raise ValueError(f"step {i} has an empty response: the end token at least belongs to it")
        if len(prompt) + len(response) > row_length:
            raise ValueError(
                f"step {i} has {len(prompt)} prompt and {len(response)} response tokens, more than a "
                f"row of {row_length}: raise LearnerConfig.row_length, or lower the rollout's max_prompt_length "
                "or max_response_length"
            )
        if len(logprob) != len(response):
            raise ValueError(
                f"step {i}: behavior_logprob has {len(logprob)} entries for {len(response)} response tokens"
            )
        if not np.isfinite(logprob).all():
            raise ValueError(f"step {i}: behavior_logprob is not finite ({np.asarray(logprob).tolist()})")
    return np.array([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)])


def _own_minibatches(n: int, size: int, seed: int | Sequence[int], share: Share) -> tuple[int, list[np.ndarray]]:
    """The number of mini-batches, a power of two, and which of this process's n steps each that is not empty holds."""
    total = n if share.total_steps is None else share.total_steps
    if not 0 <= share.first_step <= total - n:
        raise ValueError(f"{n} steps after the first {share.first_step} don't fit into {total} steps of all processes")
    num_real = -(-total // size)
    minibatches = np.array_split(np.random.default_rng(seed).permutation(total) - share.first_step, num_real)
    return _power_of_two(num_real, 1), [steps[(steps >= 0) & (steps < n)] for steps in minibatches]


def _response_index(mask: np.ndarray, room: int) -> np.ndarray:
    """Where each row's True entries lie, in order, -1 after the last: i32 [.., room]."""
    order = np.argsort(~mask, axis=-1, kind="stable")[..., :room]
    return np.where(np.take_along_axis(mask, order, axis=-1), order, -1).astype(np.int32)


def _first_fit_decreasing(lengths: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and offset in the row for each length; the longest go first, each into the first row with room."""
    used = np.zeros(len(lengths), np.int64)  # of each row; there are never more rows than steps
    row, start = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    for i in np.argsort(-lengths, kind="stable"):
        row[i] = np.argmax(used + lengths[i] <= row_length)
        start[i] = used[row[i]]
        used[row[i]] += lengths[i]
    return row, start


def _parts(rows: int, rows_per_device: int | None, devices: int) -> tuple[int, int]:
    """Parts and rows of each that hold ``rows``."""
    if rows_per_device is None:
        return 1, _bucket(rows, devices)
    size = min(rows_per_device * devices, _bucket(rows, devices))
    return _bucket(-(-rows // size), 1), size


def _bucket(needed: int, multiple: int) -> int:
    """The smallest of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, .. multiples that holds ``needed``."""
    units = -(-needed // multiple)
    step = 1 << max(0, (units - 1).bit_length() - 3)
    return -(-units // step) * step * multiple


def _power_of_two(needed: int, multiple: int) -> int:
    """The smallest of 1, 2, 4, 8, .. multiples that holds ``needed``."""
    return (1 << (-(-needed // multiple) - 1).bit_length()) * multiple


def _flat_positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """starts[i], starts[i] + 1, .., starts[i] + lengths[i] - 1 for each i in turn."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - ends + lengths, lengths)


def _rank_in_row(row: np.ndarray, start: np.ndarray) -> np.ndarray:
    """1, 2, .. for the first, second, .. step of each row."""
    order = np.lexsort((start, row))
    first_of_row = np.searchsorted(row[order], row[order])
    rank = np.empty(len(row), np.int64)
    rank[order] = np.arange(len(row)) - first_of_row + 1
    return rank


def _pad_signals(signals: StepSignals, n: int, size: int, process: int) -> StepSignals:
    """Padded to ``size`` steps, which is even; ids moved past those of the processes before."""
    valid = np.asarray(signals.valid)
    if len(valid) < n or not valid[:n].all() or valid[n:].any():
        raise ValueError(
            f"signals.valid marks {int(valid.sum())} of {len(valid)} entries, but there are {n} steps of "
            f"tokens: the first {n} entries have to be the valid ones"
        )

    def pad(name: str, values: Array | None, fill: float) -> np.ndarray | None:
        if values is None:
            return None
        kept = np.asarray(values)[..., :n]
        if kept.shape[-1] != n:
            raise ValueError(f"signals.{name} has {kept.shape[-1]} steps, but there are {n} steps of tokens")
        if np.issubdtype(kept.dtype, np.floating) and not np.isfinite(kept).all():
            step = int(np.flatnonzero(~np.isfinite(kept))[0])
            raise ValueError(f"step {step}: signals.{name} is {kept[step]}, but has to be finite")
        if name in offsets:
            kept = np.where(kept >= 0, kept + offsets[name], -1).astype(np.int32)
        widths = [(0, 0)] * (kept.ndim - 1) + [(0, size - n)]
        return np.pad(kept, widths, constant_values=fill)

    # A group of level ids has two members or more: half as many ids as steps.
    own = process * size
    offsets = {"prompt_group": own, "trajectory": own, "group_ids": own // 2, "next_step": own}
    padded: dict[str, Any] = {k: pad(k, v, -1 if k in offsets else 0) for k, v in signals._asdict().items()}
    return StepSignals(**padded)

"""Steps of text into rows of tokens, on the host: shuffle, cut into mini-batches, pack, pad to a bucket."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import LearnerConfig
from hgpo_jax.types import Array, StepBatch, StepSignals


def pack_steps(
    prompt_tokens: Sequence[np.ndarray],
    response_tokens: Sequence[np.ndarray],
    old_logprob: Sequence[np.ndarray],
    signals: StepSignals,
    *,
    config: LearnerConfig,
    seed: int | Sequence[int],
    ref_logprob: Sequence[np.ndarray] | None = None,
    row_multiple: int = 1,
) -> StepBatch:
    """Shuffle steps into mini-batches and pack each first-fit-decreasing, several steps to a row.

    The n steps go into ceil(n / minibatch_steps) mini-batches whose sizes differ by one at most, so that no
    optimizer step rests on a few left-over steps. Shapes come from few buckets, to compile few times: the
    number of mini-batches is a power of two (the empty ones cost nothing, the update skips them), the rows of
    a mini-batch have four sizes to the octave, and N = mini-batches * minibatch_steps.

    Args:
      prompt_tokens: n int arrays [length of the prompt], what the policy read.
      response_tokens: n int arrays [length of the response], what it wrote, the end token included.
      old_logprob: n float arrays, as long as the response: log-probabilities under the sampling policy.
      signals: of the n steps in the same order; may be padded, with ``valid`` False from entry n on.
      config: mini-batch size, accumulation and row length.
      seed: of the shuffle; a sequence of ints (run, iteration) is taken as well.
      ref_logprob: n float arrays like ``old_logprob`` under the frozen reference; None gives zeros.
      row_multiple: devices along the mesh's batch axes. Rows of a mini-batch are a multiple of
        ``accumulation * row_multiple``.

    Returns:
      A ``StepBatch`` of NumPy arrays.

    Raises:
      ValueError: a setting below 1, lengths that disagree, an empty prompt or response, a step longer than a row, a
        log-probability or signal that is not finite; the message names the step.
    """
    for name in ("minibatch_steps", "accumulation", "row_length"):
        if getattr(config, name) < 1:
            raise ValueError(f"LearnerConfig.{name} is {getattr(config, name)}, but has to be 1 or more")
    lengths = _check_steps(prompt_tokens, response_tokens, old_logprob, ref_logprob, config.row_length)
    n = len(lengths)
    num_real = -(-n // config.minibatch_steps)
    num_minibatches = 1 << (num_real - 1).bit_length()
    minibatches = np.array_split(np.random.default_rng(seed).permutation(n), num_real)

    row_of_step, start_of_step = np.zeros(n, np.int64), np.zeros(n, np.int64)
    rows_needed = 1
    for steps in minibatches:
        row_of_step[steps], start_of_step[steps] = _first_fit_decreasing(lengths[steps], config.row_length)
        rows_needed = max(rows_needed, int(row_of_step[steps].max()) + 1)
    rows = _bucket(rows_needed, config.accumulation * row_multiple)
    for m, steps in enumerate(minibatches):
        row_of_step[steps] += m * rows

    segments = [np.concatenate(pair) for pair in zip(prompt_tokens, response_tokens, strict=True)]
    shape = (num_minibatches * rows, config.row_length)
    at = _flat_positions(row_of_step * config.row_length + start_of_step, lengths)
    in_segment = _flat_positions(np.zeros(n, np.int64), lengths)
    prompt_lengths = np.array([len(p) for p in prompt_tokens])
    respond = in_segment >= np.repeat(prompt_lengths, lengths)

    def lay(values: np.ndarray, dtype: type, fill: int = 0, where: np.ndarray = at) -> np.ndarray:
        flat = np.full(shape[0] * shape[1], fill, dtype)
        flat[where] = values
        return flat.reshape(shape)

    ref = np.concatenate(ref_logprob) if ref_logprob is not None else np.zeros(int(respond.sum()))
    return StepBatch(
        tokens=lay(np.concatenate(segments), np.int32),
        positions=lay(in_segment, np.int32),
        segment_ids=lay(np.repeat(_rank_in_row(row_of_step, start_of_step), lengths), np.int32),
        loss_mask=lay(respond, np.bool_),
        step_index=lay(np.repeat(np.arange(n), lengths), np.int32, fill=-1),
        old_logprob=lay(np.concatenate(old_logprob), np.float32, where=at[respond]),
        ref_logprob=lay(ref, np.float32, where=at[respond]),
        steps=_pad_signals(signals, n, num_minibatches * config.minibatch_steps),
        num_minibatches=num_minibatches,
    )


def unpack_tokens(values: Array, batch: StepBatch) -> list[np.ndarray]:
    """Take packed per-token values apart again, into the order in which the steps were given.

    Args:
      values: [B, T], aligned with ``batch.tokens``, for example the result of ``make_logprobs``.
      batch: where the steps lie.

    Returns:
      One array [length of the response] for each step.
    """
    values, mask = np.asarray(values), np.asarray(batch.loss_mask)
    if values.shape != mask.shape:
        raise ValueError(f"values have shape {values.shape}, but the batch's rows have shape {mask.shape}")
    step = np.asarray(batch.step_index)[mask]
    order = np.argsort(step, kind="stable")
    counts = np.bincount(step)
    return np.split(values[mask][order], np.cumsum(counts)[:-1])


def with_logprobs(batch: StepBatch, *, old: Array | None = None, ref: Array | None = None) -> StepBatch:
    """The batch with old and/or reference log-probabilities replaced by [B, T] arrays; 0 outside the mask.

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


def _check_steps(
    prompts: Sequence[np.ndarray],
    responses: Sequence[np.ndarray],
    old: Sequence[np.ndarray],
    ref: Sequence[np.ndarray] | None,
    row_length: int,
) -> np.ndarray:
    n = len(prompts)
    logprobs = {"old_logprob": old} | ({} if ref is None else {"ref_logprob": ref})
    for name, values in {"response_tokens": responses, **logprobs}.items():
        if len(values) != n:
            raise ValueError(f"{name} has {len(values)} steps, but prompt_tokens has {n}")
    if n == 0:
        raise ValueError("no steps to pack: the rollout collected an empty batch")
    for i in range(n):
        if len(prompts[i]) == 0:
            raise ValueError(f"step {i} has an empty prompt: its first response token has nothing to follow")
        if len(responses[i]) == 0:
            raise ValueError(f"step {i} has an empty response: the end token at least belongs to it")
        if len(prompts[i]) + len(responses[i]) > row_length:
            raise ValueError(
                f"step {i} has {len(prompts[i])} prompt and {len(responses[i])} response tokens, more than a "
                f"row of {row_length}: raise LearnerConfig.row_length, or lower the rollout's max_prompt_length "
                "or max_response_length"
            )
        for name, values in logprobs.items():
            if len(values[i]) != len(responses[i]):
                raise ValueError(
                    f"step {i}: {name} has {len(values[i])} entries for {len(responses[i])} response tokens"
                )
    for name, values in logprobs.items():
        bad = ~np.isfinite(np.concatenate(values))
        if bad.any():
            step = int(np.repeat(np.arange(n), [len(v) for v in values])[bad][0])
            raise ValueError(f"step {step}: {name} is not finite ({np.asarray(values[step]).tolist()})")
    return np.array([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)])


def _first_fit_decreasing(lengths: np.ndarray, row_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and offset in the row for each length; the longest go first, each into the first row with room."""
    used = np.zeros(len(lengths), np.int64)  # of each row; there are never more rows than steps
    row, start = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    for i in np.argsort(-lengths, kind="stable"):
        row[i] = np.argmax(used + lengths[i] <= row_length)
        start[i] = used[row[i]]
        used[row[i]] += lengths[i]
    return row, start


def _bucket(needed: int, multiple: int) -> int:
    """The smallest of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, .. multiples that holds ``needed``."""
    units = -(-needed // multiple)
    step = 1 << max(0, (units - 1).bit_length() - 3)
    return -(-units // step) * step * multiple


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


def _pad_signals(signals: StepSignals, n: int, size: int) -> StepSignals:
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
        widths = [(0, 0)] * (kept.ndim - 1) + [(0, size - n)]
        return np.pad(kept, widths, constant_values=fill)

    fills = {"prompt_group": -1, "trajectory": -1, "group_ids": -1}
    padded: dict[str, Any] = {k: pad(k, v, fills.get(k, 0)) for k, v in signals._asdict().items()}
    return StepSignals(**padded)

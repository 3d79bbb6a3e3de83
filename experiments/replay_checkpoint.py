"""Replays a Hugging Face checkpoint against what another program's ``expected.npz`` recorded of it."""

from __future__ import annotations

import dataclasses
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.hf_config import end_tokens, read_json
from hgpo_jax.policy.sampling import make_sampler, pad_prompts
from hgpo_jax.policy.transformer import Params, Transformer
from hgpo_jax.policy.weights import load_params, model_config_of

TOLERANCE = 1e-4  # absolute, on logits in float32
EXPECTED = "expected.npz"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """One prompt and what the other program made of it."""

    ids: np.ndarray  # i32 [P]
    logits: np.ndarray  # f32 [P, V]
    greedy: np.ndarray  # i32 [R]  cut after the end token where nothing but padding follows


@dataclasses.dataclass(frozen=True)
class Replayed:
    """How far this code is from one record."""

    tokens: int  # of the prompt
    worst: float  # largest absolute difference of a logit; NaN where ours or theirs is not finite
    matched: int  # greedy tokens equal to the recorded ones, place by place
    greedy: int  # greedy tokens recorded

    @property
    def ok(self) -> bool:
        """False for NaN, too."""
        return self.worst <= TOLERANCE and self.matched == self.greedy


def replay(folder: Path) -> list[Replayed]:
    """Loads the checkpoint in float32 and compares the logits of every prompt, and greedy replies to all of them.

    Raises:
      ValueError: no such folder, a checkpoint that does not load, ``expected.npz`` missing or damaged.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: name a Hugging Face checkpoint with an {EXPECTED}")
    config = model_config_of(folder, dtype="float32", param_dtype="float32")
    records = read_expected(folder, config)
    params = load_params(folder, config)
    with jax.default_matmul_precision("highest"):  # accelerators would round the products otherwise
        worst = _worst_differences(config, params, records)
        replies = _greedy_replies(config, params, records)
    return [
        Replayed(len(record.ids), w, int((record.greedy == reply).sum()), len(record.greedy))
        for record, w, reply in zip(records, worst, replies, strict=True)
    ]


def read_expected(folder: Path, config: ModelConfig) -> list[Recorded]:
    """The records ``ids{i}``, ``logits{i}``, ``greedy{i}`` of ``expected.npz``.

    Raises:
      ValueError: the file is missing or damaged, holds no record, or part of one.
    """
    path = folder / EXPECTED
    if not path.is_file():
        raise ValueError(f"{path} is missing: it has to hold ids0, logits0, greedy0, ids1, ... of another program")
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("not a .npz archive")
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    numbers = sorted({int(m[1]) for name in arrays if (m := re.fullmatch(r"(?:ids|logits|greedy)(\d+)", name))})
    if not numbers:
        raise ValueError(f"{path} is damaged: it holds no ids0, logits0, greedy0; nothing to compare")
    records = [_record(path, arrays, i, config.vocab_size) for i in numbers]
    return [dataclasses.replace(r, greedy=_cut_after_end(r.greedy, folder)) for r in records]


def _record(path: Path, arrays: dict[str, np.ndarray], i: int, vocab_size: int) -> Recorded:
    missing = [f"{name}{i}" for name in ("ids", "logits", "greedy") if f"{name}{i}" not in arrays]
    if missing:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}")
    ids, logits, greedy = (arrays[f"{name}{i}"] for name in ("ids", "logits", "greedy"))
    for name, tokens in (("ids", ids), ("greedy", greedy)):
        if tokens.ndim != 1 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError(f"{path} is damaged: {name}{i} is {tokens.dtype} {tokens.shape}, expected token ids [n]")
        if tokens.min() < 0 or tokens.max() >= vocab_size:
            raise ValueError(f"{path} is damaged: {name}{i} has ids outside the vocabulary of {vocab_size} tokens")
    if logits.shape != (len(ids), vocab_size) or not np.issubdtype(logits.dtype, np.floating):
        expected = (len(ids), vocab_size)
        raise ValueError(f"{path} is damaged: logits{i} is {logits.dtype} {logits.shape}, expected floats {expected}")
    return Recorded(ids.astype(np.int32), logits, greedy.astype(np.int32))


def _cut_after_end(greedy: np.ndarray, folder: Path) -> np.ndarray:
    """Generation that stops pads a batch's shorter replies; generation that does not goes on after an end token."""
    generation = folder / "generation_config.json"
    padding = read_json(generation if generation.is_file() else folder / "config.json").get("pad_token_id")
    ends = end_tokens(folder)
    found = np.flatnonzero(np.isin(greedy, ends))
    if found.size and np.isin(greedy[found[0] + 1 :], ends if padding is None else [padding]).all():
        return greedy[: found[0] + 1]
    return greedy


def _worst_differences(config: ModelConfig, params: Params, records: Sequence[Recorded]) -> list[float]:
    """Prompt by prompt, which bounds the memory, all at one length, which compiles once."""
    length = max(len(record.ids) for record in records)
    model = Transformer(config)

    @jax.jit
    def logits_of(params: Params, tokens_BT: jax.Array, segment_ids_BT: jax.Array) -> jax.Array:
        positions_BT = jnp.arange(length)[None]
        hidden: Any = model.apply({"params": params}, tokens_BT, positions_BT, segment_ids_BT)[0]
        return model.apply({"params": params}, hidden, method="unembed")  # pyright: ignore[reportReturnType]

    worst = []
    for record in records:
        padding = (0, length - len(record.ids))
        tokens, segments = np.pad(record.ids, padding), np.pad(np.ones_like(record.ids), padding)
        ours = np.asarray(logits_of(params, tokens[None], segments[None]))[0, : len(record.ids)]
        worst.append(float(np.abs(ours - record.logits).max()))  # max keeps a NaN
    return worst


def _greedy_replies(config: ModelConfig, params: Params, records: Sequence[Recorded]) -> list[np.ndarray]:
    """Greedy replies, as long as the recorded ones, to all prompts in one batch.

    The sampler stops at some token; here at one that no recorded reply holds, for drawing it is a difference anyway.
    Where a vocabulary is so small that none is left, the batch is halved.
    """
    used = set(np.concatenate([record.greedy for record in records]).tolist())
    free = next((token for token in range(config.vocab_size) if token not in used), None)
    if free is None and len(records) > 1:
        half = len(records) // 2
        return [reply for part in (records[:half], records[half:]) for reply in _greedy_replies(config, params, part)]
    if free is None:
        raise ValueError(f"a greedy reply holds all {config.vocab_size} tokens: none is left to stop the sampler at")
    tokens_BP, lengths_B = pad_prompts([r.ids for r in records], 0, max(len(r.ids) for r in records))
    capacity = max(len(record.greedy) for record in records)
    keys_B = jax.random.split(jax.random.key(0), len(records))  # greedy draws nothing from them
    sample = make_sampler(config, [free], pad_id=free)
    out = sample(params, tokens_BP, lengths_B, keys_B, 0.0, 1.0, 0, capacity, capacity=capacity)
    tokens = np.asarray(out.tokens)
    return [tokens[i, : len(record.greedy)] for i, record in enumerate(records)]

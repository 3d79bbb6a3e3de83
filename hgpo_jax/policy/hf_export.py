"""Parameters of ``Transformer`` as a Hugging Face folder, written tensor by tensor."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils

from hgpo_jax import adapters
from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.hf_config import config_json_of, read_json
from hgpo_jax.policy.hf_layout import INDEX, SINGLE, FileTensor, file_tensors, some
from hgpo_jax.policy.tokenization import AnyTokenizer
from hgpo_jax.policy.transformer import Params

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)


def save_checkpoint(
    params: Params,
    config: ModelConfig,
    folder: str | Path,
    *,
    source: str | Path | None = None,
    tokenizer: AnyTokenizer | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = 5 * 10**9,
    overwrite: bool = False,
) -> None:
    """Writes a folder that transformers, vLLM and SGLang open; ``load_params`` gives the same bits back.

    Every process calls it, since gathering a sharded tensor is a collective; the first one writes. config.json
    comes last: a folder without it was not finished.

    Args:
      params: of ``Transformer(config)``, on any mesh; low-rank adapters are merged into their maps.
      config: the decoder.
      folder: made if it is not there.
      source: the Hugging Face folder that training started from: its tokenizer's files and generation config
        are copied, and the fields of its config.json that do not describe the weights are kept.
      tokenizer: written where there is no ``source``, with its end and padding tokens.
      dtype: of the files, "float32" or "bfloat16"; None keeps the parameters'.
      max_shard_bytes: a file holds at most this much, but at least one tensor.
      overwrite: replace what the folder holds of another checkpoint.

    Raises:
      ValueError: the folder holds something and ``overwrite`` is False, no Hugging Face architecture fits
        ``config``, or ``params`` are not those of ``config``.
    """
    folder = Path(folder)
    dtype = dtype or config.param_dtype
    description = config_json_of(config, dtype, _base_config(source, tokenizer))
    published = {name: part for name, part in adapters.merged(params, config).items() if name != adapters.VALUE_HEAD}
    leaves: dict[str, Any] = flatten_dict(published, sep="/")  # pyright: ignore[reportAssignmentType]
    tensors = list(file_tensors(config))
    _check_saved(leaves, tensors)
    _refuse_to_overwrite(folder, overwrite)
    writes = jax.process_index() == 0
    if writes:
        _clear(folder)
    _write_weights(leaves, tensors, folder if writes else None, np.dtype(dtype), max_shard_bytes)
    if writes:
        _write_tokenizer(folder, source, tokenizer)
        _write_json(folder / "config.json", description)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"saved {folder.name}")


def _check_saved(leaves: dict[str, Any], tensors: list[FileTensor]) -> None:
    expected = {tensor.path: tensor.shape for tensor in tensors}
    given = {path: leaf.shape[1 if path.startswith("layers/") else 0 :] for path, leaf in leaves.items()}
    if given != expected:
        wrong = sorted(path for path in expected | given if given.get(path) != expected.get(path))
        raise ValueError(f"these parameters are not those of the ModelConfig: {some(wrong)}")


def _base_config(source: str | Path | None, tokenizer: AnyTokenizer | None) -> dict[str, Any]:
    """Fields of config.json that say nothing of the weights."""
    if source is not None:
        content = read_json(Path(source) / "config.json")
        return {k: v for k, v in content.items() if k not in ("layer_types", "rope_scaling", "transformers_version")}
    return {} if tokenizer is None else {"eos_token_id": tokenizer.eos_ids[0], "pad_token_id": tokenizer.pad_id}


def _refuse_to_overwrite(folder: Path, overwrite: bool) -> None:
    """Asked by the first process alone, and answered to all: one that fails alone leaves the others waiting."""
    refused = folder.exists() and (not folder.is_dir() or (not overwrite and any(folder.iterdir())))
    if jax.process_count() > 1:
        refused = bool(multihost_utils.broadcast_one_to_all(np.array(refused)))
    if refused:
        raise ValueError(f"{folder} is not empty; name a new folder, or ask to overwrite")


def _clear(folder: Path) -> None:
    """Another checkpoint's shards would lie beside the new ones, and its config.json call them finished."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*folder.glob("model*.safetensors"), folder / INDEX, folder / "config.json"):
        path.unlink(missing_ok=True)


def _write_weights(
    leaves: dict[str, Any], tensors: list[FileTensor], folder: Path | None, dtype: np.dtype, max_shard_bytes: int
) -> None:
    """Shards and their index; where ``folder`` is None, takes part in the gathering alone."""
    shards = _shards(tensors, dtype.itemsize, max_shard_bytes)
    where = {}
    for i, shard in enumerate(shards, 1):
        name = SINGLE if len(shards) == 1 else f"model-{i:05}-of-{len(shards):05}.safetensors"
        where |= {tensor.name: name for tensor in shard}
        with contextlib.nullcontext() if folder is None else (folder / name).open("wb") as file:
            if file is not None:
                file.write(_header(shard, dtype))
            for tensor in shard:
                array = _to_host(leaves[tensor.path], tensor.layer)
                if file is not None:
                    stored = np.ascontiguousarray(tensor.to_file(array).astype(dtype, copy=False))
                    file.write(stored.reshape(-1).view(np.uint8).data)
    if folder is not None and len(shards) > 1:
        total = sum(_num_bytes(tensor, dtype.itemsize) for tensor in tensors)
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})


def _num_bytes(tensor: FileTensor, itemsize: int) -> int:
    return math.prod(tensor.shape) * itemsize


def _shards(tensors: list[FileTensor], itemsize: int, max_shard_bytes: int) -> list[list[FileTensor]]:
    """The tensors in order, cut where a file would grow beyond ``max_shard_bytes``."""
    shards: list[list[FileTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        size = _num_bytes(tensor, itemsize)
        if shards[-1] and filled + size > max_shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += size
    return shards


def _header(shard: list[FileTensor], dtype: np.dtype) -> bytes:
    """A safetensors header: its length, then names, types and places of the tensors that follow.

    Written here because the library's own writer wants all tensors of a file in memory at once.
    """
    kind = {"float32": "F32", "bfloat16": "BF16"}[dtype.name]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say so
    start = 0
    for tensor in shard:
        end = start + _num_bytes(tensor, dtype.itemsize)
        header[tensor.name] = {"dtype": kind, "shape": tensor.file_shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data start aligned
    return len(text).to_bytes(8, "little") + text


@jax.jit
def _layer_of(stack: jax.Array, layer: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stack, layer, 0, keepdims=False)


def _to_host(leaf: Any, layer: int | None) -> np.ndarray:
    """A parameter, or one layer of it, from all devices of all processes."""
    array = leaf if layer is None else _layer_of(leaf, np.int32(layer))
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def _write_tokenizer(folder: Path, source: str | Path | None, tokenizer: AnyTokenizer | None) -> None:
    if source is not None:
        for name in (*TOKENIZER_FILES, "generation_config.json"):
            path = Path(source) / name
            if path.is_file() and path.resolve() != (folder / name).resolve():
                shutil.copyfile(path, folder / name)
    elif tokenizer is not None:
        tokenizer.save(folder)
        ends = {"eos_token_id": list(tokenizer.eos_ids), "pad_token_id": tokenizer.pad_id}
        _write_json(folder / "generation_config.json", ends)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

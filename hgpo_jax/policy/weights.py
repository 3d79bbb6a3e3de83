"""Hugging Face weights in and out: safetensors shards to and from the sharded parameters of ``Transformer``.

Both ways go tensor by tensor, so that a host holds one of them at a time, or its own part of one. The rest of the
package asks here for whatever concerns Hugging Face's model folders.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec
from safetensors import SafetensorError, safe_open

from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.hf_config import model_config_of, read_json, resolve_checkpoint
from hgpo_jax.policy.hf_export import save_checkpoint
from hgpo_jax.policy.hf_layout import INDEX, LAYOUT, SINGLE, FileTensor, file_tensors, some
from hgpo_jax.policy.transformer import Params

__all__ = ["load_params", "model_config_of", "resolve_checkpoint", "save_checkpoint"]

TABLE, HEAD = LAYOUT["embed"][0], LAYOUT["unembed"][0]
FLOATS = ("F32", "BF16", "F16", "F64")


def load_params(folder: str | Path, config: ModelConfig, shardings: Any = None) -> Params:
    """Reads a Hugging Face checkpoint straight into (sharded) device arrays.

    Each process reads its own devices' parts of one tensor at a time; layers fill the stacked parameters one by
    one. Whatever float the files hold becomes ``config.param_dtype``.

    Args:
      folder: holds model.safetensors, or shards and their index.
      config: the decoder, from ``model_config_of``.
      shardings: a tree of ``NamedSharding`` like the parameters', over a mesh that may span processes; None puts
        everything on the default device.

    Returns:
      The parameters of ``Transformer(config)``, without adapters, which no such checkpoint has.

    Raises:
      ValueError: no weights, a damaged or absent shard, or tensors that are missing, extra or misshapen: all of
        them in one message.
    """
    folder = Path(folder)
    expected = list(file_tensors(config))
    layout: dict[str, Any] = {} if shardings is None else flatten_dict(shardings, sep="/")  # pyright: ignore[reportAssignmentType]
    dtype = np.dtype(config.param_dtype)
    params: dict[str, jax.Array] = {}
    with contextlib.ExitStack() as stack:
        stored = _open(folder, stack)
        _check(folder, config, expected, stored)
        for tensor in expected:
            sharding = layout.get(tensor.path)
            read = _reader(tensor, stored[tensor.name], dtype)
            if tensor.layer is None:
                params[tensor.path] = _place(read, tensor.shape, sharding)
                continue
            if tensor.layer == 0:
                shape = (config.num_layers, *tensor.shape)
                params[tensor.path] = jax.jit(lambda s=shape: jnp.zeros(s, dtype), out_shardings=sharding)()
            inner = sharding and NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
            part = _place(read, tensor.shape, inner)
            params[tensor.path] = _fill(sharding)(params[tensor.path], part, np.int32(tensor.layer))
    return unflatten_dict(params, sep="/")


def _reader(tensor: FileTensor, stored: Any, dtype: np.dtype) -> Callable[..., np.ndarray]:
    """Reads a part of a tensor, once for all devices that hold the same part."""

    @functools.cache
    def read(*bounds: tuple[int | None, int | None]) -> np.ndarray:
        return tensor.read(stored, tuple(slice(*pair) for pair in bounds)).astype(dtype)

    return read


def _place(read: Callable[..., np.ndarray], shape: tuple[int, ...], sharding: NamedSharding | None) -> jax.Array:
    if sharding is None:
        return jnp.asarray(read(*((None, None) for _ in shape)))
    return jax.make_array_from_callback(shape, sharding, lambda index: read(*((s.start, s.stop) for s in index or ())))


@functools.lru_cache
def _fill(sharding: NamedSharding | None) -> Callable[..., jax.Array]:
    """``fill(stack, part, layer)`` writes one layer into the stacked parameter, in place."""

    def fill(stack: jax.Array, part: jax.Array, layer: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(stack, part, layer, 0)

    return jax.jit(fill, donate_argnums=0, out_shardings=sharding)


def _open(folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """A lazy slice for every tensor in the folder; nothing but the headers is read."""
    if (folder / SINGLE).is_file():  # transformers, too, prefers it
        names, where = [SINGLE], {}
    elif (folder / INDEX).is_file():
        where = read_json(folder / INDEX).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
            raise ValueError(f"{folder / INDEX} is damaged, fetch it again: it has no weight_map of file names")
        names = sorted(set(where.values()))
        absent = [name for name in names if not (folder / name).is_file()]
        if absent:
            raise ValueError(f"{folder / INDEX} names {some(absent)}, absent from {folder}; fetch the rest of it")
    else:
        found = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
        raise ValueError(
            f"{folder} holds no weights: expected {SINGLE}, or {INDEX} and its shards, found {some(found)}; "
            "convert other formats with transformers' save_pretrained"
        )
    stored = {}
    for name in names:
        try:
            file = stack.enter_context(safe_open(folder / name, "np"))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{folder / name} is damaged, fetch it again: {error}") from error
        stored |= {key: file.get_slice(key) for key in file.keys() if where.get(key, name) == name}  # noqa: SIM118
    return stored


def _check(folder: Path, config: ModelConfig, expected: list[FileTensor], stored: dict[str, Any]) -> None:
    """One error for all that does not fit."""
    shapes = {tensor.name: tensor.file_shape for tensor in expected}
    present = {name for name in stored if not name.endswith("rotary_emb.inv_freq")}  # a buffer of old exports
    if config.tie_word_embeddings and HEAD in present:
        present.remove(HEAD)
        _check_tied(folder, shapes, stored)
    wrong = []
    for name in sorted(present & set(shapes)):
        shape, kind = tuple(stored[name].get_shape()), stored[name].get_dtype()
        if shape != shapes[name] or kind not in FLOATS:
            wrong.append(f"{name} {kind} {list(shape)} instead of a float {list(shapes[name])}")
    kinds = {"missing": sorted(set(shapes) - present), "extra": sorted(present - set(shapes)), "misshapen": wrong}
    listed = [f"{len(names)} {kind}: {some(names)}" for kind, names in kinds.items() if names]
    if listed:
        raise ValueError(f"the tensors in {folder} are not those of its config.json. " + "; ".join(listed))


def _check_tied(folder: Path, shapes: dict[str, tuple[int, ...]], stored: dict[str, Any]) -> None:
    """A tied checkpoint may hold its table twice; two different ones would leave open which is meant."""
    table, head = stored.get(TABLE), stored[HEAD]
    if table is None or table.get_shape() != list(shapes[TABLE]):
        return  # reported with the rest
    size = table.get_shape()[0]
    blocks = [slice(start, min(start + 4096, size)) for start in range(0, size, 4096)]
    if head.get_shape() != table.get_shape() or any((table[rows] != head[rows]).any() for rows in blocks):
        raise ValueError(
            f"{folder} holds an lm_head.weight that differs from the embeddings although its config.json ties "
            "them; set tie_word_embeddings to false there"
        )

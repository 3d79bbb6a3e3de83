"""Hugging Face weights in and out: safetensors shards to and from the sharded parameters of ``Transformer``.

Both ways go tensor by tensor, so that a host holds one of them at a time, or its own part of one.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec
from safetensors import SafetensorError, safe_open

from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.hf_config import model_config_of, read_json, resolve_checkpoint
from hgpo_jax.policy.transformer import Params, abstract_params, check_model_config

__all__ = ["load_params", "model_config_of", "resolve_checkpoint"]

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = ("F32", "BF16", "F16", "F64")
_LISTED = 8  # names of each kind in an error message

# Where a parameter lies in the files, and its axes here and there: a comma parts the file's axes, letters that
# stand together are merged. Letters as in transformer.py; I is the MLP's width.
_LAYER = "model.layers.{}."
_LAYOUT: dict[str, tuple[str, str, str]] = {
    "embed": ("model.embed_tokens.weight", "VD", "V,D"),
    "unembed": ("lm_head.weight", "DV", "V,D"),
    "final_norm/scale": ("model.norm.weight", "D", "D"),
    "layers/attention_norm/scale": (_LAYER + "input_layernorm.weight", "D", "D"),
    "layers/attention/q/kernel": (_LAYER + "self_attn.q_proj.weight", "DHF", "HF,D"),
    "layers/attention/q/bias": (_LAYER + "self_attn.q_proj.bias", "HF", "HF"),
    "layers/attention/k/kernel": (_LAYER + "self_attn.k_proj.weight", "DQF", "QF,D"),
    "layers/attention/k/bias": (_LAYER + "self_attn.k_proj.bias", "QF", "QF"),
    "layers/attention/v/kernel": (_LAYER + "self_attn.v_proj.weight", "DQF", "QF,D"),
    "layers/attention/v/bias": (_LAYER + "self_attn.v_proj.bias", "QF", "QF"),
    "layers/attention/q_norm/scale": (_LAYER + "self_attn.q_norm.weight", "F", "F"),
    "layers/attention/k_norm/scale": (_LAYER + "self_attn.k_norm.weight", "F", "F"),
    "layers/attention/o/kernel": (_LAYER + "self_attn.o_proj.weight", "HFD", "D,HF"),
    "layers/mlp_norm/scale": (_LAYER + "post_attention_layernorm.weight", "D", "D"),
    "layers/mlp/gate/kernel": (_LAYER + "mlp.gate_proj.weight", "DI", "I,D"),
    "layers/mlp/up/kernel": (_LAYER + "mlp.up_proj.weight", "DI", "I,D"),
    "layers/mlp/down/kernel": (_LAYER + "mlp.down_proj.weight", "ID", "D,I"),
}


class _Tensor(NamedTuple):
    """One tensor of the files, and the parameter (or the layer of one) that it holds."""

    path: str  # into the parameters, parted by "/"
    layer: int | None
    name: str
    ours: str  # axes
    theirs: str
    shape: tuple[int, ...]  # here, without the axis of the layers

    @property
    def file_shape(self) -> tuple[int, ...]:
        return tuple(math.prod(self._size(c) for c in group) for group in self.theirs.split(","))

    def _size(self, axis: str) -> int:
        return self.shape[self.ours.index(axis)]

    def read(self, stored: Any, index: tuple[slice, ...]) -> np.ndarray:
        """The part ``index``, in our axes, of the tensor behind ``stored``, a safetensors slice in theirs.

        The file is read at the cut of each merged axis' first letter; the others are cut here.
        """
        cuts = {c: range(*cut.indices(self._size(c))) for c, cut in zip(self.ours, index, strict=True)}
        outer, split, inner = [], [], []
        for group in self.theirs.split(","):
            first, rest = cuts[group[0]], group[1:]
            width = math.prod(self._size(c) for c in rest)
            outer.append(slice(first.start * width, first.stop * width))
            split += [len(first), *(self._size(c) for c in rest)]
            inner += [slice(None), *(slice(cuts[c].start, cuts[c].stop) for c in rest)]
        block = stored[tuple(outer)].reshape(split)[tuple(inner)]
        flat = self.theirs.replace(",", "")
        return block.transpose([flat.index(c) for c in self.ours])

    def to_file(self, array: np.ndarray) -> np.ndarray:
        """The tensor in the file's axes."""
        flat = self.theirs.replace(",", "")
        return array.transpose([self.ours.index(c) for c in flat]).reshape(self.file_shape)


def file_tensors(config: ModelConfig) -> Iterator[_Tensor]:
    """Every tensor of a checkpoint of ``config``, layer after layer."""
    check_model_config(config)
    abstract: Any = flatten_dict(nn.unbox(abstract_params(config)), sep="/")
    shapes = {path: x.shape for path, x in abstract.items()}
    inner = [path for path in _LAYOUT if path in shapes and path.startswith("layers/")]
    yield _tensor("embed", None, shapes)
    for layer in range(config.num_layers):
        for path in inner:
            yield _tensor(path, layer, shapes)
    yield _tensor("final_norm/scale", None, shapes)
    if not config.tie_word_embeddings:
        yield _tensor("unembed", None, shapes)


def _tensor(path: str, layer: int | None, shapes: dict[str, tuple[int, ...]]) -> _Tensor:
    name, ours, theirs = _LAYOUT[path]
    shape = shapes[path] if layer is None else shapes[path][1:]
    return _Tensor(path, layer, name.format(layer), ours, theirs, shape)


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
      The parameters of ``Transformer(config)``.

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


def _reader(tensor: _Tensor, stored: Any, dtype: np.dtype) -> Callable[..., np.ndarray]:
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
            raise ValueError(f"{folder / INDEX} names {_some(absent)}, absent from {folder}; fetch the rest of it")
    else:
        found = sorted(path.name for path in folder.glob("*")) if folder.is_dir() else []
        raise ValueError(
            f"{folder} holds no weights: expected {SINGLE}, or {INDEX} and its shards, found {_some(found)}; "
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


def _check(folder: Path, config: ModelConfig, expected: list[_Tensor], stored: dict[str, Any]) -> None:
    """One error for all that does not fit."""
    shapes = {tensor.name: tensor.file_shape for tensor in expected}
    present = {name for name in stored if not name.endswith("rotary_emb.inv_freq")}  # a buffer of old exports
    if config.tie_word_embeddings and _LAYOUT["unembed"][0] in present:
        present.remove(_LAYOUT["unembed"][0])
        _check_tied(folder, shapes, stored)
    wrong = []
    for name in sorted(present & set(shapes)):
        shape, kind = tuple(stored[name].get_shape()), stored[name].get_dtype()
        if shape != shapes[name] or kind not in FLOATS:
            wrong.append(f"{name} {kind} {list(shape)} instead of a float {list(shapes[name])}")
    kinds = {"missing": sorted(set(shapes) - present), "extra": sorted(present - set(shapes)), "misshapen": wrong}
    listed = [f"{len(names)} {kind}: {_some(names)}" for kind, names in kinds.items() if names]
    if listed:
        raise ValueError(f"the tensors in {folder} are not those of its config.json. " + "; ".join(listed))


def _check_tied(folder: Path, shapes: dict[str, tuple[int, ...]], stored: dict[str, Any]) -> None:
    """A tied checkpoint may hold its table twice; two different ones would leave open which is meant."""
    table, head = stored.get(_LAYOUT["embed"][0]), stored[_LAYOUT["unembed"][0]]
    if table is None or table.get_shape() != list(shapes[_LAYOUT["embed"][0]]):
        return  # reported with the rest
    rows = range(0, table.get_shape()[0], 4096)
    if head.get_shape() != table.get_shape() or any((table[i : i + 4096] != head[i : i + 4096]).any() for i in rows):
        raise ValueError(
            f"{folder} holds an lm_head.weight that differs from the embeddings although its config.json ties "
            "them; set tie_word_embeddings to false there"
        )


def _some(names: list[str]) -> str:
    if len(names) <= _LISTED:
        return ", ".join(names) or "nothing"
    return ", ".join(names[:_LISTED]) + f" and {len(names) - _LISTED} more"

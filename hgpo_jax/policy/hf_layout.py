"""Where each parameter of ``Transformer`` lies in a Hugging Face checkpoint of Qwen2 or Qwen3."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
from flax.traverse_util import flatten_dict

from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.transformer import abstract_params, check_model_config

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_LISTED = 8  # names in an error message

# Where a parameter lies in the files, and its axes here and there: a comma parts the file's axes, letters that
# stand together are merged. Letters as in transformer.py; I is the MLP's width.
_LAYER = "model.layers.{}."
LAYOUT: dict[str, tuple[str, str, str]] = {
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


class FileTensor(NamedTuple):
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


def file_tensors(config: ModelConfig) -> Iterator[FileTensor]:
    """Every tensor of a checkpoint of ``config``, layer after layer."""
    check_model_config(config)
    abstract: Any = flatten_dict(nn.unbox(abstract_params(config)), sep="/")
    shapes = {path: x.shape for path, x in abstract.items()}
    inner = [path for path in LAYOUT if path in shapes and path.startswith("layers/")]
    yield _tensor("embed", None, shapes)
    for layer in range(config.num_layers):
        for path in inner:
            yield _tensor(path, layer, shapes)
    yield _tensor("final_norm/scale", None, shapes)
    if not config.tie_word_embeddings:
        yield _tensor("unembed", None, shapes)


def _tensor(path: str, layer: int | None, shapes: dict[str, tuple[int, ...]]) -> FileTensor:
    name, ours, theirs = LAYOUT[path]
    shape = shapes[path] if layer is None else shapes[path][1:]
    return FileTensor(path, layer, name.format(layer), ours, theirs, shape)


def some(names: list[str]) -> str:
    """Names for a message, a long list cut."""
    if len(names) <= _LISTED:
        return ", ".join(names) or "nothing"
    return ", ".join(names[:_LISTED]) + f" and {len(names) - _LISTED} more"

"""Low-rank adapters (LoRA, arXiv 2106.09685) as part of a parameter tree: which leaves are trained, and how they merge.

A linear map with an adapter computes ``x W + (lora_alpha / lora_rank) x A B``; A, B lie beside W ("kernel") as
"lora_a" [inputs.., rank] and "lora_b" [rank, outputs..]. B starts at 0, so that the policy starts as it was loaded.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from hgpo_jax.config import ModelConfig

NAMES = ("lora_a", "lora_b")
VALUE_HEAD = "value_head"  # trained beside them


def split(params: Any) -> tuple[Any, Any]:
    """(what is trained, what is frozen): the adapters and the value head where there are any adapters, else everything
    and nothing.
    """
    flat = flatten_dict(params)
    if not any(path[-1] in NAMES for path in flat):
        return params, {}
    adapters = {path: leaf for path, leaf in flat.items() if path[-1] in NAMES or path[0] == VALUE_HEAD}
    return unflatten_dict(adapters), unflatten_dict({path: flat[path] for path in flat.keys() - adapters.keys()})


def fresh(params: Any) -> Any:
    """What no published checkpoint has: the adapters and the value head."""
    flat = flatten_dict(params)
    return unflatten_dict({path: leaf for path, leaf in flat.items() if path[-1] in NAMES or path[0] == VALUE_HEAD})


def join(trained: Any, frozen: Any) -> Any:
    """The tree that `split` took apart."""
    return unflatten_dict(flatten_dict(frozen) | flatten_dict(trained)) if frozen else trained


def disabled(params: Any) -> Any:
    """The same policy without what its adapters have learned, its frozen leaves shared: the loss's reference."""
    trained, frozen = split(params)
    return join(jax.tree.map(jnp.zeros_like, trained), frozen) if frozen else params


def merged(params: Any, config: ModelConfig) -> Any:
    """A tree without adapters that computes the same, ``W + (lora_alpha / lora_rank) A B``, in W's dtype.

    Args:
      params: with layers stacked on the first axis, as the transformer's are.
      config: ``lora_rank`` and ``lora_alpha``.
    """
    trained, frozen = split(params)
    if not frozen:
        return params
    flat, adapters = flatten_dict(frozen), flatten_dict(trained)
    flat |= {path: leaf for path, leaf in adapters.items() if path[0] == VALUE_HEAD}
    for *module, name in adapters:
        if name == "lora_a":
            a, b = adapters[*module, "lora_a"], adapters[*module, "lora_b"]
            flat[*module, "kernel"] = _merge(flat[*module, "kernel"], a, b, config.lora_alpha / config.lora_rank)
    return unflatten_dict(flat)


@jax.jit
def _merge(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    product = jax.vmap(lambda a, b: jnp.tensordot(a, b, axes=1))(a, b)
    return (kernel.astype(jnp.float32) + scale * product).astype(kernel.dtype)

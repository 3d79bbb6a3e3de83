"""A decoder of the Qwen2 family, and what the learner and the sampler both need from it.

Sampling and training run this one module: ``__call__`` writes to a key/value cache when it is given one.

Shapes beyond the legend of ``types.py``: ``S`` slots of keys and values (T without a cache), ``Q`` key/value
heads (each serves ``H / Q`` query heads), ``F`` width of a head, ``E`` half of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from hgpo_jax import adapters
from hgpo_jax.config import ModelConfig
from hgpo_jax.policy.attention import SAVED, attend, attend_one, choose_attention
from hgpo_jax.sharding import BATCH_AXES, Layout, constrain
from hgpo_jax.types import Array

Params = dict[str, Any]  # nested: ``params["layers"]["attention"]["q"]["kernel"]``

_policies = jax.checkpoint_policies
# Attention's output is a product too, but one that costs length squared: it is kept by its name.
_products = _policies.save_from_both_policies(
    _policies.dots_with_no_batch_dims_saveable, _policies.save_only_these_names(SAVED)
)
_KEPT = {"layer": None, "products": _products}

_fan_in = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


class KVCache(NamedTuple):
    """Keys and values of what was read. All rows write the same slot: prompts are padded on the left."""

    key: jax.Array  # dtype [layers, B, Q, F, S]
    value: jax.Array  # dtype [layers, B, Q, S, F]
    segment_ids: jax.Array  # i32 [B, S]  0 where a slot is padding or not yet written
    length: jax.Array  # i32 []  slots written


def check_model_config(config: ModelConfig) -> None:
    """Raises ValueError, naming the field, where no decoder can be built from ``config``."""
    sizes = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
    )
    for name in sizes:
        if getattr(config, name) < 1:
            raise ValueError(f"ModelConfig.{name} is {getattr(config, name)}; it has to be at least 1")
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"ModelConfig.num_heads ({config.num_heads}) has to be a multiple of num_kv_heads "
            f"({config.num_kv_heads}): each key/value head serves the same number of query heads"
        )
    if config.head_dim % 2:
        raise ValueError(f"ModelConfig.head_dim is {config.head_dim}; rotary positions need an even one")
    choices = {
        "dtype": ("float32", "bfloat16"),
        "param_dtype": ("float32", "bfloat16"),
        "attention": ("auto", "plain", "blockwise", "cudnn", "splash"),
        "remat": ("none", *_KEPT),
    }
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(f"ModelConfig.{name} is {getattr(config, name)!r}; use one of {', '.join(allowed)}")
    if config.lora_rank < 0 or config.lora_alpha <= 0:
        raise ValueError(
            f"ModelConfig.lora_rank ({config.lora_rank}) has to be 0 or more, lora_alpha ({config.lora_alpha}) above 0"
        )
    if config.unroll < 1:
        raise ValueError(f"ModelConfig.unroll is {config.unroll}; it has to be at least 1, a layer after the other")
    if config.unroll > 1 and config.remat != "none":
        raise ValueError(
            f"ModelConfig.unroll is {config.unroll} and remat {config.remat!r}: of layers that share a turn of the "
            "loop the compiler keeps what should be made again; set unroll to 1, or remat to 'none'"
        )
    if config.rope_theta <= 0 or config.rms_norm_eps <= 0:
        raise ValueError(
            f"ModelConfig.rope_theta ({config.rope_theta}) and rms_norm_eps ({config.rms_norm_eps}) have to be above 0"
        )


def init_cache(config: ModelConfig, batch: int, capacity: int) -> KVCache:
    """An empty cache of ``capacity`` slots for ``batch`` rows, in the dtype of the computation."""
    leading = config.num_layers, batch, config.num_kv_heads
    key = jnp.zeros((*leading, config.head_dim, capacity), config.dtype)
    value = jnp.zeros((*leading, capacity, config.head_dim), config.dtype)
    return KVCache(key, value, jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((), jnp.int32))


def _flat_product(x: jax.Array, kernel: jax.Array, dimension_numbers, **kwargs) -> jax.Array:
    """The product over x's last and the kernel's first axes, as one of matrices.

    With rows and tokens as two axes XLA transposes an operand of the kernel's gradient, on a CPU element by element
    and together with what makes it: a third of a training step's time.
    """
    contract = len(dimension_numbers[0][0])
    features, leading = kernel.shape[contract:], x.shape[: x.ndim - contract]
    inputs = math.prod(kernel.shape[:contract])
    y = jax.lax.dot_general(x.reshape(-1, inputs), kernel.reshape(inputs, -1), (((1,), (0,)), ((), ())), **kwargs)
    return y.reshape(*leading, *features)


class Projection(nn.Module):
    """A linear map over the last ``contract`` axes, plus a low-rank one where the config asks for adapters.

    ``axes`` are the logical names of the kernel's axes: those that are contracted, then the features'.
    """

    config: ModelConfig
    features: tuple[int, ...]
    axes: tuple[str, ...]
    bias: bool = False
    contract: int = 1

    @nn.compact
    def __call__(self, x):
        c, contracted = self.config, tuple(range(-self.contract, 0))
        dense = nn.DenseGeneral(
            self.features,
            axis=contracted,
            use_bias=self.bias,
            dtype=c.dtype,
            param_dtype=c.param_dtype,
            dot_general=_flat_product,
            kernel_init=nn.with_logical_partitioning(_fan_in, self.axes),
            bias_init=nn.with_logical_partitioning(nn.initializers.zeros, self.axes[self.contract :]),
        )
        nn.share_scope(self, dense)
        if not c.lora_rank:
            return dense(x)
        inputs, (into, out_of) = x.shape[-self.contract :], (self.axes[: self.contract], self.axes[self.contract :])
        normal = nn.initializers.normal(math.prod(inputs) ** -0.5)
        a_init = nn.with_logical_partitioning(normal, (*into, "lora"))
        b_init = nn.with_logical_partitioning(nn.initializers.zeros, ("lora", *out_of))
        a: Any = self.param("lora_a", a_init, (*inputs, c.lora_rank))
        b: Any = self.param("lora_b", b_init, (c.lora_rank, *self.features))
        narrow = jnp.tensordot(x, a.astype(c.dtype), axes=self.contract)
        return dense(x) + jnp.tensordot(narrow, b.astype(c.dtype), axes=1) * (c.lora_alpha / c.lora_rank)


def _rms_norm(config: ModelConfig, axis: str = "embed") -> nn.RMSNorm:
    scale_init = nn.with_logical_partitioning(nn.initializers.ones, (axis,))
    return nn.RMSNorm(
        epsilon=config.rms_norm_eps, dtype=config.dtype, param_dtype=config.param_dtype, scale_init=scale_init
    )


class Rotation(NamedTuple):
    """Rotary position embedding (arXiv 2104.09864): what turns pair i by ``position * theta^(-2i / F)``."""

    cos: jax.Array  # f32 [B, T, E]
    sin: jax.Array  # f32 [B, T, E]


def rotation(positions_BT: Array, head_dim: int, theta: float) -> Rotation:
    """Of every token, once for all layers."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles_BTE = jnp.asarray(positions_BT, jnp.float32)[..., None] * frequencies[None, None]
    return Rotation(jnp.cos(angles_BTE), jnp.sin(angles_BTE))


def rotate(x_BTHF: jax.Array, by: Rotation) -> jax.Array:
    """Turns every head; pair i is (i, i + F/2), as in Hugging Face's weights."""
    cos, sin = by.cos[:, :, None], by.sin[:, :, None]
    first, second = jnp.split(x_BTHF.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BTHF.dtype)


class Attention(nn.Module):
    """Causal self-attention of one layer; reads and writes that layer's part of the cache."""

    config: ModelConfig
    layout: Layout | None = None

    def setup(self):
        c = self.config
        self.q = Projection(c, (c.num_heads, c.head_dim), ("embed", "heads", "head_dim"), bias=c.qkv_bias)
        self.k = Projection(c, (c.num_kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim"), bias=c.qkv_bias)
        self.v = Projection(c, (c.num_kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim"), bias=c.qkv_bias)
        if c.qk_norm:
            self.q_norm, self.k_norm = _rms_norm(c, "head_dim"), _rms_norm(c, "head_dim")
        self.o = Projection(c, (c.hidden_size,), ("heads", "head_dim", "embed"), contract=2)

    def __call__(self, x_BTD, by, segment_ids_BT, layer, cache: KVCache | None):
        q_BTHF = constrain(self.layout, self.q(x_BTD), "batch", None, "heads", None)
        k_BTQF, v_BTQF = (
            constrain(self.layout, project(x_BTD), "batch", None, "kv_heads", None) for project in (self.k, self.v)
        )
        if self.config.qk_norm:
            q_BTHF, k_BTQF = self.q_norm(q_BTHF), self.k_norm(k_BTQF)
        q_BTHF, k_BTQF = rotate(q_BTHF, by), rotate(k_BTQF, by)
        if cache is None:
            attended = self._whole_rows(q_BTHF, k_BTQF, v_BTQF, segment_ids_BT)
        else:
            cache, k_BQFS, v_BQSF = _write(cache, layer, k_BTQF, v_BTQF)
            segments = segment_ids_BT, cache.segment_ids
            if q_BTHF.shape[1] == 1:
                attended = attend_one(q_BTHF, k_BQFS, v_BQSF, *segments)
            else:
                slots_first = jnp.moveaxis(k_BQFS, 3, 1), jnp.moveaxis(v_BQSF, 2, 1)
                attended = attend(q_BTHF, *slots_first, *segments, start=cache.length)
        return self.o(attended), cache, (k_BTQF, v_BTQF)

    def _whole_rows(self, q_BTHF, k_BTQF, v_BTQF, segment_ids_BT):
        mesh = None if self.layout is None else self.layout.mesh
        platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
        implementation = choose_attention(self.config.attention, platform, q_BTHF.shape[1], self.config.dtype)
        return attend(
            q_BTHF,
            k_BTQF,
            v_BTQF,
            segment_ids_BT,
            segment_ids_BT,
            implementation=implementation,
            mesh=mesh,
            batch_axes=BATCH_AXES,
            heads_axis="tensor",
        )


def _write(cache: KVCache, layer, k_BTQF, v_BTQF) -> tuple[KVCache, jax.Array, jax.Array]:
    """Puts T keys and values after the ``length`` present ones; returns the layer's S keys and values too."""
    k_BQFT, v_BQTF = _slots_inside(k_BTQF, v_BTQF)
    key = jax.lax.dynamic_update_slice(cache.key, k_BQFT[None], (layer, 0, 0, 0, cache.length))
    value = jax.lax.dynamic_update_slice(cache.value, v_BQTF[None], (layer, 0, 0, cache.length, 0))
    return cache._replace(key=key, value=value), key[layer], value[layer]


def _slots_inside(k_BTQF: jax.Array, v_BTQF: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys [B, Q, F, T] and values [B, Q, T, F], as the cache holds them."""
    return jnp.moveaxis(k_BTQF, 1, 3), jnp.moveaxis(v_BTQF, 1, 2)


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202): ``down(silu(gate(x)) * up(x))``."""

    config: ModelConfig
    layout: Layout | None = None

    def setup(self):
        c = self.config
        self.gate = Projection(c, (c.intermediate_size,), ("embed", "mlp"))
        self.up = Projection(c, (c.intermediate_size,), ("embed", "mlp"))
        self.down = Projection(c, (c.hidden_size,), ("mlp", "embed"))

    def __call__(self, x_BTD):
        hidden = constrain(self.layout, nn.silu(self.gate(x_BTD)) * self.up(x_BTD), "batch", None, "mlp")
        return self.down(hidden)


class Block(nn.Module):
    """One layer, as the body of a scan: the carry is (hidden, cache), the scanned input its number.

    With a ``capacity`` the scanned output is the layer's keys and values, with room for so many slots.
    """

    config: ModelConfig
    layout: Layout | None = None
    capacity: int = 0

    def setup(self):
        self.attention_norm, self.mlp_norm = _rms_norm(self.config), _rms_norm(self.config)
        self.attention, self.mlp = Attention(self.config, self.layout), MLP(self.config, self.layout)

    def __call__(self, carry, layer, by, segment_ids_BT):
        x_BTD, cache = carry
        attended, cache, written = self.attention(self.attention_norm(x_BTD), by, segment_ids_BT, layer, cache)
        x_BTD = constrain(self.layout, x_BTD + attended, "batch", None, None)
        x_BTD = constrain(self.layout, x_BTD + self.mlp(self.mlp_norm(x_BTD)), "batch", None, None)
        return (x_BTD, cache), _with_room(*written, self.capacity) if self.capacity else None


class Transformer(nn.Module):
    """The decoder. Its layers are one scan over stacked parameters, so depth does not lengthen compilation.

    Parameters carry logical axis names ("vocab", "embed", "heads", "kv_heads", "head_dim", "mlp", "layers"), which
    the table in ``sharding.py`` maps to mesh axes. On a mesh, ``layout`` also tells the compiler where activations lie:
    rows over the batch axes, heads and the MLP's width over the tensor axis.
    """

    config: ModelConfig
    layout: Layout | None = None

    def setup(self):
        c = self.config
        check_model_config(c)
        normal = nn.initializers.normal(c.hidden_size**-0.5)
        table_init = nn.with_logical_partitioning(normal, ("vocab", "embed"))
        self.embed: Any = self.param("embed", table_init, (c.vocab_size, c.hidden_size), jnp.dtype(c.param_dtype))
        self.final_norm = _rms_norm(c)
        if not c.tie_word_embeddings:
            head_init = nn.with_logical_partitioning(_fan_in, ("embed", "vocab"))
            self.head: Any = self.param("unembed", head_init, (c.hidden_size, c.vocab_size), jnp.dtype(c.param_dtype))
        if c.value_head:  # last: what is drawn before stays the same with it
            self.value_head = nn.Dense(
                1,
                dtype=jnp.float32,
                param_dtype=jnp.float32,
                kernel_init=nn.with_logical_partitioning(nn.initializers.zeros, ("embed", None)),
                bias_init=nn.with_logical_partitioning(nn.initializers.zeros, (None,)),
            )

    @nn.compact
    def __call__(
        self,
        tokens_BT: Array,
        positions_BT: Array,
        segment_ids_BT: Array,
        cache: KVCache | None = None,
        capacity: int = 0,
    ) -> tuple[jax.Array, KVCache | None]:
        """Hidden states after the final norm; a token sees the earlier ones of its own segment.

        Args:
          tokens_BT: i32 [B, T].
          positions_BT: i32 [B, T], 0, 1, .. within each segment.
          segment_ids_BT: i32 [B, T]; 0 is padding, whose hidden states mean nothing.
          cache: what the rows read before, with room for T more; None starts afresh.
          capacity: without a ``cache``, how many slots, T or more, the one returned has; 0 keeps nothing.

        Returns:
          hidden [B, T, D] in the dtype of the computation, and the cache with T more slots written (or None).
        """
        chex.assert_rank([tokens_BT, positions_BT, segment_ids_BT], 2)
        chex.assert_equal_shape([tokens_BT, positions_BT, segment_ids_BT])
        c = self.config
        if cache is not None:
            at = (0, cache.length)
            cache = cache._replace(segment_ids=jax.lax.dynamic_update_slice(cache.segment_ids, segment_ids_BT, at))
        elif 0 < capacity < tokens_BT.shape[1]:
            raise ValueError(f"a cache of {capacity} slots cannot hold the {tokens_BT.shape[1]} tokens that are read")
        by = rotation(positions_BT, c.head_dim, c.rope_theta)
        x_BTD = constrain(self.layout, self.embed[tokens_BT].astype(c.dtype), "batch", None, None)
        layers = _scan_of_layers(c)(c, self.layout, capacity, name="layers")
        (x_BTD, cache), kept = layers((x_BTD, cache), jnp.arange(c.num_layers), by, segment_ids_BT)
        if cache is not None:
            cache = cache._replace(length=cache.length + tokens_BT.shape[1])
        elif capacity:
            segment_ids_BS = jnp.pad(segment_ids_BT, ((0, 0), (0, capacity - tokens_BT.shape[1])))
            key, value = kept
            cache = KVCache(key, value, segment_ids_BS, jnp.int32(tokens_BT.shape[1]))
        hidden_BTD = self.final_norm(x_BTD)
        if c.value_head and self.is_initializing():  # its parameters come to be where it is called
            self.value(hidden_BTD)
        return hidden_BTD, cache

    def value(self, hidden: Array) -> jax.Array:
        """The critic's V f32 [..] of hidden states [.., D]; 0 for every one at the start.

        Raises:
          ValueError: a decoder without one.
        """
        if not self.config.value_head:
            raise ValueError("this decoder has no critic: set ModelConfig.value_head")
        return self.value_head(jnp.asarray(hidden, jnp.float32))[..., 0]

    def unembed(self, hidden: Array) -> jax.Array:
        """Logits f32 [.., V] of hidden states [.., D]."""
        dtype = self.config.dtype
        if self.config.tie_word_embeddings:
            equation, weight = "...d,vd->...v", self.embed
        else:
            equation, weight = "...d,dv->...v", self.head
        logits = jnp.einsum(equation, hidden, weight.astype(dtype), preferred_element_type=jnp.float32)
        return constrain(self.layout, logits, "batch", *[None] * (logits.ndim - 2), "vocab")


def _scan_of_layers(config: ModelConfig) -> Any:
    in_axes: Any = (0, nn.broadcast, nn.broadcast)  # the layer's number; rotation and segments are shared
    block = Block if config.remat == "none" else nn.remat(Block, prevent_cse=False, policy=_KEPT[config.remat])
    return nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=in_axes,
        length=config.num_layers,
        unroll=min(config.unroll, config.num_layers),
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


def _with_room(k_BTQF: jax.Array, v_BTQF: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Keys [B, Q, F, S] and values [B, Q, S, F], padded to S = ``capacity`` slots."""
    k_BQFT, v_BQTF = _slots_inside(k_BTQF, v_BTQF)
    room, none = (0, capacity - k_BTQF.shape[1]), (0, 0)
    return jnp.pad(k_BQFT, (none, none, none, room)), jnp.pad(v_BQTF, (none, none, room, none))


def abstract_params(config: ModelConfig):
    """The parameters' shapes, boxed with their logical axis names: nothing is allocated."""
    return jax.eval_shape(lambda: _boxed_params(config, jax.random.key(0)))


@functools.partial(jax.jit, static_argnums=0)
def _boxed_params(config: ModelConfig, key: chex.PRNGKey):
    check_model_config(config)
    # A kernel would need a device of its kind, even where only shapes are asked for.
    decoder, one = Transformer(dataclasses.replace(config, attention="plain")), jnp.ones((1, 1), jnp.int32)
    return decoder.init(key, one, one, one)["params"]


def init_adapters(config: ModelConfig, key: chex.PRNGKey) -> Params:
    """Only the adapters and the value head of ``init_params``: to ``adapters.join`` to loaded parameters."""
    return jax.jit(lambda: adapters.fresh(init_params(config, key)))()


def init_params(config: ModelConfig, key: chex.PRNGKey) -> Params:
    """Fresh float32 parameters, without boxes; every leaf under "layers" has the layers as its first axis.

    Linear maps are truncated normal of variance 1 / fan-in, embeddings normal of variance 1 / D: the usual 0.02
    at D = 2,500. Narrow models, trained from scratch, learn faster so than from 0.02 throughout.
    """
    return nn.unbox(_boxed_params(config, key))

"""Where every array lives on the mesh: one table from logical axes to mesh axes, and what follows from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from hgpo_jax import adapters
from hgpo_jax.config import MeshConfig
from hgpo_jax.types import StepBatch, StepSignals, TrainState

MESH_AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": BATCH_AXES,  # rows of tokens
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "head_dim": None,
    "layers": None,
    "lora": None,
}
# Grouped-query models have few key/value heads (two in Qwen2.5 up to 3B), and a head is never cut: where the
# mesh axis is too large for them, every device holds them all.
REPLICATED_IF_INDIVISIBLE = {"kv_heads"}


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh with axes data, fsdp, tensor. One axis may be -1: it takes the devices the others leave.

    In several processes the devices lie in the order of the processes, so that each holds rows that follow each other.

    Raises:
      ValueError: sizes that need more devices than there are, or do not divide them where -1 is to fill.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = {axis: getattr(config, axis) for axis in MESH_AXES}
    free = [axis for axis, size in sizes.items() if size == -1]
    wrong = {axis: size for axis, size in sizes.items() if size < 1 and size != -1}
    if wrong or len(free) > 1:
        raise ValueError(f"mesh {sizes}: sizes are 1 or more, and at most one axis is -1")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if free:
        if len(devices) % fixed:
            raise ValueError(
                f"mesh {sizes}: {fixed} does not divide the {len(devices)} devices; change the fixed sizes, "
                f"or give {free[0]} a number"
            )
        sizes[free[0]] = len(devices) // fixed
    used = math.prod(sizes.values())
    if used > len(devices):
        raise ValueError(
            f"mesh {sizes} needs {used} devices, but there are {len(devices)}; lower a size or set one to -1"
        )
    if jax.process_count() > 1:
        ordered = sorted(devices[:used], key=lambda device: (device.process_index, device.id))
        return Mesh(np.array(ordered).reshape(tuple(sizes.values())), MESH_AXES)
    # Auto: the compiler chooses the collectives. Explicit axes refuse the scatter of the group statistics.
    return jax.make_mesh(tuple(sizes.values()), MESH_AXES, (AxisType.Auto,) * len(MESH_AXES), devices=devices[:used])


@dataclasses.dataclass(frozen=True)
class Layout:
    """A mesh, read through ``RULES``: where the arrays of a forward pass lie on it. Hashable, so static under jit."""

    mesh: Mesh

    def spec(self, shape: Sequence[int], logical_axes: Sequence[str | None]) -> PartitionSpec:
        """The mesh axes of an array of this shape; an activation's axis that a mesh axis doesn't divide is whole."""
        axes = [
            logical if logical is not None and size % _parts(logical, self.mesh) == 0 else None
            for size, logical in zip(shape, logical_axes, strict=True)
        ]
        return partition_spec("activation", shape, axes, self.mesh)

    def sharding(self, shape: Sequence[int], logical_axes: Sequence[str | None]) -> NamedSharding:
        """``spec`` on this mesh."""
        return NamedSharding(self.mesh, self.spec(shape, logical_axes))

    def constrain(self, x: jax.Array, logical_axes: Sequence[str | None]) -> jax.Array:
        """``x``, told to the compiler to lie so."""
        return jax.lax.with_sharding_constraint(x, self.sharding(x.shape, logical_axes))


def constrain(layout: Layout | None, x: jax.Array, *logical_axes: str | None) -> jax.Array:
    """``layout.constrain``, or ``x`` as it is on a single device."""
    return x if layout is None else layout.constrain(x, logical_axes)


def batch_multiple(mesh: Mesh | None) -> int:
    """Devices along the batch axes: what the rows of a mini-batch's part have to be a multiple of."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def mesh_of(arrays: Any) -> Mesh | None:
    """The mesh on which arrays lie; None on a single device."""
    sharding = getattr(next(iter(jax.tree.leaves(arrays)), None), "sharding", None)
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


def partition_spec(name: str, shape: Sequence[int], logical_axes: Sequence[str | None], mesh: Mesh) -> PartitionSpec:
    """The mesh axes of one array, by ``RULES``.

    Args:
      name: of the array, for messages.
      shape: of the array.
      logical_axes: one name, or None, for each dimension.
      mesh: its axis sizes have to divide the dimensions.

    Raises:
      ValueError: an unknown logical axis, a mesh axis used twice, a dimension that the mesh does not divide.
    """
    if len(shape) != len(logical_axes):
        raise ValueError(f"{name} has shape {tuple(shape)}, but logical axes {tuple(logical_axes)}")
    spec: list[str | tuple[str, ...] | None] = []
    for size, logical in zip(shape, logical_axes, strict=True):
        if logical is not None and logical not in RULES:
            raise ValueError(f"{name}: no rule for the logical axis {logical!r}; RULES knows {sorted(RULES)}")
        axes = None if logical is None else RULES[logical]
        parts = _parts(logical, mesh)
        if size % parts:
            if logical not in REPLICATED_IF_INDIVISIBLE:
                raise ValueError(
                    f"{name}: its axis {logical!r} has size {size}, which the mesh axis {axes!r} of size "
                    f"{parts} does not divide; choose a MeshConfig.{axes} that divides {size}"
                )
            axes = None
        spec.append(axes)
    flat = [a for axes in spec for a in _as_tuple(axes)]
    if len(flat) != len(set(flat)):
        raise ValueError(f"{name}: logical axes {tuple(logical_axes)} use a mesh axis twice: {spec}")
    return PartitionSpec(*spec)


def param_shardings(abstract_params: Any, mesh: Mesh) -> Any:
    """Shardings of parameters annotated with logical axes (``flax.linen.with_logical_partitioning``)."""

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        boxed = isinstance(leaf, nn.Partitioned)
        shape = (leaf.value if boxed else leaf).shape
        names = leaf.names if boxed else (None,) * len(shape)
        return NamedSharding(mesh, partition_spec(jax.tree_util.keystr(path), shape, names, mesh))

    return jax.tree_util.tree_map_with_path(sharding, abstract_params, is_leaf=lambda x: isinstance(x, nn.Partitioned))


def state_shardings(abstract_params: Any, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Shardings of a ``TrainState``: each moment of the optimizer lies where its parameter lies.

    Args:
      abstract_params: annotated with logical axes, as ``transformer.abstract_params`` gives them.
      optimizer: whose state is laid out.
      mesh: from ``make_mesh``.
    """
    params = param_shardings(abstract_params, mesh)
    replicated = NamedSharding(mesh, PartitionSpec())
    opt_state = optax.tree_map_params(
        optimizer,
        # Where each parameter has one of several optimizers, the others hold a mask in its place.
        lambda moment, sharding: moment if isinstance(moment, optax.MaskedNode) else sharding,
        jax.eval_shape(optimizer.init, adapters.split(nn.meta.unbox(abstract_params))[0]),
        adapters.split(params)[0],
        transform_non_params=lambda _: replicated,
        is_leaf=lambda x: isinstance(x, optax.MaskedNode),
    )
    return TrainState(params=params, opt_state=opt_state, step=replicated, key=replicated)  # pyright: ignore[reportArgumentType]


def batch_shardings(batch: StepBatch, mesh: Mesh) -> StepBatch:
    """Rows of tokens over the batch axes, and the N steps likewise, so that each process brings its own of both."""
    rows = NamedSharding(mesh, PartitionSpec(None, None, BATCH_AXES, None))
    steps: StepSignals = jax.tree.map(
        lambda x: NamedSharding(mesh, PartitionSpec(*[None] * (x.ndim - 1), BATCH_AXES)), batch.steps
    )
    return dataclasses.replace(jax.tree.map(lambda _: rows, batch), steps=steps)


def _parts(logical: str | None, mesh: Mesh) -> int:
    return 1 if logical is None else math.prod(mesh.shape[a] for a in _as_tuple(RULES[logical]))


def _as_tuple(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else axes

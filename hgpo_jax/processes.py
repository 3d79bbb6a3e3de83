"""Several processes of one run, one or more a host: how they find each other and what they agree on.

Every process runs the same program on its own environments. Together they hold the mesh's arrays, so whatever they
compute on those they have to do in the same order. In a run of one process all of this does nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from hgpo_jax.config import MeshConfig
from hgpo_jax.watchdog import Watchdog

JOINING = 300.0  # seconds until all have to be there


@dataclasses.dataclass(frozen=True)
class ProcessesConfig:
    """How the processes of a run find each other. Nothing here decides a run's result."""

    count: int = 1
    id: int | None = None  # of this process: 0, 1, ..; the first one writes what the run leaves behind
    coordinator: str | None = None  # HOST:PORT at which process 0 can be reached
    auto: bool = False  # TPU slices, Slurm and Open MPI tell count, id and coordinator themselves
    deadline: float = 1800.0  # seconds that a part of an iteration may take, compilation included

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"processes.count is {self.count}, but has to be at least 1")
        if self.deadline <= 0:
            raise ValueError(f"processes.deadline is {self.deadline} seconds, but has to be above 0")
        if self.auto:
            if (self.count, self.id, self.coordinator) != (1, None, None):
                raise ValueError("processes.auto finds out count, id and coordinator: leave them out, or auto")
        elif self.count == 1 and self.id in (None, 0):
            return
        elif self.id is None or not 0 <= self.id < self.count:
            raise ValueError(
                f"processes.id is {self.id}, but {self.count} processes are numbered 0 to {self.count - 1}"
            )
        elif self.coordinator is None or not self.coordinator.rpartition(":")[2].isdecimal():
            raise ValueError(
                f"processes.coordinator is {self.coordinator}, but has to be HOST:PORT, where process 0 can be reached"
            )


def start_processes(config: ProcessesConfig) -> None:
    """Joins the other processes; to be called before anything runs on a device. Once joined, stays joined.

    A process that dies ends the others: their heartbeat stops after 10 s.

    Raises:
      ValueError: ``auto`` outside a cluster that jax knows.
    """
    if jax.distributed.is_initialized() or (config.count == 1 and not config.auto):
        return
    joining = min(JOINING, config.deadline)
    with Watchdog(joining, config.id or 0) as watchdog:
        others = f"the other {config.count - 1} at {config.coordinator}"
        watchdog.feed("looking for the other processes" if config.auto else f"waiting for {others}")
        try:
            jax.distributed.initialize(
                config.coordinator,
                None if config.auto else config.count,
                config.id,
                # Later than the watchdog: jax aborts without naming what it waited for.
                initialization_timeout=int(joining) + 60,
                heartbeat_timeout_seconds=10,
                shutdown_timeout_seconds=20,
            )
        except ValueError as error:
            raise ValueError(
                f"processes.auto found no cluster ({error}): give processes.count, .id and .coordinator"
            ) from error


def is_lead() -> bool:
    """Whether this process is the one that writes logs, records and figures."""
    return jax.process_index() == 0


def process_number() -> int | None:
    """This process's number in a run of several; None in a run of one."""
    return jax.process_index() if jax.process_count() > 1 else None


def gather(values: Any) -> np.ndarray:
    """The same small array from every process, [processes, ..], bit for bit. All have to call it.

    Args:
      values: of one shape and dtype everywhere.
    """
    array = np.asarray(values)
    # As bytes: jax would turn 64 bits into 32.
    rows = multihost_utils.process_allgather(np.frombuffer(array.tobytes(), np.uint8))
    return np.frombuffer(np.ascontiguousarray(rows).tobytes(), array.dtype).reshape(len(rows), *array.shape)


def agree_max(values: Sequence[int]) -> list[int]:
    """The largest of each entry over the processes. All have to call it."""
    return gather(np.asarray(values, np.int64)).max(axis=0).tolist()


def require_alike(what: str, value: str) -> None:
    """All processes have to call it.

    Raises:
      ValueError: in all of them, where one has another ``value`` than the first.
    """
    digests = gather(np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8))
    for process, digest in enumerate(digests):
        if (digest != digests[0]).any():
            raise ValueError(f"process {process} has another {what} than process 0: give all the same command")


def own_share(count: int) -> range:
    """This process's part of ``range(count)``: contiguous, in the order of the processes, sizes one apart at most."""
    processes, own = jax.process_count(), jax.process_index()
    return range(own * count // processes, (own + 1) * count // processes)


def check_mesh(mesh: Mesh | None) -> None:
    """Whether each process holds rows of its own, one after the other along the mesh's batch axes.

    Raises:
      ValueError: no mesh, one without all the devices, or a tensor axis that crosses processes.
    """
    processes, devices = jax.process_count(), jax.device_count()
    if processes == 1:
        return
    if mesh is None or mesh.size != devices:
        raise ValueError(
            f"the mesh has {1 if mesh is None else mesh.size} devices, but the {processes} processes have {devices}: "
            "a run uses all of them, for example with --mesh.fsdp -1"
        )
    owners = np.array([device.process_index for device in mesh.devices.flat]).reshape(-1, mesh.shape["tensor"])
    if (owners != owners[:, :1]).any():
        raise ValueError(
            f"mesh.tensor is {mesh.shape['tensor']}, but a process has {devices // processes} devices: choose a "
            "divisor of that, for the parts of a row have to lie in one process"
        )
    if (owners[1:, 0] < owners[:-1, 0]).any():
        raise ValueError(f"the mesh's devices are not in the order of the processes: {owners[:, 0].tolist()}")


def local_mesh(config: MeshConfig, mesh: Mesh) -> Mesh:
    """The devices of ``mesh`` that are this process's, for what it does alone. An axis of -1 takes those left.

    Raises:
      ValueError: sizes that do not use each of the devices.
    """
    own = _by_process(mesh.devices.flat)[jax.process_index()]
    sizes = dataclasses.asdict(config)
    try:
        return Mesh(own.reshape(*sizes.values()), tuple(sizes))
    except ValueError as error:
        raise ValueError(f"mesh {sizes} does not use the {len(own)} devices of a process, each once") from error


def local_replica(params: Any, shardings: Any, cast: Callable[[Any], Any] = lambda params: params) -> Any:
    """The parameters once more, laid over this process's own devices. All processes have to call it together.

    What is then computed from them needs no other process: one may sample longer than another.

    Args:
      params: arrays over all devices of all processes.
      shardings: for each parameter, a ``NamedSharding`` on one ``local_mesh``, alike in all processes.
      cast: of all parameters, applied where they lie: to move bfloat16 in place of float32, say. One object for all
        calls, so that it compiles once.
    """
    leaves: list[NamedSharding] = jax.tree.leaves(shardings)
    axes = leaves[0].mesh.axis_names
    devices = _by_process(jax.tree.leaves(params)[0].sharding.device_set)
    mesh = Mesh(devices.reshape(-1, *leaves[0].mesh.axis_sizes), ("process", *axes))
    # A specification that does not name the axis "process" gives each process all of the array.
    spread = jax.device_put(jax.jit(cast)(params), jax.tree.map(lambda s: NamedSharding(mesh, s.spec), shardings))

    def own(x: jax.Array, sharding: NamedSharding) -> jax.Array:
        parts = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, parts)

    return jax.tree.map(own, spread, shardings)


def _by_process(devices: Iterable[Any]) -> np.ndarray:
    """[processes, devices of each], in the order of their numbers."""
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return np.array(ordered).reshape(jax.process_count(), -1)

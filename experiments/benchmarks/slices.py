"""Accelerators that need not be there: their devices, for the compiler, and what of their memory a program may fill."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

GIB = 2**30
# Of a chip's 16, 95 and 32 GB: the figures that the TPU compiler gives where it refuses a program.
USABLE_GIB = {"v5e": 15.75, "v5p": 95.74, "v6e": 31.25}
# A host's chips, and what the compiler calls them.
HOST = {"TPU v5 lite": "v5e:2x2", "TPU v5": "v5p:2x2x1", "TPU v6 lite": "v6e:2x2"}
GPU_SHARE = 0.92  # of a GPU's memory; the rest is its context, the libraries' workspace and fragments

_TOPOLOGY = re.compile(r"(?P<kind>v5e|v5p|v6e):(?P<grid>\d+(x\d+){1,2})|gpu(?P<gb>\d+):(?P<count>\d+)")


@functools.cache  # a slice that is asked for again has new devices, which do not go with the old ones
def devices_of(topology: str) -> tuple[Any, ...]:
    """The devices of a TPU slice, or as many virtual CPU devices as there are GPUs.

    Raises:
      ValueError: an unknown topology; a TPU's without its compiler; more GPUs than virtual devices.
    """
    match = _parse(topology)
    if match["count"]:
        virtual = jax.devices("cpu")
        if len(virtual) < int(match["count"]):
            raise ValueError(
                f"topology {topology!r} needs {match['count']} virtual CPU devices, but this process has "
                f"{len(virtual)}: set jax_num_cpu_devices before JAX is used"
            )
        return tuple(virtual[: int(match["count"])])
    chips = math.prod(map(int, match["grid"].split("x")))
    single = {"chips_per_host_bounds": [1, 1, 1]} if chips == 1 else {}
    try:
        return tuple(topologies.get_topology_desc(topology, platform="tpu", **single).devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"topology {topology!r} is none that the TPU compiler knows: {error}") from error
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"topology {topology!r} needs the TPU compiler, which the extra installs: "
            f"pip install -e '.[tpu-plan]' ({error})"
        ) from error


def one_host(devices: Sequence[Any]) -> Sequence[Any]:
    """A process's devices; of several hosts, a slice of one host instead: the compiler takes no part of a slice."""
    if len({device.process_index for device in devices}) == 1:
        return devices
    return devices_of(HOST[devices[0].device_kind])


def usable_bytes(topology: str) -> float:
    """What a program and all that lies beside it may fill of one device."""
    match = _parse(topology)
    return GPU_SHARE * int(match["gb"]) * 1e9 if match["count"] else USABLE_GIB[match["kind"]] * GIB


def is_tpu(topology: str) -> bool:
    """Whether the real compiler is asked; a GPU's figures are upper estimates."""
    return not _parse(topology)["count"]


def num_gpus(topology: str) -> int:
    """Virtual devices that the topology needs; 0 for a TPU's."""
    return int(_parse(topology)["count"] or 0)


def _parse(topology: str) -> re.Match[str]:
    match = _TOPOLOGY.fullmatch(topology)
    if match is None:
        raise ValueError(
            f"topology {topology!r} is unknown: write a slice, v5e:4x4, v6e:2x4 or v5p:2x2x1, or for GPUs gpu80:8 "
            "(GB of one, colon, how many)"
        )
    return match

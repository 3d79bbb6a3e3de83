"""What processes tell each other, one program in two of them. The whole loop: experiments/test_distributed."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from several import start_several

from hgpo_jax.config import MeshConfig
from hgpo_jax.processes import (
    ProcessesConfig,
    agree_max,
    check_mesh,
    gather,
    is_lead,
    local_mesh,
    local_replica,
    own_share,
    process_number,
    require_alike,
    start_processes,
)
from hgpo_jax.sharding import make_mesh

TOGETHER = """
import sys, jax, jax.numpy as jnp, numpy as np, pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from hgpo_jax.config import MeshConfig
from hgpo_jax.processes import *
address, count, me = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start_processes(ProcessesConfig(count=count, id=me, coordinator=address))
start_processes(ProcessesConfig(count=count, id=me, coordinator=address))  # joined already

assert is_lead() == (me == 0) and process_number() == me
assert own_share(7) == [range(0, 3), range(3, 7)][me]
assert agree_max([me, 5 - me]) == [1, 5]
third = gather(np.float64(1 / 3) + me)
assert third.dtype == np.float64 and third.tolist() == [1 / 3, 1 / 3 + 1]
assert gather([[me, 2**40]]).tolist() == [[[0, 2**40]], [[1, 2**40]]]
require_alike("word", "one")
with pytest.raises(ValueError, match="process 1 has another word than process 0"):
    require_alike("word", str(me))

devices = np.array(jax.devices())
def mesh(*shape, order=slice(None)): return Mesh(devices[order].reshape(shape), ("data", "fsdp", "tensor"))
for sizes in ((1, 4, 1), (2, 2, 1), (2, 1, 2)): check_mesh(mesh(*sizes))
for bad, words in ((None, "the mesh has 1 devices, but the 2 processes have 4.*--mesh.fsdp -1"),
                   (mesh(1, 2, 1, order=slice(2)), "the mesh has 2 devices"),
                   (mesh(1, 1, 4), "mesh.tensor is 4, but a process has 2 devices"),
                   (mesh(1, 4, 1, order=[0, 2, 1, 3]), r"not in the order of the processes: \\[0, 1, 0, 1\\]")):
    with pytest.raises(ValueError, match=words): check_mesh(bad)

def half(tree): return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)
small = local_mesh(MeshConfig(data=1, tensor=2), mesh(1, 4, 1))
for order in (slice(None), [0, 2, 1, 3]):  # of the mesh on which the parameters lie
    spread = NamedSharding(mesh(1, 4, 1, order=order), P("fsdp"))
    values = np.arange(48, dtype=np.float32).reshape(8, 6) / 7
    params = {"w": jax.make_array_from_callback((8, 6), spread, lambda index: values[index])}
    own = local_replica(params, {"w": NamedSharding(small, P(None, "tensor"))})["w"]
    assert own.is_fully_addressable and own.sharding.device_set == set(jax.local_devices())
    assert own.addressable_shards[0].data.shape == (8, 3)
    np.testing.assert_array_equal(np.asarray(own), values)
    own = local_replica(params, {"w": NamedSharding(small, P())}, half)["w"]
    np.testing.assert_array_equal(np.asarray(own), np.asarray(values, jnp.bfloat16))
if me:  # alone: a program that the other never enters
    assert own.sum() > 0
"""


@pytest.mark.slow
def test_two_processes_agree() -> None:
    with start_several(2, 2, "-c", TOGETHER, options=False) as processes:
        assert processes.wait(120) == [0, 0], processes.outputs()


def test_one_process_is_alone() -> None:
    start_processes(ProcessesConfig())
    start_processes(ProcessesConfig(count=1, id=0, coordinator="127.0.0.1:1"))
    assert not jax.distributed.is_initialized()
    assert is_lead()
    assert process_number() is None
    assert own_share(5) == range(5)
    assert agree_max([3, -1]) == [3, -1]
    np.testing.assert_array_equal(gather(np.arange(6.0).reshape(2, 3)), np.arange(6.0).reshape(1, 2, 3))
    require_alike("configuration", "any")
    check_mesh(None)


@pytest.mark.parametrize(
    ("sizes", "shard"), [(MeshConfig(data=-1), (8, 16)), (MeshConfig(data=2, tensor=4), (8, 4))], ids=str
)
def test_replica_of_one_process(sizes: MeshConfig, shard: tuple[int, int]) -> None:
    """The same program as of several: another layout on the same devices."""
    learner = make_mesh(MeshConfig(fsdp=8))
    values = jax.random.normal(jax.random.key(0), (8, 16))
    params = {"w": jax.device_put(values, NamedSharding(learner, PartitionSpec("fsdp")))}
    layout = {"w": NamedSharding(local_mesh(sizes, learner), PartitionSpec(None, "tensor"))}
    replica: Any = local_replica(params, layout)["w"]
    chex.assert_trees_all_equal(replica, values)
    assert replica.sharding == layout["w"]
    assert replica.addressable_shards[0].data.shape == shard
    half: Any = local_replica(params, layout, lambda tree: jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree))["w"]
    chex.assert_trees_all_equal(half, values.astype(jnp.bfloat16))


def test_local_mesh_uses_each_device() -> None:
    with pytest.raises(ValueError, match=r"'tensor': 3} does not use the 8 devices of a process, each once"):
        local_mesh(MeshConfig(tensor=3), make_mesh(MeshConfig(fsdp=8)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"count": 0}, "processes.count is 0"),
        ({"deadline": 0.0}, "processes.deadline is 0.0 seconds"),
        ({"count": 2, "coordinator": "h:1"}, "processes.id is None, but 2 processes are numbered 0 to 1"),
        ({"count": 2, "id": 2, "coordinator": "h:1"}, "processes.id is 2, but 2 processes"),
        ({"id": 1}, "processes.id is 1, but 1 processes are numbered 0 to 0"),
        ({"count": 2, "id": 1}, "processes.coordinator is None, but has to be HOST:PORT"),
        ({"count": 2, "id": 1, "coordinator": "host"}, "processes.coordinator is host, but has to be HOST:PORT"),
        ({"auto": True, "count": 2}, "processes.auto finds out count, id and coordinator"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ProcessesConfig(**settings)


def test_no_cluster_to_find() -> None:
    program = (
        "from hgpo_jax.processes import ProcessesConfig, start_processes; start_processes(ProcessesConfig(auto=True))"
    )
    with start_several(1, 1, "-c", program, options=False) as processes:
        assert processes.wait(60) == [1]
        assert "processes.auto found no cluster (coordinator_address should be defined.): give" in processes.said(0)

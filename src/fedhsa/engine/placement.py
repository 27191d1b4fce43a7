"""Placement of the work: how many seeds fit at once, and how agents and seeds are spread over devices."""

import functools
import os
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from .._linear import available_cores
from .._types import Device
from ..problems.base import identity

GROUP_BYTES, GROUP_SEEDS = 2**16, 8
"""The memory for the parameters of one group of agents (a core's first cache), and the least seeds that make it pay."""
CHUNK_BYTES = 2**30
"""The memory for the working set of one chunk of seeds if the device does not report its memory."""


def chunk_size(seeds: int, bytes_per_seed: int, devices: Sequence[Device]) -> int:
    """The number of seeds in a chunk: as many as fit in memory, in equal chunks, one or more per CPU core."""
    mine = next(device for device in devices if device.process_index == jax.process_index())
    stats = mine.memory_stats() or {}
    available = len(devices) * stats.get("bytes_limit", 4 * CHUNK_BYTES) // 4
    most = max(1, available // max(1, bytes_per_seed))
    chunks = max(-(-seeds // most), min(seeds, parallel_chunks(devices)))
    return -(-seeds // chunks)


def parallel_chunks(devices: Sequence[Device]) -> int:
    """The number of chunks that run at the same time: one per CPU core, because small operations use only one core."""
    if devices[0].platform != "cpu" or len(devices) > 1:
        return 1
    return _as_on or count_cores()


def threads(devices: Sequence[Device]) -> int:
    """The number of threads that run the chunks. It is one if other processes use the other cores."""
    return 1 if _as_on else parallel_chunks(devices)


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(available_cores())


_as_on: int | None = None


def compute_as_on(cores: int) -> None:
    """Makes this process divide work like a machine with this many cores, while it uses only one core.

    The division of seeds into chunks affects the last digits. If several processes compute the parts of a job, this
    makes their numbers equal to those of a single process.
    """
    global _as_on
    _as_on = cores


def group_size(num_agents: int, seeds: int, bytes_per_seed: int, devices: Sequence[Device]) -> int:
    """The number of agents that go through the steps of a round together.

    A GPU is fastest with all of them. A CPU core is fastest if the data of a step stay in its nearest caches, so agents
    take turns in small groups, and each group goes through all of its steps. With few seeds, setting up a group costs
    more than this saves. Several devices divide the agents among them instead.
    """
    if devices[0].platform != "cpu" or len(devices) > 1 or seeds < GROUP_SEEDS:
        return num_agents
    most = max(1, min(num_agents, GROUP_BYTES // (seeds * bytes_per_seed)))
    # A divisor avoids a smaller last group, which would have to be compiled too.
    divisor = max(size for size in range(1, most + 1) if num_agents % size == 0)
    return divisor if 2 * divisor > most else most


class Share(NamedTuple):
    """The part of a run that one process, or several together, compute."""

    seeds: range
    processes: list[int]
    devices: list[Device]


def share_out(seeds: int, devices: Sequence[Device]) -> list[Share]:
    """Divides a run among the processes that the devices belong to, in their order.

    Seeds are independent, so each process gets its own seeds and runs them as if it were alone. Only if there are more
    processes than seeds do several processes share one seed and divide its agents.
    """
    processes = sorted({device.process_index for device in devices})
    parts = min(len(processes), seeds)
    ends = [seeds * (i + 1) // parts for i in range(parts)]
    return [
        Share(range(begin, end), group.tolist(), [d for d in devices if d.process_index in group])
        for begin, end, group in zip([0, *ends], ends, np.array_split(processes, parts), strict=False)
    ]


def make_mesh(num_agents: int, seeds: int, devices: Sequence[Device]) -> Mesh | None:
    """A grid of devices over agents and seeds, or None for one device.

    Seeds are independent, so they are spread first, and agents are spread over the remaining devices. If the devices
    belong to several processes, all of them share the agents of one seed.
    """
    if spans_processes(devices):
        return Mesh(np.array(devices).reshape(-1, 1), ("agents", "seeds"))
    grids = [
        (a, s)
        for s in range(len(devices), 0, -1)
        for a in range(len(devices) // s, 0, -1)
        if seeds % s == 0 and num_agents % a == 0
    ]
    a, s = max(grids, key=lambda grid: (grid[0] * grid[1], grid[1]))
    if a * s == 1:
        return None
    return Mesh(np.array(devices[: a * s]).reshape(a, s), ("agents", "seeds"))


def spans_processes(devices: Sequence[Device]) -> bool:
    """Whether devices belong to several processes, each of which sees only its own part of an array."""
    return len({device.process_index for device in devices}) > 1


def spread(tree: PyTree, mesh: Mesh | None, *axes: str, device: Device) -> PyTree:
    """Puts arrays on the device, or over the mesh along the named leading axes."""
    if mesh is None:
        return jax.device_put(tree, device)
    several = spans_processes(list(mesh.devices.flat))

    def put(array):
        everywhere = array.shape[0] == 1 < mesh.shape[axes[0]]  # a value that all agents share
        sharding = NamedSharding(mesh, PartitionSpec() if everywhere else PartitionSpec(*axes))
        if not several:
            return jax.device_put(array, sharding)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(array)), impl=jax.random.key_impl(array))
        host = np.asarray(array)  # equal in every process; `device_put` would check this by communication
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree)


def to_host(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Converts arrays to whole NumPy arrays. If other processes hold parts of them, all of these must call it."""
    if mesh is None or not spans_processes(list(mesh.devices.flat)):
        return jax.tree.map(np.asarray, tree)
    whole = jax.jit(identity, out_shardings=NamedSharding(mesh, PartitionSpec()))(tree)
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), whole)


def width(num_agents: int, mesh: Mesh | None) -> int:
    """The number of agents that are computed, so that all devices have equally many.

    It exceeds the number of agents only if several processes share them; the last agent is then repeated.
    """
    devices = 1 if mesh is None else mesh.shape["agents"]
    return -(-num_agents // devices) * devices


def padded(tree: PyTree, length: int) -> PyTree:
    """Repeats the last entry of the leading axis of every array until there are `length`."""

    def pad(array):
        if not (missing := length - len(array)) or len(array) == 1:  # one agent, or shared by all
            return array
        return jnp.concatenate([array, jnp.broadcast_to(array[-1:], (missing, *array.shape[1:]))])

    return jax.tree.map(pad, tree)


OPTIONS: dict[str, dict[str, str | bool]] = {
    "cpu": {"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_use_fusion_emitters": False}
}
"""Compiler options for XLA, by kind of device.

On CPUs, XLA hands reductions to a library that cannot be fused with the look-ups before them. For the short dot
products of an operator this costs more than it gains: with it, the TD problem takes about a fifth longer. XLA also
lowers each loop through one more stage. Without that stage, programs are as fast and give the same bits, and compile in
three quarters of the time.
"""


@functools.cache
def compiler_options(platform: str) -> dict[str, str | bool]:
    """The options for this kind of device that this version of XLA supports."""
    return {name: value for name, value in OPTIONS.get(platform, {}).items() if _known({name: value})}


def _known(option: dict[str, str | bool]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=option)(np.zeros(()))
    except jax.errors.JaxRuntimeError:
        return False
    return True


def describe(devices: Sequence[Device]) -> str:
    """The devices in words, for manifests."""
    kind = devices[0].device_kind
    cores = f", {os.cpu_count()} cores" if devices[0].platform == "cpu" else ""
    processes = len({device.process_index for device in devices})
    together = f", {processes} processes" if processes > 1 else ""
    return f"{len(devices)} x {devices[0].platform} ({kind}{cores}){together}"

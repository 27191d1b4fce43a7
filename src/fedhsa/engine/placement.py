"""Where the work goes: how many seeds fit at once, and how agents and seeds are spread over several devices."""

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

GROUP_BYTES, GROUP_SEEDS = 2**16, 8
"""What the parameters of one group of agents may take, a core's first cache; and the seeds that make it pay."""
CHUNK_BYTES = 2**30
"""What the working set of one chunk of seeds may take when the device does not say how much memory it has."""


def chunk_size(seeds: int, bytes_per_seed: int, devices: Sequence[Device]) -> int:
    """How many seeds run together: as many as fit in memory, shared out over the cores of a CPU, all chunks alike."""
    mine = next(device for device in devices if device.process_index == jax.process_index())
    stats = mine.memory_stats() or {}
    available = len(devices) * stats.get("bytes_limit", 4 * CHUNK_BYTES) // 4
    most = max(1, available // max(1, bytes_per_seed))
    chunks = max(-(-seeds // most), min(seeds, parallel_chunks(devices)))
    return -(-seeds // chunks)


def parallel_chunks(devices: Sequence[Device]) -> int:
    """How many chunks run at the same time: one per core on a CPU, whose small operations do not use several."""
    if devices[0].platform != "cpu" or len(devices) > 1:
        return 1
    return _as_on or count_cores()


def threads(devices: Sequence[Device]) -> int:
    """How many threads run them: one, where other processes have the other cores."""
    return 1 if _as_on else parallel_chunks(devices)


def count_cores() -> int:
    """How many cores this process may use."""
    return len(available_cores())


_as_on: int | None = None


def compute_as_on(cores: int) -> None:
    """From now on this process divides work as a machine with so many cores does, and computes it on one of its own.

    How seeds are divided into chunks shows in the last digits. Where the parts of a job are computed by several
    processes, this makes them the same as those of one.
    """
    global _as_on
    _as_on = cores


def group_size(num_agents: int, seeds: int, bytes_per_seed: int, devices: Sequence[Device]) -> int:
    """How many agents go through the steps of a round together.

    A GPU wants all of them. A CPU core is fastest when what a step touches stays in its nearest caches, so there agents
    take turns in small groups, each going through all its steps; with few seeds, setting a group up costs more than
    that saves. Several devices share the agents out instead.
    """
    if devices[0].platform != "cpu" or len(devices) > 1 or seeds < GROUP_SEEDS:
        return num_agents
    most = max(1, min(num_agents, GROUP_BYTES // (seeds * bytes_per_seed)))
    # A divisor leaves no smaller last group, which would have to be compiled as well.
    divisor = max(size for size in range(1, most + 1) if num_agents % size == 0)
    return divisor if 2 * divisor > most else most


class Share(NamedTuple):
    """The part of a run that some processes compute together, most often one alone."""

    seeds: range
    processes: list[int]
    devices: list[Device]


def share_out(seeds: int, devices: Sequence[Device]) -> list[Share]:
    """Divides a run among the processes that the devices belong to, in their order.

    Seeds never talk to each other, so each process gets seeds of its own and runs them as if it were alone. Only where
    there are more processes than seeds, several take one seed, and share its agents.
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

    Seeds never talk to each other, so they are spread first; agents take the devices that are left. Devices of several
    processes share the agents of one seed, all of them.
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
        everywhere = array.shape[0] == 1 < mesh.shape[axes[0]]  # what all agents share
        sharding = NamedSharding(mesh, PartitionSpec() if everywhere else PartitionSpec(*axes))
        if not several:
            return jax.device_put(array, sharding)
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(array)), impl=jax.random.key_impl(array))
        host = np.asarray(array)  # the same in every process, of which `device_put` would make sure by asking them
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree)


def to_host(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Arrays as NumPy arrays, whole also where other processes have parts of them; then all of these must call it."""
    if mesh is None or not spans_processes(list(mesh.devices.flat)):
        return jax.tree.map(np.asarray, tree)
    whole = jax.jit(_same, out_shardings=NamedSharding(mesh, PartitionSpec()))(tree)
    return jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), whole)


def width(num_agents: int, mesh: Mesh | None) -> int:
    """How many agents are computed, such that all devices have equally many; more than there are only where several
    processes share them, and then the last is repeated."""
    devices = 1 if mesh is None else mesh.shape["agents"]
    return -(-num_agents // devices) * devices


def _same(tree: PyTree) -> PyTree:
    return tree


def padded(tree: PyTree, length: int) -> PyTree:
    """Repeats the last entry of the leading axis of every array until there are `length`."""

    def pad(array):
        if not (missing := length - len(array)) or len(array) == 1:  # of one agent, or of all
            return array
        return jnp.concatenate([array, jnp.broadcast_to(array[-1:], (missing, *array.shape[1:]))])

    return jax.tree.map(pad, tree)


OPTIONS: dict[str, dict[str, str | bool]] = {
    "cpu": {"xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_use_fusion_emitters": False}
}
"""What XLA is told for a kind of device.

On CPU it would hand reductions to a library that cannot be fused with the look-ups before them; for the short dot
products of an operator that costs more than it gives: left on, the TD problem takes about a fifth longer. And it would
translate each loop once more on the way to machine code: the programs are as fast without, and give the same bits, but
are compiled in three quarters of the time.
"""


@functools.cache
def compiler_options(platform: str) -> dict[str, str | bool]:
    """The options for this kind of device that this version of XLA knows."""
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

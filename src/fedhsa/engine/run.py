"""The state of one simulation between two segments: chunks of seeds on the device, records on the host."""

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from .. import _check, kernels, tree
from .._types import Device, Key, precision
from ..algorithms import AbstractAlgorithm, Cost
from ..problems import Problem
from . import batch, placement
from .checkpoint import Saved
from .debug import run_one_by_one
from .peers import Peers
from .result import Result

CAPACITY = 256
"""The number of records that the compiled program stores before the host fetches them."""
BUFFER_BYTES = 2**26
DIVERGED = 1e12
"""A seed has diverged if its parameter is this many times larger than its start and the root, or not a number."""


class _Progress(NamedTuple):
    """The part of a run that changes between segments. It is replaced as a whole, so Ctrl-C leaves it consistent."""

    round: int
    carries: list[batch.Carry]
    records: list[dict[str, np.ndarray]]


class Run:
    """A simulation in progress. `advance` moves either all seeds forward or none of them.

    If several processes run it, each has its own seeds, and only values that concern all seeds are communicated.
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: AbstractAlgorithm,
        theta: np.ndarray,
        key: Key,
        seeds: int,
        every: int,
        dtype: str,
        record: dict[str, Callable],
        devices: Sequence[Device],
    ):
        self.agents = tree.agents_to_device(problem.flat_agents, dtype)
        self.algorithm = tree.to_device(algorithm, dtype)
        self.problem, root = problem, problem.theta_star
        self.theta: Any = tree.to_device(theta, dtype)
        self.theta_star = tree.to_device(root, dtype)
        size = np.abs(theta).max() + (0.0 if root is None else np.abs(root).max())
        self.bound = tree.to_device(DIVERGED * (1 + size), dtype)
        self.key, self.seeds, self.every, self.dtype = key, seeds, every, dtype
        self.record, self.peers = tree.arrays_to_device(record, dtype), Peers(devices)
        shares = placement.share_out(seeds, devices)
        self.share = next(share for share in shares if self.peers.alone or self.peers.index in share.processes)
        self.devices, self.num_agents = self.share.devices, problem.num_agents
        self.timings = {"compile": 0.0, "run": 0.0}
        self._debugged: list[tuple] = []

    def begin(self, chunk: int | None, restored: tuple | None = None) -> None:
        """Starts all chains, or restores a checkpoint."""
        header, leaves, records = restored or ({}, [], {})
        mine = len(self.share.seeds)
        if chunk is not None:
            _check.count("chunk", chunk)
        per_seed = batch.bytes_per_seed(self.agents, self.algorithm, self.theta, self.num_agents)
        wanted: int = header.get("chunk") or chunk or placement.chunk_size(mine, per_seed, self.devices)
        agreed = self.peers.numbers(min(mine, wanted))[:, 0]
        self.chunk = int(min(agreed[self.share.processes])) if not self.peers.alone else int(agreed[0])
        self.group = placement.group_size(self.num_agents, self.chunk, self.theta.nbytes, self.devices)
        self.mesh = placement.make_mesh(self.num_agents, self.chunk, self.devices)
        # A kernel handles all agents and seeds at once, and XLA cannot divide it among several devices.
        self.backend = kernels.backend_of(self.devices[0].platform) if self.mesh is None else None
        if self.group < self.num_agents and not batch.have_form(self.agents, self.algorithm):
            self.backend = None  # small groups of agents gain more than kernels that only advance their chains
        self.pool = ThreadPoolExecutor(placement.threads(self.devices))
        self.width = placement.width(self.num_agents, self.mesh)
        self.agents = self._spread(placement.padded(self.agents, self.width), "agents")
        parts = self.agents, self.algorithm, self.theta_star, self.record
        self.setup = batch.Setup(*parts, self.num_agents, self.group, self.mesh, self.backend)
        began = time.perf_counter()
        # The last chunk may extend past the last seed; the surplus is discarded.
        firsts = range(self.share.seeds.start, self.share.seeds.stop, self.chunk)
        self.keys = [self._make_keys(np.arange(first, first + self.chunk)) for first in firsts]
        start = _compiled(batch.begin, self.devices[0].platform)
        begun = [start(self.setup, keys, self.theta) for keys in self.keys]
        # Placed explicitly, as rounds leave it; otherwise the first round would be compiled for an uncommitted state.
        carries = [carry if self.mesh else jax.device_put(carry, self.devices[0]) for carry, _ in begun]
        round = 0
        self.timings["compile"] += time.perf_counter() - began
        if restored:
            whole = jax.tree.unflatten(jax.tree.structure(carries[0]), leaves)
            carries = [self._restore(whole, first) for first in firsts]
            round, records = header["round"], tree.take(records, slice(self.share.seeds.start, self.share.seeds.stop))
        else:
            records = self._to_host([values for _, values in begun])
        self.progress = _Progress(round, carries, [records])
        per_record = sum(x[:, 0].nbytes for x in jax.tree.leaves(records))
        self.capacity = max(1, min(CAPACITY, BUFFER_BYTES // max(1, per_record)))

    def compile(self) -> None:
        """Compiles the program by running it for no rounds."""
        began = time.perf_counter()
        self._advance(0, 0)
        self.timings["compile"] += time.perf_counter() - began

    def advance(self, records: int) -> int:
        """Advances by at most `records` records and returns their number."""
        began = time.perf_counter()
        records = min(records, self.capacity)
        chunks = range(len(self.keys))
        carries, values = zip(*self.pool.map(lambda i: self._advance(i, records), chunks), strict=True)
        kept = self._to_host(values, records)
        now = self.progress
        self.progress = _Progress(now.round + records * self.every, list(carries), [*now.records, kept])
        self.timings["run"] += time.perf_counter() - began
        return records

    @property
    def round(self) -> int:
        """The number of completed rounds."""
        return self.progress.round

    def agree(self, records: int, stop: bool = False) -> tuple[int, bool, bool]:
        """Agrees with all processes on the next records, on whether to stop, and on whether all seeds have diverged."""
        failed = self._local(placement.to_host([carry.failed for carry in self.progress.carries], self.mesh))
        said = self.peers.numbers(min(records, self.capacity), stop, (failed >= 0).all())
        return int(said[:, 0].min()), bool(said[:, 1].any()), bool(said[:, 2].all())

    def fill(self, rounds: int) -> None:
        """Ends a run in which every seed has diverged. The remaining records are infinite."""
        _, carries, records = self.progress
        missing = (rounds - self.round) // self.every
        rest = {name: np.repeat(v[:, -1:], missing, axis=1) for name, v in records[-1].items()}
        self.progress = _Progress(rounds, carries, [*records, rest])

    def collect(self, records: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """Returns records of this process's seeds as those of all seeds, in process 0; every process must call it."""
        whole = self._collect([records], everywhere=False)
        return None if whole is None else whole[0]

    def debug(self, seed: int, rounds: int) -> None:
        """Runs one seed without compilation."""
        agents = tree.for_each(self.agents, self.num_agents)
        setup = batch.Setup(agents, self.algorithm, self.theta_star, self.record, self.num_agents, 1, None, None)
        found = run_one_by_one(setup, self.key, seed, self.theta, rounds, self.every, float(self.bound))
        self._debugged.append(found)
        self.progress = _Progress(rounds, [], [])

    def saved(self) -> Saved | None:
        """The content of a checkpoint. Seeds are the first axis, so that any number of processes can resume.

        Every process must call this, and process 0 gets the content.
        """
        chunks = placement.to_host(self.progress.carries, self.mesh)
        chunks = [c._replace(memory=_swapped(c.memory), source=_swapped(c.source)) for c in chunks]
        server, memory, source, failed = self._local(chunks)
        memory, source = jax.tree.map(lambda x: x[:, : self.num_agents], (memory, source))
        whole = self._collect([batch.Carry(server, memory, source, failed), self._records()], everywhere=False)
        return None if whole is None else Saved(self.round, self.chunk, *whole)

    def result(self, settings: dict, cost: Callable[[], Cost], complete: bool = True) -> Result:
        """The result so far. If there is no root, the error is NaN."""
        if self._debugged:
            histories, thetas, failures = zip(*self._debugged, strict=True)
            records, theta, failed = tree.stack(histories), np.stack(thetas), np.array(failures)
        else:
            parts = [(carry.failed, carry.server.theta) for carry in self.progress.carries]
            failed, theta = self._local(placement.to_host(parts, self.mesh))
            records, failed, theta = self._collect([self._records(), failed, theta])
        return self._result(records, theta, failed, settings, cost, complete)

    def result_of(self, saved: Saved, settings: dict, cost: Callable[[], Cost], complete: bool) -> Result:
        """The saved state as a result, without further communication."""
        return self._result(saved.records, saved.state.server.theta, saved.state.failed, settings, cost, complete)

    def _result(
        self, records: dict[str, np.ndarray], theta: Any, failed: np.ndarray, settings: dict, cost: Any, complete: bool
    ) -> Result:
        rounds = np.arange(0, self.round + 1, self.every)
        error = records["error"] if "error" in records else np.full((self.seeds, len(rounds)), np.nan)
        return Result(
            error=error,
            theta=self.problem.unravel(theta),
            rounds=rounds,
            records=records,
            failed_round=failed,
            cost=cost,
            settings=settings | {"rounds": self.round},
            timings=dict(self.timings),
            complete=complete,
        )

    def _make_keys(self, seeds: np.ndarray) -> batch.Keys:
        keys = batch.make_keys(self.key, seeds, np.arange(self.width))
        return batch.Keys(*(self._spread(part, *axes) for part, axes in zip(keys, batch.KEYS_AXES, strict=True)))

    def _advance(self, chunk: int, records: int):
        advance = _compiled(batch.advance, self.devices[0].platform)
        keys, carry = self.keys[chunk], self.progress.carries[chunk]
        with precision(self.dtype):  # a setting of the thread
            first, count = jax.device_put(self.round), jax.device_put(records)
            found = advance(self.setup, keys, carry, first, count, self.bound, self.every, self.capacity)
            return jax.block_until_ready(found)

    def _spread(self, values, *axes: str):
        return placement.spread(values, self.mesh, *axes, device=self.devices[0])

    def _restore(self, whole: batch.Carry, first: int) -> batch.Carry:
        """One chunk of a state of all seeds. The last seed is repeated to fill the chunk."""
        seeds = np.minimum(np.arange(first, first + self.chunk), self.seeds - 1)
        server, memory, source, failed = tree.take(whole, seeds)
        memory, source = placement.padded(_swapped((memory, source)), self.width)
        carry = server, memory, source, failed
        return batch.Carry(*(self._spread(part, *axes) for part, axes in zip(carry, batch.CARRY_AXES, strict=True)))

    def _to_host(self, values: Sequence, records: int = 1) -> dict[str, np.ndarray]:
        """Converts the records of all chunks, `(capacity, chunk, ...)`, to this process's `(seeds, records, ...)`."""
        mine = slice(len(self.share.seeds))

        def join(*leaves):
            # Cut on the host: on the device, every number of records would compile another program.
            return np.concatenate([np.swapaxes(leaf[:records], 0, 1) for leaf in leaves])[mine]

        return jax.tree.map(join, *placement.to_host(values, self.mesh))

    def _local(self, chunks: list) -> Any:
        """Joins the trees of all chunks into one tree for the seeds of this process."""
        mine = slice(len(self.share.seeds))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[mine], *chunks)

    def _collect(self, mine: list, everywhere: bool = True) -> Any:
        """Joins the trees of all processes, along the seeds.

        Unless `everywhere`, only process 0 gets the result. If processes share seeds, the first of them contributes.
        """
        leaves, structure = jax.tree.flatten(mine)
        hands_in = self.peers.alone or self.peers.index == self.share.processes[0]
        parts = self.peers.arrays(leaves if hands_in else None, everywhere)
        if not parts:
            return None
        whole = parts[0] if len(parts) == 1 else [np.concatenate(of) for of in zip(*parts, strict=True)]
        return jax.tree.unflatten(structure, whole)

    def _records(self) -> dict[str, np.ndarray]:
        # Segments differ in length between runs, but the order in memory must not.
        return jax.tree.map(lambda *v: np.ascontiguousarray(np.concatenate(v, axis=1)), *self.progress.records)


def _swapped(values: Any) -> Any:
    """Swaps the axes of agents and seeds."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1), values)


@functools.cache
def _compiled(function: Callable, platform: str) -> Callable:
    """Compiles the function, once for each kind of device because compilers take different options."""
    options: Any = {"compiler_options": placement.compiler_options(platform)}
    return eqx.filter_jit(function, **options)

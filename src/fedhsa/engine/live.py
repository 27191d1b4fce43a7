"""Runs on live environments, with a stream for every agent of every seed and the usual compiled rounds."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from .. import _own, tree
from .._random import host_generator
from .._types import precision
from ..problems import Problem
from ..problems._live import with_source
from ..sources import Silent
from ..sources.stream import AbstractStream, check_block
from . import batch
from .record import Returns
from .run import Run, _compiled, _Progress


def check_live(problem: Problem, checkpoint: bool, debug: bool) -> None:
    """Raises if the settings of a run are not supported by live environments."""
    streams = problem.streams or []
    if debug:
        raise ValueError("`debug=True` follows one observation at a time through JAX, which live agents do not use.")
    if jax.process_count() > 1:
        raise ValueError("Live environments run in one process. Start it without `--hosts` or `join_processes`.")
    if checkpoint and not all(stream.resumable for stream in streams):
        raise ValueError(
            f"`checkpoint`: the observations of {type(streams[0]).__name__} cannot be saved, because the state of its "
            "environment is unknown. Give the environment `state_names`, the names of the attributes that make up "
            "its state, observe whole episodes (`GymEpisodes`), or leave `checkpoint` out."
        )


def _round(setup, keys, carry, block, index, bound):
    carry = batch.run_round(setup, keys, carry, index, block)
    return batch.mark_diverged(carry, index, bound)


class LiveRun(Run):
    """A simulation whose observations come from streams. All seeds advance together on one device.

    All observations of a round are made under the parameter at its beginning. The source of a `Carry` is the state from
    which the streams continue, if they can be saved.
    """

    def __init__(self, problem: Problem, *others: Any):
        *settings, record, devices = others
        self.measured = {name: made.average for name, made in record.items() if isinstance(made, Returns)}
        compiled = {name: made for name, made in record.items() if name not in self.measured}
        arguments: Any = (*settings, compiled, devices)
        super().__init__(problem, *arguments)
        self.agents = with_source(self.agents, Silent())
        streams = problem.streams or []
        self.streams: list[AbstractStream] = [stream.fresh() for stream in streams for _ in range(self.seeds)]
        self.like, self.order = streams[0].like, list(record)
        self.length = self.algorithm.block_length

    def begin(self, chunk: int | None, restored: tuple | None = None) -> None:
        del chunk  # all seeds run together
        if not restored:
            super().begin(self.seeds)
            records = self.progress.records[0] | self._measure(0, self.progress.carries[0])
            self.progress = self.progress._replace(records=[self._ordered(records)])
            return
        header, leaves, records = restored
        names = sorted(self._saved_by(self.streams[0].fresh(), drawn=True))
        *inner, failed = leaves
        kept = dict(zip(names, inner[len(inner) - len(names) :], strict=True))
        super().begin(self.seeds, (header, [*inner[: len(inner) - len(names)], failed], records))
        for i, stream in enumerate(self.streams):
            agent, seed = divmod(i, self.seeds)
            stream.restore({name: np.asarray(kept[name])[seed, agent] for name in names})
        (carry,) = self.progress.carries
        source = {name: np.swapaxes(np.asarray(value), 0, 1) for name, value in kept.items()}
        self.progress = self.progress._replace(carries=[carry._replace(source=source)])

    def compile(self) -> None:
        """Compiles the round by running it once on zeros and discarding the result."""
        began = time.perf_counter()
        empty = jax.tree.map(lambda x: np.zeros((self.length, *np.shape(x)), np.asarray(x).dtype), self.like)
        jax.block_until_ready(self._play(self.progress.carries[0], [empty] * len(self.streams), self.round))
        self.timings["compile"] += time.perf_counter() - began

    def advance(self, records: int) -> int:
        began = time.perf_counter()
        for _ in range(records):
            (carry,), first = self.progress.carries, self.round
            for t in range(first, first + self.every):
                carry = self._play(carry, self._draw(t, carry), t)
            index = jax.device_put(first + self.every)
            values = _compiled(batch.observe, self.devices[0].platform)(self.setup, carry, index)
            seen = {name: np.asarray(value)[:, None] for name, value in values.items()}
            seen = self._ordered(seen | self._measure(first + self.every, carry))
            carry = carry._replace(source=self._save())
            self.progress = _Progress(first + self.every, [carry], [*self.progress.records, seen])
        self.timings["run"] += time.perf_counter() - began
        return records

    def _play(self, carry: batch.Carry, blocks: Sequence[PyTree], t: int) -> batch.Carry:
        """The state after a round on these blocks, one block for each agent and seed."""
        shape = (self.num_agents, self.seeds)
        stacked = jax.tree.map(lambda x: np.moveaxis(x.reshape(*shape, *x.shape[1:]), 1, 2), tree.stack(blocks))
        block, carry = tree.to_device(stacked, self.dtype), carry._replace(source=())
        play = _compiled(_round, self.devices[0].platform)
        return play(self.setup, self.keys[0], carry, block, jax.device_put(t), self.bound)

    def _draw(self, t: int, carry: batch.Carry) -> list[PyTree]:
        kind = type(self.streams[0])
        with _own.told(f"Round {t + 1}: an environment could not be stepped"), precision():
            blocks = kind.draw_together(self.streams, self._generators("stream", t), self.length, self._thetas(carry))
            return [check_block(block, self.like, self.length) for block in blocks]

    def _measure(self, t: int, carry: batch.Carry) -> dict[str, np.ndarray]:
        """Returns under the current parameters, `(seeds, 1)` or `(seeds, 1, agents)`; infinite for diverged seeds."""
        if not self.measured:
            return {}
        kind = type(self.streams[0])
        with _own.told(f"After round {t}: returns could not be measured"):
            found = kind.returns_together(self.streams, self._generators("returns", t), self._thetas(carry))
        each = np.asarray(found, dtype=np.float64).reshape(self.num_agents, self.seeds).T
        each = np.where(np.asarray(carry.failed)[:, None] >= 0, np.inf, each)[:, None]
        return {name: each.mean(-1) if average else each for name, average in self.measured.items()}

    def _thetas(self, carry: batch.Carry) -> list[np.ndarray]:
        """The parameter that each stream acts on; for diverged seeds, the initial one."""
        lost = np.asarray(carry.failed)[:, None] >= 0
        thetas = np.where(lost, np.asarray(self.theta), np.asarray(carry.server.theta))
        return [thetas[i % self.seeds] for i in range(len(self.streams))]

    def _generators(self, purpose: str, t: int) -> list[np.random.Generator]:
        """The key of each stream. The streams of the first seed are those of a real site."""
        places = (divmod(i, self.seeds) for i in range(len(self.streams)))
        return [host_generator(self.key, purpose, agent, t, *([seed] if seed else [])) for agent, seed in places]

    def _save(self) -> dict[str, np.ndarray] | tuple:
        """The saved states of the streams, `(agents, seeds, ...)`, if all of them can be saved."""
        if not all(stream.resumable for stream in self.streams):
            return ()
        saved = [self._saved_by(stream) for stream in self.streams]
        shape = (self.num_agents, self.seeds)
        return {
            name: np.stack([s[name] for s in saved]).reshape(*shape, *np.shape(saved[0][name])) for name in saved[0]
        }

    def _saved_by(self, stream: AbstractStream, drawn: bool = False) -> dict[str, np.ndarray]:
        if drawn:  # a stream may have no state before it has started
            generator, theta = np.random.default_rng(0), np.asarray(self.theta)
            type(stream).draw_together([stream], [generator], 1, [theta])
        return {name: np.asarray(value) for name, value in stream.save().items()}

    def _ordered(self, records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: records[name] for name in self.order}

"""The agents' side of a round: restore, draw the block, run `local`, save, reply.

A site is a place with one agent or many, whose chains and memories stay there. What it has answered it has saved
before, so it can be killed at any moment, and asked anything twice.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import tree
from .._random import host_generator
from .._types import precision
from ..algorithms import AbstractAlgorithm
from ..engine import batch
from ..problems import AbstractAgent
from .schema import Schema
from .store import Store
from .stream import AbstractStream
from .task import Task
from .wire import Packet, Refused, pack, unpack

log = logging.getLogger("fedhsa.site")
HELLO = "hello"


class State(NamedTuple):
    """Where a site stands. Arrays of agents have axes (agents, 1, ...), as in the engine with one seed."""

    round: int
    attempt: int
    """How often server and site have begun the round; the highest counts."""
    source: PyTree
    """The chains before the round's block, or the block itself where it cannot be made again."""
    before: PyTree
    """The memories before the round, to go back to if it is begun again or did not count."""
    memory: PyTree
    replies: list[bytes]
    """What was answered in this round, to be said again."""
    marks: list[str]
    """Of which messages."""


class Site:
    """Agents at one place, as the server sees them: `answer` takes a message and gives one.

    **Arguments:**

    - `task`: what was agreed on.
    - `agents`: the agents, arrays with a leading axis.
    - `numbers`: which of the federation's agents they are.
    - `store`: where their state is kept.
    - `run`: which run this is; messages of others are refused.
    - `streams`: one for each agent, where observations do not come from the agents' sources.
    """

    def __init__(
        self,
        task: Task,
        agents: AbstractAgent,
        numbers: Sequence[int],
        store: Store,
        run: str,
        streams: Sequence[AbstractStream] | None = None,
    ):
        self.task, self.store, self.run, self.streams = task, store, run, streams
        self.numbers = np.asarray(numbers, dtype=np.int64)
        self.keys = task.keys(self.numbers)
        self.schemas = task.schemas(len(self.numbers))
        self.limit = max(sent.num_bytes for _, sent, _ in self.schemas)
        self.phase: Callable[[str], None] = lambda name: None
        """Called on the way through an answer: received, computed, saved."""
        with precision(task.dtype):
            self.agents = tree.to_device(agents, task.dtype)
            memory = _begin_memory(task.settings, jnp.asarray(task.theta, task.dtype), len(self.numbers))
            source = () if streams else _begin_sources(self.agents, self.keys)
        self.first = State(-1, 0, source, memory, memory, [], [])
        self._memory_schema = Schema(memory)
        self._source_schema = Schema(self._block_like() if streams else source)
        self._state, self._loaded = self.first, False
        self._block: tuple[int, Any, Any] | None = None  # round, chains after it, block

    def answer(self, data: bytes) -> bytes:
        """The reply to a message, or a refusal that says why; never an error."""
        packet = Packet({}, {})
        try:
            packet = unpack(data, self.limit)
            with self.store.alone(), precision(self.task.dtype):
                return self._answer(packet, hashlib.sha256(data).hexdigest())
        except Refused as refused:
            code, reason = refused.code, refused.reason
            log.warning("refused a message (%s): %s", code, reason)
        except Exception as error:
            # The words of an error in the user's code may hold private data: they stay here.
            code, reason = "failed", f"{type(error).__name__}; see the log of the site"
            log.exception("could not answer")
        return pack(self._header("refusal", packet.header, code=code, reason=reason), {})

    def _answer(self, packet: Packet, mark: str) -> bytes:
        header = packet.header
        if (header.get("run"), header.get("task")) != (self.run, self.task.digest):
            raise Refused(
                "foreign", "the message belongs to another run, or the settings here differ from the server's"
            )
        if header.get("kind") == HELLO:
            return pack(self._header("present", header, round=self._restore().round), {})
        t, attempt, number, counted = _whole(header, "round", "attempt", "exchange", "counted")
        if header.get("kind") != "request" or not 0 <= number < len(self.schemas):
            raise Refused("malformed", "not a request for an exchange of this algorithm")
        name, sent, _ = self.schemas[number]
        if header.get("name") != name:
            raise Refused("foreign", f"exchange {number} is {name!r} here, not {header.get('name')!r}")
        message = sent.join(packet.arrays)
        self.phase("received")
        state = self._restore()
        if (t, attempt) < (state.round, state.attempt):
            raise Refused("stale", f"round {t} was asked for again, but the site stands at round {state.round}")
        if (t, attempt) > (state.round, state.attempt):
            state = self._begin(state, t, attempt, counted)
        answered = len(state.replies)
        if number < answered:
            if state.marks[number] != mark:
                raise Refused("conflict", f"exchange {name!r} of round {t} was answered to another message")
            return state.replies[number]
        if number > answered:
            raise Refused("missed", f"exchange {name!r} of round {t} follows one that was not answered here")
        return self._compute(state, header, message, mark)

    def _begin(self, state: State, t: int, attempt: int, counted: int) -> State:
        """The state in which a round is begun: for the first time, or once more with the same observations."""
        if counted > state.round:
            raise Refused("lost", f"the server counted round {counted}, but what is saved here ends at {state.round}")
        if t == state.round:
            return state._replace(attempt=attempt, memory=state.before, replies=[], marks=[])
        memory = state.memory if counted == state.round else state.before  # a round that did not count leaves no trace
        drawn = state.source if state.round < 0 or self.streams else self._draw(state)[0]
        source = self._draw_live(t) if self.streams else drawn
        return State(t, attempt, source, memory, memory, [], [])

    def _compute(self, state: State, header: dict[str, Any], message: PyTree, mark: str) -> bytes:
        number = len(state.replies)
        _, _, expected = self.schemas[number]
        block = state.source if self.streams else self._draw(state)[1]
        arguments = (self.task.settings, number, self.agents, self.keys, message, state.memory, block)
        values, memory = _local(*arguments, np.asarray(state.round), self.numbers, self.task.num_agents)
        arrays = expected.split(values)
        try:
            expected.join(arrays)
        except Refused as refused:
            raise Refused("diverged", f"the reply cannot be sent: {refused.reason}. Is the step too large?") from None
        self.phase("computed")
        reply = pack(self._header("reply", header), arrays)
        state = state._replace(memory=memory, replies=[*state.replies, reply], marks=[*state.marks, mark])
        self._save(state)
        self.phase("saved")
        return reply

    def _draw(self, state: State) -> tuple[PyTree, PyTree]:
        """The chains after the state's round, and its block; from memory, if this process has drawn it."""
        if self._block is None or self._block[0] != state.round:
            drawn = _draw(self.task.settings, self.agents, self.keys, state.source, np.asarray(state.round))
            self._block = (state.round, *drawn)
        return self._block[1:]

    def _draw_live(self, t: int) -> PyTree:
        """The streams' block, once per round also if the round cannot be answered."""
        if self._block is None or self._block[0] != t:
            blocks = [
                stream.draw(host_generator(self.task.key, "stream", int(number), t), self.task.algorithm.block_length)
                for stream, number in zip(self.streams or [], self.numbers, strict=True)
            ]
            with_seed = jax.tree.map(lambda x: x[:, :, None], tree.stack(blocks))
            self._block = (t, (), tree.to_device(with_seed, self.task.dtype))
        return self._block[2]

    def _block_like(self) -> PyTree:
        shape = (len(self.numbers), self.task.algorithm.block_length, 1)
        likes = [stream.like for stream in self.streams or []]
        return jax.tree.map(lambda x: np.zeros((*shape, *np.shape(x)), np.asarray(x).dtype), likes[0])

    def _header(self, kind: str, asked: dict[str, Any], **more: Any) -> dict[str, Any]:
        echo = {name: asked[name] for name in ("round", "attempt", "exchange", "name") if name in asked}
        numbers = self.numbers.tolist()
        own = {"run": self.run, "task": self.task.digest, "first": numbers[0], "agents": len(numbers)}
        return {"kind": kind, **own, **echo, **more}

    def _save(self, state: State) -> None:
        header = {
            "kind": "site",
            "task": self.task.digest,
            "run": self.run,
            "numbers": self.numbers.tolist(),
            "round": state.round,
            "attempt": state.attempt,
            "marks": state.marks,
        }
        arrays = {f"reply/{i}": np.frombuffer(reply, np.uint8) for i, reply in enumerate(state.replies)}
        for name, part in (("source", state.source), ("before", state.before), ("memory", state.memory)):
            arrays |= {f"{name}/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(part))}
        for i, stream in enumerate(self.streams or []):
            arrays |= {f"stream/{i}/{name}": np.asarray(value) for name, value in stream.save().items()}
        self.store.save(header, arrays)
        self._state, self._loaded = state, True

    def _restore(self) -> State:
        """The state saved last, also if another process has saved it."""
        if self._loaded and not self.store.changed:
            return self._state
        packet = self.store.load()
        self._state, self._loaded, self._block = self.first, True, None
        if packet is not None:
            self._state = self._read(packet)
        return self._state

    def _read(self, packet: Packet) -> State:
        header, arrays = packet
        own = {"kind": "site", "task": self.task.digest, "run": self.run, "numbers": self.numbers.tolist()}
        if any(header.get(name) != value for name, value in own.items()):
            raise ValueError(f"{str(self.store.path)!r} belongs to other agents or another run.")

        def part(name: str, schema: Schema) -> PyTree:
            return schema.structure.unflatten([arrays[f"{name}/{i}"] for i in range(len(schema.leaves))])

        for i, stream in enumerate(self.streams or []):
            start = f"stream/{i}/"
            stream.restore({name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)})
        return State(
            header["round"],
            header["attempt"],
            part("source", self._source_schema),
            part("before", self._memory_schema),
            part("memory", self._memory_schema),
            [arrays[f"reply/{i}"].tobytes() for i in range(len(header["marks"]))],
            header["marks"],
        )


def _whole(header: dict[str, Any], *names: str) -> list[int]:
    values = [header.get(name) for name in names]
    if not all(type(value) is int and -1 <= value < 2**53 for value in values):
        raise Refused("malformed", f"the header must have whole numbers {', '.join(names)}")
    return [value for value in values if isinstance(value, int)]


@eqx.filter_jit
def _begin_memory(algorithm: AbstractAlgorithm, theta: Any, num_agents: int) -> PyTree:
    _, memory = algorithm.init(theta)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_agents, 1, *x.shape)), memory)


_begin_sources = eqx.filter_jit(batch.start_sources)


@eqx.filter_jit
def _draw(algorithm, agents, keys, source, index):
    return batch.draw(agents, algorithm, keys, source, index)


@eqx.filter_jit
def _local(algorithm, number, agents, keys, message, memory, block, index, numbers, num_agents):
    exchange = algorithm.exchanges[number]
    # A message has no axis for seeds but in front of what is each agent's own; replies go without it.
    message = jax.tree.map(lambda x: x[None], message)
    group = len(numbers)
    values, memory = batch.local(exchange, agents, keys, message, memory, block, index, numbers, num_agents, group)
    return jax.tree.map(lambda x: x[:, 0], values), memory

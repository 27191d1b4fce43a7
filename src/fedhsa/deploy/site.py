"""The agents' side of a round: restore, draw the block, run `local`, save, reply.

A site has one or more agents, whose chains and memories stay at the site. It saves every answer before sending it, so
it can be killed at any moment, and every request can be repeated.
"""

import contextlib
import hashlib
import logging
import logging.handlers
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import tree
from .._own import OwnCodeError
from .._random import host_generator
from .._types import precision
from ..algorithms import AbstractAlgorithm, Round
from ..engine import batch
from ..problems import AbstractAgent, Problem
from ..problems._live import with_source
from ..sources import Silent
from ..sources.stream import AbstractStream, check_block
from . import secure as aggregation
from .compiled import Compiled
from .fit import MismatchError
from .limits import MEASURING, Audit, Limits
from .measure import THETA, VALUES, MeasuredAgent, Meter, with_returns
from .privacy import Account
from .schema import Schema
from .store import Store, check_run_name
from .task import Task
from .wire import Packet, RejectedError, pack, unpack, words

LOG_BYTES = 10 * 2**20
"""The largest size of a site's log in bytes before a new file is begun; the previous file is kept."""
log = logging.getLogger("fedhsa.site")
log.addHandler(logging.NullHandler())  # `log_to` selects the file for the log
HELLO, MEASURE = "hello", "measure"
"""Two kinds of messages: the first asks a site to identify itself, the second to measure a parameter only."""
ANSWERS = {
    HELLO: "present",
    MEASURE: "measured",
    aggregation.KEYS: aggregation.OFFER,
    aggregation.ROSTER: aggregation.ACCEPTED,
}
"""The kind of the answer to each kind of message, besides replies to requests."""
JUMP = 2**48
"""The largest jump of the attempt number, 4096 starts of a server, so that a server cannot exhaust the numbers."""


class State(NamedTuple):
    """The state of a site. Arrays of agents have axes (agents, 1, ...), as in the engine with one seed."""

    round: int
    attempt: int
    """The number of the attempt at this round; the highest number counts."""
    source: PyTree
    """The chains before the round's block, or the block itself if it cannot be drawn again."""
    before: PyTree
    """The memories before the round, which are restored if the round is restarted or did not count."""
    memory: PyTree
    replies: list[bytes]
    """The replies of this round, which are sent again if a request is repeated."""
    request_digests: list[str]
    """The digests of the requests that these replies answer."""
    blocks: int = 0
    """The number of blocks of observations drawn so far."""
    restarts: int = 0
    """The number of times that the round was restarted after it was answered."""
    cohort: str = ""
    """With secure aggregation, the sites among which the round was answered."""
    messages: tuple[str, ...] = ()
    """With secure aggregation, the digests of the messages that were answered in this attempt."""
    past: str = ""
    """The digest of all messages on which the memory before the round depends."""
    base: int | None = -1
    """The last round that is known to be part of the memories before this round."""


SAVED = ("round", "attempt", "request_digests", "blocks", "restarts", "base")
SAVED_WITH_MASKS = ("cohort", "messages", "past")
"""The fields of `State` in the header of the file."""


class Site:
    """The agents of one site in one run: `answer` takes a message and returns a message. `Plan.site` makes one.

    **Arguments:**

    - `task`: the task on which server and sites have agreed.
    - `agents`: the agents, as arrays with a leading axis.
    - `numbers`: the numbers of these agents in the federation.
    - `store`: the store of their state.
    - `run`: the name of the run; messages of other runs are rejected.
    - `streams`: one stream for each agent, if observations do not come from the agents' sources.
    - `account`: adds noise to replies, and counts them. Default: no noise.
    - `measured`: each agent's measurements on its own data, or None for agents without. Default: no measurements.
    - `withhold`: whether the measurements stay at the site.
    - `limits`: the limits on the server's requests. Default: `Limits()`.
    - `audit`: the log of everything that is sent. Default: no log.
    - `secure`: masks the replies, so that the server learns only sums. Default: replies are not masked.
    """

    def __init__(
        self,
        task: Task,
        agents: AbstractAgent,
        numbers: Sequence[int],
        store: Store,
        run: str,
        streams: Sequence[AbstractStream] | None = None,
        account: Account | None = None,
        measured: Sequence[MeasuredAgent | None] | None = None,
        withhold: bool = False,
        limits: Limits | None = None,
        audit: Audit | None = None,
        secure: aggregation.Secure | None = None,
    ):
        self.limits, self.audit = limits or Limits(), audit
        self.task, self.store, self.run, self.streams = task, store, check_run_name(run), streams
        self.numbers = np.asarray(numbers, dtype=np.int64)
        _check_numbers(self.numbers, task.num_agents, tree.leading_axis(agents), streams)
        self.keys = task.keys(self.numbers)
        self.schemas = task.schemas(len(self.numbers))
        self._controlled = any(stream.controlled for stream in streams or [])
        if self._controlled:
            _check_controlled(task)
        self._exchanges = task.algorithm.exchanges  # a property that rebuilds them in every call
        self._block_length = task.algorithm.block_length
        if task.secure and secure is None:
            raise ValueError("`secure` is needed: the run is with secure aggregation. Give the site's keys, `Secure`.")
        self.masking = None if secure is None else aggregation.Masking(secure, task, run, self.numbers)
        self.account = account
        if account is not None:
            for _, _, reply_schema in self.schemas:
                account.privacy.check(task.algorithm, reply_schema)
            account.privacy.check_shared(None if secure is None else task.num_agents)
        # The last term is for a parameter to measure.
        self.limit = max(sent.num_bytes for _, sent, _ in self.schemas) + 8 * len(task.theta)
        if secure is not None:
            self.limit = max(self.limit, task.num_agents * (aggregation.OFFER_BYTES + 16))
        measured = with_returns(measured, streams, task.key, [int(number) for number in self.numbers])
        withhold = withhold or not self.limits.measures
        self.withhold = withhold and any(measured)
        self._meter = None if withhold or not any(measured) else Meter(measured, task.theta)
        self.phase: Callable[[str], None] = lambda name: None
        """A function that is called at each stage of an answer: received, computed, saved."""
        self._length = None if streams else tree.take(agents, 0).source.length
        with precision(task.dtype):
            self.agents = tree.to_device(agents, task.dtype)
            memory = _begin_memory(task.settings, jnp.asarray(task.theta, task.dtype), len(self.numbers))
            source = () if streams else _begin_sources(self.agents, self.keys)
        fixed = (self.agents, task.settings, self.keys)
        self._next_block = Compiled(batch.draw, *fixed)
        self._locals = [Compiled(_local, i, task.num_agents, self.numbers, *fixed) for i in range(len(self.schemas))]
        self.first = State(-1, 0, source, memory, memory, [], [])
        self._origin = {"kind": "site", "task": task.digest, "run": run}
        """The facts in the header of a saved state by which a site recognises its own."""
        self._first_streams = [stream.save() for stream in streams or []]
        source_like = self._block_like() if streams else source
        self._parts = {"source": Schema(source_like), "before": Schema(memory), "memory": Schema(memory)}
        self._state, self._loaded = self.first, False
        self._out_of_range = 0
        self._block: tuple[int, Any, Any] | None = None  # round, chains after it, block
        self._drawn: dict[tuple[int, int], Any] = {}  # by round and stream, until every stream has returned its block

    def answer(self, data: bytes) -> bytes:
        """Returns the reply to a message, or a rejection with its reason; never raises."""
        packet, extra = Packet({}, {}), {}
        try:
            packet = unpack(data, self.limit)
            asked = self._read_request(packet)
            # A request that was refused before this point leaves no trace, not even a folder.
            placed = asked is not None or self.store.path.parent.is_dir()
            with self.store.alone() if placed else contextlib.nullcontext(), precision(self.task.dtype):
                if asked is None:
                    answer = self._greet(packet)
                else:
                    answer = self._answer(packet.header, *asked, hashlib.sha256(data).hexdigest())
                self._write_down(packet.header, len(answer))
                return answer
        except RejectedError as rejected:
            code, reason = rejected.code, rejected.reason
            extra = rejected.facts
            log.warning("agent %s rejected a message (%s): %s", self.numbers[0], code, reason)
        except Exception as error:
            # A sensor or a disk may recover, but the same code fails again with the same data.
            code, reason = "unavailable" if isinstance(error, OSError) else "failed", public_reason(error)
        answer = pack(self._header("rejection", packet.header, code=code, reason=reason, **extra), {})
        if self.audit is not None:
            self.audit.refused(**self._facts(packet.header, len(answer)), code=code, why=reason)
        return answer

    def _write_down(self, asked: dict[str, Any], size: int) -> None:
        """Records in the audit log the message that is about to be sent; raises if the log cannot be written."""
        if self.audit is not None:
            spent = None if self.account is None else self.account.spent
            facts = self._facts(asked, size)
            kind = ANSWERS.get(asked["kind"], "reply")
            self.audit.sent(kind=kind, **facts, epsilon=spent, block=self._state.blocks)

    def _facts(self, asked: dict[str, Any], size: int) -> dict[str, Any]:
        """The facts that the audit log contains about every answer."""
        known = _echo(asked)
        t = known.get("round")
        about = {"round": None if t is None else t + 1, "exchange": known.get("name")}
        return {"run": self.run, "agent": int(self.numbers[0]), **about, "bytes": size}

    def _read_request(self, packet: Packet) -> tuple[PyTree, np.ndarray | None] | None:
        """The algorithm's message in a request, and the parameter to measure, if any; None for other kinds of messages.

        Raises if the message is not allowed.
        """
        header = packet.header
        if (header.get("run"), header.get("task")) != (self.run, self.task.digest):
            raise RejectedError(
                "foreign", "the message belongs to another run, or the settings here differ from the server's"
            )
        kind = header.get("kind")
        if kind == HELLO and packet.arrays:
            raise RejectedError("malformed", "a greeting carries no arrays")
        if kind == MEASURE:
            self.limits.check_exchange(MEASURING)
            _whole_numbers(header, "round")
        if kind in list(ANSWERS):  # a stranger's value may be one that no dictionary can look up
            return None
        at = self._read_theta(packet)
        numbers = _whole_numbers(header, "round", "attempt", "exchange", "counted", "first", "agents")
        t, _, number, counted, first, agents = numbers
        if (first, agents) != (self.numbers[0], len(self.numbers)):
            raise RejectedError("foreign", f"the message is to {agents} agents from number {first}, who are not here")
        if kind != "request" or not counted < t or not 0 <= number < len(self.schemas):
            raise RejectedError("malformed", "not a request for an exchange of this algorithm")
        name, sent, _ = self.schemas[number]
        if header.get("name") != name:
            raise RejectedError("foreign", f"exchange {number} is {name!r} here, the message names another")
        self.limits.check_exchange(name)
        return sent.join(packet.arrays), at

    def _greet(self, packet: Packet) -> bytes:
        if packet.header["kind"] == HELLO:
            return pack(self._header("present", packet.header, round=self._restore().round), {})
        if packet.header["kind"] in (aggregation.KEYS, aggregation.ROSTER):
            return self._meet(packet.header, packet.arrays)
        extra, arrays = self._measure(self._read_theta(packet), packet.header["round"])
        return pack(self._header("measured", packet.header, **extra), arrays)

    def _answer(self, header: dict[str, Any], message: PyTree, theta: np.ndarray | None, digest: str) -> bytes:
        t, attempt, number = header["round"], header["attempt"], header["exchange"]
        self.phase("received")
        state, name = self._restore(), self.schemas[number][0]
        # The server numbers all attempts of a run, so that a late message is recognised by its number.
        if attempt < state.attempt or (attempt == state.attempt and t != state.round):
            words = f"round {t} was asked for in attempt {attempt}, but the site is at attempt {state.attempt}"
            raise RejectedError("stale", words, newest=state.attempt)
        begins = attempt > state.attempt
        if self.masking is not None and (begins or number >= len(state.replies)):  # earlier answers are only repeated
            if t < state.round:  # its observations may be part of another sum
                raise RejectedError("stale", f"round {t} was asked for after round {state.round}, which is not masked")
            self.masking.check(header.get("cohort"), state.cohort if t == state.round else "")
        missed = RejectedError("missed", f"exchange {name!r} of round {t} follows one that was not answered here")
        if begins:
            if number and self._controlled:  # only the first message contains the parameter of the behaviour policy
                raise missed
            state = self._begin(state, header, message)
        if number > len(state.replies):
            raise missed
        if number < len(state.replies):
            if state.request_digests[number] != digest:
                raise RejectedError("conflict", f"exchange {name!r} of round {t} was answered to another message")
            return state.replies[number]
        return self._compute(state, header, message, digest, theta)

    def _meet(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
        """Returns this site's key for a cohort, or accepts the keys of the other sites."""
        if self.masking is None:
            raise RejectedError("mismatch", "this site was started without secure aggregation")
        self._restore()  # this may create a new key
        if header["kind"] == aggregation.KEYS:
            return pack(self._header(aggregation.OFFER, header), self.masking.offer())
        return pack(self._header(aggregation.ACCEPTED, header, cohort=self.masking.accept(arrays)), {})

    def _begin(self, state: State, header: dict[str, Any], message: PyTree) -> State:
        """The state in which a round starts, or restarts with the same observations."""
        t, attempt, counted = header["round"], header["attempt"], header["counted"]
        if attempt > state.attempt + JUMP:
            raise RejectedError("malformed", f"attempt {attempt} cannot follow {state.attempt}")
        if counted > state.round:
            raise RejectedError(
                "lost", f"the server counted round {counted}, but what is saved here ends at {state.round}"
            )
        if counted != state.round and state.base not in (None, counted):
            if counted > (state.base or 0):
                raise RejectedError("lost", f"the server counted round {counted}, of which nothing is left here")
            raise RejectedError(
                "stale",
                f"the server counted round {counted}, which is not the last here: this site is ahead of this server's "
                "checkpoint. Was an old one restored? Use the latest, or start a new run",
            )
        if t <= state.round:  # a later round that did not count leaves no trace
            restarts = state.restarts + bool(state.replies)
            self.limits.check_restarts(restarts, t)
            self._block = self._block if t == state.round else None
            begun = {"round": t, "attempt": attempt, "memory": state.before, "replies": [], "request_digests": []}
            return state._replace(**begun, restarts=restarts, messages=())
        memory, base = (state.memory, counted) if counted == state.round else (state.before, state.base)
        past = state.past
        if self.masking is not None and self.masking.remembers and counted == state.round >= 0:
            past = aggregation.chain(state.past, state.messages)
        if self.limits.rounds is not None:
            elsewhere = 0 if self.audit is None else self.audit.rounds(int(self.numbers[0]), other_than=self.run)
            self.limits.check_rounds(elsewhere + state.blocks)
        blocks = state.blocks + 1
        if self._length is not None and blocks * self._block_length > self._length:
            raise RejectedError("exhausted", "the recorded observations are used up: ask for fewer rounds")
        if self.streams:
            # Saved immediately, since observations cannot be repeated.
            state = State(t, attempt, self._draw_live(t, message), memory, memory, [], [], blocks, past=past, base=base)
            self._save(state)
            return state
        source = state.source if state.round < 0 else self._draw(state)[0]
        return State(t, attempt, source, memory, memory, [], [], blocks, past=past, base=base)

    def _compute(self, state: State, header: dict[str, Any], message: PyTree, digest: str, at: Any) -> bytes:
        number = len(state.replies)
        exchange, (_, sent_schema, reply_schema) = self._exchanges[number], self.schemas[number]
        block = state.source if self.streams else self._draw(state)[1]
        values, memory = self._locals[number](message, state.memory, block, np.asarray(state.round))
        arrays = reply_schema.split(values)
        if self.account is not None:
            self.account.charge()
            arrays = self.account.privacy.apply(arrays, exchange.sum_bits, self.task.num_agents)
        if exchange.sum_bits is not None:
            self._check_range(arrays, exchange.sum_bits)
        try:
            reply_schema.join(arrays, finite=not exchange.bears_any_reply)
        except RejectedError:
            raise self._diverged(arrays) from None
        if self.masking is not None:
            sent = aggregation.message_digest(sent_schema.split(message))
            state = state._replace(cohort=self.masking.members, messages=(*state.messages, sent))
            facts = (number, state.round, state.attempt, header["name"], state.past, state.messages)
            arrays = self.masking.apply(arrays, facts)
        self.phase("computed")
        extra, measured = self._measure(at, state.round)
        reply = pack(self._header("reply", header, **extra), {**arrays, **measured})
        state = state._replace(
            memory=memory, replies=[*state.replies, reply], request_digests=[*state.request_digests, digest]
        )
        self._save(state)
        self.phase("saved")
        return reply

    def _check_range(self, arrays: dict[str, np.ndarray], bits: int) -> None:
        """Raises if a reply has numbers that do not fit into the sum; the number of such answers is limited."""
        if self.masking is not None and self._out_of_range >= aggregation.REFUSALS:
            raise RejectedError(
                "limit",
                f"replies of this site were out of range {aggregation.REFUSALS} times in this run, each of which told "
                "something of them: it takes part again after a restart",
            )
        try:
            aggregation.check_range(arrays, bits, self.task.num_agents, self.numbers)
        except RejectedError:
            self._out_of_range += 1
            raise

    def _diverged(self, arrays: dict[str, np.ndarray]) -> RejectedError:
        """Raises with the agents whose replies have numbers that are not finite."""
        agents = len(self.numbers)
        finite = [np.isfinite(a.reshape(agents, -1)).all(axis=1) for a in arrays.values() if a.dtype.kind == "f"]
        whose = self.numbers[~np.all(finite, axis=0)].tolist()
        its = "its reply" if agents == 1 else f"the reply of agent {', '.join(map(str, whose[:10]))}"
        words = f"{its} has numbers that are not finite: a missing value in the data, or too large a step"
        return RejectedError("diverged", words, diverged=whose)

    def _read_theta(self, packet: Packet) -> np.ndarray | None:
        """The parameter that the message asks the site to measure."""
        theta = packet.arrays.pop(THETA, None)
        if theta is not None and (theta.shape != self.task.theta.shape or theta.dtype != np.float64):
            raise RejectedError("malformed", f"the parameter to measure has shape {theta.shape}")
        return theta

    def _measure(self, theta: np.ndarray | None, t: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The measurements in a reply: names in its header, and one array; empty if none were requested."""
        if theta is None:
            return {}, {}
        if self._meter is None:
            return {"withheld": True} if self.withhold else {}, {}
        try:
            values = self._meter(theta, t)
        except Exception as error:  # the run can continue without measurements
            public_reason(error)
            return {}, {}
        return {"measures": self._meter.names}, {VALUES: values}

    def _draw(self, state: State) -> tuple[PyTree, PyTree]:
        """The chains after the state's round, and its block, which is drawn only once per process."""
        if self._block is None or self._block[0] != state.round:
            self._block = (state.round, *self._next_block(state.source, np.asarray(state.round)))
        return self._block[1:]

    def _draw_live(self, t: int, message: PyTree) -> PyTree:
        """The streams' block, which is drawn once per round even if another stream or the answer fails."""
        length = self._block_length
        for i, stream in enumerate(self.streams or []):
            if (t, i) not in self._drawn:
                generator = host_generator(self.task.key, "stream", int(self.numbers[i]), t)
                draw: Any = stream.draw
                known = (np.asarray(jax.tree.leaves(message)[0]),) if stream.controlled else ()
                self._drawn[t, i] = check_block(draw(generator, length, *known), stream.like, length)
        blocks = [self._drawn[t, i] for i in range(len(self.numbers))]
        with_seed = jax.tree.map(lambda x: x[:, :, None], tree.stack(blocks))
        return tree.to_device(with_seed, self.task.dtype)

    def _block_like(self) -> PyTree:
        shape, like = (len(self.numbers), self._block_length, 1), (self.streams or [])[0].like
        return jax.tree.map(lambda x: np.zeros((*shape, *np.shape(x)), np.asarray(x).dtype), like)

    def _header(self, kind: str, asked: dict[str, Any], **more: Any) -> dict[str, Any]:
        own = {"run": self.run, "task": self.task.digest, "first": int(self.numbers[0]), "agents": len(self.numbers)}
        return {"kind": kind, **own, **_echo(asked), **more}

    def _save(self, state: State) -> None:
        names = SAVED if self.masking is None else (*SAVED, *SAVED_WITH_MASKS)
        header = {**self._origin, **{name: getattr(state, name) for name in names}}
        arrays: dict[str, np.ndarray] = {"numbers": self.numbers}
        arrays |= {f"reply/{i}": np.frombuffer(reply, np.uint8) for i, reply in enumerate(state.replies)}
        for name in self._parts:
            leaves = jax.tree.leaves(getattr(state, name))
            arrays |= {f"{name}/{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        for i, stream in enumerate(self.streams or []):
            arrays |= {f"stream/{i}/{name}": np.asarray(value) for name, value in stream.save().items()}
        self.store.save(header, arrays)
        self._state, self._loaded = state, True
        self._drawn.clear()

    def _restore(self) -> State:
        """Loads the state that this or another process saved last."""
        if self._loaded and not self.store.changed:
            return self._state
        gone, self._loaded, self._block = self._loaded, False, None
        if self.masking is not None:
            self.masking.renew()  # the state may be older than the last reply, and no mask may be used for two values
        self._drawn.clear()
        packet = self.store.load()
        self._state = self.first if packet is None else self._read(packet)
        if packet is None and gone:  # the file was removed
            for stream, start in zip(self.streams or [], self._first_streams, strict=True):
                stream.restore(start)
        self._loaded = True
        return self._state

    def _read(self, packet: Packet) -> State:
        header, arrays = packet
        same = np.array_equal(arrays.get("numbers", ()), self.numbers)
        if not same or any(header.get(name) != value for name, value in self._origin.items()):
            log.error("%s belongs to other agents or another run", self.store.path)
            raise RejectedError("foreign", "what is saved there belongs to other agents or another run")
        for i, stream in enumerate(self.streams or []):
            start = f"stream/{i}/"
            stream.restore({name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)})
        parts = {
            name: schema.structure.unflatten([arrays[f"{name}/{i}"] for i in range(len(schema.leaves))])
            for name, schema in self._parts.items()
        }
        replies = [arrays[f"reply/{i}"].tobytes() for i in range(len(header["request_digests"]))]
        # Files of earlier versions have fewer entries, and no base is known for them.
        saved = {"base": None} | {name: header[name] for name in (*SAVED, *SAVED_WITH_MASKS) if name in header}
        return State(**parts, replies=replies, **{**saved, "messages": tuple(header.get("messages", ()))})


def agents_of(problem: Problem, numbers: Sequence[int]) -> tuple[AbstractAgent, list[AbstractStream] | None]:
    """Some of a problem's agents on flat vectors, with new streams for live agents."""
    agents, streams = tree.take(problem.flat_agents, np.asarray(numbers)), problem.streams
    if streams is None:
        return agents, None
    return with_source(agents, Silent()), [streams[number].fresh() for number in numbers]


def failure_reply(data: bytes, number: int, error: Exception) -> bytes:
    """The rejection that a site sends if its one agent could not be built."""
    try:
        asked = unpack(data).header
    except RejectedError:
        asked = {}
    of_run = {name: words(asked.get(name), "")[:64] for name in ("run", "task")}
    own = {**of_run, "first": number, "agents": 1}
    if isinstance(error, MismatchError):
        log.error("%s", error)
        code, reason = "mismatch", str(error)
    elif isinstance(error, RejectedError):
        log.warning("rejected a message (%s): %s", error.code, error.reason)
        code, reason = error.code, error.reason
    else:
        code, reason = "failed", public_reason(error)
    return pack({"kind": "rejection", **own, **_echo(asked), "code": code, "reason": words(reason)}, {})


def public_reason(error: Exception) -> str:
    """The part of an error in user code that other machines may see; the message may be private and is not sent."""
    told = f"{type(error).__name__}: {str(error)[:1000]}"
    if [told] == _told:
        log.error("could not answer, as before: %s", told)
    else:
        log.error("could not answer", exc_info=error)
    _told[:] = [told]
    raised = error.__cause__ if isinstance(error, OwnCodeError) else error
    kind = os.strerror(raised.errno) if isinstance(raised, OSError) and raised.errno else type(raised).__name__
    return f"{kind}; see the log of the site"


def in_words(error: Exception) -> str:
    """An error in one line: its message if it was written for the user, otherwise its type and first words."""
    first = str(error).strip().splitlines()[:1]
    words = " ".join(first) or "no message"
    return words if isinstance(error, ValueError) else f"{type(error).__name__}: {words}"


_told: list[str] = []
"""The last error whose traceback was logged, so that the log does not repeat it."""


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """A rotating log that only its owner can read."""

    def _open(self) -> Any:
        return open(self.baseFilename, self.mode, encoding=self.encoding, opener=lambda n, f: os.open(n, f, 0o600))


def log_to(path: pathlib.Path) -> Callable[[], None]:
    """Writes the log of this process's sites, with tracebacks of user code, to a private file.

    Returns a function that ends the logging.
    """
    if any(getattr(handler, "baseFilename", None) == str(path.absolute()) for handler in log.handlers):
        return lambda: None
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    handler = _PrivateLog(path, encoding="utf-8", delay=True, maxBytes=LOG_BYTES, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.handleError = lambda record: None  # a full disk is reported elsewhere
    log.addHandler(handler)

    def end() -> None:
        log.removeHandler(handler)
        handler.close()

    return end


def _whole_numbers(header: dict[str, Any], *names: str) -> list[int]:
    values = [header.get(name) for name in names]
    if not all(type(value) is int and -1 <= value < 2**53 for value in values):
        raise RejectedError("malformed", f"the header must have whole numbers {', '.join(names)}")
    return [value for value in values if isinstance(value, int)]


def _echo(asked: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that a reply repeats; other fields may contain anything and are left out."""
    numbers = {name: asked.get(name) for name in ("round", "attempt", "exchange")}
    words = {name: asked.get(name) for name in ("name", "token")}
    return {name: value for name, value in numbers.items() if type(value) is int and -1 <= value < 2**53} | {
        name: value for name, value in words.items() if isinstance(value, str) and len(value) <= 100
    }


def _check_numbers(numbers: np.ndarray, num_agents: int, found: int, streams: Sequence[AbstractStream] | None) -> None:
    if not (numbers.ndim == 1 and len(numbers) and numbers.min() >= 0 and numbers.max() < num_agents):
        raise ValueError(f"`numbers` must say which of the agents 0 to {num_agents - 1} are here, got {numbers}.")
    if found != len(numbers) or (streams is not None and len(streams) != len(numbers)):
        of_streams = "" if streams is None else f" and {len(streams)} streams"
        raise ValueError(f"`agents` must be as many as `numbers`: {len(numbers)}, got {found}{of_streams}.")


def _check_controlled(task: Task) -> None:
    """Raises if the algorithm's first message does not begin with the parameter that the behaviour policy needs."""
    with precision(task.dtype):
        theta = jnp.arange(1, 1 + len(task.theta), dtype=task.dtype)  # values that can be recognised
        server, _ = task.settings.init(theta)
        keys = task.keys(np.arange(1))
        round = Round(jnp.asarray(0), keys.server[0], num_agents=task.num_agents)
        message = task.settings.exchanges[0].send(server, round)
    first = jax.tree.leaves(message)[:1]
    if not (first and np.array_equal(first[0], theta)):
        raise ValueError(
            "`streams`: behaviour depends on the parameter, with which the messages of "
            f"{type(task.algorithm).__name__} do not begin. Use FedHSA or LocalSA, or a fixed policy."
        )


@eqx.filter_jit
def _begin_memory(algorithm: AbstractAlgorithm, theta: Any, num_agents: int) -> PyTree:
    _, memory = algorithm.init(theta)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_agents, 1, *x.shape)), memory)


_begin_sources = eqx.filter_jit(batch.start_sources)


def _local(number, num_agents, numbers, agents, algorithm, keys, message, memory, block, index):
    exchange = algorithm.exchanges[number]
    # Only the parts of a message that differ between agents have an axis for seeds; replies have none.
    message = jax.tree.map(lambda x: x[None], message)
    group = len(numbers)
    values, memory = batch.local(exchange, agents, keys, message, memory, block, index, numbers, num_agents, group)
    return jax.tree.map(lambda x: x[:, 0], values), memory

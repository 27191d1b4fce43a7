"""Messages over gRPC with mutual TLS: each node connects to one address of the server and keeps one stream open.

That address offers one method. TLS refuses clients without a certificate of the federation's authority. A client whose
certificate is not in the server's register receives an error. The name in the certificate states which agent a node is,
so no node can act as another.
"""

import contextlib
import os
import pathlib
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # otherwise it prints a line for every stranger

import grpc

from .. import _check
from .._version import __version__
from ..engine import Result
from .measure import MOST
from .missing import Missing
from .node import Node
from .outcome import carry_out
from .plan import Plan
from .server import hello, server_of
from .signing import Identity, Trust, node_name, node_number
from .task import Task
from .transport import AbstractTransport, Refusals
from .wire import HEADER_BYTES, RejectedError, unpack, words

SERVICE, JOIN = "fedhsa.Federation", "Join"
DOCTOR, TIME, VERSION = "fedhsa-doctor", "fedhsa-time", "fedhsa-version"
"""With the first key in its metadata, a node requests only the server's time and version, and keeps its stream."""
LARGEST = 64 * 2**20 + HEADER_BYTES
"""The largest size of one message in bytes."""
ALIVE, GONE = 15.0, 10.0
"""Seconds of silence after which one side sends a ping, and seconds that it waits for the answer."""
AGAIN = 5.0
"""Seconds after which the server checks sites that have not answered."""
GREETING = 10.0
"""Seconds that nodes have to connect at the beginning of a run, before rounds begin without absent nodes."""
MENDED = 2.0
"""Seconds after which a node that could not take part is greeted again."""
REVIEW = 1.0
"""Seconds between checks of the register for removed nodes."""
SOONEST, LATEST = 0.2, 5.0
"""Seconds after which a node reconnects; the pause doubles each time, since a server may be absent for hours."""
REPLACED = 60.0
"""Seconds after which a node reconnects if another process with the same key has replaced it."""
SENTENCES = 1000
"""The largest number of reports about one node's connections."""


def _options() -> list[tuple[str, Any]]:
    """The options that both sides of a connection use."""
    return [
        ("grpc.keepalive_time_ms", int(1000 * ALIVE)),
        ("grpc.keepalive_timeout_ms", int(1000 * GONE)),
        ("grpc.http2.ping_timeout_ms", int(1000 * GONE)),  # without this, the line above has no effect
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),  # pings do not end a connection
        # No compression, so that a small message cannot become a large one.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_metadata_size", 8192),
    ]


class GrpcTransport(AbstractTransport):
    """The server's side: listens on one address and exchanges messages with the nodes that connect to it.

    A node has one stream; if it connects again, the newest stream counts. The server sends a node the next message when
    the node has answered the previous one. An unrequested message ends the node's stream, so that neither side can fill
    the other's memory.

    **Arguments:**

    - `address`: the address on which the server listens, host:port; port 0 takes a free port, see `port`.
    - `keys`: the server's folder, with `server.key`, `server.pem`, `ca.crt`, and the register `nodes`.
    - `task`: the task, from which the size of the largest reply is computed.
    - `hello`: a function that makes the message that asks a node to identify itself.
    - `say`: a function that is called with sentences for the server's user.
    """

    name = "grpc"
    pause = 0.05

    def __init__(
        self,
        address: str,
        keys: str | os.PathLike,
        task: Task,
        hello: Callable[[], bytes],
        say: Callable[[str], None] = lambda sentence: None,
    ):
        self.num_sites, self.hello, self.say = task.num_agents, hello, say
        self._identity, self._trust = Identity.load(keys), Trust.load(keys)
        if self._identity.number is not None:
            raise ValueError(f"`keys`: {os.fspath(keys)!r} holds the keys of a node. Name the server's folder.")
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}  # by site, the newest stream
        self._arrived: queue.SimpleQueue[tuple[int, bytes | None, bytes]] = queue.SimpleQueue()
        """The site, its request (None if the site must be checked again), and its reply."""
        self._refusals = Refusals()
        self._told: dict[int, str] = {}  # by site: the last refusal that was reported
        self._sentences: dict[int, int] = {}  # by site: the number of sentences about it
        self._begun, self._reviewed, self._closed = False, 0.0, False
        reply = max(replies.num_bytes for _, _, replies in task.schemas(1)) + 8 * (MOST + 1)
        sites = task.num_agents
        limits: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", min(reply + HEADER_BYTES, LARGEST)),
            ("grpc.max_send_message_length", LARGEST),
            ("grpc.so_reuseport", 0),  # two servers must not share a port by accident
            ("grpc.max_concurrent_streams", 2),
            ("grpc.max_connection_idle_ms", 60_000),
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_allowed_incoming_connections", 256 + 4 * sites),
        ]
        workers = 2 * sites + 8
        pool = futures.ThreadPoolExecutor(workers, thread_name_prefix="fedhsa-grpc")
        self._server = grpc.server(pool, options=_options() + limits, maximum_concurrent_rpcs=workers)
        handler = grpc.stream_stream_rpc_method_handler(self._join)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {JOIN: handler})])
        pair = (self._identity.key_pem, self._identity.certificate_pem)
        secret = grpc.ssl_server_credentials([pair], self._identity.authority_pem, require_client_auth=True)
        try:
            self.port: int = self._server.add_secure_port(address, secret)
        except RuntimeError as error:
            raise ValueError(
                f"`listen`: cannot listen on {address}. Is the port taken, perhaps by another server of this kind? Is "
                "the address one of this machine's?"
            ) from error
        self.address = f"{address.rpartition(':')[0]}:{self.port}"

    def present(self) -> set[int]:
        deadline = 0.0 if self._begun else time.monotonic() + GREETING
        self._begin()
        while len(found := self._ready()) < self.num_sites and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):  # nothing is lost, since no request has been sent yet
                self._arrived.get(timeout=0.1)
        return found

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        self._begin()
        left, deadline = set(messages), time.monotonic() + min(seconds, AGAIN)
        for site, data in messages.items():
            self._ask(site, data)
        while left and (wait := deadline - time.monotonic()) > 0:
            if self._refusals and any(map(self.hopeless, left)):
                return  # the server decides how to continue
            try:
                site, asked, data = self._arrived.get(timeout=wait)
            except queue.Empty:
                return
            if asked is not None:
                if asked == messages.get(site):
                    left.discard(site)
                yield data
            elif site in left:
                self._ask(site, messages[site])  # the site has returned

    def trouble(self, site: int) -> str | None:
        with self._lock:
            if site in self._refusals:
                return self._refusals[site].reason
            return None if site in self._streams else "the node is not connected"

    def hopeless(self, site: int) -> str | None:
        with self._lock:
            return self._refusals.lasting(site)

    def close(self) -> None:
        with self._lock:
            self._closed, streams = True, list(self._streams.values())
        for stream in streams:
            stream.end()
        self._server.stop(grace=1.0).wait()

    def _begin(self) -> None:
        """Lets nodes in. The server must have its run before this, since the greeting contains the run."""
        if not self._begun:
            self._begun = True
            self._server.start()
            self.say(f"Listening on {self.address} for {self.num_sites} nodes.")
            known = self._trust.register or pathlib.Path()
            unknown = [str(i) for i in range(self.num_sites) if not (known / f"{node_name(i)}.crt").is_file()]
            if unknown:
                self.say(f"No certificate is registered for agent {', '.join(unknown[:10])}: see `fedhsa deploy keys`.")
        self._review()

    def _ready(self) -> set[int]:
        with self._lock:
            return {site for site, stream in self._streams.items() if stream.ready}

    def _ask(self, site: int, data: bytes) -> None:
        with self._lock:
            stream = self._streams.get(site)
            if stream is not None and stream.ready:
                stream.ask(data)

    def _review(self) -> None:
        """Ends the streams of nodes that are no longer in the register, and greets nodes again that failed before."""
        now = time.monotonic()
        if now < self._reviewed + REVIEW:
            return
        self._reviewed = now
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            try:
                self._trust.admit(stream.certificate)
            except RejectedError as rejected:
                stream.end(rejected.reason)
            if not stream.ready and stream.greet_at is not None and now > stream.greet_at:
                self._greet(stream)

    def _greet(self, stream: "_Stream") -> None:
        with self._lock:
            stream.greet_at = None
            stream.ask(self.hello())

    def _join(self, incoming: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Implements the one method: serves a node's stream until it ends."""
        site, certificate = self._admit(context)
        if any(name == DOCTOR for name, _ in context.invocation_metadata()):
            context.set_trailing_metadata(((TIME, f"{time.time():.3f}"), (VERSION, __version__)))
            return
        stream = _Stream(site, certificate)
        with self._lock:
            before, self._streams[site] = self._streams.get(site), stream
            self._refusals.pop(site, None)  # the cause may have been repaired
        if before is not None:
            before.end("another process with this node's key has connected since")
        if not context.add_callback(lambda: self._leave(stream)):
            return
        threading.Thread(target=self._read, args=(stream, incoming), daemon=True).start()
        self._greet(stream)
        yield from iter(stream.outgoing.get, None)
        if stream.why is not None:
            context.abort(grpc.StatusCode.ABORTED, stream.why)

    def _admit(self, context: grpc.ServicerContext) -> tuple[int, bytes]:
        """The agent that a certificate names, if it is in the register and of this run."""
        certificate = bytes(next(iter(context.auth_context().get("x509_pem_cert", [])), b""))
        try:
            name = self._trust.admit(certificate)
            site = node_number(name)
            if site is None or site >= self.num_sites:
                raise RejectedError("foreign", f"{name} is none of the {self.num_sites} agents of this run")
            return site, certificate
        except RejectedError as rejected:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, rejected.reason)

    def _read(self, stream: "_Stream", incoming: Iterator[bytes]) -> None:
        with contextlib.suppress(Exception):  # the stream has ended, and the node receives the reason
            for data in incoming:
                with self._lock:
                    asked = stream.answered()
                if asked is None:
                    stream.end("a message came that nobody had asked for")
                    return
                if stream.ready:
                    self._arrived.put((stream.site, asked, data))
                else:
                    self._introduce(stream, data)

    def _introduce(self, stream: "_Stream", data: bytes) -> None:
        """Reads a node's answer to the greeting: it takes part, or it gives the reason why it cannot."""
        try:
            header = unpack(data, 0).header
        except RejectedError as rejected:
            header = {"reason": rejected.reason}
        if header.get("kind") == "present" and header.get("first") == stream.site:
            with self._lock:
                stream.ready = True
                self._refusals.pop(stream.site, None)
                self._told.pop(stream.site, None)
            self._tell(stream.site, "is here.")
        else:
            code, reason = words(header.get("code"), ""), words(header.get("reason"))
            with self._lock:
                times = self._refusals.note(stream.site, reason, code)
                stream.greet_at = time.monotonic() + (MENDED if times == 1 else 30 * MENDED)
            if times < 2 and self._told.get(stream.site) != reason:  # reported once, however often the node connects
                self._told[stream.site] = reason
                self._tell(stream.site, f"does not take part: {reason}")
        self._arrived.put((stream.site, None, b""))

    def _leave(self, stream: "_Stream") -> None:
        stream.end()
        with self._lock:
            mine = self._streams.get(stream.site) is stream
            if mine:
                del self._streams[stream.site]
            tell = mine and stream.ready and not self._closed
        if tell:
            self._tell(stream.site, f"is gone: {stream.why}." if stream.why else "is gone.")

    def _tell(self, site: int, what: str) -> None:
        """Reports an event of a node. The number of reports is limited, so that no node can fill a log."""
        self._sentences[site] = told = self._sentences.get(site, 0) + 1
        if told <= SENTENCES:
            self.say(f"Agent {site} {what}" + (" No more is told of it." if told == SENTENCES else ""))


def federate_on_grpc(
    plan: Plan,
    *,
    rounds: int,
    listen: str,
    keys: str | os.PathLike,
    folder: str | os.PathLike,
    missing: Missing | None = None,
    resume: bool = False,
    watch: Callable[[dict[str, Any]], None] | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    command: str = "",
    sync: bool = True,
    **options: Any,
) -> Result:
    """Runs a plan as the server, with nodes that connect to this process.

    The results equal those of `simulate` with one seed. Server and nodes can be killed and restarted at any moment.

    **Arguments:**

    - `plan`: the plan. Nodes receive it without the paths of files, and use their own code where it names any.
    - `rounds`: the total number of rounds.
    - `listen`: the address, host:port; `0.0.0.0` stands for all addresses of this machine.
    - `keys`: the server's folder that `fedhsa deploy keys` made.
    - `folder`: the folder for checkpoint, log and results.
    - `missing`, `watch`, `options`: further arguments of `Server`.
    - `resume`: whether to continue the run in `folder`; `rounds` may be larger than before.
    - `say`: a function that is called with a sentence when a node connects or leaves.
    - `command`: the command that the manifest in `folder` records.
    - `sync`: whether the checkpoint must survive a loss of power, and not only the end of the process.
    """
    _check.count("rounds", rounds)
    home = pathlib.Path(folder)
    transport = GrpcTransport(listen, keys, plan.task, lambda: hello(plan.task, server.run_id, plan), say)
    try:
        server = server_of(plan, transport, missing=missing, folder=home, watch=watch, **options)
        if server.store is not None:
            server.store.sync = sync
        return carry_out(plan, server, rounds, home, resume, command)
    finally:
        transport.close()


class _Stream:
    """One node's stream at the server: at most one message awaits its reply, and at most one waits behind it."""

    def __init__(self, site: int, certificate: bytes):
        self.site, self.certificate = site, certificate
        self.ready = False
        """Whether the node has confirmed that it takes part."""
        self.greet_at: float | None = None
        self.why: str | None = None
        """The reason for which the server ended the stream, if it did."""
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._asked: bytes | None = None
        self._next: bytes | None = None

    def ask(self, data: bytes) -> None:
        """Sends a message now, or as soon as the previous one is answered; only the latest waiting message is kept."""
        if self._asked is None:
            self._asked = data
            self.outgoing.put(data)
        else:
            self._next = None if data == self._asked else data

    def answered(self) -> bytes | None:
        """Returns the message that a reply answers, or None; sends the waiting message."""
        asked, self._asked = self._asked, None
        if asked is not None and self._next is not None:
            self._asked, self._next = self._next, None
            self.outgoing.put(self._asked)
        return asked

    def end(self, why: str | None = None) -> None:
        """Ends the stream and sends the node the reason."""
        self.why = self.why or why
        self.outgoing.put(None)


def serve(
    node: Node,
    address: str,
    keys: str | os.PathLike,
    *,
    say: Callable[[str], None] = lambda sentence: None,
    ended: threading.Event | None = None,
) -> None:
    """The node's side: connects to the server, answers its requests, and reconnects whenever the stream ends.

    **Arguments:**

    - `node`: the node that answers.
    - `address`: the server's address, host:port.
    - `keys`: the node's folder, with `key`, `node.crt` and `ca.crt`.
    - `say`: a function that is called with sentences for the node's owner.
    - `ended`: an event; after it is set, the function returns once the current answer is sent. Default: never.
    """
    ended = threading.Event() if ended is None else ended
    told, pause = "", SOONEST
    closed = f"The server at {address} has closed the connection. Waiting for the next run."

    def tell(sentence: str) -> None:
        nonlocal told
        if sentence != told and not (told == closed and "cannot be reached" in sentence):  # expected after a close
            told = sentence  # a long absence of the server is reported once
            say(sentence)

    def connected() -> None:
        nonlocal pause, talking
        pause, talking = SOONEST, True
        tell(f"Connected to {address} as agent {node.number}.")

    identity = Identity.load(keys)
    while not ended.is_set():
        talking = False
        with contextlib.suppress(OSError, ValueError):  # a new certificate is being written
            identity = Identity.load(keys)
        try:
            _converse(node, address, identity, connected, ended)
            tell(closed)
        except grpc.RpcError as error:
            if ended.is_set():
                return
            lost = talking and _code(error) is grpc.StatusCode.UNAVAILABLE
            tell(f"The connection to {address} was lost. Trying again." if lost else _in_words(error, address))
            if _code(error) is grpc.StatusCode.ABORTED:
                pause = REPLACED
        _rest(random.uniform(0.5, 1.0) * pause, pathlib.Path(keys), ended)
        pause = min(2 * pause, LATEST)


def _rest(seconds: float, keys: pathlib.Path, ended: threading.Event) -> None:
    """Waits until the time has passed or a new certificate arrives, which the server may accept."""

    def stamp() -> int | None:
        with contextlib.suppress(OSError):
            return (keys / "node.crt").stat().st_mtime_ns
        return None

    before, deadline = stamp(), time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and stamp() == before:
        if ended.wait(min(left, 1.0)):
            return


def _converse(
    node: Node, address: str, identity: Identity, connected: Callable[[], None], ended: threading.Event
) -> None:
    """One stream, from the greeting to its end."""
    options = [
        *_options(),
        ("grpc.max_receive_message_length", LARGEST),
        ("grpc.max_send_message_length", LARGEST),
        ("grpc.use_local_subchannel_pool", 1),  # every attempt makes a new connection
        ("grpc.enable_http_proxy", 0),
    ]
    pair = (identity.key_pem, identity.certificate_pem)
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(identity.authority_pem, *pair), options) as channel:
        replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stream = channel.stream_stream(f"/{SERVICE}/{JOIN}")(iter(replies.get, None))

        def watch() -> None:
            while stream.is_active():
                if ended.wait(0.5):
                    stream.cancel()

        threading.Thread(target=watch, daemon=True).start()
        try:
            for number, data in enumerate(stream):
                if not number:
                    connected()
                replies.put(node.answer(data))
        finally:
            replies.put(None)


def _code(error: grpc.RpcError) -> Any:
    return error.code() if isinstance(error, grpc.Call) else None


def _in_words(error: grpc.RpcError, address: str) -> str:
    """The reason why there is no connection, and a remedy."""
    code, details = _code(error), words((error.details() if isinstance(error, grpc.Call) else None) or str(error))
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return f"The server at {address} refuses this node: {details}. Trying again."
    if code is grpc.StatusCode.ABORTED:
        return f"The server at {address} has ended the connection: {details}. Trying again in a minute."
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return f"The server at {address} has ended the connection ({details}). Trying again."
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details or "Peer name" in details:
        return (
            f"What answers at {address} is not this federation's server: its certificate is not of the authority in "
            "ca.crt, has expired, or is for another name. Trying again."
        )
    return f"The server at {address} cannot be reached ({details.rpartition(': ')[2][:200].rstrip('.')}). Trying again."

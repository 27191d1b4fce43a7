"""Messages over gRPC with mutual TLS: nodes dial out to one address of the server, and keep one stream open each.

One method is reachable on that address. Whoever has no certificate of the federation's authority does not get past
TLS; whose certificate is not in the server's register is told so. The name in the certificate says which agent a node
is, so nobody can be taken for another.
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

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would print a line for every stranger

import grpc

from .. import _check
from .._version import __version__
from ..engine import Result
from .measure import MOST
from .missing import Missing
from .node import Node
from .outcome import carry_out
from .plan import Plan
from .server import Server, hello
from .signing import Identity, Trust, node_name, node_number
from .task import Task
from .transport import AbstractTransport
from .wire import HEADER_BYTES, RejectedError, unpack, words

SERVICE, JOIN = "fedhsa.Federation", "Join"
DOCTOR, TIME, VERSION = "fedhsa-doctor", "fedhsa-time", "fedhsa-version"
"""With the first in its metadata a node asks for the server's time and version alone; its stream stays as it is."""
LARGEST = 64 * 2**20 + HEADER_BYTES
"""The most bytes of one message."""
ALIVE, GONE = 15.0, 10.0
"""Seconds of silence after which one side asks whether the other is there, and seconds to wait for that answer."""
AGAIN = 5.0
"""Seconds after which the server looks again at sites that have not answered."""
GREETING = 10.0
"""Seconds that nodes have at the beginning of a run to connect, before rounds begin without those that are away."""
MENDED = 2.0
"""Seconds after which a node that could not take part is greeted once more."""
REVIEW = 1.0
"""Seconds between looks at the register for nodes that have been taken out of it."""
SOONEST, LATEST = 0.2, 5.0
"""Seconds after which a node connects again: twice as long each time, since a server may be away for the night."""
REPLACED = 60.0
"""Seconds after which a node tries again whose place another process with the same key has taken."""
SENTENCES = 1000
"""How often the coming and going of one node is told."""


def _options() -> list[tuple[str, Any]]:
    """What both sides of a connection keep to."""
    return [
        ("grpc.keepalive_time_ms", int(1000 * ALIVE)),
        ("grpc.keepalive_timeout_ms", int(1000 * GONE)),
        ("grpc.http2.ping_timeout_ms", int(1000 * GONE)),  # without it the line above is of no effect
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),  # nobody is thrown out for asking
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: what is small on its way may not be large here
        ("grpc.max_metadata_size", 8192),
    ]


class GrpcTransport(AbstractTransport):
    """The server's side: listens on one address, and reaches the nodes that have connected to it.

    A node has one stream; if it connects again, the newest counts. A node is sent its next message when it has answered
    the one before, and what it sends without having been asked ends its stream: so nobody can fill anybody's memory.

    **Arguments:**

    - `address`: where to listen, host:port; port 0 takes a free one, see `port`.
    - `keys`: the server's folder: `server.key`, `server.pem`, `ca.crt`, and the register `nodes`.
    - `task`: what is run, of which the largest reply is known.
    - `hello`: makes the message that asks a node who it is.
    - `say`: called with a sentence for whoever watches the server.
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
        self._streams: dict[int, _Stream] = {}  # by site, the newest
        self._arrived: queue.SimpleQueue[tuple[int, bytes | None, bytes]] = queue.SimpleQueue()
        """Site, what it was asked, or None to look at the site again, and its reply."""
        self._refusals: dict[int, tuple[str, str, int]] = {}  # by site: code and reason, and how often in a row
        self._told: dict[int, str] = {}  # by site: the refusal that was said last
        self._sentences: dict[int, int] = {}  # by site: how much was said of it
        self._begun, self._reviewed, self._closed = False, 0.0, False
        reply = max(replies.num_bytes for _, _, replies in task.schemas(1)) + 8 * (MOST + 1)
        sites = task.num_agents
        limits: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", min(reply + HEADER_BYTES, LARGEST)),
            ("grpc.max_send_message_length", LARGEST),
            ("grpc.so_reuseport", 0),  # two servers must not share a port without knowing
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
            with contextlib.suppress(queue.Empty):  # nothing is lost: nobody has been asked yet
                self._arrived.get(timeout=0.1)
        return found

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        self._begin()
        left, deadline = set(messages), time.monotonic() + min(seconds, AGAIN)
        for site, data in messages.items():
            self._ask(site, data)
        while left and (wait := deadline - time.monotonic()) > 0:
            if self._refusals and any(map(self.hopeless, left)):
                return  # the server decides what that means
            try:
                site, asked, data = self._arrived.get(timeout=wait)
            except queue.Empty:
                return
            if asked is not None:
                if asked == messages.get(site):
                    left.discard(site)
                yield data
            elif site in left:
                self._ask(site, messages[site])  # it has come back

    def trouble(self, site: int) -> str | None:
        with self._lock:
            if site in self._refusals:
                return self._refusals[site][1]
            return None if site in self._streams else "the node is not connected"

    def hopeless(self, site: int) -> str | None:
        with self._lock:
            code, reason, times = self._refusals.get(site, ("", "", 0))
        return reason if code == "mismatch" or times > 1 else None

    def close(self) -> None:
        """Ends all streams, and listens no more."""
        with self._lock:
            self._closed, streams = True, list(self._streams.values())
        for stream in streams:
            stream.end()
        self._server.stop(grace=1.0).wait()

    def _begin(self) -> None:
        """Lets nodes in, which must not happen before the server knows which run they are to be greeted with."""
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
        """Ends the streams of nodes that are no longer in the register, and greets those again that failed before."""
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
        """What the one method does: a node's stream, for as long as it lasts."""
        site, certificate = self._admit(context)
        if any(name == DOCTOR for name, _ in context.invocation_metadata()):
            context.set_trailing_metadata(((TIME, f"{time.time():.3f}"), (VERSION, __version__)))
            return
        stream = _Stream(site, certificate)
        with self._lock:
            before, self._streams[site] = self._streams.get(site), stream
            self._refusals.pop(site, None)  # it may have been mended
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
        except RejectedError as rejected:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, rejected.reason)
        site = node_number(name)
        if site is None or site >= self.num_sites:
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"{name} is none of the {self.num_sites} agents of this run"
            )
        return site, certificate

    def _read(self, stream: "_Stream", incoming: Iterator[bytes]) -> None:
        with contextlib.suppress(Exception):  # the stream has ended; why is told to the node
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
        """Hears what a node says to the greeting: that it is there, or why it cannot take part."""
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
                before = self._refusals.get(stream.site, ("", "", 0))
                times = 1 + before[2] * (before[:2] == (code, reason))
                self._refusals[stream.site] = code, reason, times
                # What fails once is asked again soon: if it then fails in the same way, nobody need wait for it.
                stream.greet_at = time.monotonic() + (MENDED if times == 1 else 30 * MENDED)
            if times < 2 and self._told.get(stream.site) != reason:  # however often it connects
                self._told[stream.site] = reason
                self._tell(stream.site, f"does not take part: {reason}")
        self._arrived.put((stream.site, None, b""))

    def _leave(self, stream: "_Stream") -> None:
        """Forgets a stream that has ended."""
        stream.end()
        with self._lock:
            mine = self._streams.get(stream.site) is stream
            if mine:
                del self._streams[stream.site]
            tell = mine and stream.ready and not self._closed
        if tell:
            self._tell(stream.site, f"is gone: {stream.why}." if stream.why else "is gone.")

    def _tell(self, site: int, what: str) -> None:
        """Says what a node does, but not without end: one that comes and goes must not fill a log."""
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
    """Runs a plan with nodes that connect to this process: the server's whole part.

    The numbers are those of `simulate` with one seed. Server and nodes may be killed at any moment and started again.

    **Arguments:**

    - `plan`: what to run; nodes are told it, but for paths of files, and bring code of their own where it names any.
    - `rounds`: how many rounds in all.
    - `listen`: host:port; `0.0.0.0` stands for all addresses of this machine.
    - `keys`: the server's folder, of `fedhsa deploy keys`.
    - `folder`: for checkpoint, log and results.
    - `missing`: what to do about nodes that do not answer.
    - `resume`: continue the run in `folder`; it may ask for more rounds.
    - `watch`: called with every event. `say`: with a sentence when a node comes or goes.
    - `command`: what the manifest in `folder` says was typed.
    - `sync`: whether the checkpoint must also survive a loss of power, and not only the end of the process.
    - `options`: further ones of `Server`.
    """
    _check.count("rounds", rounds)
    home = pathlib.Path(folder)
    transport = GrpcTransport(listen, keys, plan.task, lambda: hello(plan.task, server.run_id, plan), say)
    sites = [[number] for number in range(plan.num_agents)]
    try:
        given = {"missing": missing, "folder": home, "theta_star": plan.theta_star, "watch": watch, **options}
        server = Server(plan.task, transport, sites, **given)
        if server.store is not None:
            server.store.sync = sync
        return carry_out(plan, server, rounds, home, resume, command)
    finally:
        transport.close()


class _Stream:
    """One node's stream, as the server sees it: at most one message is under way, and one waits behind it."""

    def __init__(self, site: int, certificate: bytes):
        self.site, self.certificate = site, certificate
        self.ready = False
        """Whether the node has said that it takes part."""
        self.greet_at: float | None = None
        self.why: str | None = None
        """Why it was ended, if the server did."""
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._asked: bytes | None = None
        self._next: bytes | None = None

    def ask(self, data: bytes) -> None:
        """Sends a message now, or as soon as the one before it is answered; only the latest is kept."""
        if self._asked is None:
            self._asked = data
            self.outgoing.put(data)
        else:
            self._next = None if data == self._asked else data

    def answered(self) -> bytes | None:
        """The message that a reply answers, or None if there is none; sends the one that waits."""
        asked, self._asked = self._asked, None
        if asked is not None and self._next is not None:
            self._asked, self._next = self._next, None
            self.outgoing.put(self._asked)
        return asked

    def end(self, why: str | None = None) -> None:
        """Ends it, and tells the node why."""
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
    """A node's side: connects to the server, answers what it asks, and connects again whenever the stream ends.

    **Arguments:**

    - `node`: what answers.
    - `address`: the server's, host:port.
    - `keys`: the node's folder: `key`, `node.crt`, `ca.crt`.
    - `say`: called with a sentence for whoever watches the node.
    - `ended`: set it to end this, when what is being answered has been. Default: it never ends.
    """
    ended = threading.Event() if ended is None else ended
    told, pause = "", SOONEST
    closed = f"The server at {address} has closed the connection. Waiting for the next run."

    def tell(sentence: str) -> None:
        nonlocal told
        if sentence != told and not (told == closed and "cannot be reached" in sentence):  # which is to be expected
            told = sentence  # a server that is away for a night is one line
            say(sentence)

    def connected() -> None:
        nonlocal pause, talking
        pause, talking = SOONEST, True
        tell(f"Connected to {address} as agent {node.number}.")

    identity = Identity.load(keys)
    while not ended.is_set():
        talking = False
        with contextlib.suppress(OSError, ValueError):  # a new certificate is just being put there
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
    """Waits, but no longer once a new certificate has come, for which there may be another answer."""

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
        ("grpc.use_local_subchannel_pool", 1),  # a new attempt is one, and not the echo of the last
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
    """Why there is no connection, and what to do about it."""
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

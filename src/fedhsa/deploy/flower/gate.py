"""The gate before a SuperLink: it lets registered nodes reach what nodes need, and refuses everything else.

A SuperLink serves three interfaces on one port, and protects only one of them: everyone who reaches the port can start
apps on every node. So the SuperLink listens on loopback only, and other machines reach the gate. The gate forwards a
request only if

- its path is exactly one of the paths that nodes use (`PATHS`);
- it has the key of a registered node and a recent signature by this key, which is checked before the body is read;
- the node respects its limits: the size of a body, requests per second, connections.

The gate writes every forwarded request from the parsed values, so that the gate and the SuperLink cannot interpret a
request differently.
"""

import asyncio
import base64
import binascii
import collections
import contextlib
import dataclasses
import datetime
import email.utils
import logging
import os
import pathlib
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import h11
import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ..signing import file_state, read_certificate
from .fleet import AHEAD, BEHIND, KEY_HEADER, PATHS, SIGNATURE_HEADER, TIME_HEADER, public_bytes

log = logging.getLogger("fedhsa.gate")

_PASSED_ON = {KEY_HEADER, SIGNATURE_HEADER, TIME_HEADER, "content-type", "accept"}
"""The headers of a request that are forwarded, in addition to Flower's headers with the node's version."""
_GRANULE = 2**16


@dataclasses.dataclass(frozen=True)
class GateLimits:
    """The limits of the gate for one node and for unknown clients."""

    body: int = 64 * 2**20
    """The largest size of a request in bytes."""
    rate: float = 200.0
    """The largest average number of requests of a node per second; bursts may have twice as many."""
    connections: int = 16
    """The largest number of open connections of a node."""
    strangers: int = 16
    """The largest number of open connections from one address that have not shown a node's key."""
    all_strangers: int = 256
    """The largest number of open connections from all addresses that have not shown a node's key."""
    introduction: float = 10.0
    """Seconds to show a node's key after connecting."""
    patience: float = 60.0
    """Seconds that a body may take to arrive, the SuperLink to answer, and a node to send its next request."""


class _RefusedError(Exception):
    """The request is not forwarded."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Register:
    """The public keys of the registered nodes in a folder with a certificate for each, like `node-0.crt`.

    The folder is read again when it has changed.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = pathlib.Path(folder)
        self._seen: list[Any] | None = None
        self._looked = float("-inf")
        self._keys: dict[bytes, tuple[str, ec.EllipticCurvePublicKey]] = {}

    def keys(self) -> Mapping[bytes, tuple[str, ec.EllipticCurvePublicKey]]:
        """The name and key of each node, by the key in Flower's format."""
        if time.monotonic() < self._looked + 1:
            return self._keys
        self._looked = time.monotonic()
        seen = []
        for path in sorted(self.folder.glob("node-*.crt")):
            with contextlib.suppress(FileNotFoundError):
                seen.append((path, file_state(path)))
        if seen != self._seen:
            self._keys, self._seen = {}, seen
            for path, _ in seen:
                try:
                    key = read_certificate(path).public_key()
                except (OSError, ValueError) as error:
                    log.warning("%s is left out: %s", path, error)
                    continue
                if isinstance(key, ec.EllipticCurvePublicKey):
                    self._keys[public_bytes(key)] = path.stem, key
        return self._keys


class Gate:
    """Forwards the requests that registered nodes may send to the SuperLink, and refuses all others.

    `folder` is the server's, with `server.pem`, `server.key`, `ca.crt` and the register of the nodes, and `superlink`
    is the port of the SuperLink on loopback.
    """

    def __init__(self, folder: str | os.PathLike, superlink: int, limits: GateLimits | None = None):
        folder = pathlib.Path(folder)
        self.register, self.limits = Register(folder / "nodes"), limits or GateLimits()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._superlink = f"https://127.0.0.1:{superlink}"
        self._strangers, self._nodes = collections.Counter[str](), collections.Counter[str]()
        self._spent: dict[str, tuple[float, float]] = {}  # by node: its request count, and the time of the count
        self._quiet_until, self._untold = 0.0, 0
        self.refused = 0  # requests and connections

    async def serve(self, host: str, port: int, ready: Callable[[int], object] = lambda port: None) -> None:
        """Serves until it is cancelled; calls `ready` with the port once it listens."""
        most = httpx.Limits(max_connections=200, max_keepalive_connections=50)
        # Proxies from the environment are not used, since the SuperLink is on this machine.
        async with httpx.AsyncClient(
            verify=self._trust, limits=most, timeout=self.limits.patience, trust_env=False
        ) as ask:
            visits: set[asyncio.Future[None]] = set()

            def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                # Not a coroutine, since asyncio prints a traceback for each coroutine when the gate is stopped.
                visits.add(visit := asyncio.ensure_future(self._meet(reader, writer, ask)))
                visit.add_done_callback(visits.discard)

            server = await asyncio.start_server(meet, host, port, limit=_GRANULE)
            async with server:
                ready(server.sockets[0].getsockname()[1])
                await server.serve_forever()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: httpx.AsyncClient) -> None:
        """Serves one connection. It counts as unknown until it has shown a key; unknown connections are limited."""
        address = (writer.get_extra_info("peername") or ["unknown"])[0]
        visit = _Visit(self, reader, writer, ask, address)
        try:
            most = self.limits
            if self._strangers[address] >= most.strangers or self._strangers.total() >= most.all_strangers:
                self.refuse(address, "too many connections that have not shown a node's key")
                return
            visit.count(self._strangers, address)
            async with asyncio.timeout(most.introduction):
                await writer.start_tls(self._context, ssl_handshake_timeout=most.introduction)
            await visit.serve()
        except (OSError, TimeoutError, EOFError, h11.ProtocolError):
            pass  # the client disconnected, was too slow or sent invalid data
        finally:
            visit.count(None, "")
            with contextlib.suppress(OSError):
                writer.transport.abort() if visit.cut else writer.close()

    def identify(self, headers: Mapping[str, str]) -> str:
        """The name of the node whose key signed these headers; raises if there is none."""
        try:
            shown = base64.b64decode(headers[KEY_HEADER], validate=True)
            signature = base64.b64decode(headers[SIGNATURE_HEADER], validate=True)
            said = headers[TIME_HEADER]
            signed = datetime.datetime.fromisoformat(said)
            ahead = (signed - datetime.datetime.now(datetime.UTC)).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error):
            raise _RefusedError(403, "no node's signature") from None
        name, key = self.register.keys().get(shown, ("", None))
        if key is None:
            raise _RefusedError(403, "a key that is not registered")
        try:
            key.verify(signature, said.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise _RefusedError(403, f"a wrong signature for {name}") from None
        if not -BEHIND < ahead < AHEAD:
            which = f"{ahead:.0f} s ahead of" if ahead > 0 else f"{-ahead:.0f} s behind"
            # Only the owner of the key receives this message, and can correct the clock.
            raise _RefusedError(401, f"the clock of {name} is {which} the server's; set both by NTP")
        return name

    def charge(self, name: str) -> None:
        """Counts a request of a node; raises if the node exceeds its rate."""
        now, rate = time.monotonic(), self.limits.rate
        level, then = self._spent.get(name, (0.0, now))
        level = max(0.0, level - (now - then) * rate)
        if level + 1 > 2 * rate:
            raise _RefusedError(429, f"{name} asks more than {rate:g} times per second")
        self._spent[name] = level + 1, now

    def refuse(self, who: str, why: str) -> None:
        """Logs a refusal; several refusals in one second become one line with their number."""
        self.refused += 1
        if (now := time.monotonic()) < self._quiet_until:
            self._untold += 1
            return
        more = f" ({self._untold} more before it)" if self._untold else ""
        log.warning("refused %s: %s%s", who, why, more)
        self._quiet_until, self._untold = now + 1, 0


@dataclasses.dataclass(eq=False)
class _Visit:
    """The state of one connection."""

    gate: Gate
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ask: httpx.AsyncClient
    address: str
    cut: bool = True
    """Whether to abort the connection instead of closing it."""
    _counted: tuple[collections.Counter[str], str] | None = None
    _name: str | None = None

    def count(self, among: collections.Counter[str] | None, name: str) -> None:
        """Moves this connection from its previous count to another."""
        if self._counted is not None:
            counter, before = self._counted
            counter[before] -= 1
            if not counter[before]:
                del counter[before]
        self._counted = None if among is None else (among, name)
        if among is not None:
            among[name] += 1

    async def serve(self) -> None:
        """Answers the requests of the connection in turn."""
        most = self.gate.limits
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_GRANULE)
        while True:
            first = await self._within(most.introduction if self._name is None else most.patience, self._next(http))
            if not isinstance(first, h11.Request):
                return
            try:
                response = await self._pass_on(first, http)
            except _RefusedError as refused:
                self.gate.refuse(self._name or self.address, f"{refused.reason} ({_shown(first)})")
                told = refused.reason.encode() if refused.status in (401, 429) else b""
                await self._say(http, refused.status, [("connection", "close")], told)
                self.cut = False
                return
            kind = response.headers.get("content-type", "application/octet-stream")
            await self._say(http, response.status_code, [("content-type", kind)], response.content)
            if http.our_state is not h11.DONE:
                self.cut = False
                return
            http.start_next_cycle()

    async def _pass_on(self, first: h11.Request, http: h11.Connection) -> httpx.Response:
        path = first.target.decode("ascii", "replace")
        if first.method != b"POST" or path not in PATHS:
            raise _RefusedError(403, "not a path of nodes")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in first.headers}
        if len(headers) != len(first.headers):
            raise _RefusedError(403, "a header given twice")
        name = self.gate.identify(headers)
        if name != self._name:
            if self.gate._nodes[name] >= self.gate.limits.connections:
                raise _RefusedError(429, f"too many connections of {name}")
            self.count(self.gate._nodes, name)
            self._name = name
        self.gate.charge(name)
        body = await self._within(self.gate.limits.patience, self._body(http))
        kept = {name: value for name, value in headers.items() if name in _PASSED_ON or name.startswith("flwr-")}
        try:
            return await self.ask.post(f"{self.gate._superlink}{path}", content=body, headers=kept)
        except httpx.HTTPError:
            raise _RefusedError(503, "the SuperLink does not answer") from None

    async def _body(self, http: h11.Connection) -> bytes:
        body = bytearray()
        while True:
            event = await self._next(http)
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > self.gate.limits.body:
                    raise _RefusedError(413, f"more than {self.gate.limits.body:,} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)
            else:
                raise EOFError

    async def _next(self, http: h11.Connection) -> Any:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await self.reader.read(_GRANULE))
        return event

    async def _say(self, http: h11.Connection, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        date = email.utils.formatdate(usegmt=True)  # lets clients compare clocks
        headers = [("date", date), ("content-length", str(len(body))), *headers]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            if (data := http.send(event)) is not None:
                self.writer.write(data)
        await self._within(self.gate.limits.patience, self.writer.drain())

    async def _within(self, seconds: float, what: Awaitable[Any]) -> Any:
        async with asyncio.timeout(seconds):
            return await what


def _shown(request: h11.Request) -> str:
    """A request line for the log, without control characters."""
    return ascii(f"{request.method.decode('latin-1')} {request.target.decode('latin-1')}"[:100])

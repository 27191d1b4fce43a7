"""Checks whether a machine can take part in a federation; each finding suggests a remedy."""

import contextlib
import datetime
import email.utils
import http.client
import importlib.metadata
import os
import pathlib
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from .._extras import install
from .._files import locked
from .._version import __version__
from .address import split_address
from .keys import members
from .signing import Identity, Trust
from .wire import RejectedError

SOON = 30
"""Days before the expiry of a certificate from which on there is a warning."""
LEAST, LITTLE = 100 * 10**6, 10**9
"""Free bytes on the disk below which there is a failure, and below which there is a warning."""
SLOW = 0.2
"""Seconds to save a small file from which on there is a warning: every answer of a node waits for the disk."""
PATIENCE = 5.0
"""Seconds to wait for the server."""
APART = 2.0
"""Seconds between two clocks from which on there is a warning."""
AHEAD, BEHIND = 5.0, 305.0
"""Seconds that a node's clock may be ahead of or behind a Flower server's, by Flower's own rules."""


class Finding(NamedTuple):
    """The outcome of one check: `state` is ok, warning or failure; `remedy` suggests what to do."""

    what: str
    state: str
    words: str
    remedy: str = ""


def examine(
    folder: str | os.PathLike, *, server: str | None = None, superlink: str | None = None, listen: str | None = None
) -> list[Finding]:
    """Looks at the folder of a node or a server, at this machine and at the way to the server.

    **Arguments:**

    - `folder`: the node's or the server's, with its keys.
    - `server`: the address of a gRPC server, host:port, that this node would connect to.
    - `superlink`: the same of a Flower server.
    - `listen`: the address that this server would listen on.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {str(folder)!r}. Name that of a node or a server, with its keys.")
    found = [*_files(folder), *_certificates(folder), *_packages(superlink is not None), *_disk(folder), *_clock()]
    if listen is not None:
        found += _listening(listen)
    for address, is_flower in ((server, False), (superlink, True)):
        if address is not None:
            found += _way(folder, address, is_flower)
    return found


def _files(folder: pathlib.Path) -> Iterator[Finding]:
    is_server = (folder / "server.key").exists()
    names = ("server.key", "server.pem", "ca.crt") if is_server else ("key", "node.crt", "ca.crt")
    if absent := [name for name in names if not (folder / name).exists()]:
        remedy = "Name the folder of a node or of the server. `fedhsa deploy keys --help` says how one is made."
        if (folder / "request.pem").exists():
            remedy = "The operator has yet to sign request.pem; then `fedhsa deploy keys accept`."
        yield Finding("files", "failure", f"{', '.join(absent)} not in {folder}", remedy)
        return
    secret = folder / names[0]
    for path in (folder, secret):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:  # in a container the group may be this process alone
            state, who = ("failure", "others") if mode & 0o007 else ("warning", "a group")
            right = "700" if path.is_dir() else "600"
            yield Finding("files", state, f"{who} may open {path} (mode {mode:o})", f"Type: chmod {right} {path}")
            return
    yield Finding("files", "ok", f"{', '.join(names)}; {names[0]} can be read by its owner alone")


def _certificates(folder: pathlib.Path) -> Iterator[Finding]:
    try:
        identity = Identity.load(folder)
        trust = Trust(identity.authority)
        trust.admit(identity.certificate_pem)
    except RejectedError as rejected:
        yield Finding("certificate", "failure", rejected.reason, "Ask the operator, or set this machine's clock.")
        return
    except (OSError, ValueError) as error:
        yield Finding("certificate", "failure", str(error))
        return
    number = identity.number
    remedy = "Type: fedhsa deploy keys renew FEDERATION server"
    if number is not None:
        remedy = f"Ask the operator for `fedhsa deploy keys renew FEDERATION {number}`, and accept what it writes."
    yield _lasting("certificate", f"of {identity.name}, ", identity.certificate.not_valid_after_utc, remedy)
    remedy = "Every machine will need new keys: `fedhsa deploy keys create`."
    yield _lasting("authority", "", identity.authority.not_valid_after_utc, remedy)
    if number is not None:
        return
    nodes = members(folder)
    if not nodes:
        yield Finding("register", "failure", "nobody is in it", "Sign the nodes' requests: fedhsa deploy keys sign")
    for member in nodes:
        try:
            trust.admit(member.path.read_bytes())
        except RejectedError as rejected:
            yield Finding("register", "failure", rejected.reason, f"Renew or replace {member.path}.")
    soon = [m for m in nodes if _days_left(m.certificate.not_valid_after_utc) < SOON]
    if soon:
        last = ", ".join(f"{m.name} ({_days_left(m.certificate.not_valid_after_utc):.0f} days)" for m in soon)
        yield Finding("register", "warning", f"soon over: {last}", "Type: fedhsa deploy keys renew FEDERATION NUMBER")
    elif nodes:
        yield Finding("register", "ok", f"agents {', '.join(str(member.number) for member in nodes)}")


def _days_left(end: datetime.datetime) -> float:
    return (end - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400


def _lasting(what: str, name: str, end: datetime.datetime, remedy: str) -> Finding:
    days = _days_left(end)
    words = f"{name}valid for {days:.0f} days, until {end:%Y-%m-%d}"
    return Finding(what, "warning", words, remedy) if days < SOON else Finding(what, "ok", words)


def _packages(flower: bool) -> Iterator[Finding]:
    found = {"fedhsa": __version__}
    for name in ("jax", "cryptography", "grpcio", "flwr"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    words = ", ".join(f"{name} {version}" for name, version in found.items())
    package, extra = ("flwr", "flower") if flower else ("grpcio", "grpc")
    if package not in found:
        yield Finding("packages", "failure", f"{package} is not installed ({words})", f"Install it: {install(extra)}")
    else:
        yield Finding("packages", "ok", words)


def _disk(folder: pathlib.Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    words = f"{free / 1e9:.1f} GB free"
    try:
        begin = time.perf_counter()
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor.") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            taken = time.perf_counter() - begin
            with locked(file.fileno(), wait=False, words=""):
                pass
    except OSError as error:
        remedy = "Keep the state in a folder that can be written."
        yield Finding("disk", "warning", f"{folder}: {error.strerror or error}", remedy)
        return
    words += f", a small file is safe after {1000 * taken:.0f} ms"
    if free < LEAST:
        yield Finding("disk", "failure", words, "Free some space: a node that cannot save its state does not answer.")
    elif free < LITTLE:
        yield Finding("disk", "warning", words, "Free some space before a long run.")
    elif taken > SLOW:
        yield Finding("disk", "warning", words, "Every answer waits for the disk: use a local disk.")
    else:
        yield Finding("disk", "ok", words)


def _clock() -> Iterator[Finding]:
    """Checks whether NTP sets this machine's clock, if the machine reports this."""
    try:
        asked = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return  # there is none in containers, nor elsewhere than on Linux
    if said == "no":
        yield Finding("clock", "warning", "nothing sets it", "Turn NTP on: timedatectl set-ntp true")
    elif said == "yes":
        yield Finding("clock", "ok", "set by NTP")


def _listening(address: str) -> Iterator[Finding]:
    host, port = split_address("listen", address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        remedy = "Another server of yours may be running there; otherwise choose another port or address."
        yield Finding("port", "failure", f"{address}: {error.strerror or error}", remedy)
        return
    yield Finding("port", "ok", f"{address} is free")


def _way(folder: pathlib.Path, address: str, is_flower: bool) -> Iterator[Finding]:
    """Checks the connection to a server: its name, port and certificate, whether it admits this node, and its clock."""
    host, port = split_address("server", address)
    firewall = "Ask the operator for the address, whether the server runs, and which firewalls are between."
    try:
        with socket.create_connection((host, port), PATIENCE) as plain:
            yield Finding("port", "ok", f"{address} can be reached")
            context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
            if not is_flower:
                context.set_alpn_protocols(["h2"])
            with context.wrap_socket(plain, server_hostname=host):
                yield Finding("server", "ok", f"has a certificate of this federation's authority for {host}")
    except ssl.SSLCertVerificationError as error:
        yield Finding("server", "failure", f"{address}: {error.verify_message}", _renewed(error, host))
        return
    except FileNotFoundError:
        return  # ca.crt, which was told
    except socket.gaierror:
        yield Finding("port", "failure", f"there is no machine with the name {host}", firewall)
        return
    except ConnectionRefusedError:
        only = "" if is_flower else "A gRPC server listens only while a run goes on. "
        state = "failure" if is_flower else "warning"
        yield Finding("port", state, f"nothing listens at {address} now", only + firewall)
        return
    except TimeoutError:
        yield Finding("port", "failure", f"no answer from {address} in {PATIENCE:g} s", firewall)
        return
    except (ssl.SSLError, OSError) as error:
        words = f"{address}: {getattr(error, 'reason', None) or error.strerror or error}"
        remedy = f"Another program may be listening there, without encryption. {firewall}"
        yield Finding("server", "failure", words, remedy)
        return
    yield from _gate(folder, host, port) if is_flower else _stream(folder, address)


def _renewed(error: ssl.SSLCertVerificationError, host: str) -> str:
    if error.verify_code in (62, 64):  # of another name, of another address
        return f"The operator adds the name: fedhsa deploy keys renew FEDERATION server --host {host} (and the others)"
    if error.verify_code in (9, 10):  # not yet valid, not any more
        return "Compare the clocks of both machines. Then: fedhsa deploy keys renew FEDERATION server"
    return "It is not the server of this federation, or this node's ca.crt is of another one. Ask the operator."


def _gate(folder: pathlib.Path, host: str, port: int) -> Iterator[Finding]:
    """Checks that the gate of a Flower server refuses a request without a key, and reads its clock."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
    try:
        before = time.time()
        connection.request("GET", "/")
        response = connection.getresponse()
        after = time.time()
    except (OSError, http.client.HTTPException) as error:
        yield Finding("gate", "failure", f"no answer: {error}", "Is it `fedhsa deploy superlink`, behind its gate?")
        return
    finally:
        connection.close()
    if response.status == 403:
        yield Finding("gate", "ok", "refuses strangers")
    else:
        words = f"a stranger is answered with status {response.status}, not refused"
        remedy = "The SuperLink seems to be reachable without a gate: use `fedhsa deploy superlink`."
        yield Finding("gate", "warning", words, remedy)
    if (said := response.getheader("date")) is not None:
        with contextlib.suppress(ValueError, TypeError):
            told = email.utils.parsedate_to_datetime(said).timestamp() + 0.5  # it has whole seconds
            yield _compared(told, before, after, is_flower=True)


def _stream(folder: pathlib.Path, address: str) -> Iterator[Finding]:
    """Checks whether a gRPC server admits this node."""
    try:
        import grpc

        from .grpc import DOCTOR, JOIN, SERVICE, TIME, VERSION
    except ModuleNotFoundError:
        return  # which was told
    try:
        identity = Identity.load(folder)
    except (OSError, ValueError):
        return  # which was told
    pair = (identity.key_pem, identity.certificate_pem)
    before = time.time()
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(identity.authority_pem, *pair)) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{JOIN}")(iter(()), timeout=PATIENCE, metadata=((DOCTOR, "1"),))
        code, words = call.code(), call.details()
        after = time.time()
        said = {name: str(value) for name, value in call.trailing_metadata() or ()}
    if code is not grpc.StatusCode.OK:
        yield Finding("admission", "failure", f"the server says: {words or code}", "Ask the operator.")
    else:
        yield Finding("admission", "ok", f"the server knows this node as {identity.name}")
    with contextlib.suppress(KeyError, ValueError):
        yield _compared(float(said[TIME]), before, after, is_flower=False)
    theirs = said.get(VERSION, __version__)
    if theirs != __version__:
        words = f"the server has fedhsa {theirs}, this machine {__version__}"
        yield Finding("versions", "warning", words, "Install the same version on all machines.")


def _compared(told: float, before: float, after: float, *, is_flower: bool) -> Finding:
    """Compares this machine's clock with the server's, which was read between `before` and `after`."""
    ahead = (before + after) / 2 - told
    words = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    remedy = "Set the clocks of both machines by NTP."
    if is_flower and not -BEHIND < ahead < AHEAD:
        limits = f"Flower refuses nodes that are {AHEAD:g} s ahead or {BEHIND:g} s behind."
        return Finding("clock", "failure", words, f"{limits} {remedy}")
    if abs(ahead) > APART + (after - before):
        return Finding("clock", "warning", words, remedy)
    return Finding("clock", "ok", words)

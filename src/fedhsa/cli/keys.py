"""`fedhsa deploy keys`: the certificates and keys of a federation."""

import dataclasses
import datetime
import pathlib
from collections.abc import Callable
from typing import Annotated, Any

import tyro
from rich.console import Console

from .._check import nearest
from .._extras import need
from .._table import Table
from .errors import UsageError
from .parsing import parse_flags
from .settings import AbstractFlags, flag

HELP = """\
usage: fedhsa deploy keys FOLDER [--nodes N] [--host NAME ...]
       fedhsa deploy keys create|request|sign|accept|renew|exclude|list ...

Manages the certificates and keys of a federation. One authority signs them; the
name in a node's certificate, such as node-0, identifies its agent.

To try it out, make all keys on one machine, in one folder per machine:
  fedhsa deploy keys my-federation --nodes 3 --host 192.0.2.7

Between real sites each node's private key never leaves its machine:
  operator  fedhsa deploy keys create my-federation --host 192.0.2.7
                makes the authority and the server's certificate
  site      fedhsa deploy keys request my-node
                makes a key, and my-node/request.pem, which the site sends to
                the operator; the fingerprint is read out by telephone
  operator  fedhsa deploy keys sign my-federation request.pem --number 0 \\
                --fingerprint ...
                writes server/nodes/node-0.crt, which the operator sends to the
                site and copies to the server's folder `nodes`, the register
  site      fedhsa deploy keys accept my-node node-0.crt

Later:
  add a site                 request, sign with the next number, accept
  change a site's key        request, sign --replace, accept
  renew a certificate        fedhsa deploy keys renew my-federation 0
                             (then accept, at the site)
  renew the server's         fedhsa deploy keys renew my-federation server
  exclude a site             fedhsa deploy keys exclude my-federation 0
  list sites and dates       fedhsa deploy keys list my-federation

Changes of the register take effect from the next message on, also during a run.
Every form explains its settings with `--help`; COMMANDS.txt in each folder lists
the commands for that machine.
"""

_Folder = Annotated[tyro.conf.Positional[pathlib.Path], flag("FOLDER")]
_File = Annotated[tyro.conf.Positional[pathlib.Path], flag("FILE")]
_Host = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


@dataclasses.dataclass(frozen=True)
class CreateSettings(AbstractFlags):
    """Makes the authority of a federation and the certificate of its server, for
    nodes that make their own keys.

    Example:
      fedhsa deploy keys create my-federation --host fed.example.org 192.0.2.7
    """

    command = "deploy keys create"

    folder: Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="FOLDER")] = pathlib.Path("federation")
    """The new folder."""
    host: _Host = ("127.0.0.1",)
    """Names or addresses under which the nodes reach the server."""
    port: int = 8000
    """The server's port."""
    days: int = 365
    """Number of days for which the certificates are valid."""


@dataclasses.dataclass(frozen=True)
class AllSettings(CreateSettings):
    """The settings of `fedhsa deploy keys` without a form."""

    command = "deploy keys"

    nodes: int = 3
    """Number of nodes, each with its own key."""


@dataclasses.dataclass(frozen=True)
class RequestSettings(AbstractFlags):
    """Makes a private key for this node, and a request to send to the operator. If the
    node already has a key, this begins its replacement: the old key stays in use
    until the new certificate is accepted.

    Example:
      fedhsa deploy keys request my-node
    """

    command = "deploy keys request"

    folder: _Folder
    """The node's folder."""


@dataclasses.dataclass(frozen=True)
class SignSettings(AbstractFlags):
    """Signs a node's request, which makes it the agent with this number, and adds its
    certificate to the register, server/nodes.

    Example:
      fedhsa deploy keys sign my-federation request.pem --number 0 \\
          --fingerprint 5cd2-52fb-0ce8-9324-36fa-f8cc-d104-0981
    """

    command = "deploy keys sign"

    folder: _Folder
    """The federation's folder."""
    request: _File
    """The request from the node."""
    number: int
    """The agent's number."""
    fingerprint: Annotated[str | None, flag("DIGITS")] = None
    """The fingerprint that the site read out: the request is signed only if its key has this fingerprint."""
    replace: bool = False
    """Replace the agent's previous key."""
    days: int = 365
    """Number of days for which the certificate is valid."""


@dataclasses.dataclass(frozen=True)
class AcceptSettings(AbstractFlags):
    """Installs the certificate that the operator has sent in this node's folder.

    Example:
      fedhsa deploy keys accept my-node node-0.crt
    """

    command = "deploy keys accept"

    folder: _Folder
    """The node's folder."""
    certificate: _File
    """The certificate from the operator."""


@dataclasses.dataclass(frozen=True)
class RenewSettings(AbstractFlags):
    """Renews the certificate of a node or of the server, for the same key. The old
    certificate stays valid until it expires, so nothing is interrupted.

    Examples:
      fedhsa deploy keys renew my-federation 0
      fedhsa deploy keys renew my-federation server
      fedhsa deploy keys renew my-federation server --host new.example.org
    """

    command = "deploy keys renew"

    folder: _Folder
    """The federation's folder."""
    who: Annotated[tyro.conf.Positional[str], flag("NUMBER|server")]
    """The node's number, or the server."""
    host: Annotated[tuple[str, ...], flag("NAME ...", hint="(as before)")] = ()
    """The server's new names or addresses."""
    new_key: bool = False
    """Also make a new private key for the server. (A node makes its own with `request`.)"""
    days: int = 365
    """Number of days, from today, for which the certificate is valid."""


@dataclasses.dataclass(frozen=True)
class ExcludeSettings(AbstractFlags):
    """Removes a node from the register. The server refuses it from the next message
    on, also during a run.

    Example:
      fedhsa deploy keys exclude my-federation 0
    """

    command = "deploy keys exclude"

    folder: _Folder
    """The federation's folder, or the server's copy of `server`."""
    who: Annotated[tyro.conf.Positional[str], flag("NUMBER")]
    """The node's number."""


@dataclasses.dataclass(frozen=True)
class ListSettings(AbstractFlags):
    """Lists the nodes in the register and the expiry dates of all certificates.

    Example:
      fedhsa deploy keys list my-federation
    """

    command = "deploy keys list"

    folder: _Folder
    """The federation's folder, or the server's copy of `server`."""


def main(args: list[str], console: Console) -> int:
    """Runs `fedhsa deploy keys` with these arguments and returns the exit code."""
    form, rest = (args[0], args[1:]) if args and args[0] in FORMS else ("", args)
    if not form and rest and "/" not in rest[0] and (near := nearest(rest[0], [name for name in FORMS if name])):
        raise UsageError(
            f"fedhsa deploy keys has no form {rest[0]!r}.{near} For a new folder of this name write `./{rest[0]}`."
        )
    kind, run = FORMS[form]
    if not form and {"-h", "--help"} & {*rest}:
        print(HELP, end="")
        return 0
    settings = parse_flags(kind, rest)
    need("cryptography, which makes keys,", "cryptography", "grpc")
    for sentence in run(settings).splitlines():
        console.print(sentence, soft_wrap=True)
    return 0


def _make(settings: AllSettings | CreateSettings) -> str:
    from ..deploy.keys import make_keys

    nodes = settings.nodes if isinstance(settings, AllSettings) else 0
    folder = make_keys(settings.folder, nodes, settings.host, settings.days, port=settings.port)
    return f"Keys: {folder}. {folder / 'COMMANDS.txt'} lists the folders to copy and the commands for each machine."


def _request(settings: RequestSettings) -> str:
    from ..deploy import keys

    asked = keys.request(settings.folder)
    return (
        f"Request: {asked}\n"
        f"Fingerprint: {keys.request_fingerprint(asked)}\n"
        "Send the request to the operator, and read out the fingerprint by telephone. When the certificate has "
        f"arrived, run `fedhsa deploy keys accept {settings.folder} FILE`"
    )


def _sign(settings: SignSettings) -> str:
    from ..deploy import keys

    path = keys.sign(
        settings.folder,
        settings.request,
        settings.number,
        replace=settings.replace,
        days=settings.days,
        expected=settings.fingerprint,
    )
    said = f"Certificate: {path}\nSend it to the site, and copy it to `nodes` in the server's folder."
    if settings.fingerprint is None:
        told = keys.request_fingerprint(settings.request)
        said += (
            f"\nIt was not checked that the site sent this request. Ask the site for its fingerprint; if it is not "
            f"{told}, run `fedhsa deploy keys exclude {settings.folder} {settings.number}`."
        )
    return said


def _accept(settings: AcceptSettings) -> str:
    from ..deploy.keys import accept, fingerprint
    from ..deploy.signing import Identity

    node = Identity.load(accept(settings.folder, settings.certificate))
    return (
        f"This node is agent {node.number}, until {_day(node.certificate.not_valid_after_utc)}.\n"
        f"Authority: {fingerprint(node.authority.public_key())}. The operator's `fedhsa deploy keys list` must show "
        "the same fingerprint."
    )


def _renew(settings: RenewSettings) -> str:
    from ..deploy.keys import renew

    who = settings.who if settings.who == "server" else _number(settings.who)
    if who != "server" and (settings.host or settings.new_key):
        raise UsageError("`host` and `new_key` require `server`. A node makes its own new key with `request`.")
    path = renew(settings.folder, who, days=settings.days, hosts=settings.host or None, new_key=settings.new_key)
    if who == "server":
        return f"Certificate: {path}\nCopy the folder `server` to the server, and restart it."
    return f"Certificate: {path}\nSend it to the site, for `accept`. The old certificate stays valid until it expires."


def _exclude(settings: ExcludeSettings) -> str:
    from ..deploy.keys import exclude

    gone = exclude(settings.folder, _number(settings.who))
    return (
        f"{gone.name} is no longer in the register. If the server has a copy, remove {gone.path.name} from its folder "
        f"`nodes` too.\nOther sites do not read the register: for them the certificate is valid until "
        f"{_day(gone.certificate.not_valid_after_utc)}."
    )


def _list(settings: ListSettings) -> str:
    from ..deploy.keys import fingerprint, members
    from ..deploy.signing import read_certificate

    server = settings.folder / "server" if (settings.folder / "server").is_dir() else settings.folder
    found: list[tuple[str, Any]] = [
        ("authority", read_certificate(server / "ca.crt")),
        ("server", read_certificate(server / "server.pem")),
        *((member.name, member.certificate) for member in members(settings.folder)),
    ]
    rows = [
        (name, _day(certificate.not_valid_after_utc), fingerprint(certificate.public_key()))
        for name, certificate in found
    ]
    return Table(("who", "valid until", "fingerprint of the key"), rows).text()


def _day(when: datetime.datetime) -> str:
    return f"{when:%Y-%m-%d}" + (" (expired)" if when < datetime.datetime.now(datetime.UTC) else "")


def _number(text: str) -> int:
    digits = text.removeprefix("node-")
    if not digits.isdecimal():
        raise UsageError(f"The node must be given by its number, like 0 or node-0, got {text!r}.")
    return int(digits)


FORMS: dict[str, tuple[type[AbstractFlags], Callable[[Any], str]]] = {
    "": (AllSettings, _make),
    "create": (CreateSettings, _make),
    "request": (RequestSettings, _request),
    "sign": (SignSettings, _sign),
    "accept": (AcceptSettings, _accept),
    "renew": (RenewSettings, _renew),
    "exclude": (ExcludeSettings, _exclude),
    "list": (ListSettings, _list),
}
"""The forms of the command, each with its settings and the function whose result is printed."""

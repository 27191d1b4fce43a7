"""`fedhsa deploy keys`: certificates and keys, from the first request to the last exclusion."""

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
from .settings import AbstractFlags

HELP = """\
usage: fedhsa deploy keys FOLDER [--nodes N] [--host NAME ...]
       fedhsa deploy keys create|request|sign|accept|renew|exclude|list ...

Certificates and keys of a federation. One authority signs them; the name in a
node's certificate, node-0, says which agent it is.

To try it out, everything on one machine, with a folder for each other machine:
  fedhsa deploy keys my-federation --nodes 3 --host 192.0.2.7

Between real sites, where each node's private key never leaves its machine:
  operator  fedhsa deploy keys create my-federation --host 192.0.2.7
                makes the authority and the server's certificate
  site      fedhsa deploy keys request my-node
                makes a key, and my-node/request.pem, which goes to the
                operator; the fingerprint goes by telephone
  operator  fedhsa deploy keys sign my-federation request.pem --number 0 \\
                --fingerprint ...
                writes server/nodes/node-0.crt, which goes back to the site
                and to the server's folder `nodes`, the register
  site      fedhsa deploy keys accept my-node node-0.crt

Later:
  another site joins         request, sign with the next number, accept
  a site changes its key     request, sign --replace, accept
  a certificate is to last   fedhsa deploy keys renew my-federation 0
                             (then accept, at the site)
  the server's certificate   fedhsa deploy keys renew my-federation server
  a site leaves              fedhsa deploy keys exclude my-federation 0
  who is in, until when      fedhsa deploy keys list my-federation

The register decides from one message to the next, also while a run goes on.
Every form explains its settings with `--help`; COMMANDS.txt in each folder says
what is typed on that machine.
"""

_Folder = Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")]
_File = Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
_Host = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]


@dataclasses.dataclass(frozen=True)
class CreateSettings(AbstractFlags):
    """The settings of `fedhsa deploy keys create`."""

    command = "deploy keys create"
    description = """\
Makes the authority of a federation and the certificate of its server, for
nodes that make their own keys.

Example:
  fedhsa deploy keys create my-federation --host fed.example.org 192.0.2.7
"""

    folder: Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="FOLDER")] = pathlib.Path("federation")
    """A new folder."""
    host: _Host = ("127.0.0.1",)
    """Names or addresses under which the nodes reach the server."""
    port: int = 8000
    """The server's port."""
    days: int = 365
    """How long the certificates are valid."""


@dataclasses.dataclass(frozen=True)
class AllSettings(CreateSettings):
    """The settings of `fedhsa deploy keys` by itself."""

    command = "deploy keys"
    description = HELP

    nodes: int = 3
    """Number of nodes, each with a key of its own."""


@dataclasses.dataclass(frozen=True)
class RequestSettings(AbstractFlags):
    """The settings of `fedhsa deploy keys request`."""

    command = "deploy keys request"
    description = """\
Makes a private key for this node, and a request to be sent to the operator. In
the folder of a node that has a key, this begins its replacement: the old one
stays in use until the new certificate is accepted.

Example:
  fedhsa deploy keys request my-node
"""

    folder: _Folder
    """The node's folder."""


@dataclasses.dataclass(frozen=True)
class SignSettings(AbstractFlags):
    """The settings of `fedhsa deploy keys sign`."""

    command = "deploy keys sign"
    description = """\
Signs a node's request, which makes it the agent with this number: its
certificate is in the register, server/nodes, from now on.

Example:
  fedhsa deploy keys sign my-federation request.pem --number 0 \\
      --fingerprint 5cd2-52fb-0ce8-9324-36fa-f8cc-d104-0981
"""

    folder: _Folder
    """The federation's folder."""
    request: _File
    """The request from the node."""
    number: int
    """Which agent it is."""
    fingerprint: Annotated[str | None, tyro.conf.arg(metavar="DIGITS", help_behavior_hint="")] = None
    """What the site read out: the request is signed only if its key has this fingerprint."""
    replace: bool = False
    """Replace the key that this agent had until now."""
    days: int = 365
    """How long the certificate is valid."""


@dataclasses.dataclass(frozen=True)
class AcceptSettings(AbstractFlags):
    """The settings of `fedhsa deploy keys accept`."""

    command = "deploy keys accept"
    description = """\
Puts the certificate that the operator has sent to use in this node's folder.

Example:
  fedhsa deploy keys accept my-node node-0.crt
"""

    folder: _Folder
    """The node's folder."""
    certificate: _File
    """The operator's answer."""


@dataclasses.dataclass(frozen=True)
class RenewSettings(AbstractFlags):
    """The settings of `fedhsa deploy keys renew`."""

    command = "deploy keys renew"
    description = """\
Prolongs the certificate of a node or of the server, for the same key. The old
certificate is good until it ends, so nothing is interrupted.

Examples:
  fedhsa deploy keys renew my-federation 0
  fedhsa deploy keys renew my-federation server
  fedhsa deploy keys renew my-federation server --host new.example.org
"""

    folder: _Folder
    """The federation's folder."""
    who: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NUMBER|server", help_behavior_hint="")]
    """The node's number, or the server."""
    host: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="(as before)")] = ()
    """The server's names from now on."""
    new_key: bool = False
    """Give the server a new private key too. (A node makes its own: `request`.)"""
    days: int = 365
    """How long the certificate is valid, from today."""


@dataclasses.dataclass(frozen=True)
class ExcludeSettings(AbstractFlags):
    """The settings of `fedhsa deploy keys exclude`."""

    command = "deploy keys exclude"
    description = """\
Removes a node from the register. The server refuses it from the next message
on, also in a run that goes on.

Example:
  fedhsa deploy keys exclude my-federation 0
"""

    folder: _Folder
    """The federation's folder, or the server's copy of `server`."""
    who: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NUMBER", help_behavior_hint="")]
    """The node's number."""


@dataclasses.dataclass(frozen=True)
class ListSettings(AbstractFlags):
    """The settings of `fedhsa deploy keys list`."""

    command = "deploy keys list"
    description = """\
Shows who is in the register, and until when certificates are valid.

Example:
  fedhsa deploy keys list my-federation
"""

    folder: _Folder
    """The federation's folder, or the server's copy of `server`."""


def main(args: list[str], console: Console) -> int:
    """Runs `fedhsa deploy keys` with these arguments; gives the exit code."""
    form, rest = (args[0], args[1:]) if args and args[0] in FORMS else ("", args)
    if not form and rest and "/" not in rest[0] and (near := nearest(rest[0], [name for name in FORMS if name])):
        raise UsageError(
            f"fedhsa deploy keys has no form {rest[0]!r}.{near} A new folder of this name is `./{rest[0]}`."
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
    return f"Keys: {folder}. What to copy where, and what each person types: {folder / 'COMMANDS.txt'}"


def _request(settings: RequestSettings) -> str:
    from ..deploy import keys

    asked = keys.request(settings.folder)
    return (
        f"Request: {asked}\n"
        f"Fingerprint: {keys.request_fingerprint(asked)}\n"
        "Send the request to the operator, and read them the fingerprint over the telephone. When the certificate is "
        f"back: `fedhsa deploy keys accept {settings.folder} FILE`"
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
            f"\nNot checked: whether the site has sent this request. Ask for its fingerprint; if that is not {told}: "
            f"`fedhsa deploy keys exclude {settings.folder} {settings.number}`."
        )
    return said


def _accept(settings: AcceptSettings) -> str:
    from ..deploy.keys import accept, fingerprint
    from ..deploy.signing import Identity

    node = Identity.load(accept(settings.folder, settings.certificate))
    return (
        f"This node is agent {node.number}, until {_day(node.certificate.not_valid_after_utc)}.\n"
        f"Authority: {fingerprint(node.authority.public_key())}. The operator's `fedhsa deploy keys list` shows the "
        "same, if nobody has exchanged it."
    )


def _renew(settings: RenewSettings) -> str:
    from ..deploy.keys import renew

    who = settings.who if settings.who == "server" else _number(settings.who)
    if who != "server" and (settings.host or settings.new_key):
        raise UsageError("`host` and `new_key` go with `server`; a node's new key is made by `request`, at the node.")
    path = renew(settings.folder, who, days=settings.days, hosts=settings.host or None, new_key=settings.new_key)
    if who == "server":
        return f"Certificate: {path}\nCopy the folder `server` to the server, and start it again."
    return f"Certificate: {path}\nSend it to the site, for `accept`. Until then the old one is good."


def _exclude(settings: ExcludeSettings) -> str:
    from ..deploy.keys import exclude

    gone = exclude(settings.folder, _number(settings.who))
    return (
        f"{gone.name} is no longer in the register. If the server has a copy, remove {gone.path.name} from its folder "
        f"`nodes` too.\nOther sites do not read the register: for them the certificate is good until "
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
    return f"{when:%Y-%m-%d}" + (" (over)" if when < datetime.datetime.now(datetime.UTC) else "")


def _number(text: str) -> int:
    digits = text.removeprefix("node-")
    if not digits.isdecimal():
        raise UsageError(f"A node is named by its number, like 0 or node-0, got {text!r}.")
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
"""The forms of the command, the settings of each and what it does; what it returns is printed."""

"""`fedhsa deploy doctor`: checks whether a machine can take part in a federation, and suggests remedies."""

import dataclasses
import json
import pathlib
import textwrap
from typing import Annotated

import tyro
from rich.console import Console

from .._extras import need
from .parsing import parse_flags
from .settings import AbstractFlags, flag

MARKS = {"ok": "ok      ", "warning": "warning ", "failure": "FAILURE "}


@dataclasses.dataclass(frozen=True)
class DoctorSettings(AbstractFlags):
    """Checks whether this machine can take part in a federation: file modes,
    certificates, versions, disk and clock, and the connection to the server. Suggests
    remedies, and changes nothing. The exit code is 1 if a check failed.

    Examples:
      at a site, with gRPC:    fedhsa deploy doctor my-node --server 192.0.2.7:8000
      at a site, with Flower:  fedhsa deploy doctor my-node --superlink 192.0.2.7:8000
      at the server:           fedhsa deploy doctor server --listen 0.0.0.0:8000
    """

    command = "deploy doctor"

    folder: Annotated[tyro.conf.Positional[pathlib.Path], flag("FOLDER")]
    """The folder of the node or of the server, with its keys."""
    server: Annotated[str | None, flag("HOST:PORT")] = None
    """The gRPC server that this node connects to."""
    superlink: Annotated[str | None, flag("HOST:PORT")] = None
    """The Flower server that this node connects to."""
    listen: Annotated[str | None, flag("HOST:PORT")] = None
    """The address on which this server will listen."""
    json: bool = False
    """Print JSON."""


def main(args: list[str], console: Console) -> int:
    """Runs `fedhsa deploy doctor` with these arguments and returns the exit code."""
    settings = parse_flags(DoctorSettings, args)
    need("cryptography, which reads keys,", "cryptography", "grpc")
    from ..deploy.doctor import examine

    found = examine(settings.folder, server=settings.server, superlink=settings.superlink, listen=settings.listen)
    if settings.json:
        print(json.dumps([finding._asdict() for finding in found], indent=1))
    else:
        width = max(len(finding.what) for finding in found) + 2
        for what, state, words, remedy in found:
            console.print(f"{MARKS[state]}{what:{width}}{words}", soft_wrap=True)
            if remedy:
                console.print(textwrap.indent(remedy, " " * (len(MARKS[state]) + width)), soft_wrap=True)
        bad = [sum(finding.state == state for finding in found) for state in ("failure", "warning")]
        counts = [f"{n} {word}{'s' * (n > 1)}" for n, word in zip(bad, ("failure", "warning"), strict=True) if n]
        console.print(" and ".join(counts) + "." if counts else "All is well.")
    return int(any(finding.state == "failure" for finding in found))

"""`fedhsa deploy init`: writes files that run a federation on real machines."""

import dataclasses
import pathlib
from typing import Annotated

import tyro
from rich.console import Console

from .parsing import parse_flags
from .settings import AbstractFlags


@dataclasses.dataclass(frozen=True)
class InitSettings(AbstractFlags):
    """Writes files that run a federation on real machines: a Dockerfile and, for the
    server and for a site, a docker compose file, a systemd unit and a Kubernetes
    manifest; also a dashboard and a configuration for monitoring. Each file begins
    with the steps to take before using it. The files contain no secrets: keys come
    from `fedhsa deploy keys`.

    Examples:
      fedhsa deploy init my-files --host 192.0.2.7 --nodes 5
      fedhsa deploy init my-files --host fed.example.org --port 443 --flower
    """

    command = "deploy init"

    folder: Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="FOLDER")] = pathlib.Path("deployment")
    """The folder to write to."""
    host: Annotated[str, tyro.conf.arg(metavar="NAME")] = "192.0.2.7"
    """The name or address under which the sites reach the server."""
    port: int = 8000
    """The server's port."""
    nodes: int = 3
    """Number of sites."""
    flower: bool = False
    """Send messages through Flower instead of gRPC."""


def main(args: list[str], console: Console) -> int:
    """Runs `fedhsa deploy init` with these arguments and returns the exit code."""
    settings = parse_flags(InitSettings, args, InitSettings())
    from ..deploy.init import write_files

    written = write_files(**vars(settings))
    console.print(f"Wrote {len(written)} files to {settings.folder}; begin with README.txt.", soft_wrap=True)
    return 0

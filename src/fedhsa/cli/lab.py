"""`fedhsa lab`: opens pages in the browser on which the settings of a federation are sliders."""

import dataclasses
from typing import Annotated

import tyro
from rich.console import Console

from .. import _check
from .errors import FailedRunError
from .parsing import parse_flags
from .settings import AbstractFlags, flag
from .usage import check_counts


@dataclasses.dataclass(frozen=True)
class LabSettings(AbstractFlags):
    """Opens a page in the browser on which the settings are sliders and the exact
    error curves of FedHSA, LocalSA and two other methods move with them. The
    page shows the drift of the agents, the floor split into bias and noise, a map
    of the best method, and the command and the Python for the current setting.
    It runs on this machine: no request leaves it. Ctrl-C ends it.

    Examples:
      the quadratic problem:   fedhsa lab
      a grid world:            fedhsa lab grid-worlds
      on a remote machine:     fedhsa lab --port 8080 --no-browser
    """

    command = "lab"

    page: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[quadratic|grid-worlds]")] = "quadratic"
    """The page that is opened; the pages link to each other."""
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1"
    """The address that the server binds. With the default only this machine can reach it."""
    port: Annotated[int | None, flag("INT")] = None
    """The port. Default: 2718 or the next free one."""
    browser: bool = True
    """Open the page in a browser."""


def main(args: list[str], console: Console) -> int:
    """Runs `fedhsa lab` with these arguments and returns the exit code."""
    settings = parse_flags(LabSettings, args)
    from ..lab.serving import PAGES, BusyPortError, serve

    _check.choice("page", settings.page, tuple(PAGES))
    check_counts(settings, "port", most=65535)

    def announce(address: str) -> None:
        console.print(f"The lab is at {address} (Ctrl-C ends it)", soft_wrap=True)

    try:
        serve(settings.page, host=settings.host, port=settings.port, browser=settings.browser, announce=announce)
    except BusyPortError as error:
        raise FailedRunError(str(error)) from None
    console.print("The lab has ended.")
    return 0

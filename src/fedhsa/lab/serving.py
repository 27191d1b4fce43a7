"""Serves the pages of the lab on this machine, and ends when it is interrupted."""

import contextlib
import pathlib
import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import Any, NamedTuple

from .._extras import need

HERE = pathlib.Path(__file__).parent


class Page(NamedTuple):
    """A page of the lab."""

    file: str
    """The marimo file, next to this one."""
    path: str
    """The address of the page on the server."""
    title: str


PAGES = {
    "quadratic": Page("app.py", "/", "the quadratic problem"),
    "grid-worlds": Page("grid_worlds.py", "/grid-worlds", "reinforcement learning in grid worlds"),
}
"""The pages by the names that `fedhsa lab` takes."""

PORT, TRIED = 2718, 20
"""The port that is tried first, and how many ports after it are tried if it is busy."""


class BusyPortError(OSError):
    """The port that was asked for is in use."""


def app() -> Any:
    """Return the pages as one ASGI app.

    Raises `ModuleNotFoundError` if marimo is not installed.
    """
    need("marimo, which shows the lab,", "marimo", "lab")
    import marimo

    builder = marimo.create_asgi_app(quiet=True, include_code=False, skew_protection=False)
    for page in PAGES.values():
        if (HERE / page.file).exists():
            builder = builder.with_app(path=page.path, root=str(HERE / page.file))
    return builder.build()


def serve(
    page: str = "quadratic",
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the lab until it is interrupted.

    Raises `BusyPortError` if `port` is in use, and `ModuleNotFoundError` if marimo is not installed.

    **Arguments:**

    - `page`: the page that is opened, a key of `PAGES`.
    - `host`: the address that the server binds. The default is reachable from this machine only.
    - `port`: the port. Defaults to 2718 or the next free one.
    - `browser`: whether to open the page in a browser.
    - `announce`: called with the address of the page before the server starts.
    """
    application = app()
    import uvicorn

    listening = bound(host, port)
    number = listening.getsockname()[1]
    name = "localhost" if host in ("127.0.0.1", "localhost") else f"[{host}]" if ":" in host else host
    address = f"http://{name}:{number}{PAGES[page].path}"
    announce(address)
    config = uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    if browser:
        timer = threading.Timer(0.5, lambda: webbrowser.open(address))
        timer.daemon = True
        timer.start()
    with listening, contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after it has shut down
        server.run(sockets=[listening])


def bound(host: str, port: int | None) -> socket.socket:
    """Return a socket that is bound to `port`, or to the first free port from `PORT` on.

    Raises `BusyPortError` if the port is in use.
    """
    candidates = [port] if port is not None else [*range(PORT, PORT + TRIED), 0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in candidates:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)
        except OSError as error:
            found.close()
            last = error
            continue
        return found
    if port is not None and last.errno in _IN_USE:
        raise BusyPortError(f"Port {port} is in use. Choose another with `--port`, or leave `--port` out.")
    raise OSError(last.errno, f"The lab cannot listen on {host}:{port}: {last.strerror}")


def _in_use() -> set[int]:
    import errno

    return {errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", errno.EADDRINUSE)}


_IN_USE = _in_use()

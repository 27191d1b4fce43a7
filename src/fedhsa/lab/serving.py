"""Serves the pages of the lab on this machine, and ends when it is interrupted."""

import contextlib
import errno
import pathlib
import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import Any

from .._extras import need

PAGES = {"quadratic": ("app.py", "/"), "grid-worlds": ("grid_worlds.py", "/grid-worlds")}
"""The pages by the names that `fedhsa lab` takes: the marimo file, next to this one, and the path on the server."""
PORT, TRIED = 2718, 20
"""The port that is tried first, and the number of following ports that are tried if it is busy."""


class BusyPortError(OSError):
    """The requested port is in use."""


def app() -> Any:
    """Return the pages as one ASGI app.

    Raises `ModuleNotFoundError` if marimo is not installed.
    """
    need("marimo, which shows the lab,", "marimo", "lab")
    import marimo

    builder = marimo.create_asgi_app(quiet=True, include_code=False, skew_protection=False)
    for file, path in PAGES.values():
        builder = builder.with_app(path=path, root=str(pathlib.Path(__file__).with_name(file)))
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

    The default `host` is reachable from this machine only, and `port` is 2718 or the next free one. `announce` gets the
    address of the page before the server starts. Raises `BusyPortError` if `port` is in use, and `ModuleNotFoundError`
    if marimo is not installed.
    """
    application = app()
    import uvicorn

    listening = bound(host, port)
    number = listening.getsockname()[1]
    name = "localhost" if host in ("127.0.0.1", "localhost") else f"[{host}]" if ":" in host else host
    address = f"http://{name}:{number}{PAGES[page][1]}"
    announce(address)
    config = uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    if browser:
        timer = threading.Timer(0.5, lambda: webbrowser.open(address))
        timer.daemon = True
        timer.start()
    try:
        with listening, contextlib.suppress(KeyboardInterrupt):  # uvicorn re-raises it after it has shut down
            server.run(sockets=[listening])
    finally:
        _end_sessions(application)


def _end_sessions(application: Any) -> None:
    """End the threads in which pages compute; otherwise the program would wait for them when it ends."""
    for route in application.routes:
        state = getattr(getattr(route, "app", None), "state", None)
        if (manager := getattr(state, "session_manager", None)) is not None:
            manager.close_all_sessions()


def bound(host: str, port: int | None) -> socket.socket:
    """Return a socket that is bound to `port`, or to the first free port from `PORT` on.

    Raises `BusyPortError` if the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else [*range(PORT, PORT + TRIED), 0]:
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, number))
            found.listen(128)
            return found
        except OSError as error:
            found.close()
            if error.errno != errno.EADDRINUSE:
                raise OSError(error.errno, f"The lab cannot listen on {host}:{number}: {error.strerror}") from None
    raise BusyPortError(f"Port {port} is in use. Choose another with `--port`, or leave `--port` out.")

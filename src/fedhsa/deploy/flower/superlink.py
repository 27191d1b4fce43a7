"""A SuperLink on loopback and its gate, which start and end together."""

import asyncio
import os
import pathlib
import socket
from collections.abc import Callable

from ..signing import Identity
from . import fleet
from .gate import Gate
from .processes import Processes

LOOK = 1.0
"""Seconds between checks of whether the register has changed and the SuperLink still runs."""


def server_keys(keys: str | os.PathLike) -> pathlib.Path:
    """The folder with the server's keys; raises if it is another folder."""
    if Identity.load(keys).number is not None:
        raise ValueError(f"`keys`: {os.fspath(keys)!r} is a node's folder. Name the server's of `fedhsa deploy keys`.")
    return pathlib.Path(keys).absolute()


def run_superlink(
    keys: str | os.PathLike,
    host: str,
    port: int,
    *,
    inner: int | None = None,
    logs: str | os.PathLike | None = None,
    tell: Callable[[str], object] = lambda words: None,
) -> None:
    """Runs a SuperLink that only this machine reaches, and a gate that nodes reach; returns when it is interrupted.

    The nodes in the register may connect, including nodes that are added later. Runs are started on this machine, at
    the port `inner`.

    **Arguments:**

    - `keys`: the server's folder of `fedhsa deploy keys`.
    - `host`, `port`: the address on which the gate listens.
    - `inner`: the port of the SuperLink on loopback. Default: a free port.
    - `logs`: a folder for the SuperLink's log, which is kept.
    - `tell`: a function that is called with a sentence when something changes.
    """
    folder = server_keys(keys)
    try:  # before a SuperLink is started
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise RuntimeError(
            f"{host}:{port} cannot be listened on: {error.strerror}. Name another with `--listen`."
        ) from None

    async def admit() -> None:
        """Adds the register's keys to the SuperLink; the gate refuses keys that are removed from the register."""
        known: dict[bytes, str] = {}
        while True:
            names = {key: name for key, (name, _) in gate.register.keys().items()}
            new, gone = names.keys() - known.keys(), known.keys() - names.keys()
            if new:
                await asyncio.to_thread(fleet.register, inside, folder / "ca.crt", new)
            came, left = {names[key] for key in new}, {known[key] for key in gone}
            told = {"May connect": came - left, "May no longer connect": left - came, "Changed its key": came & left}
            for words, who in told.items():
                if who:
                    tell(f"{words}: {', '.join(sorted(who))}.")
            known = names
            if not superlink.alive:
                raise processes.failed("superlink", "has ended")
            await asyncio.sleep(LOOK)

    def ready(opened: int) -> None:
        tell(f"Nodes reach the gate at {host}:{opened}. Runs are started here, at 127.0.0.1:{inside}.")

    async def serve() -> None:
        await asyncio.gather(admit(), gate.serve(host, port, ready))

    with Processes(logs) as processes:
        tls = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
        arguments = [word for option, name in tls.items() for word in (option, str(folder / name))]
        superlink, inside = processes.superlink([*arguments, "--enable-supernode-auth"], folder / "ca.crt", inner)
        gate = Gate(folder, inside)
        asyncio.run(serve())

"""A stock SuperNode's agent, built from the plan and the node's settings in a process that runs between messages."""

import contextlib
import functools
import json
import os
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import compiled, signing
from ..limits import Audit
from ..plan import Plan
from ..site import Site, failure_reply, log_to
from ..store import BusyError, Store, check_run_name
from ..wire import unpack
from .client import GLANCE, SOCKET, place, receive

IDLE = 3600.0
"""Seconds without a message after which the process ends."""


def answer_here(data: bytes, settings: dict[str, Any]) -> bytes:
    """The answer of the agent with these settings in this process; never raises, since Flower would send the error."""
    return _answer(tuple(sorted(settings.items())))(data)


@functools.cache
def _answer(settings: tuple[tuple[str, Any], ...]) -> Callable[[bytes], bytes]:
    """The function that answers for a node; with `keys`, it answers only messages that the server has signed."""
    number, keys = int(dict(settings).get("partition-id", -1)), dict(settings).get("keys")

    def answer(data: bytes) -> bytes:
        try:
            if data.startswith(signing.MAGIC) and not keys:
                raise ValueError("The server signs its messages: name this node's folder of keys in --node-config.")
            run = check_run_name(str(unpack(data).header.get("run")))  # the name of a folder
            return _site(run, settings).answer(data)
        except Exception as error:
            return failure_reply(data, number, error)

    return signing.signed(answer, keys) if keys else answer


@functools.cache
def _site(run: str, settings: tuple[tuple[str, Any], ...]) -> Site:
    config = dict(settings)
    plan, folder = Plan.from_json(config.pop("plan")), pathlib.Path(config.pop("state")).expanduser()
    number, nodes, keys = int(config["partition-id"]), int(config["num-partitions"]), config.pop("keys", None)
    if nodes != plan.num_agents:
        raise ValueError(f"`num-partitions` is {nodes} on this node, but the plan has {plan.num_agents} agents.")
    if keys and signing.Identity.load(keys).number != number:
        raise ValueError(f"`partition-id` is {number} on this node, but its certificate is that of another agent.")
    log_to(folder / "site.log")
    compiled.keep(folder / "compiled")
    return plan.site([number], Store(folder / run / f"{number}.state"), run, config, Audit(folder))


def stay(instructions: dict[str, Any]) -> None:
    """Answers the messages from a node's client processes, until the SuperNode ends or no message arrives."""
    folder, last = pathlib.Path(instructions["folder"]), time.monotonic()
    threading.Thread(target=_end_with, args=(instructions["keeper"],), daemon=True).start()
    with Store(folder / "resident").alone(wait=False), socket.socket(socket.AF_UNIX) as listening:  # only one resident
        (folder / SOCKET).unlink(missing_ok=True)  # left by a resident that was killed
        with place(folder) as name:
            listening.bind(name)
        listening.listen()
        listening.settimeout(0.5)
        while time.monotonic() < last + IDLE:
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                last = time.monotonic()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(GLANCE)
                    connection.sendall(answer_here(receive(connection), instructions["settings"]))
        (folder / SOCKET).unlink(missing_ok=True)


def _end_with(process: int) -> None:
    """Ends this process immediately when another process ends."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            with contextlib.suppress(PermissionError):  # it exists, and is another user's
                os.kill(process, 0)
            time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    instructions = json.loads(sys.stdin.read())
    sys.path[:] = instructions["path"]
    with contextlib.suppress(BusyError):
        stay(instructions)

"""A node's agent: made from the plan and the node's own settings, in a process that stays between messages."""

import contextlib
import functools
import hmac
import json
import os
import pathlib
import socket
import sys
import threading
import time
from typing import Any

from .. import compiled
from ..limits import Audit
from ..plan import Plan
from ..site import Site, failure_reply, log_to
from ..store import BusyError, Store, check_run_name
from ..wire import unpack
from .client import GLANCE, LENGTH, SIGNATURE_BYTES, receive, signature

IDLE = 3600.0
"""Seconds without a message after which the process ends."""


def answer_here(data: bytes, settings: dict[str, Any]) -> bytes:
    """What the agent of these settings answers, by this process; never an error, whose words Flower would carry on."""
    try:
        run = check_run_name(str(unpack(data).header.get("run")))  # it becomes the name of a folder
        return _site(run, tuple(sorted(settings.items()))).answer(data)
    except Exception as error:
        return failure_reply(data, int(settings.get("partition-id", -1)), error)


@functools.cache
def _site(run: str, settings: tuple[tuple[str, Any], ...]) -> Site:
    config = dict(settings)
    plan, folder = Plan.from_json(config.pop("plan")), pathlib.Path(config.pop("state")).expanduser()
    log_to(folder / "site.log")
    number, nodes = int(config["partition-id"]), int(config["num-partitions"])
    if nodes != plan.num_agents:
        raise ValueError(f"`num-partitions` is {nodes} on this node, but the plan has {plan.num_agents} agents.")
    compiled.keep(folder / "compiled")
    return plan.site([number], Store(folder / run / f"{number}.state"), run, config, Audit(folder))


def stay(instructions: dict[str, Any]) -> None:
    """Answers the messages that a node's light processes hand over, until the SuperNode ends or nothing comes."""
    note, last = pathlib.Path(instructions["note"]), time.monotonic()
    threading.Thread(target=_end_with, args=(instructions["keeper"], note), daemon=True).start()
    with contextlib.ExitStack() as stack:
        stack.enter_context(Store(note).alone(wait=False))  # one is enough
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening.settimeout(0.5)
        _leave(note, {"port": listening.getsockname()[1], "secret": instructions["secret"]})
        stack.callback(note.unlink, missing_ok=True)
        while time.monotonic() < last + IDLE:
            with contextlib.suppress(TimeoutError):
                connection, _ = listening.accept()
                last = time.monotonic()
                with connection, contextlib.suppress(OSError):
                    _serve(connection, instructions)


def _leave(note: pathlib.Path, found: dict[str, Any]) -> None:
    """Writes where this process is found, for its owner's eyes only."""
    draft = note.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(found, file)
    os.replace(draft, note)


def _serve(connection: socket.socket, instructions: dict[str, Any]) -> None:
    secret = bytes.fromhex(instructions["secret"])
    connection.settimeout(GLANCE)
    length = receive(connection, LENGTH.size)
    if not hmac.compare_digest(receive(connection, SIGNATURE_BYTES), signature(secret, b"ask", length)):
        return
    data = receive(connection, *LENGTH.unpack(length))
    if not hmac.compare_digest(receive(connection, SIGNATURE_BYTES), signature(secret, b"data", data)):
        return
    reply = answer_here(data, instructions["settings"])
    connection.sendall(LENGTH.pack(len(reply)) + reply + signature(secret, b"reply", data, reply))


def _end_with(process: int, note: pathlib.Path) -> None:
    """Ends this process with another, whatever it is at."""
    while _alive(process):
        time.sleep(0.5)
    note.unlink(missing_ok=True)
    os._exit(0)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


if __name__ == "__main__":
    instructions = json.loads(sys.stdin.read())
    sys.path[:] = instructions["path"]
    with contextlib.suppress(BusyError):
        stay(instructions)

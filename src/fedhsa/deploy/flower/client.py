"""The app of a stock SuperNode: passes each message to a resident process, and starts that process if necessary.

Flower starts a new process for every message, and loading JAX and fedhsa would take most of its time. So this file is
small: it does not import fedhsa, and is copied into every app. The resident process contains the agent, listens on a
socket in a folder that only its owner can enter, and ends with the SuperNode. Without a resident process, this process
answers the message.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

RECORD, ENTRY = "fedhsa", "message"
"""The names under which a Flower message contains a message of fedhsa."""
SETTINGS, PRIVACY = ("plan", "state", "data"), ("clip", "noise", "epsilon", "delta", "release_metrics")
"""Settings of the run that a node needs; a node's own settings win."""
STATE = "~/.fedhsa/sites"
PATIENCE, GLANCE = 600.0, 5.0
"""Seconds to wait for an answer, and for steps that must be immediate."""
SOCKET = "socket"

app = ClientApp()


@app.query("fedhsa")
def answer(message: Message, context: Context) -> Message:
    """The reply to a message of the server."""
    settings = own_settings(dict(context.run_config), dict(context.node_config))
    return Message(wrap(reply(unwrap(message.content), settings)), reply_to=message)


def wrap(data: bytes) -> RecordDict:
    """A message as the content of a Flower message."""
    return RecordDict({RECORD: ConfigRecord({ENTRY: data})})


def unwrap(content: RecordDict) -> bytes:
    """The message in the content of a Flower message; empty if there is none."""
    record = content.config_records.get(RECORD)
    data = None if record is None else record.get(ENTRY)
    return data if isinstance(data, bytes) else b""


def own_settings(run: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """The run's settings, overridden by the node's; a node with its own privacy ignores the run's and its `state`."""
    given = {name: run[name] for name in SETTINGS + PRIVACY if name in run}
    if any(name in node for name in PRIVACY):
        given = {name: value for name, value in given.items() if name not in PRIVACY} | {"state": STATE}
    return {**given, **node}


def reply(data: bytes, settings: dict[str, Any]) -> bytes:
    """The answer of the agent with these settings."""
    if "fedhsa" not in sys.modules:  # otherwise this process is long-lived already
        with contextlib.suppress(OSError):
            return _by_resident(data, settings)
    from fedhsa.deploy.flower.resident import answer_here

    return answer_here(data, settings)


def _by_resident(data: bytes, settings: dict[str, Any]) -> bytes:
    # One for each version of the app, whose user code may differ.
    name = hashlib.sha256(json.dumps([settings, __file__], sort_keys=True).encode()).hexdigest()[:16]
    folder = pathlib.Path(settings["state"]).expanduser() / f"resident-{name}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        return _ask(folder, data)
    starting = _start(folder, settings)
    deadline = time.monotonic() + PATIENCE
    while starting.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return _ask(folder, data)
        time.sleep(0.05)
    raise TimeoutError


@contextlib.contextmanager
def place(folder: pathlib.Path) -> Iterator[str]:
    """The path of the socket in a private folder of this user; a short path if possible, as sockets require."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(opened)
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"others can enter {folder}")
        yield f"/proc/self/fd/{opened}/{SOCKET}" if os.path.isdir("/proc/self/fd") else str(folder / SOCKET)
    finally:
        os.close(opened)


def _ask(folder: pathlib.Path, data: bytes) -> bytes:
    """The resident's reply: all bytes until it closes the connection."""
    with place(folder) as name, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(GLANCE)
        connection.connect(name)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(PATIENCE)
        if said := receive(connection):
            return said
    raise ConnectionError("the resident has ended")


def receive(connection: socket.socket) -> bytes:
    """All bytes that the other side sends."""
    return b"".join(iter(lambda: connection.recv(2**20), b""))


def _start(folder: pathlib.Path, settings: dict[str, Any]) -> subprocess.Popen:
    """Starts the resident process, which runs as long as the parent of this process."""
    path = [entry for entry in sys.path if entry]  # without Flower's current folder
    instructions = {"settings": settings, "folder": str(folder), "keeper": os.getppid(), "path": path}
    with open(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedhsa.deploy.flower.resident"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # otherwise Flower would end it with this process
        )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(json.dumps(instructions).encode())
    return process

"""What a node's Flower app does with a message: it hands it to a process that stays, and starts that if need be.

Flower starts a new process for every message, and loading JAX and fedhsa would take it longer than all else. So this
file is light: it knows nothing of fedhsa, and is copied into every app. The process that stays holds the agent; it ends
with the SuperNode. Without it, or where Flower keeps its processes itself, the message is answered right here.
"""

import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import secrets
import socket
import struct
import subprocess
import sys
import time
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

RECORD, ENTRY = "fedhsa", "message"
SETTINGS, PRIVACY = ("plan", "state", "data"), ("clip", "noise", "epsilon", "delta", "release_metrics")
"""Settings of the run that a node needs; a node's own settings win."""
STATE = "~/.fedhsa/sites"
PATIENCE, GLANCE = 600.0, 5.0
"""Seconds to wait for an answer, and for what must come at once."""
LENGTH = struct.Struct("<Q")
SIGNATURE_BYTES = 32

app = ClientApp()


@app.query("fedhsa")
def answer(message: Message, context: Context) -> Message:
    """The reply to a message of the server's."""
    settings = own_settings(dict(context.run_config), dict(context.node_config))
    return Message(wrap(reply(unwrap(message.content), settings)), reply_to=message)


def own_settings(run: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """The run's settings under the node's; a node with its own privacy takes neither that nor `state` from the run."""
    given = {name: run[name] for name in SETTINGS + PRIVACY if name in run}
    if any(name in node for name in PRIVACY):
        given = {name: value for name, value in given.items() if name not in PRIVACY} | {"state": STATE}
    return {**given, **node}


def wrap(data: bytes) -> RecordDict:
    """A message as the content of one of Flower's."""
    return RecordDict({RECORD: ConfigRecord({ENTRY: data})})


def unwrap(content: RecordDict) -> bytes:
    """The message in the content of one of Flower's; empty if there is none."""
    record = content.config_records.get(RECORD)
    data = None if record is None else record.get(ENTRY)
    return data if isinstance(data, bytes) else b""


def reply(data: bytes, settings: dict[str, Any]) -> bytes:
    """What the agent of these settings answers."""
    if "ray" not in sys.modules and "fedhsa" not in sys.modules:  # there the process stays anyway
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            return _by_resident(data, settings)
    from fedhsa.deploy.flower.node import answer_here

    return answer_here(data, settings)


def _by_resident(data: bytes, settings: dict[str, Any]) -> bytes:
    # One for each version of the app: with it may have come other code of the user's.
    name = hashlib.sha256(json.dumps([settings, __file__], sort_keys=True).encode()).hexdigest()[:16]
    folder = pathlib.Path(settings["state"]).expanduser()
    note = folder / f"resident-{name}.json"
    try:
        return _ask(note, data)
    except (OSError, ValueError, KeyError):
        starting = _start(folder, note, settings)
    deadline = time.monotonic() + PATIENCE
    while starting.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return _ask(note, data)
        time.sleep(0.05)
    raise TimeoutError


def _ask(note: pathlib.Path, data: bytes) -> bytes:
    """The resident's reply: a note that only its owner can read says where it is, and a secret that both must know."""
    found = json.loads(note.read_text())
    secret = bytes.fromhex(found["secret"])
    with socket.create_connection(("127.0.0.1", found["port"]), timeout=GLANCE) as connection:
        length = LENGTH.pack(len(data))
        connection.sendall(length + signature(secret, b"ask", length) + data + signature(secret, b"data", data))
        connection.settimeout(PATIENCE)
        (size,) = LENGTH.unpack(receive(connection, LENGTH.size))
        said = receive(connection, min(size, 2**32))
        if not hmac.compare_digest(receive(connection, SIGNATURE_BYTES), signature(secret, b"reply", data, said)):
            raise ConnectionError("somebody else answers on the resident's port")
        return said


def signature(secret: bytes, *parts: bytes) -> bytes:
    """A signature of these bytes, which only those who know the secret can make."""
    return hmac.digest(secret, b"".join(LENGTH.pack(len(part)) + part for part in parts), "sha256")


def receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    received = bytearray()
    while len(received) < size:
        part = connection.recv(min(size - len(received), 2**20))
        if not part:
            raise ConnectionError("the other side has hung up")
        received += part
    return bytes(received)


def _start(folder: pathlib.Path, note: pathlib.Path, settings: dict[str, Any]) -> subprocess.Popen:
    """Starts the process that stays for as long as the one that started this one."""
    folder.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_hex(32)
    instructions = {"settings": settings, "note": str(note), "secret": secret, "keeper": os.getppid(), "path": sys.path}
    with open(os.open(note.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedhsa.deploy.flower.node"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # or Flower would end it with this process
        )
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(json.dumps(instructions).encode())
    return process

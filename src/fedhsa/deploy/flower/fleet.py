"""A node on Flower's Fleet interface: it joins a SuperLink with its key, fetches messages and hands in replies.

This is the one file that leans on what Flower does not promise to keep. `tests/deploy/test_fleet.py` says, for each
version of Flower that `pyproject.toml` allows, which of it has changed.

A stock SuperNode fetches an app from the server and starts a process of it for every message. This node does neither:
the agent is in this process, no code of the server's is run, and nothing listens on this machine.
"""

import contextlib
import functools
import json
import os
import pathlib
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid import http_grid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ... import _files
from ..signing import read_key

RECORD, ENTRY = "fedhsa", "message"
"""Where a message of ours is in one of Flower's."""
PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
"""What a node with a registered key asks of a SuperLink. (`get-run` and `get-fab` are for stock SuperNodes.)"""
KEY_HEADER, SIGNATURE_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
TIME_HEADER = TIMESTAMP_HEADER
AHEAD, BEHIND = float(SYSTEM_TIME_TOLERANCE), float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)
"""Seconds that a node's clock may be ahead of the SuperLink's, or behind it."""

HEARTBEAT = 15.0
"""A SuperLink takes a node for gone when it has heard nothing for twice as many seconds."""
SOONEST, LATEST = 0.02, 1.0
"""Seconds between looks for messages: soon after one came, seldom when none does."""
UPLOAD = 60.0
"""Seconds that a server may take to hand in a message whose parts have begun to arrive."""
SHARE = 3.0
"""A node waits at least this many times as long as the last look took, so that many do not wear the SuperLink out."""


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as Flower sends it."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def wrap(data: bytes) -> RecordDict:
    """A message as the content of one of Flower's."""
    return RecordDict({RECORD: ConfigRecord({ENTRY: data})})


def unwrap(content: RecordDict) -> bytes:
    """The message in the content of one of Flower's; empty if there is none."""
    record = content.config_records.get(RECORD)
    data = None if record is None else record.get(ENTRY)
    return data if isinstance(data, bytes) else b""


class Asked(NamedTuple):
    """A message of the server's, and what is needed to reply to it."""

    data: bytes
    message: Message


class Fleet:
    """A node's connection to a SuperLink, or to the gate before it.

    **Arguments:**

    - `address`: host:port.
    - `folder`: the node's, with `ca.crt` and `key`.
    """

    def __init__(self, address: str, folder: str | os.PathLike):
        self.address, self.folder = address, pathlib.Path(folder)
        self.node = FlowerNode(node_id=0)
        self._note = self.folder / "flower.json"
        self._open(read_key(self.folder / "key"))

    def _open(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._public = public_bytes(key.public_key())
        self._client = FleetHttpClient(
            f"https://{self.address}",
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
            verify=ssl.create_default_context(cafile=str(self.folder / "ca.crt")),
        )

    def join(self) -> int:
        """Says that this node is here; gives the id that Flower has for it.

        A node that was killed still counts as present for a while, and would not be let in: so it remembers its id, and
        first says that the one before it has left.
        """
        if public_bytes((key := read_key(self.folder / "key")).public_key()) != self._public:  # it was replaced
            self._client.close()
            self._open(key)
        with contextlib.suppress(OSError, ValueError, KeyError, httpx.HTTPStatusError):
            before = json.loads(self._note.read_text())
            if before["address"] == self.address:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=before["node"]))
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        self.node = FlowerNode(node_id=self._client.ActivateNode(request).node_id)
        with contextlib.suppress(OSError):
            _files.write_text(self._note, json.dumps({"address": self.address, "node": self.node.node_id}))
        return self.node.node_id

    def beat(self) -> bool:
        """Says that this node is still here; whether the SuperLink knows it."""
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
        return self._client.SendNodeHeartbeat(request).success

    def receive(self) -> Asked | None:
        """The next message of the server's, if there is one."""
        found = self._client.PullMessages(PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        head, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        run, name = head.metadata.run_id, head.metadata.message_id
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self.node, run)
        contents = {part.object_id: _available(pull, part.object_id) for part in iterate_object_tree(tree)}
        message: Any = inflate_object_from_contents(tree.object_id, contents)
        message.metadata.__dict__["_message_id"] = name
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=name)
        )
        return Asked(unwrap(message.content) if message.has_content() else b"", message)

    def reply(self, asked: Asked, data: bytes, seconds: float = 0.0) -> None:
        """Hands in the reply to a message, and how long it took."""
        reply = Message(wrap(data), reply_to=asked.message)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts = get_all_nested_objects(reply)
            taken = self._client.PushMessages(
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                )
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self.node, reply.metadata.run_id, taken.session_id
            )
            for name in taken.objects_to_push:
                push(name, parts[name].deflate())

    def leave(self) -> None:
        """Says that this node leaves, if it can be said."""
        if self.node.node_id:
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self.close()

    def close(self) -> None:
        """Closes the connection without a word."""
        self._client.close()


def _available(pull: Callable[[str], bytes], name: str) -> bytes:
    """A part of a message, which the server may still be handing in."""
    deadline = time.monotonic() + UPLOAD
    while True:
        try:
            return pull(name)
        except ObjectUnavailableError:
            if time.monotonic() > deadline:
                raise ObjectPullError(name, f"it was not complete after {UPLOAD:g} s") from None
            time.sleep(SOONEST)


def register(port: int, authority: str | os.PathLike, publics: Iterable[bytes]) -> None:
    """Makes keys known to the SuperLink on this port of loopback, whose certificate the authority has signed."""
    trust = ssl.create_default_context(cafile=os.fspath(authority))
    with ControlHttpClient(f"https://127.0.0.1:{port}", verify=trust) as client:
        for public in publics:
            try:
                client.RegisterNode(RegisterNodeRequest(public_key=public))
            except httpx.HTTPStatusError as error:
                if f'"code":{int(ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE)}' not in error.response.text.replace(" ", ""):
                    raise


def hasten() -> None:
    """Lets Flower's grid in this process look again soon for a reply that is being handed in; it waits a second."""
    http_grid.pull_objects = functools.partial(pull_objects, initial_backoff=SOONEST, backoff_cap=LATEST)


def serve(
    fleet: Fleet,
    answer: Callable[[bytes], bytes],
    *,
    tell: Callable[[str], object] = lambda words: None,
    ended: threading.Event | None = None,
) -> None:
    """Answers the server's messages until `ended` is set; whatever happens to the connection, it is made again.

    **Arguments:**

    - `fleet`: the connection.
    - `answer`: takes a message and gives the reply, never an error.
    - `tell`: gets a sentence when something changes: the node has joined, or cannot.
    """
    ended = threading.Event() if ended is None else ended
    told, pause = "", 1.0

    def say(words: str) -> None:
        nonlocal told
        if words != told:
            tell(words)
        told = words

    try:
        while not ended.is_set():
            try:
                node = fleet.join()
                say(f"Connected to {fleet.address} as Flower's node {node}.")
                pause = 1.0
                _attend(fleet, answer, ended)
            except httpx.HTTPStatusError as error:
                say(_status_in_words(fleet.address, error.response))
            except httpx.HTTPError as error:
                say(f"{fleet.address} does not answer ({error or type(error).__name__}). Trying again.")
            if not ended.wait(pause):
                pause = min(2 * pause, 15.0)
    finally:
        fleet.leave()


def _attend(fleet: Fleet, answer: Callable[[bytes], bytes], ended: threading.Event) -> None:
    """Answers messages until the SuperLink no longer knows this node, or cannot be reached."""
    over = threading.Event()
    heart = threading.Thread(target=_beat, args=(fleet, over), daemon=True)
    heart.start()
    pause = SOONEST
    try:
        while not ended.is_set() and not over.is_set():
            began = time.monotonic()
            try:
                asked = fleet.receive()
                pulled = time.monotonic()
                if asked is not None:
                    fleet.reply(asked, answer(asked.data), time.monotonic() - pulled)
                    pause = SOONEST
                    continue
            except (ObjectPullError, ObjectPushError):
                continue  # the run has ended meanwhile, or the server asks again
            except httpx.HTTPStatusError as error:
                if error.response.status_code in (401, 404) or not _of_ended_run(error.response):
                    raise
                continue
            took = time.monotonic() - began
            ended.wait(max(pause, SHARE * took))
            pause = min(1.1 * pause, LATEST)
    finally:
        over.set()


def _beat(fleet: Fleet, over: threading.Event) -> None:
    """Keeps the SuperLink from taking this node for gone; sets `over` when it does not know the node any more."""
    while not over.wait(HEARTBEAT * 0.6):
        try:
            if not fleet.beat():
                over.set()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 401:
                over.set()
        except httpx.HTTPError:
            pass  # the other thread notices too
        except RuntimeError:  # the connection was closed
            over.set()


def _of_ended_run(response: httpx.Response) -> bool:
    """Whether the SuperLink does not take a reply because its run has ended."""
    return response.status_code == 403 and bool(response.content)


def _status_in_words(address: str, response: httpx.Response) -> str:
    said = response.text.strip()[:300]
    with contextlib.suppress(ValueError):
        found = json.loads(said)
        said = str(found.get("detail", said)) if isinstance(found, dict) else said
    if response.status_code == 403 and not said:
        return f"{address} refuses this node: its key is not registered there, or no longer. Ask the server's operator."
    if response.status_code == 503:
        return f"{address} answers, but its SuperLink does not. Trying again."
    return f"{address} refuses this node ({response.status_code}: {said or response.reason_phrase}). Trying again."

"""A node on Flower's Fleet interface: it joins a SuperLink with its key, fetches messages and sends replies.

Only this file depends on Flower's private interfaces. `tests/deploy/test_fleet.py` reports changes of these interfaces,
for each version of Flower that `pyproject.toml` allows.

A stock SuperNode fetches an app from the server and starts a process of the app for every message. This node does
neither: the agent is in this process, no code of the server is run, and no port is open on this machine.
"""

import base64
import contextlib
import functools
import json
import os
import pathlib
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable import inflatable_protobuf_utils as calls
from flwr.supercore.inflatable import inflatable_utils as utils
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError, ObjectUnavailableError
from flwr.superlink.grid import http_grid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ... import _files
from ..signing import read_key
from .client import unwrap, wrap

OURS, SHORT = "fedhsa:", 2**18
"""The prefix of a group name that contains a whole message, and the largest size of this message in bytes."""
TYPE = "query.fedhsa"
PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
        *("get-run", "get-fab", "push-object", "pull-object", "confirm-message-received"),
    )
)
"""The methods of a SuperLink that a registered node calls. (`get-run` and `get-fab` are for stock SuperNodes.)"""
KEY_HEADER, SIGNATURE_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
TIME_HEADER = TIMESTAMP_HEADER
AHEAD, BEHIND = float(SYSTEM_TIME_TOLERANCE), float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)
"""The largest number of seconds by which a node's clock may be ahead of the SuperLink's, and behind it."""

HEARTBEAT = 15.0
"""Seconds between heartbeats; the SuperLink regards a node as gone after twice this time."""
SOONEST, LATEST = 0.02, 1.0
"""Seconds between checks for messages: short after a message, longer while none arrives."""
UPLOAD = 60.0
"""Seconds that a server may take to send a message whose parts have begun to arrive."""
SHARE = 3.0
"""A node waits at least this many times its last check's duration, so that many nodes do not overload the SuperLink."""


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as Flower sends it."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _as_group(data: bytes) -> str:
    """A short message as the name of a group."""
    return OURS + base64.b64encode(data).decode()


def _from_group(group: str) -> bytes | None:
    """The message that `_as_group` encoded; None for any other group."""
    if not group.startswith(OURS):
        return None
    try:
        return base64.b64decode(group[len(OURS) :], validate=True)
    except ValueError:
        return b""


def _without_parts(message: Message, group: str) -> tuple[Any, Any]:
    """A message whose content is in its group name, and a tree of parts that are neither sent nor fetched."""
    name = secrets.token_hex(32)
    message.metadata.__dict__.update(_message_id=name, _group_id=group)
    return message_to_proto(message), ObjectTree(object_id=name)


class Asked(NamedTuple):
    """A message of the server, with the data that a reply needs."""

    data: bytes
    message: Message


class Fleet:
    """A node's connection to a SuperLink, or to the gate before it.

    **Arguments:**

    - `address`: host:port.
    - `folder`: the node's folder, with `ca.crt` and `key`.
    - `state`: the folder to which it may write. Default: `folder`.
    """

    def __init__(self, address: str, folder: str | os.PathLike, state: str | os.PathLike | None = None):
        self.address, self.folder = address, pathlib.Path(folder)
        self.node = FlowerNode(node_id=0)
        self._note = pathlib.Path(folder if state is None else state, "flower.json")
        self._open(read_key(self.folder / "key"))

    def _open(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._public = public_bytes(key.public_key())
        self._client = FleetHttpClient(
            f"https://{self.address}",
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
            verify=ssl.create_default_context(cafile=str(self.folder / "ca.crt")),
        )

    def join(self) -> int:
        """Registers this node; returns Flower's id of the node.

        A node that was killed counts as present for a while, and would not be let in again. So the node saves its id,
        and first unregisters the previous id.
        """
        if public_bytes((key := read_key(self.folder / "key")).public_key()) != self._public:  # the key was replaced
            self._client.close()
            self._open(key)
        with contextlib.suppress(OSError, ValueError, KeyError, httpx.HTTPStatusError):
            before = json.loads(self._note.read_text())
            if before["address"] == self.address:
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=before["node"]))
        request = fleet_pb2.ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        self.node = FlowerNode(node_id=self._client.ActivateNode(request).node_id)
        with contextlib.suppress(OSError):
            _files.write_text(self._note, json.dumps({"address": self.address, "node": self.node.node_id}))
        return self.node.node_id

    def beat(self) -> bool:
        """Sends a heartbeat; returns whether the SuperLink has registered this node."""
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
        return self._client.SendNodeHeartbeat(request).success

    def receive(self) -> Asked | None:
        """The next message of the server, if there is one."""
        found = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        head, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        if (data := _from_group(head.metadata.group_id)) is not None:
            return Asked(data, head)
        return Asked(_fetch(self._client, self.node, head, tree), head)

    def reply(self, asked: Asked, data: bytes, seconds: float = 0.0) -> None:
        """Sends the reply to a message, and the time that it took."""
        short = len(data) <= SHORT and _from_group(asked.message.metadata.group_id) is not None
        reply = Message(RecordDict() if short else wrap(data), reply_to=asked.message)
        if short:
            head, tree = _without_parts(reply, _as_group(data))
            self._hand_in(head, tree, seconds)
            return
        reply.metadata.__dict__["_group_id"] = OURS  # shows the server that this node needs no further parts
        with objects.no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts = objects.get_all_nested_objects(reply)
            head = message_to_proto(remove_content_from_message(reply))
            taken = self._hand_in(head, objects.get_object_tree(reply), seconds)
            push = calls.make_push_object_fn_protobuf(
                self._client.PushObject, self.node, reply.metadata.run_id, taken.session_id
            )
            for name in taken.objects_to_push:
                push(name, parts[name].deflate())

    def _hand_in(self, head: Any, tree: Any, seconds: float) -> Any:
        lists = {"messages_list": [head], "message_object_trees": [tree], "clientapp_runtime_list": [seconds]}
        return self._client.PushMessages(fleet_pb2.PushMessagesRequest(node=self.node, **lists))

    def leave(self) -> None:
        """Unregisters this node, if the SuperLink can be reached."""
        if self.node.node_id:
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self.node.node_id))
        self.close()

    def close(self) -> None:
        """Closes the connection without unregistering the node."""
        self._client.close()


def _fetch(client: Any, node: FlowerNode, head: Message, tree: Any) -> bytes:
    """The content of a message with parts, which are fetched one at a time; the SuperLink may then delete them."""
    run, name = head.metadata.run_id, head.metadata.message_id
    pull = calls.make_pull_object_fn_protobuf(client.PullObject, node, run)
    contents = {part.object_id: _available(pull, part.object_id) for part in objects.iterate_object_tree(tree)}
    message: Any = utils.inflate_object_from_contents(tree.object_id, contents)
    client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name))
    return unwrap(message.content) if message.has_content() else b""


def _available(pull: Callable[[str], bytes], name: str) -> bytes:
    """A part of a message, which the server may still be sending."""
    deadline = time.monotonic() + UPLOAD
    while True:
        try:
            return pull(name)
        except ObjectUnavailableError:
            if time.monotonic() > deadline:
                raise ObjectPullError(name, f"it was not complete after {UPLOAD:g} s") from None
            time.sleep(SOONEST)


def register(port: int, authority: str | os.PathLike, publics: Iterable[bytes]) -> None:
    """Registers keys with the SuperLink on this loopback port, whose certificate the authority has signed."""
    trust = ssl.create_default_context(cafile=os.fspath(authority))
    with ControlHttpClient(f"https://127.0.0.1:{port}", verify=trust) as client:
        for public in publics:
            try:
                client.RegisterNode(RegisterNodeRequest(public_key=public))
            except httpx.HTTPStatusError as error:
                if f'"code":{int(ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE)}' not in error.response.text.replace(" ", ""):
                    raise


class Replied(NamedTuple):
    """The reply or the error for a message."""

    to: str
    """The message's id."""
    data: bytes | None
    error: str
    """Flower's error message if there are no data."""


class Mailbox:
    """The server's side: sends messages to nodes, and fetches their replies.

    A Flower message is a tree of three objects, each sent and fetched separately, so that a message and its reply take
    about sixteen requests to the SuperLink. fedhsa's nodes identify themselves in their first reply. For these nodes, a
    short message is sent in the name of its group and takes two requests.
    """

    def __init__(self, grid: Any):
        self._grid, self.ours = grid, set[int]()
        self._short: set[str] = set()  # messages that were sent in the name of a group
        self._asked: dict[str, int] = {}  # all other messages, and their nodes
        # Flower's grid waits a second when it finds a reply that is still being sent.
        soon = functools.partial(utils.pull_objects, initial_backoff=SOONEST, backoff_cap=LATEST)
        http_grid.__dict__["pull_objects"] = soon

    def nodes(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def push(self, nodes: Mapping[int, bytes]) -> dict[str, int]:
        """Sends a message to each node; returns the messages' ids and their nodes."""
        short = {node: data for node, data in nodes.items() if node in self.ours and len(data) <= SHORT}
        whole = {node: data for node, data in nodes.items() if node not in short}
        sent = self._push_short(short) if short else {}
        if whole:
            names = list(self._grid.push_messages([Message(wrap(data), node, TYPE) for node, data in whole.items()]))
            asked = {name: node for name, node in zip(names, whole, strict=True) if name}
            self._asked |= asked
            sent |= asked
        return sent

    def pull(self, names: Iterable[str]) -> list[Replied]:
        """The replies to these messages that have arrived, or errors."""
        names = set(names)
        short, whole = names & self._short, sorted(names - self._short)
        replies = self._pull_short(short) if short else []
        for reply in list(self._grid.pull_messages(whole)) if whole else []:
            to = reply.metadata.reply_to_message_id
            node = self._asked.pop(to, None)
            if not reply.has_content():
                replies.append(Replied(to, None, _in_words(reply)))
                continue
            if reply.metadata.group_id == OURS and node is not None:
                self.ours.add(node)
            replies.append(Replied(to, unwrap(reply.content), ""))
        return replies

    def _push_short(self, nodes: Mapping[int, bytes]) -> dict[str, int]:
        made = [_without_parts(Message(RecordDict(), node, TYPE), _as_group(data)) for node, data in nodes.items()]
        lists = {"messages_list": [head for head, _ in made], "message_object_trees": [tree for _, tree in made]}
        names = self._grid._runtime_client.PushMessages(PushAppMessagesRequest(**lists)).message_ids
        sent = {name: node for name, node in zip(names, nodes, strict=True) if name}
        self._short |= sent.keys()
        return sent

    def _pull_short(self, names: set[str]) -> list[Replied]:
        client, replies = self._grid._runtime_client, []
        found = client.PullMessages(PullAppMessagesRequest(message_ids=sorted(names)))
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            head = message_from_proto(proto)
            to = head.metadata.reply_to_message_id
            self._short.discard(to)
            data = _from_group(head.metadata.group_id)
            if head.has_error():
                replies.append(Replied(to, None, _in_words(head)))
            elif data:
                replies.append(Replied(to, data, ""))
            else:  # a long message
                try:
                    replies.append(Replied(to, _fetch(client, self._grid.node, head, tree), ""))
                except ObjectPullError as error:
                    replies.append(Replied(to, None, str(error)))
        return replies


def _in_words(message: Message) -> str:
    return message.error.reason or f"error {message.error.code}"


def serve(
    fleet: Fleet,
    answer: Callable[[bytes], bytes],
    *,
    tell: Callable[[str], object] = lambda words: None,
    ended: threading.Event | None = None,
) -> None:
    """Answers the server's messages until `ended` is set; reconnects whenever the connection fails.

    **Arguments:**

    - `fleet`: the connection.
    - `answer`: a function that takes a message and returns the reply; it must not raise.
    - `tell`: a function that is called with a sentence when the node has joined, or cannot join.
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
    """Answers messages until the SuperLink has removed this node or cannot be reached."""
    over = threading.Event()
    heart = threading.Thread(target=_beat, args=(fleet, over), daemon=True)
    heart.start()
    pace, replied = _Pace(), None
    try:
        while not ended.is_set() and not over.is_set():
            began = time.monotonic()
            try:
                asked = fleet.receive()
                pulled = time.monotonic()
                if asked is not None:
                    pace.came(None if replied is None else pulled - replied)
                    fleet.reply(asked, answer(asked.data), time.monotonic() - pulled)
                    replied = time.monotonic()
            except (ObjectPullError, ObjectPushError):
                pass  # the run has ended meanwhile, or the server will repeat its request
            except httpx.HTTPStatusError as error:
                of_ended_run = error.response.status_code == 403 and error.response.content
                if not of_ended_run:
                    raise
            ended.wait(pace.pause(time.monotonic() - began))
    finally:
        over.set()


class _Pace:
    """The time to wait before the next check for a message.

    Every check costs the SuperLink as much as a message, and between two messages to a node are the messages to all
    other nodes. So a node first waits for half the time between its last two messages.
    """

    def __init__(self):
        self._gap, self._looks = 0.0, 1

    def came(self, gap: float | None) -> None:
        """Records a message that came `gap` seconds after the last reply."""
        if gap is not None and gap < 5 * LATEST:  # otherwise the server was idle
            self._gap = gap if not self._gap else 0.7 * self._gap + 0.3 * gap
        self._looks = 0

    def pause(self, took: float) -> float:
        """The seconds to wait after a check that took `took` seconds."""
        self._looks += 1
        if self._looks == 1:
            return self._gap / 2
        return min(max(SOONEST * 1.1**self._looks, self._gap / 8, SHARE * took), LATEST)


def _beat(fleet: Fleet, over: threading.Event) -> None:
    """Sends heartbeats to the SuperLink; sets `over` when the SuperLink has removed the node."""
    while not over.wait(HEARTBEAT * 0.6):
        try:
            if not fleet.beat():
                over.set()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 401:
                over.set()
        except httpx.HTTPError:
            pass  # the other thread notices this too
        except RuntimeError:  # the connection was closed
            over.set()


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

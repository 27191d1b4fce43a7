"""Flower's own SuperLink inside the tests' process: its interfaces on a port, and the server's side of it as a grid."""

import contextlib
import logging
import pathlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import uvicorn
from fastapi.routing import iter_route_contexts
from flwr.app import Message
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.main import create_app

logging.getLogger("flwr").setLevel(logging.CRITICAL)


class SuperLink:
    """A SuperLink with one run under way."""

    def __init__(self, app: Any, port: int):
        self.app, self.port = app, port
        self.paths = {context.path for context in iter_route_contexts(app.routes)}
        self.state = app.state.linkstate_factory.state()
        config: dict[str, Any] = {}
        self.run = self.state.create_run(
            None, None, "hash", config, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (task,) = [task for task in self.state.get_tasks() if task.run_id == self.run]
        assert self.state.claim_task(task.task_id)
        assert self.state.activate_task(task.task_id)
        # Whoever makes messages is this run's server.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, self.run, SUPERLINK_NODE_ID


class LocalGrid:
    """The server's side: what Flower's grid does, without the process that it belongs to."""

    def __init__(self, superlink: SuperLink):
        self.state, self.run = superlink.state, superlink.run

    def get_node_ids(self) -> list[int]:
        return list(self.state.get_nodes(self.run))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            session = self.state.start_session(self.run)
            with no_object_id_recompute():
                name = message.object_id
                message.metadata.__dict__["_message_id"] = name
                parts = get_all_nested_objects(message)
                stored, missing = self.state.store_message_and_object_tree(message, get_object_tree(message), session)
                for part in missing:
                    assert self.state.store_object(self.run, session, part, parts[part].deflate())
            names.append(name if stored else "")
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        found, store = [], self.state.object_store
        for head in self.state.get_message_res(message_ids=set(names), run_id=self.run):
            name = head.metadata.message_id
            if head.has_error():
                found.append(head)
                continue
            tree = store.get_object_tree(name)
            contents: dict[str, bytes] = {}
            for part in iterate_object_tree(tree):
                while not contents.get(part.object_id):  # empty while the node is handing it in
                    contents[part.object_id] = store.get(part.object_id) or b""
            message = inflate_object_from_contents(name, contents)
            message.metadata.__dict__["_message_id"] = name
            found.append(message)
        self.state.delete_messages(message_ins_ids={message.metadata.reply_to_message_id for message in found})
        return found


@contextlib.contextmanager
def superlink(server: pathlib.Path) -> Iterator[SuperLink]:
    """A SuperLink with the certificate in this folder, on a free port of loopback."""
    app = create_app()
    app.state.enable_supernode_auth = True
    config = uvicorn.Config(
        app,
        port=0,
        ssl_certfile=str(server / "server.pem"),
        ssl_keyfile=str(server / "server.key"),
        log_level="critical",
        lifespan="off",
        ws="none",
        loop="asyncio",
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    try:
        while not running.started:
            thread.join(0.01)
            assert thread.is_alive()
        yield SuperLink(app, running.servers[0].sockets[0].getsockname()[1])
    finally:
        running.should_exit = True
        thread.join(10)

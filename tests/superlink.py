"""Flower's own SuperLink inside the tests' process: its interfaces on a port, and the grid of a run."""

import contextlib
import logging
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi.routing import iter_route_contexts
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.main import create_app

logging.getLogger("flwr").setLevel(logging.CRITICAL)


class SuperLink:
    """A SuperLink with one run under way."""

    def __init__(self, app: Any, port: int, authority: bytes):
        self.app, self.port = app, port
        self.paths = {context.path for context in iter_route_contexts(app.routes)}
        self.state = app.state.linkstate_factory.state()
        config: dict[str, Any] = {}
        self.run = self.state.create_run(
            None, None, "hash", config, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        (task,) = [task for task in self.state.get_tasks() if task.run_id == self.run]
        token = self.state.claim_task(task.task_id)
        assert token is not None
        assert self.state.activate_task(task.task_id)
        # Whoever makes messages is this run's server.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, self.run, SUPERLINK_NODE_ID
        self.grid = HttpGrid(f"127.0.0.1:{port}", root_certificates=authority, token=token)
        self.grid.set_run(self.state.get_run_info(run_ids=[self.run])[0])


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
        port = running.servers[0].sockets[0].getsockname()[1]
        found = SuperLink(app, port, (server / "ca.crt").read_bytes())
        yield found
        found.grid._disconnect()
    finally:
        running.should_exit = True
        thread.join(10)

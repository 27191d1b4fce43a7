"""A federation on Flower on this machine, whose processes start together, are watched, and end with the block."""

import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedhsa import _check, _files

from .. import keys
from ..local import free_port
from .processes import POLL, Kept, Processes, Value, toml

_FEDHSA = [sys.executable, "-P", "-m", "fedhsa", "deploy"]
"""The command line of fedhsa; `-P` ensures that a folder `fedhsa` in the current folder is not run instead."""


class Network(Processes):
    """A SuperLink with its gate and nodes on loopback: encrypted, authenticated by keys, and removed after the block.

    ```python
    with Network(nodes=3) as network:
        code = network.run("my-app", {"rounds": 5}, on_line=print)
    ```

    Every process started inside, directly or by Flower, ends with the block: after an exception, Ctrl-C, SIGTERM, and
    even when this process is killed. The temporary folder with the keys, Flower's home and the logs is also removed.

    !!! warning
        Flower does not authenticate users who start apps: while the network runs, any user of this machine can.
        fedhsa's nodes answer only messages that the server has signed; a stock SuperNode runs the app.

    **Arguments:**

    - `nodes`: the number of nodes.
    - `arguments`: the arguments of each node's command line, `fedhsa deploy node`, by its number.
    - `stock`: whether to start Flower's own SuperNodes instead, which run the server's app.
    - `node_config`: with `stock`, the settings of each node by its number; `partition-id`, `num-partitions` and `keys`
      are added. The app reads them in `context.node_config`.
    - `port`: the port of the gate. Default: a free port.
    - `options`: further arguments of `Processes`, `logs` and `patience`.
    """

    def __init__(
        self,
        nodes: int,
        *,
        arguments: Callable[[int], Sequence[str]] = lambda node: (),
        stock: bool = False,
        node_config: Callable[[int], Mapping[str, Value]] = lambda node: {},
        port: int | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        self.nodes, self.stock = _check.count("nodes", nodes), stock
        self._arguments, self._config, self._port = arguments, node_config, port
        self._superlink: Kept | None = None
        self._nodes: dict[int, Kept] = {}
        self.node_ids: dict[int, int] = {}
        """Flower's id of each node that is or was online."""

    def _begin(self) -> None:
        self.keys = keys.make_keys(self.folder / "keys", self.nodes)
        self.address = f"127.0.0.1:{self._port or free_port()}"
        self._begin_superlink()
        if self.stock:  # fedhsa's nodes retry until the gate runs
            self._await_superlink()
        for i in range(self.nodes):
            self._launch(i)
        if not self.stock:
            self._await_superlink()
        for i in range(self.nodes):
            self._await(i)

    @property
    def superlink_pid(self) -> int | None:
        """The process id of the SuperLink, or `None` when it does not run."""
        return self._superlink.pid if self._superlink is not None and self._superlink.alive else None

    @property
    def node_pids(self) -> dict[int, int]:
        return {i: node.pid for i, node in sorted(self._nodes.items()) if node.alive}

    def stop_node(self, node: int) -> None:
        """Asks a node to leave: it unregisters from the SuperLink, and may return immediately."""
        self._running(node).stop()

    def kill_node(self, node: int) -> None:
        """Kills a node and all its processes, as a power failure would."""
        self._running(node).kill()

    def start_node(self, node: int, *, wait: bool = True) -> None:
        """Restarts a node.

        After `kill_node` the SuperLink rejects a stock node until it has noticed that the old one is gone, which takes
        about a minute: the node is restarted until it is let in. A node of fedhsa is let in immediately.
        """
        if node in self._nodes and self._nodes[node].alive:
            raise ValueError(f"`node`: node {node} is running. Stop it first with `stop_node({node})`.")
        self._launch(node)
        if wait:
            self._await(node)

    def kill_superlink(self) -> None:
        """Kills the SuperLink and the server's app, as a power failure would."""
        if self._superlink is not None:
            self._superlink.kill()

    def start_superlink(self) -> None:
        """Restarts SuperLink and gate after `kill_superlink`, with the same address and keys and without a run."""
        self._begin_superlink()
        self._await_superlink()

    def _begin_superlink(self) -> None:
        words = ["superlink", "--keys", str(self.keys / "server"), "--listen", self.address, "--inner-port", "0"]
        words += ["--logs", str(self.log("superlink").parent)]
        self._superlink = self.start("gate", [*_FEDHSA, *words])

    def _await_superlink(self) -> None:
        deadline = time.monotonic() + self.patience
        assert self._superlink is not None
        while not (found := re.search(r"Runs are started here, at (\S+:\d+)\.", self._superlink.output())):
            if not self._superlink.alive or time.monotonic() > deadline:
                raise self.failed("gate", "did not start")
            time.sleep(POLL)
        self.point_to(found[1], self.keys / "server" / "ca.crt")

    def _launch(self, node: int) -> None:
        if not 0 <= node < self.nodes:
            raise ValueError(f"`node` must be from 0 to {self.nodes - 1}, got {node}.")
        own = self.keys / f"node-{node}"
        if self.stock:
            settings = self.folder / f"node-{node}.toml"
            config = {"partition-id": node, "num-partitions": self.nodes, "keys": str(own), **self._config(node)}
            _files.write_text(settings, toml(config))
            words = ["flower-supernode", "--superlink", self.address, "--node-config", str(settings)]
            words += ["--host", "127.0.0.1", "--port", str(free_port())]
            words += ["--root-certificates", str(own / "ca.crt"), "--auth-supernode-private-key", str(own / "key")]
        else:
            words = [*_FEDHSA, "node", "--superlink", self.address, "--keys", str(own), *self._arguments(node)]
        self._nodes[node] = self.start(f"node-{node}", words)

    def _await(self, node: int) -> None:
        """Waits until the SuperLink has let a node in, and restarts the node while it is rejected."""
        deadline = time.monotonic() + self.patience
        while True:
            # The log lines of a stock node and of a fedhsa node when the SuperLink has let it in.
            if found := re.findall(r"(?:SuperNode ID:|as Flower's node) (\d+)", self._nodes[node].output()):
                self.node_ids[node] = int(found[-1])
                return
            if self._superlink is not None and not self._superlink.alive:
                raise self.failed("gate", "ended while the nodes were starting")
            late = time.monotonic() > deadline
            if not self._nodes[node].alive:
                if late or not re.search("Failed to activate|address already in use", self._nodes[node].output(), re.I):
                    raise self.failed(f"node-{node}", "ended before it was online")
                self._launch(node)
            elif late:
                raise self.failed(f"node-{node}", f"was not online after {self.patience:g} s")
            time.sleep(POLL)

    def _running(self, node: int) -> "Kept":
        if node not in self._nodes or not self._nodes[node].alive:
            raise ValueError(f"`node`: node {node} is not running. Running are: {list(self.node_pids)}.")
        return self._nodes[node]


def run_on(
    address: str,
    app: str | os.PathLike,
    config: Mapping[str, Value] | None = None,
    on_line: Callable[[str], object] | None = None,
    *,
    root_certificates: str | os.PathLike | None = None,
) -> int:
    """Runs a Flower app on the federation of a remote SuperLink, and returns 0 only if it was completed.

    Ctrl-C stops watching but does not end the run; `flwr stop` ends it.

    **Arguments:**

    - `address`: the address of the SuperLink, host:port.
    - `app`, `config`, `on_line`: as for `Network.run`.
    - `root_certificates`: the certificates that verify the SuperLink's certificate; None for no encryption.
    """
    authority = None if root_certificates is None else pathlib.Path(root_certificates).absolute()
    if authority is not None and not authority.is_file():
        raise FileNotFoundError(f"`root_certificates`: there is no file {str(authority)!r}.")
    with Processes() as processes:
        processes.point_to(address, authority)
        return processes.run(app, config, on_line)

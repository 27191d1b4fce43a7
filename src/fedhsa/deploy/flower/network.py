"""Flower's processes on this machine: started together, watched, and gone when the block ends, however it ends."""

import os
import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from fedhsa import _check, _files

from .. import keys
from .processes import POLL, Kept, Processes, Value, free_port, toml


class Network:
    """A SuperLink and its SuperNodes on loopback: encrypted, nodes known by their keys, and gone when the block ends.

    ```python
    with Network(nodes=3) as network:
        code = network.run("my-app", {"rounds": 5}, on_line=print)
    ```

    Every process started inside, directly or by Flower, ends with the block: after an exception, Ctrl-C, SIGTERM, and
    even when this process is killed. So does the temporary folder with its keys, Flower's home and the logs.

    !!! warning
        Flower asks nobody who registers nodes or starts apps: while the network is up, so can any user of this machine.

    **Arguments:**

    - `nodes`: how many SuperNodes.
    - `node_config`: settings of each node, a sequence or a function of the node's number; `partition-id` and
        `num-partitions` are added. The app reads them in `context.node_config`.
    - `insecure`: without encryption and without checking who the nodes are.
    - `logs`: a folder for the log files, kept afterwards; otherwise they are removed with everything else.
    - `port`: of the SuperLink; a free one if not given.
    - `environment`: variables added to the environment of all processes.
    - `patience`: seconds to wait for the SuperLink and for each node to be ready.
    - `durable`: whether a SuperLink that is started again still knows the nodes' keys. It then keeps a database on
        disk, which many nodes on a busy machine find locked.
    """

    def __init__(
        self,
        nodes: int,
        *,
        node_config: Sequence[Mapping[str, Value]] | Callable[[int], Mapping[str, Value]] | None = None,
        insecure: bool = False,
        logs: str | os.PathLike | None = None,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
        patience: float = 120.0,
        durable: bool = False,
    ):
        self.nodes, self.durable = _check.count("nodes", nodes), durable
        if node_config is None:
            settings: list[Mapping[str, Value]] = [{} for _ in range(nodes)]
        elif callable(node_config):
            settings = [node_config(i) for i in range(nodes)]
        else:
            settings = list(node_config)
        if len(settings) != nodes:
            raise ValueError(f"`node_config` must have one entry for each of the {nodes} nodes, got {len(settings)}.")
        self._settings = [{"partition-id": i, "num-partitions": nodes, **s} for i, s in enumerate(settings)]
        self.insecure = insecure
        self._processes = Processes(logs, port, environment, patience)
        self._secrets: pathlib.Path | None = None
        self._superlink: Kept | None = None
        self._nodes: dict[int, Kept] = {}
        self.node_ids: dict[int, int] = {}
        """Flower's id of each node that is or was online."""

    def __enter__(self) -> Self:
        with self._processes.starting():
            register = None
            if not self.insecure:
                self._secrets = keys.make_keys(self.folder / "keys", self.nodes)
                publics = [str(self._secrets / f"node-{i}/key.pub") for i in range(self.nodes)]
                register = self._processes.register(publics)
            self.start_superlink()
            if register is not None:
                self._processes.finish(register, "register", "could not register the nodes' keys")
            for i in range(self.nodes):
                self._launch(i)
            for i in range(self.nodes):
                self._await(i)
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    @property
    def address(self) -> str:
        """Where the SuperLink listens, as host:port."""
        return self._processes.address

    @property
    def folder(self) -> pathlib.Path:
        """The temporary folder of this network."""
        return self._processes.folder

    @property
    def superlink_pid(self) -> int | None:
        """The process id of the SuperLink, or `None` when it does not run."""
        return self._superlink.pid if self._superlink is not None and self._superlink.alive else None

    @property
    def node_pids(self) -> dict[int, int]:
        """The process ids of the SuperNodes that run."""
        return {i: node.pid for i, node in sorted(self._nodes.items()) if node.alive}

    def log(self, name: str) -> pathlib.Path:
        """The log file of `superlink`, `node-0`, ..., or `run`."""
        return self._processes.log(name)

    def run(
        self,
        app: str | os.PathLike,
        config: Mapping[str, Value] | None = None,
        on_line: Callable[[str], object] | None = None,
    ) -> int:
        """Runs a Flower app on this network and returns 0 only if Flower says that it was completed.

        **Arguments:**

        - `app`: the folder with the app's `pyproject.toml`.
        - `config`: overrides of `[tool.flwr.app.config]`; its keys must be listed there.
        - `on_line`: called with each line of the server's output as it arrives.
        """
        return self._processes.run(app, config, on_line)

    def stop_node(self, node: int) -> None:
        """Asks a node to leave: it says goodbye to the SuperLink, and may come back at once."""
        self._running(node).stop()

    def kill_node(self, node: int) -> None:
        """Kills a node and all its processes, as a power failure would."""
        self._running(node).kill()

    def start_node(self, node: int, *, wait: bool = True) -> None:
        """Starts a node again.

        After `kill_node` the SuperLink rejects the node until it has noticed that the old one is gone, which takes
        about a minute: the node is started again until it is let in.
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
        """Starts the SuperLink, again after `kill_superlink`: same address, no run, with `durable` the same nodes."""
        if self._secrets is None:
            arguments = ["--insecure"]
        else:
            server = self._secrets / "server"
            arguments = ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.pem")]
            arguments += ["--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"]
        if self.durable:
            arguments += ["--database", str(self._processes.folder / "superlink.db")]
        authority = None if self._secrets is None else self._secrets / "server" / "ca.crt"
        self._superlink = self._processes.superlink(arguments, authority)

    def _launch(self, node: int) -> None:
        if not 0 <= node < self.nodes:
            raise ValueError(f"`node` must be from 0 to {self.nodes - 1}, got {node}.")
        settings = self._processes.folder / f"node-{node}.toml"
        _files.write_text(settings, toml(self._settings[node]))
        arguments = ["flower-supernode", "--superlink", self.address, "--node-config", str(settings)]
        arguments += ["--host", "127.0.0.1", "--port", str(free_port())]
        if self._secrets is None:
            arguments += ["--insecure"]
        else:
            own = self._secrets / f"node-{node}"
            arguments += ["--root-certificates", str(own / "ca.crt"), "--auth-supernode-private-key", str(own / "key")]
        self._nodes[node] = self._processes.start(f"node-{node}", arguments)

    def _await(self, node: int) -> None:
        """Waits until the SuperLink has let a node in, starting it again while it is rejected."""
        deadline = time.monotonic() + self._processes.patience
        while True:
            # Flower writes this line when the SuperLink has activated the node.
            if found := re.findall(r"SuperNode ID: (\d+)", self._nodes[node].output()):
                self.node_ids[node] = int(found[-1])
                return
            if self._superlink is not None and not self._superlink.alive:
                raise self._processes.failed("superlink", "ended while the nodes were starting")
            late = time.monotonic() > deadline
            if not self._nodes[node].alive:
                if late or not re.search("Failed to activate|address already in use", self._nodes[node].output(), re.I):
                    raise self._processes.failed(f"node-{node}", "ended before it was online")
                self._launch(node)
            elif late:
                raise self._processes.failed(f"node-{node}", f"was not online after {self._processes.patience:g} s")
            time.sleep(POLL)

    def _running(self, node: int) -> "Kept":
        if node not in self._nodes or not self._nodes[node].alive:
            raise ValueError(f"`node`: node {node} is not running. Running are: {list(self.node_pids)}.")
        return self._nodes[node]


def simulate(
    app: str | os.PathLike,
    nodes: int,
    config: Mapping[str, Value] | None = None,
    on_line: Callable[[str], object] | None = None,
    *,
    logs: str | os.PathLike | None = None,
    environment: Mapping[str, str] | None = None,
    patience: float = 120.0,
) -> int:
    """Runs a Flower app on Flower's simulation engine, which needs Ray, and returns 0 only if it was completed.

    No background SuperLink, no Ray process and no temporary folder is left. Arguments as for `Network`.
    """
    nodes = _check.count("nodes", nodes)
    processes = Processes(logs, None, environment, patience)
    # Ray keeps sockets in this folder, whose names may have no more than about 100 letters.
    crowded = len(tempfile.gettempdir()) > 30 and os.access("/tmp", os.W_OK)
    with processes.starting("/tmp" if crowded else None):
        processes.superlink(["--insecure", "--simulation"], None)
    try:
        # One core per node at a time: the default of two finds no room on a small machine.
        return processes.run(app, config, on_line, f"num-supernodes={nodes} client-resources-num-cpus=1")
    finally:
        processes.close()


def run_on(
    address: str,
    app: str | os.PathLike,
    config: Mapping[str, Value] | None = None,
    on_line: Callable[[str], object] | None = None,
    *,
    root_certificates: str | os.PathLike | None = None,
) -> int:
    """Runs a Flower app on the federation of a SuperLink elsewhere, and returns 0 only if it was completed.

    Ctrl-C ends the watching, not the run; `flwr stop` does.

    **Arguments:**

    - `address`: of the SuperLink, host:port.
    - `app`, `config`, `on_line`: as for `Network.run`.
    - `root_certificates`: what the SuperLink's certificate is checked against; None to go without encryption.
    """
    authority = None if root_certificates is None else pathlib.Path(root_certificates).absolute()
    if authority is not None and not authority.is_file():
        raise FileNotFoundError(f"`root_certificates`: there is no file {str(authority)!r}.")
    processes = Processes(None, None, None, 120.0)
    with processes.starting():
        processes.point_to(address, authority)
    try:
        return processes.run(app, config, on_line)
    finally:
        processes.close()

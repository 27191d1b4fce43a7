"""Nodes over gRPC as processes of this machine, for a look, for tests and for measurements; they end with this one."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Self

from . import keys

PATIENCE = 10.0
"""Seconds that a node has to end by itself."""
# The pipe on standard input ends with whoever holds its other end, however that ends; then so does the node.
_NODE = """
import os, sys, threading

def end_with_the_other_side():
    while os.read(0, 4096):
        pass
    os._exit(1)

threading.Thread(target=end_with_the_other_side, daemon=True).start()
from fedhsa.cli import main
sys.exit(main())
"""


def free_port() -> int:
    """A port of this machine that nobody listens to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LocalNodes:
    """Nodes that connect to a server on this machine, and the keys of all.

    ```python
    with LocalNodes(3, "127.0.0.1:8000", logs="logs") as nodes:
        federate_on_grpc(plan, rounds=5, listen="127.0.0.1:8000", keys=nodes.keys / "server", folder="out")
    ```

    All processes end with the block, and also when this process is killed; the keys are removed with the block.

    **Arguments:**

    - `nodes`: how many.
    - `address`: where the server listens, or will.
    - `arguments`: what each node gets on its command line, `fedhsa deploy node`, by its number.
    - `logs`: a folder for what they print. Default: they print where this process does.
    """

    def __init__(
        self,
        nodes: int,
        address: str,
        *,
        arguments: Callable[[int], Sequence[str]] = lambda number: (),
        logs: str | os.PathLike | None = None,
    ):
        self.nodes, self.address, self.arguments = nodes, address, arguments
        self.logs = None if logs is None else pathlib.Path(logs)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        """The process of each node that was started."""
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedhsa-"))  # mode 0700
            self.keys = keys.make_keys(pathlib.Path(home, "keys"), self.nodes)
            if self.logs is not None:
                self.logs.mkdir(parents=True, exist_ok=True)
            stack.callback(self._end_all)
            for number in range(self.nodes):
                self.start(number)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def start(self, number: int) -> None:
        where = ["--server", self.address, "--keys", str(self.keys / f"node-{number}")]
        with contextlib.nullcontext() if self.logs is None else open(self.logs / f"node-{number}.log", "ab") as log:
            self.processes[number] = subprocess.Popen(
                # -P, or a folder `fedhsa` wherever this is started would be run instead.
                [sys.executable, "-P", "-c", _NODE, "deploy", "node", *where, *self.arguments(number)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for the server, which ends the others
            )

    def kill(self, number: int) -> None:
        """Kills a node, as a power failure would."""
        with self.processes.pop(number) as process:  # closes its pipe and waits for it
            process.kill()

    def _end_all(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for number, process in list(self.processes.items()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            self.kill(number)

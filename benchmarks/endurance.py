"""A long run over a real network whose nodes are killed, paused and restarted, and whose server is killed too.

The nodes are processes started by their command, as users start them. The result is compared, bit by bit, with the
result of the same run in one process without faults.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import tyro

import fedhsa as fh
from fedhsa import deploy
from fedhsa.deploy.local import LocalNodes, free_port
from machine import RESULTS, machine, write


@dataclass(frozen=True)
class Settings:
    """Runs FedHSA among many nodes while processes are killed, and writes endurance.json.

    It has a table for each transport; `--transport flower --nodes 20 --rounds 50 --kills 8 --pauses 6` adds Flower.
    """

    transport: Literal["grpc", "flower"] = "grpc"
    nodes: int = 50
    rounds: int = 1000
    dim: int = 10
    kills: int = 20
    """the number of nodes that are killed (SIGKILL) and restarted up to three seconds later"""
    pauses: int = 20
    """the number of nodes that are stopped for up to three seconds (SIGSTOP, SIGCONT)"""
    server_kills: int = 2
    """the number of times that the server is killed and resumed"""
    secure: bool = False
    """with secure aggregation"""
    seed: int = 0
    limit: float = 3000.0
    """seconds after which the run counts as failed"""
    out: Path = RESULTS
    """the folder to write to"""

    @property
    def plan(self) -> deploy.Plan:
        sizes = {"num_agents": self.nodes, "dim": self.dim, "step_size": 0.02, "local_steps": 10}
        return deploy.Plan(**sizes, secure_aggregation=self.secure)


class Federation(Protocol):
    """A federation that is subjected to faults."""

    def start_node(self, number: int) -> None: ...
    def kill_node(self, number: int) -> None: ...
    def pids(self) -> dict[int, int]:
        """Returns the processes of the running nodes."""
        ...

    def start_server(self, resume: bool) -> None: ...
    def kill_server(self) -> None: ...
    def server_pids(self) -> list[int]: ...
    def ended(self) -> int | None:
        """Returns the server's exit status, or None while it runs."""
        ...


class OnGrpc:
    """One server process, and nodes that dial it."""

    def __init__(self, settings: Settings, folder: Path, nodes: LocalNodes):
        self.settings, self.folder, self.nodes = settings, folder, nodes
        self.server: subprocess.Popen | None = None

    def start_node(self, number: int) -> None:
        self.nodes.start(number)

    def kill_node(self, number: int) -> None:
        self.nodes.kill(number)

    def pids(self) -> dict[int, int]:
        return {number: process.pid for number, process in self.nodes.processes.items()}

    def start_server(self, resume: bool) -> None:
        plan = self.settings.plan
        words = ["--listen", self.nodes.address, "--keys", str(self.nodes.keys / "server"), "--out", "run"]
        words += ["--num-agents", str(plan.num_agents), "--dim", str(plan.dim), "--rounds", str(self.settings.rounds)]
        words += ["--step-size", str(plan.step_size), "--local-steps", str(plan.local_steps)]
        words += ["--resume"] * resume + ["--secure-aggregation"] * self.settings.secure
        with open(self.folder / "server.log", "ab") as log:
            command = [sys.executable, "-P", "-m", "fedhsa", "deploy", "grpc", *words]
            self.server = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def kill_server(self) -> None:
        assert self.server is not None
        self.server.kill()
        self.server.wait()

    def server_pids(self) -> list[int]:
        return [] if self.server is None else [self.server.pid]

    def ended(self) -> int | None:
        return None if self.server is None else self.server.poll()


class OnFlower:
    """A SuperLink behind its gate, the server's app in it, and nodes that request messages from the gate."""

    def __init__(self, settings: Settings, folder: Path, network: Any):
        self.settings, self.folder, self.network = settings, folder, network
        self._code: int | None = None
        self._watching: threading.Thread | None = None

    def start_node(self, number: int) -> None:
        self.network.start_node(number, wait=False)

    def kill_node(self, number: int) -> None:
        self.network.kill_node(number)

    def pids(self) -> dict[int, int]:
        return self.network.node_pids

    def start_server(self, resume: bool) -> None:
        from fedhsa.deploy.flower.write import write_app

        if resume:
            self.network.start_superlink()
        given = {"rounds": self.settings.rounds, "out": self.folder / "run", "keys": self.network.keys / "server"}
        app = write_app(self.folder / "app", self.settings.plan, resume=resume, **given)

        def watch() -> None:
            code = self.network.run(app)
            if self._watching is threading.current_thread():  # else the server was killed meanwhile
                self._code = code

        self._watching = threading.Thread(target=watch, daemon=True)
        self._watching.start()

    def kill_server(self) -> None:
        self._watching = None
        self.network.kill_superlink()

    def server_pids(self) -> list[int]:
        from fedhsa.deploy.flower._keeper import descendants

        pid = self.network.superlink_pid
        return [] if pid is None else [pid, *descendants(pid)]

    def ended(self) -> int | None:
        return self._code


@contextlib.contextmanager
def federation(settings: Settings, folder: Path) -> Iterator[Federation]:
    def arguments(number: int) -> list[str]:
        return ["--state", str(folder / "sites" / str(number))]

    if settings.transport == "grpc":
        address = f"127.0.0.1:{free_port()}"
        with LocalNodes(settings.nodes, address, arguments=arguments, logs=folder / "logs") as nodes:
            found = OnGrpc(settings, folder, nodes)
            try:
                yield found
            finally:
                found.kill_server()
    else:
        from fedhsa.deploy.flower.network import Network

        with Network(settings.nodes, arguments=arguments, logs=folder / "logs", patience=600.0) as network:
            yield OnFlower(settings, folder, network)


def rounds_done(folder: Path) -> int:
    """Returns the number of finished rounds, from the end of the log, since the log grows long."""
    with contextlib.suppress(FileNotFoundError), open(folder / "run" / "log.jsonl", "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
        for line in reversed(file.read().splitlines()):
            if b'"event": "round"' in line and line.endswith(b"}"):
                with contextlib.suppress(ValueError):  # the first line may be truncated
                    return int(json.loads(line)["round"])
    return 0


def memory(pids: list[int]) -> float:
    """Returns the memory of these processes in megabytes: private memory and their parts of shared memory."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total / 1024


def schedule(settings: Settings) -> list[tuple[int, str]]:
    """Returns the events and their rounds: random kills and pauses of nodes, evenly spaced kills of the server."""
    chance, last = random.Random(settings.seed), max(2, int(0.9 * settings.rounds))
    events = [(chance.randrange(1, last), "kill") for _ in range(settings.kills)]
    events += [(chance.randrange(1, last), "pause") for _ in range(settings.pauses)]
    events += [
        (settings.rounds * (i + 1) // (settings.server_kills + 1), "server") for i in range(settings.server_kills)
    ]
    return sorted(events)


def endure(found: Federation, settings: Settings, folder: Path) -> dict[str, Any]:
    """Runs the federation with all faults, and returns the measurements."""
    chance, todo, later = random.Random(settings.seed + 1), schedule(settings), []
    began = shown = time.monotonic()
    happened = {"kill": 0, "pause": 0, "server": 0}
    samples: list[dict[str, float]] = []
    found.start_server(resume=False)
    while (code := found.ended()) is None:
        now, done = time.monotonic(), rounds_done(folder)
        if now - began > settings.limit:
            raise TimeoutError(f"round {done} after {settings.limit:g} s")
        for entry in [entry for entry in later if entry[0] <= now]:
            later.remove(entry)
            entry[1]()
        while todo and todo[0][0] <= done:
            _, what = todo.pop(0)
            number, pids = chance.randrange(settings.nodes), found.pids()
            if what == "server":
                found.kill_server()
                found.start_server(resume=True)
            elif number not in pids:
                continue  # it is down already
            elif what == "kill":
                found.kill_node(number)
                later.append((now + 3 * chance.random(), lambda n=number: found.start_node(n)))
            else:
                os.kill(pids[number], signal.SIGSTOP)
                later.append((now + 3 * chance.random(), lambda p=pids[number]: wake(p)))
            happened[what] += 1
        if now > shown + 5:
            shown, pids = now, found.pids()
            sample = {"seconds": now - began, "round": done, "nodes": memory(list(pids.values())) / max(1, len(pids))}
            samples.append(sample | {"server": memory(found.server_pids())})
            print(" ".join(f"{name} {value:.0f}" for name, value in samples[-1].items()), happened, flush=True)
        time.sleep(0.02)
    if code:
        raise RuntimeError(f"the server ended with {code}")
    return {"seconds": time.monotonic() - began, "happened": happened, "samples": samples}


def wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def compare(settings: Settings, folder: Path) -> dict[str, Any]:
    """Compares the result with the same run in one process without faults, and with `simulate`."""
    (result,) = fh.load(folder / "run").values()
    plan, rounds = settings.plan, settings.rounds
    plain = deploy.in_memory(plan, folder / "plain").run(rounds)
    simulated = fh.simulate(plan.built_problem, plan.method, rounds=rounds, key=plan.key).theta
    alone = np.asarray(plain.server.theta)
    with open(folder / "run" / "log.jsonl") as file:
        events = [json.loads(line) for line in file]
    times = [event["seconds"] for event in events if event["event"] == "round"]
    return {
        "bit_identical": bool(np.array_equal(result.theta, alone)),
        "from_memory": float(np.abs(result.theta - alone).max()),
        "from_simulate": float(np.abs(result.theta - simulated).max()),
        "median_round": float(np.median(times)),
        "longest_round": float(np.max(times)),
        "resumed": sum(event["event"] == "resumed" for event in events),
    }


def main(settings: Settings) -> None:
    where = machine()
    with tempfile.TemporaryDirectory(prefix="fedhsa-endurance-") as name:
        folder = Path(name)
        with federation(settings, folder) as found:
            numbers = endure(found, settings, folder)
        numbers |= compare(settings, folder)
    earlier = settings.out / "endurance.json"
    known = json.loads(earlier.read_text()) if earlier.exists() else {"measured": {}, "tables": {}}
    known["measured"][settings.transport] = numbers | {"settings": asdict(settings)}
    known["tables"][settings.transport] = table(settings, numbers)
    write(__file__, settings.out, where, {"measured": known["measured"]}, known["tables"])
    print({name: value for name, value in numbers.items() if name != "samples"})


def table(settings: Settings, numbers: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the rows for a page."""
    happened, (first, last) = numbers["happened"], (numbers["samples"][k] for k in (0, -1))
    server = {"grpc": "server", "flower": "SuperLink and server"}[settings.transport]
    return [
        ("", {"grpc": "over gRPC", "flower": "on Flower"}[settings.transport]),
        ("nodes", str(settings.nodes)),
        ("rounds", str(settings.rounds)),
        ("nodes killed and started again", str(happened["kill"])),
        ("nodes stopped for up to three seconds", str(happened["pause"])),
        (f"{server} killed and resumed", str(happened["server"])),
        ("equal to the run in one process, bit for bit", "yes" if numbers["bit_identical"] else "no"),
        ("seconds in all, including the start of all processes", f"{numbers['seconds']:.0f}"),
        ("median of a round, s", f"{numbers['median_round']:.2f}"),
        ("memory of a node, MB, at the beginning and at the end", f"{first['nodes']:.0f}, {last['nodes']:.0f}"),
        (f"memory of the {server}, MB", f"{first['server']:.0f}, {last['server']:.0f}"),
    ]


if __name__ == "__main__":
    main(tyro.cli(Settings))

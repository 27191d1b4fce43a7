"""The cost of an exchange by messages in memory, over gRPC, on Ray and on Flower, next to bare messages."""

import contextlib
import functools
import json
import pathlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from fedhsa.deploy import AbstractTransport, MemoryTransport, Plan, Server, Store, wire
from fedhsa.deploy import ray as on_ray
from fedhsa.deploy import site as site_module
from fedhsa.deploy.compiled import Compiled
from fedhsa.deploy.grpc import GrpcTransport
from fedhsa.deploy.local import LocalNodes, free_port
from fedhsa.deploy.server import hello
from fedhsa.deploy.signing import Identity
from fedhsa.engine.placement import count_cores
from machine import RESULTS, load, machine, write

STAGES = ("unpack", "compute", "pack", "save")


@dataclass(frozen=True)
class Settings:
    """Times exchanges of FedHSA with 10 local steps and writes deploy.json."""

    actors: int = 4
    """the number of processes, or of sites in memory"""
    seconds: float = 8.0
    """the duration of each case's measurement, after its programs are compiled"""
    flower_rounds: int = 6
    """rounds, and bare exchanges, of Flower's own nodes, twice each; our nodes run five times this number"""
    local_steps: int = 10
    only: tuple[Literal["grpc", "ray", "flower", "stock"], ...] = ("grpc", "ray", "flower", "stock")
    """the cases to measure; stock means Flower's own nodes, which take long"""
    quick: bool = False
    """the smallest cases and short measurements, to check that everything works"""
    out: Path = RESULTS
    """the folder to write to"""


@dataclass(frozen=True)
class Case:
    per_site: int
    dim: int

    def plan(self, settings: Settings) -> Plan:
        path = Path(__file__).with_name("deploy_agents.py")
        return Plan(
            agent=f"{path}:{'small' if self.dim == 10 else 'large'}",
            num_agents=settings.actors * self.per_site,
            dim=self.dim,
            step_size=0.01,
            local_steps=settings.local_steps,
        )


GRPC = [(Case(1, 10), 1), (Case(1, 10), 3), (Case(1, 10_000), 3), (Case(1, 10), 10)]
"""The cases over gRPC, and their numbers of nodes."""
FLOWER = [(1, Case(1, 10), False), (3, Case(1, 10), False), (10, Case(1, 10), False), (1, Case(1, 10), True)]
"""The cases on Flower: the number of nodes, and whether they are Flower's own."""
CASES = [Case(1, 10), Case(100, 10), Case(10_000, 10), Case(1, 10_000), Case(100, 10_000)]


class Stopwatch:
    """The seconds spent in functions, by their names."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    def wrap(self, name: str, function: Callable) -> Callable:
        @functools.wraps(function)
        def timed(*args, **kwargs):
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        return timed


class TimedActor(on_ray.SiteActor):
    """A site that reports the time of each stage."""

    def __init__(self, given: bytes):
        super().__init__(given)
        self.watch, self.samples = Stopwatch(), []
        site_module.__dict__["unpack"] = self.watch.wrap("unpack", wire.unpack)
        site_module.__dict__["pack"] = self.watch.wrap("pack", wire.pack)
        Store.save = self.watch.wrap("save", Store.save)
        call = Compiled.__call__
        Compiled.__call__ = self.watch.wrap("compute", lambda *args: jax.block_until_ready(call(*args)))
        self.ask = self.watch.wrap("answer", super().answer)

    def answer(self, message: bytes) -> bytes:
        self.watch.seconds = {}
        reply = self.ask(message)
        self.samples.append(self.watch.seconds)
        return reply

    def times(self) -> bytes:
        """Returns the mean times of a reply's stages since the last call, as JSON."""
        names = ("answer", *STAGES)
        means = {name: statistics.fmean(sample.get(name, 0.0) for sample in self.samples) for name in names}
        self.samples = []
        return json.dumps(means).encode()


class BareActor:
    """A baseline on Ray alone: bytes are sent, and replies have the size of ours."""

    def __init__(self, sizes: bytes):
        self.replies = {asked: bytes(size) for asked, size in json.loads(sizes)}

    def answer(self, message: bytes) -> bytes:
        return self.replies[len(message)]


class Measured(AbstractTransport):
    """A transport that records its time and the sizes of the messages."""

    def __init__(self, inner: AbstractTransport):
        self.inner, self.seconds = inner, 0.0
        self.requests: list[list[bytes]] = []
        self.replies: list[list[bytes]] = []

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.name

    def present(self) -> set[int]:
        return self.inner.present()

    def exchange(self, messages, seconds) -> Iterator[bytes]:
        self.requests = [*self.requests[-1:], list(messages.values())]
        self.replies = [*self.replies[-1:], []]
        began = time.perf_counter()
        for reply in self.inner.exchange(messages, seconds):
            self.seconds += time.perf_counter() - began
            self.replies[-1].append(reply)
            yield reply
            began = time.perf_counter()


def shards(plan: Plan, actors: int) -> list[list[int]]:
    return [numbers.tolist() for numbers in np.array_split(np.arange(plan.num_agents), actors)]


def blocks(server: Server, transport: Measured, settings: Settings, between: Callable[[], None]) -> dict[str, float]:
    """Runs blocks of rounds for some time; returns medians over the blocks of the seconds per exchange."""
    per_round = len(server.schemas[0])
    server.run(3)  # compiles
    between()
    began, size, totals, ours = time.perf_counter(), 2, [], []
    while not totals or time.perf_counter() - began < settings.seconds:
        transport.seconds, start = 0.0, time.perf_counter()
        server.run(server.progress.round + size)
        seconds = time.perf_counter() - start
        totals.append(seconds / size / per_round)
        ours.append((seconds - transport.seconds) / size / per_round)
        between()
        size = 20 if seconds / size < 0.1 else 2
    return {"exchange": statistics.median(totals), "fastest": min(totals), "server": statistics.median(ours)}


def wire_ratio(server: Server, transport: Measured) -> float:
    """Returns the bytes of a round's messages relative to the bytes of the arrays in them."""
    sent = sum(len(data) for side in (transport.requests, transport.replies) for batch in side for data in batch)
    return sent / sum(schema.num_bytes for site in server.schemas for _, *both in site for schema in both)


def make_server(plan: Plan, transport: Measured, settings: Settings, folder: Path) -> Server:
    server = Server(plan.task, transport, shards(plan, settings.actors), folder=folder, run="benchmark")
    assert server.store is not None
    server.store.sync = False
    return server


def in_memory(case: Case, settings: Settings) -> dict[str, Any]:
    plan = case.plan(settings)
    with tempfile.TemporaryDirectory() as name:
        parts, folder = shards(plan, settings.actors), pathlib.Path(name)
        stores = [Store(folder / f"{i}.state", sync=False) for i in range(settings.actors)]
        sites = [plan.site(numbers, store, "benchmark") for numbers, store in zip(parts, stores, strict=True)]
        transport = Measured(MemoryTransport(sites.__getitem__, settings.actors))
        server = make_server(plan, transport, settings, folder)
        times = blocks(server, transport, settings, lambda: None)
    return {
        "transport": f"memory, {settings.actors}",
        **asdict(case),
        "seconds": times,
        "wire": wire_ratio(server, transport),
    }


def on_ray_actors(case: Case, settings: Settings) -> dict[str, Any]:
    """Measures our messages and bare messages in turns, so that other load on the machine affects both equally."""
    ray, plan = on_ray.import_ray(), case.plan(settings)
    with tempfile.TemporaryDirectory() as name:
        folder, parts = pathlib.Path(name), shards(plan, settings.actors)

        def start(site: int) -> Any:
            path = [entry for entry in sys.path if entry]
            return on_ray.start_actor(
                plan, parts[site], folder / f"{site}.state", "benchmark", 1.0, None, path, TimedActor
            )

        inner = on_ray.RayTransport(start, settings.actors)
        transport = Measured(inner)
        server = make_server(plan, transport, settings, folder)
        bare: list[float] = []
        stages: list[dict[str, float]] = []
        echo: list[Any] = []
        sizes: list[tuple[int, int]] = []

        def between() -> None:
            first = not echo
            if first:
                pairs = zip(transport.requests, transport.replies, strict=True)
                sizes.extend((len(asked[0]), len(given[0])) for asked, given in pairs)
                made = ray.remote(num_cpus=0)(BareActor)
                echo.extend(made.remote(json.dumps(sizes).encode()) for _ in range(settings.actors))
            seconds = bare_exchanges(ray, echo, sizes)
            inside = [json.loads(t) for t in ray.get([actor.times.remote() for actor in inner.actors.values()])]
            if not first:  # the first one compiles and starts
                bare.append(seconds)
                stages.extend(inside)

        try:
            times = blocks(server, transport, settings, between)
        finally:
            inner.close()
            for actor in echo:
                ray.kill(actor)
    inside = {name: statistics.median(stage[name] for stage in stages) for name in ("answer", *STAGES)}
    times |= {"bare": statistics.median(bare), "bare_fastest": min(bare)}
    times |= {"on_top": times["exchange"] - times["bare"]}
    times |= {f"actor_{name}": seconds for name, seconds in inside.items()}
    return {
        "transport": f"ray, {settings.actors}",
        **asdict(case),
        "seconds": times,
        "wire": wire_ratio(server, transport),
    }


def bare_exchanges(ray: Any, echo: list[Any], sizes: list[tuple[int, int]]) -> float:
    """Returns the seconds per exchange of unread messages with the size of ours."""
    began = time.perf_counter()
    for _ in range(3):
        for asked, _ in sizes:
            ray.get([actor.answer.remote(bytes(asked)) for actor in echo])
    return (time.perf_counter() - began) / 3 / len(sizes)


# A node whose replies have the size of ours, and which does nothing else.
BARE_NODE = """
import json, queue, sys
import grpc
from fedhsa.deploy.signing import Identity
address, folder, sizes = sys.argv[1:]
own, replies = Identity.load(folder), {asked: bytes(given) for asked, given in json.loads(sizes)}
secret, out = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem), queue.SimpleQueue()
for data in grpc.secure_channel(address, secret).stream_stream("/Bare/Join")(iter(out.get, None)):
    out.put(replies[len(data)])
"""


class BareGrpc:
    """A baseline on gRPC alone: the same keys, streams and sizes, with unread messages."""

    def __init__(self, keys: Path, sites: int, sizes: list[tuple[int, int]]):
        import grpc

        self.sites, self.sizes = sites, sizes
        self.arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.streams: list[queue.SimpleQueue[bytes]] = []

        def join(incoming, context):
            mine: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            threading.Thread(target=lambda: [self.arrived.put(data) for data in incoming], daemon=True).start()
            self.streams.append(mine)
            yield from iter(mine.get, b"")

        own = Identity.load(keys / "server")
        secret = grpc.ssl_server_credentials([(own.key_pem, own.certificate_pem)], own.authority_pem, True)
        self.server = grpc.server(futures.ThreadPoolExecutor(sites))
        handlers = {"Join": grpc.stream_stream_rpc_method_handler(join)}
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Bare", handlers)])
        address = f"127.0.0.1:{self.server.add_secure_port('127.0.0.1:0', secret)}"
        self.server.start()
        words = [sys.executable, "-c", BARE_NODE, address]
        self.nodes = [subprocess.Popen([*words, keys / f"node-{i}", json.dumps(sizes)]) for i in range(sites)]
        while len(self.streams) < sites:
            time.sleep(0.05)

    def exchanges(self, count: int = 10) -> float:
        """Returns the seconds per exchange."""
        began = time.perf_counter()
        for _ in range(count):
            for asked, _ in self.sizes:
                for stream in self.streams:
                    stream.put(bytes(asked))
                for _ in range(self.sites):
                    self.arrived.get()
        return (time.perf_counter() - began) / count / len(self.sizes)

    def close(self) -> None:
        for stream in self.streams:
            stream.put(b"")
        self.server.stop(0.2).wait()
        for node in self.nodes:
            node.kill()
            node.wait()


def over_grpc(case: Case, settings: Settings) -> dict[str, Any]:
    """Measures our messages and bare messages in turns: nodes are processes of this machine, encrypted, with keys."""
    plan, listen = case.plan(settings), f"127.0.0.1:{free_port()}"
    agent = ["--agent", str(plan.agent), "--no-sync"]  # the disk's time is not measured
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with LocalNodes(settings.actors, listen, arguments=lambda number: agent, logs=folder / "logs") as nodes:
            inner = GrpcTransport(
                listen, nodes.keys / "server", plan.task, lambda: hello(plan.task, server.run_id, plan)
            )
            transport = Measured(inner)
            server = make_server(plan, transport, settings, folder)
            bare: list[float] = []
            echo: list[BareGrpc] = []

            def between() -> None:
                if echo:
                    bare.append(echo[0].exchanges())
                    return
                pairs = zip(transport.requests, transport.replies, strict=True)
                sizes = [(len(asked[0]), len(given[0])) for asked, given in pairs]
                echo.append(BareGrpc(nodes.keys, settings.actors, sizes))
                echo[0].exchanges()

            try:
                times = blocks(server, transport, settings, between)
            finally:
                inner.close()
                for one in echo:
                    one.close()
    times |= {"bare": statistics.median(bare), "bare_fastest": min(bare)}
    times |= {"on_top": times["exchange"] - times["bare"]}
    sites = f"grpc, {settings.actors}"
    return {"transport": sites, **asdict(case), "seconds": times, "wire": wire_ratio(server, transport)}


BARE_SERVER = """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    wanted, size = context.run_config["nodes"], context.run_config["size"]
    while len(nodes := list(grid.get_node_ids())) < wanted:
        time.sleep(0.2)
    for _ in range(context.run_config["exchanges"]):
        began = time.perf_counter()
        record = RecordDict({"bare": ConfigRecord({"message": bytes(size)})})
        replies = list(grid.send_and_receive([Message(record, node, "query.bare") for node in nodes]))
        assert len(replies) == wanted and all(reply.has_content() for reply in replies)
        print("exchange", time.perf_counter() - began, flush=True)
"""
BARE_CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query("bare")
def answer(message, context):
    return Message(message.content, reply_to=message)
"""
BARE_PROJECT = """
[project]
name = "bare"
version = "1.0.0"
license = "MIT"

[tool.flwr.app]
publisher = "fedhsa"

[tool.flwr.app.components]
serverapp = "bare.server:app"
clientapp = "bare.client:app"

[tool.flwr.app.config]
nodes = {nodes}
size = {size}
exchanges = {exchanges}
"""


def on_flower_nodes(nodes: int, case: Case, settings: Settings, stock: bool = False) -> dict[str, Any]:
    """Measures a SuperLink behind its gate and nodes on loopback; Flower's own nodes alternate with bare messages."""
    from fedhsa.deploy.flower.network import Network
    from fedhsa.deploy.flower.write import write_app

    plan = replace(case, per_site=1).plan(replace(settings, actors=nodes))
    rounds = 2 if settings.quick else settings.flower_rounds * (1 if stock else 5)
    bare, ours, first, sent = [], [], [], []
    agent = [] if stock else ["--agent", str(plan.agent)]

    def note(line: str) -> None:
        if line.startswith("exchange "):
            bare.append(float(line.split()[1]))

    with tempfile.TemporaryDirectory() as name, Network(nodes, stock=stock, arguments=lambda node: agent) as network:
        home, exchanges = pathlib.Path(name), len(plan.method.exchanges)
        for turn in range(2):
            if stock:
                assert network.run(bare_app(home / "bare", nodes, case, rounds), on_line=note) == 0
            out = home / f"out-{turn}"
            settings_of_run: dict[str, Any] = {"out": out, "state": home / "state", "keys": network.keys / "server"}
            assert network.run(write_app(home / "app", plan, rounds=rounds, **settings_of_run)) == 0
            events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
            events = [event for event in events if event["event"] == "round"]
            seconds = [event["seconds"] / exchanges for event in events]
            first.append(seconds[0])  # the nodes register, load and compile in it
            ours += seconds[1:]
            payload = nodes * exchanges * 8 * case.dim
            sent.append((events[-1]["bytes_down"] + events[-1]["bytes_up"]) / 2 / payload)
    times = {"exchange": statistics.median(ours), "first": statistics.median(first), "exchange_all": ours}
    if stock:
        times |= {"bare": statistics.median(bare), "bare_all": bare}
        times |= {"on_top": times["exchange"] - times["bare"]}
    kind = "flower, stock" if stock else "flower"
    return {"transport": f"{kind}, {nodes}", "per_site": 1, "dim": case.dim, "seconds": times, "wire": sent[-1]}


def bare_app(folder: pathlib.Path, nodes: int, case: Case, exchanges: int) -> pathlib.Path:
    """Writes an app whose messages have the size of ours and no content."""
    package = folder / "bare"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "server.py").write_text(BARE_SERVER)
    (package / "client.py").write_text(BARE_CLIENT)
    project = BARE_PROJECT.format(nodes=nodes, size=8 * case.dim + 300, exchanges=exchanges)
    (folder / "pyproject.toml").write_text(project)
    return folder


def show(rows: list[dict[str, Any]], console: Console) -> None:
    shown = ["exchange", "bare", "on_top", "server", *(f"actor_{name}" for name in ("answer", *STAGES))]
    table = Table("transport", "agents\nper site", "d", title="milliseconds")
    for name in [*shown, "bytes_per_payload"]:
        table.add_column(name.replace("_", "\n", 1).replace("_", " "), justify="right")
    for row in rows:
        cells = [f"{1e3 * row['seconds'][name]:.2f}" if name in row["seconds"] else "" for name in shown]
        table.add_row(row["transport"], f"{row['per_site']:,}", f"{row['dim']:,}", *cells, f"{row['wire']:.3f}")
    console.print(table)


def main(settings: Settings) -> None:
    if settings.quick:
        settings = replace(settings, actors=2, seconds=0.5, out=settings.out / "quick")
    cases = CASES[:1] if settings.quick else CASES
    console, where = Console(width=None if sys.stdout.isatty() else 160), machine()
    if where["load"] > 0.5:
        console.print(f"Something else is running (load {where['load']:.1f}): expect noise.", style="yellow")
    rows = []
    for case, sites in (GRPC[:1] if settings.quick else GRPC) * ("grpc" in settings.only):
        began = load()
        rows.append(over_grpc(case, replace(settings, actors=sites)) | {"load": [began, load()]})
        show(rows[-1:], console)
    cores = replace(settings, actors=count_cores())  # the number of actors that `fedhsa deploy ray` starts
    on_cluster = on_ray.private_ray(max(settings.actors, cores.actors))
    with on_cluster if "ray" in settings.only else contextlib.nullcontext():
        for case, given in [(CASES[0], cores), *((case, settings) for case in cases)] * ("ray" in settings.only):
            for measure in (in_memory, on_ray_actors):
                began = load()
                rows.append(measure(case, given) | {"load": [began, load()]})
                show(rows[-1:], console)
    for nodes, case, stock in FLOWER[:1] if settings.quick else FLOWER:
        if ("stock" if stock else "flower") not in settings.only:
            continue
        began = load()
        rows.append(on_flower_nodes(nodes, case, settings, stock) | {"load": [began, load()]})
        show(rows[-1:], console)
    show(rows, console)
    report = {"settings": asdict(settings), "measured": rows}
    write(__file__, settings.out, where, report, {kind: table(rows, kind) for kind in ("grpc", "ray", "flower")})


def table(rows: list[dict[str, Any]], kind: str) -> list[tuple[str, ...]]:
    """Returns the exchanges of one transport, and those in memory beside Ray."""
    headings = ("sites", "agents per site", "parameters", "an exchange, ms", "bare message, ms", "in memory, ms")
    found: list[tuple[str, ...]] = [headings]
    memory = {
        (row["transport"].partition(", ")[2], row["per_site"], row["dim"]): row["seconds"]["exchange"]
        for row in rows
        if row["transport"].startswith("memory")
    }
    for row in rows:
        name, _, sites = row["transport"].rpartition(", ")
        if name == kind or (kind == "flower" and name == "flower, stock"):
            same = memory.get((sites, row["per_site"], row["dim"])) if kind == "ray" else None
            times = [row["seconds"]["exchange"], row["seconds"].get("bare"), same]
            sites = f"{sites} of Flower" if "stock" in name else sites
            cells = ("" if x is None else f"{1e3 * x:.3g}" for x in times)
            found.append((sites, f"{row['per_site']:,}", f"{row['dim']:,}", *cells))
    kept = [k for k in range(len(found[0])) if k < 3 or any(row[k] for row in found[1:])]
    return [tuple(row[k] for k in kept) for row in found]


if __name__ == "__main__":
    main(tyro.cli(Settings))

"""A small federation in one folder, whose server and sites can be killed and started again."""

import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import fedhsa as fh
from cases import CASES
from fedhsa import tree
from fedhsa.deploy import Faults, Killed, MemoryTransport, Missing, Server, Site, Store, Task
from fedhsa.deploy.outcome import Progress
from fedhsa.deploy.wire import unpack

PHASES = ("sent", "collected", "aggregated", "checkpointed")
ALGORITHMS: dict[str, fh.AbstractAlgorithm] = {
    "FedHSA": fh.FedHSA(0.05, 3),
    "LocalSA": fh.LocalSA(0.05, 3),
    "SCAFFLSA": fh.SCAFFLSA(0.05, 3),
    "SCAFFOLD": fh.SCAFFOLD(0.05, 3),
}


@functools.cache
def make_task(name: str) -> Task:
    problem = CASES["td"]().problem
    theta = np.linspace(-1, 1, problem.dim)
    example = tree.take(problem.flat_agents, 0)
    return Task(ALGORITHMS[name], problem.num_agents, theta, key=3, example=example)


class Federation:
    """Three agents, each a site of its own. What processes would share is in `folder`, nothing else outlives them."""

    def __init__(
        self,
        folder: pathlib.Path,
        algorithm: str = "FedHSA",
        *,
        task: Task | None = None,
        problem: fh.Problem | None = None,
        sites: Sequence[Sequence[int]] = ((0,), (1,), (2,)),
    ):
        self.folder, self.sites = folder, sites
        self.task = make_task(algorithm) if task is None else task
        self.problem = CASES["td"]().problem if problem is None else problem
        self.events: list[dict[str, Any]] = []

    def site(self, site: int, run: str) -> Site:
        """A site's process starts."""
        numbers = self.sites[site]
        agents = tree.take(self.problem.flat_agents, np.asarray(numbers))
        return Site(self.task, agents, numbers, self.store(site, run), run)

    def store(self, site: int, run: str) -> Store:
        return Store(self.folder / "sites" / run / f"{site}.state", sync=False)

    def server(
        self, faults: Faults | None = None, missing: Missing | None = None, kind: type = MemoryTransport, **options: Any
    ) -> Server:
        """A server's process starts, and with it a transport that has forgotten what was on its way."""
        transport = kind(lambda site: self.site(site, server.run_id), len(self.sites), faults)
        options = {"folder": self.folder, "theta_star": self.problem.theta_star, "run": "test"} | options
        server = Server(self.task, transport, self.sites, missing=missing, watch=self.events.append, **options)
        if server.store is not None:
            server.store.sync = False
        return server

    def saved(self, run: str = "test") -> list[tuple]:
        """What the sites have saved, without the messages: those are of each attempt."""
        found = [self.store(site, run).load() for site in range(len(self.sites))]
        return [
            (
                {name: packet.header[name] for name in ("round", "blocks")},
                {name: a.tolist() for name, a in packet.arrays.items() if not name.startswith("reply/")},
            )
            for packet in found
            if packet is not None
        ]

    def named(self, name: str) -> list[dict[str, Any]]:
        """The events of this name."""
        return [event for event in self.events if event["event"] == name]


class Scripted(MemoryTransport):
    """Sites of which some cannot be reached, or cannot be heard, in some exchanges."""

    def __init__(self, start: Callable, num_sites: int, faults: Faults | None = None):
        super().__init__(start, num_sites, faults)
        self.gone: Callable[[int, int], set[int]] = lambda t, exchange: set()
        """Who gets no message in this exchange of round `t`."""
        self.mute: Callable[[int, int], set[int]] = lambda t, exchange: set()
        """Whose reply is lost."""
        self.round: Callable[[], int] = lambda: 0
        self.asked: list[tuple[int, int, int]] = []
        """Round, exchange and site of each message."""

    def present(self) -> set[int]:
        self.absent = self.gone(self.round(), 0)
        return super().present()

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[bytes]:
        for site, message in messages.items():
            header = unpack(message).header
            t, number = header["round"], header["exchange"]
            self.asked.append((t, number, site))
            if site in self.gone(t, number):
                continue
            reply = self._ask(site, message)
            if site not in self.mute(t, number):
                yield reply

    def trouble(self, site: int) -> str | None:
        return "nobody is there"


def scripted(federation: Federation, missing: Missing, gone=None, mute=None, **options: Any) -> Server:
    """A server whose sites come and go as the functions of round and exchange say."""
    server = federation.server(missing=missing, kind=Scripted, **options)
    transport: Any = server.transport
    transport.round = lambda: server.progress.round
    transport.gone, transport.mute = gone or transport.gone, mute or transport.mute
    return server


def kill_at(place: int) -> Callable[[str], None]:
    """Ends a process at the `place`-th point of its way, from 0."""
    left = [place]

    def phase(name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    return phase


def survive(federation: Federation, rounds: int, faults: Faults, kills: Sequence[tuple[int, bool]]) -> Progress:
    """Runs to the end through all faults; the server is killed at each of `kills`, and with it all sites, or none."""
    server = federation.server(faults)
    for place, with_sites in kills:
        server.phase = kill_at(place)
        try:
            return server.run(rounds)
        except Killed:
            old, server = server, federation.server(faults)
            if not with_sites:
                server.transport = old.transport  # and what is late still comes
            server.resume()
    return server.run(rounds)


def theta(progress: Progress) -> np.ndarray:
    return np.asarray(progress.server.theta)[0]


def requests(federation: Federation, rounds: int = 1) -> list[bytes]:
    """All messages to site 0 in so many rounds."""
    server, sent = federation.server(folder=None), []
    exchange = server.transport.exchange

    def listen(messages, seconds):
        sent.append(messages[0])
        yield from exchange(messages, seconds)

    server.transport.exchange = listen
    server.run(rounds)
    return sent


def word(reply: bytes) -> str:
    """What a site says: the kind of its reply, or why it refuses."""
    header = unpack(reply).header
    return header["kind"] if header["kind"] != "rejection" else header["code"]

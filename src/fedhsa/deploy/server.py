"""The server's side of a round: send, collect from a fixed cohort, average in a fixed order, aggregate, checkpoint."""

import contextlib
import json
import pathlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import tree
from .._types import precision
from ..algorithms import Replies
from ..engine import batch
from ..engine.run import DIVERGED
from .journal import Journal
from .missing import Missing
from .schema import Schema, of_some
from .site import HELLO
from .store import Store
from .task import Task
from .transport import AbstractTransport
from .wire import Packet, Refused, pack, unpack

BOOT = 2**20
"""Attempts are numbered from a multiple of this: each start of the server has numbers of its own."""


class FederationError(RuntimeError):
    """The run cannot go on; what was done until the last finished round is kept."""


class Record(NamedTuple):
    """What is kept of each round; entry 0 is before the first."""

    error: float
    operator_norm: float
    agents: int
    seconds: float
    bytes_down: int
    bytes_up: int
    attempts: int


class Progress(NamedTuple):
    """All that a checkpoint holds: a run is continued from it as if it had not ended."""

    round: int
    server: PyTree
    counted: np.ndarray
    """Per site, the last round that its replies were part of, or -1."""
    records: list[Record]
    failed_round: int


class _AbsentError(Exception):
    def __init__(self, sites: set[int]):
        self.sites = sites


class _AgainError(Exception):
    """The round must be begun again: a site has missed part of it."""


class _DivergedError(Exception):
    """A site's reply is not finite, and would not be if it were asked again."""


class Server:
    """Runs an algorithm with sites that a transport reaches.

    **Arguments:**

    - `task`: what was agreed on.
    - `transport`: how to reach the sites.
    - `sites`: the numbers of each site's agents; together all agents, in order.
    - `missing`: what to do about agents that do not answer.
    - `folder`: for the checkpoint and the log, or None to keep neither.
    - `theta_star`: the root, where it is known, to record the error.
    - `watch`: called with every event of the log.
    """

    def __init__(
        self,
        task: Task,
        transport: AbstractTransport,
        sites: Sequence[Sequence[int]],
        *,
        missing: Missing | None = None,
        folder: pathlib.Path | None = None,
        theta_star: np.ndarray | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
        run: str | None = None,
    ):
        self.task, self.transport, self.theta_star = task, transport, theta_star
        self.missing = Missing() if missing is None else missing
        self.missing.check(task.algorithm)
        self.sites = [np.asarray(numbers, dtype=np.int64) for numbers in sites]
        if np.concatenate(self.sites).tolist() != list(range(task.num_agents)):
            raise ValueError(f"`sites` must list the agents 0 to {task.num_agents - 1} in order, got {sites!r}.")
        self.site_of = {int(numbers[0]): site for site, numbers in enumerate(self.sites)}
        self.schemas = [task.schemas(len(numbers)) for numbers in self.sites]
        self.keys = task.keys(np.arange(task.num_agents))
        self.run_id = run or uuid.uuid4().hex[:12]
        self.store = None if folder is None else Store(folder / "server.state")
        self.journal = Journal(folder, watch)
        self.phase: Callable[[str], None] = lambda name: None
        """Called on the way through a round: sent, collected, aggregated, checkpointed."""
        self.attempt, self.boots = BOOT, 1
        self._bound = DIVERGED * (
            1 + np.abs(task.theta).max() + (0 if theta_star is None else np.abs(theta_star).max())
        )
        with precision(task.dtype):
            server = _begin(task.settings, jnp.asarray(task.theta, task.dtype))
        self._server_schema = Schema(server)
        self.progress = Progress(0, server, np.full(len(self.sites), -1), [], -1)
        first = Record(self._error(server), float("nan"), 0, 0.0, 0, 0, 0)
        self.progress.records.append(first)

    def resume(self) -> None:
        """Takes up the checkpoint of an earlier process."""
        packet = None if self.store is None else self.store.load()
        if packet is None:
            raise FileNotFoundError("There is no checkpoint to resume from: start the run without `resume`.")
        header, arrays = packet
        if header.get("kind") != "server" or header["task"] != self.task.digest:
            raise ValueError(
                "`resume`: the checkpoint belongs to another run: its algorithm, agents, key, start or precision "
                "differ. Repeat that run's settings, or use another folder."
            )
        self.run_id, self.boots = header["run"], header["boots"] + 1
        self.attempt = self.boots * BOOT
        leaves = [arrays[f"server/{i}"] for i in range(len(self._server_schema.leaves))]
        columns = [arrays[f"record/{name}"].tolist() for name in Record._fields]
        self.progress = Progress(
            header["round"],
            self._server_schema.structure.unflatten(leaves),
            arrays["counted"],
            [Record(*row) for row in zip(*columns, strict=True)],
            header["failed_round"],
        )

    def run(self, rounds: int) -> Progress:
        """Runs until `rounds` rounds are done in all; Ctrl-C and errors leave the last finished round."""
        with contextlib.nullcontext() if self.store is None else self.store.alone(wait=False):
            return self._run(rounds)

    def _run(self, rounds: int) -> Progress:
        self._checkpoint()
        facts = {"agents": self.task.num_agents, "missing": self.missing.action, "transport": self.transport.name}
        began = "resumed" if self.progress.round else "started"
        error = self.progress.records[-1].error
        self.journal(began, run=self.run_id, round=self.progress.round, rounds=rounds, error=error, **facts)
        try:
            with precision(self.task.dtype):
                while self.progress.round < rounds and self.progress.failed_round < 0:
                    self._advance(rounds)
        except KeyboardInterrupt:
            self.journal("interrupted", round=self.progress.round)
            raise
        except FederationError as error:
            self.journal("failed", round=self.progress.round, why=str(error))
            raise
        diverged = self.progress.failed_round >= 0
        self.journal("diverged" if diverged else "finished", round=self.progress.round)
        return self.progress

    def _advance(self, rounds: int) -> None:
        t, server, counted, records, _ = self.progress
        began, self._down, self._up, first = time.perf_counter(), 0, 0, self.attempt
        try:
            moved, cohort, norm = self._round(t)
        except _DivergedError:
            self.progress = self._fail(t)
            self._checkpoint()
            return
        counted = counted.copy()
        counted[sorted(cohort)] = t
        norm = norm if norm is not None else self._movement(server, moved)
        agents = sum(len(self.sites[site]) for site in cohort)
        seconds = time.perf_counter() - began
        record = Record(self._error(moved), norm, agents, seconds, self._down, self._up, self.attempt - first)
        self.progress = Progress(t + 1, moved, counted, [*records, record], -1)
        if not float((np.asarray(moved.theta) ** 2).sum()) <= self._bound**2:
            self.progress = self._fail(t)
        self.phase("aggregated")
        self._checkpoint()
        self.phase("checkpointed")
        absent = [int(n) for site in range(len(self.sites)) if site not in cohort for n in self.sites[site]]
        self.journal("round", round=t + 1, rounds=rounds, **record._asdict(), absent=absent)

    def _fail(self, t: int) -> Progress:
        """The end of a run that has diverged in round `t`: what was recorded is infinite from here."""
        last = self.progress.records[-1]
        record = last._replace(error=float("inf"), operator_norm=float("inf"))
        return self.progress._replace(round=t + 1, records=[*self.progress.records, record], failed_round=t + 1)

    def _round(self, t: int) -> tuple[PyTree, set[int], float | None]:
        """The server after round `t`, who took part, and the norm of the averaged operators where there are any."""
        cohort = self._cohort()
        while True:
            self.attempt += 1
            try:
                return self._try(t, cohort)
            except _AgainError:
                continue
            except _AbsentError as absent:
                names = sorted(int(n) for site in absent.sites for n in self.sites[site])
                reasons = {site: self._reasons.get(site) or self.transport.trouble(site) for site in absent.sites}
                self.journal("missing", round=t + 1, agents=names, why={str(k): v for k, v in reasons.items() if v})
                if self.missing.action != "skip":
                    raise FederationError(self._explain(t, names, reasons)) from None
                cohort = self._cohort(cohort - absent.sites)

    def _try(self, t: int, cohort: set[int]) -> tuple[PyTree, set[int], float | None]:
        server, norm = self.progress.server, None
        for number, exchange in enumerate(self.task.algorithm.exchanges):
            index = np.asarray(t)
            message = _send(self.task.settings, number, self.keys, server, index, self.task.num_agents)
            message = tree.to_host(message)
            requests = {site: self._request(t, number, site, message) for site in sorted(cohort)}
            self.phase("sent")
            answers = self._collect(t, number, requests)
            self.phase("collected")
            replies = self._stack(number, answers)
            server = _aggregate(self.task.settings, number, self.keys, server, replies, index, self.task.num_agents)
            if number == 0 and exchange.name == "operator":
                norm = float(np.linalg.norm(np.asarray(_mean(replies))))
        return server, cohort, norm

    def _cohort(self, some: set[int] | None = None) -> set[int]:
        """Who takes part in a round: all, or with `skip` those who can be reached."""
        if self.missing.action != "skip":
            return set(range(len(self.sites)))
        cohort = self.transport.present() if some is None else some
        deadline = time.monotonic() + self.missing.seconds
        while sum(len(self.sites[site]) for site in cohort) < self.missing.at_least:
            if time.monotonic() > deadline:
                raise FederationError(
                    f"{sum(len(self.sites[s]) for s in cohort)} agents can be reached, the round needs "
                    f"{self.missing.at_least} (`at_least`). Start more of them, then resume."
                )
            time.sleep(max(self.transport.pause, 0.05))
            cohort = self.transport.present()
        return cohort

    def _request(self, t: int, number: int, site: int, message: PyTree) -> bytes:
        name, schema, _ = self.schemas[site][number]
        header = {
            "kind": "request",
            "run": self.run_id,
            "task": self.task.digest,
            "round": t,
            "attempt": self.attempt,
            "exchange": number,
            "name": name,
            "counted": int(self.progress.counted[site]),
        }
        return pack(header, schema.split(of_some(message, self.sites[site])))

    def _collect(self, t: int, number: int, requests: dict[int, bytes]) -> dict[int, PyTree]:
        """The replies of all sites asked, asking again those that do not answer until patience ends."""
        replies: dict[int, PyTree] = {}
        waiting, self._reasons = set(requests), {}
        deadline = time.monotonic() + self.missing.seconds
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _AbsentError(waiting)
            messages = {site: requests[site] for site in sorted(waiting)}
            self._down += sum(map(len, messages.values()))
            for data in self.transport.exchange(messages, left):
                self._up += len(data)
                try:
                    site, values = self._open(data, t, number)
                except Refused as refused:
                    self.journal("refused", round=t + 1, code=refused.code, why=refused.reason, bytes=len(data))
                    continue
                if site in waiting:
                    replies[site] = values
                    waiting.discard(site)
                if not waiting:
                    break
            if waiting & self._reasons.keys() and self.missing.action != "wait":
                raise _AbsentError(waiting & self._reasons.keys())
            if waiting and not any(site in replies for site in messages):
                time.sleep(min(self.transport.pause, max(0.0, deadline - time.monotonic())))
        return replies

    def _open(self, data: bytes, t: int, number: int) -> tuple[int, PyTree]:
        """The site and its reply to this exchange; refuses everything else."""
        packet = unpack(data, max(schemas[number][2].num_bytes for schemas in self.schemas))
        header = packet.header
        if (header.get("run"), header.get("task")) != (self.run_id, self.task.digest):
            raise Refused("foreign", "the message belongs to another run")
        first = header.get("first")
        site = self.site_of.get(first) if type(first) is int else None
        if site is None or header.get("agents") != len(self.sites[site]):
            raise Refused("foreign", f"no site begins with agent {first!r}")
        if [header.get(name) for name in ("round", "attempt", "exchange")] != [t, self.attempt, number]:
            raise Refused("stale", f"site {site} speaks of another exchange than that of round {t + 1}")
        if header.get("kind") == "refusal":
            return self._refused(site, packet)
        if header.get("kind") != "reply":
            raise Refused("malformed", f"site {site} says neither yes nor no")
        return site, self.schemas[site][number][2].join(packet.arrays)

    def _refused(self, site: int, packet: Packet) -> tuple[int, PyTree]:
        code, reason = str(packet.header.get("code"))[:40], str(packet.header.get("reason"))[:300]
        self._reasons[site] = reason
        if code in ("missed", "conflict"):
            self.journal("again", site=site, why=reason)
            raise _AgainError
        if code == "diverged":
            raise _DivergedError
        if code == "stale":
            raise FederationError(
                f"Site {site} is further than this server's checkpoint ({reason}): was an old one restored? Use the "
                "latest, or start a new run."
            )
        raise Refused(code, f"site {site}: {reason}")

    def _stack(self, number: int, answers: dict[int, PyTree]) -> Replies:
        """All replies in the order of the agents; agents that were not asked have weight 0."""
        present = [answers.get(site) for site in range(len(self.sites))]
        weights = None
        if any(answer is None for answer in present):
            pairs = zip(self.sites, present, strict=True)
            there = [len(numbers) * [float(answer is not None)] for numbers, answer in pairs]
            weights = jnp.asarray(np.concatenate(there), self.task.dtype)
        filled = []
        for schemas, answer in zip(self.schemas, present, strict=True):
            schema = schemas[number][2]
            nothing = [np.zeros(leaf.shape, leaf.dtype) for leaf in schema.leaves]
            filled.append(schema.structure.unflatten(nothing) if answer is None else answer)
        return Replies(jax.tree.map(lambda *parts: np.concatenate(parts), *filled), weights)

    def _explain(self, t: int, names: list[int], reasons: dict[int, str | None]) -> str:
        who = f"agent {names[0]}" if len(names) == 1 else f"agents {', '.join(map(str, names[:10]))}"
        why = "; ".join(sorted({reason for reason in reasons.values() if reason})) or "no answer"
        return (
            f"Round {t + 1} stopped: {who} did not answer within {self.missing.seconds:g} s ({why}). The run is kept "
            f"up to round {t}: resume it when the agents are back, or let it go on without them with 'skip'."
        )

    def _error(self, server: PyTree) -> float:
        if self.theta_star is None:
            return float("nan")
        return float(((np.asarray(server.theta)[0] - self.theta_star) ** 2).sum())

    def _movement(self, before: PyTree, after: PyTree) -> float:
        """How far the parameter moved per step: the size of the operators, where they are not sent themselves."""
        settings: Any = self.task.algorithm
        step = getattr(settings, "step_size", None)
        total = 1.0
        if isinstance(step, int | float | np.ndarray):
            total = float(step) * self.task.algorithm.block_length
        return float(np.linalg.norm(np.asarray(after.theta) - np.asarray(before.theta))) / total

    def _checkpoint(self) -> None:
        if self.store is None:
            return
        progress = self.progress
        header = {
            "kind": "server",
            "run": self.run_id,
            "task": self.task.digest,
            "boots": self.boots,
            "round": progress.round,
            "failed_round": progress.failed_round,
            "settings": json.loads(json.dumps(self.task.plain())),
        }
        arrays = {f"server/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(progress.server))}
        columns = zip(Record._fields, zip(*progress.records, strict=True), strict=True)
        arrays |= {"counted": progress.counted} | {f"record/{name}": np.asarray(values) for name, values in columns}
        self.store.save(header, arrays)


def hello(task: Task, run: str) -> bytes:
    """A message that asks a site who it is."""
    return pack({"kind": HELLO, "run": run, "task": task.digest}, {})


@eqx.filter_jit
def _begin(algorithm, theta):
    server, _ = algorithm.init(theta)
    return jax.tree.map(lambda x: x[None], server)


@eqx.filter_jit
def _send(algorithm, number, keys, server, index, num_agents):
    message = batch.send(algorithm.exchanges[number], keys, server, index, num_agents)
    return jax.tree.map(lambda x: x[0], message)


@eqx.filter_jit
def _aggregate(algorithm, number, keys, server, replies, index, num_agents):
    with_seed = Replies(jax.tree.map(lambda x: x[:, None], replies.values), replies.weights)
    return batch.aggregate(algorithm.exchanges[number], keys, server, with_seed, index, num_agents)


@eqx.filter_jit
def _mean(replies):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(replies.mean())])

"""The server's side of a round: send, collect from a fixed cohort, average in a fixed order, aggregate, checkpoint."""

import contextlib
import functools
import json
import os
import pathlib
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _check, tree
from .._types import precision
from ..algorithms import Replies
from ..engine import batch
from ..engine.run import DIVERGED
from . import secure
from .compiled import Compiled
from .journal import FILE, Journal
from .measure import MOST, THETA, VALUES, Measurements, SiteReport
from .missing import Missing
from .outcome import FederationError as FederationError
from .outcome import Progress, Record, read_records, record_rows
from .plan import Plan
from .schema import Schema, for_agents, is_common, is_finite
from .site import HELLO, JUMP, MEASURE
from .store import Rows, Store, check_run_name, set_aside
from .task import Task
from .transport import AbstractTransport, Refusals
from .wire import Packet, RejectedError, pack, unpack, words

BOOT = 2**36
"""Each start of the server numbers its attempts from the next multiple of this, so that no number occurs twice."""
TAIL = 256
"""The number of records in a checkpoint. Older records are in a separate file, which grows by this many at a time."""


class _AbsentSitesError(Exception):
    def __init__(self, sites: set[int]):
        self.sites = sites


class _RestartRoundError(Exception):
    """The round must be restarted: a site has missed part of it."""

    def __init__(self, site: int):
        self.site = site


class _GivenUpError(Exception):
    """The round cannot be finished with or without the sites that failed, so the next round begins."""


class _DivergedError(Exception):
    """The whole run has diverged, rather than a single agent."""


_PERMANENT = ("exhausted", "limit", "mismatch", "stale")
"""The codes of rejections that waiting does not change."""
_LAST = 60.0
"""The number of seconds in which sites may measure the last parameter."""
MEASURED = "measured"
"""The kind of a reply that contains only measurements."""
_LARGE = DIVERGED**0.5
"""If one agent diverges and most others send numbers this many times larger than start and root, the run diverges."""
_RESTARTS = 20
"""The largest number of restarts of a round because of one site; other sites answer only a limited number."""
_REJECTED = 10_000
"""The largest number of rejected messages that a process logs, so that strangers cannot fill the disk."""
_PAUSE, _LONGEST_PAUSE = 0.001, 1.0
"""The seconds between requests to sites that do not answer or that reject them; the pause doubles each time."""


class Server:
    """Runs an algorithm with sites that a transport reaches. `in_memory` builds a server.

    **Arguments:**

    - `task`: the task on which server and sites have agreed.
    - `transport`: the transport to the sites.
    - `sites`: the numbers of each site's agents; together they are all agents, in order.
    - `missing`: the policy for agents that do not answer. Default: `Missing()`.
    - `folder`: the folder for the checkpoint and the log. Default: neither is written.
    - `theta_star`: the root, if it is known, from which the error is computed.
    - `watch`: a function that is called with every event of the log.
    - `run`: the name of the run. Default: a random name.
    - `reply_bound`: the largest norm that an agent's reply may have; an agent that exceeds it counts as unable to
      answer. Default: no bound. With or without a bound, the server rejects replies with entries so large that the
      agent has diverged, unless replies are masked or the algorithm tolerates any reply.
    """

    def __init__(
        self,
        task: Task,
        transport: AbstractTransport,
        sites: Sequence[Sequence[int]],
        *,
        missing: Missing | None = None,
        folder: str | os.PathLike | None = None,
        theta_star: np.ndarray | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
        run: str | None = None,
        reply_bound: float | None = None,
    ):
        if reply_bound is not None:
            _check.number("reply_bound", reply_bound, above=0.0)
            if task.secure:
                raise ValueError(
                    "`reply_bound` is not supported with secure aggregation: the server sees no single reply."
                )
        self.reply_bound = reply_bound
        self.task, self.transport, self.theta_star = task, transport, theta_star
        self.missing = Missing() if missing is None else missing
        self.missing.check(task.algorithm, task.num_agents)
        self.sites = [np.asarray(numbers, dtype=np.int64) for numbers in sites]
        if not all(len(numbers) for numbers in self.sites) or (
            [n for numbers in self.sites for n in numbers.tolist()] != list(range(task.num_agents))
        ):
            raise ValueError(f"`sites` must list the agents 0 to {task.num_agents - 1} in order, got {sites!r}.")
        self.site_of = {int(numbers[0]): site for site, numbers in enumerate(self.sites)}
        self.secure = task.secure
        if task.secure:
            secure.check(task, self.missing, len(self.sites))
        # The sites that have each other's keys, and the digest of the keys.
        self._agreed: tuple[set[int], str] | None = None
        self._asked, self._left_over = False, 0
        self.schemas = [task.schemas(len(numbers)) for numbers in self.sites]
        self.keys = task.keys(np.arange(task.num_agents))
        fixed, numbers = (task.num_agents, task.settings, self.keys), range(len(self.schemas[0]))
        self._sends = [Compiled(_send, number, *fixed) for number in numbers]
        self._aggregates = [Compiled(_aggregate, number, *fixed) for number in numbers]
        self._exchanges = task.algorithm.exchanges  # a property that rebuilds them in every call
        # As bytes, since settings may contain long arrays, and headers must be short.
        self._settings = np.frombuffer(json.dumps(task.plain()).encode(), np.uint8)
        # Replies also contain the sites' measurements, and their keys if they are masked.
        room = 8 * (MOST + 1) * max(map(len, self.sites)) + (secure.OFFER_BYTES if task.secure else 0)
        self._limits = [max(s[i][2].num_bytes for s in self.schemas) + room for i in range(len(self.schemas[0]))]
        self.measurements = Measurements(task.num_agents)
        self._reports: dict[int, SiteReport] = {}  # of the current round
        self._measures: dict[int, bool] = {}  # whether a site measures anything, for sites that have been asked
        self.run_id = check_run_name(run or uuid.uuid4().hex[:12])
        home = None if folder is None else pathlib.Path(folder)
        self.store = None if home is None else Store(home / "server.state")
        if self.store is not None:
            self._records = Rows(self.store, ".records", len(Record._fields))
            self._measured = Rows(self.store, ".measured", 2 + task.num_agents)
        self.journal = Journal(home, watch)
        self.phase: Callable[[str], None] = lambda name: None
        """A function that is called at each stage of a round: sent, collected, aggregated, checkpointed."""
        self.attempt, self.boots, self._own, self._saved = BOOT, 1, False, 0
        self._reasons: dict[int, str] = {}
        self._tokens: dict[int, str] = {}
        self._permanent: set[int] = set()
        self._failures = Refusals()
        self._num_rejected, self._down, self._up = 0, 0, 0
        self._overtaken: set[int] = set()  # sites whose attempt number this process has adopted
        self._sizes: dict[int, np.ndarray] = {}  # per site, each agent's largest absolute entry in this exchange
        self._gave_up: dict[int, int] = {}  # per site, the number of consecutive rounds given up because of it
        self._rests: dict[int, int] = {}  # with `skip`: the round in which a failing site is asked again
        self._short_since: float | None = None
        self._size = 1 + np.abs(task.theta).max() + (0 if theta_star is None else np.abs(theta_star).max())
        with precision(task.dtype):
            server = _initial_server(task.settings, jnp.asarray(task.theta, task.dtype))
        self._server_schema = Schema(server)
        first = Record(self._error(server), float("nan"), 0, 0.0, 0, 0, 0)
        self.progress = Progress(0, server, np.full(len(self.sites), -1), [first], -1)

    def resume(self) -> None:
        """Continues from the checkpoint of an earlier process."""
        packet = None if self.store is None else self.store.load()
        if packet is None:
            raise FileNotFoundError("There is no checkpoint to resume from: start the run without `resume`.")
        header, arrays = packet
        if header.get("kind") != "server" or header["task"] != self.task.digest:
            raise ValueError(
                "`resume`: the checkpoint belongs to another run: its algorithm, agents, key, start or precision "
                "differ. Repeat that run's settings, or use another folder."
            )
        if arrays["sizes"].tolist() != [len(numbers) for numbers in self.sites]:
            raise ValueError(
                f"`resume`: the run had sites of {arrays['sizes'].tolist()} agents, got "
                f"{[len(numbers) for numbers in self.sites]}. Divide the agents as before, or use another folder."
            )
        records = self._records.read(header.get("records", (0, 0)))
        self.run_id, self.boots, self._own = header["run"], header["boots"] + 1, True
        self.attempt, self._saved = self.boots * BOOT, header["round"]
        leaves = [arrays[f"server/{i}"] for i in range(len(self._server_schema.leaves))]
        self.progress = Progress(
            header["round"],
            self._server_schema.structure.unflatten(leaves),
            arrays["counted"],
            read_records(np.concatenate([records, arrays["records"]]) if len(records) else arrays["records"]),
            header["failed_round"],
        )
        measured = self._measured.read(header.get("measured", (0, 0)))
        self.measurements = Measurements.read(self.task.num_agents, arrays, measured)

    def run(self, rounds: int) -> Progress:
        """Runs until `rounds` rounds are complete in total; Ctrl-C and errors keep the last complete round."""
        if self.store is not None:  # unlike a site's folder, this one may be readable by others
            self.store.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.nullcontext() if self.store is None else self.store.alone(wait=False):
            self._claim()
            if self.progress.round > rounds and self.progress.failed_round < 0:
                raise ValueError(
                    f"`rounds` must be at least {self.progress.round}, the round of the checkpoint, got {rounds}."
                )
            try:
                return self._go_on(rounds)
            except OSError as error:
                file, home = error.filename, None if self.store is None else self.store.path.parent
                if home is None or not isinstance(file, str) or home != pathlib.Path(file).parent:
                    raise
                raise FederationError(
                    f"{file!r} cannot be written: {error.strerror}. The run is kept up to round {self._saved}: mend "
                    "that, then resume it."
                ) from error

    def _claim(self) -> None:
        """Claims the folder for this run: continues from another process's checkpoint, or sets another run aside."""
        if self.store is not None and not self._own:
            set_aside(self.store.path, self._records.path, self._measured.path, self.store.path.with_name(FILE))
            self._records.mark = self._measured.mark = (0, 0)
        elif self.store is not None and self.store.changed:
            self.resume()
        self._own = True

    def _go_on(self, rounds: int) -> Progress:
        self._checkpoint()
        facts = {"agents": self.task.num_agents, "missing": self.missing.action, "transport": self.transport.name}
        began = "resumed" if self.boots > 1 else "started"
        error = self.progress.records[-1].error
        self.journal(began, run=self.run_id, round=self.progress.round, rounds=rounds, error=error, **facts)
        try:
            with precision(self.task.dtype):
                while self.progress.round < rounds and self.progress.failed_round < 0:
                    self._advance(rounds)
                if self.progress.failed_round < 0:
                    self._measure_last()
        except KeyboardInterrupt:
            self.journal("interrupted", round=self.progress.round)
            raise
        except Exception as error:
            why = str(error) if isinstance(error, FederationError) else f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):  # a full disk, for example, which the error already reports
                self.journal("failed", round=self.progress.round, why=why)
            raise
        diverged = self.progress.failed_round >= 0
        self.journal("diverged" if diverged else "finished", round=self.progress.round)
        return self.progress

    def _advance(self, rounds: int) -> None:
        t, server, counted, records, _ = self.progress
        del records[t + 1 :]  # an interruption may have left one record too many
        began, self._down, self._up, first = time.perf_counter(), 0, 0, self.attempt
        diverged = False
        try:
            moved, cohort, norm = self._round(t)
        except (_GivenUpError, _DivergedError) as error:
            moved, cohort, norm, self._reports = server, set(), float("nan"), {}
            diverged = isinstance(error, _DivergedError)
        counted = counted.copy()
        counted[sorted(cohort)] = t
        for site in cohort:
            self._failures.pop(site, None)
            self._rests.pop(site, None)
            self._gave_up.pop(site, None)
        for site, report in self._reports.items():
            self.measurements.put(t, self.sites[site], report)
        movement = float(np.linalg.norm(_flat(moved.theta) - _flat(server.theta)))
        agents = sum(len(self.sites[site]) for site in cohort)
        spent = (agents, time.perf_counter() - began, self._down, self._up, self.attempt - first)
        record = Record(self._error(moved), norm, *spent, movement=movement)
        if diverged or not np.linalg.norm(_flat(moved.theta)) <= DIVERGED * self._size:  # the parameter before is kept
            infinite = dict.fromkeys(("error", "operator_norm", "movement"), float("inf"))
            records = [*records, record._replace(**infinite)]
            self.progress = self.progress._replace(round=t + 1, records=records, failed_round=t + 1)
            self._checkpoint()
            return
        records.append(record)  # in place, since copying a long list in every round is slow
        self.progress = Progress(t + 1, moved, counted, records, -1)
        self.phase("aggregated")
        self._checkpoint()
        self.phase("checkpointed")
        absent = [int(n) for site in range(len(self.sites)) if site not in cohort for n in self.sites[site]]
        measured = {} if (facts := self.measurements.facts(t)) is None else {"measured": facts}
        self.journal("round", round=t + 1, rounds=rounds, **record._asdict(), absent=absent, **measured)

    def _measure_last(self) -> None:
        """Lets the sites measure the last parameter, with which no further round begins. Absent sites are left out."""
        t, left = self.progress.round, {site for site, measures in self._measures.items() if measures}
        if left and self.missing.action == "skip":
            left &= self.transport.present()
        deadline = time.monotonic() + min(self.missing.seconds, _LAST)
        self._tokens, self.attempt = {}, self.attempt + 1
        while left and (seconds := deadline - time.monotonic()) > 0:
            theta = {THETA: _flat(self.progress.server.theta)}
            asked = {site: pack(self._request_header(MEASURE, t, 0, site), theta) for site in sorted(left)}
            for site, report in self._valid_replies(asked, seconds, t, 0, MEASURED):
                left.discard(site)
                if report is not None:
                    self.measurements.put(t, self.sites[site], report)
            left -= {site for site in left if self.transport.hopeless(site)}
            if left == asked.keys():
                time.sleep(min(max(self.transport.pause, 0.05), max(0.0, deadline - time.monotonic())))
        if (facts := self.measurements.facts(t)) is not None:
            self._checkpoint()
            self.journal("measured", **facts, rounds=t)

    def _round(self, t: int) -> tuple[PyTree, set[int], float]:
        """The server after round `t`, the participating sites, and the norm of the averaged operators or NaN."""
        self._short_since, self._asked = None, False
        cohort, trouble_since, again_for = self._cohort(), None, dict[int, int]()
        while True:
            self.attempt += 1
            try:
                return self._attempt_round(t, cohort)
            except _RestartRoundError as again:
                trouble_since = trouble_since or time.monotonic()
                times = again_for[again.site] = again_for.get(again.site, 0) + 1
                if times < _RESTARTS and time.monotonic() - trouble_since < self.missing.seconds:
                    continue
                absent, trouble_since = {again.site}, None
                self._fail(again.site, self._reasons.get(again.site, "it misses part of every round"))
            except _AbsentSitesError as error:
                absent = error.sites
            names = self._numbers(absent)
            reasons = {site: self._reasons.get(site) or self.transport.trouble(site) for site in absent}
            self.journal("missing", round=t + 1, agents=names, why={str(k): v for k, v in reasons.items() if v})
            if self.missing.action != "skip":
                raise FederationError(self._explain(t, names, reasons))
            if self.secure and self._asked:  # no site answers in two cohorts of one round
                self._give_up(absent)
            cohort = self._cohort(cohort - absent)

    def _attempt_round(self, t: int, cohort: set[int]) -> tuple[PyTree, set[int], float]:
        server, norm = self.progress.server, float("nan")
        self._reports = {}
        if self.secure:
            self._agree(t, cohort)
        for number, exchange in enumerate(self._exchanges):
            index = np.asarray(t)
            message = tree.to_host(self._sends[number](server, index))
            if not is_finite(message):
                raise _DivergedError
            self._tokens = {}
            common = self.schemas[0][number][1].split(message) if is_common(message) else None
            requests = {site: self._request(t, number, site, message, common) for site in sorted(cohort)}
            self._asked = True
            self.phase("sent")
            answers = self._collect(t, number, requests)
            self.phase("collected")
            if self.secure:
                answers = self._unmask(t, number, answers)
            replies = self._stack(number, answers)
            server = self._aggregates[number](server, replies, index)
            shapes = [leaf.shape for leaf in jax.tree.leaves(replies.values)]
            is_vector = shapes == [(self.task.num_agents, len(self.task.theta))]
            if number == 0 and exchange.replies_are_operators and is_vector:
                norm = _norm(replies, exchange.sum_bits)
        return server, cohort, norm

    def _give_up(self, sites: set[int]) -> NoReturn:
        """Ends a round without a result because of these sites, which are left out of the next rounds."""
        t = self.progress.round
        for site in sites:  # the pause doubles, so that a site that never answers does not stop every round
            times = self._gave_up[site] = self._gave_up.get(site, 0) + 1
            self._rests[site] = max(self._rests.get(site, 0), t + 1 + 2 ** min(times - 1, 6))
        self.journal("given up", round=t + 1, agents=self._numbers(sites))
        raise _GivenUpError

    def _agree(self, t: int, cohort: set[int]) -> None:
        """Distributes the public keys among the sites of a round, unless they already have them."""
        if self._agreed is not None and self._agreed[0] == cohort:
            return
        offers = self._collect(t, 0, self._ask_all(secure.KEYS, t, cohort, {}), secure.OFFER)
        roster = secure.make_roster({int(self.sites[site][0]): offer for site, offer in offers.items()})
        digests = self._collect(t, 0, self._ask_all(secure.ROSTER, t, cohort, roster), secure.ACCEPTED)
        if len(set(digests.values())) > 1:
            raise _RestartRoundError(min(cohort))
        self._agreed = set(cohort), next(iter(digests.values()))

    def _ask_all(self, kind: str, t: int, cohort: set[int], arrays: dict[str, np.ndarray]) -> dict[int, bytes]:
        self._tokens = {}
        return {site: pack(self._request_header(kind, t, 0, site), arrays) for site in sorted(cohort)}

    def _unmask(self, t: int, number: int, answers: dict[int, Any]) -> dict[int, PyTree]:
        """The sum as the first agent's reply and zeros for all others, since the server has only the sum."""
        total = secure.unmask(answers, {site: len(numbers) for site, numbers in enumerate(self.sites)})
        if total is None:
            self._agreed, self._left_over = None, self._left_over + 1
            if self._left_over > 2:
                raise FederationError(
                    f"Round {t + 1} stopped: the masks of the sites do not cancel. One of them does not do what it "
                    "should, and nobody can tell which. The run is kept; leave sites out, or look at their logs."
                )
            raise _RestartRoundError(min(answers))
        self._left_over = 0
        first = min(answers)
        schema = self.schemas[first][number][2]
        rows = schema.split(schema.zeros())
        for name, sums in total.items():
            rows[name][:1] = sums
        return {site: self.schemas[site][number][2].zeros() for site in answers} | {first: schema.join(rows)}

    def _cohort(self, candidates: set[int] | None = None) -> set[int]:
        """The sites that take part in a round: all, or with `skip` those that can be reached."""
        if self.missing.action != "skip":
            return set(range(len(self.sites)))
        resting = {site for site, until in self._rests.items() if self.progress.round < until}
        cohort = self.transport.present() - resting if candidates is None else candidates
        while (there := sum(len(self.sites[site]) for site in cohort)) < self.missing.at_least:
            needed = f"{there} agents can be reached, the round needs {self.missing.at_least} (`at_least`)"
            if self._short_since is None:
                self._short_since = time.monotonic()
                self.journal("waiting", round=self.progress.round + 1, why=needed)
            hopeless = {site: why for site in range(len(self.sites)) if (why := self.transport.hopeless(site))}
            if sum(len(self.sites[site]) for site in hopeless) > self.task.num_agents - self.missing.at_least:
                raise FederationError(self._explain(self.progress.round, self._numbers(set(hopeless)), dict(hopeless)))
            if time.monotonic() > self._short_since + self.missing.seconds:
                why = "; ".join(f"{self._name(site)}: {why}" for site, why in sorted(self._reasons.items()))
                raise FederationError(f"{needed}. Start more of them, then resume." + (f" ({why})" if why else ""))
            time.sleep(min(max(self.transport.pause, 0.05), self.missing.seconds))
            cohort = self.transport.present()
        return cohort

    def _request(self, t: int, number: int, site: int, message: PyTree, common: dict[str, Any] | None) -> bytes:
        """The message to a site; `common` contains its arrays if all sites receive the same arrays."""
        _, schema, _ = self.schemas[site][number]
        arrays = schema.split(for_agents(message, self.sites[site])) if common is None else dict(common)
        if not number and self._measures.get(site, True):  # the round's initial parameter may differ from the message
            arrays[THETA] = _flat(self.progress.server.theta)
        return pack(self._request_header("request", t, number, site), arrays)

    def _request_header(self, kind: str, t: int, number: int, site: int) -> dict[str, Any]:
        return {
            "kind": kind,
            "run": self.run_id,
            "task": self.task.digest,
            "round": t,
            "attempt": self.attempt,
            "exchange": number,
            "name": self.schemas[site][number][0],
            "counted": int(self.progress.counted[site]),
            "first": int(self.sites[site][0]),
            "agents": len(self.sites[site]),
            # Only the site that was asked has the token, so that no site can answer for another.
            "token": self._tokens.setdefault(site, secrets.token_hex(8)),
            **({} if self._agreed is None else {"cohort": self._agreed[1]}),
        }

    def _collect(self, t: int, number: int, requests: dict[int, bytes], kind: str = "reply") -> dict[int, Any]:
        """The replies of all requested sites; requests without a reply are repeated until patience ends."""
        replies: dict[int, PyTree] = {}
        waiting, self._reasons, self._permanent = set(requests), {}, set()
        self._sizes = {}
        deadline, pause = time.monotonic() + self.missing.seconds, _PAUSE
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _AbsentSitesError(waiting)
            messages = {site: requests[site] for site in sorted(waiting) if not self._beyond(site)}
            self._down += sum(map(len, messages.values()))
            failed_before = dict(self._failures)
            for site, values in self._valid_replies(messages, left, t, number, kind):
                if site in waiting:
                    replies[site] = values
                    waiting.discard(site)
                if not waiting:
                    break
            for site in waiting:
                if why := self.transport.hopeless(site):
                    self._reasons[site] = why
                    self._permanent.add(site)
            diverged = {site for site in waiting if self._beyond(site)}
            given_up = (self._permanent if self.missing.action == "wait" else self._reasons.keys()) - diverged
            if waiting & given_up:
                raise _AbsentSitesError(waiting & given_up)
            if waiting and waiting == diverged:
                self._blame(diverged)
            if self._failures != failed_before:
                pause = _LONGEST_PAUSE  # a temporary failure may be over by then
            if waiting - diverged == messages.keys():
                time.sleep(min(max(self.transport.pause, pause), max(0.0, deadline - time.monotonic())))
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = _PAUSE
        return replies

    def _valid_replies(
        self, messages: dict[int, bytes], seconds: float, t: int, number: int, kind: str
    ) -> Iterator[tuple[int, Any]]:
        """Sends messages and yields the sites that reply, and what they reply; all other answers are logged."""
        for data in self.transport.exchange(messages, seconds):
            self._up += len(data)
            try:
                found = self._read_reply(data, t, number, kind)
            except RejectedError as rejected:
                self._num_rejected += 1
                if self._num_rejected <= _REJECTED:
                    last = f" (this is the last of {_REJECTED:,} that are written down)"
                    why = rejected.reason + (last if self._num_rejected == _REJECTED else "")
                    during = t if kind == MEASURED else t + 1
                    self.journal("rejected", round=during, code=rejected.code, why=why, bytes=len(data))
            else:
                yield found

    def _read_reply(self, data: bytes, t: int, number: int, kind: str = "reply") -> tuple[int, Any]:
        """The site and its reply to this exchange, or its measurements; raises if the message is anything else."""
        packet = unpack(data, self._limits[number])
        header = packet.header
        first, agents = header.get("first"), header.get("agents")
        site = self.site_of.get(first) if type(first) is int else None
        if site is None or type(agents) is not int or agents != len(self.sites[site]):
            raise RejectedError("foreign", "no site of this run has the agents that it names")
        if (header.get("run"), header.get("task")) != (self.run_id, self.task.digest):
            raise RejectedError("foreign", f"site {site} names another run, or its settings differ from the server's")
        asked = [header.get(name) for name in ("round", "attempt", "exchange")]
        if asked != [t, self.attempt, number] or not all(type(value) is int for value in asked):
            raise RejectedError("stale", f"site {site} names another exchange than that of round {t + 1}")
        if site not in self._tokens or header.get("token") != self._tokens[site]:
            raise RejectedError("foreign", f"site {site} was not asked this")
        if header.get("kind") == "rejection":
            return self._rejected(site, packet, number)
        if header.get("kind") != kind:
            raise RejectedError("malformed", f"the message of site {site} is neither a reply nor a rejection")
        report = SiteReport.read(header.get("measures"), packet.arrays.pop(VALUES, None), agents)
        if kind == MEASURED:
            return site, report
        if kind in (secure.OFFER, secure.ACCEPTED):
            return site, secure.read_offer(packet) if kind == secure.OFFER else secure.read_accepted(packet)
        if not number:
            self._hear(site, report, header.get("withheld") is True)
        if self.secure:
            self._sizes[site] = np.zeros(agents)  # the server cannot know them
            return site, secure.read_masked(packet.arrays, self.task.schemas(1)[number][2])
        finite = not self._exchanges[number].bears_any_reply
        values = self.schemas[site][number][2].join(packet.arrays, finite)
        self._check_size(site, packet.arrays, finite)
        return site, values

    def _check_size(self, site: int, arrays: dict[str, np.ndarray], finite: bool) -> None:
        """Raises if a reply exceeds the bound, or is so large that its agent must have diverged."""
        self._sizes[site] = sizes = _sizes(arrays)
        if finite and self._beyond(site):
            self._fail(site, f"its reply has numbers of size {sizes.max():.1g}: too large a step, or not honest")
            raise RejectedError("beyond", f"{self._name(site)}: {self._reasons[site]}")
        if self.reply_bound is not None and not (norms := _norms(arrays)).max() <= self.reply_bound:
            its = "its reply" if len(norms) == 1 else f"the reply of agent {self.sites[site][norms.argmax()]}"
            self._fail(site, f"{its} has norm {norms.max():.3g}, beyond {self.reply_bound:.3g} (`reply_bound`)")
            self._permanent.add(site)  # its next reply would be the same
            raise RejectedError("beyond", f"{self._name(site)}: {self._reasons[site]}")

    def _beyond(self, site: int) -> bool:
        """Whether a site has answered with numbers so large that it has diverged."""
        return site in self._sizes and not self._sizes[site].max() <= DIVERGED * self._size

    def _blame(self, sites: set[int]) -> None:
        """Raises once all other sites have answered: either these sites have diverged, or the whole run has."""
        sizes = np.concatenate(list(self._sizes.values()))
        if 2 * np.count_nonzero(~(sizes <= _LARGE * self._size)) > len(sizes):
            raise _DivergedError
        raise _AbsentSitesError(sites)

    def _hear(self, site: int, report: SiteReport | None, withheld: bool) -> None:
        """Records a site's measurements, or that the site does not measure or withholds them."""
        if site not in self._measures and withheld:
            self.journal("withheld", agents=self._numbers({site}))
        self._measures[site] = self._measures.get(site, False) or report is not None
        if report is not None:
            self._reports[site] = report

    def _rejected(self, site: int, packet: Packet, number: int) -> tuple[int, PyTree]:
        code, reason = words(packet.header.get("code")), words(packet.header.get("reason"))
        self._reasons[site] = reason
        newest = packet.header.get("newest")
        behind = code == "stale" and type(newest) is int and self._can_catch_up(site, newest)
        if behind or code in ("missed", "conflict", "keys"):
            self._agreed = None if code == "keys" else self._agreed
            self.journal("again", round=self.progress.round + 1, site=site, why=reason)
            raise _RestartRoundError(site)
        if code == "cohort" and self.missing.action == "skip":  # an earlier server began this round with another cohort
            self._give_up({site})
        if code == "diverged":
            self._sizes[site] = self._sizes_of_diverged(site, packet.header.get("diverged"))
        if code in ("failed", "diverged", "lost"):
            # A node without its state may have replaced the right node, which is absent.
            self._fail(site, reason, lasting=code != "lost")
        if code in _PERMANENT:
            self._permanent.add(site)
        raise RejectedError(code, f"{self._name(site)}: {reason}")

    def _can_catch_up(self, site: int, newest: int) -> bool:
        """Continues from a site's attempt number, which another server requested; once per site, since it may lie."""
        if site in self._overtaken or not self.attempt <= newest < self.attempt + JUMP:
            return False
        self._overtaken.add(site)
        self.attempt = newest
        return True

    def _fail(self, site: int, reason: str, lasting: bool = True) -> None:
        """Records that a site failed, and whether it failed in the same way before and would probably fail again."""
        self._reasons[site] = reason
        times = self._failures.note(site, reason)
        if self._failures.lasting(site) is not None:
            self._permanent |= {site} if lasting else set()
            self._rests[site] = self.progress.round + 2 ** min(times, 6)

    def _sizes_of_diverged(self, site: int, whose: Any) -> np.ndarray:
        """Infinite for the agents that have diverged; the site has at least one."""
        named = set(whose) if isinstance(whose, list) and all(type(n) is int for n in whose) else set()
        has = np.array([int(n) in named for n in self.sites[site]])
        return np.where(has | (not has.any()), np.inf, 0.0)

    def _stack(self, number: int, answers: dict[int, PyTree]) -> Replies:
        """All replies in the order of the agents; agents that were not asked have weight 0."""
        weights = None
        if len(answers) < len(self.sites):
            there = [np.full(len(numbers), site in answers) for site, numbers in enumerate(self.sites)]
            weights = jnp.asarray(np.concatenate(there), self.task.dtype)
        expected = enumerate(schemas[number][2] for schemas in self.schemas)
        filled = [answers[site] if site in answers else schema.zeros() for site, schema in expected]
        return Replies(jax.tree.map(lambda *arrays: np.concatenate(arrays), *filled), weights)

    def _name(self, site: int) -> str:
        """A site's name in messages, from its agents."""
        numbers = self.sites[site]
        return f"agent {numbers[0]}" if len(numbers) == 1 else f"agents {numbers[0]} to {numbers[-1]}"

    def _numbers(self, sites: set[int]) -> list[int]:
        """The agents of these sites."""
        return sorted(int(n) for site in sites for n in self.sites[site])

    def _explain(self, t: int, names: list[int], reasons: dict[int, str | None]) -> str:
        who = f"agent {names[0]}" if len(names) == 1 else f"agents {', '.join(map(str, names[:10]))}"
        why = "; ".join(sorted({reason for reason in reasons.values() if reason})) or "no answer"
        silent = not any(site in self._reasons for site in reasons)
        what = f"did not answer within {self.missing.seconds:g} s" if silent else "cannot answer"
        stopped = f"Round {t + 1} stopped: {who} {what} ({why.rstrip('.')})."
        if not t:
            return f"{stopped} Nothing is lost: mend that and start the run again."
        then = "resume it when the agents are back" if silent else "mend that and resume it"
        return f"{stopped} The run is kept up to round {t}: {then}, or run it without them with 'skip'."

    def _error(self, server: PyTree) -> float:
        if self.theta_star is None:
            return float("nan")
        away = _flat(server.theta) - self.theta_star
        return float(away @ away)

    def _checkpoint(self) -> None:
        if self.store is None:
            return
        progress = self.progress
        header: dict[str, Any] = {"kind": "server", "run": self.run_id, "task": self.task.digest, "boots": self.boots}
        header |= {"round": progress.round, "failed_round": progress.failed_round}
        arrays = {f"server/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(progress.server))}
        arrays |= {"counted": progress.counted, "sizes": np.array([len(numbers) for numbers in self.sites])}
        records = record_rows(progress.records[self._records.mark[0] :])
        if len(records) > TAIL:
            self._records.extend(records)
            records = records[:0]
            self._measured.extend(self.measurements.rows())
            self.measurements.keep()
        header |= {"records": self._records.mark, "measured": self._measured.mark}
        arrays |= {"settings": self._settings, **self.measurements.arrays()}
        self.store.save(header, arrays | {"records": records})
        self._saved = progress.round


def server_of(
    plan: Plan, transport: AbstractTransport, sites: Sequence[Sequence[int]] | None = None, **options: Any
) -> Server:
    """The server of a plan, by default with one site for each agent; `options` are further arguments of `Server`."""
    sites = [[number] for number in range(plan.num_agents)] if sites is None else sites
    return Server(plan.task, transport, sites, theta_star=plan.theta_star, **options)


def hello(task: Task, run: str, plan: Plan | None = None) -> bytes:
    """A message that asks a site to identify itself, and that contains the plan for nodes that do not have it."""
    told = {} if plan is None else {"plan": plan.told().to_json()}
    return pack({"kind": HELLO, "run": run, "task": task.digest, **told}, {})


def _flat(values: Any) -> np.ndarray:
    """A vector in double precision, in which squares of float32 values do not overflow."""
    return np.ravel(np.asarray(values, dtype=np.float64))


@eqx.filter_jit
def _initial_server(algorithm, theta):
    server, _ = algorithm.init(theta)
    return jax.tree.map(lambda x: x[None], server)


def _send(number, num_agents, algorithm, keys, server, index):
    message = batch.send(algorithm.exchanges[number], keys, server, index, num_agents)
    return jax.tree.map(lambda x: x[0], message)


def _aggregate(number, num_agents, algorithm, keys, server, replies, index):
    with_seed = Replies(jax.tree.map(lambda x: x[:, None], replies.values), replies.weights)
    return batch.aggregate(algorithm.exchanges[number], keys, server, with_seed, index, num_agents)


def _sizes(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The largest absolute entry of each agent's reply."""
    numbers = [array.reshape(len(array), -1) for array in arrays.values() if array.dtype.kind == "f"]
    return functools.reduce(np.maximum, [abs(rows).max(axis=1, initial=0.0) for rows in numbers] or [np.zeros(1)])


def _norms(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The norm of each agent's reply over all its entries; NaN if an entry is NaN."""
    with np.errstate(over="ignore"):  # an overflow is beyond any bound
        rows = [np.square(array.reshape(len(array), -1).astype(np.float64)).sum(axis=1) for array in arrays.values()]
        return np.sqrt(sum(rows))


def _norm(replies: Replies, sum_bits: int | None) -> float:
    """The norm of the mean of vectors, which may be in units of `2**-sum_bits`."""
    if sum_bits is not None:
        replies = replies._replace(values=jax.tree.map(lambda x: x * 2.0**-sum_bits, replies.values))
    return float(np.linalg.norm(_flat(_mean(replies))))


@jax.jit
def _mean(replies):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(replies.mean())])

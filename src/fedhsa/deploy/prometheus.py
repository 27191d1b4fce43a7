"""The state of a run or a node as Prometheus metrics: text format 0.0.4, in a file or over HTTP."""

import abc
import contextlib
import datetime
import http.server
import math
import os
import pathlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .. import _files
from .address import check_host, check_port

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CONNECTIONS, PATIENCE = 16, 5.0
"""The largest number of simultaneous clients, and the seconds after which a silent client times out."""
PAUSE = 1.0
"""Seconds between two writes of a file."""


class Target(NamedTuple):
    """The destination of the metrics: a file, or a port of this machine."""

    file: pathlib.Path | None = None
    host: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Reads `FILE.prom`, `PORT` or `HOST:PORT`.

        !!! example
            >>> Target.parse("9100")
            Target(file=None, host='127.0.0.1', port=9100)
            >>> Target.parse("70000")
            Traceback (most recent call last):
            ValueError: `metrics` must be a number from 1 to 65535, got 70000.
        """
        host, colon, port = text.rpartition(":")
        if not port.isdecimal() or (host and os.sep in host):
            if not text or text.endswith(os.sep) or pathlib.Path(text).is_dir():
                raise ValueError(f"`metrics` must be FILE.prom, PORT or HOST:PORT, got {text!r}.")
            return cls(pathlib.Path(text))
        check_port("metrics", int(port))
        if colon:
            check_host("metrics", host)
        return cls(None, host.strip("[]") or "127.0.0.1", int(port))


class AbstractExporter(abc.ABC):
    """Computes metrics from events and returns them as text; safe to use from several threads."""

    def __init__(self):
        self._lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        """Updates the metrics with an event."""
        with self._lock:
            self._take(event)

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    @abc.abstractmethod
    def _take(self, event: dict[str, Any]) -> None: ...

    @abc.abstractmethod
    def _lines(self) -> Iterator[str]: ...


class Exporter(AbstractExporter):
    """The metrics of a run, from the events of the server's journal.

    !!! example
        >>> exporter = Exporter()
        >>> exporter({"event": "started", "run": "a1", "round": 0, "rounds": 5, "agents": 3, "transport": "memory"})
        >>> exporter.text().splitlines()[-1]
        'fedhsa_site_absences_total{run="a1",agent="2"} 0'
    """

    def __init__(self):
        super().__init__()
        self._run, self._agents = "", 0
        self._numbers: dict[str, float] = {}
        self._rejected = Counter[str]()
        self._up: dict[int, float] = {}
        self._seen: dict[int, float] = {}
        self._absences: dict[int, float] = {}
        self._metrics: dict[str, dict[str, Any]] = {}

    def _take(self, event: dict[str, Any]) -> None:
        kind, numbers = event["event"], self._numbers
        if kind in ("started", "resumed"):
            self._run, self._agents = event["run"], event["agents"]
            numbers |= {"running": 1.0, "rounds": event["rounds"], "round": event["round"], "agents": event["agents"]}
            for total in _TOTALS:
                numbers.setdefault(total, 0.0)
            self._up = dict.fromkeys(range(self._agents), 0.0)
            self._absences = dict.fromkeys(range(self._agents), 0.0)
        elif kind == "round":
            numbers |= {"round": event["round"], "agents_answering": event["agents"], "round_seconds": event["seconds"]}
            numbers["agents_absent"] = len(event["absent"])
            for name in ("error", "operator_norm", "movement"):
                numbers[name] = _float(event.get(name))
            numbers["round_seconds_total"] = numbers.get("round_seconds_total", 0.0) + event["seconds"]
            for name in ("bytes_down", "bytes_up", "attempts"):
                numbers[f"{name}_total"] = numbers.get(f"{name}_total", 0.0) + event[name]
            absent, now = set(event["absent"]), _timestamp(event)
            for agent in range(self._agents):
                self._up[agent] = float(agent not in absent)
                self._absences[agent] += agent in absent
                if agent not in absent:
                    self._seen[agent] = now
            self._metrics = event.get("measured", {}).get("metrics", self._metrics)
        elif kind == "measured":
            self._metrics = event["metrics"]
        elif kind == "rejected":
            self._rejected[_known(event.get("code"))] += 1
        elif kind == "missing":
            self._up |= dict.fromkeys(event["agents"], 0.0)
        elif kind in ("finished", "failed", "interrupted", "diverged"):
            numbers["running"] = 0.0
        if "time" in event:
            numbers["last_event_timestamp_seconds"] = _timestamp(event)

    def _lines(self) -> Iterator[str]:
        run = {"run": self._run}
        for name in SERVER:
            if name in self._numbers:
                yield from _family(name, [(run, self._numbers[name])])
        if "rounds" in self._numbers:
            codes = [({**run, "code": code}, float(self._rejected[code])) for code in CODES]
            yield from _family("rejected_messages_total", codes)
        found = self._metrics.items()
        yield from _family("metric_mean", [({**run, "metric": m}, _float(values["mean"])) for m, values in found])
        each = [
            ({**run, "metric": name, "agent": str(agent)}, _float(value))
            for name, values in found
            for agent, value in enumerate(values["agents"])
        ]
        yield from _family("metric", each)
        sites = {"site_last_seen_timestamp_seconds": self._seen, "site_up": self._up}
        for name, values in (sites | {"site_absences_total": self._absences}).items():
            yield from _family(name, [({**run, "agent": str(agent)}, value) for agent, value in values.items()])


class NodeExporter(AbstractExporter):
    """The metrics of a node, from the entries of its audit log and the events that `Node` reports for each answer.

    The node's measurements are included only if they were also sent to the server, since other users may read the port.

    !!! example
        >>> exporter = NodeExporter(number=1)
        >>> exporter({"event": "sent", "kind": "reply", "run": "a1", "round": 3, "bytes": 90, "epsilon": None})
        >>> [line for line in exporter.text().splitlines() if line.startswith("fedhsa_node_round{")]
        ['fedhsa_node_round{agent="1",run="a1"} 3']
    """

    def __init__(self, number: int):
        super().__init__()
        self._agent = {"agent": str(number)}
        self._run = ""
        self._round = self._epsilon = self._last = math.nan
        self._sent, self._refused = Counter[str](), Counter[str]()
        self._totals = dict.fromkeys(("bytes_up", "bytes_down", "answer_seconds"), 0.0)
        self._metrics: dict[str, float] = {}

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "sent":
                self._sent[event["kind"]] += 1
                self._run = event["run"]
                if event["kind"] == "reply":
                    self._round = event["round"]
                self._epsilon = _float(event.get("epsilon"))
                self._last = _timestamp(event) if "time" in event else math.nan
            case "refused":
                self._refused[_known(event.get("code"))] += 1
            case "answered":
                self._totals["answer_seconds"] += event["seconds"]
                self._totals["bytes_down"] += event["bytes_down"]
                self._totals["bytes_up"] += event["bytes_up"]
                self._metrics = event.get("measured", self._metrics)

    def _lines(self) -> Iterator[str]:
        own, of_run = self._agent, {**self._agent, "run": self._run}
        sent = [({**own, "kind": kind}, float(self._sent[kind])) for kind in ("present", "reply", "measured")]
        yield from _family("node_answers_total", sent)
        refused = [({**own, "code": code}, float(self._refused[code])) for code in CODES]
        yield from _family("node_refusals_total", refused)
        for name, value in self._totals.items():
            yield from _family(f"node_{name}_total", [(own, value)])
        yield from _family("node_round", [(of_run, self._round)])
        yield from _family("node_epsilon_spent", [(of_run, self._epsilon)])
        yield from _family("node_last_sent_timestamp_seconds", [(own, self._last)])
        yield from _family("node_metric", [({**of_run, "metric": m}, value) for m, value in self._metrics.items()])


CODES = (
    *("beyond", "conflict", "diverged", "exhausted", "failed", "foreign", "forged", "limit", "lost", "malformed"),
    *("mismatch", "missed", "non-finite", "oversized", "stale", "unavailable", "unknown", "other"),
)
"""The codes of rejections. Any other code counts as the last one, so that strangers cannot add time series."""
SERVER = {
    "running": "1 while the run goes on, 0 afterwards.",
    "round": "Rounds that are done.",
    "rounds": "Rounds that were asked for.",
    "agents": "Agents of the run.",
    "agents_answering": "Agents that took part in the last round.",
    "agents_absent": "Agents that did not take part in the last round.",
    "error": "Squared distance to the root, where it is known.",
    "operator_norm": "Norm of the averaged operators of the last round, one observation of each agent.",
    "movement": "How far the parameter moved in the last round.",
    "round_seconds": "Seconds that the last round took.",
    "round_seconds_total": "Seconds that all rounds took.",
    "bytes_down_total": "Bytes sent to sites.",
    "bytes_up_total": "Bytes received from sites.",
    "attempts_total": "Attempts at rounds.",
    "last_event_timestamp_seconds": "When something last happened.",
}
"""The server's metrics that have a single value, with their descriptions."""
HELP = SERVER | {
    "rejected_messages_total": "Messages that the server rejected, and refusals of sites, by their code.",
    "metric_mean": "What sites measured, averaged with their weights.",
    "metric": "What the site of an agent measured on its own data.",
    "site_last_seen_timestamp_seconds": "When an agent last took part in a round.",
    "site_up": "1 if the agent took part in the last round.",
    "site_absences_total": "Rounds that were done without the agent.",
    "node_answers_total": "Answers that left this node, by their kind.",
    "node_refusals_total": "Messages that this node refused, by the code of the reason.",
    "node_bytes_up_total": "Bytes of what left this node.",
    "node_bytes_down_total": "Bytes of what this node was sent.",
    "node_answer_seconds_total": "Seconds that this node took to answer.",
    "node_round": "The last round that this node took part in.",
    "node_epsilon_spent": "Privacy that this node has spent, where its replies have noise.",
    "node_last_sent_timestamp_seconds": "When something last left this node.",
    "node_metric": "What this node measured on its own data and sent.",
}
"""All metrics of server and node; their names begin with `fedhsa_`."""
_TOTALS = [name for name in SERVER if name.endswith("_total")]


def _known(code: Any) -> str:
    return code if code in CODES else "other"


def _family(name: str, samples: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    """The lines of one metric, without unknown values."""
    known = [(labels, value) for labels, value in samples if not math.isnan(value)]
    if not known:
        return
    yield f"# HELP fedhsa_{name} {HELP[name]}"
    yield f"# TYPE fedhsa_{name} {'counter' if name.endswith('_total') else 'gauge'}"
    for labels, value in known:
        listed = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        yield f"fedhsa_{name}{{{listed}}} {_written(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _written(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _float(value: Any) -> float:
    """A number of the journal, in which infinity is a word and NaN is null."""
    words = {None: math.nan, "infinity": math.inf, "-infinity": -math.inf}
    return words[value] if value is None or isinstance(value, str) else float(value)


def _timestamp(event: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(event["time"]).timestamp()


@contextlib.contextmanager
def exported(target: Target, exporter: AbstractExporter | None = None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Returns a function that takes events; while the block runs, their metrics are served or written to a file.

    **Arguments:**

    - `target`: the destination of the metrics.
    - `exporter`: the exporter that computes them. Default: the exporter of a server.
    """
    exporter = Exporter() if exporter is None else exporter
    if target.file is not None:
        _files.check_writable("metrics", target.file)
        writer = _Writer(target.file, exporter)
        try:
            yield writer
        finally:
            writer.write()
        return
    try:
        server = _Port((target.host, target.port), _handler(exporter))
    except OSError as error:
        raise ValueError(
            f"`metrics`: cannot listen on {target.host}:{target.port}: {error.strerror or error}. Name another port."
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield exporter
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Port(http.server.ThreadingHTTPServer):
    """Serves a limited number of clients at a time; further clients are refused, and silent clients time out."""

    daemon_threads = True

    def __init__(self, *args: Any):
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does not report broken connections."""


def _handler(exporter: AbstractExporter) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = PATIENCE
        server_version, sys_version = "fedhsa", ""

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in ("/", "/metrics")
            body = exporter.text().encode() if found else b"The numbers are at /metrics.\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Does not print requests, which are of no interest in the user's terminal."""

    return Handler


class _Writer:
    """Writes the text to a file after events, at most once a second, since writing waits for the disk."""

    def __init__(self, file: pathlib.Path, exporter: AbstractExporter):
        self._file, self._exporter, self._last = file, exporter, -math.inf

    def __call__(self, event: dict[str, Any]) -> None:
        self._exporter(event)
        if time.monotonic() - self._last > PAUSE:
            self.write()

    def write(self) -> None:
        _files.write_text(self._file, self._exporter.text())
        self._last = time.monotonic()

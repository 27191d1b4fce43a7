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

    def __init__(self, **common: str):
        self._lock = threading.Lock()
        self._common = common
        """The labels of all metrics."""
        self._values: dict[str, dict[tuple, float]] = {name: {} for name in HELP}
        """The values of each metric by its other labels, pairs of name and value."""

    def __call__(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._take(event)

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        with self._lock:
            families = [_family(name, self._common, values) for name, values in self._values.items()]
        return "".join(f"{line}\n" for lines in families for line in lines)

    @abc.abstractmethod
    def _take(self, event: dict[str, Any]) -> None: ...

    def _set(self, labels: dict[str, Any], /, **values: float) -> None:
        for name, value in values.items():
            self._values[name][tuple(labels.items())] = value

    def _add(self, labels: dict[str, Any], /, **amounts: float) -> None:
        for name, amount in amounts.items():
            self._set(labels, **{name: self._values[name].get(tuple(labels.items()), 0.0) + amount})


class Exporter(AbstractExporter):
    """The metrics of a run, from the events of the server's journal.

    !!! example
        >>> exporter = Exporter()
        >>> exporter({"event": "started", "run": "a1", "round": 0, "rounds": 5, "agents": 3, "transport": "memory"})
        >>> exporter.text().splitlines()[-1]
        'fedhsa_site_absences_total{run="a1",agent="2"} 0'
    """

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind in ("started", "resumed"):
            self._common, self._agents = {"run": event["run"]}, range(event["agents"])
            self._set({}, running=1.0, rounds=event["rounds"], round=event["round"], agents=event["agents"])
            self._add({}, round_seconds_total=0.0, bytes_down_total=0.0, bytes_up_total=0.0, attempts_total=0.0)
            for code in CODES:
                self._add({"code": code}, rejected_messages_total=0.0)
            for agent in self._agents:
                self._set({"agent": agent}, site_up=0.0, site_absences_total=0.0)
        elif kind == "round":
            absent = event["absent"]
            self._set({}, round=event["round"], agents_answering=event["agents"], agents_absent=len(absent))
            self._set({}, round_seconds=event["seconds"])
            self._set({}, **{name: _float(event.get(name)) for name in ("error", "operator_norm", "movement")})
            self._add({}, round_seconds_total=event["seconds"])
            self._add({}, **{f"{name}_total": event[name] for name in ("bytes_down", "bytes_up", "attempts")})
            for agent in self._agents:
                self._set({"agent": agent}, site_up=float(agent not in absent))
                self._add({"agent": agent}, site_absences_total=float(agent in absent))
                if agent not in absent:
                    self._set({"agent": agent}, site_last_seen_timestamp_seconds=_timestamp(event))
            if "measured" in event:
                self._measure(event["measured"]["metrics"])
        elif kind == "measured":
            self._measure(event["metrics"])
        elif kind == "rejected":
            self._add({"code": _known(event.get("code"))}, rejected_messages_total=1.0)
        elif kind == "missing":
            for agent in event["agents"]:
                self._set({"agent": agent}, site_up=0.0)
        elif kind in ("finished", "failed", "interrupted", "diverged"):
            self._set({}, running=0.0)
        if "time" in event:
            self._set({}, last_event_timestamp_seconds=_timestamp(event))

    def _measure(self, metrics: dict[str, dict[str, Any]]) -> None:
        self._values |= {"metric_mean": {}, "metric": {}}
        for name, found in metrics.items():
            self._set({"metric": name}, metric_mean=_float(found["mean"]))
            for agent, value in enumerate(found["agents"]):
                self._set({"metric": name, "agent": agent}, metric=_float(value))


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
        super().__init__(agent=str(number))
        self._run = ""
        for kind in ("present", "reply", "measured"):
            self._add({"kind": kind}, node_answers_total=0.0)
        for code in CODES:
            self._add({"code": code}, node_refusals_total=0.0)
        self._add({}, node_bytes_up_total=0.0, node_bytes_down_total=0.0, node_answer_seconds_total=0.0)

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "sent":
                kind, self._run = event["kind"], event["run"]
                if kind in ("present", "reply", "measured"):
                    self._add({"kind": kind}, node_answers_total=1.0)
                if kind == "reply":
                    self._values["node_round"] = {(("run", self._run),): event["round"]}
                self._values["node_epsilon_spent"] = {(("run", self._run),): _float(event.get("epsilon"))}
                self._set({}, node_last_sent_timestamp_seconds=_timestamp(event) if "time" in event else math.nan)
            case "refused":
                self._add({"code": _known(event.get("code"))}, node_refusals_total=1.0)
            case "answered":
                self._add({}, node_answer_seconds_total=event["seconds"])
                self._add({}, node_bytes_down_total=event["bytes_down"], node_bytes_up_total=event["bytes_up"])
                if "measured" in event:
                    self._values["node_metric"] = {}
                    for name, value in event["measured"].items():
                        self._set({"run": self._run, "metric": name}, node_metric=value)


CODES = (
    *("beyond", "conflict", "diverged", "exhausted", "failed", "foreign", "forged", "limit", "lost", "malformed"),
    *("mismatch", "missed", "non-finite", "oversized", "stale", "unavailable", "unknown", "other"),
)
"""The codes of rejections. Any other code counts as the last one, so that strangers cannot add time series."""
HELP = {
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


def _known(code: Any) -> str:
    return code if code in CODES else "other"


def _family(name: str, common: dict[str, str], values: dict[tuple, float]) -> list[str]:
    """The lines of one metric, without unknown values."""
    lines = []
    for own, value in values.items():
        if not math.isnan(value):
            listed = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in (*common.items(), *own))
            lines.append(f"fedhsa_{name}{{{listed}}} {_written(value)}")
    kind = "counter" if name.endswith("_total") else "gauge"
    return [f"# HELP fedhsa_{name} {HELP[name]}", f"# TYPE fedhsa_{name} {kind}", *lines] if lines else []


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

    By default they are those of a server.
    """
    exporter = Exporter() if exporter is None else exporter
    if target.file is not None:
        _files.check_writable("metrics", target.file)
        written, file = -math.inf, target.file

        def write() -> None:
            nonlocal written
            _files.write_text(file, exporter.text())
            written = time.monotonic()

        def take(event: dict[str, Any]) -> None:
            exporter(event)
            if time.monotonic() - written > PAUSE:  # not after every event, since writing waits for the disk
                write()

        try:
            yield take
        finally:
            write()
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

"""How a run stands as Prometheus reads it: text format 0.0.4, in a file or over HTTP."""

import contextlib
import datetime
import http.server
import math
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from .. import _files
from .address import check_host, check_port

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Target(NamedTuple):
    """Where the numbers go: a file, or a port of this machine."""

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


class Exporter:
    """Keeps the numbers of a run from its events, and gives them as text.

    !!! example
        >>> exporter = Exporter()
        >>> exporter({"event": "started", "run": "a1", "round": 0, "rounds": 5, "agents": 3, "transport": "memory"})
        >>> exporter.text().splitlines()[-1]
        'fedhsa_site_up{run="a1",agent="2"} 0'
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._run, self._agents = "", 0
        self._numbers: dict[str, float] = {}
        self._up: dict[int, float] = {}
        self._seen: dict[int, float] = {}
        self._metrics: dict[str, dict[str, Any]] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        """Takes an event of the journal."""
        with self._lock:
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        kind, numbers = event["event"], self._numbers
        if kind in ("started", "resumed"):
            self._run, self._agents = event["run"], event["agents"]
            numbers |= {"running": 1.0, "rounds": event["rounds"], "round": event["round"], "agents": event["agents"]}
            for total in ("bytes_down_total", "bytes_up_total", "rejected_messages_total", "attempts_total"):
                numbers.setdefault(total, 0.0)
            self._up = dict.fromkeys(range(self._agents), 0.0)
        elif kind == "round":
            numbers |= {"round": event["round"], "agents_answering": event["agents"], "round_seconds": event["seconds"]}
            for name in ("error", "operator_norm", "movement"):
                numbers[name] = _float(event.get(name))
            for name in ("bytes_down", "bytes_up", "attempts"):
                numbers[f"{name}_total"] = numbers.get(f"{name}_total", 0.0) + event[name]
            absent, now = set(event["absent"]), _timestamp(event)
            for agent in range(self._agents):
                self._up[agent] = float(agent not in absent)
                if agent not in absent:
                    self._seen[agent] = now
            self._metrics = event.get("measured", {}).get("metrics", self._metrics)
        elif kind == "measured":
            self._metrics = event["metrics"]
        elif kind == "rejected":
            numbers["rejected_messages_total"] = numbers.get("rejected_messages_total", 0.0) + 1
        elif kind == "missing":
            self._up |= dict.fromkeys(event["agents"], 0.0)
        elif kind in ("finished", "failed", "interrupted", "diverged"):
            numbers["running"] = 0.0
        if "time" in event:
            numbers["last_event_timestamp_seconds"] = _timestamp(event)

    def text(self) -> str:
        """All numbers in Prometheus' text format."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, about in _HELP.items():
            if name in self._numbers:
                yield from _family(name, about, [({"run": self._run}, self._numbers[name])])
        if self._metrics:
            means = [({"run": self._run, "metric": m}, _float(found["mean"])) for m, found in self._metrics.items()]
            yield from _family("metric_mean", "What sites measured, averaged with their weights.", means)
            each = [
                ({"run": self._run, "metric": name, "agent": str(agent)}, _float(value))
                for name, found in self._metrics.items()
                for agent, value in enumerate(found["agents"])
            ]
            yield from _family("metric", "What the site of an agent measured on its own data.", each)
        sites = (("site_last_seen_timestamp_seconds", "When an agent last took part in a round.", self._seen),)
        sites += (("site_up", "1 if the agent took part in the last round.", self._up),)
        for name, about, values in sites:
            labelled = [({"run": self._run, "agent": str(agent)}, value) for agent, value in values.items()]
            yield from _family(name, about, labelled)


_HELP = {
    "running": "1 while the run goes on, 0 afterwards.",
    "round": "Rounds that are done.",
    "rounds": "Rounds that were asked for.",
    "agents": "Agents of the run.",
    "agents_answering": "Agents that took part in the last round.",
    "error": "Squared distance to the root, where it is known.",
    "operator_norm": "Norm of the averaged operators of the last round, one observation of each agent.",
    "movement": "How far the parameter moved in the last round.",
    "round_seconds": "Seconds that the last round took.",
    "bytes_down_total": "Bytes sent to sites.",
    "bytes_up_total": "Bytes received from sites.",
    "attempts_total": "Attempts at rounds.",
    "rejected_messages_total": "Messages that were rejected.",
    "last_event_timestamp_seconds": "When something last happened.",
}


def _family(name: str, about: str, samples: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    """The lines of one metric; what is not known is left out."""
    known = [(labels, value) for labels, value in samples if not math.isnan(value)]
    if not known:
        return
    yield f"# HELP fedhsa_{name} {about}"
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
    """A number of the journal, which writes what is infinite as a word, and NaN as nothing."""
    words = {None: math.nan, "infinity": math.inf, "-infinity": -math.inf}
    return words[value] if value is None or isinstance(value, str) else float(value)


def _timestamp(event: dict[str, Any]) -> float:
    return datetime.datetime.fromisoformat(event["time"]).timestamp()


@contextlib.contextmanager
def exported(target: Target) -> Iterator[Exporter]:
    """Gives an exporter whose text is written to a file whenever it changes, or served while the block runs."""
    if target.file is not None:
        _files.check_writable("metrics", target.file)
        yield _FileExporter(target.file)
        return
    exporter = Exporter()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in ("/", "/metrics")
            body = exporter.text().encode() if found else b"The numbers are at /metrics.\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing: whoever asks is of no interest to the user's terminal."""

    try:
        server = http.server.ThreadingHTTPServer((target.host, target.port), Handler)
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


class _FileExporter(Exporter):
    """Writes its text to a file whenever a round is done or the run's state changes."""

    def __init__(self, file: pathlib.Path):
        super().__init__()
        self._file = file

    def __call__(self, event: dict[str, Any]) -> None:
        super().__call__(event)
        if event["event"] not in ("rejected", "again", "waiting"):
            _files.write_text(self._file, self.text())

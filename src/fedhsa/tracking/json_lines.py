"""Runs as JSON lines: a text file that other programs can follow while it grows."""

import contextlib
import datetime
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _files
from .._json import plain
from .base import AbstractTracker


class JSONLines(AbstractTracker):
    """Writes a run to a text file, one JSON object per line. Needs no further package.

    The lines have the form of the log of a deployed run: `{"event": "started", "settings": ...}`, then
    `{"event": "round", "round": 10, "error": ...}` for each round logged, then an event `finished`, `interrupted` or
    `failed` with the summary. NaN is written as null, and infinite numbers as `"infinity"`.

    **Arguments:**

    - `path`: the file. A new run replaces it; a resumed run continues it.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> tracker = fedhsa.tracking.JSONLines("run.jsonl")
        >>> _ = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10, tracker=tracker)
        >>> import json
        >>> with open("run.jsonl") as lines:
        ...     events = [json.loads(line)["event"] for line in lines]
        >>> events[0], events.count("round"), events[-1]
        ('started', 11, 'finished')
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)
        self._lines: list[str] = []

    def begin(self, settings: Mapping[str, Any], after: int | None = None) -> int:
        kept = [] if after is None else [e for e in _events(self.path) if e.get("round", -1) <= after]
        self._lines = [json.dumps(event) for event in kept]
        self._add("started" if not kept else "resumed", settings=settings)
        _files.write_text(self.path, "".join(f"{line}\n" for line in self._lines))
        self._lines = []
        return max((event["round"] for event in kept if event["event"] == "round"), default=-1)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._add("round", round=step, **values)

    def flush(self) -> None:
        if self._lines:
            _files.append_line(self.path, "\n".join(self._lines).encode())
            self._lines = []

    def end(self, status: str, summary: Mapping[str, Any], files: Sequence[pathlib.Path] = ()) -> None:
        self._add(status, **summary)
        self.flush()

    def _add(self, event: str, **facts: Any) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._lines.append(json.dumps({"time": now, "event": event, **plain(facts)}, allow_nan=False, default=str))


def _events(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The events of an earlier track; an unfinished line, which a killed process leaves, is left out."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    yield event

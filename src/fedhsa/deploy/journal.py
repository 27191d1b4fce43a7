"""The log of a run: events as JSON lines, written as they happen and read afterwards."""

import contextlib
import datetime
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from .._json import plain

FILE = "log.jsonl"


class Journal:
    """Writes events to a file, and passes them to a function.

    **Arguments:**

    - `folder`: where `log.jsonl` is, or None to write no log.
    - `watch`: called with every event, a dictionary with `event` and `time`.
    """

    def __init__(self, folder: pathlib.Path | None = None, watch: Callable[[dict[str, Any]], None] | None = None):
        self.path = None if folder is None else folder / FILE
        self.watch = watch

    def __call__(self, event: str, **facts: Any) -> None:
        """Logs an event."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        entry = {"time": now, "event": event, **plain(facts)}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as file:
                # A process that was killed may have left half a line, which must not swallow this one.
                start = b"\n" if file.tell() and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n" else b""
                file.write(start + json.dumps(entry, allow_nan=False).encode() + b"\n")
        if self.watch is not None:
            self.watch(entry)


def read(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The events of a run; lines that are no events, as a killed process leaves them unfinished, are left out."""
    with open(folder / FILE, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    yield event

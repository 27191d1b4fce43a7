"""What happens in a run, as it happens: a log in JSON lines, and what can be read from it afterwards."""

import datetime
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from .._json import plain

FILE = "log.jsonl"


class Journal:
    """Writes events to a file, and tells them to whoever watches.

    **Arguments:**

    - `folder`: where `log.jsonl` is, or None for none.
    - `watch`: called with every event, a dictionary with `event` and `time`.
    """

    def __init__(self, folder: pathlib.Path | None = None, watch: Callable[[dict[str, Any]], None] | None = None):
        self.path = None if folder is None else folder / FILE
        self.watch = watch

    def __call__(self, event: str, **facts: Any) -> None:
        """Notes that something has happened."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        entry = {"time": now, "event": event, **plain(facts)}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry, allow_nan=False) + "\n")
        if self.watch is not None:
            self.watch(entry)


def read(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The events of a run; a last line that a killed process left unfinished is left out."""
    with open(folder / FILE, encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue

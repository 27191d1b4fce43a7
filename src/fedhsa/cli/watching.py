"""The display of a run by messages: a table of its sites on a terminal, and a few lines elsewhere."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from .._numbers import plain
from ..deploy import prometheus
from ..deploy.journal import Teller, measured_words, sentence
from .screen import PlainTable

Watch = Callable[[dict[str, Any]], None]
ROWS = 20
"""The largest number of sites in the table; missing sites come first."""


@contextlib.contextmanager
def watching(console: Console, metrics: str = "", table: bool = True) -> Iterator[Watch]:
    """Yields a function to be called with every event of a run, which shows a `table` only on a terminal.

    `metrics` is the target of the metrics for Prometheus, as `prometheus.Target` parses it; empty for none.
    """
    with contextlib.ExitStack() as stack:
        board = Board(console) if table and console.is_terminal else None
        live = board and Live(get_renderable=board.render, console=console, refresh_per_second=4)
        show = board or Teller(lambda words: console.print(words, soft_wrap=True))
        exporter = stack.enter_context(prometheus.exported(prometheus.Target.parse(metrics))) if metrics else None

        def watch(event: dict[str, Any]) -> None:
            if live is not None and not live.is_started:  # with the first event, so that earlier lines stay above
                stack.enter_context(live)
            show(event)
            if exporter is not None:
                exporter(event)

        yield watch


class Board:
    """The sites of a run as a table: their states, their measurements, and the times of their last answers."""

    def __init__(self, console: Console):
        self._console, self._said = console, set[str]()
        self._head = ""
        self._state: dict[int, str] = {}
        self._seen: dict[int, float] = {}
        self._last: dict[int, int] = {}
        self._measured: dict[str, Any] = {}
        self._ended = False

    def __call__(self, event: dict[str, Any]) -> None:
        """Updates the table with an event of the journal."""
        match event["event"]:
            case "started" | "resumed":
                self._state = dict.fromkeys(range(event["agents"]), "waiting")
                self._head = sentence(event) or ""
            case "round":
                absent = set(event["absent"])
                for agent in self._state:
                    if agent not in absent:
                        self._state[agent], self._seen[agent] = "answers", time.monotonic()
                        self._last[agent] = event["round"]
                    elif self._state[agent] in ("answers", "waiting"):
                        self._state[agent] = "left out"
                self._measured = event.get("measured", self._measured)
                self._head = sentence(event) or ""
            case "missing":
                why = event["why"]
                for agent in event["agents"]:
                    self._state[agent] = "missing" + (f": {next(iter(why.values()))}" if why else "")
            case "measured":
                self._measured = event
                self._head = f"Measured after round {event['round']}: {measured_words(event)}"
            case "finished" | "diverged" | "interrupted" | "failed":
                self._ended = True
                self._say(event)
            case _:
                self._say(event)

    def _say(self, event: dict[str, Any]) -> None:
        """Prints a sentence above the table, unless it was printed before."""
        words = sentence(event)
        if words and words not in self._said:
            self._said.add(words)
            self._console.print(words, soft_wrap=True)

    def render(self) -> Group:
        metrics = self._measured.get("metrics", {})
        table = PlainTable("agent", "state", *(name.replace("_", " ") for name in metrics), "last seen")
        order = sorted(self._state, key=lambda agent: (self._state[agent] == "answers", agent))
        for agent in sorted(order[:ROWS]):
            each = (plain(found["agents"][agent], 4) for found in metrics.values())
            table.add_row(str(agent), self._state[agent], *each, self._last_seen(agent))
        if metrics:
            table.add_row("average", "", *(plain(found["mean"], 4) for found in metrics.values()), "")
        if len(order) > ROWS:
            table.add_row("...", f"{len(order) - ROWS} more", *(len(metrics) + 1) * [""])
        return Group(self._head, table) if self._state else Group(self._head)

    def _last_seen(self, agent: int) -> str:
        if agent not in self._seen:
            return "never"
        if self._ended:
            return f"round {self._last[agent]}"
        seconds = int(time.monotonic() - self._seen[agent])
        return "now" if seconds < 1 else f"{datetime.timedelta(seconds=seconds)} ago"

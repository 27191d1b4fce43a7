"""The limits of a node, which no server can change, and its audit log of everything that it sends."""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from .. import _check, _files
from .journal import Journal
from .wire import RejectedError

AUDIT = "audit.jsonl"
SETTINGS = ("max_rounds", "max_restarts", "exchanges")
MEASURING = "measure"
"""The name among `exchanges` that stands for a site's measurements."""
REFUSALS = 10_000
"""The largest number of refusals that a process records, so that strangers cannot fill the disk."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits that a node sets itself: it refuses a server that requests more, and gives the reason.

    The limit on the privacy budget is a part of `Privacy`.

    **Arguments:**

    - `rounds`: the largest number of rounds in which the node takes part, over all runs. Default: no limit.
    - `restarts`: the largest number of times that a round may be restarted, each time with the same observations. A
      server restarts a round after a crash; a dishonest server could request the same observations at many parameters.
    - `exchanges`: the names of the exchanges that are answered, like `operator` and `delta`, and `measure` for the
      site's measurements on its own data. Default: all exchanges of the algorithm.

    Raises `ValueError` if a limit is not a whole number or too small.

    !!! example
        >>> Limits.from_config({"max_rounds": "50", "exchanges": "delta"})
        Limits(rounds=50, restarts=100, exchanges=('delta',))
    """

    rounds: int | None = None
    restarts: int = 100
    exchanges: tuple[str, ...] | None = None

    def __post_init__(self):
        if self.rounds is not None:
            _check.count("max_rounds", self.rounds)
        _check.count("max_restarts", self.restarts, least=0)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Limits":
        """Reads a node's settings `max_rounds`, `max_restarts` and `exchanges` (names, separated by commas)."""
        given = {name: config[name] for name in SETTINGS if config.get(name) not in (None, "", ())}
        names = given.pop("exchanges", None)
        limits: dict[str, Any] = {name.removeprefix("max_"): _whole(name, value) for name, value in given.items()}
        if names is not None:
            names = names.split(",") if isinstance(names, str) else names
            limits["exchanges"] = tuple(name.strip() for name in names)
        return cls(**limits)

    @property
    def measures(self) -> bool:
        """Whether the site may send its measurements."""
        return self.exchanges is None or MEASURING in self.exchanges

    def check_exchange(self, name: str) -> None:
        """Raises `RejectedError` if the node does not answer this exchange."""
        if self.exchanges is not None and name not in self.exchanges:
            raise RejectedError(
                "limit", f"this site answers {', '.join(self.exchanges)} (`exchanges`), and was asked for {name}"
            )

    def check_restarts(self, restarts: int, t: int) -> None:
        """Raises `RejectedError` if round `t` would be restarted too often."""
        if restarts > self.restarts:
            raise RejectedError(
                "limit",
                f"round {t + 1} was asked for again and again: this site repeats a round at most {self.restarts} times "
                "(`max_restarts`)",
            )

    def check_rounds(self, before: int) -> None:
        """Raises `RejectedError` if one more round would exceed the limit."""
        if self.rounds is not None and before >= self.rounds:
            raise RejectedError(
                "limit", f"this site has taken part in all rounds that it agreed to, {self.rounds} (`max_rounds`)"
            )


class Audit:
    """A node's own log, `audit.jsonl`, with a line for every message that it sent and for every refusal.

    A line is written before the answer is sent; if it cannot be written, nothing is sent. It contains the time, the
    run, the round, the exchange, the kind of the answer, its size in bytes, and, with noise, the privacy spent so far.

    **Arguments:**

    - `folder`: the node's folder.
    - `watch`: a function that is called with every entry.
    """

    def __init__(self, folder: str | os.PathLike, watch: Callable[[dict[str, Any]], None] | None = None):
        self.path = pathlib.Path(folder) / AUDIT
        self._journal = Journal(self.path.parent, watch, AUDIT, private=True)
        self._read, self._blocks, self._refusals = 0, dict[tuple[str, int], int](), 0

    def sent(self, **facts: Any) -> None:
        if not self.path.parent.is_dir():
            _files.make_private(self.path.parent)
        self._journal("sent", **facts)

    def refused(self, **facts: Any) -> None:
        """Records a refusal. A refusal is sent even if it cannot be recorded."""
        self._refusals += 1
        if self._refusals <= REFUSALS and self.path.parent.is_dir():  # a refused run gets no folder
            last = {"more": "further refusals are not written down"} if self._refusals == REFUSALS else {}
            with contextlib.suppress(OSError):
                self._journal("refused", **facts, **last)

    def rounds(self, agent: int, other_than: str | None = None) -> int:
        """Returns the number of rounds in which this agent took part, over all runs except `other_than`."""
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
                    entry = json.loads(line)
                    if entry["event"] == "sent" and entry["kind"] == "reply":
                        whose = str(entry["run"]), int(entry["agent"])
                        self._blocks[whose] = max(self._blocks.get(whose, 0), int(entry["block"]))
        return sum(count for (run, one), count in self._blocks.items() if one == agent and run != other_than)


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be a whole number, got {value!r}.") from None

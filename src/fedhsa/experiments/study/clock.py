"""The time that a study takes: CPU seconds by phase, and the number of compiled programs."""

import contextlib
import contextvars
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import jax

REST = "other"
"""The phase for time that belongs to no named phase."""
COMPILED = "/jax/core/compile/backend_compile_duration"

_running: contextvars.ContextVar["Clock | None"] = contextvars.ContextVar("clock", default=None)


class Clock:
    """CPU seconds of this process by phase. Phases can be nested, and each second counts for the innermost."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.programs = 0
        """The number of programs that were compiled or found in a cache on disk."""
        self.compiling = 0.0
        """The wall-clock seconds that compilation took, in all phases."""
        self._phase, self._since = REST, time.process_time()

    def timings(self) -> dict[str, Any]:
        """Returns all numbers in the form in which a manifest stores them."""
        self.turn(self._phase)
        seconds = {name: round(spent, 3) for name, spent in self.seconds.items()}
        return {"cpu": seconds, "programs": self.programs, "compiling": round(self.compiling, 3)}

    def turn(self, name: str) -> str:
        """Counts for this phase from now on, and returns the phase before."""
        now, before = time.process_time(), self._phase
        self.seconds[before] += now - self._since
        self._phase, self._since = name, now
        return before


@contextlib.contextmanager
def clock() -> Iterator[Clock]:
    """Measures the time within the block, in this thread.

    !!! example
        >>> with clock() as spent:
        ...     with phase("simulate"):
        ...         _ = sum(range(1000))
        >>> sorted(spent.timings()["cpu"])
        ['other', 'simulate']
    """
    found = Clock()
    token = _running.set(found)
    try:
        yield found
    finally:
        _running.reset(token)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Counts the time of a block, or of a decorated function, for this phase; has no effect without a clock."""
    running = _running.get()
    if running is None:
        yield
        return
    before = running.turn(name)
    try:
        yield
    finally:
        running.turn(before)


def _heard(event: str, duration_secs: float, **_: Any) -> None:
    running = _running.get()
    if running is not None and event == COMPILED:
        running.programs += 1
        running.compiling += duration_secs


jax.monitoring.register_event_duration_secs_listener(_heard)

"""Reports the progress of long work without a terminal: the estimated time, then occasional lines, on stderr."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from .._numbers import about
from .screen import status_line

PATIENCE = 5.0
"""Seconds of work from which the rest is estimated."""
LONG = 30.0
"""Seconds: shorter work is not reported, and two lines or two writes of files are at least this far apart."""
TENTH, SILENCE = 0.1, 600.0
"""The part of the work, and the number of seconds, after which a line is due."""


class Lines:
    """Prints lines about the progress; called with a description of the current work and the finished part."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.first: tuple[float, float] | None = None
        self.last: tuple[float, float] | None = None

    def __call__(self, what: str, part: float) -> None:
        now = self.clock()
        if self.first is None or part < self.first[1]:
            self.first = now, part  # earlier compilation does not predict the remaining time
        began, at = self.first
        if part <= at or part >= 1 or now - began < PATIENCE:
            return
        left = (1 - part) * (now - began) / (part - at)
        if self.last is None:
            if left > LONG:
                self._say(now, part, f"This takes about {about(left + now - began)}. {_capital(what)}", left)
            return
        since, done = now - self.last[0], part - self.last[1]
        if since >= LONG and (done >= TENTH or since >= SILENCE):
            self._say(now, part, _capital(what), left)

    def _say(self, now: float, part: float, words: str, left: float) -> None:
        self.last = now, part
        what = f"{words}: " if words and not words.endswith(" ") else words
        print(f"{what}{100 * part:.0f} % done, about {about(left)} left.", file=sys.stderr, flush=True)


class Kept:
    """Calls a function that writes the results so far, at a limited frequency."""

    def __init__(self, write: Callable[..., None], clock: Callable[[], float] = time.monotonic):
        self.write, self.clock = write, clock
        self.last = clock()

    def __call__(self, *so_far: object) -> None:
        if self.clock() - self.last >= LONG:
            self.write(*so_far)
            self.last = self.clock()


def lines(show: bool) -> Lines | None:
    """Returns the lines if they are enabled and there is no terminal for a bar."""
    return Lines() if show and not sys.stderr.isatty() else None


@contextlib.contextmanager
def steps(show: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the current computation: immediately on a terminal, occasionally elsewhere."""
    if not show or sys.stderr.isatty():
        with status_line(show) as told:
            yield told
        return
    last = time.monotonic()

    def tell(what: str) -> None:
        nonlocal last
        if time.monotonic() - last >= LONG:
            last = time.monotonic()
            print(f"{_capital(what)} ...", file=sys.stderr, flush=True)

    yield tell


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]

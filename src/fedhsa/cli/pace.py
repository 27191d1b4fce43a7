"""Long work says so where nobody watches a terminal: how long it will take, then a line now and then, on stderr."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from .screen import status_line

PATIENCE = 5.0
"""Seconds of work from which the rest is estimated."""
LONG = 30.0
"""Seconds; what takes less is not spoken of, two lines are at least so far apart, and so are two writes of files."""
TENTH, SILENCE = 0.1, 600.0
"""A line is due after so much of the work, or so many seconds."""


class Lines:
    """To be called with what is being done and the part of the whole that is done."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.first: tuple[float, float] | None = None
        self.last: tuple[float, float] | None = None

    def __call__(self, what: str, part: float) -> None:
        now = self.clock()
        if self.first is None or part < self.first[1]:
            self.first = now, part  # what was compiled before it is not a measure of the rest
        began, at = self.first
        if part <= at or part >= 1 or now - began < PATIENCE:
            return
        left = (1 - part) * (now - began) / (part - at)
        if self.last is None:
            if left > LONG:
                self._say(now, part, f"This takes about {duration(left + now - began)}. {_capital(what)}", left)
            return
        since, done = now - self.last[0], part - self.last[1]
        if since >= LONG and (done >= TENTH or since >= SILENCE):
            self._say(now, part, _capital(what), left)

    def _say(self, now: float, part: float, words: str, left: float) -> None:
        self.last = now, part
        what = f"{words}: " if words and not words.endswith(" ") else words
        print(f"{what}{100 * part:.0f} % done, about {duration(left)} left.", file=sys.stderr, flush=True)


class Kept:
    """Calls a function that writes what is done so far, but not more often than is worth it."""

    def __init__(self, write: Callable[..., None], clock: Callable[[], float] = time.monotonic):
        self.write, self.clock = write, clock
        self.last = clock()

    def __call__(self, *so_far: object) -> None:
        if self.clock() - self.last >= LONG:
            self.write(*so_far)
            self.last = self.clock()


def lines(show: bool) -> Lines | None:
    """Lines, where they are wanted and there is no terminal for a bar."""
    return Lines() if show and not sys.stderr.isatty() else None


@contextlib.contextmanager
def steps(show: bool) -> Iterator[Callable[[str], None]]:
    """Gives a function that is told what is being computed, and shows it: at once on a terminal, elsewhere rarely."""
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


def duration(seconds: float) -> str:
    """Seconds in words, to two digits."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]

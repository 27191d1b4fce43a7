"""One run as a tracker follows it: the numbers are thinned, and a tracker that fails is told nothing more."""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .base import AbstractTracker

POINTS = 1000
"""The largest number of rounds that are logged, about, whatever the length of a run."""


class Track:
    """Calls a tracker, if there is one, such that its failures do not reach the run.

    The whole run has this number of `rounds`, and `every` is the number of rounds between two records.
    """

    def __init__(self, tracker: AbstractTracker | None, rounds: int, every: int = 1):
        if not isinstance(tracker, AbstractTracker | None):
            raise TypeError(
                f"`tracker` must be a tracker, like `fedhsa.tracking.JSONLines('run.jsonl')`, got {tracker!r}."
            )
        self.tracker, self.rounds, self.last = tracker, rounds, -1
        self.stride = every * -(-(rounds // every) // POINTS)

    def wants(self, round: int) -> bool:
        """Whether a round is among those that are logged."""
        return round % self.stride == 0 or round == self.rounds

    def begin(self, settings: Mapping[str, Any], after: int | None = None) -> None:
        """Opens the track; a run that was resumed says after which round."""
        with self._calling() as tracker:
            self.last = -1 if tracker is None else tracker.begin(settings, after)

    def log(self, rows: Iterator[tuple[int, Mapping[str, float]]]) -> None:
        """Adds rounds with their numbers, all but those that the track has already."""
        with self._calling() as tracker:
            if tracker is None:
                return
            for round, values in rows:
                if round > self.last:
                    self.last = round  # before, so that Ctrl-C during the call does not repeat it
                    tracker.log(values, round)
            tracker.flush()

    def end(self, status: str, summary: Mapping[str, Any], files: Sequence[pathlib.Path] = ()) -> None:
        with self._calling() as tracker:
            if tracker is not None:
                tracker.end(status, summary, files)
            self.tracker = None

    @contextlib.contextmanager
    def _calling(self) -> Iterator[AbstractTracker | None]:
        """Turns an error of the tracker into a warning, after which there is no tracker."""
        tracker = self.tracker
        try:
            yield tracker
        except Exception as error:
            if tracker is None:
                raise
            self.tracker, why = None, f"{type(error).__name__}: {' '.join(str(error).split())}"
            warnings.warn(f"{tracker.name_of_tool} failed, and the run goes on without it: {why}", stacklevel=4)

"""A simulation as a tracker follows it: means over seeds of finished rounds, and the result at the end."""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .. import statistics
from ..tracking.base import AbstractTracker
from ..tracking.track import Track
from .result import SIGNED, Result
from .run import Run

LISTED = 1000
"""The largest number of parameters in a summary."""
LARGEST = 2**26
"""The largest number of bytes of a result that is handed over as a file."""


class Following:
    """Passes the records of a run on, segment by segment. Every process of the run must have one.

    Only process 0 calls the tracker; the others hand in the records of their seeds.
    """

    def __init__(self, tracker: AbstractTracker | None, run: Run, rounds: int):
        self.active, self.run = tracker is not None, run
        self.track = Track(tracker, rounds, run.every)
        if not run.peers.first:
            self.track.tracker = None
        self._segments = self._records = 0

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Tells the tracker about an exception that ends the run."""
        try:
            yield
        except KeyboardInterrupt:
            self.track.end("interrupted", {})
            raise
        except BaseException:
            self.track.end("failed", {})
            raise

    def begin(self, settings: Mapping[str, Any], resumed: bool) -> None:
        """Opens the track, once it is known where the run stands."""
        if self.active:
            self.track.begin(settings, self.run.round if resumed else None)
            self.update()

    def update(self) -> None:
        """Passes on what has been recorded since the last call."""
        if not self.active:
            return
        segments = self.run.progress.records[self._segments :]
        if not segments:
            return
        numbers = [name for name, values in segments[0].items() if values.ndim == 2]
        found = {name: np.concatenate([segment[name] for segment in segments], axis=1) for name in numbers}
        count = sum(next(iter(segment.values())).shape[1] for segment in segments)
        rounds = (self._records + np.arange(count)) * self.run.every
        chosen = [at for at, round in enumerate(rounds.tolist()) if self.track.wants(round)]
        if found and chosen:
            found = self.run.collect({name: values[:, chosen] for name, values in found.items()})
            if found is not None:
                self.track.log(rows(rounds[chosen], found))
        self._segments, self._records = self._segments + len(segments), self._records + count

    def end(self, result: Result) -> None:
        """Closes the track with the result."""
        if self.active:
            finish(self.track, result)


def follow(result: Result, tracker: AbstractTracker) -> None:
    """Tells a tracker about a finished result, as if it had followed the run."""
    track = Track(tracker, int(result.rounds[-1]), int(result.settings.get("every", 1)))
    track.begin(result.settings)
    chosen = [at for at, round in enumerate(result.rounds.tolist()) if track.wants(round)]
    track.log(rows(result.rounds[chosen], {n: v[:, chosen] for n, v in result.records.items() if v.ndim == 2}))
    finish(track, result)


def finish(track: Track, result: Result) -> None:
    """Closes a track with the final numbers and, where the tool stores files, with the result as a file."""
    tracker = track.tracker
    if tracker is None:
        return
    status = "finished" if result.complete else "interrupted"
    size = sum(values.nbytes for values in result.records.values())
    with tempfile.TemporaryDirectory(prefix="fedhsa-track-") as folder:
        path = pathlib.Path(folder, "result.npz")
        if tracker.artifacts and size <= LARGEST:
            result.save(path)
        track.end(status, summary(result), [path] if path.exists() else [])


def rows(rounds: np.ndarray, records: Mapping[str, np.ndarray]) -> Iterator[tuple[int, dict[str, float]]]:
    """The means over seeds of each round, as `Result.mean` computes them."""
    means = {name: mean(name, values).tolist() for name, values in records.items()}
    for at, round in enumerate(rounds.tolist()):
        yield round, {name: values[at] for name, values in means.items()}


def mean(name: str, values: np.ndarray) -> np.ndarray:
    """The mean over seeds of `(seeds, records)`; NaN where nothing was measured."""
    found = statistics.interval(values, 0.95, positive=name not in SIGNED)[0]
    return np.where(np.isnan(values).all(0), np.nan, found)


def summary(result: Result) -> dict[str, Any]:
    """The final numbers of a result, the cost of a round, and the parameter where it is short."""
    found: dict[str, Any] = {"rounds": int(result.rounds[-1])}
    if result.quantity in result.records:
        (low, high), last = result.interval(), result.mean()
        found["final"] = {result.quantity: float(last[-1]), "low": float(low[-1]), "high": float(high[-1])}
    found |= {"diverged": int((result.failed_round >= 0).sum()), "seconds": dict(result.timings)}
    with contextlib.suppress(ValueError):  # the cost is not known for results that were read from some files
        found["cost"] = result.cost._asdict()
    parameters = result.parameters()
    if len(parameters) <= LISTED:
        found["parameters"] = {name: value.value for name, value in parameters.items()}
    return found

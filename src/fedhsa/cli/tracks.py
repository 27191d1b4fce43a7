"""`--track`: the trackers of a command, one for each run, and the files that they get when the command ends."""

import contextlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..engine import Result
from ..tracking import AbstractTracker, JSONLines, MLflow, TensorBoard, WandB
from ..tracking.track import Track
from .settings import TrackFlags

ROUND = ("error", "operator_norm", "movement", "agents", "seconds", "bytes_down", "bytes_up", "attempts")
"""The numbers of a round of a deployed run."""


class Tracks:
    """The trackers of one command. Tracks receive files of its output folder, and end when these have been written."""

    def __init__(self, settings: TrackFlags, folder: pathlib.Path):
        self.kind, self.to, self.folder = settings.track, settings.track_to, folder
        self._files: list[pathlib.Path] = []
        self._held: dict[str, _Held] = {}
        if self.kind is not None:
            self._make("")  # reports a missing package immediately

    def of(self, name: str) -> AbstractTracker | None:
        """Returns the tracker of the run with this name, or None without `--track`."""
        if self.kind is None:
            return None
        if name not in self._held:
            if self.kind == "mlflow" and ":" not in str(self.to):
                pathlib.Path(self.to or self.folder).mkdir(parents=True, exist_ok=True)  # SQLite does not create it
            self._held[name] = _Held(self._make(name))
        return self._held[name]

    def follow(self, results: Mapping[str, Result]) -> None:
        """Passes finished runs to their trackers, except for those that have them already."""
        for name, result in results.items():
            if name not in self._held and (tracker := self.of(name)) is not None:
                result.track(tracker)

    def take(self, *files: str) -> None:
        """Passes these files of the output folder to the tracks, if they exist at the end."""
        self._files += [self.folder / name for name in files]

    @contextlib.contextmanager
    def open(self) -> Iterator["Tracks"]:
        try:
            yield self
        finally:
            for held in self._held.values():
                held.release([path for path in self._files if path.exists()])

    def _make(self, name: str) -> AbstractTracker:
        place = self.folder / ("track" if self.kind == "jsonl" else "tensorboard") if self.to is None else self.to
        file = name if name.isidentifier() else re.sub(r"[^A-Za-z0-9._=-]+", "-", name).strip("-")[:100]
        match self.kind:
            case "jsonl":
                return JSONLines(pathlib.Path(place, f"{file}.jsonl"))
            case "tensorboard":
                return TensorBoard(pathlib.Path(place, file))
            case "mlflow":
                return MLflow(self._store(), name=name, artifacts_folder=self.folder / "mlartifacts")
            case _:
                return WandB(name=name, folder=self.folder if self.to is None else self.to)

    def _store(self) -> str | None:
        """Returns the store of MLflow: an address, a folder for a database, or by default one in the output folder."""
        if self.to is not None and ":" in self.to:
            return self.to
        if self.to is None and os.environ.get("MLFLOW_TRACKING_URI"):
            return None
        folder = self.folder if self.to is None else pathlib.Path(self.to)
        return f"sqlite:///{(folder / 'mlflow.db').absolute().as_posix()}"


class _Held(AbstractTracker):
    """A tracker that ends later, with more files."""

    def __init__(self, tracker: AbstractTracker):
        self.tracker = tracker
        self._ending: tuple[str, Mapping[str, Any]] | None = None

    @property
    def name_of_tool(self) -> str:
        return self.tracker.name_of_tool

    def begin(self, settings: Mapping[str, Any], after: int | None = None) -> int:
        return self.tracker.begin(settings, after)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.tracker.log(values, step)

    def flush(self) -> None:
        self.tracker.flush()

    def end(self, status: str, summary: Mapping[str, Any], files: Sequence[pathlib.Path] = ()) -> None:
        self.tracker.flush()
        self._ending = status, summary

    def release(self, files: Sequence[pathlib.Path]) -> None:
        if self._ending is not None:
            Track(self.tracker, 1).end(*self._ending, files)
            self._ending = None


def watched(tracks: Tracks, name: str, settings: Mapping[str, Any]) -> Callable[[dict[str, Any]], None]:
    """Returns a function that takes the events of a deployed run and passes its rounds to a tracker."""
    tracker, track = tracks.of(name), Track(None, 1)

    def watch(event: dict[str, Any]) -> None:
        nonlocal track
        match event["event"]:
            case "started" | "resumed":
                track = Track(tracker, event["rounds"])
                facts = {name: event[name] for name in ("run", "rounds", "transport") if name in event}
                resumed = event["round"] if event["event"] == "resumed" else None
                track.begin({**settings, "fingerprint": event["run"], **facts}, resumed)
            case "round" if track.wants(event["round"]):
                track.log(iter([(event["round"], _numbers(event))]))
            case "measured":
                track.last = event["round"] - 1  # the last parameter is measured after the last round
                track.log(iter([(event["round"], _numbers({"measured": event}))]))
            case "finished" | "diverged":
                track.end("finished", {"rounds": event["round"], "diverged": int(event["event"] == "diverged")})
            case "interrupted" | "failed":
                track.end(event["event"], {"rounds": event["round"], "why": event.get("why", "")})

    return watch if tracker is not None else lambda event: None


def _numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of an event: those of the round, and the averages of the sites' measurements."""
    found = {name: event.get(name) for name in ROUND}
    measured = (event.get("measured") or {}).get("metrics", {})
    found |= {name: metric["mean"] for name, metric in measured.items()}
    return {name: float(value) for name, value in found.items() if value is not None}  # "infinity" is a number, too

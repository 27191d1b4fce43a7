"""The states that `fedhsa run` keeps next to its results to continue or extend a run, and their settings."""

import contextlib
import dataclasses
import json
import pathlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from .. import _files
from ..algorithms import Cost
from ..engine import Result
from ..opening import load
from ..outputs import read_manifest
from ..problems import Problem
from .errors import FailedRunError, UsageError
from .settings import RunSettings

SMALL = 2**24
"""The approximate number of bytes that a run may keep at its end by default, so that it can be extended."""


class Checkpoints:
    """A folder inside the output folder with a state for each algorithm.

    States are saved during the run if the user requested it, and otherwise at the end, if they are small.
    """

    def __init__(self, settings: RunSettings, problem: Problem):
        self.folder = settings.folder / "checkpoints"
        self.settings = json.loads(json.dumps(settings.numbers(), default=str))
        self.names = settings.labels
        self.asked = settings.checkpoint or settings.resume
        numbers = settings.seeds * (settings.rounds // settings.every + problem.num_agents * problem.dim)
        small = 8 * numbers * len(self.names) <= SMALL
        self.kept = self.asked or (small and all(stream.resumable for stream in problem.streams or ()))

    @contextlib.contextmanager
    def started(self, resume: bool) -> Iterator[None]:
        """Continues from the existing checkpoints, or starts from the beginning; removes the folder if it is empty."""
        with _files.alone(self.folder):
            label, states = self.folder / "settings.json", [*self.folder.glob("*.npz")]
            finished = read_manifest(self.folder.parent).get("complete") is True
            if resume and label.exists():
                self._check(label)
            elif resume and not states:  # which record the settings they belong to
                reason = "the finished run there was large and kept no state" if finished else "there is no checkpoint"
                warnings.warn(f"{str(self.folder)!r}: {reason}: starting at round 0.", stacklevel=4)
            elif not resume:
                if label.exists() and not finished:
                    warnings.warn(
                        f"Starting over: the checkpoints of an earlier run in {str(self.folder)!r} are replaced. "
                        "To continue that run, use `--resume`.",
                        stacklevel=4,
                    )
                self.remove()
            if self.asked:
                self.sign()
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    self.folder.rmdir()

    def sign(self) -> None:
        _files.write_text(self.folder / "settings.json", json.dumps(self.settings, indent=2) + "\n")

    def state(self, name: str) -> pathlib.Path | None:
        """Returns the file in which the engine saves the state of an algorithm, or None."""
        words = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60]  # a file name that is valid on every file system
        file = name if name.isidentifier() else f"{self.names.index(name)}-{words}"
        return self.folder / f"{file}.npz" if self.kept else None

    def finished(self, name: str, price: Callable[[], Cost]) -> Result | None:
        """Returns the result of an algorithm that finished earlier with the same number of rounds, or None."""
        path = self.state(name)
        try:
            found = load(path) if path is not None and path.exists() else None
        except ValueError as error:
            raise FailedRunError(f"{error} Leave out `--resume` to start over.") from error
        if found is None or not found.complete or found.rounds[-1] != self.settings["rounds"]:
            return None
        return dataclasses.replace(found, cost=price)

    def remove(self) -> None:
        """Deletes the saved states, and nothing else."""
        for path in self.folder.glob("*.npz"):
            path.unlink(missing_ok=True)
        (self.folder / "settings.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _check(self, label: pathlib.Path) -> None:
        try:
            found = dict(json.loads(label.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise FailedRunError(f"{str(label)!r} is damaged. Leave out `--resume` to start over.") from error
        for name, value in self.settings.items():
            before: Any = found.get(name)
            if name == "files" and before != value:
                changed = ", ".join(
                    file for file, digest in (value or {}).items() if (before or {}).get(file) != digest
                )
                raise UsageError(
                    f"`resume`: {changed} has changed since the checkpoints in {str(self.folder)!r} were written. "
                    "Leave out `--resume` to start over."
                )
            if name == "rounds" and isinstance(before, int) and before <= value:  # more of the same
                continue
            if before != value:
                raise UsageError(
                    f"`resume`: the checkpoints in {str(self.folder)!r} belong to another run, with `{name}` "
                    f"{before!r} instead of {value!r}. Repeat that command, or leave out `--resume`."
                )

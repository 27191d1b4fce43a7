"""What `fedhsa run --checkpoint` keeps while it runs: states, finished results, and whose they are."""

import contextlib
import json
import pathlib
import re
import warnings

from .. import _files
from ..engine import Result, load
from .errors import FailedRunError, UsageError
from .settings import RunSettings


class Checkpoints:
    """A folder inside the output folder, gone when the run is complete."""

    def __init__(self, settings: RunSettings):
        self.folder = settings.folder / "checkpoints"
        self.settings = json.loads(json.dumps(settings.numbers(), default=str))
        self.names = settings.labels

    def start(self, resume: bool) -> None:
        """Continues from the checkpoints that are there, or starts over."""
        label = self.folder / "settings.json"
        if resume and label.exists():
            self._check(label)
            return
        if resume:
            warnings.warn(f"No checkpoint in {str(self.folder)!r}: starting at round 0.", stacklevel=2)
        elif label.exists():
            warnings.warn(
                f"Starting over: the checkpoints of an earlier run in {str(self.folder)!r} are replaced. "
                "To continue that run, use `--resume`.",
                stacklevel=2,
            )
            self.remove()
        _files.write_text(label, json.dumps(self.settings, indent=2) + "\n")

    def state(self, name: str) -> pathlib.Path:
        """Where the engine saves the state of an algorithm."""
        return self.folder / f"{self._file(name)}.npz"

    def finished(self, name: str) -> Result | None:
        """The result of an algorithm that was finished before."""
        path = self._result(name)
        try:
            return load(path) if path.exists() else None
        except ValueError as error:
            raise FailedRunError(str(error)) from error

    def keep(self, name: str, result: Result) -> None:
        """Remembers a finished result; its state is no longer needed."""
        result.save(self._result(name))
        self.state(name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Deletes what was kept, and nothing else."""
        for path in self.folder.glob("*.npz"):
            path.unlink(missing_ok=True)
        (self.folder / "settings.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _result(self, name: str) -> pathlib.Path:
        return self.folder / f"{self._file(name)}.result.npz"

    def _file(self, name: str) -> str:
        """A name that any disk takes, one for each algorithm."""
        plain = name.isidentifier()
        return name if plain else f"{self.names.index(name)}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')[:60]}"

    def _check(self, label: pathlib.Path) -> None:
        try:
            found = dict(json.loads(label.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise FailedRunError(f"{str(label)!r} is broken ({error}). Delete it, or leave out `--resume`.") from error
        for name, value in self.settings.items():
            if found.get(name) != value:
                raise UsageError(
                    f"`resume`: the checkpoints in {str(self.folder)!r} belong to another run, with `{name}` "
                    f"{found.get(name)!r} instead of {value!r}. Repeat that command, or leave out `--resume`."
                )

"""Finished experiments on disk: one folder each, recomputed only when settings or code have changed."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import scipy

from ... import _files
from ..._json import plain
from ...plots import save
from ..study.base import AbstractStudy, Outcome
from ..study.checks import Check
from ..study.instance import Instance
from . import code

KIND = "experiment"
DRAWING = ("fedhsa.plots", "fedhsa.experiments.study.figures")
"""The modules that may change without changing any number."""
FIGURES = ("figure.svg", "figure.png", "figure.pdf")


@dataclasses.dataclass(frozen=True)
class StoredStudy:
    """A finished experiment: its settings, its outcome, and the folder of its files."""

    experiment: AbstractStudy
    outcome: Outcome
    manifest: dict[str, Any]
    """Settings, seconds, versions, and the command that reproduces only this experiment."""
    folder: pathlib.Path

    @functools.cached_property
    def checks(self) -> list[Check]:
        """The experiment's checks of the paper's claims."""
        return self.experiment.checks(self.outcome)

    @functools.cached_property
    def sentences(self) -> list[str]:
        """The experiment's summary."""
        return self.experiment.summary(self.outcome)

    @property
    def svg(self) -> str:
        return (self.folder / "figure.svg").read_text(encoding="utf-8")


def settings(experiment: AbstractStudy) -> dict[str, Any]:
    """Returns every setting as in JSON; settings of the problem have the prefix `problem.`."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(experiment):
        value = getattr(experiment, field.name)
        if isinstance(value, Instance):
            prefix = "problem" if field.name == "instance" else field.name
            found |= {f"{prefix}.{name}": entry for name, entry in value.settings().items()}
        else:
            found[field.name] = value
    return plain(found)


def fingerprint(experiment: AbstractStudy) -> str:
    """Returns a digest of the settings, the code, and the libraries and backend that determine the numbers."""
    versions = [jax.__version__, np.__version__, scipy.__version__, jax.default_backend()]
    what = [
        type(experiment).__name__,
        settings(experiment),
        versions,
        code.digest(type(experiment).__module__, DRAWING),
    ]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def find(experiment: AbstractStudy, out: pathlib.Path) -> Outcome | None:
    """Returns the outcome of an earlier run, if settings and code are unchanged since then."""
    path = out / experiment.name / "data.npz"
    try:
        arrays, header = _files.read_arrays(path, KIND)
        _read_manifest(path.parent)
    except (OSError, ValueError):  # absent, truncated or not written by this module
        return None
    if header["fingerprint"] != fingerprint(experiment):
        return None
    return Outcome(arrays, header["facts"])


def unfinished(experiment: AbstractStudy, out: pathlib.Path) -> pathlib.Path:
    """Returns the folder for the simulations that a running experiment has finished so far."""
    return out / experiment.name / f"unfinished-{fingerprint(experiment)[:16]}"


def keep(experiment: AbstractStudy, outcome: Outcome, manifest: dict[str, Any], out: pathlib.Path) -> None:
    """Writes the outcome and deletes the intermediate simulations, which are no longer needed."""
    path = out / experiment.name / "data.npz"
    header = {"kind": KIND, "fingerprint": fingerprint(experiment), "facts": plain(outcome.facts)}
    write_json(out / experiment.name / "manifest.json", manifest)  # first: the data file comes last
    _files.write_arrays(path, outcome.arrays, header)
    for folder in path.parent.glob("unfinished-*"):
        shutil.rmtree(folder, ignore_errors=True)


def present(experiment: AbstractStudy, outcome: Outcome, out: pathlib.Path) -> StoredStudy:
    """Draws the figure and writes the table, unless they exist already."""
    folder = out / experiment.name
    manifest = _read_manifest(folder)
    origin = [fingerprint(experiment), code.digest(type(experiment).__module__)]
    if manifest.get("drawn") != origin or not all((folder / name).exists() for name in (*FIGURES, "data.csv")):
        save(experiment.draw(outcome), folder / "figure", suffixes=(".svg", ".png", ".pdf"))
        table = experiment.table(outcome)
        _files.write_csv(folder / "data.csv", table, zip(*(plain(list(c)) for c in table.values()), strict=True))
        manifest |= {"drawn": origin, "figures": list(FIGURES), "data": ["data.csv", "data.npz"]}
        write_json(folder / "manifest.json", manifest)
    return StoredStudy(experiment, outcome, manifest, folder)


def note(experiment: AbstractStudy, out: pathlib.Path, **facts: Any) -> None:
    """Adds entries to the manifest of a finished experiment."""
    folder = out / experiment.name
    write_json(folder / "manifest.json", _read_manifest(folder) | facts)


def _read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a JSON file atomically."""
    _files.write_text(path, json.dumps(plain(value), indent=2) + "\n")

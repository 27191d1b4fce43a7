"""Finished experiments on disk: one folder each, made again only when settings or code have changed."""

import csv
import dataclasses
import functools
import hashlib
import io
import json
import pathlib
import shutil
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy

from .. import _files
from .._json import plain
from ..plots import save
from .base import AbstractExperiment, Outcome
from .checks import Check
from .instance import Instance

KIND = "experiment"
PACKAGE = pathlib.Path(__file__).parent.parent
NUMBERS = (
    *("*.py", "sources/*.py", "environments/*.py", "problems/*.py", "algorithms/*.py", "engine/*.py"),
    "theory/*.py",
)
"""The code that all numbers come from."""
SHARED = ("base", "instance", "statistics", "traces", "assumptions")
"""Modules of experiments that several of them compute with."""
PICTURES = ("plots/*.py", "experiments/[!p]*.py", "experiments/proposition.py", "experiments/*/*.py")
"""The code that figures and tables come from, besides; not the page's."""
FIGURES = ("figure.svg", "figure.png", "figure.pdf")


class Entry(NamedTuple):
    """A finished experiment: what was asked, what came out, and where its files are."""

    experiment: AbstractExperiment
    outcome: Outcome
    manifest: dict[str, Any]
    """Settings, seconds, versions, and the command that makes just this."""
    folder: pathlib.Path

    @property
    def checks(self) -> list[Check]:
        """What it says about the paper's claims."""
        return self.experiment.checks(self.outcome)

    @property
    def svg(self) -> str:
        """The figure."""
        return (self.folder / "figure.svg").read_text(encoding="utf-8")


def settings(experiment: AbstractExperiment) -> dict[str, Any]:
    """Every setting as JSON has it; those of its problem carry the prefix `problem.`."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(experiment):
        value = getattr(experiment, field.name)
        if isinstance(value, Instance):
            prefix = "problem" if field.name == "instance" else field.name
            found |= {f"{prefix}.{name}": entry for name, entry in value.settings().items()}
        else:
            found[field.name] = value
    return plain(found)


def fingerprint(experiment: AbstractExperiment) -> str:
    """Changes with the settings, the code behind the numbers, and the libraries and backend that compute them."""
    versions = [jax.__version__, np.__version__, scipy.__version__, jax.default_backend()]
    what = [type(experiment).__name__, settings(experiment), versions, _digest((*NUMBERS, *_own_code(experiment)))]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def find(experiment: AbstractExperiment, out: pathlib.Path) -> Outcome | None:
    """The outcome of an earlier run, if it is still what the experiment would give."""
    path = out / experiment.name / "data.npz"
    try:
        arrays, header = _files.read_arrays(path, KIND)
        _read_manifest(path.parent)
    except (OSError, ValueError):  # absent, cut short or made by something else
        return None
    if header["fingerprint"] != fingerprint(experiment):
        return None
    return Outcome(arrays, header["facts"])


def parts(experiment: AbstractExperiment, out: pathlib.Path) -> pathlib.Path:
    """The folder for what a running experiment has finished so far."""
    return out / experiment.name / f"parts-{fingerprint(experiment)[:16]}"


def keep(experiment: AbstractExperiment, outcome: Outcome, manifest: dict[str, Any], out: pathlib.Path) -> None:
    """Writes what came out; the parts it was made of are no longer needed."""
    path = out / experiment.name / "data.npz"
    header = {"kind": KIND, "fingerprint": fingerprint(experiment), "facts": plain(outcome.facts)}
    write_json(out / experiment.name / "manifest.json", manifest)  # first: the data say that all is there
    _files.write_arrays(path, outcome.arrays, header)
    for folder in path.parent.glob("parts-*"):
        shutil.rmtree(folder, ignore_errors=True)


def present(experiment: AbstractExperiment, outcome: Outcome, out: pathlib.Path) -> Entry:
    """Draws the figure and writes the table, unless they are there already."""
    folder = out / experiment.name
    manifest = _read_manifest(folder)
    wanted = [fingerprint(experiment), _digest((*NUMBERS, *PICTURES))]
    if manifest.get("drawn") != wanted or not all((folder / name).exists() for name in (*FIGURES, "data.csv")):
        save(experiment.draw(outcome), folder / "figure", suffixes=(".svg", ".png", ".pdf"))
        _files.write_text(folder / "data.csv", _csv(experiment.table(outcome)))
        manifest |= {"drawn": wanted, "figures": list(FIGURES), "data": ["data.csv", "data.npz"]}
        write_json(folder / "manifest.json", manifest)
    return Entry(experiment, outcome, manifest, folder)


def _read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    _files.write_text(path, json.dumps(plain(value), indent=2) + "\n")


def _csv(table: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(list(plain(list(column))) for column in table.values()), strict=True))
    return text.getvalue()


def _own_code(experiment: AbstractExperiment) -> list[str]:
    """The files of experiments that the numbers of one come from; its figure may change without them."""
    place = type(experiment).__module__.removeprefix(f"{__package__}.").replace(".", "/")
    own = [*SHARED, place, f"{place}_law"]
    if "/" in place:
        own.append(f"{place.rpartition('/')[0]}/_[a-z]*")  # what the experiments of a folder share
    return [f"experiments/{name}.py" for name in own]


@functools.cache
def _digest(patterns: tuple[str, ...]) -> str:
    """A fingerprint of the package's files that match."""
    digest = hashlib.sha256()
    for path in sorted(set(_matching(patterns))):
        digest.update(str(path.relative_to(PACKAGE)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _matching(patterns: Iterable[str]) -> Iterable[pathlib.Path]:
    return (path for pattern in patterns for path in PACKAGE.glob(pattern))

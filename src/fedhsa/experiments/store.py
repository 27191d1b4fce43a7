"""Finished experiments on disk: one folder each, made again only when settings or code have changed."""

import csv
import dataclasses
import functools
import hashlib
import io
import json
import pathlib
import shutil
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from .. import _files
from .._json import plain
from ..plots import save
from .base import AbstractExperiment, Outcome
from .instance import Instance

KIND = "experiment"
PACKAGE = pathlib.Path(__file__).parent.parent
NUMBERS = ("*.py", "sources/*.py", "problems/*.py", "algorithms/*.py", "engine/*.py", "theory/*.py")
"""The code that all numbers come from."""
SHARED = ("base", "instance", "statistics", "traces", "assumptions")
"""Modules of experiments that several of them compute with."""
PICTURES = ("plots/*.py", "experiments/[!p]*.py", "experiments/proposition.py")
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
    def svg(self) -> str:
        """The figure."""
        return (self.folder / "figure.svg").read_text(encoding="utf-8")


def settings(experiment: AbstractExperiment) -> dict[str, Any]:
    """Every setting as JSON has it; those of the problem carry the prefix `problem.`."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(experiment):
        value = getattr(experiment, field.name)
        if isinstance(value, Instance):
            found |= {f"problem.{name}": entry for name, entry in value.settings().items()}
        else:
            found[field.name] = value
    return plain(found)


def fingerprint(experiment: AbstractExperiment) -> str:
    """Changes with the settings, with the code behind the numbers, and with the version of JAX."""
    module = sys.modules[type(experiment).__module__]
    own = [*(f"experiments/{name}.py" for name in SHARED), f"experiments/{module.__name__.rpartition('.')[2]}.py"]
    what = [type(experiment).__name__, settings(experiment), jax.__version__, _digest((*NUMBERS, *own))]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def find(experiment: AbstractExperiment, out: pathlib.Path) -> Outcome | None:
    """The outcome of an earlier run, if it is still what the experiment would give."""
    path = out / experiment.name / "data.npz"
    if not path.exists():
        return None
    try:
        arrays, header = _files.read_arrays(path, KIND)
    except ValueError:  # cut short or made by something else: as good as absent
        return None
    if header["fingerprint"] != fingerprint(experiment):
        return None
    return Outcome(arrays, header["facts"])


def parts(experiment: AbstractExperiment, out: pathlib.Path) -> pathlib.Path:
    """The folder for what a running experiment has finished so far."""
    return out / experiment.name / f"parts-{fingerprint(experiment)[:16]}"


def keep(experiment: AbstractExperiment, outcome: Outcome, manifest: dict[str, Any], out: pathlib.Path) -> Outcome:
    """Writes what came out, in one file, and gives it back as it will be read again."""
    path = out / experiment.name / "data.npz"
    header = {"kind": KIND, "fingerprint": fingerprint(experiment), "facts": plain(outcome.facts)}
    _files.write_arrays(path, outcome.arrays, header)
    write_json(out / experiment.name / "manifest.json", manifest)
    for folder in path.parent.glob("parts-*"):
        shutil.rmtree(folder, ignore_errors=True)
    arrays, header = _files.read_arrays(path, KIND)
    return Outcome(arrays, header["facts"])


def present(experiment: AbstractExperiment, outcome: Outcome, out: pathlib.Path) -> Entry:
    """Draws the figure and writes the table, unless they are there already."""
    folder = out / experiment.name
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    wanted = [fingerprint(experiment), _digest((*NUMBERS, *PICTURES))]
    if manifest.get("drawn") != wanted or not all((folder / name).exists() for name in (*FIGURES, "data.csv")):
        save(experiment.draw(outcome), folder / "figure", suffixes=(".svg", ".png", ".pdf"))
        _files.write_text(folder / "data.csv", _csv(experiment.table(outcome)))
        manifest |= {"drawn": wanted, "figures": list(FIGURES), "data": ["data.csv", "data.npz"]}
        write_json(folder / "manifest.json", manifest)
    return Entry(experiment, outcome, manifest, folder)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    _files.write_text(path, json.dumps(plain(value), indent=2) + "\n")


def _csv(table: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*(list(plain(list(column))) for column in table.values()), strict=True))
    return text.getvalue()


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

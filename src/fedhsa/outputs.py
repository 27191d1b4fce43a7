"""The output files of a run: its curves in three forms, and the manifest."""

import contextlib
import datetime
import itertools
import json
import pathlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np

from . import _files, _own, plots
from ._json import plain
from .engine import Result

FILES = ("curves.png", "curves.pdf", "curves.csv", "curves.npz", "theta.csv", "manifest.json")
LISTED = 10_000
"""The largest number of a parameter's entries in `theta.csv`; all of them are in `curves.npz`."""


def write(
    folder: pathlib.Path,
    results: Mapping[str, Result],
    manifest: Mapping[str, Any],
    *,
    title: str | None = None,
    theory: Mapping[str, np.ndarray] | None = None,
    theory_label: str = "predicted",
    predictions: Mapping[str, Mapping[str, Any]] | None = None,
    labels: Mapping[str, str] | None = None,
    width: float | None = None,
    formats: Sequence[str] = ("png", "pdf"),
) -> None:
    """Writes all output files, each atomically. The manifest is last, so that it never describes missing files.

    They contain the error, or the norm of the average operator if the root is not known (see `quantity`).

    `manifest` has the first entries of the manifest, before the algorithms. `theory` has predicted values of the
    quantity shown, one per record, and `predictions` the manifest's entries about predictions, both by the names of the
    results. The other arguments are those of `plots.curves` and `plots.save`.
    """
    shown, theory, predictions = quantity(results), theory or {}, predictions or {}
    _files.write_npz(folder / "curves.npz", _arrays(results, shown))
    columns = ("algorithm", "round", "mean", "low", "high", "theory")
    _files.write_csv(folder / "curves.csv", columns, _rows(results, shown, theory))
    _files.write_csv(folder / "theta.csv", ("algorithm", "parameter", "mean", "low", "high"), _parameters(results))
    named = {name: label for name, label in (labels or {}).items() if name in results}  # Ctrl-C leaves some out
    how: dict[str, Any] = {"title": title, "theory_label": theory_label, "labels": named, "width": width}
    save_figure(plots.curves(results, quantity=shown, theory=theory, **how), folder / "curves", formats)
    algorithms = {name: _summary(result, shown, predictions.get(name)) for name, result in results.items()}
    write_manifest(folder, {**manifest, "algorithms": algorithms})


def save_figure(figure: Any, path: pathlib.Path, formats: Sequence[str]) -> None:
    """Writes a figure in these formats, and removes other formats that an earlier run may have left."""
    plots.save(figure, path, formats)
    for suffix in plots.FORMATS:
        if suffix[1:] not in formats:
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def manifest_head(
    command: str, complete: bool, started: datetime.datetime, key: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the first entries of every manifest: the command, its time and duration, and the software versions.

    If the settings name user-supplied files, their digests are included: the same command with other code is a
    different run.
    """
    algorithms = settings.get("algorithm") or ()
    algorithms = [algorithms] if isinstance(algorithms, str) else algorithms
    files = _own.digests(settings.get("problem"), *algorithms, settings.get("agent"))
    return {
        "command": command,
        "complete": complete,
        "started": started.isoformat(timespec="seconds"),
        "seconds": (datetime.datetime.now(datetime.UTC) - started).total_seconds(),
        "key": key,
        "settings": settings,
        **({"files": files} if files else {}),
        "versions": versions(),
    }


def write_manifest(folder: pathlib.Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest atomically."""
    text = json.dumps(plain(manifest), indent=2, allow_nan=False)
    _files.write_text(folder / "manifest.json", text + "\n")


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Reads the manifest of an earlier run; returns an empty one if there is none or it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if isinstance(manifest, dict):
            return manifest
    return {}


def quantity(results: Mapping[str, Result]) -> str:
    """Returns the quantity to show for runs on one problem: the one that all are scored by, or else `"error"`."""
    judged = {result.quantity for result in results.values()}
    return judged.pop() if len(judged) == 1 else "error"


def final(result: Result, quantity: str) -> tuple[float, float, float]:
    """Returns the mean over seeds of a quantity after the last round, and its 95 % interval."""
    (low, high), mean = result.interval(quantity=quantity), result.mean(quantity)
    return float(mean[-1]), float(low[-1]), float(high[-1])


def status(result: Result) -> str:
    """Describes how a run ended: ok, the number of seeds that diverged, or the round of its interruption."""
    seeds, diverged = len(result.error), int((result.failed_round >= 0).sum())
    words = []
    if diverged:
        words.append("all diverged" if diverged == seeds else f"{diverged} of {seeds} diverged")
    if not result.complete:
        words.append(f"interrupted after round {result.rounds[-1]}")
    return ", ".join(words) or "ok"


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that the numbers depend on."""
    packages = ("fedhsa", "jax", "jaxlib", "equinox", "numpy", "scipy", "matplotlib")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}


def _arrays(results: Mapping[str, Result], quantity: str) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, result in results.items():
        columns = {quantity: result.records[quantity], "rounds": result.rounds, **named_theta(result)}
        # Contiguous, so that equal curves give equal bytes.
        arrays |= {f"{name}/{column}": np.ascontiguousarray(values) for column, values in columns.items()}
    return arrays


def named_theta(result: Result) -> dict[str, Any]:
    """Returns the arrays of the parameter by name: `theta` for one vector, else `theta` with each array's path."""
    found = jax.tree_util.tree_leaves_with_path(result.theta)
    return {f"theta{jax.tree_util.keystr(path)}": leaf for path, leaf in found}


def _rows(results: Mapping[str, Result], quantity: str, theory: Mapping[str, np.ndarray]) -> Iterator[tuple]:
    for name, result in results.items():
        predicted = theory[name].tolist() if name in theory else [""] * len(result.rounds)
        curves = (result.mean(quantity), *result.interval(quantity=quantity))
        columns = (result.rounds.tolist(), *(curve.tolist() for curve in curves), predicted)
        yield from ((name, *row) for row in zip(*columns, strict=True))


def _parameters(results: Mapping[str, Result]) -> Iterator[tuple]:
    for name, result in results.items():
        for parameter, found in itertools.islice(result.parameters().items(), LISTED):
            yield name, parameter, *found


def _summary(result: Result, quantity: str, prediction: Mapping[str, Any] | None) -> dict[str, Any]:
    mean, low, high = final(result, quantity)
    return {
        "status": status(result),
        "complete": result.complete,
        "rounds": int(result.rounds[-1]),
        "failed_round": {str(seed): int(r) for seed, r in enumerate(result.failed_round) if r >= 0},
        "final_error": None,
        f"final_{quantity}": {"mean": mean, "low": low, "high": high},
        "prediction": prediction,
        "cost": result.cost._asdict(),
        "seconds": result.timings,
        "settings": result.settings,
    }

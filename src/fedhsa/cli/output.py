"""What `fedhsa run` leaves behind: the curves in three forms, the manifest, and the table on the screen."""

import contextlib
import csv
import io
import json
import math
import pathlib
import platform
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from .. import _files, plots
from .._json import plain
from ..engine import Result
from ..theory import Prediction
from . import forecast

FILES = ("curves.png", "curves.pdf", "curves.csv", "curves.npz", "manifest.json")


class FailedRunError(Exception):
    """Something outside the command line failed: a folder, a file, the memory."""


@contextlib.contextmanager
def writable(folder: pathlib.Path) -> Iterator[None]:
    """Makes the folder and proves that it can be written to; takes it away if nothing was put there."""
    made = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FailedRunError(
            f"`out`: cannot write to {str(folder)!r}: {error.strerror}. Name another folder."
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for new in made:
                new.rmdir()  # refuses a folder with something in it


@contextlib.contextmanager
def fits_in_memory(what: str) -> Iterator[None]:
    """Turns a lack of memory, the host's or the device's, into a sentence about `what`."""
    try:
        yield
    except MemoryError as error:
        reason = f"{error}."
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).splitlines()[0]
    else:
        return
    raise FailedRunError(f"{what} does not fit in memory: {reason} Use fewer agents, seeds or parameters.")


def write(
    folder: pathlib.Path,
    results: Mapping[str, Result],
    manifest: Mapping[str, Any],
    title: str,
    predictions: Mapping[str, Prediction],
) -> None:
    """Writes all files, each whole or not at all, the manifest last: it never describes what is not there."""
    with _files.atomic(folder / "curves.npz") as file:
        np.savez(file, **_arrays(results))  # pyright: ignore[reportArgumentType]
    theory, label = forecast.curves(predictions, results)
    _files.write_text(folder / "curves.csv", _csv(results, theory))
    plots.save(plots.curves(results, title=title, theory=theory, theory_label=label), folder / "curves")
    algorithms = {name: _summary(result, predictions.get(name)) for name, result in results.items()}
    text = json.dumps(plain({**manifest, "algorithms": algorithms}), indent=2, allow_nan=False)
    _files.write_text(folder / "manifest.json", text + "\n")


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """The manifest of an earlier run, or an empty one where there is none to be read."""
    with contextlib.suppress(OSError, ValueError):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if isinstance(manifest, dict):
            return manifest
    return {}


def show(console: Console, results: Mapping[str, Result]) -> None:
    """Prints one line per algorithm."""
    caption = "Exchanges and floats are per round, floats for one agent."
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("algorithm", no_wrap=True)
    table.add_column("final error\n[95 % interval]", no_wrap=True)
    table.add_column("exchanges", justify="right", no_wrap=True)
    table.add_column("floats\nup/down", justify="right", no_wrap=True)
    table.add_column("seconds\ncompile/run", justify="right", no_wrap=True)
    table.add_column("status")
    for name, result in results.items():
        cost, seconds = result.cost, result.timings
        table.add_row(
            name,
            _error(result),
            str(cost.exchanges),
            f"{cost.floats_up}/{cost.floats_down}",
            f"{seconds['compile']:.1f}/{seconds['run']:.1f}",
            status(result),
        )
    console.print(table)


def status(result: Result) -> str:
    """In words: ok, how many seeds diverged, where it was interrupted."""
    seeds, diverged = len(result.error), int((result.failed_round >= 0).sum())
    words = []
    if diverged:
        words.append("all diverged" if diverged == seeds else f"{diverged} of {seeds} diverged")
    if not result.complete:
        words.append(f"interrupted after round {result.rounds[-1]}")
    return ", ".join(words) or "ok"


def _error(result: Result) -> str:
    mean, low, high = (float(curve[0]) for curve in plots.interval(result.error[:, -1:]))
    if not math.isfinite(mean):
        return "infinite"
    return f"{mean:.2e}" if math.isnan(low) else f"{mean:.2e}\n[{low:.2e}, {high:.2e}]"


def _arrays(results: Mapping[str, Result]) -> dict[str, np.ndarray]:
    return {
        f"{name}/{part}": np.ascontiguousarray(getattr(result, part))  # equal curves, equal bytes
        for name, result in results.items()
        for part in ("error", "rounds", "theta")
    }


def _csv(results: Mapping[str, Result], theory: Mapping[str, np.ndarray]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("algorithm", "round", "mean", "low", "high", "theory"))
    for name, result in results.items():
        predicted = theory[name].tolist() if name in theory else [""] * len(result.rounds)
        columns = (result.rounds.tolist(), *(curve.tolist() for curve in plots.interval(result.error)), predicted)
        writer.writerows((name, *row) for row in zip(*columns, strict=True))
    return text.getvalue()


def _summary(result: Result, prediction: Prediction | None) -> dict[str, Any]:
    mean, low, high = (float(curve[0]) for curve in plots.interval(result.error[:, -1:]))
    return {
        "status": status(result),
        "complete": result.complete,
        "rounds": int(result.rounds[-1]),
        "failed_round": {str(seed): int(r) for seed, r in enumerate(result.failed_round) if r >= 0},
        "final_error": {"mean": mean, "low": low, "high": high},
        "prediction": None if prediction is None else prediction.to_dict(),
        "cost": result.cost._asdict(),
        "seconds": result.timings,
        "settings": result.settings,
    }


def versions() -> dict[str, str]:
    """The software that made the numbers."""
    packages = ("fedhsa", "jax", "jaxlib", "equinox", "numpy", "scipy", "matplotlib")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}

"""`fedhsa sweep`: one algorithm at many settings, and the table, figure and files that come out."""

import csv
import datetime
import io
import shlex
import time
import warnings
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from .. import _files, plots
from ..engine import Sweep, sweep
from ..outputs import versions, write_manifest
from .build import make_algorithms, make_problem
from .output import fits_in_memory, writable
from .parsing import parse
from .run import INTERRUPTED
from .settings import SweepSettings


def main(args: Sequence[str], console: Console) -> int:
    """Runs the command with these arguments; gives the exit code."""
    settings = parse(SweepSettings, args)
    problem = make_problem(settings)
    (algorithm,) = make_algorithms(settings, problem).values()
    started, began = datetime.datetime.now(datetime.UTC), time.perf_counter()
    with writable(settings.folder):
        with fits_in_memory("The sweep"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Interrupted after")
            found = sweep(
                problem,
                algorithm,
                settings.over,
                rounds=settings.rounds,
                seeds=settings.seeds,
                key=settings.key,
                every=settings.every,
                dtype=settings.dtype,
                progress=None if settings.progress else False,
            )
        if found.results:
            manifest = {
                "command": shlex.join(["fedhsa", "sweep", *args]),
                "complete": found.complete,
                "started": started.isoformat(timespec="seconds"),
                "seconds": time.perf_counter() - began,
                "key": settings.key,
                "settings": settings.plain(),
                "versions": versions(),
                "rows": found.rows(),
            }
            sizes = f"$M = {problem.num_agents}$, $d = {problem.dim}$"
            _write(settings, found, manifest, f"{settings.algorithm[0]} on {settings.problem}: {sizes}")
    if found.results:
        console.print(repr(found), soft_wrap=True)
        best = ", ".join(f"{name} {value}" for name, value in found.best.items())
        console.print(f"Best: {best}. Figure: {settings.folder / 'sweep.png'}", soft_wrap=True)
    if not found.complete:
        console.print(f"Interrupted: {len(found.results)} combinations were done, and written.")
        return INTERRUPTED
    return 0


def _write(settings: SweepSettings, found: Sweep, manifest: dict, title: str) -> None:
    """Writes all files, each whole or not at all, the manifest last."""
    folder, rows, text = settings.folder, found.rows(), io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _files.write_text(folder / "sweep.csv", text.getvalue())
    arrays = {name: np.array([row[name] for row in rows]) for name in found.settings[0]}
    arrays["rounds"] = found.results[0].rounds
    arrays["error"] = np.stack([result.records[result.quantity] for result in found.results])
    with _files.atomic(folder / "sweep.npz") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    plots.save(found.plot(title=title), folder / "sweep")
    write_manifest(folder, manifest)

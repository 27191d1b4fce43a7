"""`fedhsa sweep`: one algorithm at many settings, and the table, figure and files that come out."""

import datetime
import math
import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from .. import _files, _own
from ..engine import Sweep, sweep
from ..outputs import manifest_head, save_figure, write_manifest
from . import memory
from .build import make_algorithms, make_problem
from .cluster import executor
from .output import FAILED, INTERRUPTED, fits_in_memory, writable
from .settings import SweepSettings


def main(settings: SweepSettings, args: Sequence[str], console: Console) -> int:
    """Runs the command with these settings, which the arguments say; gives the exit code."""
    problem = make_problem(settings)
    (algorithm,) = make_algorithms(settings, problem).values()
    combinations = math.prod(map(len, settings.over.values()))
    records = combinations * (settings.rounds // settings.every)  # all of them are kept until the end
    memory.check_runs(problem, [algorithm], settings.seeds, records)
    started = datetime.datetime.now(datetime.UTC)
    with writable(settings.folder):
        with fits_in_memory("The sweep"), executor(settings, console) as pool, warnings.catch_warnings():
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
                executor=pool,
            )
        if found.results:
            command = shlex.join(["fedhsa", "sweep", *args])
            manifest = manifest_head(command, found.complete, started, settings.key, settings.plain())
            sizes = f"$M = {problem.num_agents}$, $d = {problem.dim}$"
            _write(settings, found, manifest, f"{_name(settings)} on {_own.title(settings.problem)}: {sizes}")
    if found.results:
        console.print(repr(found), soft_wrap=True)
        console.print(f"{_best(found)} Figure: {settings.folder / settings.figures('sweep')[0]}", soft_wrap=True)
    if found.failures:
        return FAILED
    if not found.complete:
        done = f"{len(found.results)} of {combinations} combinations were done, and written"
        console.print(f"Interrupted: {done if found.results else 'nothing was written'}.")
        return INTERRUPTED
    return 0


def _name(settings: SweepSettings) -> str:
    return settings.renamed.get(settings.labels[0], settings.labels[0])


def _best(found: Sweep) -> str:
    if found.best is None:
        return "With each of these settings some seeds diverged: try smaller steps."
    return f"Best: {', '.join(f'{name} {value}' for name, value in found.best.items())}."


def _write(settings: SweepSettings, found: Sweep, manifest: Mapping[str, Any], title: str) -> None:
    """Writes all files, each whole or not at all, the manifest last."""
    folder, rows = settings.folder, found.rows()
    _files.write_csv(folder / "sweep.csv", rows[0], (row.values() for row in rows))
    quantity = found.results[0].quantity
    arrays = {name: np.array([_scalar(row[name]) for row in rows]) for name in found.settings[0]}
    arrays["rounds"] = found.results[0].rounds
    arrays[quantity] = np.stack([result.records[quantity] for result in found.results])
    _files.write_npz(folder / "sweep.npz", arrays)
    save_figure(found.plot(title=title, width=settings.width), folder / "sweep", settings.format)
    write_manifest(folder, {**manifest, "rows": rows})


def _scalar(value: Any) -> Any:
    """A value that an array holds whatever the others are: several numbers become text."""
    return value if isinstance(value, int | float | str) else str(value)

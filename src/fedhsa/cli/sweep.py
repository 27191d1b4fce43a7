"""`fedhsa sweep`: runs one algorithm at many settings, and writes a table, a figure and files."""

import dataclasses
import datetime
import functools
import math
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from .. import _files, _own
from ..algorithms import AbstractAlgorithm
from ..engine import Sweep, sweep
from ..engine.progress import ShowProgress
from ..outputs import manifest_head, save_figure, write_manifest
from ..problems import Problem
from ..problems.make import makers
from . import forecast, memory, pace
from .build import FLAGS, make_algorithms, make_problem
from .errors import UsageError
from .output import executor, exit_code, fits_in_memory, writable
from .settings import SweepSettings
from .tracks import Tracks


def main(settings: SweepSettings, args: Sequence[str], console: Console) -> int:
    """Runs the command with these arguments and returns the exit code."""
    combinations = math.prod(map(len, settings.over.values()))
    problems = _maker(settings)
    started = datetime.datetime.now(datetime.UTC)
    command = shlex.join(["fedhsa", "sweep", *args])

    def method(problem: Problem) -> AbstractAlgorithm:
        (algorithm,) = make_algorithms(settings, problem).values()
        records = combinations * (settings.rounds // settings.every)  # all results are kept until the end
        memory.check_runs(problem, [algorithm], settings.seeds, records)
        return algorithm

    def write(found: Sweep) -> None:
        manifest = manifest_head(command, found.complete, started, settings.key, settings.plain())
        _write(settings, found, manifest, _title(settings, found))

    tracks, kept = Tracks(settings, settings.folder), pace.Kept(write)

    def track(found: Sweep) -> None:
        names = (", ".join(f"{name}={value}" for name, value in values.items()) for values in found.settings)
        tracks.follow(dict(zip(names, found.results, strict=True)))

    def so_far(found: Sweep) -> None:
        track(found)
        if found.results:  # the first to end may be a combination that failed
            kept(found)

    with writable(settings.folder), tracks.open():
        with fits_in_memory("The sweep"), executor(settings, console) as pool, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Interrupted after")
            found = sweep(
                problems,
                method,
                settings.over,
                rounds=settings.rounds,
                seeds=settings.seeds,
                key=settings.key,
                every=settings.every,
                dtype=settings.dtype,
                progress=_progress(settings, combinations),
                executor=pool,
                so_far=so_far,
            )
        if found.results:
            found = dataclasses.replace(found, theory=forecast.of_sweep(found, problems, method))
            write(found)
            tracks.take(*settings.figures("sweep"), "sweep.csv", "manifest.json")
            track(found)
    if found.results:
        console.print(repr(found), soft_wrap=True)
        best = ", ".join(f"{name} {value}" for name, value in (found.best or {}).items())
        told = f"Best: {best}." if best else "With each of these settings some seeds diverged: try smaller steps."
        console.print(f"{told} Figure: {settings.folder / settings.figures('sweep')[0]}", soft_wrap=True)
    return exit_code(console, found, f"{len(found.results)} of {combinations} combinations" if found.results else "")


def _maker(settings: SweepSettings) -> Callable[..., Problem]:
    """Returns a function that builds the problem from the varied arguments, and from the settings for the rest."""
    made: dict[str, Problem] = {}

    try:
        function = makers(settings.problem)[settings.problem]
    except TypeError as error:  # a user's object that is not a function
        raise UsageError(str(error)) from error

    @functools.wraps(function)
    def make(**changed: Any) -> Problem:
        flags = {FLAGS[name]: value for name, value in changed.items() if name in FLAGS}
        options = {name: value for name, value in changed.items() if name not in FLAGS}
        if repr(changed) not in made:
            others = dataclasses.replace(settings, **flags, option={**settings.option, **options})
            made[repr(changed)] = make_problem(others)
        return made[repr(changed)]

    return make


def _progress(settings: SweepSettings, combinations: int) -> ShowProgress:
    told = pace.lines(settings.progress)
    if told is None:
        return None if settings.progress else False
    return lambda done: told("", done / (settings.rounds * combinations))


def _title(settings: SweepSettings, found: Sweep) -> str:
    """Returns the title: the varied arguments, the problem, and the sizes that were not varied."""
    problem = found.results[0].settings["problem"]
    sizes = {"M": "num_agents", "d": "dim"}
    shown = ", ".join(f"${symbol} = {problem[n]}$" for symbol, n in sizes.items() if n not in settings.over)
    (label,) = settings.labels
    name = settings.renamed.get(label, label)
    return f"{name} on {_own.title(settings.problem)}{': ' if shown else ''}{shown}"


def _write(settings: SweepSettings, found: Sweep, manifest: Mapping[str, Any], title: str) -> None:
    folder, rows = settings.folder, found.rows()
    _files.write_csv(folder / "sweep.csv", rows[0], (row.values() for row in rows))
    quantity = found.results[0].quantity
    arrays = {name: np.array([_scalar(row[name]) for row in rows]) for name in found.settings[0]}
    arrays["rounds"] = found.results[0].rounds
    if found.theory is not None:
        arrays["theory"] = np.array(found.theory)
    arrays[quantity] = np.stack([result.records[quantity] for result in found.results])
    _files.write_npz(folder / "sweep.npz", arrays)
    save_figure(found.plot(title=title, width=settings.width), folder / "sweep", settings.format)
    write_manifest(folder, {**manifest, "rows": rows})


def _scalar(value: Any) -> Any:
    """Returns a value that can be stored in an array with any other values: a list of numbers becomes text."""
    return value if isinstance(value, int | float | str) else str(value)

"""`fedhsa compare`: algorithms tuned with equal effort, run on fresh seeds, and ranked."""

import contextlib
import datetime
import functools
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields

import equinox as eqx
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from .. import _own
from ..algorithms import AbstractAlgorithm
from ..comparison import contest
from ..outputs import manifest_head
from ..problems import Problem
from . import memory, pace, ranking
from .build import make_algorithm, make_algorithms, make_problem, title
from .output import executor, exit_code, fits_in_memory, writable
from .settings import CompareSettings
from .tracks import Tracks


def main(settings: CompareSettings, args: Sequence[str], console: Console) -> int:
    """Runs the command with these arguments and returns the exit code."""
    problem = make_problem(settings)
    methods = _methods(settings, problem)
    one_each = [method if isinstance(method, AbstractAlgorithm) else method(0.1) for method in methods.values()]
    memory.check_runs(problem, one_each, max(settings.seeds, settings.tuning_seeds), contest.POINTS)
    started = datetime.datetime.now(datetime.UTC)
    command = shlex.join(["fedhsa", "compare", *args])

    def write(found: contest.Contest) -> None:
        manifest = manifest_head(command, found.complete, started, settings.key, settings.plain())
        ranking.write(settings, found, manifest, title(settings, problem))

    tracks, kept = Tracks(settings, settings.folder), pace.Kept(write)

    def so_far(found: contest.Contest) -> None:
        tracks.follow({name: entry.result for name, entry in found.entries.items()})
        if found.entries:  # the first to end may be a method that failed
            kept(found)

    with writable(settings.folder), tracks.open():
        with (
            fits_in_memory("The comparison"),
            executor(settings, console) as pool,
            _progress(settings.progress) as progress,
        ):
            found = contest.compare(problem, methods, _terms(settings), progress, executor=pool, so_far=so_far)
        if found.entries:
            write(found)
            tracks.take(*settings.figures("compare"), "compare.csv", "manifest.json")
            tracks.follow({name: entry.result for name, entry in found.entries.items()})
    if found.entries:
        ranking.show(console, settings, found)
    return exit_code(console, found, f"{len(found.entries)} of {len(methods)} methods" if found.entries else "")


def _methods(settings: CompareSettings, problem: Problem) -> dict[str, contest.Method]:
    """Returns, by name, an algorithm if its step size is given, and otherwise an algorithm for each step size."""
    if settings.step_size:
        return dict(make_algorithms(settings, problem))
    methods: dict[str, contest.Method] = {}
    for label, text in zip(settings.labels, settings.algorithm, strict=True):
        make = functools.partial(make_algorithm, settings, problem, _own.absolute(text))
        fixed = eqx.tree_equal(make(0.1), make(0.2))
        methods[label] = make(0.1) if fixed else make
    return methods


def _terms(settings: CompareSettings) -> contest.Terms:
    return contest.Terms(**{field.name: getattr(settings, field.name) for field in fields(contest.Terms)})


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[contest.Progress]:
    """Shows one bar for the whole comparison on a terminal, and occasional lines elsewhere."""
    if not (shown and sys.stderr.isatty()):
        yield pace.lines(shown) or (lambda what, part: None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, part: bar.update(task, description=what, completed=part)

"""Runs `fedhsa reproduce`: every figure and every claim of the paper, on one page."""

import contextlib
import fnmatch
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .._check import nearest
from .._linear import available_cores
from .._version import versions
from ..engine.tasks import workers
from ..experiments.page.report import Report, machine
from ..experiments.run import lanes, presets, store
from ..experiments.run.reproduce import Finished, Status, entry, run
from ..experiments.study.base import AbstractStudy
from ..experiments.study.checks import FAIL, PASS, UNDECIDED
from . import programs
from .errors import FailedRunError, UsageError
from .output import FAILED, INTERRUPTED, executor, writable
from .reproduce import ReproduceSettings, in_toml
from .screen import PlainTable, status_line


def reproduce(settings: ReproduceSettings, args: Sequence[str], console: Console) -> int:
    """Runs the command with these settings and returns the exit code."""
    known = presets.studies(settings.preset)
    if settings.quick:
        known = {name: presets.quick(experiment) for name, experiment in known.items()}
    named = (*settings.names, *settings.only)
    chosen = _choose(known, named)
    if settings.quick:
        chosen = {name: e for name, e in chosen.items() if name in named or name not in presets.LONG}
    chosen = _changed(chosen, settings)
    if settings.list_:
        _list(console, chosen)
        return 0
    if not named:
        left_out = presets.LEFT_OUT if settings.quick else ()
        chosen = {n: e for n, e in chosen.items() if n not in left_out and not n.startswith(presets.BEYOND)}
    devices, began = _devices(settings.device), time.perf_counter()
    with programs.kept(settings.cache), writable(settings.out), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the page reports unusual properties of a problem
        failures, interrupted = _run(settings, chosen, devices, console)
        with status_line(settings.progress) as progress:
            progress("drawing")
            report = _report(settings, known | chosen, chosen, shlex.join(["fedhsa", "reproduce", *args]), began)
            report.write(settings.out)
    _show(console, report, settings)
    for name, error in failures.items():
        print(f"fedhsa: {name}: {' '.join(str(error).split())}", file=sys.stderr)
    unexpected = [error for error in failures.values() if not isinstance(error, ValueError | MemoryError)]
    if unexpected:
        raise unexpected[0]  # after the page with the other experiments
    if interrupted:
        console.print("Interrupted: what is finished is kept. The same command continues.", soft_wrap=True)
        return INTERRUPTED
    asked = {check.verdict for e in report.entries if e.experiment.name in chosen for check in e.checks}
    return FAILED if failures or FAIL in asked else 0


def _choose(known: dict[str, AbstractStudy], patterns: Sequence[str]) -> dict[str, AbstractStudy]:
    """Returns the experiments with these names, families or patterns."""
    chosen: set[str] = set()
    for name in patterns:
        found = [n for n in known if n == name or n.startswith(f"{name.rstrip('/')}/") or fnmatch.fnmatch(n, name)]
        if not found:
            raise UsageError(
                f"There is no experiment {name!r}.{nearest(name, known)} `fedhsa reproduce --list` shows them."
            )
        chosen.update(found)
    return {name: experiment for name, experiment in known.items() if not patterns or name in chosen}


def _changed(chosen: dict[str, AbstractStudy], settings: ReproduceSettings) -> dict[str, AbstractStudy]:
    """Returns the experiments with the settings from the command line; each takes the settings that it has."""
    for name, value in _given(settings).items():
        takers = [n for n, experiment in chosen.items() if name in presets.names(experiment)]
        if not takers and name in ("seeds", "key") and not any(experiment.random for experiment in chosen.values()):
            which = f"{', '.join(chosen)} {'has' if len(chosen) == 1 else 'have'} no noise"
            raise UsageError(f"`{name}`: {which}, and every seed would give the same numbers. Leave it out.")
        if not takers:
            known = dict.fromkeys(n for experiment in chosen.values() for n in presets.names(experiment))
            raise UsageError(f"None of these experiments has a setting `{name}`.{nearest(name, known)} See `--list`.")
        for taker in takers:
            chosen[taker] = presets.change(chosen[taker], name, value)
    return chosen


def _given(settings: ReproduceSettings) -> dict[str, Any]:
    """Returns the settings that differ from the preset."""
    given = {name: getattr(settings, name) for name in ("seeds", "rounds")}
    return {name: value for name, value in given.items() if value is not None} | settings.option


def _run(
    settings: ReproduceSettings, chosen: dict[str, AbstractStudy], devices: Any, console: Console
) -> tuple[dict[str, Exception], bool]:
    """Runs the unfinished experiments; returns the failures with their reasons, and whether it was interrupted."""
    failures: dict[str, Exception] = {}
    number, total = 0, len(chosen)

    def manifest(experiment: AbstractStudy) -> dict[str, Any]:
        arguments = settings.arguments(presets.names(experiment))
        command = shlex.join(["fedhsa", "reproduce", experiment.name, *arguments])
        folder = settings.folder.relative_to(settings.out).joinpath(experiment.name).as_posix()
        about = {"command": command, "preset": settings.preset, "quick": settings.quick, "folder": folder}
        return about | {"versions": versions(), "machine": machine()}

    try:
        with contextlib.ExitStack() as stack, _bar(settings.progress) as show:
            for finished in run(
                [*chosen.values()],
                settings.folder,
                manifest=manifest,
                again=settings.again or settings.device is not None,  # another device gives different last digits
                lanes=lambda count: _lanes(settings, count, stack.enter_context(executor(settings, console, as_on=1))),
                devices=devices,
                show=show,
            ):
                number += 1
                if finished.error is not None:
                    failures[finished.experiment.name] = finished.error
                console.print(_line(number, total, finished))
    except KeyboardInterrupt:
        return failures, True
    return failures, False


def _lanes(settings: ReproduceSettings, experiments: int, pool: Executor | None) -> list[lanes.Lane]:
    """Returns the places in which this number of experiments runs."""
    if pool is not None:
        return lanes.places(pool, min(settings.workers or workers(pool), experiments))
    if settings.device is not None or jax.default_backend() != "cpu":
        return lanes.threads(settings.workers or 2)  # an accelerator belongs to one process: one compiles, one computes
    count = min(settings.workers or len(available_cores()), experiments)
    return lanes.processes(count) if count > 1 else lanes.threads(1)


def _line(number: int, total: int, finished: Finished) -> str:
    took = "failed" if finished.error is not None else f"{finished.seconds:.0f} s" if finished.seconds else "reused"
    return f"{number:3d}/{total}  {finished.experiment.name:22s} {took}"


@contextlib.contextmanager
def _bar(show: bool) -> Iterator[Callable[[Status], None]]:
    """Yields a function that shows the progress of the whole job on a terminal, and nothing elsewhere."""
    if not (show and sys.stderr.isatty()):
        yield lambda status: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("...", total=1.0, left="")
        began = time.perf_counter()

        def update(status: Status) -> None:
            elapsed = time.perf_counter() - began
            left = f"about {status.left / 60:.0f} min left" if status.left > 90 else f"about {status.left:.0f} s left"
            running = ", ".join(status.running)
            bar.update(task, description=running, completed=elapsed / (elapsed + status.left + 1e-9), left=left)

        yield update


def _report(
    settings: ReproduceSettings,
    experiments: dict[str, AbstractStudy],
    chosen: dict[str, AbstractStudy],
    command: str,
    began: float,
) -> Report:
    """Returns the content of the page: the requested experiments, and all other finished ones in the folder."""
    found = {name: entry(experiment, settings.folder) for name, experiment in experiments.items()}
    return Report(
        entries=[e for e in found.values() if e is not None],
        command=command,
        quick=settings.quick,
        preset=settings.preset,
        changed=tuple(f"{name} = {in_toml(value)}" for name, value in _given(settings).items()),
        seconds=time.perf_counter() - began,
        unfinished=tuple(name for name in chosen if found[name] is None),
    )


def _show(console: Console, report: Report, settings: ReproduceSettings) -> None:
    table = PlainTable("claim", "", "verdict", "checks")
    for claim in report.claims:
        passed = sum(check.verdict == PASS for check in claim.checks)
        counted = f"{passed} of {len(claim.checks)}" if claim.checks else ""
        table.add_row(str(claim.number), claim.title, claim.verdict or "not checked", counted)
    console.print(table)
    for verdict, word in ((FAIL, "Failed"), (UNDECIDED, "Not decided")):
        for check in (check for claim in report.claims for check in claim.checks if check.verdict == verdict):
            why = f" ({check.rule.rpartition('; ')[2]})" if verdict == UNDECIDED else ""
            expected = check.expected if isinstance(check.expected, str) else f"{check.expected:.6g}"
            numbers = f"measured {check.measured:.6g}, expected {expected}{why}"
            console.print(f"{word}: {check.name}: {numbers}.", soft_wrap=True)
    console.print(f"Page: {settings.out / 'report.html'}", soft_wrap=True)


def _list(console: Console, chosen: dict[str, AbstractStudy]) -> None:
    table = PlainTable("experiment", "what it is, and its settings")
    for name, experiment in chosen.items():
        values = store.settings(experiment)
        shown = {n: values.get(n, values.get(f"problem.{n}")) for n in presets.names(experiment)}
        listed = ", ".join(f"{n}={in_toml(v)}" for n, v in shown.items())
        table.add_row(name, f"{experiment.source}: {experiment.title} (about {experiment.seconds():.0f} s)\n{listed}")
    console.print(table)
    console.print("\n`--option NAME=VALUE` changes any of these settings.")


def _devices(name: str | None) -> Any:
    if name is None:
        return None
    try:
        return jax.devices(name)
    except RuntimeError as error:
        raise FailedRunError(f"`device`: JAX finds no {name} here ({str(error).splitlines()[0]}).") from error

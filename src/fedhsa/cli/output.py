"""Shared parts of the commands that run simulations: the folder, the executor, the memory check, the final table."""

import contextlib
import math
import pathlib
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

import jax
from rich.console import Console

from .._table import FIXED, Table
from ..comparison import Contest
from ..engine import Result, Sweep
from ..engine.result import brief
from ..outputs import final, quantity, status
from .errors import FailedRunError
from .settings import RayFlags

FAILED = 1
"""The exit code after a failure."""
INTERRUPTED = 130
"""The exit code of a program stopped by Ctrl-C."""


@contextlib.contextmanager
def writable(folder: pathlib.Path) -> Iterator[None]:
    """Creates the folder and checks that it is writable; removes it if nothing was written."""
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
                new.rmdir()  # fails if the folder is not empty


@contextlib.contextmanager
def on_signals(stop: Callable[[int, Any], None]) -> Iterator[None]:
    """Calls a function on Ctrl-C and SIGTERM inside the block, instead of what they do elsewhere."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    raise FailedRunError(f"{what} does not fit in memory: {reason} Use fewer agents, seeds, parameters or local steps.")


@contextlib.contextmanager
def executor(settings: RayFlags, console: Console, as_on: int | None = None) -> Iterator[Executor | None]:
    """Yields the executor that the flags request, None for this process; `as_on` is as for `ray_executor`."""
    if not (settings.ray or settings.ray_address):
        yield None
        return
    from ..deploy import ray_executor

    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(ray_executor(settings.ray_address, as_on=as_on))
        except ConnectionError as error:
            raise FailedRunError(str(error).replace("`address`", "`ray`")) from error
        console.print(f"Ray: {found.cores} cores {found.where}.", soft_wrap=True)
        yield found


def exit_code(console: Console, found: Contest | Sweep, done: str) -> int:
    """Returns the exit code of a command with several methods or settings; if interrupted, says what is done."""
    if found.failures:
        return FAILED
    if found.complete:
        return 0
    console.print(f"Interrupted: {f'{done} were done, and written' if done else 'nothing was written'}.")
    return INTERRUPTED


def show(console: Console, results: Mapping[str, Result], labels: Mapping[str, str] | None = None) -> None:
    """Prints one row per algorithm, wrapped to the width of the screen."""
    console.print(table(results, labels).text(console.width), soft_wrap=True)


def table(results: Mapping[str, Result], labels: Mapping[str, str] | None = None) -> Table:
    """Returns a table with the result of each algorithm, the cost of its rounds, and its final status."""
    shown, labels = quantity(results), labels or {}
    rows = []
    for name, result in results.items():
        cost, seconds = result.cost, result.timings
        floats = f"{cost.floats_up}/{cost.floats_down}"
        took = f"{seconds['compile']:.1f}/{seconds['run']:.1f}"
        found = _final(result, shown)
        rows.append((labels.get(name, name), found, str(cost.exchanges), floats, took, status(result)))
    final_head = f"final {shown.replace('_', ' ')}\n[95{FIXED}%{FIXED}interval]"
    heads = ("algorithm", final_head, "exchanges", "floats\nup/down", "seconds\ncompile/run", "status")
    caption = "Exchanges and floats are per round, floats for one agent."
    return Table(heads, rows, right=(2, 3, 4), caption=caption)


def _final(result: Result, quantity: str) -> str:
    mean, low, high = final(result, quantity)
    if math.isnan(mean):
        return "not measured"
    if math.isinf(mean):
        return "infinite"
    value, lowest, highest = (brief(quantity, number, 2) for number in (mean, low, high))
    return value if math.isnan(low) else f"{value}\n[{lowest},{FIXED}{highest}]"

"""What commands that run something share: a folder to write to, memory that suffices, the table at the end."""

import contextlib
import math
import pathlib
import tempfile
from collections.abc import Iterator, Mapping

import jax
from rich.console import Console

from ..engine import Result
from ..engine.result import brief
from ..outputs import final, quantity, status
from .errors import FailedRunError
from .screen import plain_table

FAILED = 1
"""The exit code where something failed."""
INTERRUPTED = 130
"""The exit code of a program stopped by Ctrl-C."""


@contextlib.contextmanager
def writable(folder: pathlib.Path) -> Iterator[None]:
    """Makes the folder and proves that it can be written to; removes it if nothing was written."""
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
                new.rmdir()  # fails for a folder with something in it


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


def show(console: Console, results: Mapping[str, Result]) -> None:
    """Prints one line per algorithm."""
    shown = quantity(results)
    caption = "Exchanges and floats are per round, floats for one agent."
    table = plain_table(caption=caption, caption_justify="left")
    table.add_column("algorithm", no_wrap=True)
    table.add_column(f"final {shown.replace('_', ' ')}\n[95 % interval]", no_wrap=True)
    table.add_column("exchanges", justify="right", no_wrap=True)
    table.add_column("floats\nup/down", justify="right", no_wrap=True)
    table.add_column("seconds\ncompile/run", justify="right", no_wrap=True)
    table.add_column("status")
    for name, result in results.items():
        cost, seconds = result.cost, result.timings
        table.add_row(
            name,
            _final(result, shown),
            str(cost.exchanges),
            f"{cost.floats_up}/{cost.floats_down}",
            f"{seconds['compile']:.1f}/{seconds['run']:.1f}",
            status(result),
        )
    console.print(table)


def _final(result: Result, quantity: str) -> str:
    mean, low, high = final(result, quantity)
    if math.isnan(mean):
        return "not measured"
    if math.isinf(mean):
        return "infinite"
    value, lowest, highest = (brief(quantity, number, 2) for number in (mean, low, high))
    return value if math.isnan(low) else f"{value}\n[{lowest}, {highest}]"

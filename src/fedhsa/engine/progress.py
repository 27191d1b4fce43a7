"""A progress bar for long runs on a terminal."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

ShowProgress: TypeAlias = bool | Callable[[int], None] | None
"""True or False for a progress bar, a function, or None for a bar on terminals only."""

PATIENCE = 2.0
"""Seconds before the bar appears."""


@contextlib.contextmanager
def progress_bar(label: str, total: int, show: ShowProgress) -> Iterator[Callable[[int], None]]:
    """Provides a function to call with the number of completed rounds."""
    if callable(show):
        yield show
        return
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda done: None
        return
    from rich.console import Console  # imported here because few runs show a bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=total)
    began = time.monotonic()

    def update(done: int) -> None:
        if show or time.monotonic() - began > PATIENCE:
            bar.start()  # does nothing when already started
        bar.update(task, completed=done)

    try:
        yield update
    finally:
        bar.stop()

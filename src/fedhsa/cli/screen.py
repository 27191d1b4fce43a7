"""What commands show on a terminal: tables, a curve, and what is being computed."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

WIDTH, ROWS = 48, 12


def chart(values: np.ndarray, label: str) -> str:
    """Bars on a logarithmic scale, for at most a dozen rounds spread over the run."""
    rounds = np.unique(np.linspace(0, len(values) - 1, min(len(values), ROWS)).round().astype(int))
    shown = [(int(t), float(values[t])) for t in rounds if np.isfinite(values[t])]
    logs = np.log10([max(value, 1e-300) for _, value in shown])
    low, high = (logs.min(), logs.max()) if len(logs) else (0.0, 0.0)
    scale = (WIDTH - 1) / (high - low) if high > low else 0.0
    digits = len(str(len(values) - 1))
    lines = [f"{'round':>{max(digits, 5)}}  {label}, logarithmic"]
    for (t, value), log in zip(shown, logs, strict=True):
        lines.append(f"{t:>{max(digits, 5)}}  {value:8.2e} {'█' * (1 + round((log - low) * scale))}")
    return "\n".join(lines)


def plain_table(*columns: str, **options: Any) -> Table:
    """A table without lines."""
    return Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False, **options)


@contextlib.contextmanager
def status_line(show: bool) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows on stderr what is being computed; silent where stderr is not a terminal."""
    if not (show and sys.stderr.isatty()):
        yield lambda what: None
        return
    with Console(stderr=True).status("...") as status:
        yield lambda what: status.update(f"{what} ...")

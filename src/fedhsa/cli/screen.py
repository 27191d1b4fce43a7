"""The terminal output of commands: tables, a curve, and the current computation."""

import contextlib
import sys
from collections.abc import Callable, Iterator

import numpy as np
from rich.console import Console, ConsoleOptions
from rich.text import Text

from .._table import Table

WIDTH, ROWS = 48, 12


def chart(values: np.ndarray, label: str) -> str:
    """Returns bars for at most a dozen rounds of the run: from zero, or logarithmic for values far apart."""
    from ..plots._sites import spans

    rounds = np.unique(np.linspace(0, len(values) - 1, min(len(values), ROWS)).round().astype(int))
    shown = [(int(t), float(values[t])) for t in rounds if np.isfinite(values[t])]
    heights, logarithmic = np.array([value for _, value in shown]), spans(np.array([value for _, value in shown]))
    if logarithmic:
        heights = np.log10(heights)
    base = heights.min() if logarithmic else min(0.0, heights.min(initial=0.0))
    scale = (WIDTH - 1) / (heights.max() - base) if len(heights) and heights.max() > base else 0.0
    digits = len(str(len(values) - 1))
    lines = [f"{'round':>{max(digits, 5)}}  {label}{', logarithmic' * logarithmic}"]
    for (t, value), height in zip(shown, heights, strict=True):
        written = f"{value:8.2e}" if logarithmic else f"{value:8.4g}"
        lines.append(f"{t:>{max(digits, 5)}}  {written} {'█' * (1 + round((height - base) * scale))}")
    return "\n".join(lines)


class PlainTable:
    """A table without lines that fits the width of the console and omits nothing (see `Table.text`).

    With `right`, all columns but the first are aligned to the right. Without heads, the rows determine the columns.
    """

    def __init__(self, *heads: str, right: bool = False):
        self.heads, self.right = heads, right
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        columns = max(map(len, [self.heads, *self.rows]))
        heads, *rows = ((*row, *[""] * (columns - len(row))) for row in (self.heads, *self.rows))
        yield Text(Table(heads, rows, right=range(1, columns) if self.right else ()).text(options.max_width))


@contextlib.contextmanager
def status_line(show: bool) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the current computation on stderr, if stderr is a terminal."""
    if not (show and sys.stderr.isatty()):
        yield lambda what: None
        return
    with Console(stderr=True).status("...") as status:
        yield lambda what: status.update(f"{what} ...")

"""Shows the parameter that a run has found: its first numbers by name, and the file with the others."""

import math
import pathlib
from collections.abc import Mapping

from rich.console import Console

from ..engine import Result
from ..statistics import Estimate
from .screen import PlainTable

SHOWN = 6
"""The number of entries that are shown."""
BESIDE = 2
"""The number of algorithms next to each other, so that their names fit a narrow terminal."""


def show(console: Console, results: Mapping[str, Result], folder: pathlib.Path) -> None:
    """Prints a line for each of the first numbers, without the algorithms that diverged."""
    found = {name: result.parameters() for name, result in results.items() if (result.failed_round < 0).all()}
    if not found:
        return
    names, algorithms = list(next(iter(found.values()))), list(found)
    seeds = len(results[algorithms[0]].error)
    about = f"mean over {seeds} seeds ± half of its 95 % interval" if seeds > 1 else "one seed"
    which = "The parameter" if len(names) <= SHOWN else f"The first {SHOWN} of {len(names)} numbers of the parameter"
    console.print(f"{which} ({about}; all in {folder / 'theta.csv'}):", soft_wrap=True)
    for first in range(0, len(algorithms), BESIDE):
        beside = algorithms[first : first + BESIDE]
        table = PlainTable("", *beside)
        for name in names[:SHOWN]:
            table.add_row(name, *(_brief(found[algorithm][name]) for algorithm in beside))
        console.print(table)


def _brief(found: Estimate) -> str:
    """Returns a number with the digits that the interval leaves certain, and one more digit."""
    half = (found.high - found.low) / 2
    if not (math.isfinite(half) and half > 0):
        return f"{found.value:.5g}"
    decimals = 1 - math.floor(math.log10(half))
    if 0 <= decimals <= 8:
        return f"{found.value:.{decimals}f} ± {half:.{decimals}f}"
    return f"{found.value:.5g} ± {half:.1e}"

"""`fedhsa list`: the problems and algorithms with their arguments."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from ..algorithms import ALGORITHMS, WRAPPERS
from ..problems import PROBLEMS


def show(console: Console) -> None:
    """Prints the tables."""
    # A problem's generator sits in the module that describes the problem.
    _print(console, "problem", PROBLEMS, lambda random: inspect.getmodule(random).__doc__)
    console.print()
    _print(console, "algorithm", ALGORITHMS, lambda algorithm: algorithm.__doc__)
    console.print()
    _print(console, "wrapper", WRAPPERS, lambda wrapper: wrapper.__doc__)
    console.print(
        "\nWrappers compose with algorithms and with one another: "
        "`--algorithm FedHSA 'Averaged(Compressed(FedHSA, TopK(0.1)))'`."
        "\nnum_agents, dim, heterogeneity, step_size, local_steps and server_step are flags of `fedhsa run` "
        "and `fedhsa analyze`, key is `--problem-key`;\nany other argument of a problem goes after `--option`, as in "
        "`--option noise_std=0.2`."
    )


def _print(console: Console, kind: str, entries: Mapping[str, Any], document: Callable[[Any], str | None]) -> None:
    table = Table(kind, "what it is, and its arguments", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name, entry in entries.items():
        table.add_row(name, f"{first_sentence(document(entry))}\n{arguments(entry)}")
    console.print(table)


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, without its formula."""
    paragraph = " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
    paragraph = re.sub(r":?\s*\$[^$]*\$", "", paragraph)
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph)[0]


def arguments(entry: Callable[..., Any]) -> str:
    """The arguments with their defaults, as one would type them in Python."""
    parameters = inspect.signature(entry).parameters.values()
    return ", ".join(p.name if p.default is p.empty else f"{p.name}={_short(p.default)}" for p in parameters)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

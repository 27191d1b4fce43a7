"""`fedhsa list`: problems, algorithms, wrappers and environments with their arguments."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .._check import nearest
from ..algorithms import ALGORITHMS, WRAPPERS
from ..environments import ENVIRONMENTS
from ..problems import PROBLEMS
from .errors import UsageError

KINDS = ("problems", "algorithms", "wrappers", "environments")
"""What can be listed."""


def main(arguments: list[str], console: Console) -> int:
    """Runs `fedhsa list`; gives the exit code."""
    if arguments[:1] in (["-h"], ["--help"]):
        console.print(
            f"usage: fedhsa list [{'|'.join(KINDS)}]\n\nShows them with their arguments; without a word, all."
        )
        return 0
    for kind in arguments:
        if kind not in KINDS:
            raise UsageError(f"fedhsa list takes {', '.join(KINDS)}, got {kind!r}.{nearest(kind, KINDS)}")
    show(console, arguments or KINDS)
    return 0


def show(console: Console, kinds: Sequence[str] = KINDS) -> None:
    """Prints the tables, each followed by how to use what it lists."""
    for number, kind in enumerate(kinds):
        if number:
            console.print()
        if kind == "problems":
            # A problem's generator sits in the module that describes the problem.
            _print(console, "problem", PROBLEMS, lambda random: inspect.getmodule(random).__doc__)
            console.print(
                "\nnum_agents, dim and heterogeneity are flags of `fedhsa run` and `fedhsa analyze`, key is "
                "`--problem-key`;\nany other argument goes after `--option`, as in `--option noise_std=0.2`."
            )
        elif kind == "algorithms":
            _print(console, "algorithm", ALGORITHMS, lambda algorithm: algorithm.__doc__)
            console.print("\nstep_size, local_steps and server_step are flags of `fedhsa run` and `fedhsa analyze`.")
        elif kind == "wrappers":
            _print(console, "wrapper", WRAPPERS, lambda wrapper: wrapper.__doc__)
            console.print(
                "\nWrappers compose with algorithms and with one another: "
                "`--algorithm FedHSA 'Averaged(Compressed(FedHSA, TopK(0.1)))'`."
            )
        else:
            _print(console, "environment", ENVIRONMENTS, lambda world: world.__doc__)
            console.print(
                '\nIn Python: `fedhsa.environments.make("frozen-lake", {"num_agents": 5})`. '
                'FrozenLake, CliffWalking and Taxi need `pip install "fedhsa[gym]"`.'
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
    words = {p: p.name if p.default is p.empty else f"{p.name}={_short(p.default)}" for p in parameters}
    return ", ".join("and the environment's" if p.kind is p.VAR_KEYWORD else word for p, word in words.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

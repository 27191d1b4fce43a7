"""`fedhsa list`: problems, algorithms, wrappers and environments with their arguments."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from .._check import nearest
from ..algorithms import ALGORITHMS, WRAPPERS
from ..environments import ENVIRONMENTS
from ..problems import PROBLEMS
from .errors import UsageError
from .screen import plain_table

KINDS: dict[str, tuple[Mapping[str, Any], str]] = {
    "problems": (
        PROBLEMS,
        "num_agents, dim and heterogeneity are flags of `fedhsa run` and `fedhsa analyze`, key is `--problem-key`;\n"
        "any other argument goes after `--option`, as in `--option noise_std=0.2`.",
    ),
    "algorithms": (
        ALGORITHMS,
        "step_size, local_steps and server_step are flags of `fedhsa run` and `fedhsa analyze`.",
    ),
    "wrappers": (
        WRAPPERS,
        "Wrappers compose with algorithms and with one another: "
        "`--algorithm FedHSA 'Averaged(Compressed(FedHSA, TopK(0.1)))'`.",
    ),
    "environments": (
        ENVIRONMENTS,
        'In Python: `fedhsa.environments.make("frozen-lake", {"num_agents": 5})`. '
        'FrozenLake, CliffWalking and Taxi need `pip install "fedhsa[gym]"`.',
    ),
}
"""What can be listed, and how to use it."""


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
    show(console, arguments or tuple(KINDS))
    return 0


def show(console: Console, kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Prints the tables, each followed by how to use what it lists."""
    for number, kind in enumerate(kinds):
        if number:
            console.print()
        table = plain_table(kind.removesuffix("s"), "what it is, and its arguments")
        entries, usage = KINDS[kind]
        for name, entry in entries.items():
            # A problem's generator is in the module that describes the problem.
            described = inspect.getmodule(entry) if kind == "problems" else entry
            table.add_row(name, f"{first_sentence(described.__doc__)}\n{arguments(entry)}")
        console.print(table)
        console.print(f"\n{usage}")


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

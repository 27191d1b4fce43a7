"""`fedhsa list`: problems, algorithms, wrappers and environments with their arguments."""

from rich.console import Console

from .._check import nearest
from . import index
from .errors import UsageError
from .screen import PlainTable

USAGE = {
    "problems": (
        "num_agents, dim and heterogeneity are flags of `fedhsa run` and `fedhsa analyze`, key is `--problem-key`;\n"
        "any other argument goes after `--option`, as in `--option noise_std=0.2`.\n"
        "Your own are named by their file: `fedhsa run mine.py:build`; `fedhsa new problem Mine` writes one."
    ),
    "algorithms": (
        "step_size, local_steps and server_step are flags of `fedhsa run` and `fedhsa analyze`.\n"
        "Your own are named by their file: `--algorithm mine.py:HalfHSA`; `fedhsa new algorithm HalfHSA` writes one."
    ),
    "wrappers": (
        "Wrappers compose with algorithms and with one another: "
        "`--algorithm FedHSA 'Averaged(Compressed(FedHSA, TopK(0.1)))'`."
    ),
    "environments": (
        'In Python: `fedhsa.environments.make("frozen-lake", {"num_agents": 5})`. '
        'FrozenLake, CliffWalking and Taxi need `pip install "fedhsa[gym]"`.'
    ),
}
"""The kinds that can be listed, each with a sentence on its use."""


def main(arguments: list[str], console: Console) -> int:
    """Runs `fedhsa list` and returns the exit code."""
    if arguments[:1] in (["-h"], ["--help"]):
        console.print(
            f"usage: fedhsa list [{'|'.join(USAGE)}]\n\nShows them with their arguments; without a word, all."
        )
        return 0
    for kind in arguments:
        if kind not in USAGE:
            raise UsageError(f"fedhsa list takes {', '.join(USAGE)}, got {kind!r}.{nearest(kind, USAGE)}")
    for number, kind in enumerate(arguments or USAGE):
        if number:
            console.print()
        table = PlainTable(kind.removesuffix("s"), "what it is, and its arguments")
        for name, entry in {**index.offered(kind), **index.read()[kind]}.items():
            table.add_row(name, f"{entry['sentence']}\n{entry['arguments']}")
        console.print(table)
        console.print(f"\n{USAGE[kind]}")
    return 0

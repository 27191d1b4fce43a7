"""The cost of one agent-step of every algorithm, next to FedHSA's cost and to the cost that its work implies."""

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import fedhsa
from fedhsa import problems, tree
from machine import RESULTS, machine, write

SETTINGS = {
    "FedLin": "FedLin(step_size=0.3)",  # its step size is divided among the local steps
    "MCSAG": "MCSAG(num_components=4)",
    "MomentumSA": "MomentumSA(beta=0.5)",
    "MultilevelSA": "MultilevelSA(samples=10)",
    "PersonalisedSA": "PersonalisedSA(beta=0.5)",
    "VarianceReducedSA": "VarianceReducedSA(batch=10)",
}
"""Constructors of algorithms that need more than a step size and local steps, or a different step size."""


@dataclass(frozen=True)
class Settings:
    """Times every algorithm and writes algorithms.json."""

    problems: tuple[str, ...] = ("TD", "finite sum")
    seconds: float = 1.0
    """the duration of each measurement"""
    repetitions: int = 3
    """the number of repetitions; medians are reported"""
    seeds: int = 16
    local_steps: int = 10
    """H"""
    only: tuple[str, ...] = ()
    """a subset of the algorithms; FedHSA is always included"""
    quick: bool = False
    """tiny problems and short measurements, to check that everything works"""
    out: Path = RESULTS
    """the folder to write to"""


def problem_of(name: str, quick: bool) -> fedhsa.Problem:
    if name == "TD":
        return problems.td.random(*((4, 5, 3) if quick else (100, 100, 50)))
    return problems.finite_sum.random(*((4, 4, 3) if quick else (100, 4, 20)))


def contenders(name: str, problem: fedhsa.Problem, settings: Settings) -> dict[str, fedhsa.AbstractAlgorithm]:
    found = {}
    for algorithm in fedhsa.ALGORITHMS:
        if algorithm == "SA" or (settings.only and algorithm not in ("FedHSA", *settings.only)):
            continue
        defaults = {"step_size": 0.01, "local_steps": settings.local_steps}
        try:  # a method for policies, graphs or finite sums does not run on every problem
            made = fedhsa.algorithms.parse(SETTINGS.get(algorithm, algorithm), problem, **defaults)
            made.check(problem)
            found[algorithm] = made
        except (TypeError, ValueError) as error:
            print(f"{name} without {algorithm}: {error}")
    return found


def traffic(problem: fedhsa.Problem, algorithm: fedhsa.AbstractAlgorithm) -> float:
    """Returns the bytes that an agent-step moves in addition to its evaluations: memory, messages and replies."""
    _, memory = algorithm.init(jnp.zeros(problem.dim))
    cost = fedhsa.cost(problem, algorithm)
    exchanges = len(algorithm.exchanges)
    numbers = exchanges * 2 * tree.size(memory) + exchanges * 2 * problem.dim + 2 * problem.dim * cost.samples
    return 8 * numbers / cost.samples


def bandwidth() -> float:
    """Returns the bytes per second of a copy that does not fit in any cache."""
    source, best = np.ones(2**25), np.inf
    target = np.empty_like(source)
    for _ in range(5):
        began = perf_counter()
        target[:] = source
        best = min(best, perf_counter() - began)
    return 2 * source.nbytes / best


def run(problem, algorithm, samples: int, step: float, settings: Settings) -> tuple[float, float]:
    """Returns microseconds per agent-step, and seconds of compilation; the error is recorded ten times."""
    rounds = max(10, round(samples / algorithm.block_length / 10) * 10)
    algorithm = fedhsa.algorithms.scaled(algorithm, step)  # a new step size compiles nothing
    result = fedhsa.simulate(
        problem, algorithm, rounds=rounds, every=rounds // 10, seeds=settings.seeds, progress=False
    )
    if (result.status != "ok").any():
        raise RuntimeError(f"{result.algorithm} diverged: what is timed would not be the whole run.")
    steps = rounds * algorithm.block_length * problem.num_agents * settings.seeds
    return 1e6 * result.timings["run"] / steps, result.timings["compile"]


def measure(name: str, settings: Settings) -> list[dict]:
    problem = problem_of(name, settings.quick)
    algorithms = contenders(name, problem, settings)
    costs = {n: fedhsa.cost(problem, a) for n, a in algorithms.items()}
    per_step, compiling = {}, {}
    for n, a in algorithms.items():
        per_step[n], compiling[n] = run(problem, a, 100, 1.0, settings)
    times: dict[str, list[float]] = {n: [] for n in algorithms}
    for repetition in range(settings.repetitions):  # interleaved, so that noise affects all equally
        for n, a in algorithms.items():
            samples = settings.seconds * 1e6 / (per_step[n] * problem.num_agents * settings.seeds)
            times[n].append(run(problem, a, int(samples), 1 - 0.01 * (repetition + 1), settings)[0])
    medians = {n: statistics.median(t) for n, t in times.items()}
    reference, speed = medians["FedHSA"], bandwidth()
    rows = []
    for n, a in algorithms.items():
        evaluations = costs[n].evaluations / costs[n].samples
        extra = max(0.0, traffic(problem, a) - traffic(problem, algorithms["FedHSA"]))
        implied = reference * max(1.0, evaluations) + 1e6 * extra / speed
        rows.append(
            {
                "problem": name,
                "algorithm": n,
                "microseconds": medians[n],
                "relative": medians[n] / reference,
                "evaluations": evaluations,
                "implied": implied / reference,
                "over": medians[n] / implied,
                "compile_seconds": compiling[n],
            }
        )
    return rows


HEADINGS = ("problem", "algorithm", "microseconds", "times FedHSA", "evaluations", "implied", "ratio", "compile")


def table(rows: list[dict]) -> list[tuple[str, ...]]:
    return [
        (
            *(row["problem"], row["algorithm"], f"{row['microseconds']:.3g}", f"{row['relative']:.2f}"),
            *(f"{row['evaluations']:.2f}", f"{row['implied']:.2f}", f"{row['over']:.2f}"),
            f"{row['compile_seconds']:.1f} s",
        )
        for row in rows
    ]


def main(settings: Settings) -> None:
    if settings.quick:
        settings = replace(settings, seconds=0.02, repetitions=2, seeds=2, out=settings.out / "quick")
    console, where = Console(), machine()
    if where["load"] > 0.5:
        console.print(f"Something else is running (load {where['load']:.1f}): expect noise.", style="yellow")
    rows = []
    for name in settings.problems:
        with console.status(name):
            rows += measure(name, settings)
    pretty = Table(box=None)
    for heading in HEADINGS:
        pretty.add_column(heading, no_wrap=True)
    for row in table(rows):
        pretty.add_row(*row)
    console.print(pretty)
    report = {"settings": asdict(settings), "measured": rows}
    write(__file__, settings.out, where, report, {"": [HEADINGS, *table(rows)]})


if __name__ == "__main__":
    main(tyro.cli(Settings))

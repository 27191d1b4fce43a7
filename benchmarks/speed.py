"""The speed of an agent-step of FedHSA: NumPy, a hand-written Numba kernel, `simulate` with and without kernels."""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import fedhsa
import numba_kernel
import numpy_loop
from fedhsa import kernels, problems
from fedhsa.engine.run import Run
from machine import RESULTS, cores, load, machine, write

EVERY = 10
"""The number of rounds between two records in `simulate`."""


@dataclass(frozen=True)
class Settings:
    """Times FedHSA on the paper's three problems and writes speed.json."""

    seconds: float = 2.0
    """the duration of each measurement"""
    repetitions: int = 3
    """the number of repetitions; medians are reported"""
    seeds: tuple[int, ...] = (1, 32)
    dtypes: tuple[str, ...] = ("float64", "float32")
    problems: tuple[str, ...] = ("TD", "quadratic", "finite sum")
    local_steps: int = 10
    """H"""
    clock: Literal["wall", "cpu"] = "wall"
    """wall-clock time, or processor time of all cores, which is meaningful on a busy machine too"""
    quick: bool = False
    """tiny problems and short measurements, to check that everything works"""
    out: Path = RESULTS
    """the folder to write to"""


@dataclass(frozen=True)
class Case:
    """A problem, its step size, and the arguments of its NumPy loop."""

    name: str
    problem: fedhsa.Problem
    step_size: float
    loop: Callable
    arrays: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Contender:
    """An implementation of FedHSA: `run(rounds, step_size)` returns its run time in seconds."""

    method: str
    seeds: int
    dtype: str
    run: Callable[[int, float], float]
    compile_seconds: float = 0.0
    round_step: int = 1
    """rounds must be a multiple of this"""
    threads: int | None = None
    """the number of threads that it is allowed to use"""


def cases(quick: bool) -> list[Case]:
    td = problems.td.random(*((8, 10, 4) if quick else (200, 100, 50)))
    quadratic = problems.quadratic.random(*((8, 4) if quick else (20, 10)))
    finite_sum = problems.finite_sum.random(*((8, 2, 8) if quick else (200, 2, 200)))
    a, q, f = td.agents, quadratic.agents, finite_sum.agents
    td_arrays = (a.source.chain.transition, a.rewards, a.features, a.discount)
    quadratic_arrays = (q.A, q.b, q.source.transition, q.source.noise_std)
    return [
        Case("TD", td, 0.03, numpy_loop.td, td_arrays),
        Case("quadratic", quadratic, 0.001, numpy_loop.quadratic, quadratic_arrays),
        Case("finite sum", finite_sum, 0.001, numpy_loop.finite_sum, (f.A, f.b, f.source.transition)),
    ]


KERNELS = (False, True) if kernels.backend_of("cpu") else (False,)
"""The settings without kernels, and with kernels if they are installed."""
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def numpy_contender(case: Case, local_steps: int, clock: Callable[[], float]) -> Contender:
    rng = np.random.default_rng(0)

    def run(rounds, step_size):
        began = clock()
        case.loop(*case.arrays, step_size=step_size, local_steps=local_steps, rounds=rounds, rng=rng)
        return clock() - began

    return Contender("numpy", 1, "float64", run)


def numba_contender(
    case: Case, local_steps: int, seeds: int, dtype: str, threads: int, clock: Callable[[], float]
) -> Contender:
    options = {"local_steps": local_steps, "seeds": seeds, "dtype": dtype, "threads": threads}
    kernel = numba_kernel.kernel(case.problem, **options)

    def run(rounds, step_size):
        began = clock()
        theta = kernel(rounds, step_size)
        seconds = clock() - began
        if not np.isfinite(theta).all():
            raise RuntimeError(f"The Numba kernel diverged on {case.name}.")
        return seconds

    return Contender("numba", seeds, dtype, run, run(1, case.step_size), threads=threads)


def simulate_contender(case: Case, local_steps: int, seeds: int, dtype: str, clock: str, fused: bool) -> Contender:
    def simulate(rounds, step_size):
        algorithm = fedhsa.FedHSA(step_size, local_steps=local_steps)
        options = {"rounds": rounds, "seeds": seeds, "every": EVERY, "dtype": dtype, "progress": False}
        with contextlib.nullcontext() if fused else kernels.without():
            result = fedhsa.simulate(case.problem, algorithm, **options)
        if (result.status != "ok").any():
            raise RuntimeError(f"`simulate` diverged on {case.name}: what is timed would not be the whole run.")
        return result.timings

    def run(rounds, step_size):
        if clock == "wall":
            return simulate(rounds, step_size)["run"]
        spent, advance = [], Run.advance

        def timed(self, records):
            began = time.process_time()
            made = advance(self, records)
            spent.append(time.process_time() - began)
            return made

        with mock.patch.object(Run, "advance", timed):  # the set-up is not part of a step
            simulate(rounds, step_size)
        return sum(spent)

    compile_seconds = simulate(EVERY, case.step_size)["compile"]
    return Contender("native" if fused else "simulate", seeds, dtype, run, compile_seconds, EVERY)


def seconds_per_round(contender: Contender, step_size: float, target: float) -> float:
    """Returns a first estimate: doubles the number of rounds until they take a tenth of `target`."""
    rounds = contender.round_step
    while (seconds := contender.run(rounds, step_size)) < target / 10:
        rounds *= 2
    return seconds / rounds


def measure(case: Case, settings: Settings) -> list[dict]:
    """Returns microseconds per agent-step of each contender; interleaved, so that noise affects all equally."""
    H, name = settings.local_steps, settings.clock
    thread_counts = {1} if settings.quick or name == "cpu" else {1, cores()}
    contenders = [numpy_contender(case, H, CLOCKS[name])]
    for seeds in settings.seeds:
        for dtype in settings.dtypes:
            contenders += [numba_contender(case, H, seeds, dtype, threads, CLOCKS[name]) for threads in thread_counts]
            contenders += [simulate_contender(case, H, seeds, dtype, name, fused) for fused in KERNELS]
    rounds = [plan_rounds(contender, case, settings) for contender in contenders]
    times: list[list[float]] = [[] for _ in contenders]
    for repetition in range(settings.repetitions):
        # A new step size each time: `simulate` must not recompile, and no result can be cached.
        step_size = case.step_size * (1 - 0.01 * (repetition + 1))
        for contender, count, mine in zip(contenders, rounds, times, strict=True):
            steps = count * contender.seeds * case.problem.num_agents * H
            mine.append(1e6 * contender.run(count, step_size) / steps)
    return [
        {
            "problem": case.name,
            "method": contender.method,
            "seeds": contender.seeds,
            "dtype": contender.dtype,
            "threads": contender.threads,
            "rounds": count,
            "microseconds": statistics.median(mine),
            "all_microseconds": mine,
            "compile_seconds": contender.compile_seconds,
        }
        for contender, count, mine in zip(contenders, rounds, times, strict=True)
    ]


def plan_rounds(contender: Contender, case: Case, settings: Settings) -> int:
    """Returns the approximate number of rounds that fit in `settings.seconds`."""
    blocks = settings.seconds / seconds_per_round(contender, case.step_size, settings.seconds) / contender.round_step
    return contender.round_step * max(1, round(blocks))


HEADINGS = (
    "problem",
    "seeds",
    "dtype",
    "a NumPy",
    "b Numba",
    "c plain",
    "d kernels",
    "a/c",
    "c/b",
    "d/b",
    "compile c, d",
)


def rows(measured: list[dict], settings: Settings) -> list[tuple[str, ...]]:
    """Returns the table. The NumPy loop runs one seed in float64, and all contenders are compared with it."""

    def best(problem, method, seeds, dtype) -> Any:
        # The Numba kernel runs on one core and on all: with little work in a round, threads wait for each other.
        asked = (problem, method, seeds, dtype)
        found = [m for m in measured if (m["problem"], m["method"], m["seeds"], m["dtype"]) == asked]
        return min(found, key=lambda m: m["microseconds"], default=None)

    table = []
    for problem in dict.fromkeys(m["problem"] for m in measured):
        a = best(problem, "numpy", 1, "float64")["microseconds"]
        for seeds in settings.seeds:
            for dtype in settings.dtypes:
                b, plain, fused = (best(problem, kind, seeds, dtype) for kind in ("numba", "simulate", "native"))
                b, c, d = b["microseconds"], plain["microseconds"], fused and fused["microseconds"]
                numbers = (f"{a:.3g}", f"{b:.3g}", f"{c:.3g}", f"{d:.3g}" if fused else "")
                ratios = (f"{a / c:.3g}", f"{c / b:.2f}", f"{d / b:.2f}" if fused else "")
                compiled = ", ".join(f"{one['compile_seconds']:.1f} s" for one in (plain, fused) if one)
                table.append((problem, str(seeds), dtype, *numbers, *ratios, compiled))
    return table


def show(table: list[tuple[str, ...]], console: Console) -> None:
    pretty = Table(title="microseconds per agent-step of FedHSA", box=None)
    for heading in HEADINGS:
        pretty.add_column(heading, no_wrap=True, justify="left" if heading in HEADINGS[:3] else "right")
    for row in table:
        pretty.add_row(*row)
    console.print(pretty)


def main(settings: Settings) -> None:
    if settings.quick:
        settings = replace(settings, seconds=0.05, repetitions=2, dtypes=("float64",), out=settings.out / "quick")
    console, where = Console(), machine() | {"clock": settings.clock}
    if (busy := load()) > 0.5 and settings.clock == "wall":
        console.print(f"Something else is running (load {busy:.1f}): expect noise.", style="yellow")
    measured = []
    for case in (case for case in cases(settings.quick) if case.name in settings.problems):
        with console.status(case.name):
            measured += measure(case, settings)
    table = rows(measured, settings)
    show(table, console)
    report = {"settings": asdict(settings), "measured": measured}
    write(__file__, settings.out, where, report, {"": [HEADINGS, *table]})


if __name__ == "__main__":
    main(tyro.cli(Settings))

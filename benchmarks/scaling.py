"""The growth of the CPU time of one round of `fedhsa.simulate` with agents, local steps, dimension and seeds."""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tyro
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator
from rich.console import Console
from rich.progress import track

import fedhsa
from fedhsa import plots, problems
from machine import RESULTS, load, machine

EVERY = 10
STEP_SIZE = 1e-4
"""A small step size, so that no case diverges; it does not affect the time."""
LABELS = {"num_agents": "agents $M$", "local_steps": "local steps $H$", "dim": "dimension $d$", "seeds": "seeds"}


@dataclass(frozen=True)
class Size:
    num_agents: int
    local_steps: int
    dim: int
    seeds: int


@dataclass(frozen=True)
class Settings:
    """Varies one size at a time and writes scaling.json and scaling.png."""

    seconds: float = 1.0
    """the CPU time of each measurement"""
    repetitions: int = 3
    """the number of repetitions; medians are reported"""
    dtype: str = "float64"
    factors: tuple[float, ...] = (0.25, 0.5, 1, 2, 4)
    """the factors that each size is multiplied with"""
    quick: bool = False
    """tiny problems and short measurements, to check that everything works"""
    out: Path = RESULTS
    """the folder to write to"""


@dataclass(frozen=True)
class Family:
    """A family of problems and the base size that all other sizes are compared with."""

    name: str
    problem: Callable[[Size], fedhsa.Problem]
    base: Size


def families(quick: bool) -> list[Family]:
    def td(size):
        # Twice as many states as features, as in the paper.
        return problems.td.random(size.num_agents, 2 * size.dim, size.dim)

    def quadratic(size):
        return problems.quadratic.random(size.num_agents, size.dim)

    td_base, quadratic_base = Size(64, 8, 32, 8), Size(32, 8, 16, 8)
    if quick:
        td_base = quadratic_base = Size(4, 4, 4, 4)
    return [Family("TD", td, td_base), Family("quadratic", quadratic, quadratic_base)]


def seconds_per_round(problem: fedhsa.Problem, size: Size, settings: Settings) -> float:
    """Returns the median CPU time of a round on all cores, without compilation and without the start of a run."""

    def run(rounds, step_size=STEP_SIZE):
        algorithm = fedhsa.FedHSA(step_size, local_steps=size.local_steps)
        options = {"seeds": size.seeds, "every": EVERY, "dtype": settings.dtype, "progress": False}
        before = time.process_time()
        fedhsa.simulate(problem, algorithm, rounds=rounds, **options)
        return time.process_time() - before

    run(EVERY)
    start = min(run(EVERY) for _ in range(2))
    rounds = 2 * EVERY
    while (seconds := run(rounds) - start) < settings.seconds / 10:
        rounds *= 2
    rounds = EVERY * max(2, round(settings.seconds / seconds * rounds / EVERY))
    spent = statistics.median(run(rounds, STEP_SIZE * (1 + r / 100)) for r in range(settings.repetitions))
    return max(spent - start, 1e-9) / (rounds - EVERY)  # short measurements are noisy


def measure(family: Family, name: str, settings: Settings) -> dict:
    """Returns the time of a round for all values of the size `name`, and the slope of its growth."""
    values = [max(1, round(getattr(family.base, name) * factor)) for factor in settings.factors]
    sizes = [replace(family.base, **{name: value}) for value in values]
    times = [seconds_per_round(family.problem(size), size, settings) for size in sizes]
    slope = float(np.polyfit(np.log(values), np.log(times), 1)[0])
    return {"problem": family.name, "varied": name, "values": values, "seconds_per_round": times, "slope": slope}


def plot(measured: list[dict], bases: dict[str, Size], path: Path) -> None:
    colours, markers = list(plots.COLOURS.values()), "osD^"
    with plots.style():
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        axes = figure.subplots(1, len(bases), sharey=True)
        for axis, (problem, base) in zip(axes, bases.items(), strict=True):
            factors, at_base = np.array([1.0]), []
            for m, colour, marker in zip(
                (m for m in measured if m["problem"] == problem), colours, markers, strict=False
            ):
                factors = np.array(m["values"]) / getattr(base, m["varied"])
                times = 1e3 * np.array(m["seconds_per_round"])
                label = f"{LABELS[m['varied']]}, slope {m['slope']:.2f}"
                axis.loglog(factors, times, marker=marker, markersize=4, color=colour, label=label)
                at_base.append(np.interp(1, factors, times))
            # Every line passes the base size; the reference goes through their middle there.
            axis.loglog(factors, np.median(at_base) * factors, ":", color="0.4", label="slope 1")
            sizes = f"$M = {base.num_agents}$, $H = {base.local_steps}$, $d = {base.dim}$, {base.seeds} seeds"
            axis.set_title(f"{problem}; 1 is {sizes}")
            axis.set_xticks(factors, [f"{factor:g}" for factor in factors])
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.minorticks_off()
            axis.set_xlabel("size, relative to the one in the title")
            axis.grid(axis="y")
            axis.legend(loc="upper left")
        axes[0].set_ylabel("CPU milliseconds per round")
    plots.save(figure, path)


def main(settings: Settings) -> None:
    if settings.quick:
        settings = replace(settings, seconds=0.02, repetitions=1, factors=(0.5, 1, 2), out=settings.out / "quick")
    console, where = Console(), machine()
    if where["load"] > 0.5:
        console.print(f"Something else is running (load {where['load']:.1f}): expect noise.", style="yellow")
    kinds = families(settings.quick)
    tasks = [(family, name) for family in kinds for name in LABELS]
    measured = [measure(*task, settings) for task in track(tasks, "measuring", console=console)]
    for m in measured:
        console.print(f"{m['problem']:10s} {m['varied']:12s} slope {m['slope']:.2f}")
    settings.out.mkdir(parents=True, exist_ok=True)
    bases = {family.name: family.base for family in kinds}
    report = {
        "machine": where | {"load_at_end": load()},
        "settings": asdict(settings),
        "base": {name: asdict(base) for name, base in bases.items()},
        "measured": measured,
    }
    (settings.out / "scaling.json").write_text(json.dumps(report, indent=2, default=str) + "\n")
    plot(measured, bases, settings.out / "scaling.png")
    console.print(f"Written: {settings.out / 'scaling.json'} and scaling.png")


if __name__ == "__main__":
    main(tyro.cli(Settings))

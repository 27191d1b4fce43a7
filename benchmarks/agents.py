"""The cost of many agents: building problems, and running FedHSA on up to a million agents, in fresh processes."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedhsa import plots
from machine import RESULTS, machine, write
from revisions import ROOT, other
from revisions import Settings as Revisions

LOCAL_STEPS, ROUNDS, STEP_SIZE = 10, 3, 1e-3
WORKER = """
import json, resource, sys, time
import jax
import numpy as np
import fedhsa
from fedhsa.problems import finite_sum, quadratic, td
builders = {
    "quadratic": lambda agents: quadratic.random(agents, 10),
    "td": lambda agents: td.random(agents, 100, 50),
    "finite-sum": lambda agents: finite_sum.random(agents, 2, 50),
}
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def memory_of(problem):
    kept = {}
    for leaf in jax.tree.leaves(problem):
        while isinstance(leaf.base, np.ndarray):
            leaf = leaf.base
        kept[id(leaf)] = leaf.nbytes
    return sum(kept.values())
name, agents, local_steps, rounds, step = sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])
builders[name](2)
before, used, began = peak(), cpu(), time.perf_counter()
problem = builders[name](agents)
found = {"build_cpu": cpu() - used, "build_wall": time.perf_counter() - began, "bytes": memory_of(problem)}
found["build_peak"] = peak() - before
if rounds:
    def run(step):
        method = fedhsa.FedHSA(step, local_steps=int(local_steps))
        return fedhsa.simulate(problem, method, rounds=int(rounds), every=int(rounds), progress=False).timings["run"]
    run(step)
    used = cpu()
    found |= {"round_wall": run(2 * step) / rounds, "round_cpu": (cpu() - used) / rounds, "peak": peak()}
print(json.dumps(found))
"""
"""Builds a problem, optionally runs a few rounds, and prints time and memory; a new step size compiles nothing."""


@dataclass(frozen=True)
class Settings:
    """Builds problems with many agents, also with another revision, and runs them; writes agents.json and .png."""

    agents: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """numbers of agents that FedHSA runs with, on the quadratic problem with d = 10"""
    td: int = 10_000
    """agents of the TD problem with S = 100 and d = 50, and of the finite sum with N = 2 and d = 50, which are built"""
    against: str = "5c644ac"
    """another revision, which builds the same problems with fewer agents"""
    then: tuple[int, ...] = (1_000, 10_000)
    """numbers of agents that the other revision builds the quadratic problem with; a tenth or less for the others"""
    quick: bool = False
    """few agents, to check that everything works"""
    out: Path = RESULTS
    """the folder to write to"""


def measure(source: Path, name: str, agents: int, rounds: int = 0) -> dict:
    """Measures building and, with `rounds`, a round, in a fresh process with this revision of the package."""
    command = [sys.executable, "-W", "ignore", "-c", WORKER, name, str(agents)]
    numbers = [str(LOCAL_STEPS), str(rounds), str(STEP_SIZE)]
    env = os.environ | {"PYTHONPATH": str(source), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([*command, *numbers], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return {"problem": name, "agents": agents} | json.loads(done.stdout)


def plot(rows: list[dict], path: Path) -> None:
    agents = np.array([row["agents"] for row in rows])
    with plots.style():
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        time, memory = figure.subplots(1, 2)
        for axis, quantities in (
            (time, {"round_cpu": "a round", "build_cpu": "building the problem"}),
            (memory, {"peak": "at most, building and running", "bytes": "the problem"}),
        ):
            for (quantity, label), colour in zip(quantities.items(), plots.COLOURS.values(), strict=False):
                values = np.array([row[quantity] for row in rows])
                shown = values / (1 if axis is time else 2**30)
                axis.loglog(agents, shown, "o-", markersize=4, color=colour, label=label)
            top = np.asarray(axis.get_lines()[0].get_ydata())[-1]
            axis.loglog(agents, top * agents / agents[-1], ":", color="0.4", label="slope 1")
            axis.set_xlabel("number of agents $M$")
            axis.grid(axis="y")
            axis.legend(loc="upper left")
        time.set_ylabel("seconds of CPU time")
        memory.set_ylabel("memory, GiB")
        figure.suptitle(
            f"FedHSA on the quadratic problem: $d = 10$, $H = {LOCAL_STEPS}$, one seed, float64", fontsize=9
        )
    plots.save(figure, path)


def main(settings: Settings) -> None:
    if settings.quick:
        settings = replace(settings, agents=(20, 40), td=20, then=(20,), out=settings.out / "quick")
    console, where = Console(), machine()
    new = ROOT / "src"
    scaling = [measure(new, "quadratic", agents, ROUNDS) for agents in track(settings.agents, "running")]
    built = [measure(new, name, settings.td) for name in track(("td", "finite-sum"), "building")]
    before = []
    with other(Revisions(against=settings.against)) if settings.then else contextlib.nullcontext() as old:
        for agents in track(settings.then, "before"):
            # Beyond a few hundred agents the other revision has no balanced kernel for some agents of the finite sum.
            sizes = {"quadratic": agents, "td": max(2, agents // 10), "finite-sum": max(2, min(agents // 10, 100))}
            for name, size in sizes.items():
                sides = [measure(side, name, size) for side in (old or new, new)]
                before.append({"then": sides[0], "now": sides[1]})
    rows = show(console, scaling, built, before)
    report = {"settings": asdict(settings), "scaling": scaling, "built": built, "before": before}
    write(__file__, settings.out, where, report, {"": rows})
    plot(scaling, settings.out / "agents.png")


def show(console: Console, scaling: list[dict], built: list[dict], before: list[dict]) -> list[tuple[str, ...]]:
    columns = (
        "problem",
        "agents",
        "building, CPU s",
        "problem, GiB",
        "peak of building / problem",
        "a round, CPU s",
        "peak, GiB",
    )
    table = Table(*columns)
    rows: list[tuple[str, ...]] = [columns]
    for row in [*scaling, *built]:
        cells = [f"{row['build_cpu']:.1f}", f"{row['bytes'] / 2**30:.3f}", f"{row['build_peak'] / row['bytes']:.2f}"]
        more = [f"{row['round_cpu']:.3g}", f"{row['peak'] / 2**30:.2f}"] if "peak" in row else ["", ""]
        rows.append((row["problem"], f"{row['agents']:,}", *cells, *more))
        table.add_row(*rows[-1])
    console.print(table)
    table = Table("problem", "agents", "building then, CPU s", "now", "then / now")
    for row in before:
        then, now = row["then"], row["now"]
        cells = [f"{side['build_cpu']:.2f}" for side in (then, now)]
        table.add_row(then["problem"], str(then["agents"]), *cells, f"{then['build_cpu'] / now['build_cpu']:.1f}")
    console.print(table)
    return rows


if __name__ == "__main__":
    main(tyro.cli(Settings))

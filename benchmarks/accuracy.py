"""The accuracy of predictions: laws against enumeration and on random problems, predictions against simulations.

Cases and references are those of `tests/theory`, and share no code with the laws.
"""

import functools
import itertools
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track

from machine import RESULTS, cores, machine, show, write

sys.path.append(str(Path(__file__).parents[1] / "tests"))

LAWS = {
    "all agents": "EverySiteLaw",
    "one site": "EachSiteLaw",
    "with pairs": "TwoSitesLaw",
}
RANDOM = ("FedHSA({step}, {H})", "LocalSA({step}, {H})", "SCAFFLSA({step}, {H})", "SCAFFOLD({step}, {H})")
RANDOM += ("OneExchangeFedHSA({step}, {H})", "FedLin({step}, {H})", "Scaffnew({step}, 0.3)")
NUMBER, KEY, ROUNDING, MOST = 1000, 2026, 1e-7, 3e8
"""The number of random problems, their key, the errors that do not count, and the multiplications of an exact round."""
STAY = {"iid": "independent", "fast": "stay 0", "lazy": "stay .7", "sticky": "stay .9"}


@dataclass(frozen=True)
class Settings:
    """Compares predictions with enumeration and with recorded simulations, and writes accuracy.json: minutes."""

    every: int = 1
    """one of so many random problems and logistic regressions; of the latter, all with 16 agents"""
    workers: int = cores()
    """the number of processes"""
    out: Path = RESULTS
    """the folder to write to"""


def enumerated(case: tuple) -> dict[str, float] | None:
    """Returns each law's relative error of the floor, or None where the mean square diverges."""
    from fedhsa.theory.laws import levels
    from theory import bets, test_bets

    family, M, (stay, method, H, eta) = case
    found = {}
    for name, kind in LAWS.items():
        law, exact, _ = test_bets.nearly(getattr(levels, kind), bets.tiny(family, M, stay), method, H, eta)
        if exact.mean_square_radius >= 1:
            return None
        stable = law.mean_square_radius().value < 1
        found[name] = abs(law.stationary().square / exact.floor - 1) if stable else np.nan
    return found


def drawn(rng: np.random.Generator) -> Any:
    """Returns a random problem of three to five heterogeneous agents, with chains and noise of any strength."""
    from fedhsa.problems import finite_sum, td

    M, d, stay = int(rng.integers(3, 6)), int(rng.integers(1, 3)), 1 - 10 ** rng.uniform(-2.2, -0.3)
    S = 3 if M == 3 and rng.random() < 0.5 else 2
    if rng.random() < 0.5:
        P = stay * np.eye(S) + (1 - stay) * rng.dirichlet(np.full(S, 2.0), (M, S))
        return td.from_arrays(P, rng.uniform(0, 2, (M, S)), rng.normal(size=(M, S, d)), rng.uniform(0.3, 0.9, M))
    Q, spread = np.linalg.qr(rng.normal(size=(M, S, d, d)))[0], rng.uniform(0.2, 2.0)
    slopes = rng.uniform(0.3, 1.2, (M, 1, 1, d)) + spread * rng.uniform(-1, 1, (M, S, 1, d))
    turns = np.stack([np.roll(np.eye(S), k, axis=1) for k in range(S)])
    P = stay * np.eye(S) + (1 - stay) * np.einsum("ik,kab->iab", rng.dirichlet(np.full(S, 2.0), M), turns)
    return finite_sum.from_arrays((Q * slopes) @ np.swapaxes(Q, -1, -2), rng.normal(size=(M, S, d)), P)


def random(number: int) -> dict[str, tuple[float, float]] | None:
    """Returns the error and `left_out` of laws on a random problem; None if it diverges or takes long.

    A law that finds a problem stable whose mean square diverges has an infinite error.
    """
    from fedhsa.algorithms import parse
    from fedhsa.theory.laws.law import federation_of
    from fedhsa.theory.laws.levels import EachSiteLaw, EverySiteLaw, TwoSitesLaw

    rng = np.random.default_rng([KEY, number])
    problem, method, H, step = drawn(rng), rng.choice(RANDOM), rng.choice([1, 2, 5, 10]), 10 ** rng.uniform(-2, -0.3)
    for smaller in (1, 0.5, 0.25, 0.1):
        words = method.format(step=step * smaller, H=H)
        federation = federation_of(problem, parse(words, problem))
        if federation.work(problem.num_agents) > MOST:
            return None
        exact, laws = EverySiteLaw(federation), {"one site": EachSiteLaw(federation), "pairs": TwoSitesLaw(federation)}
        radius = exact.mean_square_radius().value
        if not radius < 1 and any(law.stable() for law in laws.values()):
            return {name: (np.inf if law.stable() else 0.0, 0.0) for name, law in laws.items()}
        if radius < 0.999 and all(law.mean_square_radius().value < 1 for law in laws.values()):
            floor = exact.stationary().square
            return {name: (abs(law.stationary().square / floor - 1), law.left_out) for name, law in laws.items()}
    return None


def of_random(found: list[dict[str, tuple[float, float]] | None]) -> list[tuple[str, ...]]:
    """Returns how often `left_out` covers the error, how far it is below it at most, and how often it warns."""
    heads = ("law", "problems", "covered, %", "largest error / `left_out`", "median error, %", "errors above 3 %, %")
    rows: list[tuple[str, ...]] = [(*heads, "warnings, %", "errors above 5 % without a warning")]
    for name in ("one site", "pairs"):
        error, said = np.array([both[name] for both in found if both is not None]).T
        ratio = np.where(error < ROUNDING, 0.0, error / np.maximum(said, ROUNDING))
        covered, wrong, warned = (f"{100 * share.mean():.1f}" for share in (ratio <= 1, error > 0.03, said > 0.03))
        silent, middle = str(((error > 0.05) & (said <= 0.03)).sum()), f"{100 * np.median(error):.3f}"
        rows.append((name, str(len(error)), covered, f"{ratio.max():.1f}", middle, wrong, warned, silent))
    return rows


def simulated(case: Any) -> dict[str, float]:
    """Returns the relative difference of a predicted floor from the simulated one, and the latter's standard error."""
    from theory import test_bets

    prediction, _ = test_bets.predicted(case)
    run = test_bets.recorded()[case.name]
    off, noise = abs(prediction.floor / run["floor"] - 1), run["floor_se"] / run["floor"]
    return {"off": off, "noise": noise}


def logistic(case: Any) -> dict[str, float]:
    """Returns a predicted floor of a logistic regression relative to simulation, and `left_out`."""
    from theory import logistic_runs, test_nonlinear

    prediction, _ = test_nonlinear.predicted(case)
    run = logistic_runs.recorded()[str(case)]
    floor, noise = run["floor"][0], run["floor_se"][0]
    return {"ratio": prediction.floor / floor, "noise": noise / floor, "left_out": prediction.left_out}


def of_enumeration(cases: list[tuple], found: list[dict | None]) -> list[tuple[str, ...]]:
    """Returns the median and the largest error of each law, by the number of agents and the chance to stay."""
    rows: list[tuple[str, ...]] = [("$M$", "stay", "cases", *LAWS)]
    for M, stay in sorted({(M, stay) for _, M, (stay, *_) in cases}):
        chosen = [f for (_, m, (s, *_)), f in zip(cases, found, strict=True) if (m, s) == (M, stay) and f is not None]
        errors = {name: np.array([f[name] for f in chosen]) for name in LAWS}
        cells = (f"{short(np.nanmedian(e))} / {short(np.nanmax(e))}" for e in errors.values())
        rows.append((str(M), f"{stay:g}", str(len(chosen)), *cells))
    return rows


def of_simulation(cases: list[Any], found: list[dict]) -> list[tuple[str, ...]]:
    """Returns the median and the largest difference, for kinds of agents."""
    heads = ("agents", "cases", "standard error, %", "median difference, %", "largest, %")
    rows: list[tuple[str, ...]] = [heads]
    kinds = {"fast": "heterogeneous, fast chains", "lazy": "heterogeneous, lazy chains (.9)"}
    kinds |= {"equal": "equal, stay .9", "harsh": "noise beyond the mean slope, stay .95"}
    for kind, M in sorted({(case.kind, case.M) for case in cases}, key=lambda k: (list(kinds).index(k[0]), k[1])):
        those = [f for case, f in zip(cases, found, strict=True) if (case.kind, case.M) == (kind, M)]
        off = 100 * np.array([f["off"] for f in those])
        percents = (100 * np.median([f["noise"] for f in those]), np.median(off), off.max())
        rows.append((f"{M}, {kinds[kind]}", str(len(those)), *(f"{p:.2f}" for p in percents)))
    return rows


def of_logistic(cases: list[Any], found: list[dict]) -> dict[str, list[tuple[str, ...]]]:
    """Returns the floors of 16 agents relative to simulation, and a summary of all."""
    by_case = dict(zip(cases, found, strict=True))
    columns = [(method, sampling) for method in ("FedHSA", "LocalSA") for sampling in ("iid", "lazy", "sticky")]
    heads = (f"{method}: {STAY[sampling]}" if sampling == "iid" else STAY[sampling] for method, sampling in columns)
    ratios: list[tuple[str, ...]] = [("$(\\eta, H)$", *heads, "`left_out`, %")]
    for setting in sorted({(c.step_size, c.H) for c in cases}):
        row = [by_case[case] for c in columns for case in cases if case == (16, c[1], c[0], *setting)]
        if len(row) == len(columns):
            ends = [100 * end([f["left_out"] for f in row]) for end in (min, max)]
            ratios.append((str(setting), *(f"{f['ratio']:.2f}" for f in row), "{:.0f} to {:.0f}".format(*ends)))
    summary: list[tuple[str, ...]] = [("agents", "cases", "median difference of the floor, %", "largest, %")]
    summary[0] += ("covered by `left_out`",)
    for M in dict.fromkeys(case.M for case in cases):
        those = [f for case, f in by_case.items() if case.M == M]
        off = 100 * abs(np.array([f["ratio"] for f in those]) - 1)
        covered = sum(abs(f["ratio"] - 1) <= f["left_out"] + 2 * f["noise"] for f in those)
        summary.append((str(M), str(len(those)), f"{np.median(off):.1f}", f"{off.max():.1f}", str(covered)))
    return {"logistic": ratios, "logistic_all": summary}


def short(number: float) -> str:
    """Returns one digit, as 3e-4 or 0.04."""
    return f"{number:.1g}" if number >= 1e-3 else f"{number:.0e}".replace("e-0", "e-")


def quietly(function: Callable, case: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(case)


def main(settings: Settings) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from theory import bets, logistic_runs, test_bets

    console, where = Console(), machine()
    cases = {
        enumerated: list(itertools.product(test_bets.FAMILIES, (2, 4), test_bets.TINY)),
        random: range(0, NUMBER, settings.every),
        simulated: bets.MANY + bets.EQUAL + bets.HARSH,
        logistic: [c for k, c in enumerate(logistic_runs.CASES) if c.M == 16 or k % settings.every == 0],
    }
    found = {}
    with multiprocessing.get_context("spawn").Pool(settings.workers) as pool:
        for function, those in cases.items():
            work = pool.imap(functools.partial(quietly, function), those)
            found[function] = list(track(work, function.__name__, total=len(those), console=console))
    tables = {
        "enumerated": of_enumeration(cases[enumerated], found[enumerated]),
        "random": of_random(found[random]),
        "simulated": of_simulation(cases[simulated], found[simulated]),
        **of_logistic(cases[logistic], found[logistic]),
    }
    for table in tables.values():
        show(table, console)
    report = {
        function.__name__: [(str(c), f) for c, f in zip(cases[function], found[function], strict=True)]
        for function in cases
    }
    write(__file__, settings.out, where, report, tables)


if __name__ == "__main__":
    main(tyro.cli(Settings))

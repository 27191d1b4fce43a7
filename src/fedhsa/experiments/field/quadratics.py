"""SCAFFOLD's two quadratics: gradient dissimilarity and local steps for `LocalSA`, SCAFFOLD and `FedHSA`."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from ..._linear import spectral_radius
from ...algorithms import SCAFFOLD, AbstractAlgorithm, FedHSA, LocalSA, SynchronisedSA
from ...problems import Problem, quadratic
from ..study import AbstractStudy, Checks, Outcome, Runner, Table, figures, rows_of

FIRST, LAST = 1e-8, 1e-24
"""The squared errors between which speeds are measured: after the start, and before rounding errors dominate."""
STALLED = 0.999
"""A run has stalled if its squared error is not below this multiple of the squared error in its middle."""
SAME = 0.1
"""The relative difference up to which two speeds count as equal: periods of oscillations are not whole rounds."""
METHODS: dict[str, Callable[..., AbstractAlgorithm]] = {
    "LocalSA": LocalSA,
    "SCAFFOLD": lambda step, local_steps: SCAFFOLD(step, local_steps=local_steps, option=2),
    "FedHSA": FedHSA,
}
NAMES = {"LocalSA": "LocalSA (FedAvg)", "SCAFFOLD": "SCAFFOLD", "FedHSA": "FedHSA"}


class Quadratics(AbstractStudy):
    r"""$f_1 = \frac\beta2 x^2 + G x$ and $f_2 = -G x$, whose average has its minimum at 0 for every $G$."""

    name: str = "field/quadratics"
    title: str = "SCAFFOLD's two quadratics"
    source: str = "Figure 3 of SCAFFOLD"
    seeds: int = 1
    """One seed suffices, since nothing is random."""
    smoothness: float = 1.0
    r"""The smoothness $\beta$."""
    dissimilarities: tuple[float, ...] = (1.0, 10.0, 100.0)
    local_steps: tuple[int, ...] = (2, 10)
    common_step: float = 0.225
    r"""The step size of all methods in the comparison of curves, times $1/\beta$; the source does not state a value."""
    tried_steps: tuple[float, ...] = (0.025, 0.05, 0.1, 0.15, 0.2, 0.225, 0.25, 0.3, 0.4)
    """Common step sizes at which speeds are compared."""
    halvings: int = 17
    r"""The number of halvings: tuned step sizes are $1/\beta$, halved up to this number of times."""
    target: float = 0.01
    """The target distance of tuned methods to the minimum, relative to the initial distance."""
    most_rounds: int = 100_000
    """The number of rounds after which a step size is rejected; a stalled run is rejected earlier."""

    claim: ClassVar[int] = 15
    figure_size: ClassVar[tuple[float, float]] = (7.2, 5.2)
    quick_settings: ClassVar[dict[str, Any]] = {
        "dissimilarities": (1.0, 10.0),
        "tried_steps": (0.1, 0.225),
        "halvings": 13,
        "most_rounds": 10_000,
    }

    def seconds(self) -> float:
        return 12.0 + 0.1 * len(self.dissimilarities) * self.halvings + 2e-4 * self.most_rounds

    def run(self, runner: Runner) -> Outcome:
        arrays, rows = {}, []
        for G in self.dissimilarities:
            problem = self._problem(G)
            for label, method, K in self._curves():
                make = _maker(method, K)
                arrays[f"{label} {G:g}"] = self._follow(runner, problem, make(self.common_step), self.common_step)
                rows.append({"method": method, "K": K, "G": G} | self._tune(runner, problem, make))
        problem = self._problem(self.dissimilarities[0])
        speeds: dict[str, list[float]] = {label: [] for label, _, _ in self._curves() if "LocalSA" not in label}
        for step in self.tried_steps:
            for label, method, K in self._curves():
                if label in speeds:
                    error = self._follow(runner, problem, _maker(method, K)(step), step)
                    speeds[label].append(1 / rounds_between(error))
        return Outcome(arrays, {"rows": rows, "speeds": speeds})

    def _curves(self) -> list[tuple[str, str, int]]:
        """Returns the label, method and local steps of every curve."""
        return [("SGD", "SGD", 1)] + [(f"{method} {K}", method, K) for K in self.local_steps for method in METHODS]

    def _problem(self, G: float) -> Problem:
        A = np.array([[[self.smoothness]], [[0.0]]])
        return quadratic.from_arrays(A, np.array([[-G], [G]])).noiseless()

    def _follow(self, runner: Runner, problem: Problem, algorithm: AbstractAlgorithm, step: float) -> np.ndarray:
        """Returns squared errors at a common step size, until SGD falls below the last relevant error."""
        needed = math.log(LAST) / (2 * math.log(1 - step / 2))
        scaled = dataclasses.replace(algorithm, step_size=step / self.smoothness)  # pyright: ignore[reportArgumentType]
        return runner.simulate(problem, scaled, rounds=math.ceil(1.2 * needed), theta=np.ones(1)).error[0]

    def _tune(self, runner: Runner, problem: Problem, make: Callable[[float], AbstractAlgorithm]) -> dict[str, Any]:
        """Returns the step size with the fewest rounds to the target, and these rounds; None if it is not reached."""
        best: dict[str, Any] = {"step": None, "rounds": None}
        for step in 0.5 ** np.arange(self.halvings + 1) / self.smoothness:
            limit = best["rounds"] or self.most_rounds
            rounds = self._reach(runner, problem, make(float(step)), limit)
            if rounds is not None and (best["rounds"] is None or rounds < best["rounds"]):
                best = {"step": float(step), "rounds": rounds}
            elif best["rounds"] is not None:
                break  # all further step sizes are too small
        return best

    def _reach(self, runner: Runner, problem: Problem, algorithm: AbstractAlgorithm, limit: int) -> int | None:
        rounds = min(500, limit)
        while True:
            error = runner.simulate(problem, algorithm, rounds=rounds, theta=np.ones(1)).error[0]
            if error[-1] <= self.target**2:
                return last_above(error, self.target**2) + 1
            if rounds == limit or not error[-1] < STALLED * error[rounds // 2]:
                return None
            rounds = min(4 * rounds, limit)

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        grid, first, n = figure.add_gridspec(2, 6), None, len(self.dissimilarities)
        for k, G in enumerate(self.dissimilarities):
            ax = figure.add_subplot(grid[0, 6 * k // n : 6 * (k + 1) // n], sharey=first)
            first = first or ax
            for label, method, K in self._curves():
                error = outcome.arrays[f"{label} {G:g}"][:200]
                ax.plot(figures.drawable(np.maximum(error, 1e-30)), **self._look(method, K))
            ax.set(yscale="log", ylim=(1e-20, 1e8), xlabel="communication round", title=f"$G$ = {G:g}")
            ax.set_ylabel("" if k else r"$|x - x^{{\star}}|^2$")
            ax.tick_params(labelleft=not k)
        tuned = figure.add_subplot(grid[1, :3])
        for _, method, K in self._curves():
            chosen = rows_of(outcome, method=method, K=K)
            rounds = [math.nan if row["rounds"] is None else row["rounds"] for row in chosen]
            tuned.plot([row["G"] for row in chosen], rounds, marker="o", markersize=3.5, **self._look(method, K))
        tuned.set(xscale="log", yscale="log", xlabel="dissimilarity $G$", ylabel="rounds to the target, tuned")
        self._plot_speeds(figure.add_subplot(grid[1, 3:]), outcome)
        entries = {
            "SGD" if method == "SGD" else f"{NAMES[method]}, K = {K}": self._look(method, K)
            for _, method, K in self._curves()
        }
        figures.legend(figure, entries | {"predicted": figures.dashed()}, 4)

    def _plot_speeds(self, ax: figures.Axes, outcome: Outcome) -> None:
        fine = np.linspace(min(self.tried_steps), max(self.tried_steps), 200)
        for label, method, K in self._curves():
            if label == "SGD" or label not in outcome.facts["speeds"]:
                continue
            colour = self._look(method, K)["color"]
            face = colour if self.local_steps[-1] == K else "white"
            ax.plot(self.tried_steps, speedups(outcome, label), **figures.dots(colour, face=face))
            radius = np.array([RADII[method](step, K) for step in fine])
            figures.theory(ax, fine, np.log(np.maximum(radius, 1e-12)) / np.log(1 - fine / 2), colour)
        ax.axvline(self.common_step, color="0.55", linewidth=0.8, zorder=0)
        ax.set(yscale="log", ylim=(1, 60), xlabel=r"common step, times $1/\beta$", ylabel="times as fast as SGD")
        ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        ax.minorticks_off()

    def _look(self, method: str, K: int) -> dict[str, Any]:
        colour = figures.colours(["LocalSA", "FedHSA", "SCAFFOLD"]).get(method, "black")
        dashes = (0, (1, 1)) if method == "SGD" else "-" if self.local_steps[-1] == K else (0, (5, 1.5))
        return {"color": colour, "linestyle": dashes}

    def summary(self, outcome: Outcome) -> list[str]:
        common = self.tried_steps.index(self.common_step)
        speed = {label: speedups(outcome, label)[common] for label in outcome.facts["speeds"]}
        few, many = self.local_steps[0], self.local_steps[-1]
        spread = speedups(outcome, f"SCAFFOLD {many}")
        tuned = {(row["method"], row["K"], row["G"]): row for row in outcome.facts["rows"]}
        low, high = self.dissimilarities[0], self.dissimilarities[-1]

        def said(method: str, K: int, G: float) -> str:
            rounds = tuned[method, K, G]["rounds"]
            return f"more than {self.most_rounds}" if rounds is None else str(rounds)

        return [
            f"At one step for all, {self.common_step:g} / beta, SCAFFOLD is {speed[f'SCAFFOLD {few}']:.2f} times as "
            f"fast as SGD with K = {few} and {speed[f'SCAFFOLD {many}']:.2f} times with K = {many} (its paper says "
            "twice and about five times; the step was chosen because both appear there), FedHSA "
            f"{speed[f'FedHSA {few}']:.2f} and {speed[f'FedHSA {many}']:.1f} times. The factor depends on the step: "
            f"with K = {many} SCAFFOLD's goes from {min(spread):.1f} to {max(spread):.1f} over common steps from "
            f"{min(self.tried_steps):g} to {max(self.tried_steps):g} / beta, as spectral radii say.",
            f"With tuned steps Local SA needs {said('LocalSA', few, low)} rounds at G = {low:g} and "
            f"{said('LocalSA', few, high)} at G = {high:g} with K = {few}, and {said('LocalSA', many, low)} and "
            f"{said('LocalSA', many, high)} with K = {many}: its bias, in proportion to G, leaves it only small steps.",
            f"SCAFFOLD's speed does not depend on G, but its start does: its controls begin at 0, so that its first "
            f"round is one of Local SA. Tuned up to 1 / beta it needs {said('SCAFFOLD', few, low)} to "
            f"{said('SCAFFOLD', few, high)} rounds with K = {few} and {said('SCAFFOLD', many, low)} to "
            f"{said('SCAFFOLD', many, high)} with K = {many}, SGD {said('SGD', 1, low)}: with tuned steps it gains "
            f"nothing here. FedHSA needs {said('FedHSA', few, low)} and {said('FedHSA', many, low)}, on the same path "
            "for every G, at two exchanges per round.",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        few, many = self.local_steps[0], self.local_steps[-1]
        tuned = {(r["method"], r["K"], r["G"]): r["rounds"] or self.most_rounds for r in outcome.facts["rows"]}
        low, high = self.dissimilarities[0], self.dissimilarities[-1]
        worst = 0.0
        for K in self.local_steps:
            for G in self.dissimilarities:
                expected = local_limit(self.common_step, K, G / self.smoothness)
                limit = math.sqrt(outcome.arrays[f"LocalSA {K} {G:g}"][-1])
                worst = max(worst, abs(limit / expected - 1))
        statement = "Local SA at the common step, all K and G: relative difference of its limit from the closed form"
        checks.at_most("Local SA, limit", statement, worst, 1e-6)
        for K in self.local_steps:
            part = tuned["LocalSA", K, low] / tuned["LocalSA", K, high]
            statement = f"Local SA, K = {K}, tuned: rounds at G = {low:g} relative to those at G = {high:g}"
            checks.at_most(f"Local SA, K = {K}, slower with G", statement, part, 2 * low / high)
        part = tuned["LocalSA", few, high] / tuned["LocalSA", many, high]
        statement = f"Local SA, G = {high:g}, tuned: rounds with K = {few} relative to those with K = {many}"
        checks.at_most("Local SA, slower with K", statement, part, 0.9)
        for K in self.local_steps:
            speeds = [rounds_between(outcome.arrays[f"SCAFFOLD {K} {G:g}"]) for G in self.dissimilarities]
            statement = f"SCAFFOLD, K = {K}: largest relative difference of its speeds between values of G"
            name = f"SCAFFOLD, K = {K}, same speed for all G"
            checks.at_most(name, statement, max(speeds) / min(speeds) - 1, SAME)
            paths = np.stack([outcome.arrays[f"FedHSA {K} {G:g}"][:11] for G in self.dissimilarities])
            off = float(abs(paths / paths[0] - 1).max())
            statement = f"FedHSA, K = {K}: largest relative difference of ten rounds between values of G"
            checks.at_most(f"FedHSA, K = {K}, same path for all G", statement, off, 1e-6)
        for K in self.local_steps:
            for method in RADII:
                off = max(abs(x / y - 1) for x, y in self._speeds(outcome, method, K))
                statement = (
                    f"{method}, K = {K}: largest relative difference of how many times as fast as SGD it is from what "
                    f"spectral radii say, at {len(self.tried_steps)} common steps"
                )
                checks.at_most(f"{method}, K = {K}, speed", statement, off, SAME)

    def _speeds(self, outcome: Outcome, method: str, K: int) -> Iterator[tuple[float, float]]:
        """Yields the speed-up over SGD, measured and from the spectral radius, at each common step size."""
        for step, measured in zip(self.tried_steps, speedups(outcome, f"{method} {K}"), strict=True):
            yield measured, math.log(RADII[method](step, K)) / math.log(1 - step / 2)

    def table(self, outcome: Outcome) -> Table:
        rows = outcome.facts["rows"]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def notes(self) -> list[str]:
        return [
            "Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, SCAFFOLD: Stochastic Controlled Averaging for "
            "Federated Learning, ICML 2020, arXiv:1910.06378, sections 7.1 and 7.2.",
            "The source takes N = 2 quadratics 'based on' its lower bound, with smoothness 1, and gives no formula in "
            "its main text. Ours are $f_1 = x^2 / 2 + G x$ and $f_2 = -G x$ from $x = 1$, the functions of that bound "
            "as we know them, with Hessians 1 and 0.",
            "The source tunes steps and does not print them. On a function of one parameter a tuned step has no limit "
            "(SGD at 2 / beta needs one round), so tuned steps end at 1 / beta; the factors two and five are "
            f"read at one step for all methods, {self.common_step:g} / beta, chosen because both appear there "
            "together. Speeds are rounds from squared errors of 1e-8 to 1e-24.",
            f"The target of tuned steps is {self.target:g} of the distance at the start. SCAFFOLD is option II, with "
            "controls that begin at 0.",
        ]


def local_limit(step: float, K: int, G: float) -> float:
    r"""Returns the limit of `LocalSA`, $G\,(\eta K / (1 - (1-\eta)^K) - 1)$, for $\beta = 1$.

    !!! example
        >>> local_limit(0.5, 1, 10.0), round(local_limit(0.5, 2, 10.0), 4)
        (0.0, 3.3333)
    """
    return G * (step * K / (1 - (1 - step) ** K) - 1)


def fed_radius(step: float, K: int) -> float:
    r"""Returns the factor per round of FedHSA, $|3 + r - \eta K| / 4$ with $r = (1-\eta)^K$, for $\beta = 1$."""
    return abs(3 + (1 - step) ** K - step * K) / 4


def scaffold_radius(step: float, K: int) -> float:
    r"""Returns the factor per round of SCAFFOLD: the spectral radius of its map of error and shift, for $\beta = 1$.

    !!! example
        >>> round(scaffold_radius(0.25, 2), 3)
        0.762
    """
    r = (1 - step) ** K
    q = (1 - r) / (step * K)
    transition = np.array([[1 + r, 1 - r - step * K], [q, 1 - q]]) / 2
    return spectral_radius(transition)


RADII = {"SCAFFOLD": scaffold_radius, "FedHSA": fed_radius}


def speedups(outcome: Outcome, label: str) -> list[float]:
    """Returns the speed-up over SGD at every common step size."""
    speeds = outcome.facts["speeds"]
    return [float(fast / slow) for fast, slow in zip(speeds[label], speeds["SGD"], strict=True)]


def rounds_between(error: np.ndarray) -> int:
    """Returns the rounds from the first relevant squared error to the last; both are passed permanently."""
    return last_above(error, LAST) - last_above(error, FIRST)


def last_above(error: np.ndarray, level: float) -> int:
    """Returns the last record above the level."""
    return int(np.flatnonzero(error > level)[-1])


def _maker(method: str, K: int) -> Callable[[float], AbstractAlgorithm]:
    if method == "SGD":
        return SynchronisedSA
    return lambda step: METHODS[method](step, local_steps=K)

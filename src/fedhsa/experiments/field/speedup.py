"""SCAFFLSA's speed-up: its error at stationarity with up to a thousand agents, next to FedHSA's error."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ...algorithms import SCAFFLSA, AbstractAlgorithm, FedHSA
from ...problems import Problem, garnet
from ..study import AbstractStudy, Checks, Outcome, Runner, Table, columns, figures, repeated

METHODS: dict[str, Callable[..., AbstractAlgorithm]] = {"SCAFFLSA": SCAFFLSA, "FedHSA": FedHSA}
SLACK = 0.03
"""The tolerance of slopes around -1: noise in the operators' matrices adds terms of second order in 1/N."""


class Speedup(AbstractStudy):
    """Copies of a cohort in Garnet environments with independent noise: only the number of agents changes."""

    name: str = "field/speedup"
    title: str = "SCAFFLSA's speed-up"
    source: str = "The speed-up experiments of SCAFFLSA"
    seeds: int = 16
    problem_key: int = 0
    equal_agents: tuple[int, ...] = (1, 10, 100, 1000)
    """The numbers of agents that are copies of one agent."""
    heterogeneous_agents: tuple[int, ...] = (10, 100, 1000)
    """The numbers of agents that are copies of a cohort of ten, five in each of two environments."""
    step_size: float = 1.0
    local_steps: tuple[int, ...] = (10, 100)
    samples: int = 4000
    """The number of samples of each agent; errors count from the second third on."""

    claim: ClassVar[int] = 12
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)
    quick_settings: ClassVar[dict[str, Any]] = {
        "equal_agents": (1, 10, 100, 400),
        "heterogeneous_agents": (10, 100),
        "local_steps": (10,),
        "samples": 8000,
    }

    def seconds(self) -> float:
        agents = sum(self.equal_agents) + sum(self.heterogeneous_agents)
        runs = len(self.local_steps) * len(METHODS)
        programs = 2.0 * len(self.equal_agents + self.heterogeneous_agents)
        return runs * (programs + 1.5e-7 * agents * self.samples * self.seeds)

    def sweeps(self) -> dict[str, tuple[int, ...]]:
        """Returns the numbers of agents of each setting."""
        return {"equal": self.equal_agents, "heterogeneous": self.heterogeneous_agents}

    def cohort(self, setting: str) -> Problem:
        """Returns the cohort that is repeated; transitions are independent, as in the source's code."""
        if setting == "equal":
            return garnet.random(1, kernels=1, key=self.problem_key).iid()
        return garnet.random(10, kernels=2, key=self.problem_key).iid()

    def run(self, runner: Runner) -> Outcome:
        arrays = {}
        for setting, numbers in self.sweeps().items():
            cohort = self.cohort(setting)
            problems = [repeated(cohort, N // cohort.num_agents) for N in numbers]
            for H in self.local_steps:
                rounds = self.samples // H
                for name, method in METHODS.items():
                    found = []
                    for problem in problems:
                        settings = {"rounds": rounds, "seeds": self.seeds, "key": self.key}
                        algorithm = method(self.step_size, local_steps=H)
                        error = runner.simulate(problem, algorithm, theta=problem.theta_star, **settings).error
                        found.append(error[:, rounds // 3 :].mean(1))
                    arrays[f"{setting}, H = {H}/{name}"] = np.stack(found)
        return Outcome(arrays, {})

    def slope(self, outcome: Outcome, label: str) -> statistics.Estimate:
        """Returns the slope of the error in the number of agents, on logarithmic axes."""
        first, numbers = len(self._alone(label)), self.sweeps()[label.split(",")[0]]
        return statistics.slope(numbers[first:], outcome.arrays[label][first:])

    def _alone(self, label: str) -> tuple[int, ...]:
        """Returns the counts that a slope omits: a single agent has no other agents to correct it in FedHSA."""
        numbers = self.sweeps()[label.split(",")[0]]
        return tuple(N for N in numbers if N == 1 and label.endswith("/FedHSA"))

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for label in outcome.arrays:
            where, method = label.split("/")
            numbers = ", ".join(str(N) for N in self.sweeps()[where.split(",")[0]] if N not in self._alone(label))
            statement = f"{method}, {where}, step {self.step_size:g}: slope of log error against log N, N = {numbers}"
            options: dict[str, Any] = {"slack": SLACK, "precision": 0.1, "relative": False}
            slope = self.slope(outcome, label)
            checks.equals(f"{where}, {method}", statement, slope, -1.0, **options)

    def summary(self, outcome: Outcome) -> list[str]:
        slopes = {label: self.slope(outcome, label) for label in outcome.arrays}
        said = "; ".join(f"{name.replace('/', ', ')} {s:.3f}" for name, s in slopes.items())
        times = []
        for H in self.local_steps:
            of_fed, of_other = (outcome.arrays[f"heterogeneous, H = {H}/{name}"][-1] for name in ("FedHSA", "SCAFFLSA"))
            times.append(f"{statistics.ratio(of_fed, of_other).value:.2f} at H = {H}")
        return [
            f"At stationarity errors fall as 1/N: slopes on logarithmic axes, with 99.9 % intervals, are {said}.",
            f"Between heterogeneous environments FedHSA's error is {' and '.join(times)} times SCAFFLSA's: it corrects "
            "the whole round by one observation of each agent.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for label, samples in outcome.arrays.items():
            where, method = label.split("/")
            for N, found in zip(self.sweeps()[where.split(",")[0]], figures.means(samples), strict=True):
                rows.append((where, method, N, *found))
        return columns(("setting", "method", "agents", "error", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Mangold et al., SCAFFLSA, NeurIPS 2024, arXiv:2402.04114: N = 1, 10, 100, 1000, steps from 0.001 to 1, "
            "H = 1, 10, 100, independent transitions in Garnet environments.",
            f"Ours is the step {self.step_size:g}: smaller ones take as many more samples to become stationary. Runs "
            f"start at the root, and errors are means over the last two thirds of {self.samples} samples per agent.",
            "The source draws a cohort for every N. Here one agent (equal) or one cohort of ten (heterogeneous) is "
            "repeated, each copy with observations of its own, so that N changes nothing but the averaging. Slopes may "
            f"be {SLACK:g} off -1: noise in the operators' matrices adds terms of second order in 1/N, most at N = 1.",
            "FedHSA with one agent is plain SA, without the correction's noise, and lies below the line of the others: "
            "its slopes begin at N = 10.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        looks, axes = figures.colours(list(METHODS)), figure.subplots(1, 2, sharex=True, sharey=True)
        titles = {"equal": "copies of one agent", "heterogeneous": "copies of ten heterogeneous agents"}
        markers = dict(zip(self.local_steps, "os^D", strict=False))
        for ax, (setting, title) in zip(axes, titles.items(), strict=True):
            numbers = np.array(self.sweeps()[setting])
            for H, marker in markers.items():
                for k, name in enumerate(METHODS):
                    colour = looks[name]
                    found = figures.means(outcome.arrays[f"{setting}, H = {H}/{name}"])
                    figures.points(ax, numbers, found, **figures.dots(colour, marker, 4.5 - k))
                    middle = math.exp(np.log([one.value for one in found] * numbers).mean())
                    figures.theory(ax, numbers, middle / numbers, colour, linewidth=0.8, zorder=1)
            ax.set(xscale="log", yscale="log", xlabel="number of agents $N$", title=title)
        axes[0].set_ylabel("error at stationarity")
        entries = {
            f"{name}, $H$ = {H}": figures.dots(looks[name], marker, 4.5)
            for name in METHODS
            for H, marker in markers.items()
        }
        figures.legend(figure, entries | {"slope -1": figures.dashed()}, 5)

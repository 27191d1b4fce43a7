"""QAvg: exact Bellman steps in unlike environments, averaged now and then, with decaying and with constant steps."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import statistics
from ...algorithms import AbstractAlgorithm, FedHSA, LocalSA, Polynomial
from ...environments import Model, worlds
from ...problems import Problem, q_learning
from ...statistics import Estimate
from ..study.base import AbstractExperiment, Outcome, Table, Watch
from ..study.checks import Check, at_most, inside
from ._shared import columns, max_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMMON_WIND = 0.5
START = 12
"""The lower left corner of the cliff."""


@dataclasses.dataclass(frozen=True)
class QAvg(AbstractExperiment):
    """Without noise: where the averaged values go, how fast, and what the policy is worth that follows from them."""

    name: str = "rl/qavg"
    title: str = "QAvg in unlike environments"
    source: str = "Figure 2 and Table 1 of Jin et al. on federated reinforcement learning"
    seeds: int = 10
    """Cohorts of random environments."""
    local_steps: tuple[int, ...] = (1, 4, 16)
    """E."""
    iterations: int = 6400
    step_size: float = 0.1
    """The constant one."""
    num_agents: int = 5
    num_states: int = 5
    num_actions: int = 5
    discount: float = 0.9
    kappas: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8)
    """How unlike the cliffs are."""
    cohorts: int = 1000
    """Of agents on windy cliffs."""

    quick_settings: ClassVar[dict[str, Any]] = {
        "local_steps": (1, 32),
        "iterations": 3200,
        "kappas": (0.0, 0.8),
    }

    def seconds(self) -> float:
        return 6.0 + 7.0 * len(self.local_steps) + 0.4 * self.seeds + 3e-3 * self.cohorts * len(self.kappas)

    def problem(self, cohort: int) -> Problem:
        """Random kernels that differ between the agents, and one table of rewards for all."""
        sizes = (self.num_agents, self.num_states, self.num_actions)
        model = worlds.random(*sizes, discount=self.discount, key=1000 * self.key + cohort)
        rewards = np.repeat(model.rewards[:1], self.num_agents, axis=0)
        return q_learning.from_model(Model(model.transitions, rewards, self.discount), synchronous=True).noiseless()

    def methods(self, E: int) -> dict[str, AbstractAlgorithm]:
        """QAvg's step in iteration t is 2 / ((1 - discount) (t + E)); `capped` does not begin above 1."""
        scale = 2 / ((1 - self.discount) * E)
        return {
            "printed": LocalSA(Polynomial(scale), local_steps=E),
            "capped": LocalSA(Polynomial(scale, offset=max(1.0, scale)), local_steps=E),
            "constant": LocalSA(self.step_size, local_steps=E),
            "FedHSA": FedHSA(self.step_size, local_steps=E),
        }

    def bound(self, E: int, iterations: np.ndarray) -> np.ndarray:
        """The source's."""
        return 16 * self.discount * E / ((1 - self.discount) ** 3 * (iterations + E))

    def run(self, watch: Watch) -> Outcome:
        arrays: dict[str, Any] = {}
        every = math.lcm(*self.local_steps)
        for cohort in range(self.seeds):
            problem = self.problem(cohort)
            for E in self.local_steps:
                for name, algorithm in self.methods(E).items():
                    settings = {"rounds": self.iterations // E, "every": every // E, "record": {"max": max_error}}
                    result = watch.simulate(problem, algorithm, **settings)
                    arrays.setdefault(f"{name}, E = {E}", []).append(result.records["max"][0])
        for kappa in self.kappas:
            watch.look()
            arrays[f"returns, {kappa:g}"], arrays[f"own, {kappa:g}"] = returns(
                self.num_agents, self.cohorts, kappa, self.key
            )
        return Outcome({name: np.stack(rows) for name, rows in arrays.items()}, {"every": every})

    def end(self, outcome: Outcome, name: str, E: int) -> np.ndarray:
        """The error at the end, of every cohort."""
        return outcome.arrays[f"{name}, E = {E}"][:, -1]

    def fall(self, outcome: Outcome, E: int) -> Estimate:
        """By which factor the error falls over the last three quarters, in which the iterations quadruple."""
        curve = outcome.arrays[f"capped, E = {E}"]
        return times(curve[:, curve.shape[1] // 4], curve[:, -1])

    def checks(self, outcome: Outcome) -> list[Check]:
        found, most, least = [], max(self.local_steps), min(self.local_steps)
        start = float(outcome.arrays[f"capped, E = {least}"][:, 0].mean())
        for E in self.local_steps:
            curve = outcome.arrays[f"capped, E = {E}"]
            at = outcome.facts["every"] * np.arange(curve.shape[1])
            worst = float((curve / self.bound(E, at)).max())
            statement = f"E = {E}, steps that do not begin above 1: largest error by the source's bound"
            found.append(at_most(26, f"{self.name}: bound, E = {E}", statement, worst, 1.0))
            statement = f"E = {E}, decaying steps: the error's fall when the iterations quadruple, 4 for one over them"
            fall = self.fall(outcome, E)
            found.append(inside(26, f"{self.name}: one limit, E = {E}", statement, fall, 1.5, math.inf))
        slower = times(self.end(outcome, "capped", most), self.end(outcome, "capped", least))
        statement = f"Decaying steps: error at the end, E = {most} by E = {least}"
        found.append(inside(26, f"{self.name}: slower with E", statement, slower, 1.0, math.inf))
        stalled = times(self.end(outcome, "constant", most), self.end(outcome, "capped", most))
        statement = f"E = {most}: error at the end, constant steps by decaying ones"
        found.append(inside(26, f"{self.name}: constant steps stop", statement, stalled, 1.0, math.inf))
        corrected = float(max(self.end(outcome, "FedHSA", E).max() for E in self.local_steps)) / start
        statement = "FedHSA with constant steps: largest error at the end, by that of the start"
        found.append(at_most(26, f"{self.name}: FedHSA", statement, corrected, 1e-6))
        low, high = min(self.kappas), max(self.kappas)
        worth = statistics.ratio(outcome.arrays[f"returns, {high:g}"], outcome.arrays[f"returns, {low:g}"])
        statement = f"Windy cliffs: return of the policy on average, kappa = {high:g} by {low:g}"
        found.append(inside(26, f"{self.name}: returns fall", statement, worth, -math.inf, 1.0))
        return found

    def tell(self, outcome: Outcome) -> list[str]:
        ends = [f"{self.end(outcome, 'capped', E).mean():.2g} with E = {E}" for E in self.local_steps]
        stops = [f"{self.end(outcome, 'constant', E).mean():.2g} with E = {E}" for E in self.local_steps if E > 1]
        falls = [f"{self.fall(outcome, E).value:.2f}" for E in self.local_steps]
        worst = []
        for E in self.local_steps:
            curve = outcome.arrays[f"printed, E = {E}"]
            part = (curve / self.bound(E, outcome.facts["every"] * np.arange(curve.shape[1]))).max()
            worst.append(f"{part:.2g} with E = {E}")
        worth = [f"{outcome.arrays[f'returns, {kappa:g}'].mean():.2f}" for kappa in self.kappas]
        corrected = max(self.end(outcome, "FedHSA", E).max() for E in self.local_steps)
        return [
            f"With QAvg's decaying steps, kept below 1, the largest error after {self.iterations} iterations is "
            f"{', '.join(ends)}, and falls by {', '.join(falls)} times when they quadruple: one limit, the optimal "
            "values of the averaged kernel. As printed the first steps are above 1 where E < "
            f"{2 / (1 - self.discount):.0f}, and the error is up to so many times the bound: {', '.join(worst)}.",
            f"With the constant step {self.step_size:g} Local SA stops at {', '.join(stops)}; FedHSA gets to "
            f"{corrected:.1g} for every E.",
            f"On windy cliffs the policy of the averaged environment earns {', '.join(worth)} at kappa = "
            f"{', '.join(f'{kappa:g}' for kappa in self.kappas)}.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows: list[tuple] = []
        for E in self.local_steps:
            for name in self.methods(E):
                rows.append((f"error, {name}", E, *statistics.mean(self.end(outcome, name, E), level=0.95)))
        for kappa in self.kappas:
            for name in ("returns", "own"):
                found = statistics.mean(outcome.arrays[f"{name}, {kappa:g}"], level=0.95)
                rows.append((f"{name} on cliffs", kappa, *found))
        return columns(("what", "E or kappa", "mean", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Jin, Peng, Yang, Wang and Zhang, Federated reinforcement learning with environment heterogeneity, AISTATS "
            "2022: 5 agents, 5 states and 5 actions (the default of its code), discount 0.9; windy cliffs of 4 x 4, "
            "discount 0.95. With the step 2 / ((1 - discount) (t + E)) its bound is 16 discount E / ((1 - discount)^3 "
            "(t + E)).",
            "Our step changes between rounds and not within them, from the value that the source's has at the start "
            "of the round. What is called capped begins with 1 where the source's would be larger, and goes on from "
            "there.",
            "The source's Table 1 has returns from 133.97 down to 133.65 on the cliffs. Ours begin there and fall "
            "more; why, we do not know. As in its code the first agent of a cohort has the common wind. The best "
            "policy of each agent's own cliff is `own` in the table.",
            "Intervals are over cohorts of environments: nothing else is random.",
        ]

    def draw(self, outcome: Outcome) -> "Figure":
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        from ...plots._style import STYLE, colours

        looks = dict(zip(self.local_steps, colours([f"E {E}" for E in self.local_steps]).values(), strict=True))
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(7.2, 2.8), layout="constrained")
            left, middle, right = figure.subplots(1, 3)
            self._draw_errors(left, outcome, {"capped": "-"}, looks)
            at = outcome.facts["every"] * np.arange(1, outcome.arrays[f"capped, E = {self.local_steps[0]}"].shape[1])
            left.plot(at, self.bound(max(self.local_steps), at), color="0.6", linestyle=":")
            left.set(title="decaying steps", xscale="log")
            self._draw_errors(middle, outcome, {"constant": "-", "FedHSA": "--"}, looks)
            middle.set(title=f"step {self.step_size:g}")
            self._draw_returns(right, outcome)
            handles = [Line2D([], [], color=colour) for colour in looks.values()]
            handles += [Line2D([], [], color="0.3", linestyle=style) for style in ("-", "--")]
            handles += [Line2D([], [], color="0.6", linestyle=":")]
            labels = [f"$E$ = {E}" for E in looks] + ["QAvg (Local SA)", "FedHSA", f"bound, $E$ = {max(looks)}"]
            figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)
        return figure

    def _draw_errors(self, ax: "Axes", outcome: Outcome, styles: dict[str, str], looks: dict[int, str]) -> None:
        from ...plots._style import drawable

        for name, style in styles.items():
            for E, colour in looks.items():
                curve = outcome.arrays[f"{name}, E = {E}"]
                at = outcome.facts["every"] * np.arange(curve.shape[1])
                ax.plot(at, drawable(curve.mean(0)), color=colour, linestyle=style)
        ax.set(yscale="log", xlabel="iteration", ylabel=r"$\|Q - Q^{\star}\|_\infty$")

    def _draw_returns(self, ax: "Axes", outcome: Outcome) -> None:
        for name, words, style in (("returns", "averaged environment", "-"), ("own", "own environment", ":")):
            found = np.array([statistics.mean(outcome.arrays[f"{name}, {kappa:g}"], 0.95) for kappa in self.kappas])
            spread = np.stack([found[:, 0] - found[:, 1], found[:, 2] - found[:, 0]])
            ax.errorbar(
                self.kappas, found[:, 0], spread, color="0.2", linestyle=style, marker="o", markersize=3, label=words
            )
        ax.set(xlabel=r"$\kappa$", ylabel="mean return", title="best policy, windy cliffs")
        ax.legend(frameon=False, fontsize=7)


def times(above: np.ndarray, below: np.ndarray) -> Estimate:
    """How many times as large, in the geometric mean over cohorts: their errors differ by orders of magnitude."""
    return statistics.jackknife(lambda some: np.exp(np.log(above / below)[some].mean()), np.arange(len(above)))


def returns(num_agents: int, cohorts: int, kappa: float, key: int) -> tuple[np.ndarray, np.ndarray]:
    """What the best policy of the averaged cliff earns on average over a cohort, and what everyone's own best does."""
    model = worlds.windy_cliff(num_agents * cohorts, wind=COMMON_WIND, heterogeneity=kappa, key=key)
    P = model.transitions.copy()
    P[::num_agents] = worlds.windy_cliff(1, wind=COMMON_WIND, heterogeneity=0.0).transitions
    model = Model(P, model.rewards, model.discount, START)
    means = P.reshape(cohorts, num_agents, *P.shape[1:]).mean(1)
    Q = Model(means, model.rewards[:cohorts], model.discount[0], START).optimal()
    earned = model.returns(model.greedy(np.repeat(Q, num_agents, axis=0)))
    own = model.optimal().max(-1)[:, START]
    return earned.reshape(cohorts, -1).mean(1), own.reshape(cohorts, -1).mean(1)

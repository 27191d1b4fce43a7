"""QAvg: exact Bellman steps in heterogeneous environments, averaged periodically, with decaying or constant steps."""

import math
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ...algorithms import AbstractAlgorithm, FedHSA, LocalSA, Polynomial
from ...environments import Model, worlds
from ...problems import Problem, q_learning
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, max_error

COMMON_WIND = 0.5
START = 12
"""The lower left corner of the cliff."""
PRINTED = {0.0: 133.97, 0.8: 133.65}
"""The first and the last return in the source's table, by kappa, to two decimals: the relative tolerance is 5e-5."""
RETURNS = {
    "centre": ("nominal environment", "the averaged cliff's best policy on the first agent's cliff, as in the source"),
    "cohort": ("mean over the agents", "the averaged cliff's best policy, on average over all agents' cliffs"),
    "own": ("own policies", "every agent's best policy on its own cliff, on average"),
}
"""The policies on windy cliffs: their short names in the figure, and full descriptions."""


class QAvg(AbstractStudy):
    """The limit of the averaged values, the speed of convergence, and the greedy policy's return, without noise."""

    name: str = "rl/qavg"
    title: str = "QAvg in heterogeneous environments"
    source: str = "Figure 2 and Table 1 of Jin et al. on federated reinforcement learning"
    seeds: int = 10
    """The number of cohorts of random environments."""
    local_steps: tuple[int, ...] = (1, 4, 16)
    """The numbers of local steps $E$."""
    iterations: int = 6400
    step_size: float = 0.1
    """The constant step size."""
    num_agents: int = 5
    num_states: int = 5
    num_actions: int = 5
    discount: float = 0.9
    kappas: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8)
    """The degrees of heterogeneity of the cliffs."""
    cohorts: int = 1000
    """The number of cohorts of agents on windy cliffs."""

    claim: ClassVar[int] = 26
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.8)
    quick_settings: ClassVar[dict[str, Any]] = {
        "local_steps": (1, 32),
        "iterations": 3200,
        "kappas": (0.0, 0.8),
    }

    def seconds(self) -> float:
        return 6.0 + 7.0 * len(self.local_steps) + 0.4 * self.seeds + 3e-3 * self.cohorts * len(self.kappas)

    def problem(self, cohort: int) -> Problem:
        """Returns random kernels that differ between the agents, and one table of rewards for all."""
        sizes = (self.num_agents, self.num_states, self.num_actions)
        model = worlds.random(*sizes, discount=self.discount, key=1000 * self.key + cohort)
        rewards = np.repeat(model.rewards[:1], self.num_agents, axis=0)
        return q_learning.from_model(Model(model.transitions, rewards, self.discount), synchronous=True).noiseless()

    def methods(self, E: int) -> dict[str, AbstractAlgorithm]:
        """Returns the methods; QAvg's step size is 2 / ((1 - discount) (t + E)), and `capped` limits it to 1."""
        scale = 2 / ((1 - self.discount) * E)
        return {
            "printed": LocalSA(Polynomial(scale), local_steps=E),
            "capped": LocalSA(Polynomial(scale, offset=max(1.0, scale)), local_steps=E),
            "constant": LocalSA(self.step_size, local_steps=E),
            "FedHSA": FedHSA(self.step_size, local_steps=E),
        }

    def bound(self, E: int, iterations: np.ndarray) -> np.ndarray:
        """Returns the source's bound."""
        return 16 * self.discount * E / ((1 - self.discount) ** 3 * (iterations + E))

    def run(self, runner: Runner) -> Outcome:
        arrays: dict[str, Any] = {}
        every = math.lcm(*self.local_steps)
        for cohort in range(self.seeds):
            problem = self.problem(cohort)
            for E in self.local_steps:
                for name, algorithm in self.methods(E).items():
                    settings = {"rounds": self.iterations // E, "every": every // E, "record": {"max": max_error}}
                    result = runner.simulate(problem, algorithm, **settings)
                    arrays.setdefault(f"{name}, E = {E}", []).append(result.records["max"][0])
        for kappa in self.kappas:
            runner.stop_if_asked()
            found = returns(self.num_agents, self.cohorts, kappa, self.key)
            arrays |= {f"{name}, {kappa:g}": samples for name, samples in found.items()}
        return Outcome({name: np.stack(rows) for name, rows in arrays.items()}, {"every": every})

    def end(self, outcome: Outcome, name: str, E: int) -> np.ndarray:
        """Returns the final error of every cohort."""
        return outcome.arrays[f"{name}, E = {E}"][:, -1]

    def fall(self, outcome: Outcome, E: int) -> Estimate:
        """Returns the factor by which the error falls over the last three quarters, while the iterations quadruple."""
        curve = outcome.arrays[f"capped, E = {E}"]
        return times(curve[:, curve.shape[1] // 4], curve[:, -1])

    def check(self, outcome: Outcome, checks: Checks) -> None:
        most, least = max(self.local_steps), min(self.local_steps)
        start = float(outcome.arrays[f"capped, E = {least}"][:, 0].mean())
        for E in self.local_steps:
            curve = outcome.arrays[f"capped, E = {E}"]
            at = outcome.facts["every"] * np.arange(curve.shape[1])
            worst = float((curve / self.bound(E, at)).max())
            statement = f"E = {E}, steps that do not begin above 1: largest error by the source's bound"
            checks.at_most(f"bound, E = {E}", statement, worst, 1.0)
            statement = f"E = {E}, decaying steps: the error's fall when the iterations quadruple, 4 for one over them"
            fall = self.fall(outcome, E)
            checks.inside(f"one limit, E = {E}", statement, fall, 1.5, math.inf)
        slower = times(self.end(outcome, "capped", most), self.end(outcome, "capped", least))
        statement = f"Decaying steps: error at the end, E = {most} by E = {least}"
        checks.above("slower with E", statement, slower)
        stalled = times(self.end(outcome, "constant", most), self.end(outcome, "capped", most))
        statement = f"E = {most}: error at the end, constant steps by decaying ones"
        checks.above("constant steps stop", statement, stalled)
        corrected = float(max(self.end(outcome, "FedHSA", E).max() for E in self.local_steps)) / start
        statement = "FedHSA with constant steps: largest error at the end relative to that of the start"
        checks.at_most("FedHSA", statement, corrected, 1e-6)
        low, high = min(self.kappas), max(self.kappas)
        worth = statistics.ratio(outcome.arrays[f"cohort, {high:g}"], outcome.arrays[f"cohort, {low:g}"])
        statement = f"Windy cliffs: return of the policy on average, kappa = {high:g} by {low:g}"
        checks.inside("returns fall", statement, worth, -math.inf, 1.0)
        for kappa, printed in PRINTED.items():
            if kappa in self.kappas:
                statement = f"Windy cliffs, kappa = {kappa:g}: return of the policy in the nominal environment"
                found = statistics.mean(outcome.arrays[f"centre, {kappa:g}"])
                checks.equals(f"return, kappa = {kappa:g}", statement, found, printed, slack=5e-5, precision=0.005)

    def summary(self, outcome: Outcome) -> list[str]:
        ends = [f"{self.end(outcome, 'capped', E).mean():.2g} with E = {E}" for E in self.local_steps]
        stops = [f"{self.end(outcome, 'constant', E).mean():.2g} with E = {E}" for E in self.local_steps if E > 1]
        falls = [f"{self.fall(outcome, E).value:.2f}" for E in self.local_steps]
        printed = {E: outcome.arrays[f"printed, E = {E}"] for E in self.local_steps}
        bounds = {E: self.bound(E, outcome.facts["every"] * np.arange(c.shape[1])) for E, c in printed.items()}
        worst = [f"{(curve / bounds[E]).max():.2g} with E = {E}" for E, curve in printed.items()]
        worth = {
            name: ", ".join(f"{outcome.arrays[f'{name}, {kappa:g}'].mean():.2f}" for kappa in self.kappas)
            for name in RETURNS
        }
        corrected = max(self.end(outcome, "FedHSA", E).max() for E in self.local_steps)
        return [
            f"With QAvg's decaying steps, kept below 1, the largest error after {self.iterations} iterations is "
            f"{', '.join(ends)}, and falls by {', '.join(falls)} times when they quadruple: one limit, the optimal "
            "values of the averaged kernel. As printed the first steps are above 1 where E < "
            f"{2 / (1 - self.discount):.0f}, and the error is up to so many times the bound: {', '.join(worst)}.",
            f"With the constant step {self.step_size:g} Local SA stops at {', '.join(stops)}; FedHSA gets to "
            f"{corrected:.1g} for every E.",
            f"On windy cliffs at kappa = {', '.join(f'{kappa:g}' for kappa in self.kappas)} the best policy of the "
            f"averaged environment earns {worth['centre']} in the first, nominal environment, as the source reports "
            f"it, and {worth['cohort']} on average over all agents'.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows: list[tuple] = []
        for E in self.local_steps:
            for name in self.methods(E):
                rows.append((f"error, {name}", E, *statistics.mean(self.end(outcome, name, E), level=0.95)))
        for kappa in self.kappas:
            for name in RETURNS:
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
            "The source's Table 1 has returns from 133.97 down to 133.65 on the cliffs. As in its code the first agent "
            "of a cohort has the common wind, and these are returns on that agent's cliff (`centre` in the table). "
            "Beside them stand the mean over all agents' cliffs (`cohort`), which falls more, and what the best policy "
            "of each agent's own cliff earns (`own`).",
            "Intervals are over cohorts of environments: nothing else is random.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3)
        looks = figures.shades(self.local_steps)
        at = outcome.facts["every"] * np.arange(outcome.arrays[f"capped, E = {self.local_steps[0]}"].shape[1])
        for ax, name, style in ((left, "capped", "-"), (middle, "constant", "-"), (middle, "FedHSA", "--")):
            for E, colour in looks.items():
                curve = outcome.arrays[f"{name}, E = {E}"].mean(0)
                ax.plot(at, figures.drawable(curve), color=colour, linestyle=style)
            ax.set(yscale="log", xlabel="iteration", ylabel=r"$\|Q - Q^{\star}\|_\infty$")
        left.plot(at[1:], self.bound(max(self.local_steps), at[1:]), **figures.REFERENCE)
        left.set(title="decaying step sizes", xscale="log")
        middle.set_title(rf"$\eta = {self.step_size:g}$")
        for name, (words, _) in RETURNS.items():
            found = figures.means(outcome.arrays[f"{name}, {kappa:g}"] for kappa in self.kappas)
            style = {"centre": "-", "cohort": "--", "own": ":"}[name]
            look: dict[str, Any] = {"color": "0.2", "linestyle": style, "marker": "o", "markersize": 3}
            figures.points(right, self.kappas, found, label=words, **look)
        right.set(xlabel=r"heterogeneity $\kappa$", ylabel="mean return", title="best policy, windy cliffs")
        figures.panel_legend(right)
        figures.grid(left, middle, right)
        entries: dict[str, dict[str, Any]] = {f"$E$ = {E}": {"color": colour} for E, colour in looks.items()}
        entries |= {"QAvg (LocalSA)": {"color": "0.3"}, "FedHSA": {"color": "0.3", "linestyle": "--"}}
        title = f"{self.num_agents} agents, averages after every $E$ iterations; {self.seeds} seeds, 95 % intervals"
        figures.legend(figure, entries | {f"bound, $E$ = {max(looks)}": figures.REFERENCE}, 6, title)


def times(above: np.ndarray, below: np.ndarray) -> Estimate:
    """Returns the geometric mean of the ratio over cohorts, since errors differ by orders of magnitude."""
    return statistics.jackknife(lambda some: np.exp(np.log(above / below)[some].mean()), np.arange(len(above)))


def returns(num_agents: int, cohorts: int, kappa: float, key: int) -> dict[str, np.ndarray]:
    """Returns the return of each policy of `RETURNS` on the cliffs, `(cohorts,)`."""
    model = worlds.windy_cliff(num_agents * cohorts, wind=COMMON_WIND, heterogeneity=kappa, key=key)
    P = model.transitions.copy()
    P[::num_agents] = worlds.windy_cliff(1, wind=COMMON_WIND, heterogeneity=0.0).transitions
    model = Model(P, model.rewards, model.discount, START)
    means = P.reshape(cohorts, num_agents, *P.shape[1:]).mean(1)
    Q = Model(means, model.rewards[:cohorts], model.discount[0], START).optimal()
    earned = model.returns(model.greedy(np.repeat(Q, num_agents, axis=0))).reshape(cohorts, -1)
    own = model.optimal().max(-1)[:, START].reshape(cohorts, -1)
    return {"centre": earned[:, 0], "cohort": earned.mean(1), "own": own.mean(1)}

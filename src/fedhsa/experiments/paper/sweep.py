"""FedHSA with a growing number of agents of one problem: figures 3, 5, 7 and 9 of the paper."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from ... import plots, statistics
from ...algorithms import FedHSA
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, figures, traces
from ..study.foresight import draw_stable, slope_doubt

SHADES = ("#4A9AD4", "#2082C2", "#0066A0", "#003E63", "#001C2E")
"""FedHSA's blue, from light for few agents to dark for many."""


class AgentSweep(AbstractStudy):
    """One problem with a growing number of agents: the first agent, the first five, and so on."""

    instance: Instance = dataclasses.field(default_factory=lambda: Instance("quadratic", 100))
    agents: tuple[int, ...] = (1, 5, 20, 100)
    step_size: float = 0.001
    local_steps: int = 10
    rounds: int = 2400
    start: str = "zeros"
    choices: tuple[str, ...] = ()

    claim: ClassVar[int] = 4
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)

    def seconds(self) -> float:
        problem, share = self.instance.cost(), sum(self.agents) / self.instance.num_agents
        steps = problem.step * share * self.local_steps * self.rounds * self.seeds
        return problem.build + share * problem.prediction + steps + 3 * len(self.agents)

    def programs(self):
        return AgentSweep, self.instance.shape(), self.agents, self.local_steps, self.seeds

    def run(self, runner: Runner) -> Outcome:
        algorithm = FedHSA(self.step_size, local_steps=self.local_steps)
        whole, key = draw_stable(self.instance.change("num_agents", max(self.agents)), [algorithm])
        how: dict[str, Any] = {
            "rounds": self.rounds,
            "seeds": self.seeds,
            "key": self.key,
            "theta": traces.starting_point(self.start, whole.dim, self.key),
        }
        found = {f"M = {M}": traces.follow(runner, whole.take(range(M)), algorithm, **how) for M in sorted(self.agents)}
        return traces.gather(found, {"agents": sorted(self.agents), "problem_key": key})

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        curves, M = outcome.facts["curves"], np.array(outcome.facts["agents"])
        palette = {label: SHADES[i % len(SHADES)] for i, label in enumerate(curves)}
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        theory = traces.predicted(outcome)
        exact = all(curve["basis"] == "exact" for curve in curves.values())
        word = "exact" if exact else "predicted"
        plots.curves(traces.curves(outcome), theory=theory, theory_label=word, palette=palette, legend="above", ax=left)
        predicted = np.array([curve["predicted_floor"] for curve in curves.values()])
        first: dict[str, Any] = {"color": "0.55", "linewidth": 0.8, "linestyle": figures.DOTS}
        right.plot(M, predicted[0] / M, label="proportional to $1/M$", **first)
        right.plot(M, predicted, color=SHADES[3], linestyle=figures.DASHES, linewidth=1.0, label=word)
        for label, m in zip(curves, M, strict=True):
            figures.points(right, [m], [traces.floor(outcome, label, figures.LEVEL)], marker="o", color=palette[label])
        right.plot([], [], label=f"simulated, slope {self.slope(outcome).value:.2f}", **figures.dots(SHADES[2]))
        right.set(xscale="log", yscale="log", xlabel="number of agents $M$", ylabel="floor")
        figures.heading(figure, rf"FedHSA: $H = {self.local_steps}$, $\eta = {self.step_size:g}$")
        figures.ticks(right, M)
        figures.grid(left, right)
        figures.legend_above(right, ncols=2)

    def slope(self, outcome: Outcome) -> statistics.Estimate:
        """Returns the slope of the logarithm of the floor against that of the number of agents."""
        samples = [traces.floors(outcome, label) for label in outcome.facts["curves"]]
        return statistics.slope(outcome.facts["agents"], samples)

    def predicted_slope(self, outcome: Outcome) -> float:
        """Returns the slope of the predicted floors."""
        floors = [curve["predicted_floor"] for curve in outcome.facts["curves"].values()]
        return statistics.power(outcome.facts["agents"], floors)

    def summary(self, outcome: Outcome) -> list[str]:
        found, predicted = self.slope(outcome), self.predicted_slope(outcome)
        curves = outcome.facts["curves"]
        settled = max(curve["settled"] for curve in curves.values())
        bias = list(curves.values())[-1]
        lasting = 100 * bias["predicted_bias"] / bias["predicted_floor"]
        flat = all(traces.is_flat(outcome, label) for label in curves)
        ratios = [traces.floor(outcome, label).value / curve["predicted_floor"] for label, curve in curves.items()]
        heterogeneous = (
            "It is not -1 because the agents are heterogeneous: each one that joins brings noise of its own and "
            "changes the conditioning of the average operator."
        )
        return [
            f"The floor falls with the number of agents: slope {found:.3f} "
            f"on logarithmic axes, {predicted:.3f} predicted. {'' if found.contains(-1.0) else heterogeneous}".rstrip(),
            f"The measured floors are {min(ratios):.2f} to {max(ratios):.2f} times the predicted ones.",
            f"Of the floor with {outcome.facts['agents'][-1]} agents {lasting:.1f} % is squared bias. "
            + (
                f"The slowest curve settles in round {settled}; floors are means over the second half of the rounds."
                if flat
                else f"The slowest curve settles in round {settled} only: its floor is not to be trusted."
            ),
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        found, expected = self.slope(outcome), self.predicted_slope(outcome)
        statement = "More agents lower the floor: its slope in their number is negative."
        checks.inside("falls", statement, found, -math.inf, 0.0)
        statement, doubts = "The slope of the floor is that of the predicted floors.", outcome.facts["curves"].values()
        slack = slope_doubt(outcome.facts["agents"], [curve["doubt"] for curve in doubts])
        checks.equals("slope", statement, found, expected, slack=slack, precision=0.1, relative=False)
        traces.doubt_unsettled(outcome, checks)

    def table(self, outcome: Outcome) -> Table:
        return traces.table(outcome)

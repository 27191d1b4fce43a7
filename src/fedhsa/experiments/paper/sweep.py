"""FedHSA with more and more agents of one problem: figures 3, 5, 7 and 9 of the paper."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import plots, statistics
from ...algorithms import FedHSA
from ...plots._style import DASHES, STYLE
from ..study import traces
from ..study.base import AbstractExperiment, Outcome, Table, Watch
from ..study.checks import Check, equals, inside
from ..study.instance import Instance, draw_stable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOPE_SLACK = 0.02
"""How far predicted slopes may be off: floors 5 % off at both ends of a factor of 100 change them by so much."""
SHADES = ("#7CC4EE", "#2E93D1", "#0072B2", "#003E63", "#001C2E")
"""FedHSA's blue from light to dark, for more and more agents."""


@dataclasses.dataclass(frozen=True)
class AgentSweep(AbstractExperiment):
    """One problem, of which more and more agents take part: the first agent, the first five, and so on."""

    instance: Instance = dataclasses.field(default_factory=lambda: Instance("quadratic", 100))
    agents: tuple[int, ...] = (1, 5, 20, 100)
    step_size: float = 0.001
    local_steps: int = 10
    rounds: int = 2400
    start: str = "zeros"
    """Where all start: `zeros`, or `normal` for a standard normal draw."""
    choices: tuple[str, ...] = ()
    """What the paper leaves open here, and what we took."""

    def seconds(self) -> float:
        problem, share = self.instance.cost(), sum(self.agents) / self.instance.num_agents
        steps = problem.step * share * self.local_steps * self.rounds * self.seeds
        return problem.build + share * problem.prediction + steps + 3 * len(self.agents)

    def run(self, watch: Watch) -> Outcome:
        algorithm = FedHSA(self.step_size, local_steps=self.local_steps)
        whole, key = draw_stable(self.instance.change("num_agents", max(self.agents)), [algorithm])
        how: dict[str, Any] = {
            "rounds": self.rounds,
            "seeds": self.seeds,
            "key": self.key,
            "theta": traces.starting_point(self.start, whole.dim, self.key),
        }
        found = {f"M = {M}": traces.follow(watch, whole.take(range(M)), algorithm, **how) for M in sorted(self.agents)}
        return traces.gather(found, {"agents": sorted(self.agents), "problem_key": key})

    def draw(self, outcome: Outcome) -> "Figure":
        import matplotlib
        from matplotlib.figure import Figure

        labels = list(outcome.facts["curves"])
        shades = SHADES[-len(labels) :] if len(labels) == len(SHADES) else SHADES
        palette = {label: shades[i % len(shades)] for i, label in enumerate(labels)}
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(7.2, 2.9), layout="constrained")
            left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
            plots.curves(traces.curves(outcome), theory=traces.predicted(outcome), palette=palette, ax=left)
            self._draw_floors(right, outcome, palette)
        return figure

    def _draw_floors(self, ax: Any, outcome: Outcome, palette: dict[str, str]) -> None:
        M = np.array(outcome.facts["agents"])
        predicted = np.array([curve["predicted_floor"] for curve in outcome.facts["curves"].values()])
        ax.plot(M, predicted[0] / M, color="0.6", linewidth=0.8, linestyle=(0, (1, 1.5)), label="$1/M$ from one agent")
        ax.plot(M, predicted, color=SHADES[3], linestyle=DASHES, linewidth=1.0, label="theory")
        for label, m in zip(outcome.facts["curves"], M, strict=True):
            value, low, high = traces.floor(outcome, label, 0.95)
            ax.errorbar(
                [m], [value], yerr=[[value - low], [high - value]], fmt="o", color=palette[label], ms=4, capsize=2
            )
        found = self.slope(outcome)
        ax.plot([], [], "o", color=SHADES[2], ms=4, label=f"measured, slope {found.value:.2f}")
        ax.set(xscale="log", yscale="log", xlabel="number of agents $M$", ylabel="floor")
        ax.set_xticks(M, [str(m) for m in M], minor=False)
        ax.minorticks_off()
        ax.grid(axis="y", color="0.9", linewidth=0.5)
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=2, columnspacing=1.2)

    def slope(self, outcome: Outcome) -> statistics.Estimate:
        """Of the logarithm of the floor against that of the number of agents."""
        samples = [traces.floors(outcome, label) for label in outcome.facts["curves"]]
        return statistics.slope(outcome.facts["agents"], samples)

    def predicted_slope(self, outcome: Outcome) -> float:
        """The same of the predicted floors."""
        floors = [curve["predicted_floor"] for curve in outcome.facts["curves"].values()]
        at = np.log(outcome.facts["agents"])
        return float(np.polyfit(at, np.log(floors), 1)[0])

    def tell(self, outcome: Outcome) -> list[str]:
        found, predicted = self.slope(outcome), self.predicted_slope(outcome)
        curves = outcome.facts["curves"]
        settled = max(curve["settled"] for curve in curves.values())
        bias = list(curves.values())[-1]
        lasting = 100 * bias["predicted_bias"] / bias["predicted_floor"]
        flat = all(traces.is_flat(outcome, label) for label in curves)
        ratios = [traces.floor(outcome, label).value / curve["predicted_floor"] for label, curve in curves.items()]
        unlike = (
            "It is not -1 because the agents are unlike: each one that joins brings noise of its own and changes the "
            "conditioning of the average operator."
        )
        return [
            f"The floor falls with the number of agents: slope {found.value:.3f} [{found.low:.3f}, {found.high:.3f}] "
            f"on logarithmic axes, {predicted:.3f} predicted. {'' if found.contains(-1.0) else unlike}".rstrip(),
            f"The measured floors are {min(ratios):.2f} to {max(ratios):.2f} times the predicted ones.",
            f"Of the floor with {outcome.facts['agents'][-1]} agents {lasting:.1f} % is squared bias. "
            + (
                f"The slowest curve settles in round {settled}; floors are means over the second half of the rounds."
                if flat
                else f"The slowest curve settles in round {settled} only: its floor is not to be trusted."
            ),
        ]

    def checks(self, outcome: Outcome) -> list[Check]:
        exact = all(curve["basis"] == "exact" for curve in outcome.facts["curves"].values())
        found, expected = self.slope(outcome), self.predicted_slope(outcome)
        checks = [
            inside(
                4,
                f"{self.name}: falls",
                "More agents lower the floor: its slope in their number is negative.",
                found,
                float("-inf"),
                0.0,
            ),
            equals(
                4,
                f"{self.name}: slope",
                "The slope of the floor is that of the predicted floors.",
                found,
                expected,
                slack=0.0 if exact else SLOPE_SLACK,
                precision=0.1,
                relative=False,
            ),
        ]
        return traces.refuse_unsettled(outcome, checks)

    def table(self, outcome: Outcome) -> Table:
        return traces.table(outcome)

    def notes(self) -> list[str]:
        return list(self.choices)

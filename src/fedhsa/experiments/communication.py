"""What an error costs: rounds, samples and bytes that FedHSA and Local SA spend on their way down (claim 10)."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import plots
from ..algorithms import FedHSA, LocalSA
from ..plots._style import COLOURS, DASHES, STYLE, darker, thinned
from ..theory.prediction import FLOAT_BYTES
from . import traces
from .base import AbstractExperiment, Outcome, Table, Watch
from .checks import Check, at_most, inside, near
from .instance import Instance
from .statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"quadratic": "quadratic", "td": "TD"}
ABOVE = 5
"""Times Local SA's floor: an error that both methods reach."""
UNITS = ("rounds", "samples", "bytes")


@dataclasses.dataclass(frozen=True)
class Communication(AbstractExperiment):
    """Both methods on two problems, their errors against everything that a deployment would pay for."""

    name: str = "communication"
    title: str = "The price of an error"
    source: str = "Section 4: two exchanges per round"
    seeds: int = 32
    quadratic: Instance = dataclasses.field(default_factory=lambda: Instance("quadratic", 20, {"b_level": 100.0}))
    quadratic_step: float = 0.001
    quadratic_rounds: int = 1500
    td: Instance = dataclasses.field(default_factory=lambda: Instance("td", 200, {"num_states": 20, "dim": 10}))
    td_step: float = 0.03
    td_rounds: int = 400
    local_steps: int = 10

    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 16}

    def seconds(self) -> float:
        steps = (self.quadratic.cost().step * self.quadratic_rounds, self.td.cost().step * self.td_rounds)
        return 10 + 2 * sum(steps) * self.local_steps * self.seeds

    def run(self, watch: Watch) -> Outcome:
        found, agents = {}, {}
        for family, instance, step, rounds in (
            ("quadratic", self.quadratic, self.quadratic_step, self.quadratic_rounds),
            ("td", self.td, self.td_step, self.td_rounds),
        ):
            problem, theta = instance.build(), np.zeros(instance.settings()["dim"])
            agents[family] = problem.num_agents
            for method in (FedHSA, LocalSA):
                algorithm = method(step, local_steps=self.local_steps)
                label = f"{family} {method.__name__}"
                found[label] = traces.follow(
                    watch, problem, algorithm, rounds=rounds, seeds=self.seeds, key=self.key, theta=theta
                )
        return traces.gather(found, {"agents": agents})

    def draw(self, outcome: Outcome) -> "Figure":
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        labels = ("communication round", "samples, all agents", "bytes, both ways, all agents")
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(7.2, 4.2), layout="constrained")
            axes = figure.subplots(2, 3, sharey="row")
            for row, family in zip(axes, outcome.facts["agents"], strict=True):
                for ax, unit, label in zip(row, UNITS, labels, strict=True):
                    for method in ("FedHSA", "LocalSA"):
                        _draw(ax, outcome, f"{family} {method}", unit, COLOURS[method])
                    ax.set(xscale="log", yscale="log", xlabel=label)
                    ax.grid(axis="y", color="0.9", linewidth=0.5)
                row[0].set_ylabel(f"{NAMES[family]}: $E_t$")
            handles = [Line2D([], [], color=COLOURS[method], label=method) for method in ("FedHSA", "LocalSA")]
            handles.append(Line2D([], [], color="0.2", linestyle=DASHES, linewidth=1.0, label="theory"))
            figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
        return figure

    def tell(self, outcome: Outcome) -> list[str]:
        sentences = []
        for family, name in (("quadratic", "the quadratic problem"), ("td", "TD")):
            target, between = _targets(outcome, family)
            fed, local = (_spent(outcome, f"{family} {m}", target) for m in ("FedHSA", "LocalSA"))
            prices = [f"{spent['rounds']:.0f} rounds and {_bytes(spent['bytes'])}" for spent in (fed, local)]
            sentences.append(
                f"On {name} an error of {target:.2g}, five times Local SA's floor, takes FedHSA {prices[0]}, Local SA "
                f"{prices[1]}: about the same rounds and samples, about twice the bytes. An error of {between:.2g} "
                "Local SA never reaches."
            )
        return sentences

    def checks(self, outcome: Outcome) -> list[Check]:
        found = []
        for family in outcome.facts["agents"]:
            fed, local = f"{family} FedHSA", f"{family} LocalSA"
            target, between = _targets(outcome, family)
            price = [_spent(outcome, label, target) for label in (fed, local)]
            ideal = [_spent(outcome, label, target, "predicted") for label in (fed, local)]
            reach = [_spent(outcome, label, between)["rounds"] for label in (fed, local)]
            per_round = [_per_round(outcome, label)["bytes"] for label in (fed, local)]
            found += [
                near(
                    10,
                    f"{family}: bytes per round",
                    "FedHSA's two exchanges send twice Local SA's bytes per round.",
                    per_round[0] / per_round[1],
                    2.0,
                    tolerance=0,
                ),
                near(
                    10,
                    f"{family}: bytes for the same error",
                    "FedHSA's bytes by Local SA's for five times Local SA's floor, an error both reach, as predicted.",
                    price[0]["bytes"] / price[1]["bytes"],
                    ideal[0]["bytes"] / ideal[1]["bytes"],
                    tolerance=0.1,
                ),
                at_most(
                    10,
                    f"{family}: below Local SA's floor",
                    "FedHSA reaches the geometric mean of the two floors: the round in which it does.",
                    reach[0],
                    outcome.arrays[f"{fed}/error"].shape[1] - 1,
                ),
                inside(
                    10,
                    f"{family}: out of Local SA's reach",
                    "Local SA does not: its floor by that error is above 1.",
                    Estimate(*(end / between for end in traces.floor(outcome, local))),
                    1.0,
                    math.inf,
                ),
            ]
        return found

    def table(self, outcome: Outcome) -> Table:
        columns: dict[str, Any] = {name: [] for name in ("curve", *UNITS, "mean", "low", "high", "predicted")}
        for label, curve in traces.curves(outcome).items():
            statistics = plots.interval(curve.error)
            for t in thinned(len(curve.rounds)):
                spent = {unit: each * int(t) for unit, each in _per_round(outcome, label).items()}
                values = (label, *spent.values(), *(s[t] for s in statistics), outcome.arrays[f"{label}/predicted"][t])
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
        return columns


def _per_round(outcome: Outcome, label: str) -> dict[str, float]:
    """What a round costs all agents together."""
    cost, M = outcome.facts["curves"][label]["cost"], outcome.facts["agents"][label.split()[0]]
    sent = FLOAT_BYTES * (cost["floats_up"] + cost["floats_down"])
    return {"rounds": 1, "samples": M * cost["samples"], "bytes": M * sent}


def _targets(outcome: Outcome, family: str) -> tuple[float, float]:
    """An error that both methods reach, and one between their floors."""
    fed, local = (outcome.facts["curves"][f"{family} {m}"]["predicted_floor"] for m in ("FedHSA", "LocalSA"))
    return ABOVE * local, math.sqrt(fed * local)


def _spent(outcome: Outcome, label: str, target: float, what: str = "error") -> dict[str, float]:
    """What it takes until the mean error is at most the target; infinite where it never is."""
    error = outcome.arrays[f"{label}/{what}"]
    error = error.mean(0) if error.ndim == 2 else error
    rounds = _crossing(error, target)
    return {unit: rounds * each for unit, each in _per_round(outcome, label).items()}


def _crossing(error: np.ndarray, target: float) -> float:
    """When the error passes the target, between rounds on a logarithmic scale; infinite where it never does."""
    reached = np.flatnonzero(error <= target)
    if not len(reached) or not reached[0]:
        return 0.0 if len(reached) else math.inf
    before, after = np.log(error[reached[0] - 1 : reached[0] + 1])
    return float(reached[0] - 1 + (before - math.log(target)) / (before - after))


def _draw(ax: Any, outcome: Outcome, label: str, unit: str, colour: str) -> None:
    error, predicted = outcome.arrays[f"{label}/error"], outcome.arrays[f"{label}/predicted"]
    at = np.unique(np.geomspace(1, error.shape[1] - 1, 200).round().astype(int))
    mean, low, high = (values[at] for values in plots.interval(error))
    x = at * _per_round(outcome, label)[unit]
    ax.plot(x, mean, color=colour)
    ax.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
    ax.plot(x, predicted[at], color=darker(colour), linestyle=DASHES, linewidth=1.0)


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError

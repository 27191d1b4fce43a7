"""The rounds, samples and bytes that FedHSA and `LocalSA` need to reach a given error (claim 10)."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ...algorithms import FedHSA, LocalSA
from ...plots._style import thinned
from ...theory.prediction import FLOAT_BYTES
from ..study import AbstractStudy, Checks, Estimate, Instance, Outcome, Runner, Table, columns, figures, traces

NAMES = {"quadratic": "quadratic", "td": "TD"}
ABOVE = (2, 5, 20)
"""Multiples of `LocalSA`'s floor: errors that both methods reach."""
UNITS = ("rounds", "samples", "bytes")


class Communication(AbstractStudy):
    """The errors of both methods on two problems, as functions of every cost of a deployment."""

    name: str = "communication"
    title: str = "The price of an error"
    source: str = "Section 4: two exchanges per round"
    seeds: int = 16
    quadratic: Instance = dataclasses.field(default_factory=lambda: Instance("quadratic", 20, {"b_level": 100.0}))
    quadratic_step: float = 0.001
    quadratic_rounds: int = 1300
    td: Instance = dataclasses.field(default_factory=lambda: Instance("td", 200, {"num_states": 20, "dim": 10}))
    td_step: float = 0.03
    td_rounds: int = 400
    local_steps: int = 10

    claim: ClassVar[int] = 10
    figure_size: ClassVar[tuple[float, float]] = (7.2, 4.2)
    quick_settings: ClassVar[dict[str, Any]] = {"quadratic_rounds": 1250}

    def seconds(self) -> float:
        steps = (self.quadratic.cost().step * self.quadratic_rounds, self.td.cost().step * self.td_rounds)
        return 10 + 2 * sum(steps) * self.local_steps * self.seeds

    def programs(self):
        return self.quadratic.shape()

    def run(self, runner: Runner) -> Outcome:
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
                    runner, problem, algorithm, rounds=rounds, seeds=self.seeds, key=self.key, theta=theta
                )
        return traces.gather(found, {"agents": agents})

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        labels = ("communication round", "samples, all agents", "bytes, both ways, all agents")
        axes = figure.subplots(2, 3, sharey="row")
        for row, family in zip(axes, outcome.facts["agents"], strict=True):
            for ax, unit, label in zip(row, UNITS, labels, strict=True):
                for method in ("FedHSA", "LocalSA"):
                    _plot_curve(ax, outcome, f"{family} {method}", unit, figures.COLOURS[method])
                ax.set(xscale="log", yscale="log", xlabel=label)
                figures.grid(ax)
            row[0].set_ylabel(f"{NAMES[family]}: $E_t$")
        entries = {method: {"color": figures.COLOURS[method]} for method in ("FedHSA", "LocalSA")}
        figures.legend(figure, entries | {"predicted": figures.dashed()}, 3)

    def notes(self) -> list[str]:
        return [
            "The quadratic problem is that of Figure 2b. TD is smaller than in Figure 6b, 20 states and 10 features, "
            "so that more rounds lie between the start and the floors."
        ]

    def summary(self, outcome: Outcome) -> list[str]:
        sentences = ["FedHSA sends twice Local SA's bytes per round: two exchanges instead of one."]
        for family, name in (("quadratic", "the quadratic problem"), ("td", "TD")):
            prices = ", ".join(f"{_price(outcome, family, above).value:.2f} at {above} times" for above in ABOVE)
            fed, local = (outcome.facts["curves"][f"{family} {m}"]["predicted_floor"] for m in ("FedHSA", "LocalSA"))
            sentences.append(
                f"On {name} an error that both methods reach costs FedHSA so many times Local SA's bytes: {prices} "
                f"Local SA's floor. An error of {math.sqrt(fed * local):.2g}, between the two floors, Local SA does "
                "not reach at any price."
            )
        return sentences

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for family in outcome.facts["agents"]:
            fed, local = f"{family} FedHSA", f"{family} LocalSA"
            per_round = [_per_round(outcome, label)["bytes"] for label in (fed, local)]
            floors = [outcome.facts["curves"][label]["predicted_floor"] for label in (fed, local)]
            between = math.sqrt(floors[0] * floors[1])
            checks.near(
                f"{family}, bytes per round",
                "FedHSA's two exchanges send twice Local SA's bytes per round.",
                per_round[0] / per_round[1],
                2.0,
                tolerance=0,
            )
            for above in ABOVE:
                statement = (
                    "FedHSA's bytes relative to Local SA's for an error that both reach: no more than two and a half "
                    "times."
                )
                price = _price(outcome, family, above)
                checks.inside(f"{family}, price at {above} x", statement, price, 0.0, 2.5)
            for label, low, high, words in (
                (
                    fed,
                    0.0,
                    1.0,
                    "FedHSA gets below the geometric mean of the two predicted floors: its floor relative to that.",
                ),
                (local, 1.0, math.inf, "Local SA does not: its floor relative to that."),
            ):
                floor = traces.floor(outcome, label) / between
                checks.inside(f"{label}, floor", words, floor, low, high)

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for label, curve in traces.curves(outcome).items():
            band = statistics.interval(curve.error)
            for t in thinned(len(curve.rounds)):
                spent = [each * int(t) for each in _per_round(outcome, label).values()]
                rows.append((label, *spent, *(s[t] for s in band), outcome.arrays[f"{label}/predicted"][t]))
        return columns(("curve", *UNITS, "mean", "low", "high", "predicted"), rows)


def _per_round(outcome: Outcome, label: str) -> dict[str, float]:
    """Returns the costs of one round, summed over all agents."""
    cost, M = outcome.facts["curves"][label]["cost"], outcome.facts["agents"][label.split()[0]]
    sent = FLOAT_BYTES * (cost["floats_up"] + cost["floats_down"])
    return {"rounds": 1, "samples": M * cost["samples"], "bytes": M * sent}


def _price(outcome: Outcome, family: str, above: float) -> Estimate:
    """Returns FedHSA's bytes relative to `LocalSA`'s, until the mean error is `above` times `LocalSA`'s floor."""
    labels = [f"{family} {method}" for method in ("FedHSA", "LocalSA")]
    errors = [outcome.arrays[f"{label}/error"] for label in labels]
    target = above * outcome.facts["curves"][labels[1]]["predicted_floor"]
    per_round = [_per_round(outcome, label)["bytes"] for label in labels]

    def price(seeds: np.ndarray) -> float:
        fed, local = (statistics.crossing(error[seeds].mean(0), target) for error in errors)
        return fed * per_round[0] / (local * per_round[1])

    everyone = np.arange(len(errors[0]))
    return statistics.jackknife(price, everyone)


def _plot_curve(ax: figures.Axes, outcome: Outcome, label: str, unit: str, colour: str) -> None:
    error, predicted = outcome.arrays[f"{label}/error"], outcome.arrays[f"{label}/predicted"]
    at = np.unique(np.geomspace(1, error.shape[1] - 1, 200).round().astype(int))
    x = at * _per_round(outcome, label)[unit]
    figures.band(ax, x, error[:, at], colour)
    figures.theory(ax, x, predicted[at], colour)

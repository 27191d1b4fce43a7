"""Table 1 of the paper as numbers: bias, speed-up, Markov sampling and traffic of every system that runs here."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import statistics
from ...algorithms import AbstractAlgorithm, AbstractWrapper, parse
from ...engine import Result
from ...problems import Problem
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, columns, figures, repeated
from ..study.foresight import doubt, foresee, slope_doubt

ZERO = 1e-9
"""The distance from the root, relative to the initial distance, below which a run counts as being at the root."""
PREDICTED = ("FedTD", "FedHSA")
"""The systems whose slope theory predicts; a distant projection has no effect."""
FLAT = 0.5
"""The last part of a run, over which errors are averaged."""


class System(NamedTuple):
    """A row of the table: the system, and its construction here."""

    source: str
    text: str
    """The algorithm, as on the command line."""
    moves: str = "steps"
    """The server's moves: by local `steps`, once per `batch`, or after every `single` observation."""


SYSTEMS: dict[str, System] = {
    "distributed TD": System("Doan et al. 2019", "Gossip(SynchronisedSA, Ring, combine='first')", "single"),
    "one-shot averaging": System("Liu and Olshevsky 2023; Tian et al. 2024, TD(0)", "OneShotAveraging"),
    "delayed critic": System("Shen et al. 2023, critic alone", "Delayed(SynchronisedSA, 10)", "single"),
    "FedSAM": System("Khodadadian et al. 2022, TD(0)", "GeometricAverage(LocalSA, 0.99)"),
    "QFedTD": System(
        "Dal Fabbro et al. 2023", "Lossy(Compressed(SynchronisedSA, Quantised(4)), 0.1, rescale=False)", "single"
    ),
    "EF-TD": System("Mitra et al. 2024", "Compressed(SynchronisedSA, TopK(0.25))", "single"),
    "OAC-FedTD": System("Dal Fabbro et al. 2025", "OverTheAir(SynchronisedSA, 0.5, 0.1)", "single"),
    "FedTD": System("Wang et al. 2023", "Projected(LocalSA, 100.0)"),
    "FedHSA": System("the paper", "FedHSA"),
    "SCAFFLSA": System("Mangold et al. 2024", "SCAFFLSA"),
    "DisSACC": System("Zhu, Mitra and Heath 2025", "DisSACC", "batch"),
}
NOT_RUN = (
    "Not run: FedQ, FedAsynQ and Fed-DVR-Q, QAvg, and FedSARSA learn or evaluate by control, with operators or chains "
    "that the families here do not have."
)


class Systems(AbstractStudy):
    """Every system of the paper's Table 1 on the same TD problem, with the same step size and the same data."""

    name: str = "field/table1"
    title: str = "Table 1, measured"
    source: str = "Table 1 of the paper"
    seeds: int = 16
    heterogeneous: Instance = dataclasses.field(
        default_factory=lambda: Instance("td", 8, {"num_states": 10, "dim": 4, "laziness": 0.5})
    )
    """The cohort of heterogeneous agents."""
    copies: tuple[int, ...] = (1, 8)
    """The numbers of copies of a cohort of equal agents, for the slope."""
    step_size: float = 0.05
    local_steps: int = 10
    samples: int = 20_000
    """The number of observations per agent."""
    target: float = 0.1
    """The target error with heterogeneous agents, relative to the initial error."""
    systems: tuple[str, ...] = tuple(SYSTEMS)

    claim: ClassVar[int] = 19
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 8,
        "samples": 8000,
        "systems": ("one-shot averaging", "FedTD", "FedHSA"),
    }

    def seconds(self) -> float:
        return len(self.systems) * (15.0 + 4e-5 * self.samples * self.seeds)

    def run(self, runner: Runner) -> Outcome:
        arrays, facts = {}, {}
        cohort = self.heterogeneous.build()
        equal = self.heterogeneous.change("heterogeneity", 0.0).build()
        for name in self.systems:
            limit = self._run(runner, name, cohort.noiseless(), seeds=2)
            heterogeneous = self._run(runner, name, cohort)
            arrays |= {f"{name}/heterogeneous": heterogeneous.error, f"{name}/rounds": heterogeneous.rounds}
            arrays[f"{name}/limit"] = _flat(limit)
            for copies in self.copies:
                arrays[f"{name}/equal {copies}"] = _flat(self._run(runner, name, repeated(equal, copies)))
            arrays[f"{name}/independent"] = _flat(self._run(runner, name, repeated(equal, self.copies[0]).iid()))
            cost, M = heterogeneous.cost, cohort.num_agents
            facts[name] = {
                "start": float(heterogeneous.error[0, 0]),
                "exchanges": cost.exchanges,
                "bytes": 8 * M * (cost.floats_up + cost.floats_down),
                "samples": cost.samples,
                **(self._predicted_slope(name, equal) if name in PREDICTED else {"slope": None, "doubt": None}),
            }
        return Outcome(arrays, facts)

    def algorithm(self, name: str, problem: Problem) -> AbstractAlgorithm:
        """Returns the system on this problem."""
        system = SYSTEMS[name]
        step = self.step_size * (self.local_steps if system.moves == "batch" else 1)
        return parse(system.text, problem, step_size=step, local_steps=self.local_steps)

    def _run(self, runner: Runner, name: str, problem: Problem, seeds: int | None = None) -> Result:
        algorithm = self.algorithm(name, problem)
        rounds, every = (n // algorithm.block_length for n in (self.samples, self.local_steps))
        return runner.simulate(problem, algorithm, rounds=rounds, every=every, seeds=seeds or self.seeds, key=self.key)

    def _predicted_slope(self, name: str, equal: Problem) -> dict[str, float]:
        """Returns the slope of the floor in the number of agents, on logarithmic axes, and its tolerance."""
        algorithm = self.algorithm(name, equal)
        method = algorithm.algorithm if isinstance(algorithm, AbstractWrapper) else algorithm
        ends = self.copies[0], self.copies[-1]
        found = [foresee(repeated(equal, copies), method) for copies in ends]
        slope = statistics.power(ends, [prediction.floor for prediction in found])
        return {"slope": slope, "doubt": slope_doubt(ends, [doubt(prediction) for prediction in found])}

    def bias(self, outcome: Outcome, name: str) -> float:
        """Returns the final root-mean-square distance to the root without noise, relative to the initial distance."""
        return float(np.sqrt(outcome.arrays[f"{name}/limit"].mean() / outcome.facts[name]["start"]))

    def slope(self, outcome: Outcome, name: str) -> statistics.Estimate:
        """Returns the slope of the error in the number of equal agents, on logarithmic axes."""
        agents = [copies * self.heterogeneous.num_agents for copies in self.copies]
        return statistics.slope(agents, [outcome.arrays[f"{name}/equal {copies}"] for copies in self.copies])

    def inflation(self, outcome: Outcome, name: str) -> statistics.Estimate:
        """Returns the error with Markov chains relative to the error with independent sampling, for equal agents."""
        markov, independent = (outcome.arrays[f"{name}/{kind}"] for kind in (f"equal {self.copies[0]}", "independent"))
        return statistics.ratio(markov, independent)

    def reach(self, outcome: Outcome, name: str) -> tuple[float, float] | None:
        """Returns the exchanges and bytes of all agents until the mean error stays below the target, or None."""
        curve, facts = outcome.arrays[f"{name}/heterogeneous"].mean(0), outcome.facts[name]
        above = np.flatnonzero(~(curve <= self.target * facts["start"]))
        if len(above) and above[-1] + 1 == len(curve):
            return None
        rounds = float(outcome.arrays[f"{name}/rounds"][above[-1] + 1 if len(above) else 0])
        if facts["exchanges"] == 0:  # the agents communicate once, at the end
            return 1.0, 8.0 * self.heterogeneous.num_agents * self.heterogeneous.settings()["dim"]
        return rounds * facts["exchanges"], rounds * facts["bytes"]

    def draw(self, outcome: Outcome) -> figures.Figure:
        with figures.house_style((7.2, 0.6 + 0.27 * len(self.systems))) as figure:
            self.plot(figure, outcome)
        return figure

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        from matplotlib.ticker import NullFormatter

        panels = figure.subplots(1, 4, sharey=True)
        rows = np.arange(len(self.systems))[::-1]
        for row, name in zip(rows, self.systems, strict=True):
            colour = figures.COLOURS.get(name, "0.35")
            dot = figures.dots(colour)
            bias = self.bias(outcome, name)
            panels[0].plot(max(bias, ZERO), row, **figures.dots(colour, face="white" if bias < ZERO else colour))
            for ax, found in ((panels[1], self.slope(outcome, name)), (panels[2], self.inflation(outcome, name))):
                spread = [[found.value - found.low], [found.high - found.value]]
                ax.errorbar(found.value, row, xerr=spread, capsize=2, **dot)
            reach = self.reach(outcome, name)
            if reach is None:
                panels[3].annotate("never", (0.97, row), xycoords=("axes fraction", "data"), ha="right", va="center")
            else:
                panels[3].plot(reach[1], row, **dot)
        panels[0].set_yticks(rows, self.systems)
        panels[0].set_xscale("log")
        panels[3].set_xscale("log")
        panels[3].xaxis.set_minor_formatter(NullFormatter())
        panels[1].axvline(-1, color="0.55", linewidth=0.8, zorder=0)
        panels[2].axvline(1, color="0.55", linewidth=0.8, zorder=0)
        titles = ("error without noise", "slope in $M$", "Markov / i.i.d.", f"bytes to {self.target:g} x start")
        for ax, title in zip(panels, titles, strict=True):
            ax.set_xlabel(title)
            ax.grid(axis="y", color="0.93", linewidth=0.5)

    def summary(self, outcome: Outcome) -> list[str]:
        biased = [name for name in self.systems if self.bias(outcome, name) > ZERO]
        exact = [name for name in self.systems if name not in biased]
        slopes = {name: self.slope(outcome, name).value for name in self.systems}
        flat = [f"{name} ({value:.2f})" for name, value in slopes.items() if value > -0.9]
        costs = {name: self.reach(outcome, name) for name in self.systems}
        reached = sorted((cost[1], name) for name, cost in costs.items() if cost is not None)
        sentences = [
            f"Without noise {_list(exact)} go to the root; the others stay at a distance of "
            + ", ".join(f"{self.bias(outcome, name):.2g} ({name})" for name in biased)
            + " of that at the start.",
            "With equal agents the error falls with their number with a slope near -1 on logarithmic axes"
            + (f", except for {_list(flat)}." if flat else " for all of them."),
        ]
        if reached:
            never = [name for name, cost in costs.items() if cost is None]
            sentences.append(
                f"A {1 / self.target:.3g}-th of the first error on heterogeneous agents costs the fewest bytes with "
                f"{reached[0][1]} ({reached[0][0]:,.0f}) and the most with {reached[-1][1]} ({reached[-1][0]:,.0f})"
                + (f"; {_list(never)} {'does' if len(never) == 1 else 'do'} not get there." if never else ".")
            )
        return sentences

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for name in self.systems:
            bias = self.bias(outcome, name)
            if name in ("FedHSA", "SCAFFLSA", "DisSACC"):
                words = f"{name} goes to the root without noise (distance relative to the start's)"
                checks.at_most(f"{name}, bias", words, bias, ZERO)
            if name in ("FedTD", "FedSAM", "one-shot averaging"):
                words = f"{name} stays off the root without noise (distance relative to the start's)"
                estimate = statistics.Estimate(bias, bias, bias)
                checks.inside(f"{name}, bias", words, estimate, 1e-3, float("inf"))
            words, slope = f"Slope of log(error) against log(M) with equal agents, {name}", self.slope(outcome, name)
            if SYSTEMS[name].moves != "steps" and name != "distributed TD":
                checks.inside(f"{name}, slope", words, slope, -1.2, -0.8)
            if (expected := outcome.facts[name]["slope"]) is not None:
                limits = {"slack": outcome.facts[name]["doubt"], "precision": 0.15, "relative": False}
                checks.equals(f"{name}, slope", words, slope, expected, **limits)

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for name in self.systems:
            slope, inflation = self.slope(outcome, name), self.inflation(outcome, name)
            reach = self.reach(outcome, name) or (float("inf"), float("inf"))
            row = (name, SYSTEMS[name].source, SYSTEMS[name].text, self.bias(outcome, name), *slope, *inflation, *reach)
            rows.append(row)
        names = ("system", "source", "built as", "bias", "slope", "slope_low", "slope_high")
        names += ("markov_ratio", "markov_low", "markov_high", "exchanges", "bytes")
        return columns(names, rows)

    def notes(self) -> list[str]:
        built = "; ".join(f"{name} ({SYSTEMS[name].source}) is `{SYSTEMS[name].text}`" for name in self.systems)
        return [
            f"Built from parts: {built}. Where a paper's exact form could not be checked, the part's documentation "
            "says so.",
            f"All run at the step {self.step_size:g} on {self.samples:,} observations of each agent, H = "
            f"{self.local_steps} where there are local steps; DisSACC moves once per {self.local_steps} observations, "
            "by as much as they would together.",
            "The distance without noise is a bias for methods without chance; random codes, losses and receiver noise "
            "make theirs fluctuate about the root.",
            "Slopes and the comparison with independent sampling are taken with equal agents, as the systems' own "
            "papers do; bias and traffic with heterogeneous ones. Papers prove the slope -1 for steps that shrink with "
            "the number of agents; here the step stays, and the predicted slopes of FedTD and FedHSA contain the bias "
            "of Markov data that more agents do not remove.",
            NOT_RUN,
        ]


def _flat(result: Result) -> np.ndarray:
    """Returns the error of each seed, averaged over the last part of the run."""
    records = result.error.shape[1]
    return result.error[:, int(FLAT * records) :].mean(1)


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none of them"

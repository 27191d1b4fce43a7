"""Fed-DVR-Q: the numbers of samples and bits needed to learn the values, by number of agents and horizon."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import statistics
from ...algorithms import FedDVRQ, LocalSA
from ...algorithms.codecs import WORD, Uniform
from ...environments import worlds
from ...problems import Problem, q_learning
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, max_error

REFERENCE = 0.9
"""The discount at which the number of agents varies, and to which `batch` refers."""
DVRQ, SYNQ = "#009E73", figures.COLOURS["LocalSA"]


class Case(NamedTuple):
    """The number of agents and their discount."""

    num_agents: int
    discount: float

    @property
    def label(self) -> str:
        """The name of the case's arrays."""
        return f"M = {self.num_agents}, discount {self.discount:g}"


class DoublyReduced(AbstractStudy):
    """Samples and bits until the values reach a given error, for equal agents with one simulator each."""

    name: str = "rl/fed-dvr-q"
    title: str = "Fed-DVR-Q"
    source: str = "The experiments of Salgia and Chi on the samples and the bits of federated Q-learning"
    seeds: int = 10
    step_size: float = 0.5
    agents: tuple[int, ...] = (2, 4, 8, 16, 32)
    """The numbers of agents at the discount 0.9."""
    num_agents: int = 8
    """The number of agents in the sweep over discounts."""
    discounts: tuple[float, ...] = (0.8, 0.9, 0.95, 0.975)
    batch: int = 64
    """The observations of all agents in a round at the discount 0.9; they scale with the square of the horizon."""
    recentring: tuple[int, ...] = (2, 8, 32, 128)
    """The number of recentring rounds in each epoch."""
    num_bits: int = 8
    range: float = 2.0
    """The quantiser's range in the first epoch; it halves with each epoch."""
    target: float = 0.06
    """The target for the largest error of a value, averaged over seeds."""
    synq_steps: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1)
    """The step sizes of Fed-SynQ, of which the best counts."""
    synq_seeds: int = 40
    """The number of seeds in the comparison with Fed-SynQ, which compares final errors."""
    num_states: int = 8
    num_actions: int = 2
    laziness: float = 0.8
    problem_key: int = 0

    claim: ClassVar[int] = 40
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.6)
    quick_settings: ClassVar[dict[str, Any]] = {
        "agents": (4, 16),
        "num_agents": 4,
        "discounts": (0.8, 0.9),
        "synq_steps": (0.02,),
    }

    def seconds(self) -> float:
        work = sum(self.algorithm(case).rounds * self.observations(case.discount) for case in self.cases())
        return 2.5 * (len(self.cases()) + 1) + 4e-7 * work * self.seeds * self.num_states * self.num_actions

    def cases(self) -> list[Case]:
        """Returns the cases: first the sweep over agents, then the sweep over horizons."""
        return list(dict.fromkeys([*self.sweep(), *self.horizons()]))

    def observations(self, discount: float) -> int:
        """Returns the number of observations of all agents together in a round."""
        return round(self.batch * ((1 - REFERENCE) / (1 - discount)) ** 2)

    def problem(self, case: Case) -> Problem:
        """Returns equal agents; only the discount changes between cases."""
        sizes = (case.num_agents, self.num_states, self.num_actions)
        settings: dict[str, Any] = {"laziness": self.laziness, "heterogeneity": 0.0, "key": self.problem_key}
        return q_learning.from_model(worlds.random(*sizes, discount=case.discount, **settings), synchronous=True)

    def algorithm(self, case: Case) -> FedDVRQ:
        """Returns Fed-DVR-Q with the paper's orders in the number of agents and the horizon."""
        refinements = math.ceil(2 / (self.step_size * (1 - case.discount)) - 1e-9)
        B = max(1, self.observations(case.discount) // case.num_agents)
        return FedDVRQ(self.step_size, B, self.recentring, refinements, Uniform(self.range, self.num_bits))

    def synq(self, step: float) -> tuple[LocalSA, int]:
        """Returns Fed-SynQ with the same numbers of samples and exchanges as Fed-DVR-Q, and its rounds."""
        method = self.algorithm(Case(self.num_agents, REFERENCE))
        exchanges = len(self.recentring) * (1 + method.refinements)
        return LocalSA(step, local_steps=method.rounds * method.local_steps // exchanges), exchanges

    def run(self, runner: Runner) -> Outcome:
        arrays: dict[str, np.ndarray] = {}
        settings: dict[str, Any] = {"key": self.key, "record": {"max": max_error}}
        compared = Case(self.num_agents, REFERENCE)
        for case in self.cases():
            problem, method = self.problem(case), self.algorithm(case)
            seeds = self.synq_seeds if case == compared else self.seeds
            result = runner.simulate(problem, method, rounds=method.rounds, seeds=seeds, **settings)
            arrays[case.label] = result.records["max"]
        problem = self.problem(compared)
        for step in self.synq_steps:
            method, rounds = self.synq(step)
            result = runner.simulate(problem, method, rounds=rounds, seeds=self.synq_seeds, **settings)
            arrays[f"synq {step:g}"] = result.records["max"]
        return Outcome(arrays, {"dim": problem.dim})

    def exchanged(self, case: Case) -> np.ndarray:
        """Returns the number of exchanges after each round, starting from 0."""
        method = self.algorithm(case)
        sends = [[*[False] * (n - 1), *[True] * (1 + method.refinements)] for n in self.recentring]
        return np.cumsum(np.concatenate([[0], *sends]))

    def until(self, outcome: Outcome, case: Case, what: str) -> Callable[[np.ndarray], float]:
        """Returns a function of seeds: samples or bits per agent until their mean error reaches the target."""
        curves, sent = outcome.arrays[case.label], self.exchanged(case)
        spent = self.algorithm(case).local_steps * np.arange(len(sent))
        if what == "bits":
            spent = self.num_bits * outcome.facts["dim"] * sent

        def measured(seeds: np.ndarray) -> float:
            at = statistics.crossing(curves[seeds].mean(0), self.target)
            # A run that misses the target counts as reaching it in its last round, and another check fails.
            return float(np.interp(at, np.arange(len(sent)), spent))

        return measured

    def estimates(self, outcome: Outcome, cases: Sequence[Case], what: str) -> list[Estimate]:
        """Returns the samples or bits until the target, with intervals for the figure."""
        seeds = np.arange(self.seeds)
        return [statistics.jackknife(self.until(outcome, case, what), seeds, figures.LEVEL) for case in cases]

    def sweep(self) -> list[Case]:
        """Returns the cases of the sweep over agents."""
        return [Case(m, REFERENCE) for m in self.agents]

    def horizons(self) -> list[Case]:
        """Returns the cases of the sweep over horizons."""
        return [Case(self.num_agents, discount) for discount in self.discounts]

    def power(self, outcome: Outcome, what: str, cases: Sequence[Case], x: Sequence[float]) -> Estimate:
        """Returns the power of `x` in the samples or bits until the target."""
        found = [self.until(outcome, case, what) for case in cases]

        def factor(seeds: np.ndarray) -> float:
            """Returns e to the power, since intervals are symmetric on the logarithmic scale."""
            return math.exp(statistics.power(x, [f(seeds) for f in found]))

        return Estimate(*np.log(statistics.jackknife(factor, np.arange(self.seeds))).tolist())

    def powers(self, outcome: Outcome) -> tuple[Estimate, Estimate, Estimate]:
        """Returns the powers of the number of agents in samples and in bits, and of the horizon in bits."""
        more = [self.power(outcome, what, self.sweep(), self.agents) for what in ("samples", "bits")]
        lengths = [1 / (1 - g) for g in self.discounts]
        return *more, self.power(outcome, "bits", self.horizons(), lengths)  # pyright: ignore[reportReturnType]

    def missed(self, outcome: Outcome) -> float:
        """Returns the largest, over cases, of the smallest mean error relative to the target."""
        return max(outcome.arrays[case.label].mean(0).min() for case in self.cases()) / self.target

    def best_step(self, outcome: Outcome) -> float:
        """Returns the step size at which Fed-SynQ has the smallest final error."""
        return min(self.synq_steps, key=lambda step: outcome.arrays[f"synq {step:g}"][:, -1].mean())

    def gain(self, outcome: Outcome) -> Estimate:
        """Returns Fed-SynQ's final error relative to Fed-DVR-Q's, for equal numbers of samples and exchanges."""
        other = outcome.arrays[f"synq {self.best_step(outcome):g}"][:, -1]
        return statistics.ratio(other, outcome.arrays[Case(self.num_agents, REFERENCE).label][:, -1])

    def check(self, outcome: Outcome, checks: Checks) -> None:
        statement = f"Least error of every case by the target, {self.target:g}"
        checks.at_most("reached", statement, self.missed(outcome), 1.0)
        samples, bits, horizon = self.powers(outcome)
        statement = "Power of the number of agents in the samples that each of them needs"
        checks.equals("samples", statement, samples, -1.0, slack=0.1)
        statement = "Power of the number of agents in the bits that each of them sends"
        checks.equals("bits", statement, bits, 0.0, slack=0.1, precision=0.1, relative=False)
        statement = "Power of the horizon 1 / (1 - discount) in the bits that each agent sends"
        checks.equals("horizon", statement, horizon, 1.0, slack=0.15)
        statement = "Error at the end, Fed-SynQ by Fed-DVR-Q, with as many samples and exchanges"
        checks.above("Fed-SynQ", statement, self.gain(outcome))

    def summary(self, outcome: Outcome) -> list[str]:
        samples, bits, horizon = self.powers(outcome)
        needed, sent = (self.estimates(outcome, self.sweep(), what) for what in ("samples", "bits"))
        step = self.best_step(outcome)
        return [
            f"To an error of {self.target:g}, {self.agents[0]} agents need {needed[0].value:.0f} samples each of every "
            f"pair and send {sent[0].value:.0f} bits each, {self.agents[-1]} agents {needed[-1].value:.0f} samples and "
            f"{sent[-1].value:.0f} bits: the powers of the number of agents are {samples:.2f} and {bits:.2f}.",
            f"With the horizon the bits grow to the power {horizon:.2f}.",
            f"Fed-SynQ, with as many samples and exchanges and the best of {len(self.synq_steps)} steps ({step:g}), "
            f"ends with {self.gain(outcome):.2f} times the error, and sends {WORD / self.num_bits:g} times the bits.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for what in ("samples", "bits"):
            for case, found in zip(self.cases(), self.estimates(outcome, self.cases(), what), strict=True):
                rows.append((*case, what, *found))
        return columns(("agents", "discount", "until the target", "mean", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Salgia and Chi, The sample-communication complexity trade-off in federated Q-learning, NeurIPS 2024, "
            "arXiv:2408.16981. Its text could not be read: the rule and the orders of its parameters are "
            "unchecked, and that its experiments compare with Fed-SynQ and vary agents and horizon is from a published "
            "review. Its environment and constants are not known here.",
            f"Ours is a dense random process with {self.num_states} states, {self.num_actions} actions and a chance of "
            f"{self.laziness:g} to stay, the same for all agents. Refinements are 2 / (step (1 - discount)), the batch "
            "of all agents together falls with the square of 1 - discount, recentring takes four times as many samples "
            "in each epoch and the range of the quantiser halves; the constants in front are ours, and far below the "
            "theory's.",
            "The batch of each agent is that of all by their number, so that samples and bits until the end of the "
            "schedule are as claimed by construction; what is measured is when the mean error of the seeds gets to the "
            "target. Target and recentring were chosen after a first look, so that the error does not cross the target "
            "near the end of an epoch, where small differences become large ones.",
            "Fed-SynQ (Woo, Joshi and Chi, 2023) is Local SA on the same problem; its step is the best of those tried "
            "by the same runs, which favours it. Its numbers count 64 bits each, and only bits that agents send count.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3)
        case = Case(self.num_agents, REFERENCE)
        method, sent = self.algorithm(case), self.exchanged(case)
        curve = outcome.arrays[case.label]
        figures.band(left, method.local_steps * np.arange(len(sent)), curve, DVRQ, label="Fed-DVR-Q")
        step = self.best_step(outcome)
        other, (local, rounds) = outcome.arrays[f"synq {step:g}"], self.synq(step)
        figures.band(left, local.local_steps * np.arange(rounds + 1), other, SYNQ, label=f"Fed-SynQ, step {step:g}")
        left.axhline(self.target, label="target", zorder=0, **figures.REFERENCE)
        left.set(yscale="log", xlabel="samples of each agent", title=f"$M$ = {self.num_agents}")
        left.set_ylabel(r"$\|Q - Q^{\star}\|_\infty$")
        figures.panel_legend(left)
        style: dict[str, Any] = {"color": DVRQ, "linestyle": "-"}
        at = np.array(self.agents)
        samples, bits = (self.estimates(outcome, self.sweep(), what) for what in ("samples", "bits"))
        figures.points(middle, at, samples, marker="o", label="samples", **style)
        middle.plot(at, samples[0].value * at[0] / at, label="proportional to $1/M$", **figures.REFERENCE)
        figures.points(middle, at, bits, marker="s", label="bits", **style)
        middle.set(
            xscale="log", yscale="log", xlabel="number of agents $M$", title=f"until the error is {self.target:g}"
        )
        middle.set_ylabel("samples or bits of each agent")
        figures.ticks(middle, self.agents)
        figures.panel_legend(middle)
        horizons = np.array([1 / (1 - g) for g in self.discounts])
        long = self.estimates(outcome, self.horizons(), "bits")
        figures.points(right, horizons, long, marker="s", **style)
        line = long[0].value * horizons / horizons[0]
        right.plot(horizons, line, label="linear", **figures.REFERENCE)
        right.set(xscale="log", yscale="log", xlabel=r"$1 / (1 - \gamma)$", ylabel="bits of each agent")
        right.set_title(f"$M$ = {self.num_agents}")
        figures.ticks(right, horizons)
        figures.panel_legend(right)
        figures.grid(left, middle, right)
        figures.heading(figure, f"Fed-DVR-Q: {self.seeds} seeds, 95 % intervals")

"""FedAsynQ: Q-learning by agents that each try one action, with equal averaging or importance averaging."""

import math
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ..._random import host_generator
from ...algorithms import AbstractAlgorithm, FedHSA, ImportanceAveraging, LocalSA
from ...environments import worlds
from ...problems import Problem, q_learning
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, late, max_error, reached

NAMES = {"importance": "importance averaging", "equal": "equal averaging", "FedHSA": "FedHSA"}
SOURCE = 2000
"""The number of observations of each agent in the source's figure."""
LEVEL = 0.1
"""The error at which speeds are compared."""


class Importance(AbstractStudy):
    """Two states and many actions: each agent observes at most two pairs, and together they observe all pairs."""

    name: str = "rl/importance"
    title: str = "Importance averaging"
    source: str = "Figures 3 and 4 of Woo, Joshi and Chi on federated Q-learning"
    seeds: int = 10
    step_size: float = 0.05
    """The step size of importance averaging."""
    equal_step: float = 0.2
    """The step size of equal averaging and of FedHSA."""
    local_steps: int = 50
    num_agents: int = 20
    num_actions: int = 20
    discount: float = 0.9
    rounds: int = 1000
    sweep_agents: tuple[int, ...] = (20, 40, 80)
    """Multiples of the number of actions, so that the same number of agents takes every action."""
    sweep_steps: tuple[float, ...] = (0.05, 0.02)
    sweep_rounds: int = 500
    problem_key: int = 0
    """The key of the probabilities of staying."""

    claim: ClassVar[int] = 24
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 8,
        "rounds": 500,
        "sweep_agents": (20, 80),
        "sweep_steps": (0.05,),
        "sweep_rounds": 200,
    }

    def seconds(self) -> float:
        sweep = self.sweep_rounds * len(self.sweep_steps) * sum(self.sweep_agents)
        steps = (len(NAMES) * self.rounds * self.num_agents + sweep) * self.seeds * self.local_steps
        return 8.0 + 4.0 * (len(NAMES) + len(self.sweep_agents)) + 3e-7 * steps

    def problem(self, num_agents: int) -> Problem:
        """Returns the problem; agent i always takes action i modulo the number of actions."""
        model = worlds.two_state(num_agents, self.num_actions, discount=self.discount, key=self.problem_key)
        return q_learning.from_model(model, worlds.one_action_each(model), start="episode")

    def methods(self) -> dict[str, AbstractAlgorithm]:
        """Returns the methods in the order of the legend."""
        return {
            "importance": ImportanceAveraging(self.step_size, local_steps=self.local_steps),
            "equal": LocalSA(self.equal_step, local_steps=self.local_steps),
            "FedHSA": FedHSA(self.equal_step, local_steps=self.local_steps),
        }

    def run(self, runner: Runner) -> Outcome:
        problem, arrays = self.problem(self.num_agents), {}
        start = host_generator(self.key, "start").uniform(0, 1 / (1 - self.discount), problem.dim)
        every = math.gcd(self.rounds, 5)
        settings: dict[str, Any] = {"seeds": self.seeds, "key": self.key, "record": {"max": max_error}}
        for name, algorithm in self.methods().items():
            result = runner.simulate(problem, algorithm, rounds=self.rounds, every=every, theta=start, **settings)
            arrays[name] = (1 - self.discount) * result.records["max"]
        for K in self.sweep_agents:
            problem = self.problem(K)
            for step in self.sweep_steps:
                algorithm = ImportanceAveraging(step, local_steps=self.local_steps)
                more = settings | {"theta": problem.theta_star, "record": ("theta",), "every": 5}
                result = runner.simulate(problem, algorithm, rounds=self.sweep_rounds, **more)
                off = (1 - self.discount) * (result.records["theta"] - problem.theta_star)
                arrays[f"{K} agents, step {step:g}"] = off[:, off.shape[1] // 2 :]
        return Outcome(arrays, {"every": every})

    def speed(self, outcome: Outcome) -> Estimate:
        """Returns the time of equal averaging to the level, relative to the time of importance averaging."""

        def rounds(name: str, seeds: np.ndarray) -> float:
            curve = outcome.arrays[name][seeds].mean(0)
            at = reached(curve, LEVEL)
            if not at:
                return float(len(curve)) if at is None else 1.0
            before, after = np.log(curve[at - 1 : at + 1] / LEVEL)
            return at - after / (after - before)

        seeds = np.arange(self.seeds)
        return statistics.jackknife(lambda some: rounds("equal", some) / rounds("importance", some), seeds)

    def squares(self, outcome: Outcome, step: float) -> np.ndarray:
        """Returns the mean of the squared largest error, for each number of agents and seed."""
        runs = [outcome.arrays[f"{K} agents, step {step:g}"] for K in self.sweep_agents]
        return np.stack([(abs(off).max(-1) ** 2).mean(1) for off in runs])

    def variances(self, outcome: Outcome, step: float) -> np.ndarray:
        """Returns the variance of an entry's distance from the level of all entries, with the axes of `squares`.

        The level itself moves so slowly that a run contains only a few independent values of it.
        """
        runs = [outcome.arrays[f"{K} agents, step {step:g}"] for K in self.sweep_agents]
        around = [off - off.mean(-1, keepdims=True) for off in runs]
        return np.stack([((off - off.mean((0, 1))) ** 2).mean((1, 2)) for off in around])

    def power(self, samples: np.ndarray) -> Estimate:
        """Returns the power of the number of agents with which these samples decrease."""
        return statistics.slope(self.sweep_agents, samples)

    def check(self, outcome: Outcome, checks: Checks) -> None:
        at = SOURCE // self.local_steps // outcome.facts["every"]
        ends = outcome.arrays["equal"][:, at], outcome.arrays["importance"][:, at]
        statement = f"Error after {SOURCE} observations of each agent, equal by importance averaging"
        checks.above(f"after {SOURCE}", statement, statistics.ratio(*ends))
        statement = f"Rounds until the error is {LEVEL:g}, equal by importance averaging"
        checks.inside("speed", statement, self.speed(outcome), 1.5, math.inf)
        floors = statistics.ratio(late(outcome.arrays["importance"]), late(outcome.arrays["equal"]))
        statement = "Where the error stays, importance by equal averaging: not above"
        checks.inside("floor", statement, floors, 0.0, 1.1)
        for step in self.sweep_steps:
            statement = f"Step {step:g}: power of the number of agents with which the squared error falls"
            power = self.power(self.squares(outcome, step))
            checks.inside(f"agents, step {step:g}", statement, power, -1.2, 0.0)
            statement = f"Step {step:g}: power of the number of agents with which the entries' variance falls"
            power = self.power(self.variances(outcome, step))
            checks.equals(f"variance, step {step:g}", statement, power, -1.0, slack=0.1)

    def summary(self, outcome: Outcome) -> list[str]:
        at = SOURCE // self.local_steps // outcome.facts["every"]
        early = [f"{outcome.arrays[name][:, at].mean():.2g}" for name in NAMES]
        ends = [f"{late(outcome.arrays[name]).mean():.2g}" for name in NAMES]
        speed = self.speed(outcome)
        said = {}
        for kind, samples in (("error", self.squares), ("variance", self.variances)):
            powers = [(self.power(samples(outcome, step)), step) for step in self.sweep_steps]
            said[kind] = ", ".join(f"{p:.2f} at step {step:g}" for p, step in powers)
        return [
            f"After {SOURCE} observations of each agent the normalised error is {early[0]} with importance averaging, "
            f"{early[1]} with equal averaging; it gets to {LEVEL:g} {speed.value:.2f} times as fast, and stays at "
            f"{ends[0]} and {ends[1]}. FedHSA at equal averaging's step stays at {ends[2]}: its correction of a pair "
            "is the noise of one observation, held for a whole round.",
            "With the number of agents the variance of the entries around their common level falls to the power "
            f"{said['variance']}, but the squared error to {said['error']} only: what stays at a constant step is for "
            "the larger part a level that is too high, as a maximum over noisy values is, and local noise does not "
            "become less with more agents.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for name in NAMES:
            rows.append((name, self.num_agents, *statistics.mean(late(outcome.arrays[name]), level=0.95)))
        for step in self.sweep_steps:
            for K, samples in zip(self.sweep_agents, np.sqrt(self.squares(outcome, step)), strict=True):
                rows.append((f"importance, step {step:g}, from the root", K, *statistics.mean(samples, level=0.95)))
        return columns(("method", "agents", "error", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Woo, Joshi and Chi, The blessing of heterogeneity in federated Q-learning: linear speedup and beyond, "
            "ICML 2023, arXiv:2305.10697, appendix A: 2 states, 20 actions, chances to stay uniform on [0.4, 0.6], "
            "reward 1 in the second state, discount 0.9, 50 local steps; agent k always takes action k modulo 20. "
            "Importance averaging has the step 0.05, equal averaging 0.2; values start uniformly on [0, 10].",
            "The error is (1 - discount) times the largest error of an entry. One start is drawn for all seeds. "
            f"The figure of the source ends at {SOURCE} observations of each agent, in our reading; we go on.",
            "For the numbers of agents values start at the root, so that the error is what noise makes of it, and "
            "the mean square over the second half is taken. We do not know what step the source has in that figure.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, right = figure.subplots(1, 2)
        looks = {"importance": "#009E73", "equal": figures.COLOURS["LocalSA"], "FedHSA": figures.COLOURS["FedHSA"]}
        for name, words in NAMES.items():
            step, errors = self.step_size if name == "importance" else self.equal_step, outcome.arrays[name]
            at = outcome.facts["every"] * self.local_steps * np.arange(errors.shape[1])
            figures.band(left, at, errors, looks[name], label=rf"{words}, $\eta$ = {step:g}")
        left.axvline(SOURCE, zorder=0, label="length of the paper's figure", **figures.REFERENCE)
        left.set(yscale="log", xlabel="observations of each agent", title=f"{self.num_agents} agents")
        left.set_ylabel(r"$(1 - \gamma)\,\|Q - Q^{\star}\|_\infty$")
        for step, colour in zip(self.sweep_steps, ("#009E73", "#000000", "#CC79A7"), strict=False):
            found = figures.means(1 / self.squares(outcome, step))
            style: dict[str, Any] = {"color": colour, "marker": "o", "linestyle": "-", "capsize": 2}
            figures.points(
                right, self.sweep_agents, found, unit=found[0].value, label=rf"simulated, $\eta$ = {step:g}", **style
            )
            part = self.variances(outcome, step).mean(1)
            right.plot(self.sweep_agents, part[0] / part, color=colour, linestyle="-.")
        at = np.array([self.sweep_agents[0], self.sweep_agents[-1]])
        right.plot(at, at / at[0], label="linear", **figures.REFERENCE)
        right.plot([], [], color="0.3", linestyle="-.", label="1 / variance alone")
        right.set(xlabel="number of agents", title="importance averaging")
        right.set_ylabel(f"1 / error², relative to {self.sweep_agents[0]} agents")
        right.set_xticks(self.sweep_agents)
        for ax in (left, right):
            figures.panel_legend(ax)
        figures.grid(left, right)
        figures.heading(figure, f"Q-learning, $H$ = {self.local_steps}: {self.seeds} seeds, 95 % intervals")

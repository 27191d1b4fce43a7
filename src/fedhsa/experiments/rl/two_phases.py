"""Federated Q-learning with a constant step size in heterogeneous mazes: the error falls, rises and levels off."""

import math
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ..._random import host_generator
from ...algorithms import SCAFFLSA, AbstractAlgorithm, FedHSA, LocalSA
from ...environments import Model
from ...problems import Problem, q_learning
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, late, max_error, rows_of

RECORDS = 400
TIMES = 8.0
"""The length of a run in units of the slowest mode's time: less than a thousandth of the initial error is left."""


class TwoPhases(AbstractStudy):
    """Synchronous Q-learning by agents in separate mazes, with and without a correction."""

    name: str = "rl/two-phases"
    title: str = "The two phases of federated Q-learning"
    source: str = "The experiments of Wang, Yang and Su on federated Q-learning"
    seeds: int = 6
    step_sizes: tuple[float, ...] = (0.2, 0.5)
    local_steps: tuple[int, ...] = (1, 5, 20)
    """The numbers of local steps $E$."""
    num_agents: int = 20
    size: int = 5
    """The number of rows and columns of a maze."""
    wall: float = 0.3
    """The probability of a wall between two cells."""
    slip: float = 0.5
    """The probability that an action leads in a random direction."""
    reward: float = 0.1
    """The probability that a state-action pair has reward 1 instead of 0."""
    discount: float = 0.99
    problem_key: int = 0

    claim: ClassVar[int] = 28
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.0)
    quick_settings: ClassVar[dict[str, Any]] = {"step_sizes": (0.2,), "local_steps": (1, 20), "seeds": 4}

    def seconds(self) -> float:
        steps = sum(self._iterations(step) for step in self.step_sizes) * len(self.local_steps)
        return 8.0 + 6.0 * len(self.local_steps) + 4e-8 * steps * self.seeds * self.num_agents * 4 * self.size**2

    def problem(self) -> Problem:
        """Returns the problem; rewards are common, 0 or 1, and each agent has separate walls."""
        chances = self.wall, self.slip, self.reward
        model = mazes(self.num_agents, self.size, *chances, self.discount, self.problem_key)
        return q_learning.from_model(model, synchronous=True)

    def _iterations(self, step: float) -> int:
        """Returns the number of iterations, a multiple of every number of local steps."""
        unit = math.lcm(*self.local_steps)
        return unit * math.ceil(TIMES / (step * (1 - self.discount)) / unit)

    @property
    def corrected_step(self) -> float:
        """The smallest step size; at larger step sizes FedHSA's noise is unbounded."""
        return min(self.step_sizes)

    def methods(self, step: float, E: int) -> dict[str, AbstractAlgorithm]:
        """Returns the methods; FedHSA equals `LocalSA` for one local step, and SCAFFLSA is added for the most steps."""
        found: dict[str, AbstractAlgorithm] = {"LocalSA": LocalSA(step, local_steps=E)}
        if E > 1 and step == self.corrected_step:
            found["FedHSA"] = FedHSA(step, local_steps=E)
            if max(self.local_steps) == E:
                found["SCAFFLSA"] = SCAFFLSA(step, local_steps=E)
        return found

    def run(self, runner: Runner) -> Outcome:
        problem, arrays, rows = self.problem(), {}, []
        for E in self.local_steps:
            for step in self.step_sizes:
                rounds = self._iterations(step) // E
                every = math.gcd(rounds, max(1, rounds // RECORDS))
                settings: dict[str, Any] = {"rounds": rounds, "every": every, "record": {"max": max_error}}
                for name, algorithm in self.methods(step, E).items():
                    result = runner.simulate(problem, algorithm, seeds=self.seeds, key=self.key, **settings)
                    arrays[label(name, E, step)] = result.records["max"]
                    rows.append({"method": name, "E": E, "step": step, "every": every})
                    if step == self.corrected_step and name != "SCAFFLSA":
                        result = runner.simulate(problem.noiseless(), algorithm, **settings)
                        arrays[label(name, E, 0.0)] = result.records["max"]
                        rows.append({"method": name, "E": E, "step": 0.0, "every": every})
        return Outcome(arrays, {"rows": rows, "scale": float(abs(problem.theta_star).max())})

    def check(self, outcome: Outcome, checks: Checks) -> None:
        most, least = max(self.local_steps), min(self.local_steps)
        for step in self.step_sizes:
            curves = {E: outcome.arrays[label("LocalSA", E, step)] for E in self.local_steps}
            statement = f"Step {step:g}, E = {most}: where the error stays, by the least error on the way"
            checks.above(f"bounce, step {step:g}", statement, bounce(curves[most]), 1.5)
            growth = statistics.ratio(late(curves[most]), late(curves[least]))
            statement = f"Step {step:g}: where the error stays with E = {most}, by where it does with E = {least}"
            checks.above(f"growth with E, step {step:g}", statement, growth)
        if len(self.step_sizes) > 1:
            small, large = (outcome.arrays[label("LocalSA", most, pick(self.step_sizes))] for pick in (min, max))
            statement = f"E = {most}: where the error stays, the largest step by the smallest"
            checks.above("growth with the step", statement, statistics.ratio(late(large), late(small)))
        other = self.gain(outcome, most, "SCAFFLSA")
        statement = (
            f"With noise, step {self.corrected_step:g}, E = {most}: where the error stays, SCAFFLSA relative to Local "
            "SA"
        )
        checks.inside("SCAFFLSA with noise", statement, other, 0.0, 1.0)
        exact, drifting = (outcome.arrays[label(name, most, 0.0)][0, -1] for name in ("FedHSA", "LocalSA"))
        statement = f"Without noise, E = {most}: error of FedHSA at the end relative to Local SA's"
        checks.at_most("correction without noise", statement, float(exact / drifting), 0.02)

    def gain(self, outcome: Outcome, E: int, method: str = "FedHSA") -> Estimate:
        """Returns the floor of a method with noise relative to `LocalSA`'s floor."""
        corrected, local = (outcome.arrays[label(name, E, self.corrected_step)] for name in (method, "LocalSA"))
        return statistics.ratio(late(corrected), late(local))

    def summary(self, outcome: Outcome) -> list[str]:
        most, step = max(self.local_steps), self.corrected_step
        lines = []
        for size in self.step_sizes:
            curve = outcome.arrays[label("LocalSA", most, size)]
            low, end, one = curve.mean(0).min(), late(curve).mean(), late(outcome.arrays[label("LocalSA", 1, size)])
            lines.append(f"to {low:.2g} and up to {end:.2g} again at step {size:g} (E = 1: {one.mean():.2g})")
        gains = [f"{self.gain(outcome, E):.2f} at E = {E}" for E in self.local_steps if E > 1]
        exact, drifting = (outcome.arrays[label(name, most, 0.0)][0, -1] for name in ("FedHSA", "LocalSA"))
        other = self.gain(outcome, most, "SCAFFLSA")
        return [
            f"With E = {most} local steps the error, {outcome.facts['scale']:.3g} at the start, falls "
            f"{', '.join(lines)}. On the way up from zero the values pass the right ones, and end above them: agents "
            "that each take the best of their own values are too optimistic about the average environment.",
            f"Without noise FedHSA has no second phase: at step {step:g} and E = {most} it is at {exact:.2g}, Local SA "
            f"at {drifting:.2g}. With noise its error stays at so many times Local SA's: {', '.join(gains)}. The "
            "correction holds the noise of one sample for a whole round, and noise, too, makes a maximum optimistic. "
            f"SCAFFLSA, whose correction gathers over rounds, is at {other:.2f} for E = {most}.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for row in outcome.facts["rows"]:
            curve = outcome.arrays[label(row["method"], row["E"], row["step"])]
            floor = statistics.mean(late(curve), level=0.95) if row["step"] else (curve[0, -1], None, None)
            rows.append((row["method"], row["E"], row["step"], curve.mean(0).min(), *floor))
        return columns(("method", "E", "step", "least", "plateau", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Wang, Yang and Su, On the convergence rates of federated Q-learning across heterogeneous environments, "
            "TMLR 2025, arXiv:2409.03897: 20 agents in random 5 x 5 mazes of their own, discount 0.99; all pairs are "
            "updated in every step. Rewards of pairs are 0 or 1 with equal chances there, and values start at 0.",
            f"The source does not say how it draws mazes: here each wall stands with a chance of {self.wall:g}, and "
            f"with a chance of {self.slip:g} an action leads in any direction. Only {100 * self.reward:g} % of the "
            "pairs are worth 1: with half of them, nearly every state has such an action, so that all agents do best "
            "in the same way.",
            "Errors are largest errors of an entry. The error stays where the mean over the last quarter is; a run "
            f"lasts {TIMES:g} times the time 1 / (step (1 - discount)) of the slowest mode.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        looks = figures.shades(self.local_steps)
        dashes: dict[str, Any] = {"LocalSA": "-", "FedHSA": figures.DASHES, "SCAFFLSA": ":"}
        axes = figure.subplots(1, len(self.step_sizes) + 1, sharey=True)
        for ax, step in zip(axes, (*self.step_sizes, 0.0), strict=True):
            for row in rows_of(outcome, step=step):
                curves = outcome.arrays[label(row["method"], row["E"], step)]
                at = row["every"] * row["E"] * np.arange(curves.shape[1])
                colour, style = looks[row["E"]], {"linestyle": dashes[row["method"]]}
                if step:
                    figures.band(ax, at, curves, colour, **style)
                else:
                    ax.plot(at, curves.mean(0), color=colour, **style)
            title = rf"$\eta = {step:g}$" if step else rf"$\eta = {self.corrected_step:g}$, without noise"
            ax.set(yscale="log", xlabel="iteration", title=title)
            ax.locator_params(axis="x", nbins=4)
        axes[0].set_ylabel(r"$\|Q - Q^{\star}\|_\infty$")
        shown = [("LocalSA", "-", looks), ("FedHSA", figures.DASHES, [E for E in looks if E > 1])]
        entries = {
            f"{method}, $E$ = {E}": {"color": looks[E], "linestyle": style}
            for method, style, numbers in (*shown, ("SCAFFLSA", ":", [max(looks)]))
            for E in numbers
        }
        figures.grid(*axes)
        title = f"{self.num_agents} agents, averages after every $E$ iterations; {self.seeds} seeds, 95 % intervals"
        figures.legend(figure, entries, 3, title)


def label(method: str, E: int, step: float) -> str:
    """Returns the name of a curve; step 0 denotes the smallest step size without noise."""
    return f"{method}, E = {E}, step {step:g}"


def bounce(curves: np.ndarray) -> Estimate:
    """Returns the final error relative to the smallest mean error before, which is common to all seeds."""
    lowest = int(curves.mean(0).argmin())
    return statistics.ratio(late(curves), curves[:, lowest])


def mazes(num_agents: int, size: int, wall: float, slip: float, reward: float, discount: float, key: int) -> Model:
    """Returns grids with different random walls for each agent, and common rewards of 0 or 1 for every pair.

    !!! example
        >>> mazes(2, 3, wall=1.0, slip=0.0, reward=0.1, discount=0.9, key=0).transitions[0, 4, 0, 4]    # walled in
        np.float64(1.0)
    """
    S = size * size
    cell = np.arange(S).reshape(size, size)
    P = np.empty((num_agents, S, 4, S))
    for i in range(num_agents):
        rng = host_generator(key, "maze", i)
        ahead = np.stack([cell] * 4, axis=-1)  # left, up, right, down; a wall keeps the agent in its cell
        beside, below = rng.random((size, size - 1)) >= wall, rng.random((size - 1, size)) >= wall
        ahead[:, 1:, 0] = np.where(beside, cell[:, :-1], cell[:, 1:])
        ahead[:, :-1, 2] = np.where(beside, cell[:, 1:], cell[:, :-1])
        ahead[1:, :, 1] = np.where(below, cell[:-1], cell[1:])
        ahead[:-1, :, 3] = np.where(below, cell[1:], cell[:-1])
        sure = np.eye(S)[ahead.reshape(S, 4)]
        P[i] = (1 - slip) * sure + slip * sure.mean(1, keepdims=True)
    rewards = (host_generator(key, "reward").random((S, 4)) < reward).astype(float)
    return Model(P, np.repeat(rewards[None], num_agents, axis=0), discount, grid=(size, size))

"""One-shot averaging: TD(0) and TD(lambda) on the five-state random walk, by agents that average only at the end."""

from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ...algorithms import SA, OneShotAveraging
from ...environments import worlds
from ...problems import Problem, td_lambda
from ...theory import predict
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, second_half

LENGTH = 9
"""The mean number of steps of an episode."""
NUM_STATES = 5
START = 0.5
"""The initial value of every state."""


class OneShot(AbstractStudy):
    """The same walk for all agents: averaging reduces the variance only."""

    name: str = "rl/one-shot"
    title: str = "One average at the end"
    source: str = "The experiment of Tian, Paschalidis and Olshevsky on one-shot TD learning"
    seeds: int = 200
    step_size: float = 0.001
    """The step size in the source."""
    large_step: float = 0.05
    """The step size in the textbook, with which the same number of episodes suffices to learn the values."""
    traces: tuple[float, ...] = (0.0, 0.5)
    agents: tuple[int, ...] = (1, 2, 4, 8)
    episodes: int = 100
    """The number of episodes in the source."""
    more_episodes: int = 800
    """The number of episodes after which the start is forgotten at the larger step size."""

    claim: ClassVar[int] = 25
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.8)
    quick_settings: ClassVar[dict[str, Any]] = {"agents": (1, 8), "seeds": 100}

    def seconds(self) -> float:
        steps = LENGTH * (self.episodes + self.more_episodes) * sum(self.agents) * len(self.traces) * self.seeds
        return 5.0 + 2.5 * len(self.agents) * len(self.traces) + 6e-8 * steps

    def problem(self, num_agents: int, trace: float) -> Problem:
        """Returns the walk; a new episode follows every episode."""
        return td_lambda.from_model(worlds.random_walk(num_agents), trace_decay=trace, start="episode")

    def run(self, runner: Runner) -> Outcome:
        arrays, predicted = {}, {}
        theta = np.full(NUM_STATES, START)
        for trace in self.traces:
            for n in self.agents:
                problem = self.problem(n, trace)
                for step, episodes in ((self.step_size, self.episodes), (self.large_step, self.more_episodes)):
                    algorithm = OneShotAveraging(step, local_steps=LENGTH)
                    settings = {"rounds": episodes, "seeds": self.seeds, "key": self.key, "record": ("theta",)}
                    result = runner.simulate(problem, algorithm, theta=theta, **settings)
                    arrays[label(trace, n, step)] = result.records["theta"] - problem.theta_star
            found = predict(self.problem(1, trace), SA(self.large_step))
            bias = found.heterogeneity_bias + found.markov_bias + found.curvature_bias
            predicted[f"{trace:g}"] = [float(bias @ bias), float(np.trace(found.covariance))]
        return Outcome(arrays, {"predicted": predicted})

    def law(self, outcome: Outcome, trace: float, n: int) -> float:
        """Returns the floor of the mean-square error at the larger step size: a bias, and 1/n of the variance."""
        bias, variance = outcome.facts["predicted"][f"{trace:g}"]
        return (bias + variance / n) / NUM_STATES

    def squares(self, outcome: Outcome, trace: float, n: int, step: float) -> np.ndarray:
        """Returns the mean squared error over the states, `(seeds, episodes + 1)`."""
        return (outcome.arrays[label(trace, n, step)] ** 2).mean(-1)

    def floor(self, outcome: Outcome, trace: float, n: int) -> np.ndarray:
        """Returns the mean-square error at the larger step size over the second half of the run."""
        return second_half(self.squares(outcome, trace, n, self.large_step))

    def variance(self, outcome: Outcome, trace: float, n: int, step: float, episode: int) -> np.ndarray:
        """Returns squared deviations from the mean over all seeds; their mean is the variance."""
        values = outcome.arrays[label(trace, n, step)][:, episode]
        return ((values - values.mean(0)) ** 2).mean(-1) * len(values) / (len(values) - 1)

    def spread(self, outcome: Outcome, trace: float, n: int, step: float, episode: int) -> Estimate:
        """Returns n times the variance of n agents' average relative to one agent's variance; the exact value is 1."""
        most = self.variance(outcome, trace, n, step, episode)
        return statistics.ratio(n * most, self.variance(outcome, trace, 1, step, episode))

    def power(self, outcome: Outcome, trace: float) -> Estimate:
        """Returns the power of the number of agents with which the floor decreases."""
        return statistics.slope(self.agents, np.stack([self.floor(outcome, trace, n) for n in self.agents]))

    def check(self, outcome: Outcome, checks: Checks) -> None:
        most = max(self.agents)
        for trace in self.traces:
            name = f"TD({trace:g})"
            statement = f"{name}, step {self.large_step:g}: power of n with which the squared error falls"
            power = self.power(outcome, trace)
            checks.inside(f"{name}, power", statement, power, -1.15, -0.8)
            for step, episode in ((self.step_size, self.episodes), (self.large_step, self.episodes)):
                ratio = self.spread(outcome, trace, most, step, episode)
                statement = f"{name}, step {step:g}, {episode} episodes: n times the variance, n = {most} by n = 1"
                where = f"{name}, variance, step {step:g}"
                checks.equals(where, statement, ratio, 1.0, precision=0.6)
            for n in (1, most):
                floor = statistics.mean(self.floor(outcome, trace, n))
                statement = f"{name}, n = {n}: where the mean squared error stays, against the prediction"
                where, law = f"{name}, law, n = {n}", self.law(outcome, trace, n)
                checks.equals(where, statement, floor, law, slack=0.1)
            gain = self.gain(outcome, trace)
            statement = f"{name}, step {self.step_size:g}, {self.episodes} episodes, which is the start's error: "
            statement += f"squared error, n = {most} by n = 1"
            checks.inside(f"{name}, as the source", statement, gain, 0.95, 1.05)

    def gain(self, outcome: Outcome, trace: float) -> Estimate:
        """Returns the final squared error of the most agents relative to one agent, in the source's setting."""
        many, one = (self.squares(outcome, trace, n, self.step_size)[:, -1] for n in (max(self.agents), 1))
        return statistics.ratio(many, one)

    def summary(self, outcome: Outcome) -> list[str]:
        powers, parts, biases = [], [], []
        for trace in self.traces:
            power, gain = self.power(outcome, trace), self.gain(outcome, trace)
            powers.append(f"{power:.3f} for TD({trace:g})")
            biases.append(f"{outcome.facts['predicted'][f'{trace:g}'][0] / NUM_STATES:.1g}")
            curve = np.sqrt(self.squares(outcome, trace, 1, self.step_size).mean(0))
            parts.append(
                f"{gain.value:.3f} of one agent's for TD({trace:g}), which is at {curve[-1]:.3f} from {curve[0]:.3f}"
            )
        return [
            f"At step {self.large_step:g}, once the start is forgotten, the mean squared error falls with the number "
            f"of agents to the power {', '.join(powers)}: n agents are worth n times the data, up to a bias of "
            f"{', '.join(biases)} that correlation in time leaves, and averaging keeps.",
            f"At the source's step {self.step_size:g} the squared error of {max(self.agents)} agents after "
            f"{self.episodes} episodes is {'; '.join(parts)} in root mean square. So few small steps hardly leave the "
            "start, which averaging does not change; the variance is n times smaller there, too.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for trace in self.traces:
            for n in self.agents:
                early = statistics.mean(self.squares(outcome, trace, n, self.step_size)[:, -1], level=0.95)
                rows.append((trace, n, self.step_size, f"after {self.episodes} episodes", *early))
                floor = statistics.mean(self.floor(outcome, trace, n), level=0.95)
                rows.append((trace, n, self.large_step, "where it stays", *floor))
        return columns(("lambda", "agents", "step", "when", "mean squared error", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Tian, Paschalidis and Olshevsky, One-shot averaging for distributed TD(lambda) under Markov sampling, "
            "L-CSS 2024, arXiv:2403.08896, and the page of its public repository: the random walk of Sutton and "
            "Barto's Example 6.2, step 0.001, 100 episodes, 1 to 8 agents, TD(0) and TD(0.5).",
            f"An episode has {LENGTH} steps on average, and is counted as {LENGTH} steps. Values start at 0.5, as in "
            "the textbook; the source does not state its start.",
            "Agents are independent and alike, so their average has the mean of one and a variance n times smaller, "
            "exactly and at all times. Bias and variance at the larger step are estimated from samples, to first "
            "order in the step.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3)
        first, looks = self.traces[0], figures.shades(self.agents)
        for ax, step in ((left, self.step_size), (middle, self.large_step)):
            for n, colour in looks.items():
                ax.plot(np.sqrt(self.squares(outcome, first, n, step).mean(0)), color=colour, label=f"$n$ = {n}")
            ax.set(xlabel="episode", title=rf"TD({first:g}), $\eta = {step:g}$", xlim=(0, None))
        left.set(ylim=(0, None), ylabel="root-mean-square error")
        left.annotate("the four curves coincide", (0.5, 0.86), xycoords="axes fraction", fontsize=7, ha="center")
        middle.set(yscale="log", ylabel="root-mean-square error")
        figures.panel_legend(middle)
        for trace, colour in zip(self.traces, ("#0072B2", "#D55E00", "#009E73"), strict=False):
            found = figures.means(self.floor(outcome, trace, n) for n in self.agents)
            figures.points(right, self.agents, found, label=rf"TD({trace:g})", **figures.dots(colour))
            law = [self.law(outcome, trace, n) for n in self.agents]
            figures.theory(right, self.agents, law, colour)
            right.plot(self.agents, law[0] / np.array(self.agents), zorder=0, **figures.REFERENCE)
        right.set(xscale="log", yscale="log", xlabel="number of agents $n$")
        right.set(ylabel="floor of the mean-square error", title=rf"$\eta = {self.large_step:g}$")
        figures.ticks(right, self.agents)
        right.plot([], [], label="predicted", **figures.dashed())
        right.plot([], [], label="proportional to $1/n$", **figures.REFERENCE)
        figures.panel_legend(right)
        figures.grid(left, middle, right)
        figures.heading(figure, f"Average of $n$ agents at the end: means of {self.seeds} seeds, 95 % intervals")


def label(trace: float, n: int, step: float) -> str:
    """Returns the name of a run."""
    return f"TD({trace:g}), n = {n}, step {step:g}"

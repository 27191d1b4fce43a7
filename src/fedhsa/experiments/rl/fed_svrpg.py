"""FedSVRPG-M, momentum with importance weights: the effects of more agents, heterogeneity and clipped weights."""

from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ..._random import host_generator
from ...algorithms import MomentumSA
from ...environments import Model
from ...problems import Problem, policy_gradient
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, late

MOST_AGENTS = 20
EVERY = 2
"""The number of rounds between two records."""
ALL = 1e9
"""The largest weight if no weight is clipped; it is finite so that all cases use one compiled program."""
EARLY = slice(1, 6)
"""The records that count as early."""


class FedSVRPG(AbstractStudy):
    """Softmax policies and gradients from episodes; with exact gradients, the whole error is drift."""

    name: str = "rl/fed-svrpg"
    title: str = "FedSVRPG-M"
    source: str = "The claims of Wang et al. on FedSVRPG-M: linear speed-up, at any heterogeneity"
    seeds: int = 8
    agents: tuple[int, ...] = (1, 2, 5, 10, 20)
    num_agents: int = 10
    """The number of agents, one of `agents`, with which methods are compared."""
    beta: float = 0.2
    max_weight: float = 1.2
    clips: tuple[float, ...] = (1.2, 1.5, ALL)
    step_sizes: tuple[float, ...] = (0.5, 5.0)
    """The step sizes; the first also applies to the speed-up and the drift."""
    local_steps: int = 10
    iterations: int = 1000
    """The total number of local steps."""
    heterogeneity: tuple[float, ...] = (0.25, 0.5, 1.0)
    """The heterogeneity of kernels and rewards, with exact gradients."""
    smaller: float = 10.0
    """The factor by which the local step size is divided and the server's step size is multiplied."""
    exact_iterations: int = 1600
    entropy: float = 0.2
    batch: int = 2
    horizon: int = 24
    num_states: int = 5
    num_actions: int = 3
    discount: float = 0.7

    claim: ClassVar[int] = 72
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)
    quick_settings: ClassVar[dict[str, Any]] = {
        "agents": (1, 10),
        "clips": (1.2, ALL),
        "heterogeneity": (0.5, 1.0),
    }

    def seconds(self) -> float:
        played = sum(self.agents) + len(self.step_sizes) * (len(self.clips) + 1) * self.num_agents
        return 4.5 * (len(self.agents) + 1) + 3e-7 * played * self.iterations * self.batch * self.horizon * self.seeds

    def model(self, num_agents: int, heterogeneity: float) -> Model:
        """Returns kernels and rewards near common ones; a smaller number of agents means the first agents."""
        S, A = self.num_states, self.num_actions
        rng = host_generator(0, "fed-svrpg")
        common, rewards = rng.dirichlet(np.ones(S), size=(S, A)), rng.random((MOST_AGENTS, S, A))
        own, mean = rng.dirichlet(np.ones(S), size=(MOST_AGENTS, S, A)), rewards.mean(0)
        P, R = common + heterogeneity * (own - common), mean + heterogeneity * (rewards - mean)
        return Model(P[:num_agents], R[:num_agents], self.discount)

    def method(self, step: float, beta: float, max_weight: float = ALL, server_step: float = 1.0) -> MomentumSA:
        """Returns FedSVRPG-M; with `beta` 1 it is FedPG, which is `LocalSA`."""
        settings = {"beta": beta, "max_weight": max_weight, "server_step": server_step}
        return MomentumSA(step, local_steps=self.local_steps, **settings)

    def played(self, num_agents: int) -> Problem:
        """Returns the problem with gradients from episodes of equal agents."""
        settings = {"horizon": self.horizon, "batch": self.batch, "baseline": "mean", "entropy": self.entropy}
        return policy_gradient.from_model(self.model(num_agents, 0.0), **settings)

    def run(self, runner: Runner) -> Outcome:
        arrays: dict[str, np.ndarray] = {}
        first = self.step_sizes[0]
        rounds = self.iterations // self.local_steps

        def play(label: str, problem: Problem, algorithm: MomentumSA) -> None:
            settings = {"rounds": rounds, "every": EVERY, "seeds": self.seeds, "key": self.key}
            records = runner.simulate(problem, algorithm, record=("gradient_norm", "gap"), **settings).records
            arrays[label], arrays[f"{label}, gap"] = records["gradient_norm"] ** 2, records["gap"]

        for N in self.agents:
            play(f"N = {N}", self.played(N), self.method(first, self.beta, self.max_weight))
        problem = self.played(self.num_agents)
        for step in self.step_sizes:
            play(f"FedPG, step {step:g}", problem, self.method(step, 1.0))
            for clip in self.clips:
                play(f"at most {clip:g}, step {step:g}", problem, self.method(step, self.beta, clip))
        for h in self.heterogeneity:
            model = self.model(self.num_agents, h)
            problem = policy_gradient.from_model(model, estimator="exact", entropy=self.entropy)
            for beta in (self.beta, 1.0):
                for parts in (1.0, self.smaller):
                    algorithm = self.method(first / parts, beta, server_step=parts)
                    settings = {"rounds": self.exact_iterations // self.local_steps, "every": 8}
                    result = runner.simulate(problem, algorithm, record=("gradient_norm",), **settings)
                    arrays[drift_label(h, beta, parts)] = result.records["gradient_norm"] ** 2
        return Outcome(arrays, {})

    def drift(self, outcome: Outcome, h: float, beta: float, parts: float = 1.0) -> float:
        """Returns the final |grad J|^2 with exact gradients."""
        return float(outcome.arrays[drift_label(h, beta, parts)][0, -1])

    def speed_up(self, outcome: Outcome) -> Estimate:
        """Returns the power of the number of agents with which the floor of |grad J|^2 decreases."""
        return statistics.slope(self.agents, np.stack([late(outcome.arrays[f"N = {N}"], 0.5) for N in self.agents]))

    def reduction(self, outcome: Outcome, step: float) -> Estimate:
        """Returns FedPG's floor relative to FedSVRPG-M's floor."""
        labels = (f"FedPG, step {step:g}", f"at most {self.max_weight:g}, step {step:g}")
        plain, reduced = (late(outcome.arrays[label], 0.5) for label in labels)
        return statistics.ratio(plain, reduced)

    def unclipped(self, outcome: Outcome, step: float, early: bool) -> Estimate:
        """Returns |grad J|^2 without clipping relative to that with clipped weights, early or in the long run."""
        curves = [outcome.arrays[f"at most {clip:g}, step {step:g}"] for clip in (ALL, self.max_weight)]
        free, clipped = (curve[:, EARLY].mean(1) if early else late(curve, 0.5) for curve in curves)
        return statistics.ratio(free, clipped)

    def gap(self, outcome: Outcome, clip: float, step: float) -> float:
        """Returns the mean floor of the gap."""
        return float(late(outcome.arrays[f"at most {clip:g}, step {step:g}, gap"], 0.5).mean())

    def check(self, outcome: Outcome, checks: Checks) -> None:
        small, large = self.step_sizes[0], self.step_sizes[-1]
        statement = "Episodes, equal agents: power of N with which the floor of |grad J|^2 falls"
        checks.equals("speed-up", statement, self.speed_up(outcome), -1.0, slack=0.1)
        for step in self.step_sizes:
            statement = f"Episodes, step {step:g}: FedPG's floor of |grad J|^2 by FedSVRPG-M's"
            checks.above(f"less noise, step {step:g}", statement, self.reduction(outcome, step))
        statement = f"Episodes, step {large:g}: |grad J|^2 early on, all weights by those up to {self.max_weight:g}"
        checks.above("clipping, early", statement, self.unclipped(outcome, large, early=True))
        statement = f"Episodes, step {small:g}: floor of |grad J|^2, all weights by those up to {self.max_weight:g}"
        found = self.unclipped(outcome, small, early=False)
        checks.equals("clipping, in the long run", statement, found, 1.0, slack=0.05)
        for h in self.heterogeneity:
            with_momentum, without = (self.drift(outcome, h, beta, self.smaller) for beta in (self.beta, 1.0))
            statement = f"Exact gradients, h = {h:g}, small local steps: where |grad J|^2 ends, FedSVRPG-M by FedPG"
            checks.near(f"same drift, h = {h:g}", statement, with_momentum / without, 1.0, tolerance=0.05)
        least, most = min(self.heterogeneity), max(self.heterogeneity)
        growth = self.drift(outcome, least, self.beta) / self.drift(outcome, most, self.beta)
        statement = f"Exact gradients: where |grad J|^2 of FedSVRPG-M ends, h = {least:g} by h = {most:g}"
        checks.at_most("drift with h", statement, growth, 0.5)
        part = self.drift(outcome, most, self.beta, self.smaller) / self.drift(outcome, most, self.beta)
        statement = f"Exact gradients, h = {most:g}: the same with local steps {self.smaller:g} times smaller"
        checks.at_most("smaller local steps", statement, part, 2 / self.smaller**2)

    def summary(self, outcome: Outcome) -> list[str]:
        small, large = self.step_sizes[0], self.step_sizes[-1]
        floors = [f"{late(outcome.arrays[f'N = {N}'], 0.5).mean():.2e}" for N in self.agents]
        less = [f"{self.reduction(outcome, step):.2f} at step {step:g}" for step in self.step_sizes]
        drifts = [
            f"{self.drift(outcome, h, self.beta):.2e}, {self.drift(outcome, h, 1.0):.2e} and "
            f"{self.drift(outcome, h, self.beta, self.smaller):.1e} at h = {h:g}"
            for h in self.heterogeneity
        ]
        return [
            f"With N = {', '.join(map(str, self.agents))} equal agents |grad J|^2 stays at {', '.join(floors)}: to the "
            f"power {self.speed_up(outcome):.2f} of N. FedPG's floor is FedSVRPG-M's times {', '.join(less)}.",
            "It is not independent of heterogeneity at a constant step: with exact gradients |grad J|^2 of FedSVRPG-M, "
            f"of FedPG, and of FedSVRPG-M with local steps {self.smaller:g} times smaller and the server's larger ends "
            f"at {'; '.join(drifts)}. To first order in the local step both methods end at one point. What removes the "
            "drift are small local steps, with momentum or without.",
            f"Weights that are not clipped make |grad J|^2 {self.unclipped(outcome, large, True):.2f} times as large "
            f"early on at step {large:g}, {self.unclipped(outcome, small, True):.2f} times at step {small:g}; in the "
            f"long run {self.unclipped(outcome, large, False):.2f} and {self.unclipped(outcome, small, False):.2f} "
            f"times. But the gap stays at {self.gap(outcome, ALL, large):.1e} then, and at "
            f"{self.gap(outcome, self.max_weight, large):.1e} with weights up to {self.max_weight:g}: some runs end at "
            "a bad policy that hardly moves.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows: list[tuple] = []
        for label, curves in outcome.arrays.items():
            if label.endswith(", gap"):
                continue
            exact = label.startswith("exact")
            found = (float(curves[0, -1]),) * 3 if exact else statistics.mean(late(curves, 0.5), level=0.95)
            gap = np.nan if exact else float(late(outcome.arrays[f"{label}, gap"], 0.5).mean())
            rows.append((label.replace(f"at most {ALL:g}", "all weights"), *found, gap))
        return columns(("run", "|grad J|^2", "low", "high", "gap"), rows)

    def notes(self) -> list[str]:
        return [
            "Wang, He, Zhang, Miao and Anderson, Momentum for the win: collaborative federated reinforcement learning "
            "across heterogeneous environments, ICML 2024, arXiv:2405.19499: O(eps^-1.5 / N) episodes of each agent to "
            "a stationary point, at any heterogeneity, with steps tied to the horizon. Read in a re-implementation "
            "that quotes its Algorithm 1 and in the authors' code, which restarts momentum in each round at each "
            "agent, clips weights at 1.2 or 1.5, and adapts the step. Ours is the algorithm, with clipping.",
            "FedHAPG-M is not run. Its form could not be verified: the paper's text was not available, and in the "
            "authors' code the Hessian term is taken without the advantages, by a function that returns nothing.",
            f"{self.num_states} states, {self.num_actions} actions, discount {self.discount:g}, softmax tables with "
            f"entropy {self.entropy:g}, batches of {self.batch} episodes of at most {self.horizon} steps, "
            f"{self.local_steps} local steps, beta = {self.beta:g}, {self.num_agents} agents where N is not said. The "
            "settings are ours, and the steps were chosen after a first look, the larger one so that weights matter. "
            f"Floors are means over the second half of {self.iterations} local steps; early is the first tenth.",
            "FedPG is run as momentum with beta = 1, and all weights as those up to 1e9, so that one compiled program "
            "serves all. A small gradient alone does not make a policy good; the table has the gaps, too.",
            "That momentum leaves the drift where it is was expected to hold exactly; it holds to first order in the "
            "local step, and the check was put to small ones.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3)
        found = figures.means(late(outcome.arrays[f"N = {N}"], 0.5) for N in self.agents)
        colour = "#009E73"
        figures.points(left, self.agents, found, color=colour, marker="o", linestyle="-")
        left.plot(
            self.agents,
            found[0].value * self.agents[0] / np.array(self.agents),
            label="proportional to $1/N$",
            **figures.REFERENCE,
        )
        left.set(xscale="log", yscale="log", xlabel="number of agents $N$", title="equal agents")
        left.set_ylabel(r"floor of $|\nabla J|^2$")
        figures.ticks(left, self.agents)
        figures.panel_legend(left)
        step = self.step_sizes[-1]
        at = EVERY * np.arange(outcome.arrays[f"N = {self.agents[0]}"].shape[1])
        looks = {f"at most {clip:g}": words for clip, words in zip(self.clips, ("-", "--", ":"), strict=False)}
        figures.band(middle, at, outcome.arrays[f"FedPG, step {step:g}"], figures.COLOURS["LocalSA"], label="FedPG")
        for label, style in looks.items():
            words = label.replace(f"at most {ALL:g}", "all weights").replace("at most", r"$w \leq$")
            curve = outcome.arrays[f"{label}, step {step:g}"]
            middle.plot(at, curve.mean(0), color=colour, linestyle=style, label=words)
        middle.set(yscale="log", xlabel=r"round $t$", title=rf"$\eta = {step:g}$, {self.num_agents} agents")
        middle.set_ylabel(r"$|\nabla J|^2$")
        figures.panel_legend(middle, title="importance weights")
        for beta, parts, name, marker in (
            (1.0, 1.0, "FedPG", "s"),
            (self.beta, 1.0, "FedSVRPG-M", "o"),
            (1.0, self.smaller, "FedPG, small local steps", "s"),
            (self.beta, self.smaller, "FedSVRPG-M, small local steps", "o"),
        ):
            ends = [self.drift(outcome, h, beta, parts) for h in self.heterogeneity]
            shade = figures.COLOURS["LocalSA"] if beta == 1 else colour
            look: dict[str, Any] = {"linestyle": "-" if parts == 1 else "--", "markersize": 6 if beta == 1 else 3}
            right.plot(self.heterogeneity, ends, color=shade, marker=marker, label=name, **look)
        right.set(xscale="log", yscale="log", xlabel="heterogeneity $h$", title="exact gradients")
        right.set_ylabel(r"$|\nabla J|^2$ at the end")
        figures.ticks(right, self.heterogeneity)
        right.set_ylim(top=right.get_ylim()[1] * 100)  # space for the legend
        figures.panel_legend(right, fontsize=6.5, loc="upper left")
        figures.grid(left, middle, right)
        title = f"$H$ = {self.local_steps}, batches of {self.batch} episodes; {self.seeds} seeds, 95 % intervals"
        figures.heading(figure, title)


def drift_label(h: float, beta: float, parts: float) -> str:
    """Returns the name of a run with exact gradients."""
    return f"exact, h = {h:g}, beta = {beta:g}, {parts:g} times smaller local steps"

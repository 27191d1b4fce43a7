"""A3C: the number of samples per worker, for several workers whose operators arrive late."""

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import statistics, tree
from ...algorithms import AbstractAlgorithm, Delayed, PerBlock, Polynomial, Projected, SynchronisedSA
from ...environments import worlds
from ...problems import Problem, actor_critic
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures

RECORDS = 50
ACTOR, CRITIC = 0.6, 0.4
"""The powers with which the two step sizes decay."""


class Variant(NamedTuple):
    """The sampling of states, and the largest delay of operators in rounds."""

    sampling: str
    max_delay: int


VARIANTS = {"i.i.d.": Variant("iid", 0), "Markov": Variant("markov", 0), "Markov, late": Variant("markov", 4)}


class A3C(AbstractStudy):
    """Actor-critic by several workers in one environment: samples per worker to a target return, critic's gap."""

    name: str = "rl/a3c"
    title: str = "A3C with more and more workers"
    source: str = "The synthetic experiment of Shen, Zhang, Hong and Chen on A3C-TD(0)"
    seeds: int = 10
    agents: tuple[int, ...] = (1, 2, 4, 8, 16)
    variants: tuple[str, ...] = tuple(VARIANTS)
    updates: int = 10_000
    """The number of updates of the shared parameter by all workers together."""
    actor_step: float = 20.0
    critic_step: float = 0.5
    radius: float = 20.0
    """The radius of the ball onto which the critic is projected."""
    level: float = 0.4
    """The target, as a fraction of the way from the uniform policy's return to the best return."""
    num_states: int = 100
    num_actions: int = 5
    dim: int = 10
    discount: float = 0.9
    problem_key: int = 0

    claim: ClassVar[int] = 60
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.8)
    quick_settings: ClassVar[dict[str, Any]] = {
        "agents": (1, 8),
        "variants": ("Markov",),
        "num_states": 40,
        "updates": 5_000,
        "actor_step": 10.0,
        "seeds": 24,
    }

    def seconds(self) -> float:
        return 4.0 + len(self.variants) * sum(4.5 + 1e-6 * self.seeds * self.updates * (1 + 4 / n) for n in self.agents)

    def algorithm(self, num_agents: int, variant: str) -> AbstractAlgorithm:
        r"""One round is an update by every worker: $N$ times the mean, with the step sizes of update $k = N t$."""
        N, logits = num_agents, self.num_states * self.num_actions
        # N c / (1 + N t)^p
        scales = ((self.actor_step, ACTOR), (self.critic_step, CRITIC))
        steps = [Polynomial(scale * N ** (1 - power), offset=1 / N, power=power) for scale, power in scales]
        critic = (logits, logits + self.dim)
        method = Projected(SynchronisedSA(PerBlock(steps, (logits, self.dim))), radius=self.radius, part=critic)
        delay = VARIANTS[variant].max_delay
        return Delayed(method, max_delay=delay) if delay else method

    def problem(self, num_agents: int, variant: str) -> Problem:
        """Returns the problem, with the same environment for all workers."""
        sizes = {"num_states": self.num_states, "num_actions": self.num_actions, "discount": self.discount}
        options = {"sampling": VARIANTS[variant].sampling, "target": "restart", "key": self.problem_key}
        return actor_critic.random(num_agents, self.dim, heterogeneity=0.0, **options, **sizes)

    def run(self, runner: Runner) -> Outcome:
        sizes = (1, self.num_states, self.num_actions)
        model = worlds.random(*sizes, discount=self.discount, heterogeneity=0.0, key=self.problem_key)
        worst, best = (float(model.returns(policy)[0]) for policy in (None, model.greedy(model.optimal())))
        arrays = {}
        for variant in self.variants:
            for n in self.agents:
                rounds = self.updates // n
                every = max(1, rounds // RECORDS)
                settings = {"rounds": every * (rounds // every), "every": every, "seeds": self.seeds, "key": self.key}
                record = {"mean_return": "mean_return", "gap": first_critic_gap}
                method = self.algorithm(n, variant)
                found = runner.simulate(self.problem(n, variant), method, record=record, **settings).records
                arrays[f"{variant}/{n}/part"] = (found["mean_return"] - worst) / (best - worst)
                arrays[f"{variant}/{n}/gap"] = found["gap"]
                arrays[f"{variant}/{n}/samples"] = every * np.arange(found["gap"].shape[1])
        return Outcome(arrays, {"worst": worst, "best": best})

    def needed(self, outcome: Outcome, variant: str) -> np.ndarray:
        """Returns the samples of each worker to the target, `(agents, seeds)`."""
        found = []
        for n in self.agents:
            samples, parts = (outcome.arrays[f"{variant}/{n}/{name}"] for name in ("samples", "part"))
            found.append([crossing(samples, part, self.level) for part in parts])
        return np.array(found)

    def gap_ratio(self, outcome: Outcome, variant: str) -> Estimate:
        """Returns the critic's gap with the most workers relative to the fewest, for equal samples per worker."""
        few, many = ({name: outcome.arrays[f"{variant}/{n}/{name}"] for name in ("gap", "samples")} for n in self.ends)
        at = int(np.argmin(abs(few["samples"] - many["samples"][-1])))
        return statistics.ratio(many["gap"][:, -1], few["gap"][:, at])

    @property
    def ends(self) -> tuple[int, int]:
        """The fewest and the most workers."""
        return self.agents[0], self.agents[-1]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for variant in self.variants:
            power = statistics.slope(self.agents, self.needed(outcome, variant))
            statement = f"{variant}: power of the number of workers with which the samples of each to the target fall"
            checks.equals(f"{variant}, speed-up", statement, power, -1.0, slack=0.15)
            statement = (
                f"{variant}: critic's gap with {self.agents[-1]} workers by that with {self.agents[0]}, after as "
            )
            statement += "many samples of each"
            checks.inside(f"{variant}, critic", statement, self.gap_ratio(outcome, variant), -math.inf, 1.0)
        if {"Markov", "Markov, late"} <= set(self.variants):
            late, timely = (self.needed(outcome, variant)[-1] for variant in ("Markov, late", "Markov"))
            statement = f"Samples to the target with late operators by those without, {self.agents[-1]} workers"
            checks.inside("delays", statement, statistics.ratio(late, timely), 0.0, 1.5)

    def summary(self, outcome: Outcome) -> list[str]:
        said = []
        for variant in self.variants:
            needed = self.needed(outcome, variant)
            power, (one, many) = statistics.slope(self.agents, needed), needed[[0, -1]].mean(1)
            said.append(
                f"{variant}: {one:.0f} samples with {self.agents[0]} worker, {many:.0f} of each with "
                f"{self.agents[-1]}, power {power:.2f} of their number; the critic's gap is then "
                f"{self.gap_ratio(outcome, variant):.2f} times that of {self.agents[0]} after as many samples of each."
            )
        return [
            f"To {100 * self.level:.0f} % of the way from the uniform policy's return, {outcome.facts['worst']:.2f}, "
            f"to the best, {outcome.facts['best']:.2f}. " + said[0],
            *said[1:],
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for variant in self.variants:
            for n, needed in zip(self.agents, self.needed(outcome, variant), strict=True):
                gap = outcome.arrays[f"{variant}/{n}/gap"][:, -1].mean()
                rows.append((variant, n, *statistics.mean(needed, level=0.95), gap))
        return columns(("variant", "workers", "samples of each", "low", "high", "critic's gap at the end"), rows)

    def notes(self) -> list[str]:
        delay = max(variant.max_delay for variant in VARIANTS.values())
        return [
            "Shen, Zhang, Hong and Chen, Towards understanding asynchronous advantage actor-critic, IEEE Transactions "
            "on Signal Processing 2023, arXiv:2012.15511, from the text of its ICLR 2021 submission: 100 states, 5 "
            "actions, 10 features; kernel, rewards and features uniform; tabular softmax; steps that decay with the "
            "powers 3/5 (actor) and 2/5 (critic); 10 runs. Discount, constants of the steps and radius were not found.",
            f"Ours have discount {self.discount:g}, steps of {self.actor_step:g} and {self.critic_step:g}, radius "
            f"{self.radius:g}; both steps, the target and the slack of the slopes were chosen after a first look at "
            "one and sixteen workers. As printed there, the value ahead in the TD error is that of the state after a "
            "possible restart.",
            "There, workers update shared memory one at a time. Here a round is one update by each of N workers, all "
            "from the same parameter: N times the mean, with the steps of the common counter. Late operators are of 1 "
            f"to {delay} rounds before, up to {delay} N updates.",
            "Returns are exact, and so is the critic's gap, its distance from the root of its mean operator at the "
            "policy of the moment.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3)
        shown = "Markov" if "Markov" in self.variants else self.variants[0]
        for n, colour in figures.shades(self.agents).items():
            samples = outcome.arrays[f"{shown}/{n}/samples"][1:]
            for ax, name in ((left, "part"), (right, "gap")):
                figures.band(ax, samples, outcome.arrays[f"{shown}/{n}/{name}"][:, 1:], colour, label=f"$N$ = {n}")
        left.axhline(self.level, color="0.55", linewidth=0.8, linestyle=":")
        left.set(xscale="log", xlabel="samples of each worker", title=f"progress to the best return, {shown}")
        left.set_ylabel("share of the possible gain")
        right.set(xscale="log", yscale="log", xlabel="samples of each worker", title=f"gap of the critic, {shown}")
        right.set_ylabel("squared error of the critic")
        figures.panel_legend(left)
        colours = figures.COLOURS["FedHSA"], figures.COLOURS["LocalSA"], figures.COLOURS["SynchronisedSA"]
        for variant, marker, colour in zip(VARIANTS, "osD", colours, strict=True):
            if variant in self.variants:
                found = figures.means(self.needed(outcome, variant))
                look = figures.dots(colour, marker) | {"linestyle": "-", "linewidth": 0.8}
                figures.points(middle, self.agents, found, label=variant, **look)
        first = self.needed(outcome, shown)[0].mean()
        middle.plot(self.agents, first / np.array(self.agents), label="proportional to $1/N$", **figures.REFERENCE)
        middle.set(
            xscale="log", yscale="log", xlabel="number of workers $N$", title=f"until {self.level:g} of the gain"
        )
        middle.set_ylabel("samples of each worker")
        figures.ticks(middle, self.agents)
        figures.panel_legend(middle)
        figures.grid(left, middle, right)
        figures.heading(figure, f"A3C on Garnet environments: {self.seeds} seeds, 95 % intervals")


def first_critic_gap(snapshot: Any) -> Any:
    """Returns the critic's gap of the first worker; all workers are equal."""
    gap = snapshot.agents.recorders()["critic_gap"]()
    return gap(snapshot._replace(agents=tree.take(snapshot.agents, slice(0, 1))))


def crossing(samples: np.ndarray, part: np.ndarray, level: float) -> float:
    """Returns the linearly interpolated point at which a curve first reaches a level, or else the last record."""
    above = np.flatnonzero(part >= level)
    if not len(above):
        return float(samples[-1])
    k = max(1, int(above[0]))
    return float(samples[k - 1] + (level - part[k - 1]) / (part[k] - part[k - 1]) * (samples[k] - samples[k - 1]))

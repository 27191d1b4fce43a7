"""Experience replay on slow chains: the observations that regression needs, in order, thinned and replayed."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from ... import statistics
from ...algorithms import AbstractAlgorithm, LocalSA, Replayed, Thinned
from ...problems import AbstractAgent, Problem
from ...sources import VAR1, AbstractSource
from ..study import AbstractStudy, Checks, Outcome, Runner, Table, columns, figures

METHODS = ("SGD", "SGD with data drop", "SGD with replay")
POWERS: dict[str, float] = dict(zip(METHODS, (2.0, 2.0, 1.0), strict=True))
"""The power of 1/epsilon with which the observations grow according to the source."""


class Regression(AbstractAgent):
    r"""Least squares without label noise: $G(\theta, x) = x x^T (w - \theta)$ with $x = z / \sqrt d$."""

    source: AbstractSource
    w: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        x = o / jnp.sqrt(jnp.asarray(theta.size, theta.dtype))
        return x * jnp.dot(x, self.w - theta)

    def mean_operator(self, theta, /):
        return (self.w - theta) / theta.size


class Replay(AbstractStudy):
    """One agent whose inputs follow a Gaussian autoregression that forgets its start after 1/epsilon^2 steps."""

    name: str = "field/replay"
    title: str = "Experience replay on slow chains"
    source: str = "Nagaraj et al. on least squares with Markovian data"
    seeds: int = 32
    dim: int = 10
    epsilons: tuple[float, ...] = (0.2, 0.1, 0.05)
    """The values of epsilon; the inputs are z' = sqrt(1 - epsilon^2) z + epsilon g."""
    step_size: float = 0.2
    target: float = 1e-6
    patience: int = 20
    """The observations of a run in units of d / epsilon^2; data drop has eight times this number."""

    methods: tuple[str, ...] = METHODS

    claim: ClassVar[int] = 52
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 16,
        "epsilons": (0.2, 0.1),
        "methods": ("SGD", "SGD with replay"),
    }

    def seconds(self) -> float:
        return 15.0 + 1.2e-7 * sum(10 * self.patience * self.dim / e**2 for e in self.epsilons) * self.seeds

    def problem(self, epsilon: float) -> Problem:
        """Returns one agent, in its stationary distribution from the beginning; inputs have mean square 1."""
        w = np.random.default_rng(self.key).normal(size=self.dim)
        Q = math.sqrt(1 - epsilon**2) * np.eye(self.dim)
        chain = VAR1(Q[None], noise_std=epsilon, start="stationary")
        root = w / np.linalg.norm(w)
        return Problem(Regression(chain, root[None]), like=np.zeros(self.dim), theta_star=root)

    def method(self, name: str, epsilon: float) -> AbstractAlgorithm:
        """Returns a method with the source's numbers: buffers of 1/epsilon^2, or one of log(d) / epsilon^2 kept."""
        B = round(1 / epsilon**2)
        if name == "SGD with data drop":
            return Thinned(LocalSA(self.step_size, 1), round(B * math.log(self.dim)))
        plain = LocalSA(self.step_size, B)
        return plain if name == "SGD" else Replayed(plain, B)

    def run(self, runner: Runner) -> Outcome:
        arrays = {}
        for epsilon in self.epsilons:
            problem = self.problem(epsilon)
            for name in self.methods:
                algorithm, long = self.method(name, epsilon), 8 if name == "SGD with data drop" else 1
                rounds = round(long * self.patience * self.dim / epsilon**2 / algorithm.block_length)
                error = runner.simulate(problem, algorithm, rounds=rounds, seeds=self.seeds, key=self.key).error
                arrays[f"{name}/{epsilon:g}"] = algorithm.block_length * np.array(
                    [statistics.crossing(row, self.target * row[0]) for row in error]
                )
        return Outcome(arrays, {})

    def slope(self, outcome: Outcome, name: str) -> statistics.Estimate:
        """Returns the slope of the observations to the target in 1/epsilon, on logarithmic axes."""
        return statistics.slope(1 / np.array(self.epsilons), [outcome.arrays[f"{name}/{e:g}"] for e in self.epsilons])

    def ratio(self, outcome: Outcome, above: str, below: str) -> statistics.Estimate:
        """Returns the ratio of the observations to the target at the smallest epsilon."""
        first, second = (outcome.arrays[f"{name}/{min(self.epsilons):g}"] for name in (above, below))
        return statistics.ratio(first, second)

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for name in self.methods:
            power = POWERS[name]
            statement = f"{name}: slope of log observations to {self.target:g} of the first error in $log 1/epsilon$"
            options: dict[str, Any] = {"slack": 0.2, "precision": 0.2, "relative": False}
            checks.equals(f"{name}, slope", statement, self.slope(outcome, name), power, **options)
        statement = f"epsilon = {min(self.epsilons):g}: observations with SGD by those with replay"
        checks.above("gain", statement, self.ratio(outcome, "SGD", "SGD with replay"), 1.5)

    def summary(self, outcome: Outcome) -> list[str]:
        slopes = ", ".join(f"{self.slope(outcome, name):.2f} for {name}" for name in self.methods)
        gain, said = self.ratio(outcome, "SGD", "SGD with replay"), ""
        if "SGD with data drop" in self.methods:
            drop = self.ratio(outcome, "SGD with data drop", "SGD")
            said = f", and with data drop {drop:.1f} times as many as without"
        return [
            f"Observations to {self.target:g} of the first error grow as a power of $1/epsilon$: {slopes}.",
            f"At epsilon = {min(self.epsilons):g} SGD takes {gain:.1f} times as many as with replay{said}.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = [
            (name, e, *statistics.mean(outcome.arrays[f"{name}/{e:g}"], figures.LEVEL))
            for name in self.methods
            for e in self.epsilons
        ]
        return columns(("method", "epsilon", "observations", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Nagaraj, Wu, Bresler, Jain and Netrapalli, NeurIPS 2020, arXiv:2006.08916. Their script has d = 100, "
            "epsilon = 0.01, step 0.2, buffers of $1/epsilon^2$, data drop of $log(d)/epsilon^2$ and labels with noise "
            "0.001, and draws lines at $d/epsilon^2$ for SGD and data drop and at $d/epsilon$ for replay.",
            f"Ours has d = {self.dim} and no label noise, so that only the first phase, in which they differ, is seen, "
            "and looks at the last iterate. After it, with noise, SGD and replay come out alike (a first look).",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        looks, ax = figures.colours(list(self.methods)), figure.subplots()
        x = 1 / np.array(self.epsilons)
        for name, colour in looks.items():
            found = figures.means(outcome.arrays[f"{name}/{e:g}"] for e in self.epsilons)
            figures.points(ax, x, found, **figures.dots(colour))
            figures.theory(ax, x, found[0].value * (x / x[0]) ** POWERS[name], colour, linewidth=0.8, zorder=1)
        ax.set(xscale="log", yscale="log", xlabel=r"$1 / \epsilon$", ylabel="observations to the target")
        figures.ticks(ax, x)
        entries = {name: figures.dots(colour) for name, colour in looks.items()}
        figures.legend(figure, entries | {"as claimed": figures.dashed()}, 4)

"""SCAFFOLD's stationary distribution: covariance and bias against the first-order formulas of its analysis."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import statistics
from ...algorithms import SCAFFLSA, AbstractAlgorithm, FedHSA
from ...problems import Problem, games, logistic
from ..study import AbstractStudy, Checks, Outcome, Runner, Table, columns, figures, repeated

METHODS: dict[str, Callable[..., AbstractAlgorithm]] = {"SCAFFOLD": SCAFFLSA, "FedHSA": FedHSA}
"""SCAFFOLD is run as `SCAFFLSA`, which is the same recursion when all agents participate."""
SLACK = 0.03
"""The tolerance of an extrapolation to step size zero: the error of a polynomial through the step sizes."""


class Law(NamedTuple):
    """Scalar functions at their common minimum: the curvature, third derivative and noise of every agent."""

    curvature: np.ndarray
    third: np.ndarray
    noise: np.ndarray

    def square(self, agents: int) -> float:
        r"""Returns the limit of $E(\theta - \theta^\star)^2 / \gamma$ for small steps: $C / 2 f'' N$."""
        return float(self.noise.mean() / (2 * self.curvature.mean() * agents))

    def bias(self, agents: int) -> float:
        r"""Returns the limit of $E(\theta - \theta^\star) / \gamma$ for small steps: $-f''' / 2 f''$ times `square`."""
        return float(-self.third.mean() / (2 * self.curvature.mean()) * self.square(agents))

    def next_bias(self, agents: int, spread: float) -> float:
        r"""Returns the part of $E(\theta - \theta^\star) / \gamma^2$ that more agents do not reduce (see the notes)."""
        own = (self.third * self.noise).mean() * (1 - 1 / agents)
        return float(-own * spread / (2 * self.curvature.mean()))


def spread(method: str, H: int) -> float:
    r"""Returns an agent's variance around the others, in units of $\gamma^2 C_i$, averaged over the local steps.

    !!! example
        >>> spread("SCAFFOLD", 2), spread("FedHSA", 3)     # (0 + 3/2) / 2, (0 + 0 + 2) / 3
        (0.75, 0.6666666666666666)
    """
    steps = np.arange(H)
    own = steps + steps**2 / H if method == "SCAFFOLD" else steps * (steps - 1)
    return float(own.mean())


class Stationary(AbstractStudy):
    """Logistic agents with different inputs and shares; the same noise drives their linearisation."""

    name: str = "field/scaffold-law"
    title: str = "SCAFFOLD's stationary law"
    source: str = "Mangold, Durmus, Dieuleveut and Moulines on SCAFFOLD with stochastic gradients"
    seeds: int = 128
    inputs: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    """The inputs of the agents of a cohort."""
    shares: tuple[float, ...] = (0.95, 0.85, 0.9, 0.7)
    """The probability with which each agent observes a 1."""
    regularisation: float = 0.01
    copies: tuple[int, ...] = (1, 8)
    step_sizes: tuple[float, ...] = (0.05, 0.1, 0.2)
    local_steps: int = 4
    methods: tuple[str, ...] = tuple(METHODS)
    rounds: int = 4000
    """The number of rounds, of which the first twentieth is omitted; runs start at the minimum."""

    claim: ClassVar[int] = 50
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.1)
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 32, "copies": (1, 4), "rounds": 2000, "methods": ("SCAFFOLD",)}

    def seconds(self) -> float:
        runs = 2 * len(self.methods) * len(self.step_sizes)
        return 8.0 * len(self.copies) + runs * 6e-8 * sum(self.agents()) * self.rounds * self.local_steps * self.seeds

    def agents(self) -> list[int]:
        """Returns the number of agents for each number of copies."""
        return [len(self.inputs) * copies for copies in self.copies]

    def cohort(self) -> Problem:
        """Returns the agents; each observes independent values 1 and -1."""
        x, p = np.array(self.inputs), np.array(self.shares)
        law = np.stack([p, 1 - p], axis=1)
        kernels = np.repeat(law[:, None], 2, axis=1)  # the next outcome has the same law in every state
        labels = np.broadcast_to([1.0, -1.0], law.shape)
        inputs = np.repeat(x[:, None], 2, axis=1)[..., None]
        return logistic.from_arrays(inputs, labels, kernels, regularisation=self.regularisation)

    def linearised(self, cohort: Problem) -> Problem:
        """Returns affine agents with the same values and slopes at the minimum; their stationary mean is exact."""
        law, (theta,) = self.law(cohort), cohort.theta_star
        agents: Any = cohort.agents
        x, y = agents.inputs[..., 0], agents.labels
        value = y * x / (1 + np.exp(y * x * theta)) - self.regularisation * theta
        A = np.repeat(law.curvature[:, None], 2, axis=1)
        return games.from_arrays(A[..., None, None], -(value + A * theta)[..., None], agents.source.transition)

    def law(self, cohort: Problem) -> Law:
        """Returns the quantities of the cohort."""
        x, p, (theta,) = np.array(self.inputs), np.array(self.shares), cohort.theta_star
        s = 1 / (1 + np.exp(-x * theta))
        slope = s * (1 - s)
        return Law(x**2 * slope + self.regularisation, x**3 * slope * (1 - 2 * s), x**2 * p * (1 - p))

    def run(self, runner: Runner) -> Outcome:
        cohort = self.cohort()
        both, arrays = (cohort, self.linearised(cohort)), {}
        for copies, N in zip(self.copies, self.agents(), strict=True):
            problems = [repeated(problem, copies) for problem in both]
            for name in self.methods:
                methods = (METHODS[name](step, self.local_steps) for step in self.step_sizes)
                found = [self._moments(runner, problems, method) for method in methods]
                for k, what in enumerate(("bias", "square")):
                    arrays[f"{name}, N = {N}/{what}"] = np.stack([moments[k] for moments in found])
        law = self.law(cohort)
        return Outcome(arrays, {"law": {field: value.tolist() for field, value in law._asdict().items()}})

    def _moments(
        self, runner: Runner, problems: list[Problem], algorithm: AbstractAlgorithm
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean of the error and of its square over the rounds, `(seeds,)` each.

        The mean is taken relative to the mean of the linearised agents: its expectation is zero, and most of its
        random fluctuation is the same.
        """
        root = problems[0].theta_star
        settings = {"rounds": self.rounds, "seeds": self.seeds, "key": self.key, "theta": root, "record": ("theta",)}
        curved, straight = (
            runner.simulate(problem, algorithm, **settings).records["theta"][:, self.rounds // 20 :, 0] - root[0]
            for problem in problems
        )
        return (curved - straight).mean(1), (curved**2).mean(1)

    def coefficients(self, outcome: Outcome, label: str) -> np.ndarray:
        r"""Returns the polynomial through moment / step size, `(steps, seeds)`; its first entry is the limit at 0."""
        steps = np.array(self.step_sizes)
        return np.linalg.solve(np.vander(steps, increasing=True), outcome.arrays[label] / steps[:, None])

    def laws(self, outcome: Outcome) -> Law:
        """Returns the cohort's quantities from the stored outcome."""
        return Law(**{field: np.array(value) for field, value in outcome.facts["law"].items()})

    def check(self, outcome: Outcome, checks: Checks) -> None:
        law = self.laws(outcome)
        for N in self.agents():
            for name in self.methods:
                where = f"{name}, N = {N}"
                squares, biases = (self.coefficients(outcome, f"{where}/{what}") for what in ("square", "bias"))
                checks.equals(
                    f"{where}, variance",
                    f"{where}: mean squared error by the step, as it goes to zero",
                    statistics.mean(squares[0]),
                    law.square(N),
                    slack=SLACK,
                    precision=0.25,
                )
                checks.equals(
                    f"{where}, bias",
                    f"{where}: mean error by the step, as it goes to zero",
                    statistics.mean(biases[0]),
                    law.bias(N),
                    slack=SLACK,
                    precision=0.35,
                )
        N = self.agents()[-1]
        for name in self.methods:
            checks.equals(
                f"{name}, next bias",
                f"{name}, N = {N}: mean error by the squared step, beyond what is proportional to the step",
                statistics.mean(self.coefficients(outcome, f"{name}, N = {N}/bias")[1]),
                law.next_bias(N, spread(name, self.local_steps)),
                slack=0.1,
                precision=0.15,
            )
        few, many = (outcome.arrays[f"SCAFFOLD, N = {N}/bias"][-1] for N in (self.agents()[0], N))
        statement = f"SCAFFOLD: bias with {N} agents by that with {self.agents()[0]}, step {self.step_sizes[-1]:g}"
        checks.above("bias that stays", statement, statistics.ratio(many, few), 0.5)

    def summary(self, outcome: Outcome) -> list[str]:
        law, said = self.laws(outcome), []
        for N in self.agents():
            bias, square = (self.coefficients(outcome, f"SCAFFOLD, N = {N}/{what}")[0] for what in ("bias", "square"))
            said.append(
                f"with {N} agents {statistics.mean(bias):.4f} (formula {law.bias(N):.4f}) and "
                f"{statistics.mean(square):.4f} ({law.square(N):.4f})"
            )
        N = self.agents()[-1]
        next_ = statistics.mean(self.coefficients(outcome, f"SCAFFOLD, N = {N}/bias")[1])
        derived = law.next_bias(N, spread("SCAFFOLD", self.local_steps))
        few, many = (outcome.arrays[f"SCAFFOLD, N = {n}/bias"][-1] for n in (self.agents()[0], N))
        return [
            f"SCAFFOLD's bias and mean square by the step, as it goes to zero: {'; '.join(said)}.",
            f"A part of the bias of second order in the step does not fall with the agents: {next_:.3f} times the "
            f"squared step with {N} agents, {derived:.3f} derived. At the step {self.step_sizes[-1]:g} the bias with "
            f"{N} agents is still {statistics.ratio(many, few):.2f} times that with {self.agents()[0]}.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for label, samples in outcome.arrays.items():
            for step, found in zip(self.step_sizes, figures.means(samples), strict=True):
                rows.append((*label.split("/"), step, *found))
        return columns(("setting", "moment", "step", "value", "low", "high"), rows)

    def notes(self) -> list[str]:
        return [
            "Mangold, Durmus, Dieuleveut and Moulines, Scaffold with stochastic gradients, ICML 2025, "
            "arXiv:2503.07594. The formulas are those of the authors' public slides: covariance (gamma/N) A C and bias "
            "-(gamma/2N) f''^-1 f''' A C with A = (I x f'' + f'' x I)^-1, both up to order gamma^(3/2).",
            "The problem is ours: one parameter, so that everything is in sight, and minima of the agents' own between "
            "0.4 and 3.9.",
            "The source says that a bias of higher order stays however many agents there are. It is derived here: "
            "after l local steps an agent has the variance gamma^2 C_i (l + l^2/H) around the others; the second part "
            "is the noise of its control variate, a mean over H gradients. This moves the average operator by half its "
            "third derivative. For FedHSA it is gamma^2 C_i l (l - 1), since its correction is one gradient.",
            "Errors are measured relative to linearised agents on the same observations, whose stationary mean is the "
            "minimum exactly. Steps and seeds were chosen after a first look at how small the intervals get.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        looks, (left, right) = figures.colours(list(self.methods)), figure.subplots(1, 2)
        law, steps = self.laws(outcome), np.array(self.step_sizes)
        line = np.linspace(0, 1.05 * steps[-1], 50)
        markers = dict(zip(self.agents(), "os^D", strict=False))
        for N, marker in markers.items():
            for name, colour in looks.items():
                for ax, what in ((left, "bias"), (right, "square")):
                    unit = steps[:, None] / (1 if what == "bias" else N)
                    found = figures.means(outcome.arrays[f"{name}, N = {N}/{what}"] / unit)
                    figures.points(ax, steps, found, **figures.dots(colour, marker, 4.5))
                derived = law.bias(N) + line * law.next_bias(N, spread(name, self.local_steps))
                figures.theory(left, line, derived, colour, linewidth=0.8, zorder=1)
            for ax, value in ((left, law.bias(N)), (right, N * law.square(N))):
                ax.axhline(value, color="0.5", linestyle=figures.DOTS, linewidth=0.8, zorder=0)
        left.set(xlabel=r"step $\gamma$", ylabel=r"bias / $\gamma$", ylim=(0, None))
        right.set(xlabel=r"step $\gamma$", ylabel=r"mean squared error $\times N / \gamma$")
        right.set(xlim=(0, None), ylim=(0, None))
        entries = {
            f"{name}, $N$ = {N}": figures.dots(looks[name], marker, 4.5)
            for name in self.methods
            for N, marker in markers.items()
        }
        first = {"color": "0.5", "linestyle": figures.DOTS}
        figures.legend(figure, entries | {"first order": first, "and the next": figures.dashed()}, 3)

"""The linear speed-up in isolation: copies of one cohort of heterogeneous agents, with independent noise."""

from typing import Any, ClassVar

import numpy as np

from ... import _check, statistics
from ...algorithms import FedHSA
from ...theory import Prediction
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, columns, figures, repeated
from ..study.foresight import doubt, foresee, law, settling, slope_doubt

SETTLED = 0.01
"""The remaining fraction of a deviation when measuring starts; variances are then too small by its square."""
FAMILIES = ("quadratic", "nonconvex", "td", "finite-sum")


class Cohort(AbstractStudy):
    """FedHSA's variance with several copies of one cohort of agents, so that only the noise averages out."""

    name: str = "speedup/cohort"
    title: str = "One cohort, repeated"
    source: str = "Linear speed-up (Theorem 2)"
    families: tuple[str, ...] = FAMILIES
    num_agents: int = 5
    dim: int = 5
    num_states: int = 10
    num_components: int = 4
    eigenvalues: tuple[float, float] = (1.0, 4.0)
    laziness: float = 0.5
    """The probability with which the chains of TD and of the finite sum stay in place."""
    problem_key: int = 0
    quadratic_step: float = 0.02
    nonconvex_step: float = 0.02
    td_step: float = 0.1
    finite_sum_step: float = 0.01
    local_steps: int = 5
    copies: tuple[int, ...] = (1, 4, 20)
    rounds: int = 450
    """The number of rounds over which the variance is measured, after the method has settled."""

    claim: ClassVar[int] = 4
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 16,
        "families": ("quadratic", "finite-sum"),
        "copies": (1, 20),
        "rounds": 600,
    }

    def __post_init__(self):
        for family in self.families:
            _check.choice("families", family, FAMILIES)

    def seconds(self) -> float:
        work = self.seeds * self.rounds * len(self.families) * sum(self.copies)
        return 1.0 + len(self.families) * (1.0 + 1.5 * len(self.copies)) + 2e-6 * work

    def cohort(self, family: str) -> Instance:
        """Returns the cohort of one family."""
        own: dict[str, dict[str, Any]] = {
            "quadratic": {"start": "stationary"},
            "nonconvex": {"start": "stationary"},
            "td": {"num_states": self.num_states, "laziness": self.laziness},
            "finite-sum": {
                "num_components": self.num_components,
                "eigenvalues": self.eigenvalues,
                "laziness": self.laziness,
            },
        }
        return Instance.of_family(family, self.num_agents, {"dim": self.dim, **own[family]}, self.problem_key)

    def step_size(self, family: str) -> float:
        """Returns the step size for one family."""
        return getattr(self, f"{family.replace('-', '_')}_step")

    def run(self, runner: Runner) -> Outcome:
        arrays, facts = {}, {}
        for family in self.families:
            cohort = self.cohort(family).build()
            algorithm = FedHSA(self.step_size(family), local_steps=self.local_steps)
            problems = [repeated(cohort, copies) for copies in self.copies]
            predictions = [foresee(problem, algorithm) for problem in problems]
            samples = [self._variances(runner, prediction) for prediction in predictions]
            arrays[f"{family}/variance"] = np.stack(samples)
            facts[family] = {
                "agents": [problem.num_agents for problem in problems],
                "basis": [prediction.basis for prediction in predictions],
                "settling": settling(predictions[0], SETTLED),
                "predicted": [prediction.noise_variance for prediction in predictions],
                "doubts": [doubt(prediction) for prediction in predictions],
            }
        return Outcome(arrays, facts)

    def _variances(self, runner: Runner, prediction: Prediction) -> np.ndarray:
        problem, before = prediction.problem, settling(prediction, SETTLED)
        settings = {"rounds": before + self.rounds, "seeds": self.seeds, "key": self.key, "theta": problem.theta_star}
        result = runner.simulate(problem, prediction.algorithm, record=("theta",), **settings)
        return variances(result.records["theta"][:, before + 1 :])

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, right = figure.subplots(1, 2)
        for k, family in enumerate(self.families):
            look, facts = figures.LOOKS[family], outcome.facts[family]
            agents, predicted = np.array(facts["agents"]), np.array(facts["predicted"])
            found = figures.means(outcome.arrays[f"{family}/variance"])
            figures.points(left, agents, found, **look.style)
            figures.theory(left, agents, predicted, look.colour)
            apart = agents * 1.06 ** (k - (len(self.families) - 1) / 2)
            figures.points(right, apart, found, unit=predicted, **look.style)
        agents = outcome.facts[self.families[0]]["agents"]
        for ax in (left, right):
            ax.set(xscale="log", xlabel="number of agents $M$")
            figures.ticks(ax, agents)
        left.set(yscale="log", ylabel="variance of the error")
        right.axhline(1, color="0.55", linewidth=0.8, zorder=1)
        low, high = right.get_ylim()
        right.set(ylabel=r"$M \times$ variance, by prediction", ylim=(min(low, 0.8), max(high, 1.2)))
        entries = {figures.LOOKS[family].name: figures.LOOKS[family].style for family in self.families}
        entries["prediction"] = figures.dashed()
        figures.legend(figure, entries, len(entries), title=f"FedHSA, 95 % intervals, {self.seeds} seeds")

    def summary(self, outcome: Outcome) -> list[str]:
        agents = outcome.facts[self.families[0]]["agents"]
        slopes = {family: self._slope(outcome, family) for family in self.families}
        said = [f"{figures.LOOKS[family].name} {s:.3f}" for family, s in slopes.items()]
        return [
            f"A cohort of {agents[0]} heterogeneous agents is joined by copies of itself, each agent with noise of its "
            f"own: the average operator stays the same while M goes from {agents[0]} to {agents[-1]}, so that only "
            "averaging acts.",
            f"The variance then falls as 1/M: its slope against M on logarithmic axes is {', '.join(said)}, with "
            "99.9 % intervals.",
            "For additive noise (quadratic and nonconvex) M times the variance does not depend on M at all, and the "
            "dashed line is the exact law. Multiplicative noise adds terms of second order in 1/M, and the dashed line "
            f"is good to {100 * max(max(outcome.facts[family]['doubts']) for family in self.families):.1f} % by its "
            "own account (right).",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for family in self.families:
            facts = outcome.facts[family]
            numbers = ", ".join(str(M) for M in facts["agents"])
            statement = (
                f"Slope of log variance against log M, one {figures.LOOKS[family].name} cohort repeated (M = {numbers})"
            )
            slope, predicted = self._slope(outcome, family), statistics.power(facts["agents"], facts["predicted"])
            slack = slope_doubt(facts["agents"], facts["doubts"])
            options: dict[str, Any] = {"slack": slack, "precision": 0.1, "relative": False}
            checks.equals(f"{family}, slope", statement, slope, predicted, **options)
            samples, of = outcome.arrays[f"{family}/variance"], f"one {figures.LOOKS[family].name} cohort repeated"
            for k, M in enumerate(facts["agents"]):
                statement = f"M times the variance at M = {M}, {of}, against the {law(facts['basis'][k])}"
                measured, options = statistics.mean(M * samples[k]), {"slack": facts["doubts"][k], "precision": 0.2}
                checks.equals(f"{family}, M = {M}", statement, measured, M * facts["predicted"][k], **options)

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for family in self.families:
            facts, samples = outcome.facts[family], outcome.arrays[f"{family}/variance"]
            for k, M in enumerate(facts["agents"]):
                estimate = statistics.mean(samples[k], level=0.95)
                rows.append((family, M, *estimate, facts["predicted"][k], facts["basis"][k]))
        names = ("family", "agents", "variance", "low", "high", "predicted", "basis")
        return columns(names, rows)

    def notes(self) -> list[str]:
        return [
            "The paper's own agent sweeps add new agents, which also changes the average operator; this one does not.",
            "Variance: the squared distance of the parameter from its own long-run mean, estimated over all seeds and "
            "rounds; what the estimate of the mean takes away from the variance is put back, seed by seed, from the "
            "spread of the seeds' means.",
            "Runs start at the root and are measured after the rounds that the spectral radius of a round needs to "
            f"bring the mean to {SETTLED:g} of its distance.",
        ]

    def _slope(self, outcome: Outcome, family: str) -> statistics.Estimate:
        return statistics.slope(outcome.facts[family]["agents"], outcome.arrays[f"{family}/variance"])


def variances(theta: np.ndarray) -> np.ndarray:
    r"""Returns each seed's contribution to the variance of the parameter around its long-run mean, `(seeds,)`;
    `theta` is `(seeds, rounds, d)`.

    Around the mean of all $K$ seeds, $\frac1T \sum_t |\theta_{s,t} - m|^2$ is too small by the variance of $m$. That is
    $1/K$ of the variance of a seed's own mean $m_s$, which is estimated from their spread over seeds,
    whatever the correlation within a run. Adding $\frac{1}{K-1} |m_s - m|^2$ makes the mean over seeds unbiased.

    !!! example
        >>> rng = np.random.default_rng(0)
        >>> short = np.stack([variances(rng.normal(size=(2, 1, 3))) for _ in range(4000)])
        >>> bool(abs(short.mean() - 3) < 0.1)
        True
    """
    own = theta.mean(1)
    mean = own.mean(0)
    spread = ((own - mean) ** 2).sum(-1) / (len(theta) - 1)
    return ((theta - mean) ** 2).sum(-1).mean(1) + spread

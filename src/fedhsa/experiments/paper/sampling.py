"""Markov and independent sampling: the floor grows with the long-run variance of the noise."""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import _check, statistics
from ...algorithms import FedHSA
from ...problems import Problem
from ...sources import FiniteChain, Transitions
from ...theory import Prediction, first_order_covariance, mixing
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, figures
from ..study.foresight import doubt, foresee, settling

SETTLED = 0.01
"""The remaining fraction of a deviation when measuring starts; variances are then too small by its square."""
FAMILIES = ("finite-sum", "td")
FIRST_ORDER_WITHIN = 0.1
"""The largest relative error of first-order theory at the step sizes used."""
PRECISION = 0.15
FIRST_ORDER: dict[str, Any] = {"color": "#B87F00", "linewidth": 1.0}
THEOREM: dict[str, Any] = {"color": "0.4", "linestyle": figures.DOTS, "linewidth": 1.0}


class Sampling(AbstractStudy):
    """FedHSA on problems whose observations are independent, or come from chains with increasing mixing times."""

    name: str = "sampling"
    title: str = "Independent and Markov sampling"
    source: str = "Theorem 1 against Theorem 2"
    families: tuple[str, ...] = FAMILIES
    num_agents: int = 5
    dim: int = 10
    num_components: int = 5
    eigenvalues: tuple[float, float] = (1.0, 4.0)
    num_states: int = 20
    problem_key: int = 0
    finite_sum_step: float = 0.002
    td_step: float = 0.02
    local_steps: int = 10
    laziness: tuple[float, ...] = (0.0, 0.5, 0.8, 0.9)
    """The probability of staying in place: chains mix 1 / (1 - laziness) times more slowly."""
    rounds: int = 1500
    """The number of rounds over which the floor is measured, after the method has settled."""

    claim: ClassVar[int] = 5
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 16,
        "families": ("finite-sum",),
        "laziness": (0.0, 0.9),
        "rounds": 2000,
    }

    def __post_init__(self):
        for family in self.families:
            _check.choice("families", family, FAMILIES)

    def seconds(self) -> float:
        runs = self.seeds * len(self.families) * len(self.laziness)
        return 1.0 + 7.0 * len(self.families) + 2.5e-7 * runs * self.rounds * self.local_steps * self.num_agents

    def variant(self, family: str, laziness: float) -> Instance:
        """Returns the problem of one family with this laziness of its chains."""
        own: dict[str, dict[str, Any]] = {
            "finite-sum": {"num_components": self.num_components, "eigenvalues": self.eigenvalues},
            "td": {"num_states": self.num_states},
        }
        arguments = {"dim": self.dim, "laziness": laziness, **own[family]}
        return Instance(family, self.num_agents, arguments, self.problem_key)

    def step_size(self, family: str) -> float:
        """Returns the step size for one family."""
        return getattr(self, f"{family.replace('-', '_')}_step")

    def run(self, runner: Runner) -> Outcome:
        arrays, facts = {}, {}
        for family in self.families:
            alpha = self.local_steps * self.step_size(family)
            found, reference = [], None
            for laziness in self.laziness:
                problem = self.variant(family, laziness).build()
                if reference is None or not _alike(problem, reference.problem):
                    reference = self._follow(runner, problem.iid(), family)
                found.append(_Pair(laziness, self._follow(runner, problem, family), reference))
            arrays[f"{family}/markov"] = np.stack([pair.markov.floors for pair in found])
            arrays[f"{family}/independent"] = np.stack([pair.independent.floors for pair in found])
            facts[family] = {
                "one_problem": all(pair.independent is reference for pair in found),
                "rows": [_row(pair, alpha) for pair in found],
            }
        return Outcome(arrays, facts)

    def _follow(self, runner: Runner, problem: Problem, family: str) -> "_Followed":
        algorithm = FedHSA(self.step_size(family), local_steps=self.local_steps)
        prediction = foresee(problem, algorithm)
        before = settling(prediction, SETTLED)
        settings = {"rounds": before + self.rounds, "seeds": self.seeds, "key": self.key, "theta": problem.theta_star}
        floors = runner.simulate(problem, algorithm, **settings).error[:, before + 1 :].mean(1)
        return _Followed(problem, prediction, float(np.trace(first_order_covariance(problem, algorithm))), floors)

    def draw(self, outcome: Outcome) -> figures.Figure:
        with figures.house_style((7.2 if len(self.families) > 1 else 3.5, 3.9)) as figure:
            self.plot(figure, outcome)
        return figure

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        many = len(self.families)
        axes = figure.subplots(2, many, sharex="col", sharey="row", height_ratios=(3, 1), squeeze=False)
        for (above, below), family in zip(axes.T, self.families, strict=True):
            rows, colour = outcome.facts[family]["rows"], figures.COLOURS["FedHSA"]
            theorem, first_order, predicted, laziness = (
                np.array([row[name] for row in rows]) for name in ("theorem", "first_order", "predicted", "laziness")
            )
            at, found = 1 / (1 - laziness), [self._inflation(outcome, family, i, 0.95) for i in range(len(rows))]
            above.plot(at, theorem, **THEOREM)
            for ax, unit in ((above, np.ones_like(at)), (below, predicted)):
                ax.plot(at, first_order / unit, **FIRST_ORDER, zorder=1)
                figures.theory(ax, at, predicted / unit, colour)
                figures.points(ax, at, found, unit=unit, marker="o", color=colour)
            above.set(xscale="log", yscale="log")
            above.set_title(figures.LOOKS[family].name, fontsize=9)
            figures.ticks(below, at)
            low, high = below.get_ylim()
            below.set(xlabel="slowdown of the chains, 1 / (1 - laziness)", ylim=(min(low, 0.85), max(high, 1.15)))
        axes[0, 0].set_ylabel("floor relative to i.i.d. sampling")
        axes[1, 0].set_ylabel("by prediction")
        colour = figures.COLOURS["FedHSA"]
        entries = {"FedHSA": figures.dots(colour), "prediction": figures.dashed(colour)}
        entries |= {"long-run variance": FIRST_ORDER, r"$\bar\tau / (1 - \rho)$": THEOREM}
        figures.legend(figure, entries, 4 if many > 1 else 2, title=f"95 % intervals, {self.seeds} seeds")

    def summary(self, outcome: Outcome) -> list[str]:
        said = []
        for family in self.families:
            found, last = self._inflation(outcome, family, -1), outcome.facts[family]["rows"][-1]
            slower = f"{1 / (1 - last['laziness']):.3g} times slower than those drawn"
            said.append(
                f"On the {figures.LOOKS[family].name} problem, with chains that mix {slower}, the floor is "
                f"{found:.3g} times that of independent sampling; predicted are "
                f"{last['predicted']:.3g}, and {last['first_order']:.3g} from the long-run variance of the noise alone."
            )
            drawn = self._inflation(outcome, family, 0)
            if family == "td" and drawn.high < 1:
                said[-1] += (
                    f" As drawn the chains even lower the floor, to {drawn:.2g} times: a "
                    "state that ends one transition begins the next, with the opposite sign."
                )
        rows = [row for family in self.families for row in outcome.facts[family]["rows"]]
        share, gap = max(row["bias_share"] for row in rows), [row["theorem"] / row["predicted"] for row in rows]
        said.append(
            "Between the two predictions lie what the chains still remember while the error itself relaxes, which "
            f"lowers the floor, and the squared Markov bias, at most {100 * share:.2g} % of the floor here."
        )
        said.append(
            f"The theorems' own factor between the two kinds of sampling, tau / (1 - rho), is {min(gap):.2g} to "
            f"{max(gap):.0f} times larger than the predicted inflation, constants aside: it bounds any noise with "
            "these chains."
        )
        return said

    def check(self, outcome: Outcome, checks: Checks) -> None:
        for family in self.families:
            rows = outcome.facts[family]["rows"]
            what = (
                f"Floor with Markov sampling relative to that with independent sampling, {figures.LOOKS[family].name}"
            )
            for i, row in enumerate(rows):
                lazy, measured = f"laziness {row['laziness']:g}", self._inflation(outcome, family, i)
                for against, theory, slack in (
                    ("prediction", row["predicted"], row["doubt"]),
                    ("ratio of long-run variances", row["first_order"], FIRST_ORDER_WITHIN),
                ):
                    name = f"{family}, {lazy}, {against}"
                    statement = f"{what}, {lazy}: against the {against}"
                    checks.equals(name, statement, measured, theory, slack=slack, precision=PRECISION)

    def table(self, outcome: Outcome) -> Table:
        found: dict[str, list[Any]] = {}
        for family in self.families:
            for i, row in enumerate(outcome.facts[family]["rows"]):
                estimate = self._inflation(outcome, family, i, level=0.95)
                measured = {"measured": estimate.value, "low": estimate.low, "high": estimate.high}
                for name, value in ({"family": family, **measured} | row).items():
                    found.setdefault(name, []).append(value)
        return found

    def notes(self) -> list[str]:
        return [
            "The paper runs no such comparison. A chain that stays in place more often has the same stationary law. In "
            "a finite sum that leaves the mean operators and the root as they are; in TD the next state enters the "
            "mean operator, so every chain is compared with independent pairs (s, s') of its own.",
            "Runs start at the root; the floor is each seed's mean over the rounds after it has settled, and the ratio "
            "is paired over seeds.",
            "Theorem 2 has tau / (1 - rho) in front of the term that falls with M, Theorem 1 has 1; tau is the time in "
            "which the slowest chain comes within alpha^2 of its stationary law.",
        ]

    def _inflation(
        self, outcome: Outcome, family: str, which: int, level: float = statistics.LEVEL
    ) -> statistics.Estimate:
        samples = (outcome.arrays[f"{family}/{name}"][which] for name in ("markov", "independent"))
        return statistics.ratio(*samples, level=level)


class _Followed(NamedTuple):
    """The prediction and the simulation of one problem."""

    problem: Problem
    prediction: Prediction
    first_order: float
    """The floor to first order in the step size: the trace of `first_order_covariance`."""
    floors: np.ndarray
    """The floor of each seed."""


class _Pair(NamedTuple):
    """The same agents with both kinds of sampling."""

    laziness: float
    markov: _Followed
    independent: _Followed


def _row(pair: _Pair, alpha: float) -> dict[str, Any]:
    prediction, independent = pair.markov.prediction, pair.independent
    return {
        "laziness": pair.laziness,
        "predicted": prediction.floor / independent.prediction.floor,
        "basis": prediction.basis,
        "doubt": doubt(prediction) + doubt(independent.prediction),
        "first_order": pair.markov.first_order / independent.first_order,
        "theorem": _theorem_factor(pair.markov.problem, alpha),
        "bias_share": float(prediction.bias @ prediction.bias) / prediction.floor,
        "radius": prediction.spectral_radius,
    }


def _theorem_factor(problem: Problem, alpha: float) -> float:
    r"""Returns $\bar\tau / (1 - \rho)$, the ratio of Theorem 2's leading term to Theorem 1's."""
    source = problem.agents.source
    chain = source.chain if isinstance(source, Transitions) else source
    assert isinstance(chain, FiniteChain)
    pair = mixing.geometric(chain.transition)
    pair = pair.of_pairs() if isinstance(source, Transitions) else pair
    return max(1.0, float(np.max(pair.tau(alpha**2)))) / (1 - float(np.max(pair.rho)))


def _alike(problem: Problem, other: Problem) -> bool:
    """Returns whether two problems have the same mean operators."""
    parts = zip(problem.affine_parts(), other.affine_parts(), strict=True)
    return all(np.allclose(mine, theirs, rtol=1e-9, atol=1e-12) for mine, theirs in parts)

"""Scaffnew: the probability of communication with the fewest exchanges, as the condition number grows."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ..._random import host_generator
from ...algorithms import SCAFFLSA, AbstractAlgorithm, FedHSA, LocalSA, Scaffnew, SynchronisedSA
from ...problems import Problem, logistic
from ..study import AbstractStudy, Checks, Estimate, Outcome, Runner, Table, columns, figures, rows_of

EVERY = 20
"""The number of steps between two records of Scaffnew's error."""
ROUNDS: dict[str, Callable[..., AbstractAlgorithm]] = {"SCAFFLSA": SCAFFLSA, "FedHSA": FedHSA, "LocalSA": LocalSA}
NAMES = {"Scaffnew": "Scaffnew", "SCAFFLSA": "SCAFFOLD", "FedHSA": "FedHSA", "LocalSA": "LocalSA"}


class Probability(AbstractStudy):
    r"""Exchanges that Scaffnew needs for a given error, against $p$, at $\gamma = 1/L$ and without noise."""

    name: str = "field/scaffnew"
    title: str = "Scaffnew's probability of communicating"
    source: str = "Figure 1 of ProxSkip"
    seeds: int = 16
    """The number of independent sequences of coins."""
    num_agents: int = 4
    num_examples: int = 8
    dim: int = 12
    problem_key: int = 0
    condition_numbers: tuple[float, ...] = (25.0, 100.0, 400.0, 1600.0)
    r"""The condition numbers $\kappa = L / \lambda$."""
    multiples: tuple[float, ...] = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
    r"""The probabilities $p$, in units of $1/\sqrt\kappa$."""
    target: float = 1e-8
    """The target squared distance to the root, relative to the initial squared distance."""
    compared: float = 400.0
    """The condition number at which methods are compared."""
    local_steps: tuple[int, ...] = (5, 10, 20, 40)
    """The numbers of local steps $H$, and $1/p$ of Scaffnew, in this comparison."""
    steps: tuple[float, ...] = (0.5, 1.0, 1.5)
    r"""The step sizes in this comparison, in units of $1/L$."""

    claim: ClassVar[int] = 14
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.2)
    quick_settings: ClassVar[dict[str, Any]] = {
        "condition_numbers": (25.0, 100.0, 400.0),
        "compared": 100.0,
        "local_steps": (10, 20),
        "steps": (1.0, 1.5),
    }

    def seconds(self) -> float:
        steps = 18.4 * 7 * sum(self.condition_numbers) + 60 * self.compared * len(self.local_steps) * len(self.steps)
        return 5.0 + 3.0 * len(self.local_steps) + 2e-6 * self.seeds * steps

    def run(self, runner: Runner) -> Outcome:
        arrays, curvature = {}, {}
        for kappa in self.condition_numbers:
            problem, L = self.problem(kappa)
            values = np.linalg.eigvalsh(-problem.jacobians(problem.theta_star).mean(0))
            curvature[f"{kappa:g}"] = float(L / values.min())
            for multiple in self.multiples:
                p = min(1.0, multiple / math.sqrt(kappa))
                arrays[f"{kappa:g} {multiple:g}"] = self._scaffnew(runner, problem, 1 / L, p, kappa)
        rows = self._compare(runner, arrays)
        return Outcome(arrays, {"curvature": curvature, "rows": rows})

    def problem(self, kappa: float) -> tuple[Problem, float]:
        """Returns logistic regression on data with shrinking features; regularisation dominates in some directions."""
        M, N, d = self.num_agents, self.num_examples, self.dim
        rng = host_generator(self.problem_key, "scaffnew")
        scale = np.geomspace(1, 0.01, d)
        inputs, directions = rng.normal(size=(M, N, d)) * scale, rng.normal(size=(M, d))
        logits = 3 * np.einsum("mnd,md->mn", inputs, directions) / np.linalg.norm(scale)
        labels = np.where(logits + rng.logistic(size=(M, N)) > 0, 1.0, -1.0)
        most = np.linalg.eigvalsh(np.swapaxes(inputs, 1, 2) @ inputs / (4 * N)).max()
        regularisation = float(most / (kappa - 1))
        problem = logistic.from_arrays(inputs, labels, np.full((M, N, N), 1 / N), regularisation)
        return problem.noiseless(), float(most) + regularisation

    def _scaffnew(self, runner: Runner, problem: Problem, step: float, p: float, kappa: float) -> np.ndarray:
        """Returns the expected exchanges until the target, for every seed; infinite if it was not reached."""
        enough = -math.log(self.target) * (0.7 * kappa + 0.3 / p**2)
        rounds = EVERY * math.ceil(enough / EVERY)
        settings: dict[str, Any] = {"seeds": self.seeds, "key": self.key, "every": EVERY}
        run = runner.simulate(problem, Scaffnew(step, probability=p), rounds=rounds, **settings)
        return p * np.array([EVERY * _crossing(error / error[0], self.target) for error in run.error])

    def _compare(self, runner: Runner, arrays: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Runs every method at every step size and number of local steps, at one condition number."""
        (problem, L), rows = self.problem(self.compared), []
        most = math.ceil(-math.log(self.target) * self.compared)
        for H in self.local_steps:
            for part in self.steps:
                label = f"compared {H} {part:g}"
                arrays[label] = self._scaffnew(runner, problem, part / L, 1 / H, self.compared / part)
                mean = float(arrays[label].mean())
                rows.append({"method": "Scaffnew", "H": H, "step": part, "exchanges": _finite(mean), "end": None})
                for method, make in ROUNDS.items():
                    algorithm = make(part / L, local_steps=H)
                    run = runner.simulate(problem, algorithm, rounds=max(200, 3 * most // H))
                    error = run.error[0] / run.error[0, 0]
                    exchanges = run.cost.exchanges * _crossing(error, self.target)
                    row = {"method": method, "H": H, "step": part, "exchanges": _finite(exchanges)}
                    rows.append(row | {"end": _finite(float(error[-1]))})
        for part in self.steps:
            run = runner.simulate(problem, SynchronisedSA(part / L), rounds=2 * most)
            exchanges = _crossing(run.error[0] / run.error[0, 0], self.target)
            rows.append({"method": "SGD", "H": 1, "step": part, "exchanges": _finite(exchanges), "end": None})
        return rows

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3)
        for kappa, colour in zip(self.condition_numbers, figures.FALLBACK[:4], strict=False):
            at, found = self._probabilities(kappa), figures.means(self._exchanges(outcome, kappa))
            style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 3, "linestyle": "-", "capsize": 0}
            figures.points(left, at, found, label=f"{kappa:g}", **style)
            left.axvline(1 / math.sqrt(kappa), color=colour, linewidth=0.8, linestyle=figures.DASHES, zorder=0)
        left.set(xscale="log", yscale="log", xlabel="probability $p$", ylabel=f"exchanges to {self.target:g}")
        title = r"$\kappa$ (dashed: $1/\sqrt{\kappa}$)"
        figures.legend_above(left, title=title, ncols=2, columnspacing=1.0, handlelength=1.2)
        kappas = np.array(self.condition_numbers)
        found = [self._best(outcome, kappa) for kappa in kappas]
        figures.points(middle, kappas, found, color=figures.FALLBACK[0], marker="o", capsize=0)
        middle.plot(kappas, kappas**-0.5, label=r"$1/\sqrt{\kappa}$", **figures.dashed())
        middle.set(xscale="log", yscale="log", xlabel=r"condition number $\kappa$", ylabel="best $p$")
        figures.legend_above(middle)
        looks = figures.colours(list(NAMES))
        for method in NAMES:
            best = {H: number for H in self.local_steps if (number := self._fewest(outcome, method, H))}
            if best:
                style = {"color": looks[method], "marker": "o", "markersize": 4}
                right.plot(list(best), list(best.values()), label=NAMES[method], **style)
        if alone := self._fewest(outcome, "SGD", 1):
            right.axhline(alone, color="black", linewidth=0.8, linestyle=figures.DOTS, label="SGD")
        right.set(xscale="log", yscale="log", xlabel="$H$ or $1/p$", ylabel="exchanges, best step")
        figures.ticks(right, self.local_steps)
        figures.legend_above(right, title=rf"$\kappa$ = {self.compared:g}")

    def summary(self, outcome: Outcome) -> list[str]:
        slope = self._slope(outcome)
        best = {kappa: self._best(outcome, kappa).value * math.sqrt(kappa) for kappa in self.condition_numbers}
        fewest = {method: self._fewest(outcome, method) for method in (*NAMES, "SGD")}
        stalled = min(row["end"] for row in rows_of(outcome, method="LocalSA") if row["end"] is not None)

        def said(method: str) -> str:
            number = fewest[method]
            return "never gets there" if number is None else f"needs {number:.0f}"

        return [
            f"The p with the fewest exchanges follows kappa to the power {slope.value:.2f} ({slope.low:.2f} to "
            f"{slope.high:.2f}) and lies at {min(best.values()):.2f} to {max(best.values()):.2f} times "
            "1 / sqrt(kappa).",
            f"At kappa = {self.compared:g}, every method with its best step and local steps: Scaffnew "
            f"{said('Scaffnew')} exchanges, SCAFFOLD {said('SCAFFLSA')}, FedHSA, at two per round, {said('FedHSA')}, "
            f"SGD {said('SGD')}.",
            f"Local SA {said('LocalSA')}: the least squared distance it ends at is {stalled:.1g} of the start's.",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        statement = "Slope of log(best p) against log(kappa); -1/2 is the law"
        checks.inside("slope", statement, self._slope(outcome), -0.6, -0.4)
        for kappa in self.condition_numbers:
            best = Estimate(*(end * math.sqrt(kappa) for end in self._best(outcome, kappa)))
            statement = f"kappa = {kappa:g}: best p, times sqrt(kappa)"
            checks.inside(f"kappa = {kappa:g}", statement, best, 0.5, 2.0)
        few = {method: self._fewest(outcome, method) or math.inf for method in (*NAMES, "SGD")}
        statement = (
            f"kappa = {self.compared:g}, all tuned: Scaffnew's exchanges relative to those of SCAFFOLD, or the inverse"
        )
        apart = max(few["Scaffnew"] / few["SCAFFLSA"], few["SCAFFLSA"] / few["Scaffnew"])
        checks.at_most("as good as SCAFFOLD", statement, apart, 1.5)
        statement = f"kappa = {self.compared:g}, both tuned: Scaffnew's exchanges relative to those of SGD"
        checks.at_most("fewer than SGD", statement, few["Scaffnew"] / few["SGD"], 0.5)
        ends = [row["end"] for row in rows_of(outcome, method="LocalSA") if row["end"] is not None]
        statement = "The target by the least squared distance at which Local SA ends, all steps and H"
        checks.at_most("Local SA stalls", statement, self.target / min(ends), 0.1)

    def table(self, outcome: Outcome) -> Table:
        rows: list[tuple[Any, ...]] = []
        for kappa in self.condition_numbers:
            for p, found in zip(self._probabilities(kappa), self._exchanges(outcome, kappa), strict=True):
                rows.append(("Scaffnew", kappa, 1 / p, 1.0, found.mean()))
        for row in outcome.facts["rows"]:
            rows.append((row["method"], self.compared, row["H"], row["step"], row["exchanges"]))
        return columns(("method", "kappa", "H or 1/p", "step times L", "exchanges"), rows)

    def notes(self) -> list[str]:
        return [
            "Mishchenko, Malinovsky, Stich and Richtarik, ProxSkip: Yes! Local Gradient Steps Provably Lead to "
            "Communication Acceleration! Finally!, ICML 2022, arXiv:2202.09357. Theirs is logistic regression on w8a "
            "with lambda = 1e-4 L; ours is on random data with features that shrink to a hundredth, so that the "
            "flattest direction has hardly more curvature than lambda, and kappa up to "
            f"{max(self.condition_numbers):g}, which a hundred times fewer steps reach.",
            "Exchanges are p times the steps until the squared distance of the agents' average is "
            f"{self.target:g} of the start's; the start is 0. The best p is the vertex of the parabola through the "
            "three lowest neighbours on logarithmic axes, its interval a jackknife over coins.",
            f"Where methods are compared, all have the same grid: steps {', '.join(f'{s:g}' for s in self.steps)} "
            f"times 1 / L, and H or 1/p from {', '.join(map(str, self.local_steps))}. SCAFFOLD is option II, which "
            "with all agents taking part is SCAFFLSA.",
        ]

    def _probabilities(self, kappa: float) -> list[float]:
        return [min(1.0, multiple / math.sqrt(kappa)) for multiple in self.multiples]

    def _exchanges(self, outcome: Outcome, kappa: float) -> np.ndarray:
        return np.stack([outcome.arrays[f"{kappa:g} {multiple:g}"] for multiple in self.multiples])

    def _best(self, outcome: Outcome, kappa: float) -> Estimate:
        exchanges = self._exchanges(outcome, kappa)
        p = np.array(self._probabilities(kappa))
        return statistics.jackknife(lambda seeds: vertex(p, exchanges[:, seeds].mean(1)), np.arange(exchanges.shape[1]))

    def _slope(self, outcome: Outcome) -> Estimate:
        """Returns the slope of the best p in the condition number; coins count as independent between these numbers."""
        at = np.log(self.condition_numbers)
        weights = (at - at.mean()) / ((at - at.mean()) ** 2).sum()
        best = [self._best(outcome, kappa) for kappa in self.condition_numbers]
        value = float(weights @ np.log([b.value for b in best]))
        half = math.sqrt(float(weights**2 @ np.array([math.log(b.high / b.value) ** 2 for b in best])))
        return Estimate(value, value - half, value + half)

    def _fewest(self, outcome: Outcome, method: str, H: int | None = None) -> float | None:
        chosen = [row["exchanges"] for row in rows_of(outcome, method=method) if H in (None, row["H"])]
        return min((number for number in chosen if number is not None), default=None)


def vertex(p: np.ndarray, exchanges: np.ndarray) -> float:
    """Returns the minimiser of the parabola through the lowest point and its neighbours, on logarithmic axes.

    !!! example
        >>> p = np.array([0.1, 0.2, 0.4, 0.8])
        >>> round(vertex(p, np.exp((np.log(p) - np.log(0.3)) ** 2)), 6)
        0.3
    """
    k = min(max(int(np.argmin(exchanges)), 1), len(p) - 2)
    x, y = np.log(p[k - 1 : k + 2]), np.log(exchanges[k - 1 : k + 2])
    a, b, _ = np.polyfit(x, y, 2)
    return float(np.exp(np.clip(-b / (2 * a), x[0], x[-1])))


def _crossing(error: np.ndarray, target: float) -> float:
    """Returns the record at which the error passes the target permanently, interpolated on a logarithmic scale."""
    if not error[-1] <= target:
        return math.inf
    last = int(np.flatnonzero(error > target)[-1])
    before, after = np.log(error[last : last + 2])
    return float(last + (before - math.log(target)) / (before - after))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

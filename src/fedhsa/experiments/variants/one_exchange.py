"""FedHSA with one exchange: benefits and costs of the correction from the previous round."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ... import statistics
from ..._linear import spectral_radius
from ...algorithms import SCAFFLSA, AbstractAlgorithm, FedHSA, LocalSA, OneExchangeFedHSA, cost
from ...problems import Problem, quadratic
from ...theory import correlations, exact, predict
from ...theory.laws.first_order import first_order
from ...theory.laws.pieces import pieces_of_rule
from ...theory.rule import LocalRule
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, columns, figures, repeated, rows_of
from .contraction import fed_hsa_boundary, one_exchange_boundary, one_exchange_map

METHODS: dict[str, Callable[..., AbstractAlgorithm]] = {
    "FedHSA": FedHSA,
    "OneExchangeFedHSA": OneExchangeFedHSA,
    "SCAFFLSA": SCAFFLSA,
    "LocalSA": LocalSA,
}
TWO, ONE = "FedHSA", "OneExchangeFedHSA"
COLOUR, MARKERS = figures.colours(list(METHODS)), dict(zip(METHODS, "os^v", strict=True))
SETTLED = 1e-3
"""The part of the mean's initial error that may be left when the measurement of floors begins."""
FIRST_ORDER = 0.1
"""The relative tolerance of biases that are known to first order in the step size."""
SMALL = (0.005, 0.01)
"""Fractions of the boundary at which the exact floors' difference shows its power of the step size."""


class OneExchange(AbstractStudy):
    """Stability, floors, round trips and bias of FedHSA and of its variant with one exchange."""

    name: str = "field/one-exchange"
    title: str = "FedHSA with one exchange"
    source: str = "New here: the correction of the round before"
    seeds: int = 48
    num_agents: int = 8
    dim: int = 4
    min_eigenvalue: float = 0.1
    """The smallest curvature of every agent."""
    problem_key: int = 0
    slopes: tuple[float, ...] = (0.1, 1.0)
    """The slopes of the two scalar operators."""
    local_steps: tuple[int, ...] = (2, 10, 50)
    """The numbers of local steps at which the boundary is simulated, each with both methods."""
    near: float = 0.02
    """The relative distance from the boundary on either side."""
    floor_steps: int = 10
    """The number of local steps in the runs with noise."""
    parts: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    """The step sizes of the floors, relative to the largest stable step size with one exchange."""
    followed: float = 0.1
    """The member of `parts` at which the error is followed from the start."""
    rounds: int = 1000
    """The number of rounds that count for a floor."""
    instance: Instance = dataclasses.field(
        default_factory=lambda: Instance("td", 4, {"num_states": 4, "dim": 2, "laziness": 0.85}, key=33)
    )
    """A cohort with a slow chain and multiplicative noise, as in `saturation`."""
    copies: int = 64
    td_step: float = 0.025
    td_local_steps: int = 20
    td_rounds: int = 800
    """The number of rounds that count for the bias."""

    claim: ClassVar[int] = 23
    figure_size: ClassVar[tuple[float, float]] = (7.2, 2.9)
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 24, "local_steps": (10,)}

    def seconds(self) -> float:
        td = 4 * self.copies * self.td_local_steps * (self.td_rounds + 550)
        return 24.0 + 9.0 * len(self.local_steps) + 7e-8 * self.seeds * td

    def problem(self) -> Problem:
        """Returns a problem with additive noise, for which all four methods have an exact law."""
        common: dict[str, Any] = {"min_eigenvalue": self.min_eigenvalue, "start": "stationary"}
        return quadratic.random(self.num_agents, self.dim, key=self.problem_key, **common)

    def run(self, runner: Runner) -> Outcome:
        problem = self.problem()
        A = problem.affine_parts()[0]
        fine = np.unique(np.geomspace(1, 200, 30).round().astype(int))
        arrays = {"local_steps": fine, f"{TWO}/boundary": np.array([H * fed_hsa_boundary(A, int(H)) for H in fine])}
        arrays[f"{ONE}/boundary"] = np.array([H * one_exchange_boundary(A, int(H)) for H in fine])
        rows = [self._near_boundary(runner, problem, A, *at) for at in self._sides()]
        facts: dict[str, Any] = {"rows": rows, "scalars": self._scalars()}
        largest = one_exchange_boundary(A, self.floor_steps)
        facts |= {"largest": largest, "floors": {}, "small": {}, "radius": {}, "exchanges": {}, "floats": {}}
        for name in METHODS:
            self._with_noise(runner, problem, name, largest, arrays, facts)
        facts["bias"] = self._bias(runner, arrays)
        return Outcome(arrays, facts)

    def _sides(self) -> list[tuple[str, int, float]]:
        """Returns methods, local steps, and step sizes as fractions of the largest stable step size."""
        return [
            (name, H, 1 + side) for name in (TWO, ONE) for H in self.local_steps for side in (-self.near, self.near)
        ]

    def _near_boundary(
        self, runner: Runner, problem: Problem, A: np.ndarray, name: str, H: int, part: float
    ) -> dict[str, Any]:
        step = part * (fed_hsa_boundary if name == TWO else one_exchange_boundary)(A, H)
        algorithm, quiet = METHODS[name](step, local_steps=H), problem.noiseless()
        start = problem.theta_star + np.random.default_rng(0).normal(size=problem.dim)
        found = statistics.growth(runner.simulate(quiet, algorithm, rounds=400, theta=start).error[0])
        radius = exact.spectral_radius(quiet, algorithm)
        return {"method": name, "H": H, "step": step, "radius": radius, "growth": found}

    def _scalars(self) -> dict[str, Any]:
        r"""Returns $Q$ at the boundary of one exchange, $P + Q$ at FedHSA's boundary, for growing $H$."""
        A = -np.array(self.slopes).reshape(-1, 1, 1)
        one, two, many = [], [], [5, 20, 100]
        for H in many:
            one.append(float(one_exchange_map(A, one_exchange_boundary(A, H), H)[0, 1]))
            two.append(float(LocalRule(fed_hsa_boundary(A, H), H, 1.0, 1.0).transition(A)[0, 0]))
        within = -np.array([0.5, 1.0]).reshape(-1, 1, 1)  # AM/HM = 9/8: stable for every number of local steps
        tried = [one_exchange_map(within, 0.5, 2**k) for k in range(12)]
        worst = max(spectral_radius(map) for map in tried)
        return {"H": many, "Q": one, "P + Q": two, "like": worst}

    def _with_noise(
        self, runner: Runner, problem: Problem, name: str, largest: float, arrays: dict[str, Any], facts: dict[str, Any]
    ) -> None:
        """Computes one method's floors at every step size and its error from the start at one, with exact laws."""
        laws, floors = {}, []
        for part in {*self.parts, *SMALL, self.followed}:
            laws[part] = predict(problem, METHODS[name](part * largest, local_steps=self.floor_steps))
        settings: dict[str, Any] = {"seeds": self.seeds, "key": self.key}
        before = math.ceil(math.log(SETTLED) / math.log(max(laws[p].spectral_radius for p in self.parts)))
        for part in self.parts:
            options = settings | {"rounds": before + self.rounds, "theta": problem.theta_star}
            floors.append(runner.simulate(problem, laws[part].algorithm, **options).error[:, before:].mean(1))
        arrays[f"{name}/floor"] = np.stack(floors)
        law = laws[self.followed]
        start, rounds = problem.theta_star + 1, math.ceil(math.log(1e-3) / math.log(law.spectral_radius))
        arrays[f"{name}/error"] = runner.simulate(problem, law.algorithm, rounds=rounds, theta=start, **settings).error
        arrays[f"{name}/law"] = law.error(rounds, start)
        price = cost(problem, law.algorithm)
        facts["floors"][name] = [laws[part].floor for part in self.parts]
        facts["small"][name] = [laws[part].floor for part in SMALL]
        facts["radius"][name] = law.spectral_radius
        facts["exchanges"][name] = float(price.exchanges)
        facts["floats"][name] = float(price.floats_up + price.floats_down)

    def _bias(self, runner: Runner, arrays: dict[str, Any]) -> dict[str, float]:
        """Returns the mean error with many agents on a slow chain, and its predicted square."""
        cohort, step, H, found = self.instance.build(), self.td_step, self.td_local_steps, {}
        problem = repeated(cohort, self.copies)
        before = math.ceil(math.log(SETTLED) / math.log(exact.spectral_radius(cohort, FedHSA(step, local_steps=H))))
        for name in (TWO, ONE):
            settings: dict[str, Any] = {"seeds": self.seeds, "key": self.key, "theta": cohort.theta_star}
            algorithm, rounds = METHODS[name](step, local_steps=H), before + self.td_rounds
            run = runner.simulate(problem, algorithm, rounds=rounds, record=("theta",), **settings)
            arrays[f"{name}/bias"] = (run.records["theta"][:, before:] - cohort.theta_star).mean(1)
            bias = first_order_bias(cohort, step, H, agents=problem.num_agents, late=name == ONE)
            found[name] = float(bias @ bias)
        return found

    def check(self, outcome: Outcome, checks: Checks) -> None:
        facts = outcome.facts
        for name in (TWO, ONE):
            rows = rows_of(outcome, method=name)
            wrong = sum((row["growth"] >= 1) != (row["radius"] >= 1) for row in rows)
            off = max(abs(row["growth"] - row["radius"]) for row in rows)
            statement = (
                f"{name} without noise, {100 * self.near:g} % below and above its largest step, {len(rows)} runs: "
                "largest difference of the error's factor per round from the spectral radius"
            )
            checks.at_most(f"{name}, boundary", statement, off + wrong, 5e-3)
        scalars = facts["scalars"]
        for label, what, name in (("Q", "with one exchange Q", ONE), ("P + Q", "of FedHSA P + Q", TWO)):
            off = max(abs(value + 1) for value in scalars[label])
            statement = f"Two scalars, at the largest step {what} is -1: largest difference, H = {scalars['H']}"
            checks.at_most(f"scalars, {name}", statement, off, 1e-6)
        statement = "Slopes 0.5 and 1, AM/HM below 2: largest factor per round with one exchange, any local steps"
        checks.at_most("like slopes", statement, scalars["like"], 1 - 1e-6)
        self._check_noise(outcome, checks)
        self._check_bias(outcome, checks)

    def _check_noise(self, outcome: Outcome, checks: Checks) -> None:
        facts = outcome.facts
        for name in METHODS:
            for k, part in enumerate(self.parts):
                measured = statistics.mean(outcome.arrays[f"{name}/floor"][k])
                statement = f"Floor of {name} at {part:g} of the largest step with one exchange: the exact law"
                expected = facts["floors"][name][k]
                checks.equals(f"{name}, {part:g}", statement, measured, expected, precision=0.2)
        for k, part in enumerate(self.parts):
            measured, expected = self._ratio(outcome, k)
            statement = (
                f"Floor with one exchange relative to that of FedHSA at {part:g} of the largest step: the exact law"
            )
            checks.equals(f"ratio, {part:g}", statement, measured, expected, precision=0.1)
        excess = np.array(facts["small"][ONE]) / np.array(facts["small"][TWO]) - 1
        power = float(np.diff(np.log(excess))[0] / np.diff(np.log(SMALL))[0])
        statement = "Power of the step in the floors' relative difference at small steps, by the exact law"
        checks.near("power", statement, power, 2.0, tolerance=0.02)
        statement = "Numbers sent per round with one exchange relative to those of FedHSA"
        share = facts["floats"][ONE] / facts["floats"][TWO]
        checks.near("bytes", statement, share, 1.0, tolerance=1e-12)
        statement = (
            "Exchanges until the error is twice FedHSA's floor, with one exchange relative to FedHSA's; exact laws"
        )
        share = self._trips(outcome, ONE) / self._trips(outcome, TWO)
        checks.near("round trips", statement, share, 0.5, tolerance=0.1)

    def _check_bias(self, outcome: Outcome, checks: Checks) -> None:
        samples, M = {}, self.copies * self.instance.num_agents
        for name, expected in outcome.facts["bias"].items():
            means = outcome.arrays[f"{name}/bias"]
            samples[name] = statistics.squared_bias_samples(means)
            statement = f"Squared bias of {name}, TD with M = {M}: first order in the step"
            options: dict[str, Any] = {"slack": FIRST_ORDER, "precision": 0.4}
            measured = statistics.squared_bias(means)
            checks.equals(f"{name}, bias", statement, measured, expected, **options)
        expected = outcome.facts["bias"][ONE] / outcome.facts["bias"][TWO]
        measured = statistics.ratio(samples[ONE], samples[TWO])
        statement = (
            f"Squared bias with one exchange relative to that of FedHSA, TD with M = {M}: first order in the step"
        )
        name, options = "bias, ratio", {"slack": FIRST_ORDER, "precision": 0.3}
        checks.equals(name, statement, measured, expected, **options)

    def _ratio(self, outcome: Outcome, k: int) -> tuple[statistics.Estimate, float]:
        above, below = (outcome.arrays[f"{name}/floor"][k] for name in (ONE, TWO))
        floors = outcome.facts["floors"]
        return statistics.ratio(above, below), floors[ONE][k] / floors[TWO][k]

    def _trips(self, outcome: Outcome, name: str) -> float:
        """Returns the exchanges until the exact error is twice FedHSA's floor."""
        target = 2 * outcome.facts["floors"][TWO][self.parts.index(self.followed)]
        return outcome.facts["exchanges"][name] * int(np.argmax(outcome.arrays[f"{name}/law"] <= target))

    def summary(self, outcome: Outcome) -> list[str]:
        facts, arrays = outcome.facts, outcome.arrays
        shares = arrays[f"{ONE}/boundary"] / arrays[f"{TWO}/boundary"]
        ratios = [self._ratio(outcome, k)[0] for k in range(len(self.parts))]
        said = ", ".join(f"{r:.3f}" for r in ratios)
        above, below = (statistics.squared_bias_samples(arrays[f"{name}/bias"]) for name in (ONE, TWO))
        bias = statistics.ratio(above, below)
        return [
            f"With one exchange the largest stable step is {shares[-1]:.2f} times FedHSA's at many local steps (left; "
            f"{shares.min():.2f} to {shares.max():.2f} at few, where single agents overshoot). A round moves the same "
            "numbers in half the round trips: to twice FedHSA's floor it takes "
            f"{self._trips(outcome, ONE):.0f} exchanges, FedHSA {self._trips(outcome, TWO):.0f} (right).",
            f"Floors (middle) are FedHSA's {said} times, at {', '.join(f'{part:g}' for part in self.parts)} of the "
            "largest step: the difference goes with the square of the step.",
            f"Where Markov noise multiplies, the squared bias that many agents leave is {bias.value:.2f} times "
            f"FedHSA's ({bias.low:.2f} to {bias.high:.2f}; predicted {facts['bias'][ONE] / facts['bias'][TWO]:.2f}): "
            "a correction from the block itself takes off part of that bias, one from the block before does not.",
        ]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for name in METHODS:
            for k, part in enumerate(self.parts):
                floor = statistics.mean(outcome.arrays[f"{name}/floor"][k], level=0.95)
                rows.append((name, part * outcome.facts["largest"], *floor, outcome.facts["floors"][name][k]))
        names = ("method", "step_size", "floor", "floor_low", "floor_high", "floor_predicted")
        return columns(names, rows)

    def notes(self) -> list[str]:
        return [
            "The method is this package's; with everyone taking part it is option I of SCAFFOLD (Karimireddy et al., "
            "2020, arXiv:1910.06378). The problem of floors and boundary is the paper's random quadratic with "
            f"curvatures from {self.min_eigenvalue:g} on; `docs/theory/one-exchange.md` has the derivations.",
            f"Largest steps of the figure are closed forms, and the runs next to them ({100 * self.near:g} % off) are "
            "held to spectral radii from the exchanges themselves. All methods see the same observations.",
            "The bias is measured on the problem of `saturation`, TD on a slow chain picked for that bias.",
        ]

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3)
        arrays, facts, steps = outcome.arrays, outcome.facts, np.array(self.parts) * outcome.facts["largest"]
        for name in (TWO, ONE):
            figures.theory(left, arrays["local_steps"], arrays[f"{name}/boundary"], COLOUR[name])
        for row in facts["rows"]:
            marker = "x" if row["growth"] >= 1 else MARKERS[row["method"]]
            left.plot(row["H"], row["H"] * row["step"], **figures.dots(COLOUR[row["method"]], marker))
        for name, colour in COLOUR.items():
            style = figures.dots(colour, MARKERS[name], 3.5)
            figures.points(middle, steps, figures.means(arrays[f"{name}/floor"]), **style)
            figures.theory(middle, steps, facts["floors"][name], colour)
            error, law = arrays[f"{name}/error"], arrays[f"{name}/law"]
            exchanges = facts["exchanges"][name] * np.arange(len(law))
            few = slice(None, None, 2 if name == TWO else 4)  # both curves have the same number of markers per exchange
            right.plot(exchanges[few], error.mean(0)[few], **figures.dots(colour, MARKERS[name], 3))
            figures.theory(right, exchanges, law, colour)
        last = max(facts["exchanges"][name] * (len(arrays[f"{name}/law"]) - 1) for name in METHODS)
        left.set(xscale="log", xlabel="local steps $H$", ylabel=r"largest stable $\eta H$", ylim=(0, None))
        middle.set(xscale="log", yscale="log", xlabel=r"step size $\eta$", ylabel="floor")
        right.set(yscale="log", xlabel="exchanges", ylabel="mean-square error", xlim=(0, last))
        figures.grid(left, middle, right)
        entries = {name: figures.dots(COLOUR[name], MARKERS[name]) for name in METHODS}
        title = rf"quadratic: $M = {self.num_agents}$, middle and right $H = {self.floor_steps}$, "
        title += rf"right $\eta = {self.followed * facts['largest']:.2g}$; {self.seeds} seeds, 95 % intervals"
        figures.legend(figure, entries | {"diverges": figures.dots("0.2", "x"), "exact": figures.dashed()}, 6, title)


def first_order_bias(cohort: Problem, step: float, H: int, *, agents: int, late: bool) -> np.ndarray:
    r"""Returns the Markov bias of FedHSA, optionally with a correction one round late, for `agents` such agents.

    `late` replaces the lag $\ell$ from the observation of the correction to local step $\ell$ by $H + \ell$.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=4, dim=2)
        >>> known = fedhsa.theory.first_order_bias(problem, fedhsa.FedHSA(0.1, local_steps=5))
        >>> bool(np.allclose(first_order_bias(problem, 0.1, 5, agents=3, late=False), known))
        True
    """
    A, found, share = cohort.affine_parts()[0].mean(0), correlations(cohort, lags=2 * H), 1 / agents
    lagged = np.concatenate([found.product[:, None], found.lagged], axis=1).mean(0)
    local = first_order(pieces_of_rule(LocalRule(step, H, 1.0, 0.0), agents))
    plain, lags = local.bias(A, lagged, found.lagged_sum.mean(0)), np.arange(1, H)
    products = (lags[:, None] * lagged[lags + late * H]).sum(0)
    return plain + step / H * (1 - share) * np.linalg.solve(A, products)

"""The step size of Corollary 1: the scaled error as the numbers of rounds, local steps and agents grow."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import statistics
from ...algorithms import FedHSA, corollary_step
from ...problems import Problem
from ...theory import Constants, bounds, constants
from ...theory.paper.bounds import paper_mu
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, columns, figures, repeated
from ..study.foresight import doubt, foresee, slope_doubt

FLAT = 0.1
"""The largest slope that counts as zero."""
AXES = ("T", "H", "M")
LOOKS = {
    "T": figures.Look("rounds", "#B87F00", "o"),
    "H": figures.Look("local steps", "#7B5FC4", "s"),
    "M": figures.Look("agents", "#009E73", "^"),
    "outside": figures.Look("outside the condition", "#CC79A7", "D"),
}


class Point(NamedTuple):
    """The numbers of agents, local steps and rounds of one run."""

    M: int
    H: int
    T: int

    @property
    def samples(self) -> int:
        """The number of observations of all agents together."""
        return self.M * self.H * self.T

    @property
    def scale(self) -> float:
        """The scale to which, by Corollary 1, the error is inversely proportional."""
        return self.samples / math.log(self.samples)


class Corollary(AbstractStudy):
    r"""FedHSA with $\eta = 4 \log(MHT) / (\mu H T)$ on a well-conditioned finite sum, inside and outside its condition.

    Three sweeps have one point in common, the middle of each: over rounds, local steps, and copies of one cohort of
    agents, which do not change the mean operator and the average noise.
    """

    name: str = "corollary"
    title: str = "The step of Corollary 1"
    source: str = "Corollary 1"
    seeds: int = 72
    instance: Instance = dataclasses.field(
        default_factory=lambda: Instance(
            "finite-sum", 4, {"num_components": 2, "dim": 3, "eigenvalues": (0.5, 1.0), "laziness": 0.3}, key=4
        )
    )
    round_sweep: tuple[int, ...] = (1000, 3000, 9000)
    local_step_sweep: tuple[int, ...] = (2, 6, 18)
    copy_sweep: tuple[int, ...] = (1, 3, 9)
    settled: float = 0.5
    """The fraction of the rounds after which errors are averaged; the start then has weight (MHT)^(-8 settled)."""
    outside_rounds: int = 32
    """A number of rounds that is too small for the condition."""
    outside_copies: tuple[int, ...] = (3, 96, 768)
    """Numbers of copies; the last are too large for the condition, whatever the number of rounds."""
    outside_seeds: int = 32
    """The largest number of seeds outside the condition."""
    curve_points: int = 24
    """The number of points of the predicted curve outside the condition."""

    claim: ClassVar[int] = 6
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.2)
    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 64,
        "round_sweep": (1000, 9000),
        "local_step_sweep": (2, 18),
        "copy_sweep": (1, 9),
        "outside_rounds": 16,
        "outside_copies": (384,),
        "outside_seeds": 24,
        "curve_points": 8,
    }

    def seconds(self) -> float:
        sweeps = {point for points in self._sweeps().values() for point in points}
        shapes = {(p.M, p.H) for p in [*sweeps, *self._outside()]}
        steps = self.seeds * sum(p.samples for p in sweeps)
        steps += min(self.seeds, self.outside_seeds) * sum(p.samples for p in self._outside())
        return 4.0 + 2.5 * len(shapes) + 4.5e-8 * steps

    def run(self, runner: Runner) -> Outcome:
        cohort = self.instance.build()
        known = constants(cohort)
        sweeps, outside = self._sweeps(), self._outside()
        points = sorted({point for sweep in sweeps.values() for point in sweep})
        arrays = self._measure(runner, cohort, known, points, self.seeds, "inside", 0)
        seeds = min(self.seeds, self.outside_seeds)
        arrays |= self._measure(runner, cohort, known, outside, seeds, "outside", len(points))
        many = np.geomspace(cohort.num_agents, outside[-1].M, self.curve_points)
        curve = [_floor(cohort, known, outside[0]._replace(M=round(M))) for M in many]
        arrays |= {"curve/agents": many.round(), "curve/predicted": np.array(curve)}
        return Outcome(
            arrays,
            {
                "inside": [list(point) for point in points],
                "outside": [list(point) for point in outside],
                "sweeps": {axis: [points.index(point) for point in sweep] for axis, sweep in sweeps.items()},
                "L": known.L,
                "mu": known.mu,
                "rho": known.rho,
            },
        )

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        factors = set()
        for k, axis in enumerate(AXES):
            at, samples, predicted = scaled(outcome, axis)
            label = f"{LOOKS[axis].name} ${axis}$ from {at[0]:.0f} to {at[-1]:.0f}"
            _plot_series(left, axis, at / at[0] * 1.05 ** (k - 1), samples, label)
            figures.theory(left, at / at[0], predicted, LOOKS[axis].colour)
            factors |= set((at / at[0]).round(2))
        at, samples, predicted = scaled(outcome, "M")
        inside, outside = swept(outcome, "M")[0], points(outcome, "outside")
        _plot_series(right, "M", at, samples, f"inside: $T$ = {inside.T}, $H$ = {inside.H}")
        figures.theory(right, at, predicted, LOOKS["M"].colour)
        samples = np.array([point.scale for point in outside])[:, None] * outcome.arrays["outside/error"]
        label = f"outside: $T$ = {outside[0].T}, $H$ = {outside[0].H}"
        _plot_series(right, "outside", [point.M for point in outside], samples, label)
        many = outcome.arrays["curve/agents"]
        scale = np.array([outside[0]._replace(M=int(M)).scale for M in many])
        predicted = scale * outcome.arrays["curve/predicted"]
        figures.theory(right, many, predicted, LOOKS["outside"].colour, label="prediction")
        left.set(xscale="log", yscale="log", xlabel="factor by which it has grown")
        left.set(ylabel=r"error $\times\; MHT / \log(MHT)$", ylim=(left.get_ylim()[0] / 2, None))
        right.set(xscale="log", xlabel="number of agents $M$")
        figures.grid(left, right)
        figures.ticks(left, sorted(factors))
        for ax, title in ((left, "inside the condition"), (right, "inside and outside")):
            figures.legend_above(ax, title=title, borderaxespad=0.3, labelspacing=0.3)

    def summary(self, outcome: Outcome) -> list[str]:
        slopes = {axis: slope(outcome, axis) for axis in AXES}
        sweeps = {axis: [getattr(p, axis) for p in swept(outcome, axis)] for axis in AXES}
        said = "; ".join(f"{slopes[axis]:+.3f} in {axis} from {sweeps[axis][0]} to {sweeps[axis][-1]}" for axis in AXES)
        runs, parts = points(outcome, "outside"), outside_parts(outcome)
        outside = "; ".join(
            f"with M = {runs[k].M}, where they ask for {parts[k].max():.0f} and {parts[k].min():.0f}, the error is "
            f"{ratio:.2f} times the plateau ({low:.2f} to {high:.2f})"
            for k in sorted({0, len(runs) - 1})
            for ratio, low, high in [over_plateau(outcome, k)]
        )
        return [
            "Inside the condition, error times $MHT / log(MHT)$ is flat (left): its slopes on logarithmic axes are "
            f"{said} (99.9 % intervals).",
            f"Every one of these runs has the rounds that the corollary asks for, with its constant C' taken as 1: the "
            f"tightest has {1 / asked(outcome):.2f} times as many.",
            f"Outside it (right, T = {runs[0].T}, H = {runs[0].H}) both parts of the condition ask for more "
            f"rounds: {outside}. In the end the bias that more agents do not remove takes over, as predicted (dashed).",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        statement = (
            "Rounds that the condition of Corollary 1 asks for (C' = 1), over those run: the worst of all sweeps"
        )
        checks.at_most("condition", statement, asked(outcome), 1.0)
        rounds = np.array([point.T for point in points(outcome, "outside")])
        few = np.max(rounds / outside_parts(outcome).min(1))
        statement = "Outside it, rounds run over those that the lesser of its two parts asks for: the most of all runs"
        checks.at_most("condition outside", statement, float(few), 1.0)
        for axis in AXES:
            found = slope(outcome, axis)
            of = f"Slope of the logarithm of the error times $MHT / log(MHT)$ against $log {axis}$ ({LOOKS[axis].name})"
            name = f"slope in {axis}"
            checks.inside(name, f"{of}: flat", found, -FLAT, FLAT)
            at, doubts = scaled(outcome, axis)[0], outcome.arrays["inside/doubt"][outcome.facts["sweeps"][axis]]
            options: dict[str, Any] = {"slack": slope_doubt(at, doubts), "precision": FLAT, "relative": False}
            statement, expected = f"{of}: as predicted", predicted_slope(outcome, axis)
            checks.equals(f"{name}, predicted", statement, found, expected, **options)
        last = points(outcome, "outside")[-1]
        where = f"Outside the condition, M = {last.M}, H = {last.H}, T = {last.T}"
        statement = f"{where}: error times $MHT / log(MHT)$, over that of the plateau"
        checks.inside("outside", statement, over_plateau(outcome, -1), 2.0, math.inf)
        measured = statistics.mean(outcome.arrays["outside/error"][-1])
        expected = float(outcome.arrays["outside/predicted"][-1])
        options = {"slack": float(outcome.arrays["outside/doubt"][-1]), "precision": 0.25}
        checks.equals("outside, predicted", f"{where}: error, as predicted", measured, expected, **options)

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for part in ("inside", "outside"):
            steps, asked, predicted = (outcome.arrays[f"{part}/{n}"] for n in ("step", "asked", "predicted"))
            for k, point in enumerate(points(outcome, part)):
                error = statistics.mean(outcome.arrays[f"{part}/error"][k], level=0.95)
                rows.append((part, *point, steps[k], asked[k], *error, predicted[k], error.value * point.scale))
        names = ("condition", "agents", "local_steps", "rounds", "step_size", "rounds_asked")
        names += ("error", "low", "high", "predicted", "scaled_error")
        return columns(names, rows)

    def notes(self) -> list[str]:
        part, problem = f"{100 * (1 - self.settled):g} %", self.instance.settings()
        low, high = problem["eigenvalues"]
        return [
            "The corollary needs a well-conditioned problem: its condition has the factor (L / mu)^2. This is a finite "
            f"sum of {problem['num_components']} components whose eigenvalues lie between {low:g} and {high:g}, picked "
            f"by Markov chains that stay in place with an extra chance of {problem['laziness']:g} (laziness).",
            "Chosen by theory alone: the first of the random problems, by their keys, for which all sweeps have the "
            "rounds that the condition asks for, and the error outside is predicted to be at least 2.5 times the "
            "plateau (key 4).",
            f"The error is averaged over the last {part} of the rounds. It is stationary there: at this step the start "
            f"has sunk by about (MHT)^-{8 * self.settled:g} before, against errors of the order of 1 / (MHT).",
            "More agents are copies of one cohort with independent noise, so that the constant in front stays the "
            "same; every run has noise of its own.",
            "The mixing time in the condition is that at accuracy alpha^2, and at least 1; the constant C', which the "
            "paper leaves open, is 1.",
        ]

    def _sweeps(self) -> dict[str, list[Point]]:
        agents, middle = self.instance.num_agents, self._middle()
        return {
            "T": [middle._replace(T=T) for T in self.round_sweep],
            "H": [middle._replace(H=H) for H in self.local_step_sweep],
            "M": [middle._replace(M=agents * copies) for copies in self.copy_sweep],
        }

    def _outside(self) -> list[Point]:
        """Returns runs with few rounds or many agents, at the most local steps, where the remaining bias is largest."""
        agents, H = self.instance.num_agents, self.local_step_sweep[-1]
        return [Point(agents * copies, H, self.outside_rounds) for copies in self.outside_copies]

    def _middle(self) -> Point:
        sweeps = (self.copy_sweep, self.local_step_sweep, self.round_sweep)
        copies, H, T = (sweep[(len(sweep) - 1) // 2] for sweep in sweeps)
        return Point(self.instance.num_agents * copies, H, T)

    def _measure(
        self, runner: Runner, cohort: Problem, known: Constants, points: list[Point], seeds: int, part: str, runs: int
    ) -> dict[str, np.ndarray]:
        """Returns each point's step size, required rounds, predicted error, and the error of every seed."""
        rows = []
        for k, point in enumerate(points):
            step, asked = _step(known, point)
            problem = repeated(cohort, point.M // cohort.num_agents)
            prediction = foresee(problem, FedHSA(step, local_steps=point.H))
            key = 1000 * self.key + runs + k  # independent noise for every point
            settings: dict[str, Any] = {"rounds": point.T, "seeds": seeds, "key": key}
            result = runner.simulate(problem, prediction.algorithm, **settings)
            error = result.error[:, 1 + int(self.settled * point.T) :].mean(1)
            rows.append((step, asked, prediction.floor, doubt(prediction), error))
        names = ("step", "asked", "predicted", "doubt", "error")
        columns = (np.array(column) for column in zip(*rows, strict=True))
        return {f"{part}/{name}": column for name, column in zip(names, columns, strict=True)}


def _step(known: Constants, point: Point) -> tuple[float, float]:
    """Returns the corollary's step size, and the number of rounds that its condition requires."""
    step = corollary_step(known.mu, *point)
    tau_bar = max(1.0, known.tau((point.H * step) ** 2))
    symbols = {"L": known.L, "mu": known.mu, "rho": known.rho, "tau_bar": tau_bar}
    return step, bounds.corollary_1_rounds(T=point.T, M=point.M, H=point.H, **symbols)


def _floor(cohort: Problem, known: Constants, point: Point) -> float:
    """Returns the predicted error with any number of copies of the cohort's agents."""
    return foresee(cohort, FedHSA(_step(known, point)[0], local_steps=point.H)).floor_at(point.M)


def _plot_series(ax: figures.Axes, series: str, at: Any, samples: np.ndarray, label: str) -> None:
    figures.points(ax, at, figures.means(samples), label=label, **LOOKS[series].style)


def points(outcome: Outcome, part: str) -> list[Point]:
    """Returns the runs `inside` or `outside` the condition."""
    return [Point(*point) for point in outcome.facts[part]]


def swept(outcome: Outcome, axis: str) -> list[Point]:
    """Returns the runs of one sweep."""
    every = points(outcome, "inside")
    return [every[k] for k in outcome.facts["sweeps"][axis]]


def scaled(outcome: Outcome, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the swept values, the scaled error of every seed, and the scaled prediction of one sweep."""
    rows = outcome.facts["sweeps"][axis]
    at, scale = np.array([[getattr(p, axis), p.scale] for p in swept(outcome, axis)]).T
    error, predicted = outcome.arrays["inside/error"][rows], outcome.arrays["inside/predicted"][rows]
    return at, error * scale[:, None], predicted * scale


def slope(outcome: Outcome, axis: str) -> statistics.Estimate:
    """Returns the slope of the scaled error in one sweep, on logarithmic axes."""
    at, samples, _ = scaled(outcome, axis)
    return statistics.slope(at, samples)


def predicted_slope(outcome: Outcome, axis: str) -> float:
    """Returns the slope of the scaled prediction in one sweep, on logarithmic axes."""
    at, _, predicted = scaled(outcome, axis)
    return statistics.power(at, predicted)


def asked(outcome: Outcome) -> float:
    """Returns the rounds that the condition requires relative to those run, at the worst point of the sweeps."""
    return float(max(outcome.arrays["inside/asked"] / [point.T for point in points(outcome, "inside")]))


def outside_parts(outcome: Outcome) -> np.ndarray:
    """Returns the rounds that each part of the condition requires for the runs outside it, the larger first.

    Only the larger is stored; the product of the two does not depend on the mixing time.
    """
    facts, asked = outcome.facts, outcome.arrays["outside/asked"]
    square = (facts["L"] / paper_mu(facts["mu"])) ** 2
    grown = np.array([4 * p.M * p.H * math.log(p.samples) for p in points(outcome, "outside")])
    return np.stack([asked, square**2 * (1 - facts["rho"]) * grown / asked], axis=1)


def over_plateau(outcome: Outcome, which: int) -> statistics.Estimate:
    """Returns the scaled error of a run outside relative to that of the sweeps' middle, which has independent noise."""
    (middle,) = set.intersection(*(set(rows) for rows in outcome.facts["sweeps"].values()))
    above, below = (
        statistics.mean(outcome.arrays[f"{part}/error"][k] * points(outcome, part)[k].scale)
        for part, k in (("outside", which), ("inside", middle))
    )
    value, halves = above.value / below.value, [math.log(e.high / e.value) for e in (above, below)]
    factor = math.exp(math.hypot(*halves))
    return statistics.Estimate(value, value / factor, value * factor)

"""The step of Corollary 1: error times samples, over their logarithm, as rounds, local steps and agents grow."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import statistics
from ...algorithms import FedHSA, corollary_step
from ...problems import Problem
from ...theory import Constants, bounds, constants, predict
from ..study.base import AbstractExperiment, Outcome, Table, Watch
from ..study.checks import Check, at_most, equals, inside
from ..study.instance import Instance, repeated
from . import corollary_outcome as reading
from .corollary_outcome import WORDS, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLAT = 0.1
"""The largest slope that counts as none."""
SLOPE_SLACK = 0.02
"""How far predicted slopes may be off: floors that are 5 % off over a factor of 9 change them by so much."""
WITHIN = 0.05
"""How far predicted floors may be off, as a part."""
CURVE = 24
"""How many points the predicted curve outside the condition has."""
MARKERS = {"T": "o", "H": "s", "M": "^", "outside": "D"}
PALETTE = {"T": "#E69F00", "H": "#56B4E9", "M": "#009E73", "outside": "#CC79A7"}


@dataclasses.dataclass(frozen=True)
class Corollary(AbstractExperiment):
    r"""FedHSA with $\eta = 4 \log(MHT) / (\mu H T)$ on a well-conditioned finite sum, inside and outside its condition.

    Three sweeps start from one point, the middle of each setting: rounds, local steps, and copies of one cohort of
    agents, which leave the average operator and the average noise as they are.
    """

    name: str = "corollary"
    title: str = "The step of Corollary 1"
    source: str = "Corollary 1"
    seeds: int = 72
    instance: Instance = dataclasses.field(
        default_factory=lambda: Instance(
            "finite-sum", 4, {"num_components": 2, "dim": 3, "eigenvalues": (0.5, 1.0), "laziness": 0.3}
        )
    )
    """The cohort."""
    round_sweep: tuple[int, ...] = (1000, 3000, 9000)
    local_step_sweep: tuple[int, ...] = (2, 6, 18)
    copy_sweep: tuple[int, ...] = (1, 3, 9)
    settled: float = 0.5
    """The part of the rounds after which errors are averaged: by then the start counts for (MHT)^(-8 settled)."""
    outside_rounds: int = 32
    """Too few for the condition."""
    outside_copies: tuple[int, ...] = (3, 96, 768)
    """In the end too many for the condition, however many rounds there are."""
    outside_seeds: int = 32
    """At most so many there."""

    quick_settings: ClassVar[dict[str, Any]] = {
        "seeds": 64,
        "round_sweep": (1000, 9000),
        "local_step_sweep": (2, 18),
        "copy_sweep": (1, 9),
        "outside_rounds": 16,
        "outside_copies": (384,),
        "outside_seeds": 24,
    }

    def seconds(self) -> float:
        sweeps = {point for points in self._sweeps().values() for point in points}
        shapes = {(p.M, p.H) for p in [*sweeps, *self._outside()]}
        steps = self.seeds * sum(p.samples for p in sweeps)
        steps += min(self.seeds, self.outside_seeds) * sum(p.samples for p in self._outside())
        return 4.0 + 2.5 * len(shapes) + 4.5e-8 * steps

    def run(self, watch: Watch) -> Outcome:
        cohort = self.instance.build()
        known = constants(cohort)
        sweeps, outside = self._sweeps(), self._outside()
        points = sorted({point for sweep in sweeps.values() for point in sweep})
        arrays = self._measure(watch, cohort, known, points, self.seeds, "inside", 0)
        seeds = min(self.seeds, self.outside_seeds)
        arrays |= self._measure(watch, cohort, known, outside, seeds, "outside", len(points))
        many = np.geomspace(cohort.num_agents, outside[-1].M, CURVE)
        curve = [_predict(cohort, known, outside[0]._replace(M=round(M))) for M in many]
        arrays |= {"curve/agents": many.round(), "curve/predicted": np.array([predicted for *_, predicted in curve])}
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

    def draw(self, outcome: Outcome) -> "Figure":
        import matplotlib
        from matplotlib.figure import Figure

        from ...plots._style import STYLE

        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(7.2, 3.2), layout="constrained")
            left, right = figure.subplots(1, 2, sharey=True)
            for k, axis in enumerate(WORDS):
                _draw_sweep(left, outcome, axis, 1.05 ** (k - 1))
            _draw_outside(right, outcome)
            _scale(left, right, outcome)
            left.set_ylabel(r"error $\times\; MHT / \log(MHT)$")
            left.set_xlabel("factor by which it has grown")
            right.set_xlabel("number of agents $M$")
            for ax, title in ((left, "inside the condition"), (right, "inside and outside")):
                style: dict[str, Any] = {"frameon": False, "borderaxespad": 0.3, "labelspacing": 0.3}
                ax.legend(title=title, loc="lower center", bbox_to_anchor=(0.5, 1.0), **style)
        return figure

    def tell(self, outcome: Outcome) -> list[str]:
        slopes = {axis: reading.slope(outcome, axis) for axis in WORDS}
        sweeps = {axis: [getattr(p, axis) for p in reading.swept(outcome, axis)] for axis in WORDS}
        said = "; ".join(
            f"{slopes[axis].value:+.3f} ({slopes[axis].low:+.3f} to {slopes[axis].high:+.3f}) in {axis} from "
            f"{sweeps[axis][0]} to {sweeps[axis][-1]}"
            for axis in WORDS
        )
        points, parts = reading.points(outcome, "outside"), reading.outside_parts(outcome)
        outside = "; ".join(
            f"with M = {points[k].M}, where they ask for {parts[k].max():.0f} and {parts[k].min():.0f}, the error is "
            f"{ratio:.2f} times the plateau ({low:.2f} to {high:.2f})"
            for k in sorted({0, len(points) - 1})
            for ratio, low, high in [reading.over_plateau(outcome, k)]
        )
        return [
            "Inside the condition, error times MHT / log(MHT) is flat (left): its slopes on logarithmic axes are "
            f"{said} (99.9 % intervals).",
            f"Every one of these runs has the rounds that the corollary asks for, with its constant C' taken as 1: the "
            f"tightest has {1 / reading.asked(outcome):.2f} times as many.",
            f"Outside it (right, T = {points[0].T}, H = {points[0].H}) both parts of the condition ask for more "
            f"rounds: {outside}. In the end the bias that more agents do not remove takes over, as predicted (dashed).",
        ]

    def checks(self, outcome: Outcome) -> list[Check]:
        statement = (
            "Rounds that the condition of Corollary 1 asks for (C' = 1), over those run: the worst of all sweeps"
        )
        found = [at_most(6, f"{self.name}: condition", statement, reading.asked(outcome), 1.0)]
        rounds = np.array([point.T for point in reading.points(outcome, "outside")])
        few = np.max(rounds / reading.outside_parts(outcome).min(1))
        statement = "Outside it, rounds run over those that the lesser of its two parts asks for: the most of all runs"
        found.append(at_most(6, f"{self.name}: condition outside", statement, float(few), 1.0))
        for axis, words in WORDS.items():
            slope, of = reading.slope(outcome, axis), f"Slope of log(error MHT / log(MHT)) against log {axis} ({words})"
            name = f"{self.name}: slope in {axis}"
            found.append(inside(6, name, f"{of}: flat", slope, -FLAT, FLAT))
            options: dict[str, Any] = {"slack": SLOPE_SLACK, "precision": FLAT, "relative": False}
            statement, expected = f"{of}: as predicted", reading.predicted_slope(outcome, axis)
            found.append(equals(6, f"{name}, predicted", statement, slope, expected, **options))
        last = reading.points(outcome, "outside")[-1]
        where = f"Outside the condition, M = {last.M}, H = {last.H}, T = {last.T}"
        statement = f"{where}: error times MHT / log(MHT), over that of the plateau"
        found.append(inside(6, f"{self.name}: outside", statement, reading.over_plateau(outcome, -1), 2.0, math.inf))
        measured = statistics.mean(outcome.arrays["outside/error"][-1])
        expected = float(outcome.arrays["outside/predicted"][-1])
        options = {"slack": WITHIN, "precision": 0.25}
        name = f"{self.name}: outside, predicted"
        return [*found, equals(6, name, f"{where}: error, as predicted", measured, expected, **options)]

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for part in ("inside", "outside"):
            steps, asked, predicted = (outcome.arrays[f"{part}/{n}"] for n in ("step", "asked", "predicted"))
            for k, point in enumerate(reading.points(outcome, part)):
                error = statistics.mean(outcome.arrays[f"{part}/error"][k], level=0.95)
                rows.append((part, *point, steps[k], asked[k], *error, predicted[k], error.value * point.scale))
        names = ("condition", "agents", "local_steps", "rounds", "step_size", "rounds_asked")
        names += ("error", "low", "high", "predicted", "scaled_error")
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))

    def notes(self) -> list[str]:
        part, problem = f"{100 * (1 - self.settled):g} %", self.instance.settings()
        low, high = problem["eigenvalues"]
        return [
            "The corollary needs a well-conditioned problem: its condition has the factor (L / mu)^2. This is a finite "
            f"sum of {problem['num_components']} components whose eigenvalues lie between {low:g} and {high:g}, picked "
            f"by Markov chains that stay in place with an extra chance of {problem['laziness']:g} (laziness).",
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
        """Few rounds and many agents, at the largest number of local steps, where the lasting bias is largest."""
        agents, H = self.instance.num_agents, self.local_step_sweep[-1]
        return [Point(agents * copies, H, self.outside_rounds) for copies in self.outside_copies]

    def _middle(self) -> Point:
        sweeps = (self.copy_sweep, self.local_step_sweep, self.round_sweep)
        copies, H, T = (sweep[(len(sweep) - 1) // 2] for sweep in sweeps)
        return Point(self.instance.num_agents * copies, H, T)

    def _measure(
        self, watch: Watch, cohort: Problem, known: Constants, points: list[Point], seeds: int, part: str, runs: int
    ) -> dict[str, np.ndarray]:
        """Each point's step, rounds asked for, predicted error, and the error of every seed, after so many runs."""
        rows = []
        for k, point in enumerate(points):
            step, asked, predicted = _predict(cohort, known, point)
            problem = repeated(cohort, point.M // cohort.num_agents)
            key = 1000 * self.key + runs + k  # every point has noise of its own
            settings: dict[str, Any] = {"rounds": point.T, "seeds": seeds, "key": key}
            result = watch.simulate(problem, FedHSA(step, local_steps=point.H), **settings)
            error = result.error[:, 1 + int(self.settled * point.T) :].mean(1)
            rows.append((step, asked, predicted, error))
        names = ("step", "asked", "predicted", "error")
        columns = (np.array(column) for column in zip(*rows, strict=True))
        return {f"{part}/{name}": column for name, column in zip(names, columns, strict=True)}


def _predict(cohort: Problem, known: Constants, point: Point) -> tuple[float, float, float]:
    """The corollary's step, the rounds that its condition asks for, and the predicted error."""
    step = corollary_step(known.mu, *point)
    tau_bar = max(1.0, known.tau((point.H * step) ** 2))
    symbols = {"L": known.L, "mu": known.mu, "rho": known.rho, "tau_bar": tau_bar}
    asked = bounds.corollary_1_rounds(T=point.T, M=point.M, H=point.H, **symbols)
    return step, asked, predict(cohort, FedHSA(step, local_steps=point.H)).floor_at(point.M)


def _draw_sweep(ax: "Axes", outcome: Outcome, axis: str, apart: float) -> None:
    at, scaled, predicted = reading.scaled(outcome, axis)
    label = f"{WORDS[axis]} ${axis}$ from {at[0]:.0f} to {at[-1]:.0f}"
    _draw_points(ax, at / at[0] * apart, scaled, axis, label)
    _draw_prediction(ax, at / at[0], predicted, axis)


def _draw_outside(ax: "Axes", outcome: Outcome) -> None:
    at, scaled, predicted = reading.scaled(outcome, "M")
    one, points = reading.swept(outcome, "M")[0], reading.points(outcome, "outside")
    _draw_points(ax, at, scaled, "M", f"inside: $T$ = {one.T}, $H$ = {one.H}")
    _draw_prediction(ax, at, predicted, "M")
    errors = np.array([point.scale for point in points])[:, None] * outcome.arrays["outside/error"]
    label = f"outside: $T$ = {points[0].T}, $H$ = {points[0].H}"
    _draw_points(ax, np.array([point.M for point in points]), errors, "outside", label)
    many = outcome.arrays["curve/agents"]
    scale = np.array([points[0]._replace(M=int(M)).scale for M in many])
    _draw_prediction(ax, many, scale * outcome.arrays["curve/predicted"], "outside")


def _draw_points(ax: "Axes", at: np.ndarray, samples: np.ndarray, series: str, label: str) -> None:
    found = np.array([statistics.mean(row, level=0.95) for row in samples])
    spread = np.stack([found[:, 0] - found[:, 1], found[:, 2] - found[:, 0]])
    style: dict[str, Any] = {"fmt": MARKERS[series], "color": PALETTE[series], "markersize": 4.5, "capsize": 2}
    ax.errorbar(at, found[:, 0], spread, label=label, **style)


def _draw_prediction(ax: "Axes", at: np.ndarray, predicted: np.ndarray, series: str) -> None:
    from ...plots._style import DASHES, darker

    label = "prediction" if series == "outside" else None
    colour = darker(PALETTE[series])
    ax.plot(at, predicted, color=colour, linestyle=DASHES, linewidth=1.0, zorder=3, label=label)


def _scale(left: "Axes", right: "Axes", outcome: Outcome) -> None:
    """Logarithmic axes with plain numbers, and room below the plateau."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    factors = [reading.scaled(outcome, axis)[0] for axis in WORDS]
    ticks = np.unique(np.concatenate([at / at[0] for at in factors]).round(2))
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.grid(axis="y", color="0.9", linewidth=0.5)
    left.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    left.xaxis.set_minor_formatter(NullFormatter())
    left.set_ylim(bottom=left.get_ylim()[0] / 2)
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.yaxis.set_major_formatter(ScalarFormatter())
    left.yaxis.set_minor_formatter(NullFormatter())

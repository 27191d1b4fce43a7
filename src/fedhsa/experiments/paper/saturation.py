"""The end of the speed-up: the bias of Markov sampling with multiplicative noise, which averaging does not remove."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ... import statistics
from ...algorithms import FedHSA
from ...problems import Problem
from ...theory import Prediction, constants
from ..study import AbstractStudy, Checks, Instance, Outcome, Runner, Table, columns, figures, repeated
from ..study.foresight import WIDEST, doubt, foresee, settling, slope_doubt

LOOKS = {
    "markov": figures.Look("TD, Markov sampling", "#0072B2", "o"),
    "independent": figures.Look("TD, independent sampling", "#7B5FC4", "s"),
    "additive": figures.Look("quadratic, additive noise", "#B87F00", "^"),
}
"""The look of each kind of noise in the figure."""
SETTLED = 1e-3
"""The fraction of the initial deviation to which the mean falls before anything is measured."""
CONTROLS = 0.25
"""The fraction of the samples that the controls use, since their results are less noisy."""
FEWER = 4
"""The factor by which runs with fewer agents, which are cheaper, use more samples."""
SMALL_STEPS = (0.01, 0.02)
"""Fractions of the step size at which the limiting slope for small step sizes is predicted."""
UNBIASED = 0.1
"""The largest half-width of the squared bias, relative to the floor, for a check that the bias is zero."""
CURVE = 40
"""The number of points of the predicted curve."""
FLATTENED = 1.25
"""The largest growth of the level per doubling of the local steps at which the level counts as flat."""


class Point(NamedTuple):
    """The noise (a key of `LOOKS`), the agents, the local steps and the step size of one run."""

    kind: str
    M: int
    H: int
    step: float


class Saturation(AbstractStudy):
    """FedHSA at a fixed step size with growing copies of one cohort, on slowly mixing TD and on two controls."""

    name: str = "saturation"
    title: str = "Where more agents stop helping"
    source: str = "The alpha^2 term of Theorem 2"
    seeds: int = 32
    instance: Instance = dataclasses.field(
        default_factory=lambda: Instance("td", 4, {"num_states": 4, "dim": 2, "laziness": 0.85}, key=33)
    )
    step_size: float = 0.1
    additive_step: float = 0.01
    """The step size on the quadratic problem of the same size, whose noise is additive."""
    local_steps: int = 20
    copies: tuple[int, ...] = (1, 4, 16, 64)
    step_sweep: tuple[float, ...] = (0.05, 0.1, 0.2)
    """The step sizes of the sweep at the largest number of agents."""
    local_step_sweep: tuple[int, ...] = (10, 20, 40, 80, 160)
    """The local steps of the sweep at the largest number of agents; each needs one compilation."""
    samples: int = 12000
    """The measured local steps of every agent at `step_size`; smaller step sizes use proportionally more."""

    claim: ClassVar[int] = 8
    quick_settings: ClassVar[dict[str, Any]] = {
        "copies": (1, 32),
        "step_sweep": (0.1, 0.2),
        "local_step_sweep": (20, 80, 160),
        "samples": 24000,
    }

    def seconds(self) -> float:
        points = self.points()
        steps = sum(p.M * (self._samples(p) + 250 / p.step) for p in points if p.kind != "additive")
        return 7.0 + 3.0 * len({point[:3] for point in points}) + 3.5e-8 * self.seeds * steps

    def run(self, runner: Runner) -> Outcome:
        td = self.instance.build()
        quadratic = Instance("quadratic", td.num_agents, {"dim": td.dim, "start": "stationary"}, self.instance.key)
        cohorts = {"markov": td, "independent": td.iid(), "additive": quadratic.build()}
        points = self.points()
        predictions = [self._predict(cohorts[p.kind], p) for p in points]
        roots = [cohorts[p.kind].theta_star for p in points]
        measured = (self._measure(runner, *run) for run in zip(roots, points, predictions, strict=True))
        errors, biases = zip(*measured, strict=True)
        main, curve = predictions[0], np.geomspace(points[0].M, self._most(), CURVE)
        arrays = {"error": np.stack(errors), "bias": np.stack(biases)}
        arrays |= {"curve/agents": curve, "curve/markov": np.array([main.floor_at(M) for M in curve])}
        facts: dict[str, Any] = {
            "floors": [prediction.floor for prediction in predictions],
            "doubts": [doubt(prediction) for prediction in predictions],
            "levels": [float(prediction.bias @ prediction.bias) for prediction in predictions],
            "lasting": float(main.persistent_bias @ main.persistent_bias),
            "saturation_agents": main.saturation_agents,
            "mixing_times": constants(td).mixing_times.tolist(),
        }
        many = points[0]._replace(M=self._most())
        small = [self._predict(td, many._replace(step=part * self.step_size)) for part in SMALL_STEPS]
        facts["small_step_slope"] = statistics.power(SMALL_STEPS, [float(p.bias @ p.bias) for p in small])
        for point, prediction in zip(points, predictions, strict=True):
            if point.kind != "markov":
                alone = self._predict(cohorts[point.kind], point._replace(M=td.num_agents))
                facts[f"{point.kind}/law"] = [alone.floor, prediction.floor]
        return Outcome(arrays, facts)

    def plot(self, figure: figures.Figure, outcome: Outcome) -> None:
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
        self._plot_floors(left, outcome)
        for ax, at, rows in (
            (middle, self.local_step_sweep, self.rows("H")),
            (right, self.step_sweep, self.rows("step")),
        ):
            found = [statistics.squared_bias(outcome.arrays["bias"][k], figures.LEVEL) for k in rows]
            figures.points(ax, at, found, **LOOKS["markov"].style)
            figures.theory(ax, at, [outcome.facts["levels"][k] for k in rows], LOOKS["markov"].colour)
            _logarithmic(ax, at)
        left.set(xlabel="number of agents $M$", ylabel="floor, over that of one cohort")
        middle.set(xlabel="local steps $H$", ylabel="squared bias")
        right.set_xlabel(r"step size $\eta$")
        mixing, steps = outcome.facts["mixing_times"], np.array(self.step_sweep)
        guide = outcome.facts["levels"][self.rows("step")[0]] * (steps / steps[0]) ** 2
        middle.axvspan(min(mixing), max(mixing), color="0.9", linewidth=0, zorder=0)
        text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "va": "top"}
        middle.annotate("mixing times", (max(mixing), middle.get_ylim()[1]), xytext=(3, 0), **text)
        right.plot(steps, guide, color="0.55", linewidth=0.8, zorder=1)
        right.annotate("slope 2", (steps[-1], guide[-1]), xytext=(-8, 0), ha="right", **text)
        entries = {look.name: look.style for look in LOOKS.values()} | {"predicted": figures.dashed()}
        figures.legend(figure, entries, 4, title=f"FedHSA, 95 % intervals, {self.seeds} seeds")

    def _plot_floors(self, ax: figures.Axes, outcome: Outcome) -> None:
        """Draws the floors of every kind of noise, relative to the predicted floor of one cohort."""
        facts, agents, curve = outcome.facts, outcome.arrays["curve/agents"], outcome.arrays["curve/markov"]
        unit = {"markov": curve[0]} | {kind: facts[f"{kind}/law"][0] for kind in ("independent", "additive")}
        points = self.points()
        for point, samples in zip(points, outcome.arrays["error"], strict=True):
            if point.kind != "markov" or point[2:] == points[0][2:]:  # the same local steps and step size
                apart = {"independent": 1 / 1.08, "additive": 1.08}.get(point.kind, 1.0)
                found = figures.means([samples / unit[point.kind]])
                figures.points(ax, [apart * point.M], found, **LOOKS[point.kind].style)
        figures.theory(ax, agents, curve / unit["markov"], LOOKS["markov"].colour)
        figures.theory(ax, agents, agents[0] / agents, LOOKS["additive"].colour)
        level = facts["lasting"] / unit["markov"]
        ax.axhline(level, color=LOOKS["markov"].colour, linewidth=0.8, linestyle=figures.DOTS, zorder=1)
        ax.annotate("stays at any $M$", (agents[0], level), xytext=(0, 2), textcoords="offset points", fontsize=7)
        _logarithmic(ax, sorted({point.M for point in points}))

    def summary(self, outcome: Outcome) -> list[str]:
        facts, most = outcome.facts, self._most()
        above, slope, growth = self._excess(outcome), self._slope(outcome), self._growth(outcome)
        mixing, sweep = facts["mixing_times"], self.local_step_sweep
        first, *_, last = (statistics.squared_bias(outcome.arrays["bias"][k]).value for k in self.rows("H"))
        return [
            "With multiplicative Markov noise (left, circles) the floor stops falling with M, as predicted (dashed): a "
            f"squared bias of {facts['lasting']:.3g} stays at any number of agents. The variance has sunk to it at M = "
            f"{facts['saturation_agents']:.0f}, and at M = {most} the floor is {above.value:.1f} times what 1/M would "
            f"give ({above.low:.1f} to {above.high:.1f}). With independent samples of the same problem, and with "
            "additive Markov noise, it falls as 1/M to the end.",
            "That level grows with the local steps only until these are several mixing times long, and mixing takes "
            f"{min(mixing):.0f} to {max(mixing):.0f} observations here (middle): from {first:.2g} at H = {sweep[0]} to "
            f"{last:.2g} at H = {sweep[-1]}, the last doubling by a factor of {growth.value:.2f} ({growth.low:.2f} to "
            f"{growth.high:.2f}).",
            "At fixed H it goes with the square of the step (right): its slope on logarithmic axes is "
            f"{slope.value:.2f} ({slope.low:.2f} to {slope.high:.2f}; predicted are "
            f"{self._predicted_slope(outcome):.2f} at these steps, 2 at small ones), so that halving the step about "
            "quarters it.",
        ]

    def check(self, outcome: Outcome, checks: Checks) -> None:
        self._check_floors(outcome, checks)
        self._check_levels(outcome, checks)
        self._check_controls(outcome, checks)

    def table(self, outcome: Outcome) -> Table:
        rows = []
        for k, point in enumerate(self.points()):
            error = statistics.mean(outcome.arrays["error"][k], level=0.95)
            level = statistics.squared_bias(outcome.arrays["bias"][k], level=0.95)
            expected = outcome.facts["floors"][k], outcome.facts["levels"][k]
            rows.append((*point, *error, expected[0], *level, expected[1]))
        names = ("noise", "agents", "local_steps", "step_size", "floor", "floor_low", "floor_high", "floor_predicted")
        names += ("squared_bias", "squared_bias_low", "squared_bias_high", "squared_bias_predicted")
        return columns(names, rows)

    def notes(self) -> list[str]:
        return [
            "The paper has no experiment on this term. This is a small TD problem whose chains stay in place with "
            "chance 0.85, picked for the effect: of 40 random problems of this size the one whose speed-up is "
            "predicted to end first (key 33). More agents are copies of one cohort of 4, with independent noise.",
            "The level is the squared norm of the mean of the error over seeds and rounds, less what the variance of "
            "that mean adds to it. Runs start at the root and are measured once the mean has gone all but 0.1 % of its "
            "way.",
        ]

    def _sweeps(self) -> dict[str, list[Point]]:
        middle = Point("markov", self._most(), self.local_steps, self.step_size)
        return {
            "M": [middle._replace(M=self.instance.num_agents * copies) for copies in self.copies],
            "H": [middle._replace(H=H) for H in self.local_step_sweep],
            "step": [middle._replace(step=step) for step in self.step_sweep],
        }

    def points(self) -> list[Point]:
        """Returns every run once; the first has one cohort."""
        found = [point for sweep in self._sweeps().values() for point in sweep]
        controls = (("independent", self.step_size), ("additive", self.additive_step))
        found += [Point(kind, self._most(), self.local_steps, step) for kind, step in controls]
        return list(dict.fromkeys(found))

    def rows(self, axis: str) -> list[int]:
        """Returns the indices of the runs of a sweep."""
        return [self.points().index(point) for point in self._sweeps()[axis]]

    def _most(self) -> int:
        return self.instance.num_agents * self.copies[-1]

    def _predict(self, cohort: Problem, point: Point) -> Prediction:
        problem = repeated(cohort, point.M // cohort.num_agents)
        return foresee(problem, FedHSA(point.step, local_steps=point.H))

    def _measure(
        self, runner: Runner, root: np.ndarray, point: Point, prediction: Prediction
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean error of every seed, and the mean of its parameter minus the root."""
        before = settling(prediction, SETTLED)
        rounds = before + math.ceil(self._samples(point) / point.H)
        settings: dict[str, Any] = {"rounds": rounds, "seeds": self.seeds, "key": self.key, "theta": root}
        result = runner.simulate(prediction.problem, prediction.algorithm, record=("theta",), **settings)
        bias = (result.records["theta"][:, before + 1 :] - root).mean(1)
        return result.error[:, before + 1 :].mean(1), bias

    def _samples(self, point: Point) -> float:
        """Returns the measured local steps of every agent: more if they are cheap or the bias is small."""
        if point.kind != "markov":
            return CONTROLS * self.samples
        more = 1 if self._most() == point.M else FEWER
        return more * self.samples * self.step_size / point.step

    def _excess(self, outcome: Outcome) -> statistics.Estimate:
        """Returns the floor at the most agents relative to the floor of one cohort scaled by 1/M."""
        first, *_, last = (self.points()[k].M * outcome.arrays["error"][k] for k in self.rows("M"))
        return statistics.ratio(last, first)

    def _slope(self, outcome: Outcome) -> statistics.Estimate:
        samples = [statistics.squared_bias_samples(outcome.arrays["bias"][k]) for k in self.rows("step")]
        return statistics.slope(self.step_sweep, samples)

    def _predicted_slope(self, outcome: Outcome) -> float:
        levels = [outcome.facts["levels"][k] for k in self.rows("step")]
        return statistics.power(self.step_sweep, levels)

    def _level_doubt(self, outcome: Outcome, k: int) -> float:
        """Returns the possible relative error of a predicted level: all terms omitted from the floor may be bias."""
        floor, level, part = (outcome.facts[name][k] for name in ("floors", "levels", "doubts"))
        return min(part * floor / level, WIDEST)

    def _growth(self, outcome: Outcome) -> statistics.Estimate:
        """Returns the level at the most local steps relative to that at the second most."""
        *_, below, above = (statistics.squared_bias_samples(outcome.arrays["bias"][k]) for k in self.rows("H"))
        return statistics.ratio(above, below)

    def _check_floors(self, outcome: Outcome, checks: Checks) -> None:
        for k in self.rows("M"):
            M, expected = self.points()[k].M, outcome.facts["floors"][k]
            name, statement = f"floor, M = {M}", f"Floor with M = {M}, as predicted"
            measured, options = statistics.mean(outcome.arrays["error"][k]), {"slack": outcome.facts["doubts"][k]}
            checks.equals(name, statement, measured, expected, precision=0.15, **options)
        statement = f"Floor with M = {self._most()}, over what 1/M makes of that of one cohort"
        checks.above("floor, over 1/M", statement, self._excess(outcome), 2.0)

    def _check_levels(self, outcome: Outcome, checks: Checks) -> None:
        predicted = self._predicted_slope(outcome)
        of = f"Slope of log(squared bias) against log(step) at H = {self.local_steps}, M = {self._most()}"
        statement = f"{of}: as predicted at these steps; 2 is its limit at small ones"
        slack = slope_doubt(self.step_sweep, [self._level_doubt(outcome, k) for k in self.rows("step")])
        options: dict[str, Any] = {"slack": slack, "precision": 0.3, "relative": False}
        checks.equals("slope in the step", statement, self._slope(outcome), predicted, **options)
        statement = f"{of}: predicted at {SMALL_STEPS[0]:g} of the step"
        limit = outcome.facts["small_step_slope"]
        checks.near("slope at small steps", statement, limit, 2.0, tolerance=0.1, relative=False)
        for k in self.rows("H"):
            H, expected = self.points()[k].H, outcome.facts["levels"][k]
            measured = statistics.squared_bias(outcome.arrays["bias"][k])
            statement = f"Squared bias at H = {H}, M = {self._most()}, as predicted"
            name = f"bias, H = {H}"
            checks.equals(name, statement, measured, expected, slack=self._level_doubt(outcome, k), precision=0.4)
        second, first = self.local_step_sweep[-2:]
        statement = f"Squared bias at H = {first} over that at H = {second}, several mixing times: hardly any growth"
        checks.inside("bias, growth in H", statement, self._growth(outcome), -math.inf, FLATTENED)

    def _check_controls(self, outcome: Outcome, checks: Checks) -> None:
        most = self._most()
        for kind in ("independent", "additive"):
            k = [point.kind for point in self.points()].index(kind)
            first, last = outcome.facts[f"{kind}/law"]
            few, many, of = self.instance.num_agents * first, most * last, f"M = {most}, {LOOKS[kind].name}"
            if kind == "additive":
                statement = f"M times the floor, exact law, against that of one cohort: {of}"
                checks.near(f"{kind}, law", statement, many, few, tolerance=1e-9)
            measured = statistics.mean(outcome.arrays["error"][k])
            statement = f"Floor with {of}: the exact law, {many / few:.3f} times what 1/M makes of that of one cohort"
            checks.equals(f"{kind}, floor", statement, measured, last, precision=0.25)
            bias = statistics.squared_bias(outcome.arrays["bias"][k])
            statement = f"Squared bias with {of}: none, to {UNBIASED:g} of the floor"
            options: dict[str, Any] = {"precision": UNBIASED * last, "relative": False}
            checks.equals(f"{kind}, bias", statement, bias, 0.0, **options)


def _logarithmic(ax: figures.Axes, ticks: Sequence[float]) -> None:
    ax.set(xscale="log", yscale="log")
    figures.ticks(ax, ticks)
    figures.grid(ax)

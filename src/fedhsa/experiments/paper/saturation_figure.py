"""The figure of the study of where the speed-up ends."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import statistics
from ..study.base import Outcome
from ..study.families import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .saturation import Point, Saturation

LOOKS = {
    "markov": Look("TD, Markov sampling", "#0072B2", "o"),
    "independent": Look("TD, independent sampling", "#56B4E9", "s"),
    "additive": Look("quadratic, additive noise", "#E69F00", "^"),
}
"""How each kind of noise is called and drawn."""


def figure(study: "Saturation", outcome: Outcome) -> "Figure":
    """Floors against agents, and the squared bias against local steps and against the step."""
    import matplotlib
    from matplotlib.figure import Figure

    from ...plots._style import STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
        _draw_floors(left, outcome, study.points())
        left.set_xlabel("number of agents $M$")
        left.set_ylabel("floor, over that of one cohort")
        _draw_levels(middle, outcome, study.local_step_sweep, study.rows("H"))
        middle.set_xlabel("local steps $H$")
        middle.set_ylabel("squared bias")
        _draw_levels(right, outcome, study.step_sweep, study.rows("step"))
        right.set_xlabel(r"step size $\eta$")
        _explain(middle, right, outcome, np.array(study.step_sweep), study.rows("step")[0])
        _legend(figure, study.seeds)
    return figure


def _draw_floors(ax: "Axes", outcome: Outcome, points: "Sequence[Point]") -> None:
    """Every kind over the predicted floor of one cohort of its own."""
    from ...plots._style import DASHES, darker

    facts, agents, curve = outcome.facts, outcome.arrays["curve/agents"], outcome.arrays["curve/markov"]
    unit = {"markov": curve[0]} | {kind: facts[f"{kind}/law"][0] for kind in ("independent", "additive")}
    for point, samples in zip(points, outcome.arrays["error"], strict=True):
        if point.kind != "markov" or point[2:] == points[0][2:]:  # the same local steps and step
            apart = {"independent": 1 / 1.08, "additive": 1.08}.get(point.kind, 1.0)
            _draw_point(ax, apart * point.M, statistics.mean(samples / unit[point.kind], level=0.95), point.kind)
    dashed: dict[str, Any] = {"linestyle": DASHES, "linewidth": 1.0, "zorder": 3}
    ax.plot(agents, curve / unit["markov"], color=darker(LOOKS["markov"].colour), **dashed)
    ax.plot(agents, agents[0] / agents, color=darker(LOOKS["additive"].colour), **dashed)
    level = facts["lasting"] / unit["markov"]
    ax.axhline(level, color=LOOKS["markov"].colour, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    ax.annotate("stays at any $M$", (agents[0], level), xytext=(0, 2), textcoords="offset points", fontsize=7)
    _logarithmic(ax, sorted({point.M for point in points}))


def _draw_levels(ax: "Axes", outcome: Outcome, at: Sequence[float], rows: list[int]) -> None:
    from ...plots._style import DASHES, darker

    for x, k in zip(at, rows, strict=True):
        _draw_point(ax, x, statistics.squared_bias(outcome.arrays["bias"][k], level=0.95), "markov")
    predicted = [outcome.facts["levels"][k] for k in rows]
    ax.plot(at, predicted, color=darker(LOOKS["markov"].colour), linestyle=DASHES, linewidth=1.0, zorder=3)
    _logarithmic(ax, at)


def _explain(middle: "Axes", right: "Axes", outcome: Outcome, steps: np.ndarray, first: int) -> None:
    """Mixing times beside the local steps, and slope 2 beside the steps."""
    mixing, guide = outcome.facts["mixing_times"], outcome.facts["levels"][first] * (steps / steps[0]) ** 2
    middle.axvspan(min(mixing), max(mixing), color="0.9", linewidth=0, zorder=0)
    place: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "va": "top"}
    middle.annotate("mixing times", (max(mixing), middle.get_ylim()[1]), xytext=(3, 0), **place)
    right.plot(steps, guide, color="0.6", linewidth=0.8, zorder=1)
    right.annotate("slope 2", (steps[-1], guide[-1]), xytext=(-8, 0), ha="right", **place)


def _draw_point(ax: "Axes", x: float, found: statistics.Estimate, kind: str) -> None:
    spread = [[found.value - found.low], [found.high - found.value]]
    ax.errorbar([x], [found.value], spread, capsize=2, **LOOKS[kind].style)


def _logarithmic(ax: "Axes", ticks: Sequence[float]) -> None:
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.xaxis.minorticks_off()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.grid(axis="y", color="0.9", linewidth=0.5)


def _legend(figure: "Figure", seeds: int) -> None:
    from matplotlib.lines import Line2D

    from ...plots._style import DASHES

    handles = [look.handle() for look in LOOKS.values()] + [
        Line2D([], [], color="0.2", linestyle=DASHES, linewidth=1.0)
    ]
    labels = [*(look.name for look in LOOKS.values()), "predicted"]
    style: dict[str, Any] = {"loc": "outside upper center", "ncols": 4, "frameon": False}
    figure.legend(handles, labels, title=f"FedHSA, 95 % intervals, {seeds} seeds", **style)

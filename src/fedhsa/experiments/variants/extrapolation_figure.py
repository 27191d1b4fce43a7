"""The figure of extrapolation: floors against agents, and squared biases against the step."""

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ... import statistics
from ...plots._style import COLOURS, DASHES, STYLE, darker
from ..study.base import Outcome

if TYPE_CHECKING:
    from .extrapolation import Extrapolation

LOOKS: dict[tuple[str, int], dict[str, Any]] = {
    ("FedHSA", 0): {"color": COLOURS["FedHSA"], "marker": "o"},
    ("FedHSA", 1): {"color": "#009E73", "marker": "s"},
    ("LocalSA", 0): {"color": COLOURS["LocalSA"], "marker": "v"},
    ("LocalSA", 1): {"color": "#E69F00", "marker": "D"},
}
NAMES = ("FedHSA", "FedHSA, extrapolated", "Local SA", "Local SA, extrapolated")
POINT: dict[str, Any] = {"linestyle": "none", "markersize": 4}


def draw(study: "Extrapolation", outcome: Outcome) -> Figure:
    """Two panels, left to right."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_floors(left, study, outcome)
        _draw_biases(right, study, outcome)
        _legend(figure)
    return figure


def _draw_floors(ax: Axes, study: "Extrapolation", outcome: Outcome) -> None:
    for kind in (0, 1):
        look = LOOKS["FedHSA", kind]
        for k in range(len(study.copies)):
            M = study.runs()[k].M
            _draw_point(ax, M, statistics.mean(outcome.arrays["last"][k, kind], level=0.95), look)
            _draw_point(ax, M, statistics.mean(outcome.arrays["tail"][k, kind], level=0.95), look, hollow=True)
        _draw_line(ax, outcome.arrays["agents"], outcome.arrays["curve"][:, kind], look)
    ticks = [study.runs()[k].M for k in range(len(study.copies))]
    ax.set(xscale="log", yscale="log", xlabel="number of agents $M$", ylabel="mean-square error")
    ax.set_xticks(ticks, [f"{tick}" for tick in ticks])
    ax.xaxis.minorticks_off()


def _draw_biases(ax: Axes, study: "Extrapolation", outcome: Outcome) -> None:
    most = max(run.M for run in study.runs())
    for (method, kind), look in LOOKS.items():
        rows = [k for k, run in enumerate(study.runs()) if run.method == method and most == run.M]
        rows.sort(key=lambda k: study.runs()[k].step)
        steps, levels = [study.runs()[k].step for k in rows], [outcome.facts["levels"][k][kind] for k in rows]
        for step, k in zip(steps, rows, strict=True):
            found = statistics.squared_bias(outcome.arrays["bias"][k, kind], level=0.95)
            _draw_point(ax, step, found, look)
        _draw_line(ax, np.array(steps), np.array(levels), look)
    steps, low = np.array(study.step_sweep), min(level for levels in outcome.facts["levels"] for level in levels)
    ax.set(xscale="log", yscale="log", xlabel=r"step size $\eta$", ylabel=f"squared bias, $M = {most}$")
    ax.set_ylim(bottom=low / 10)
    ax.set_xticks(steps, [f"{step:g}" for step in steps])
    ax.xaxis.minorticks_off()


def _draw_point(ax: Axes, x: float, found: statistics.Estimate, look: dict[str, Any], hollow: bool = False) -> None:
    if found.value > 0:
        inside: dict[str, Any] = {"markerfacecolor": "white"} if hollow else {}
        low = found.value - max(found.low, 1e-3 * found.value)
        ax.errorbar([x], [found.value], [[low], [found.high - found.value]], capsize=2, **look, **POINT, **inside)


def _draw_line(ax: Axes, x: np.ndarray, y: np.ndarray, look: dict[str, Any]) -> None:
    ax.plot(x, y, color=darker(look["color"]), linestyle=DASHES, linewidth=1.0, zorder=3)


def _legend(figure: Figure) -> None:
    handles = [Line2D([], [], **look, **POINT) for look in LOOKS.values()]
    handles.append(Line2D([], [], color="0.3", marker="o", markerfacecolor="white", **POINT))
    handles.append(Line2D([], [], color="0.2", linestyle=DASHES, linewidth=1.0))
    labels = [*NAMES, "averaged over rounds", "predicted"]
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)

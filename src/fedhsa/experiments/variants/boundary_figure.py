"""The figure of the boundary: steps and local steps at which FedHSA converges or diverges."""

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...plots._style import DASHES, STYLE, colours, darker
from ..study.base import Outcome
from ..study.families import LOOKS
from .boundary import rows_of

LOOK: dict[str, dict[str, Any]] = {
    name: {"color": colour} for name, colour in colours(["FedHSA", "SCAFFLSA", "OneExchangeFedHSA"]).items()
}
LOOKING_LIKE = {"scalars": "finite-sum", "quadratic": "quadratic", "td": "td"}
DOTS = (0, (1, 1))


def draw(outcome: Outcome, names: dict[str, str]) -> Figure:
    """A panel for each problem, and one for what happens next to the boundaries."""

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 5.4), layout="constrained")
        axes = figure.subplots(2, 2).ravel()
        for ax, name in zip(axes, names, strict=False):
            _draw_problem(ax, outcome, name, names[name])
        _draw_factors(axes[3], outcome, names)
        _legend(figure)
    return figure


def _draw_problem(ax: Axes, outcome: Outcome, name: str, title: str) -> None:

    for method, style in LOOK.items():
        if f"{name}/{method}" in outcome.arrays:
            dashes = DASHES if method == "FedHSA" else DOTS
            line: dict[str, Any] = {"color": darker(style["color"]), "linestyle": dashes, "linewidth": 1.2}
            ax.plot(outcome.arrays[f"{name}/local_steps"], outcome.arrays[f"{name}/{method}"], **line)
    for row in rows_of(outcome, problem=name, method="FedHSA"):
        marker = "x" if row["growth"] >= 1 else "o"
        ax.plot(row["H"], row["H"] * row["step"], **LOOK["FedHSA"], marker=marker, markersize=3.5)
    rings = [row for row in rows_of(outcome, problem=name, method="SCAFFLSA") if row["growth"] < 1]
    at = [row["H"] for row in rings], [row["H"] * row["step"] for row in rings]
    ax.plot(*at, **LOOK["SCAFFLSA"], marker="o", markersize=7, markerfacecolor="none", linestyle="none")
    ax.set(xscale="log", yscale="log", xlabel="local steps $H$", title=title)
    ax.set_ylabel(r"$\eta H$")


def _draw_factors(ax: Axes, outcome: Outcome, names: dict[str, str]) -> None:
    ends = (0.88, 1.12)  # the agents' own instability is steeper: a few points of TD lie outside
    for name in names:
        near = rows_of(outcome, problem=name, method="FedHSA", near=True)
        at = [row["radius"] for row in near], [row["growth"] for row in near]
        ax.plot(*at, **LOOKS[LOOKING_LIKE[name]].style, label=names[name])
    ax.plot(ends, ends, color="0.4", linewidth=0.8, zorder=0)
    ax.axhline(1, color="0.8", linewidth=0.8, zorder=0)
    ax.set(xlim=ends, ylim=ends, xlabel="spectral radius", ylabel="factor per round, measured")
    ax.set_title("FedHSA next to its boundary")
    ax.legend(frameon=False, loc="upper left")


def _legend(figure: Figure) -> None:

    look = LOOK
    blank: dict[str, Any] = {"linestyle": "none", "markersize": 4}
    handles = [Line2D([], [], marker=marker, **look["FedHSA"], **blank) for marker in ("o", "x")]
    handles.append(Line2D([], [], marker="o", markerfacecolor="none", **look["SCAFFLSA"], **blank))
    for method, dashes in (("FedHSA", DASHES), ("OneExchangeFedHSA", DOTS)):
        line: dict[str, Any] = {"color": darker(look[method]["color"]), "linestyle": dashes, "linewidth": 1.2}
        handles.append(Line2D([], [], **line))
    labels = ["FedHSA converges", "FedHSA diverges", "SCAFFLSA converges, FedHSA does not"]
    labels += ["spectral radius 1: FedHSA", "with one exchange"]
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)

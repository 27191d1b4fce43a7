"""The figure of FedHSA with one exchange: largest steps, floors, and the error by exchanges."""

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ... import statistics
from ...plots._style import DASHES, STYLE, colours, darker
from ..study.base import Outcome

if TYPE_CHECKING:
    from .one_exchange import OneExchange

NAMES = {"FedHSA": "FedHSA", "OneExchangeFedHSA": "with one exchange", "SCAFFLSA": "SCAFFLSA", "LocalSA": "Local SA"}
COLOUR = colours(list(NAMES))
MARKERS = {"FedHSA": "o", "OneExchangeFedHSA": "s", "SCAFFLSA": "^", "LocalSA": "v"}


def draw(study: "OneExchange", outcome: Outcome) -> Figure:
    """Three panels, left to right."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        _draw_boundary(left, outcome)
        _draw_floors(middle, outcome, np.array(study.parts) * outcome.facts["largest"])
        _draw_errors(right, outcome)
        _legend(figure)
    return figure


def _dashed(name: str) -> dict[str, Any]:
    return {"color": darker(COLOUR[name]), "linestyle": DASHES, "linewidth": 1.0, "zorder": 3}


def _draw_boundary(ax: Axes, outcome: Outcome) -> None:
    for name in ("FedHSA", "OneExchangeFedHSA"):
        ax.plot(outcome.arrays["local_steps"], outcome.arrays[f"{name}/boundary"], **_dashed(name))
    for row in outcome.facts["rows"]:
        marker = "x" if row["growth"] >= 1 else MARKERS[row["method"]]
        ax.plot(row["H"], row["H"] * row["step"], color=COLOUR[row["method"]], marker=marker, markersize=4)
    ax.set(xscale="log", xlabel="local steps $H$", ylabel=r"largest stable $\eta H$", ylim=(0, None))


def _draw_floors(ax: Axes, outcome: Outcome, steps: np.ndarray) -> None:
    for name in NAMES:
        found = [statistics.mean(samples, level=0.95) for samples in outcome.arrays[f"{name}/floor"]]
        value = np.array([f.value for f in found])
        spread = [value - [f.low for f in found], [f.high for f in found] - value]
        ax.errorbar(steps, value, spread, color=COLOUR[name], marker=MARKERS[name], linestyle="none", markersize=3.5)
        ax.plot(steps, outcome.facts["floors"][name], **_dashed(name))
    ax.set(xscale="log", yscale="log", xlabel=r"step size $\eta$", ylabel="mean-square error, floor")


def _draw_errors(ax: Axes, outcome: Outcome) -> None:
    for name in NAMES:
        error, law = outcome.arrays[f"{name}/error"], outcome.arrays[f"{name}/law"]
        exchanges = outcome.facts["exchanges"][name] * np.arange(len(law))
        few = slice(None, None, 2 if name == "FedHSA" else 4)  # as many markers to the same number of exchanges
        style: dict[str, Any] = {"color": COLOUR[name], "marker": MARKERS[name], "linestyle": "none", "markersize": 3}
        ax.plot(exchanges[few], error.mean(0)[few], **style)
        ax.plot(exchanges, law, **_dashed(name))
    ends = [outcome.facts["exchanges"][name] * (len(outcome.arrays[f"{name}/law"]) - 1) for name in NAMES]
    ax.set(yscale="log", xlabel="exchanges", ylabel="mean-square error", xlim=(0, max(ends)))


def _legend(figure: Figure) -> None:
    blank: dict[str, Any] = {"linestyle": "none", "markersize": 4}
    handles = [Line2D([], [], color=COLOUR[name], marker=MARKERS[name], **blank) for name in NAMES]
    handles.append(Line2D([], [], color="0.2", marker="x", **blank))
    handles.append(Line2D([], [], color="0.2", linestyle=DASHES, linewidth=1.0))
    labels = [*NAMES.values(), "diverges", "theory"]
    figure.legend(handles, labels, loc="outside upper center", ncols=6, frameon=False)

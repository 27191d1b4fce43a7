"""Measurements of the sites of a federation: a curve for each site, their average, and references."""

from typing import TYPE_CHECKING

import numpy as np

from ..engine import Result
from ._style import PALETTE, house_style, ink, new_figure, pale_grid, thinned, whole_numbers, words

if TYPE_CHECKING:  # Matplotlib takes most of a second to import, so it is imported only for drawing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPAN = 5.0
"""Values that span less than this factor are drawn on a linear axis from zero, which does not magnify noise."""
MOST = 12
"""The largest number of sites that the legend names and whose references are drawn."""
_REFERENCES = ((0, (4, 2)), (0, (1, 1.5)), (0, (4, 1, 1, 1)))


def sites(
    result: Result,
    metric: str | None = None,
    *,
    title: str | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws the measurements of each site against rounds, their average in the text colour, and references, dashed.

    **Arguments:**

    - `result`: the result of a federation whose sites measure a metric.
    - `metric`: the name of the metric. Default: the first.
    - `title`, `figsize`, `width`: as for `curves`.

    Raises `ValueError` if the sites measured nothing, or did not measure this metric.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
        >>> measures = [lambda theta: {"size": abs(theta).sum()}] * 2
        >>> result = fedhsa.deploy.federate(problem, fedhsa.FedHSA(0.05, 5), rounds=3, measures=measures)
        >>> len(sites(result).axes[0].lines)
        3
    """
    measured = list(result.settings.get("measured", ()))
    if not measured:
        raise ValueError("`result` has no measurements of sites. Build their agents with `deploy.MeasuredAgent`.")
    name = measured[0] if metric is None else metric
    if name not in measured:
        raise ValueError(f"`metric` must be one of {', '.join(measured)}, got {name!r}.")
    each, mean = result.records[f"{name}_by_agent"][0], result.records[name][0]
    beside = [other for other in measured if other.startswith(f"{name}_")] if each.shape[1] <= MOST else []
    kept = thinned(len(result.rounds))
    with house_style():
        figure, _ = new_figure((5.0, 2.9), figsize, width)
        ax = figure.add_subplot()
        labels = [f"agent {number}" for number in range(each.shape[1])]
        for number, label in enumerate(labels):
            colour = PALETTE[number % len(PALETTE)]  # the text colour is that of the average
            shown = label if len(labels) <= MOST else None
            line = {"color": colour, "linewidth": 1.0 if shown else 0.6, "alpha": 1.0 if shown else 0.5}
            ax.plot(result.rounds[kept], each[kept, number], label=shown, **line)
            for dashes, other in zip(_REFERENCES, beside, strict=False):
                level = _last(result.records[f"{other}_by_agent"][0][:, number])
                ax.axhline(level, color=colour, linestyle=dashes, linewidth=0.8)
        ax.plot(result.rounds[kept], mean[kept], color=ink(1.0), linewidth=1.8, label="average, weighted")
        for dashes, other in zip(_REFERENCES, beside, strict=False):
            ax.plot(
                [], [], color=ink(0.6), linestyle=dashes, linewidth=0.8, label=words(other.removeprefix(f"{name}_"))
            )
        fair_axis(ax, each)
        ax.set_xlim(0, max(1, int(result.rounds[-1])))
        whole_numbers(ax)
        ax.set_xlabel(r"round $t$")
        ax.set_ylabel(words(name.replace("_", " ")))
        pale_grid(ax, figure)
        figure.legend(loc="outside right upper", frameon=False, title=None)
        if title:
            ax.set_title(words(title))
    return figure


def spans(values: np.ndarray) -> bool:
    """Returns whether values are positive and span a factor that requires a logarithmic axis."""
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool(finite.min() > 0 and finite.max() > SPAN * finite.min())


def fair_axis(ax: "Axes", values: np.ndarray) -> None:
    """Sets a logarithmic axis for values that span a large factor, otherwise a linear one from zero if possible."""
    if spans(values):
        ax.set_yscale("log")
        return
    finite = values[np.isfinite(values)]
    if len(finite) and finite.min() >= 0:
        ax.set_ylim(bottom=0.0, top=1.1 * ax.get_ylim()[1] if finite.max() > 0 else 1.0)
    elif len(finite):
        room = max(0.1 * np.ptp(finite), 0.2 * np.abs(finite).max())
        ax.set_ylim(float(finite.min() - room), float(finite.max() + room))


def _last(values: np.ndarray) -> float:
    """Returns the last known number."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")

"""Helpers for the figures of studies: style, points with intervals, bands, predictions, ticks and legends."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import statistics
from ...plots._style import COLOURS as COLOURS
from ...plots._style import DASHES as DASHES
from ...plots._style import FALLBACK as FALLBACK
from ...plots._style import STYLE, darker
from ...plots._style import colours as colours
from ...plots._style import drawable as drawable
from ...statistics import Estimate

if TYPE_CHECKING:  # importing matplotlib takes most of a second, so only drawing imports it
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any

DOTS = (0, (1, 1.5))
"""The line style of a first-order approximation, a slope or a bound; dashes are for predictions."""
REFERENCE: dict[str, Any] = {"color": "0.45", "linestyle": DOTS, "linewidth": 1.0}
"""The look of a slope or a bound."""
LEVEL = 0.95
"""The confidence level of the intervals in figures and tables."""


class Look(NamedTuple):
    """A label, a colour and a marker."""

    name: str
    colour: str
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """The arguments with which `Axes.plot` draws markers only."""
        return dots(self.colour, self.marker, size=4.5)


LOOKS = {
    "quadratic": Look("quadratic", "#B87F00", "o"),
    "nonconvex": Look("nonconvex", "#CC79A7", "s"),
    "td": Look("TD", "#7B5FC4", "^"),
    "finite-sum": Look("finite sum", "#000000", "D"),
}
"""The looks of the problem families. Their colours differ from those of the methods and suit colour-blind readers."""


@contextlib.contextmanager
def house_style(size: tuple[float, float]) -> Iterator[Figure]:
    """Yields a figure of this size in inches; everything drawn within the block has the package's style."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=size, layout="constrained")


def shades(values: Sequence[Any]) -> dict[Any, Any]:
    """Returns colours for the values of one setting, in order, from the lightest to the darkest."""
    from matplotlib import colormaps

    return dict(zip(values, colormaps["viridis"](np.linspace(0.7, 0.0, len(values))), strict=True))


def means(samples: Iterable[Any]) -> list[Estimate]:
    """Returns the mean of each row of seeds, with the interval that figures show."""
    return [statistics.mean(row, LEVEL) for row in samples]


def points(ax: Axes, x: Any, found: Sequence[Estimate], *, unit: Any = 1.0, **style: Any) -> None:
    """Draws estimates with their intervals, relative to `unit`; `style` has arguments of `Axes.errorbar`."""
    value, low, high = np.array(found).T / unit
    ax.errorbar(x, value, [value - low, high - value], **{"linestyle": "none", "markersize": 4, "capsize": 2} | style)


def band(ax: Axes, x: Any, samples: np.ndarray, colour: str, **style: Any) -> None:
    """Draws the mean over seeds of curves `(seeds, records)`, with its interval."""
    mean, low, high = statistics.interval(samples)
    ax.plot(x, mean, color=colour, **style)
    ax.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)


def theory(ax: Axes, x: Any, y: Any, colour: str, **style: Any) -> None:
    """Draws a predicted curve: dashed, darker than the measured curve, and in front of it."""
    ax.plot(x, y, **dashed(colour, **{"zorder": 3} | style))


def dashed(colour: str | None = None, **style: Any) -> dict[str, Any]:
    """Returns the style of predictions; without a colour, the one for a legend entry of all predictions."""
    return {"color": "0.2" if colour is None else darker(colour), "linestyle": DASHES, "linewidth": 1.0} | style


def dots(colour: str, marker: str = "o", size: float = 4.0, *, face: str | None = None) -> dict[str, Any]:
    """Returns the style of markers without a line, filled with the colour `face` if it is given."""
    inside = {} if face is None else {"markerfacecolor": face}
    return {"color": colour, "marker": marker, "linestyle": "none", "markersize": size} | inside


def ticks(ax: Axes, values: Any) -> None:
    """Places ticks only at the values that were run."""
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.xaxis.minorticks_off()


def grid(*axes: Axes) -> None:
    """Draws a light grid."""
    for ax in axes:
        ax.grid(axis="y", color="0.9", linewidth=0.5)


def legend(figure: Figure, entries: Mapping[str, Mapping[str, Any]], columns: int, title: str | None = None) -> None:
    """Adds one legend above all panels; `entries` maps each label to the style of its line or marker."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **style) for label, style in entries.items()]
    figure.legend(handles=handles, title=title, loc="outside upper center", ncols=columns, frameon=False)


def heading(figure: Figure, text: str) -> None:
    """Writes the settings that all panels share above the panels."""
    figure.suptitle(text, fontsize=STYLE["axes.titlesize"])


def panel_legend(ax: Axes, **settings: Any) -> None:
    """Adds a legend inside one panel."""
    small: dict[str, Any] = {"fontsize": 7, "title_fontsize": 7, "handlelength": 1.6, "labelspacing": 0.3}
    ax.legend(**{"frameon": False, **small} | settings)


def legend_above(ax: Axes, **settings: Any) -> None:
    """Adds a legend above one panel."""
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), **{"frameon": False, "columnspacing": 1.2} | settings)


NARROW = 100.0
"""An axis that spans less than this factor has ticks at 1, 2 and 5 times powers of ten."""


def tidy(figure: Figure) -> None:
    """Labels every tick of a logarithmic axis, and gives every such axis at least two ticks."""
    for ax in figure.axes:
        for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
            if axis.get_scale() == "log":
                _tidy(axis, low, high)


def _tidy(axis: Any, low: float, high: float) -> None:
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter, NullLocator

    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())
    if not isinstance(axis.get_major_locator(), LogLocator) or high >= NARROW * low:
        return
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    if low >= 1e-3 and high <= 1e4:
        axis.set_major_formatter("{x:g}")
    else:
        axis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))

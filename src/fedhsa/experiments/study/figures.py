"""What the figures of studies share: the house style, points with intervals, bands, theory, ticks, legends."""

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

if TYPE_CHECKING:  # matplotlib takes most of a second to import: only those who draw should wait for it
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:
    Axes = Figure = Any

DOTS = (0, (1, 1.5))
"""The line style of a first order, a slope or a bound; dashes are for predictions."""
REFERENCE: dict[str, Any] = {"color": "0.45", "linestyle": DOTS, "linewidth": 1.0}
"""The look of a slope or a bound."""
LEVEL = 0.95
"""Of the intervals that figures and tables show."""


class Look(NamedTuple):
    """A name for readers, a colour and a marker."""

    name: str
    colour: str
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """What `Axes.plot` needs to draw markers alone."""
        return dots(self.colour, self.marker, size=4.5)


LOOKS = {
    "quadratic": Look("quadratic", "#B87F00", "o"),
    "nonconvex": Look("nonconvex", "#CC79A7", "s"),
    "td": Look("TD", "#7B5FC4", "^"),
    "finite-sum": Look("finite sum", "#000000", "D"),
}
"""The families of problems, in colours that FedHSA and Local SA do not have and the colour-blind can tell apart."""


@contextlib.contextmanager
def house_style(size: tuple[float, float]) -> Iterator[Figure]:
    """A figure of this size in inches; what is drawn within the block has the style of the house."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=size, layout="constrained")


def shades(values: Sequence[Any]) -> dict[Any, Any]:
    """Colours for the values of one setting, in their order: the first is the lightest."""
    from matplotlib import colormaps

    return dict(zip(values, colormaps["viridis"](np.linspace(0.7, 0.0, len(values))), strict=True))


def means(samples: Iterable[Any]) -> list[Estimate]:
    """The mean of each row of seeds, with the interval that figures show."""
    return [statistics.mean(row, LEVEL) for row in samples]


def points(ax: Axes, x: Any, found: Sequence[Estimate], *, unit: Any = 1.0, **style: Any) -> None:
    """Estimates with their intervals, in parts of `unit`; `style` is what `Axes.errorbar` takes."""
    value, low, high = np.array(found).T / unit
    ax.errorbar(x, value, [value - low, high - value], **{"linestyle": "none", "markersize": 4, "capsize": 2} | style)


def band(ax: Axes, x: Any, samples: np.ndarray, colour: str, **style: Any) -> None:
    """The mean over seeds of curves `(seeds, records)` in its interval."""
    mean, low, high = statistics.interval(samples)
    ax.plot(x, mean, color=colour, **style)
    ax.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)


def theory(ax: Axes, x: Any, y: Any, colour: str, **style: Any) -> None:
    """A predicted curve: dashed, darker than what it predicts, and in front of it."""
    ax.plot(x, y, **dashed(colour, **{"zorder": 3} | style))


def dashed(colour: str | None = None, **style: Any) -> dict[str, Any]:
    """The style of predictions; of all colours together in a legend, where none is given."""
    return {"color": "0.2" if colour is None else darker(colour), "linestyle": DASHES, "linewidth": 1.0} | style


def dots(colour: str, marker: str = "o", size: float = 4.0, *, face: str | None = None) -> dict[str, Any]:
    """The style of markers without a line, of another colour inside where `face` is given."""
    inside = {} if face is None else {"markerfacecolor": face}
    return {"color": colour, "marker": marker, "linestyle": "none", "markersize": size} | inside


def ticks(ax: Axes, values: Any) -> None:
    """Ticks at the values that were run, and no others."""
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.xaxis.minorticks_off()


def grid(*axes: Axes) -> None:
    """Pale lines that lead from the values to the points."""
    for ax in axes:
        ax.grid(axis="y", color="0.9", linewidth=0.5)


def legend(figure: Figure, entries: Mapping[str, Mapping[str, Any]], columns: int, title: str | None = None) -> None:
    """One legend above all panels: the style of a line or marker by its label."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label, **style) for label, style in entries.items()]
    figure.legend(handles=handles, title=title, loc="outside upper center", ncols=columns, frameon=False)


def heading(figure: Figure, text: str) -> None:
    """The settings that all panels share, above them."""
    figure.suptitle(text, fontsize=STYLE["axes.titlesize"])


def panel_legend(ax: Axes, **settings: Any) -> None:
    """The legend of one panel, inside it."""
    small: dict[str, Any] = {"fontsize": 7, "title_fontsize": 7, "handlelength": 1.6, "labelspacing": 0.3}
    ax.legend(**{"frameon": False, **small} | settings)


def legend_above(ax: Axes, **settings: Any) -> None:
    """The legend of one panel, above it."""
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), **{"frameon": False, "columnspacing": 1.2} | settings)


NARROW = 100.0
"""An axis that spans less than this factor has ticks at 1, 2 and 5 times powers of ten."""


def tidy(figure: Figure) -> None:
    """Gives every tick of a logarithmic axis a number, and every axis at least two of them."""
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

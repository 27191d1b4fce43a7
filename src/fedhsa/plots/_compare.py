"""Comparisons of methods: error against exchanges, samples and bytes, and the tuning of each method."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _check
from ..engine.result import SIGNED
from ..statistics import interval
from ._curves import HEADROOM, finite, fit_linear
from ._style import (
    DASHES,
    MOST_COLUMNS,
    arrange,
    band,
    drawable,
    few_ticks,
    graded_widths,
    house_style,
    ink,
    legend_above,
    legend_inside,
    new_figure,
    pale_grid,
    plain_ticks,
    relabelled,
    seeds_entry,
    session_colours,
    words,
)

if TYPE_CHECKING:  # Matplotlib takes most of a second to import, so it is imported only for drawing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"exchanges": "exchanges (round trips)", "samples": "observations per agent", "bytes": "bytes, all agents"}
WIDTH, HEIGHT, LOW = 7.2, 2.5, 1.9
"""The sizes in inches of a page with panels side by side, and of one of several stacked panels."""
NARROWEST = 1.8
"""The width in inches below which panels are stacked."""
LINES: tuple[Any, ...] = ("solid", DASHES, (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
ALIKE = 5
"""The number of successive methods with the same line style."""


class Trace(NamedTuple):
    """The data of one method's curves: the error of each seed and record, and the cost of each record.

    `exchanges`, `samples` (observations per agent) and `bytes` (of all agents) are `(records,)`.

    !!! example
        >>> rounds = np.arange(3)
        >>> trace = Trace(np.array([[1.0, 0.5, 0.2]]), exchanges=2 * rounds, samples=5 * rounds, bytes=160 * rounds)
        >>> trace.bytes.tolist()
        [0, 160, 320]
    """

    error: np.ndarray
    """The error, or another quantity, `(seeds, records)`."""
    exchanges: np.ndarray
    samples: np.ndarray
    bytes: np.ndarray


def compare(
    traces: Mapping[str, Trace],
    *,
    title: str | None = None,
    target: float | None = None,
    quantity: str = "error",
    against: str | Sequence[str] = tuple(PANELS),
    labels: Mapping[str, str] | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
    legend: bool = True,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws the mean error of each method against exchanges, observations and bytes, with 95 % intervals over seeds.

    A curve ends where the first seed diverges. A method that communicates only once is a point, except against
    observations. With fewer than five seeds there are no intervals.

    **Arguments:**

    - `traces`: the traces, by name. A name has the same colour in every figure.
    - `target`: an error to mark.
    - `quantity`: the quantity in the traces; `"mean_return"` has a linear axis.
    - `against`: the panels, from `"exchanges"`, `"samples"` and `"bytes"`.
    - `ax`: axes for one panel, which `against` names. Default: a new figure, in which narrow panels are stacked.
    - `title`, `labels`, `figsize`, `width`, `legend`: as for `curves`.

    Raises `ValueError` if `traces` is empty or `against` is invalid.

    !!! example
        >>> error, rounds = np.array([[1.0, 0.5, 0.2], [1.0, 0.4, 0.3]]), np.array([0, 5, 10])
        >>> figure = compare({"FedHSA": Trace(error, rounds, 10 * rounds, 160 * rounds)})
        >>> [ax.get_xscale() for ax in figure.axes]
        ['log', 'linear', 'log']
    """
    if not traces:
        raise ValueError("`traces` is empty: there is nothing to draw.")
    panels = [against] if isinstance(against, str) else list(against)
    for panel in panels:
        _check.choice("against", panel, tuple(PANELS))
    if ax is not None and len(panels) != 1:
        raise ValueError(f"`ax` holds one panel: pass `against`, one of {', '.join(PANELS)}.")
    shown = relabelled(traces, labels)
    linear = quantity in SIGNED
    statistics = {name: interval(trace.error, positive=not linear) for name, trace in traces.items()}
    with house_style(ax):
        widths = graded_widths([(trace.samples, statistics[n][0]) for n, trace in traces.items()], linear=linear)
        looks = styles(traces, widths)
        own, grow, axes = _panels(len(panels), figsize, width) if ax is None else (None, False, [ax])
        beside = axes[0].get_position().y0 == axes[-1].get_position().y0
        for one, spent in zip(axes, panels, strict=True):
            for name, trace in traces.items():
                at = getattr(trace, spent)
                # A logarithmic axis cannot show the start at zero.
                kept = np.ones(len(at), dtype=bool) if spent == "samples" else at > 0
                curves = [(finite if linear else drawable)(curve[kept]) for curve in statistics[name]]
                _draw(one, at[kept], curves, {**looks[name], "label": shown[name]}, len(trace.error))
            if spent != "samples":
                one.set_xscale("log")
                few_ticks(one)
            one.set_xlabel(PANELS[spent])
            if linear:
                fit_linear(one, [mean for mean, _, _ in statistics.values()])
            else:
                _scale(one, statistics.values())
            pale_grid(one, own)
            if target is not None:
                one.axhline(target, color=ink(0.6), linewidth=0.8, zorder=1)
            if spent == panels[0] or not beside:
                one.set_ylabel(_measure(quantity))
        _finish(own, axes[0], grow, shown, looks, title, [seeds_entry(len(t.error) for t in traces.values())], legend)
    return axes[0].get_figure(root=True)  # pyright: ignore[reportReturnType]


def tuning(
    trials: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    chosen: Mapping[str, float],
    *,
    quantity: str = "error",
    title: str | None = None,
    labels: Mapping[str, str] | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
    legend: bool = True,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws the error at every step size tried. Rings mark chosen step sizes, crosses at the top those that diverged.

    **Arguments:**

    - `trials`: by name, the step sizes and their errors.
    - `chosen`: by name, the chosen step size.
    - `quantity`: the name of the drawn quantity; `"mean_return"` has a linear axis.
    - `title`, `labels`, `figsize`, `width`, `legend`, `ax`: as for `curves`.

    Raises `ValueError` if `trials` is empty.

    !!! example
        >>> figure = tuning({"FedHSA": ([0.1, 0.01], [0.5, 0.2])}, {"FedHSA": 0.01})
        >>> figure.axes[0].lines[0].get_xdata().tolist()
        [0.01, 0.1]
    """
    from matplotlib.lines import Line2D

    if not trials:
        raise ValueError("`trials` is empty: there is nothing to draw.")
    linear = quantity in SIGNED
    drawn = finite if linear else drawable
    shown = relabelled(trials, labels)
    sorted_trials = {name: _in_order(*trial) for name, trial in trials.items()}
    with house_style(ax):
        looks = styles(trials, graded_widths(list(sorted_trials.values()), linear=linear))
        own, grow, (ax,) = _panels(1, figsize, width) if ax is None else (None, False, [ax])
        for name, (at, error) in sorted_trials.items():
            look = looks[name]
            ax.plot(at, drawn(error), marker=".", label=shown[name], **look)
            best = at == chosen[name]
            ring: dict[str, Any] = {"marker": "o", "markersize": 7, "markerfacecolor": "none", "linestyle": "none"}
            ax.plot(at[best], drawn(error[best]), color=look["color"], **ring)
            lost = at[~np.isfinite(error)]
            cross: dict[str, Any] = {"marker": "x", "markersize": 4, "linestyle": "none", "clip_on": False}
            if len(lost):  # a line without points and clipping would confuse layouts
                ax.plot(lost, np.ones_like(lost), transform=ax.get_xaxis_transform(), color=look["color"], **cross)
        ax.set_xscale("log")
        if not linear:
            ax.set_yscale("log", nonpositive="mask")
        plain_ticks(ax)
        pale_grid(ax, own)
        ax.set_xlabel(r"step size $\eta$")
        ax.set_ylabel(f"{words(quantity.replace('_', ' '))} at the end")
        diverged = not all(np.isfinite(error).all() for _, error in sorted_trials.values())
        grey: dict[str, Any] = {"color": ink(0.8), "linestyle": "none", "markerfacecolor": "none"}
        notes = [(Line2D([], [], marker="o", markersize=7, **grey), "chosen")]
        notes += [(Line2D([], [], marker="x", markersize=4, **grey), "at the top: diverged")] if diverged else []
        _finish(own, ax, grow, shown, looks, title, notes, legend)
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]


def styles(names: Iterable[str], widths: Sequence[float] | None = None) -> dict[str, dict[str, Any]]:
    """Returns the colour and line style of each name; the line style changes when colours repeat."""
    looks: dict[str, dict[str, Any]] = {}
    for i, (name, colour) in enumerate(session_colours(names).items()):
        used = [(look["color"], look["linestyle"]) for look in looks.values()]
        lines = [LINES[(i // ALIKE + shift) % len(LINES)] for shift in range(len(LINES))]
        looks[name] = {"color": colour, "linestyle": min(lines, key=lambda line: used.count((colour, line)))}
        if widths is not None:
            looks[name]["linewidth"] = widths[i]
    return looks


def _measure(quantity: str) -> str:
    return "mean-square error" if quantity == "error" else words(quantity.replace("_", " "))


def _panels(
    count: int, figsize: tuple[float, float] | None, width: float | None
) -> tuple["Figure", bool, list["Axes"]]:
    """Creates panels side by side, or stacked if there is not enough width."""
    figure, grow = new_figure((WIDTH, HEIGHT), figsize, width)
    across = count if figure.get_figwidth() / count >= NARROWEST else 1
    if across < count and grow:
        figure.set_size_inches(figure.get_figwidth(), count * LOW)
    axes = figure.subplots(count // across, across, sharey=True, squeeze=False)
    return figure, grow, list(axes.ravel())


def _in_order(steps: Sequence[float], errors: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(steps)
    return np.asarray(steps, dtype=float)[order], np.asarray(errors, dtype=float)[order]


def _finish(
    own: "Figure | None",
    ax: "Axes",
    grow: bool,
    shown: Mapping[str, str],
    looks: Mapping[str, dict[str, Any]],
    title: str | None,
    notes: Sequence[tuple[Any, str]],
    legend: bool,
) -> None:
    """Adds one legend for all panels, and makes room for the labels in a user's figure."""
    from matplotlib.lines import Line2D

    entries = [(Line2D([], [], **look), shown[name]) for name, look in looks.items()]
    handles, names = zip(*entries, *notes, strict=True)
    if legend and own is not None:
        legend_above(own, handles, names, title, grow=grow, columns=MOST_COLUMNS)
    elif legend:
        legend_inside(ax, handles, names, title)
    elif title:
        ax.set_title(words(title))
    if own is None:
        arrange(ax)


def _draw(ax: "Axes", at: np.ndarray, statistics: Sequence[np.ndarray], look: dict[str, Any], seeds: int) -> None:
    mean, low, high = statistics
    if at[0] == at[-1]:  # everything is sent once, at the end
        ax.plot(at[-1:], mean[-1:], marker="D", markersize=4, **look)
        return
    ax.plot(at, mean, **look)
    band(ax, at, low, high, look["color"], seeds)


def _scale(ax: "Axes", statistics: Iterable[tuple[np.ndarray, ...]]) -> None:
    """Sets a logarithmic axis that does not follow diverging curves far above the start."""
    means = [drawable(mean) for mean, _, _ in statistics]
    if not any(np.isfinite(mean).any() for mean in means):
        return
    ax.set_yscale("log", nonpositive="mask")
    top = HEADROOM * max(float(np.nanmax(mean[:1], initial=0.0)) for mean in means)
    if 0 < top < ax.get_ylim()[1]:
        ax.set_ylim(top=top)

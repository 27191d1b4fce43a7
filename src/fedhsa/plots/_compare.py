"""Several methods against one another: error against exchanges, samples and bytes, and how each was tuned."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..statistics import interval
from ._curves import HEADROOM
from ._style import DASHES, STYLE, colours, drawable

if TYPE_CHECKING:  # matplotlib takes most of a second to import: only those who plot should wait for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"exchanges": "exchanges (round trips)", "samples": "observations per agent", "bytes": "bytes, all agents"}
WIDTH, HEIGHT, ROW = 7.2, 2.5, 0.17
"""Inches: a page, its panels, and a line of the legend."""
LETTERS, HANDLE = 120, 8
"""How many letters of the legend fit beside one another, and how many of them the line before each name takes."""
LINES: tuple[Any, ...] = ("solid", DASHES, (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
WIDTHS = 2.0, 0.9
ALIKE = 5
"""So many methods in a row have the same kind of line."""


class Trace(NamedTuple):
    """What a method's curves are drawn from: one error per seed and record, and what each record had cost."""

    error: np.ndarray
    """`(seeds, records)`."""
    exchanges: np.ndarray
    samples: np.ndarray
    bytes: np.ndarray


def compare(traces: Mapping[str, Trace], *, title: str | None = None, target: float | None = None) -> "Figure":
    """The mean error of each method against exchanges, observations and bytes, with 95 % intervals over seeds.

    A curve ends where a first seed diverges. A method that sends everything at once is a point, but for its
    curve against observations.

    !!! example
        >>> error, rounds = np.array([[1.0, 0.5, 0.2], [1.0, 0.4, 0.3]]), np.array([0, 5, 10])
        >>> figure = compare({"FedHSA": Trace(error, rounds, 10 * rounds, 160 * rounds)})
        >>> [ax.get_xscale() for ax in figure.axes]
        ['log', 'linear', 'log']
    """
    import matplotlib

    if not traces:
        raise ValueError("`traces` is empty: there is nothing to draw.")
    looks = styles(traces)
    statistics = {name: interval(trace.error) for name, trace in traces.items()}
    with matplotlib.rc_context(STYLE):
        seeds = sorted({len(trace.error) for trace in traces.values()})
        notes = [f"shaded: 95 % interval, {'/'.join(map(str, seeds))} seeds"] if seeds[-1] > 1 else []
        figure, axes = _figure(looks, title, notes, panels=len(PANELS))
        for ax, (quantity, label) in zip(axes, PANELS.items(), strict=True):
            for name, trace in traces.items():
                at = getattr(trace, quantity)
                shown = (
                    slice(None) if quantity == "samples" else at > 0
                )  # a logarithmic axis has no place for the start
                _draw(ax, at[shown], [curve[shown] for curve in statistics[name]], looks[name])
            if quantity != "samples":
                ax.set_xscale("log")
            ax.set_xlabel(label)
            _scale(ax, statistics.values())
            if target is not None:
                ax.axhline(target, color="0.4", linewidth=0.8, zorder=1)
        axes[0].set_ylabel("mean-square error")
    return figure


def tuning(
    trials: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    chosen: Mapping[str, float],
    *,
    title: str | None = None,
) -> "Figure":
    """The error of every step that was tried; a ring is the step chosen, a cross at the top one that diverged.

    **Arguments:**

    - `trials`: by name, steps and the errors they led to.
    - `chosen`: by name, the step taken.

    !!! example
        >>> figure = tuning({"FedHSA": ([0.1, 0.01], [0.5, 0.2])}, {"FedHSA": 0.01})
        >>> figure.axes[0].lines[0].get_xdata().tolist()
        [0.01, 0.1]
    """
    import matplotlib

    if not trials:
        raise ValueError("`trials` is empty: there is nothing to draw.")
    looks = styles(trials)
    with matplotlib.rc_context(STYLE):
        lost = not all(np.isfinite(errors).all() for _, errors in trials.values())
        notes = ["ring: chosen", "cross at the top: diverged"][: 1 + lost]
        figure, (ax,) = _figure(looks, title, notes, panels=1)
        for name, (steps, errors) in trials.items():
            order, look = np.argsort(steps), looks[name]
            at, error = np.asarray(steps, dtype=float)[order], np.asarray(errors, dtype=float)[order]
            ax.plot(at, drawable(error), marker=".", **look)
            best = at == chosen[name]
            ring: dict[str, Any] = {"marker": "o", "markersize": 7, "markerfacecolor": "none", "linestyle": "none"}
            ax.plot(at[best], drawable(error[best]), color=look["color"], **ring)
            lost = at[~np.isfinite(error)]
            cross: dict[str, Any] = {"marker": "x", "markersize": 4, "linestyle": "none", "clip_on": False}
            ax.plot(lost, np.ones_like(lost), transform=ax.get_xaxis_transform(), color=look["color"], **cross)
        ax.set_xscale("log")
        ax.set_yscale("log", nonpositive="mask")
        _plain_ticks(ax)
        ax.grid(axis="y", color="0.9", linewidth=0.5)
        ax.set_xlabel(r"step size $\eta$")
        ax.set_ylabel("mean-square error at the end")
    return figure


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and line of each name: by the time the colours of a figure come again, the lines are others.

    Every line is a little thinner than the one before, so that of equal curves all are seen.
    """
    names = list(names)
    palette, widths = colours(names), np.linspace(*WIDTHS, len(names))
    return {
        name: {"color": palette[name], "linestyle": LINES[i // ALIKE % len(LINES)], "linewidth": widths[i]}
        for i, name in enumerate(names)
    }


def _figure(
    looks: Mapping[str, dict[str, Any]], title: str | None, notes: list[str], panels: int
) -> tuple["Figure", list["Axes"]]:
    """Panels side by side, and above them one legend for all, which makes its own room."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **look) for look in looks.values()]
    handles += [Line2D([], [], linestyle="none")] * len(notes)
    labels = [*looks, *notes]
    columns = next(n for n in range(min(len(labels), 6), 0, -1) if n == 1 or _wide(labels, n) <= LETTERS)
    rows = -(-len(labels) // columns) + 1.3 * bool(title)
    figure = Figure(figsize=(WIDTH, HEIGHT + ROW * rows), layout="constrained")
    axes = list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])
    style: dict[str, Any] = {"frameon": False, "columnspacing": 1.4, "borderaxespad": 0.1}
    figure.legend(handles, labels, title=title, ncols=columns, loc="outside upper center", **style)
    return figure, axes


def _wide(labels: list[str], columns: int) -> int:
    """The letters across a legend of so many columns, which is filled column by column."""
    rows = -(-len(labels) // columns)
    return sum(HANDLE + max(map(len, labels[i : i + rows])) for i in range(0, len(labels), rows))


def _draw(ax: "Axes", at: np.ndarray, statistics: Sequence[np.ndarray], look: dict[str, Any]) -> None:
    mean, low, high = (drawable(curve) for curve in statistics)
    if at[0] == at[-1]:  # everything is sent at once, at the end
        ax.plot(at[-1:], mean[-1:], marker="D", markersize=4, **look)
        return
    ax.plot(at, mean, **look)
    if np.isfinite(low).any():
        ax.fill_between(at, low, high, color=look["color"], alpha=0.18, linewidth=0)


def _plain_ticks(ax: "Axes") -> None:
    """Steps as one writes them; between decades only where there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e4 * low else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _scale(ax: "Axes", statistics: Iterable[tuple[np.ndarray, ...]]) -> None:
    """A logarithmic axis, which does not follow what diverges out of sight of the start."""
    ax.grid(axis="y", color="0.9", linewidth=0.5)
    means = [drawable(mean) for mean, _, _ in statistics]
    if not any(np.isfinite(mean).any() for mean in means):
        return
    ax.set_yscale("log", nonpositive="mask")
    top = HEADROOM * max(float(np.nanmax(mean[:1], initial=0.0)) for mean in means)
    if 0 < top < ax.get_ylim()[1]:
        ax.set_ylim(top=top)

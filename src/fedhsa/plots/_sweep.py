"""Sweeps over settings: the final error against one setting, with a line for each combination of the others."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine.result import SIGNED
from ._style import (
    COLOURS,
    DASHES,
    FEWEST,
    arrange,
    colours_in_order,
    darker,
    house_style,
    ink,
    legend_above,
    legend_inside,
    new_figure,
    pale_grid,
    relabelled,
    seeds_entry,
    session_colours,
    words,
)

if TYPE_CHECKING:  # Matplotlib takes most of a second to import, so it is imported only for drawing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {
    **{"step_size": r"step size $\eta$", "local_steps": "local steps $H$", "server_step": "server step"},
    **{"num_agents": "number of agents $M$", "dim": "number of parameters $d$"},
}
MOST_TICKS = 8
"""The largest number of values of a setting that all have ticks."""


def sweep(
    rows: Sequence[Mapping[str, Any]],
    settings: Sequence[str],
    quantity: str = "error",
    *,
    title: str | None = None,
    algorithm: str | None = None,
    seeds: int | None = None,
    labels: Mapping[str, str] | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
    legend: bool = True,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draws the mean of the last record against the setting with the most values, with 95 % intervals over seeds.

    A cross at the upper edge marks settings at which seeds diverged. With fewer than five seeds there are no intervals.

    **Arguments:**

    - `rows`: for each combination its settings, the mean of the quantity, `low`, `high` and `diverged`, and optionally
      `theory`, which is drawn dashed.
    - `settings`: the names of the settings.
    - `quantity`: the name of the quantity.
    - `title`: the title of the figure.
    - `algorithm`: the name of the algorithm, which gives a single line its label and colour.
    - `seeds`: the number of seeds, for the legend. Default: not mentioned, and intervals are drawn.
    - `labels`: other labels in the legend, by the default labels.
    - `figsize`, `width`, `legend`, `ax`: as for `curves`.

    Raises `ValueError` if `rows` is empty.

    !!! example
        >>> rows = [{"step_size": s, "error": s, "low": s / 2, "high": 2 * s, "diverged": 0} for s in (0.1, 1.0)]
        >>> sweep(rows, ["step_size"]).axes[0].get_xscale()
        'log'
    """
    from matplotlib.lines import Line2D

    if not rows:
        raise ValueError("`rows` is empty: there is nothing to draw.")
    across = max(settings, key=lambda name: len({row[name] for row in rows}))
    others = [name for name in settings if name != across]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        label = ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in others)
        label = label or algorithm or quantity.replace("_", " ")
        groups.setdefault(label, []).append(row)
    shown, few = relabelled(groups, labels), seeds is not None and seeds < FEWEST
    numbers = all(isinstance(row[across], int | float) for row in rows)
    ticks = sorted({row[across] for row in rows}) if numbers else list(dict.fromkeys(row[across] for row in rows))
    diverged, linear = any(row["diverged"] for row in rows), quantity in SIGNED
    with house_style(ax):
        methods = len(groups) == 1 or all(name in COLOURS for name in shown.values())
        palette = session_colours(shown.values()) if methods else colours_in_order(groups)
        palette = {label: palette[shown[label] if methods else label] for label in groups}
        own, grow = (None, False) if ax is not None else new_figure((4.6, 3.0), figsize, width)
        if ax is None:
            assert own is not None
            ax = own.subplots()
        entries: list[tuple[Any, str]] = []
        for label, group in groups.items():
            group = sorted(group, key=lambda row: ticks.index(row[across]))
            at = np.array([row[across] if numbers else ticks.index(row[across]) for row in group], dtype=float)
            mean, low, high = (
                np.array([row[part] for row in group], dtype=float) for part in (quantity, "low", "high")
            )
            drawn = np.isfinite(mean) & ((mean > 0) | linear)
            # One seed has no interval, and the interval of a few seeds is not reliable.
            ends = [np.where(np.isfinite(end) & ~np.array(few), end, mean)[drawn] for end in (low, high)]
            errors = [mean[drawn] - ends[0], ends[1] - mean[drawn]]
            look: dict[str, Any] = {"color": palette[label], "marker": "o", "markersize": 3}
            ax.errorbar(at[drawn], mean[drawn], yerr=errors, capsize=0 if few else 2, label=shown[label], **look)
            entries.append((Line2D([], [], **look), shown[label]))
            predicted = np.array([row.get("theory", np.nan) for row in group], dtype=float)
            if np.isfinite(predicted).any():
                ax.plot(at, predicted, color=darker(palette[label]), linestyle=DASHES, zorder=3)
            lost = np.array([row["diverged"] > 0 for row in group])
            if lost.any():  # a line without points and clipping would confuse layouts
                edge = ax.get_xaxis_transform()
                ax.plot(at[lost], np.full(lost.sum(), 0.98), "x", color=palette[label], transform=edge, clip_on=False)
        _scale_x(ax, ticks, numbers)
        if not linear and any(np.isfinite(row[quantity]) and row[quantity] > 0 for row in rows):
            ax.set_yscale("log")
        ax.set_xlabel(LABELS.get(across, words(across.replace("_", " "))))
        ax.set_ylabel("mean-square error" if quantity == "error" else words(quantity.replace("_", " ")))
        pale_grid(ax, own)
        entries = entries if len(groups) > 1 or labels else []
        if any(np.isfinite(row.get("theory", np.nan)) for row in rows):
            only = next(iter(groups)) if len(groups) == 1 else None
            colour = ink(0.8) if only is None else darker(palette[only])
            entries.append((Line2D([], [], color=colour, linestyle=DASHES), "predicted"))
        if diverged:
            entries.append((Line2D([], [], color=ink(0.6), marker="x", linestyle="none"), "seeds diverged"))
        if seeds is not None:
            bar = Line2D([], [], color=ink(0.6), marker="" if few else "|", markersize=8, linestyle="none")
            entries.append((bar, seeds_entry([seeds])[1]))
        if legend and entries:
            handles, names = zip(*entries, strict=True)
            if own is None:
                legend_inside(ax, handles, names, title)
            else:
                legend_above(own, handles, names, title, grow=grow, columns=3)
        elif title:
            ax.set_title(words(title))
        if own is None:
            arrange(ax)
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]


def _scale_x(ax: "Axes", ticks: list[Any], numbers: bool) -> None:
    """Sets a logarithmic axis if values span a large factor, and ticks at the values if they are few."""
    from matplotlib.ticker import NullLocator

    if not numbers:
        ax.set_xticks(range(len(ticks)), [words(str(tick)) for tick in ticks])
        return
    logarithmic = ticks[0] > 0 and ticks[-1] / ticks[0] >= 8
    if logarithmic:
        ax.set_xscale("log")
    if len(ticks) <= MOST_TICKS:
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.xaxis.set_minor_locator(NullLocator())

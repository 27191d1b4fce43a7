"""A sweep over settings: where the error ends, against one of them, with a line for each value of the others."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._style import DASHES, STYLE, colours

if TYPE_CHECKING:  # matplotlib takes most of a second to import: only those who plot should wait for it
    from matplotlib.figure import Figure


def sweep(
    rows: Sequence[Mapping[str, Any]], settings: Sequence[str], quantity: str = "error", *, title: str | None = None
) -> "Figure":
    """The mean of the last record against the setting with the most values, with its 95 % interval over seeds.

    A cross at the upper edge marks settings at which seeds diverged.

    **Arguments:**

    - `rows`: per combination its settings, and `low`, `high`, `diverged` beside the mean of the quantity.
    - `settings`: the names of the settings.
    - `quantity`: what the rows have the mean of.
    - `title`: of the figure.

    !!! example
        >>> rows = [{"step_size": s, "error": s, "low": s / 2, "high": 2 * s, "diverged": 0} for s in (0.1, 1.0)]
        >>> sweep(rows, ["step_size"]).axes[0].get_xscale()
        'log'
    """
    import matplotlib
    from matplotlib.figure import Figure

    if not rows:
        raise ValueError("`rows` is empty: there is nothing to draw.")
    across = max(settings, key=lambda name: len({row[name] for row in rows}))
    others = [name for name in settings if name != across]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        label = ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in others) or quantity.replace("_", " ")
        groups.setdefault(label, []).append(row)
    palette = colours(list(groups))
    numbers = all(isinstance(row[across], int | float) for row in rows)
    ticks = sorted({row[across] for row in rows}) if numbers else list(dict.fromkeys(row[across] for row in rows))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        ax = figure.subplots()
        for label, group in groups.items():
            group = sorted(group, key=lambda row: ticks.index(row[across]))
            at = np.array([row[across] if numbers else ticks.index(row[across]) for row in group], dtype=float)
            mean, low, high = (
                np.array([row[part] for row in group], dtype=float) for part in (quantity, "low", "high")
            )
            shown = np.isfinite(mean) & (mean > 0)
            ends = [np.where(np.isfinite(end), end, mean)[shown] for end in (low, high)]  # one seed has no interval
            errors = [mean[shown] - ends[0], ends[1] - mean[shown]]
            ax.errorbar(
                at[shown], mean[shown], yerr=errors, fmt="o-", ms=3, capsize=2, color=palette[label], label=label
            )
            lost = np.array([row["diverged"] > 0 for row in group])
            edge = ax.get_xaxis_transform()
            ax.plot(at[lost], np.full(lost.sum(), 0.98), "x", color=palette[label], transform=edge, clip_on=False)
        if numbers and ticks[0] > 0 and ticks[-1] / ticks[0] >= 8:
            ax.set_xscale("log")
        elif not numbers:
            ax.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
        if any(np.isfinite(row[quantity]) and row[quantity] > 0 for row in rows):
            ax.set_yscale("log")
        if any(row["diverged"] for row in rows):
            ax.plot([], [], "x", color="0.4", linestyle=DASHES, linewidth=0, label="seeds diverged")
        ax.set_xlabel(across.replace("_", " "))
        ax.set_ylabel("mean-square error" if quantity == "error" else quantity.replace("_", " "))
        ax.grid(axis="y", color="0.9", linewidth=0.5)
        if len(groups) > 1 or any(row["diverged"] for row in rows):
            ax.legend(frameon=False)
        if title:
            ax.set_title(title, fontsize=9)
    return figure

"""Figures: error curves of several algorithms with intervals over seeds, and theory beside them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..engine import Result
from ..engine.result import SIGNED
from ..statistics import interval
from ._style import DASHES, STYLE, colours, darker, drawable, thinned

if TYPE_CHECKING:  # matplotlib takes most of a second to import: only those who plot should wait for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Curve(NamedTuple):
    """What a curve is drawn from; a `Result` has the same fields and serves as well."""

    error: np.ndarray
    """`(seeds, records)`."""
    rounds: np.ndarray
    """`(records,)`."""
    failed_round: np.ndarray
    """Per seed the round in which it diverged, or -1."""


LABELS = {
    "error": r"$E_t = \|\bar\theta^{(t)} - \theta^{{\star}}\|^2$",
    "operator_norm": r"$\|\bar G(\bar\theta^{(t)})\|$",
}
"""How the axes of known quantities are labelled; others by their name."""

HEADROOM = 1e3
"""How far above the starting error the axis follows a diverging curve."""

WIDTH, HEIGHT = 3.5, 2.3
"""Inches: one column of a two-column page, and the figure without its legend."""


def curves(
    results: Mapping[str, Result | Curve],
    *,
    quantity: str = "error",
    title: str | None = None,
    theory: Mapping[str, Any] | None = None,
    theory_label: str = "theory",
    palette: Mapping[str, str] | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    r"""The mean error of each algorithm against rounds, on a logarithmic axis, with its 95 % interval; returns linear.

    The interval is over seeds, by the delta method on the logarithm of the mean (see `interval`). A curve
    ends where a first seed diverges, or where the error is exactly 0, and the legend says so.

    **Arguments:**

    - `results`: results by name; known names always have the same colour.
    - `quantity`: what to draw, by the name under which all results recorded it; its positive values are drawn.
    - `theory`: what to draw dashed, by the same names: one value per record or round, or a number.
    - `theory_label`: what the legend calls it.
    - `palette`: colours by name. Default: those of the algorithms, and others for other names.
    - `ax`: axes to draw into. Default: a new figure, one column wide.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=20, seeds=4)
        >>> curves({"FedHSA": result}).axes[0].get_yscale()
        'log'
    """
    import matplotlib
    from matplotlib.figure import Figure

    if not results:
        raise ValueError("`results` is empty: there is nothing to draw.")
    if quantity != "error":
        results = {name: _recorded(name, result, quantity) for name, result in results.items()}
    theory = dict(theory or {})
    with matplotlib.rc_context(STYLE):
        own = Figure(figsize=(WIDTH, HEIGHT), layout="constrained") if ax is None else None
        ax = own.add_subplot() if own is not None else ax
        assert ax is not None
        palette = palette or colours([*results, *(name for name in theory if name not in results)])
        statistics = {name: interval(result.error, positive=quantity not in SIGNED) for name, result in results.items()}
        for name, result in results.items():
            _draw(ax, name, result, statistics[name], palette[name], quantity in SIGNED)
        for name, values in theory.items():
            _draw_theory(ax, name, results.get(name), values, palette[name])
        _scale(ax, results, statistics, quantity in SIGNED)
        ax.set_xlabel(r"round $t$")
        ax.set_ylabel(LABELS.get(quantity, quantity.replace("_", " ")))
        _legend(ax, results, theory_label if theory else None, title, own)
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]


def _recorded(name: str, result: Result | Curve, quantity: str) -> Curve:
    """The curve of something recorded besides the error."""
    if isinstance(result, Curve) or quantity not in result.records:
        raise ValueError(f"`quantity` is {quantity!r}, which {name} did not record: simulate it with `record`.")
    return Curve(result.records[quantity], result.rounds, result.failed_round)


def _draw(
    ax: "Axes", name: str, result: Result | Curve, statistics: tuple[np.ndarray, ...], colour: str, linear: bool
) -> None:
    kept = thinned(len(result.rounds))
    rounds = result.rounds[kept]
    mean, low, high = (
        np.where(np.isfinite(c := curve[kept]), c, np.nan) if linear else drawable(curve[kept]) for curve in statistics
    )
    label = name + _ending(result)
    marker = "o" if np.isfinite(mean).sum() == 1 else None  # one point makes no line
    ax.plot(rounds, mean, color=colour, label=label, marker=marker, markersize=3)
    if np.isfinite(low).any():
        ax.fill_between(rounds, low, high, color=colour, alpha=0.25, linewidth=0)


def _draw_theory(ax: "Axes", name: str, result: Result | Curve | None, values: Any, colour: str) -> None:
    values = np.asarray(values, dtype=np.float64)
    # Darker than the simulation, so that it is seen where the two agree.
    style: dict[str, Any] = {"color": darker(colour), "linestyle": DASHES, "linewidth": 1.0, "zorder": 3}
    if values.ndim == 0:
        ax.axhline(float(values), **style)
        return
    rounds = np.arange(len(values))
    if result is not None and len(values) == len(result.rounds):
        rounds = result.rounds
    elif values.ndim > 1 or (result is not None and len(values) <= result.rounds[-1]):
        lengths = "" if result is None else f", {len(result.rounds)}, or per round, {result.rounds[-1] + 1}"
        raise ValueError(
            f"`theory[{name!r}]` must be a number, or have one value per record{lengths}; got {values.shape}."
        )
    kept = thinned(len(values))
    ax.plot(rounds[kept], drawable(values[kept]), **style)


def _scale(
    ax: "Axes",
    results: Mapping[str, Result | Curve],
    statistics: Mapping[str, tuple[np.ndarray, ...]],
    linear: bool,
) -> None:
    """A logarithmic axis, which does not follow a diverging curve out of sight of the others; or a linear one."""
    rounds = max(int(result.rounds[-1]) for result in results.values())
    ax.set_xlim(0, max(1, rounds))
    if linear:
        means = np.concatenate([mean[np.isfinite(mean)] for mean, _, _ in statistics.values()])
        if len(means):  # intervals of few seeds may be far wider than the curves
            room = 0.2 * max(np.ptp(means), 1e-9 * (1 + abs(means).max()))
            ax.set_ylim(means.min() - room, means.max() + room)
        ax.grid(axis="y", color="0.9", linewidth=0.5)
        return
    if not any((drawable(mean) > 0).any() for mean, _, _ in statistics.values()):
        ax.set_yticks([])  # a logarithmic axis has no place for zero and infinity
        ax.text(0.5, 0.5, "no positive finite value", ha="center", va="center", transform=ax.transAxes)
        return
    ax.grid(axis="y", color="0.9", linewidth=0.5)
    ax.set_yscale("log", nonpositive="mask")
    if any((result.failed_round >= 0).any() for result in results.values()):
        starts = [drawable(mean[:1]) for mean, _, _ in statistics.values()]
        sound = [
            drawable(high if np.isfinite(high).any() else mean)
            for result, (mean, _, high) in zip(results.values(), statistics.values(), strict=True)
            if not (result.failed_round >= 0).any()
        ]
        top = np.nanmax(np.concatenate([np.concatenate(starts) * HEADROOM, *sound, [1e-300]]))
        if top < ax.get_ylim()[1]:
            ax.set_ylim(top=float(top))


def _legend(
    ax: "Axes", results: Mapping[str, Result | Curve], theory: str | None, title: str | None, own: "Figure | None"
) -> None:
    """Above the axes, where there are no data; the title is the legend's so that the two never collide."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, labels = ax.get_legend_handles_labels()
    if theory is not None:
        handles.append(Line2D([], [], color="0.2", linestyle=DASHES, linewidth=1.0))
        labels.append(theory)
    seeds = sorted({len(result.error) for result in results.values()})
    if seeds[-1] > 1:
        handles.append(Patch(color="0.5", alpha=0.3, linewidth=0))
        labels.append(f"95 % interval, {'/'.join(map(str, seeds))} seeds")
    rows = -(-len(labels) // 2)
    wide = max(map(len, labels[:rows])) + max(map(len, labels[rows:]), default=0) > 40  # letters
    style: dict[str, Any] = {
        "title": title,
        "ncols": 1 if wide else 2,
        "frameon": False,
        "columnspacing": 1.2,
    }
    if own is not None:  # the layout makes room for a legend of the figure, and the figure grows by as much
        lines = (len(labels) if wide else rows) + 1.3 * bool(title)
        own.set_size_inches(WIDTH, HEIGHT + 0.17 * lines)
        own.legend(handles, labels, loc="outside upper center", borderaxespad=0.1, **style)
    else:
        ax.legend(handles, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), borderaxespad=0.3, **style)


def _ending(result: Result | Curve) -> str:
    """What the legend says about a curve that ends early."""
    failed = result.failed_round[result.failed_round >= 0]
    if len(failed):
        return f" (diverged, round {failed.min()})"
    return " (reaches 0)" if (result.error[:, -1] == 0).all() else ""

"""Figures: error curves of several algorithms with intervals over seeds, and theory beside them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..engine import Result
from ..engine.result import SIGNED
from ..statistics import interval
from ..theory import Prediction
from ._sites import fair_axis, spans
from ._style import (
    DASHES,
    arrange,
    band,
    darker,
    drawable,
    graded_widths,
    house_style,
    ink,
    legend_above,
    legend_inside,
    new_figure,
    pale_grid,
    relabelled,
    seeds_entry,
    session_colours,
    thinned,
    whole_numbers,
    words,
)

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

WIDTH, HEIGHT, WIDE = 3.5, 2.3, 5.5
"""Inches: one column of a two-column page, the figure without its legend, and a width at which a legend is one row."""

MANY = 3
"""The legend names at most this many predictions one by one."""


def curves(
    results: Mapping[str, Result | Curve] | Sequence[Result],
    *,
    quantity: str = "error",
    title: str | None = None,
    theory: Mapping[str, Any] | Sequence[Prediction] | None = None,
    theory_label: str | None = None,
    palette: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
    legend: bool | Literal["above"] = True,
    ax: "Axes | None" = None,
) -> "Figure":
    r"""The mean error of each algorithm against rounds, on a logarithmic axis, with its 95 % interval; returns linear.

    The interval is over seeds, by the delta method on the logarithm of the mean (see `interval`); with fewer than five
    seeds there is none. A curve ends where a first seed diverges, or where the error is exactly 0, and the legend says
    so. Where one curve lies over another, the lower one is wider, so that both are seen.

    **Arguments:**

    - `results`: results by name, or a list of results of different algorithms, which are named after these. A name has
      the same colour in every figure.
    - `quantity`: what to draw, by the name under which all results recorded it; its positive values are drawn.
    - `title`: of the figure.
    - `theory`: predictions, drawn dashed, by the same names: each a `theory.Prediction`, one value per record or round,
      or a number. A list of `theory.Prediction`s is named after their algorithms. Only stable ones are drawn.
    - `theory_label`: the legend's word for them. Default: `"exact"` where all are exact laws, otherwise `"predicted"`.
    - `palette`: colours by name. Default: those of `plots.COLOURS`, and for other names one that the name decides.
    - `labels`: what the legend calls the results, by their names. Default: the names.
    - `figsize`: width and height in inches. Default: the session's `figure.figsize` where that was changed, else one
      column wide and as high as it takes.
    - `width`: the width alone.
    - `legend`: whether there is one: above a figure of its own, inside given axes, or `"above"` them.
    - `ax`: axes to draw into. They keep the style of the session. Default: a new figure.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=20, seeds=5)
        >>> figure = curves({"FedHSA": result}, labels={"FedHSA": "ours"}, width=3.25)
        >>> figure.axes[0].get_yscale(), [text.get_text() for text in figure.legends[0].get_texts()]
        ('log', ['ours', 'mean of 5 seeds, 95 % interval'])
    """
    if not results:
        raise ValueError("`results` is empty: there is nothing to draw.")
    results = _by_name("results", results)
    theory, default_label = _computed(_by_name("theory", theory or {}), results)
    theory_label = default_label if theory_label is None else theory_label
    if quantity != "error":
        results = {name: _recorded(name, result, quantity) for name, result in results.items()}
    linear = quantity in SIGNED or _is_flat(quantity, results)
    with house_style(ax):
        own, grow = (None, False) if ax is not None else new_figure((WIDTH, HEIGHT), figsize, width)
        if ax is None:
            assert own is not None
            ax = own.add_subplot()
        everyone = list(dict.fromkeys([*results, *theory]))
        shown = relabelled(everyone, labels)
        palette = {**session_colours(everyone), **(palette or {})}
        statistics = {name: interval(result.error, positive=not linear) for name, result in results.items()}
        widths = graded_widths([(r.rounds, statistics[n][0]) for n, r in results.items()], linear=linear)
        entries: list[tuple[Any, str]] = []
        for (name, result), wide in zip(results.items(), widths, strict=True):
            line = _draw(ax, result, statistics[name], palette[name], linear, wide)
            line.set_label(shown[name] + words(_ending(result)))
            entries.append((line, str(line.get_label())))
        for name, values in theory.items():
            _draw_theory(ax, name, results.get(name), values, palette[name])
        _scale(ax, results, statistics, linear)
        if linear and quantity not in SIGNED:
            fair_axis(ax, np.concatenate([mean for mean, _, _ in statistics.values()]))
        whole_numbers(ax)
        pale_grid(ax, own)
        ax.set_xlabel(r"round $t$")
        ax.set_ylabel(LABELS.get(quantity, words(quantity.replace("_", " "))))
        if legend:
            whole = set(theory) == set(results)
            named = {} if whole else {name: shown[name] for name in theory}
            entries += _theory_entries(named, palette, words(theory_label)) if theory else []
            entries.append(seeds_entry(len(result.error) for result in results.values()))
            handles, names = zip(*entries, strict=True)
            if own is not None:
                first = len(results) if len(results) <= len(entries) - len(results) + 1 else 0
                columns = len(entries) if own.get_figwidth() >= WIDE else 2
                first = first if theory and columns == 2 else 0
                legend_above(own, handles, names, title, grow=grow, columns=columns, first=first)
            else:
                legend_inside(ax, handles, names, title, above=legend == "above")
        elif title:
            ax.set_title(words(title))
        if own is None:
            arrange(ax)
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]


def _by_name(argument: str, given: Any) -> dict[str, Any]:
    """The argument by name; the entries of a list are named after their algorithms."""
    if isinstance(given, Mapping):
        return dict(given)
    named: dict[str, Any] = {}
    for entry in given:
        if not isinstance(entry, Result | Prediction):
            kind = type(entry).__name__
            raise TypeError(f"`{argument}` must be named: give a mapping, or a list of results; got a list of {kind}.")
        own = entry.algorithm if isinstance(entry, Result) else type(entry.algorithm).__name__
        if own in named:
            raise ValueError(f"`{argument}` has {own} twice: give a mapping with a name for each.")
        named[own] = entry
    return named


def _computed(theory: Mapping[str, Any], results: Mapping[str, Result | Curve]) -> tuple[dict[str, Any], str]:
    """Predictions as the values to draw, and the legend's word for them."""
    found, kinds = {}, set()
    for name, values in theory.items():
        if not isinstance(values, Prediction):
            found[name] = values
            kinds.add(False)
        elif values.stable and values.basis != "mean":  # the mean alone is not the mean-square error of the runs
            last = max(
                int(result.rounds[-1]) for result in (results[n] for n in ([name] if name in results else results))
            )
            found[name] = values.error(last)
            kinds.add(values.basis == "exact")
    return found, "exact" if kinds == {True} else "predicted"


def _is_flat(quantity: str, results: Mapping[str, Result | Curve]) -> bool:
    """Whether what was measured stays within a small factor, so that a logarithmic axis would magnify its noise."""
    if quantity == "error" or any((result.failed_round >= 0).any() for result in results.values()):
        return False
    values = np.concatenate([result.error.ravel() for result in results.values()])
    return bool(np.isfinite(values).any()) and not spans(values)


def _recorded(name: str, result: Result | Curve, quantity: str) -> Curve:
    """The curve of something recorded besides the error."""
    if isinstance(result, Curve) or quantity not in result.records:
        raise ValueError(f"`quantity` is {quantity!r}, which {name} did not record: simulate it with `record`.")
    return Curve(result.records[quantity], result.rounds, result.failed_round)


def _draw(
    ax: "Axes", result: Result | Curve, statistics: tuple[np.ndarray, ...], colour: Any, linear: bool, width: float
) -> Any:
    kept = thinned(len(result.rounds))
    rounds = result.rounds[kept]
    mean, low, high = (finite(curve[kept]) if linear else drawable(curve[kept]) for curve in statistics)
    marker = "o" if np.isfinite(mean).sum() == 1 else None  # one point makes no line
    (line,) = ax.plot(rounds, mean, color=colour, marker=marker, markersize=3, linewidth=width)
    band(ax, rounds, low, high, colour, len(result.error))
    return line


def finite(curve: np.ndarray) -> np.ndarray:
    """What a linear axis shows of a curve."""
    return np.where(np.isfinite(curve), curve, np.nan)


def fit_linear(ax: "Axes", means: Sequence[np.ndarray]) -> None:
    """A linear axis that fits the curves; intervals of few seeds may be far wider."""
    known = np.concatenate([mean[np.isfinite(mean)] for mean in means])
    if len(known):
        room = 0.2 * max(np.ptp(known), 1e-9 * (1 + abs(known).max()))
        ax.set_ylim(known.min() - room, known.max() + room)


def _draw_theory(ax: "Axes", name: str, result: Result | Curve | None, values: Any, colour: Any) -> None:
    values = np.asarray(values, dtype=np.float64)
    # Darker than the simulation, so that it is seen where the two agree.
    style: dict[str, Any] = {**_dashed(colour), "zorder": 3}
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
        fit_linear(ax, [mean for mean, _, _ in statistics.values()])
        return
    if not any((drawable(mean) > 0).any() for mean, _, _ in statistics.values()):
        ax.set_yticks([])  # a logarithmic axis has no place for zero and infinity
        ax.text(0.5, 0.5, "no positive finite value", ha="center", va="center", transform=ax.transAxes)
        return
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


def _dashed(colour: Any) -> dict[str, Any]:
    import matplotlib

    return {"color": darker(colour), "linestyle": DASHES, "linewidth": matplotlib.rcParams["lines.linewidth"] / 1.2}


def _theory_entries(shown: Mapping[str, str], palette: Mapping[str, Any], label: str) -> list[tuple[Any, str]]:
    """What dashes mean: one entry where every curve has them, or is one of many; otherwise one for each of `shown`."""
    from matplotlib.lines import Line2D

    if not 0 < len(shown) <= MANY:
        return [(Line2D([], [], color=ink(0.8), linestyle=DASHES), label)]
    return [(Line2D([], [], **_dashed(palette[name])), f"{label}, {text}") for name, text in shown.items()]


def _ending(result: Result | Curve) -> str:
    """What the legend says about a curve that ends early."""
    failed = result.failed_round[result.failed_round >= 0]
    if len(failed):
        return f" (diverged, round {failed.min()})"
    return " (reaches 0)" if (result.error[:, -1] == 0).all() else ""

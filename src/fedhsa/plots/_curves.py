"""Error curves of several algorithms with intervals over seeds, and predictions."""

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

if TYPE_CHECKING:  # Matplotlib takes most of a second to import, so it is imported only for drawing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Curve(NamedTuple):
    """The data of a curve: `error` at `rounds`. A `Result` has the same fields and can be used instead.

    !!! example
        >>> curve = Curve(error=np.array([[1.0, 0.5]]), rounds=np.array([0, 1]), failed_round=np.array([-1]))
        >>> curve.error.shape
        (1, 2)
    """

    error: np.ndarray
    """The error, or another quantity, `(seeds, records)`."""
    rounds: np.ndarray
    """`(records,)`."""
    failed_round: np.ndarray
    """For each seed, the round in which it diverged, or -1."""


LABELS = {
    "error": r"$E_t = \|\bar\theta^{(t)} - \theta^{{\star}}\|^2$",
    "operator_norm": r"$\|\bar G(\bar\theta^{(t)})\|$",
}
"""The axis labels of known quantities; other quantities are labelled by their names."""

HEADROOM = 1e3
"""The factor above the initial error up to which the axis follows a diverging curve."""

WIDTH, HEIGHT, WIDE = 3.5, 2.3, 5.5
"""The size in inches of one column without its legend, and the width at which a legend is one row."""

MANY = 3
"""The largest number of predictions that the legend names individually."""


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
    r"""Draws the mean error of each algorithm against rounds, with its 95 % interval over seeds.

    The error axis is logarithmic, that of returns linear. The interval follows from the delta method for the logarithm
    of the mean (see `statistics.interval`); with fewer than five seeds there is none. A curve ends where the first seed
    diverges or where the error is exactly 0, which the legend mentions. If one curve covers another, the lower one is
    wider, so that both are visible.

    **Arguments:**

    - `results`: results by name, or a list of results of different algorithms, which are named after their algorithms.
      A name has the same colour in every figure.
    - `quantity`: the recorded quantity to draw; on a logarithmic axis only positive values are drawn.
    - `title`: the title of the figure.
    - `theory`: predictions by the same names, drawn dashed: each a `theory.Prediction`, one value per record or round,
      or a number. The entries of a list are named after their algorithms. Only stable predictions are drawn.
    - `theory_label`: the legend's label of predictions. Default: `"exact"` if all are exact, otherwise `"predicted"`.
    - `palette`: colours by name. Default: those of `plots.COLOURS`; the name determines the colour of other names.
    - `labels`: the labels in the legend, by the names of the results. Default: the names.
    - `figsize`: the width and height in inches. Default: the session's `figure.figsize` if it was changed, otherwise
      one column wide and as high as necessary.
    - `width`: the width alone.
    - `legend`: whether to draw a legend: above a new figure, inside given axes, or `"above"` them.
    - `ax`: the axes to draw into, which keep the style of the session. Default: a new figure.

    Raises `ValueError` if `results` is empty, a result did not record `quantity`, or a prediction has the wrong length.

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
    """Returns the argument by name; the entries of a list are named after their algorithms."""
    if isinstance(given, Mapping):
        return dict(given)
    named: dict[str, Any] = {}
    for entry in given:
        if not isinstance(entry, Result | Prediction):
            kind = type(entry).__name__
            raise TypeError(f"`{argument}` must be a mapping from names, or a list of results; got a list of {kind}.")
        own = entry.algorithm if isinstance(entry, Result) else type(entry.algorithm).__name__
        if own in named:
            raise ValueError(f"`{argument}` has {own} twice: pass a mapping with a name for each.")
        named[own] = entry
    return named


def _computed(theory: Mapping[str, Any], results: Mapping[str, Result | Curve]) -> tuple[dict[str, Any], str]:
    """Returns the values of predictions to draw, and their label in the legend."""
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
    """Returns whether measurements stay within a small factor, so that a logarithmic axis would magnify noise."""
    if quantity == "error" or any((result.failed_round >= 0).any() for result in results.values()):
        return False
    values = np.concatenate([result.error.ravel() for result in results.values()])
    return bool(np.isfinite(values).any()) and not spans(values)


def _recorded(name: str, result: Result | Curve, quantity: str) -> Curve:
    """Returns the curve of a recorded quantity other than the error."""
    if isinstance(result, Curve) or quantity not in result.records:
        raise ValueError(
            f"`quantity` must be recorded, got {quantity!r}, which {name} did not record. Simulate it with `record`."
        )
    return Curve(result.records[quantity], result.rounds, result.failed_round)


def _draw(
    ax: "Axes", result: Result | Curve, statistics: tuple[np.ndarray, ...], colour: Any, linear: bool, width: float
) -> Any:
    kept = thinned(len(result.rounds))
    rounds = result.rounds[kept]
    mean, low, high = (finite(curve[kept]) if linear else drawable(curve[kept]) for curve in statistics)
    marker = "o" if np.isfinite(mean).sum() == 1 else None  # a single point is not a line
    (line,) = ax.plot(rounds, mean, color=colour, marker=marker, markersize=3, linewidth=width)
    band(ax, rounds, low, high, colour, len(result.error))
    return line


def finite(curve: np.ndarray) -> np.ndarray:
    """Returns the values of a curve that a linear axis can show."""
    return np.where(np.isfinite(curve), curve, np.nan)


def fit_linear(ax: "Axes", means: Sequence[np.ndarray]) -> None:
    """Fits a linear axis to the curves; intervals of few seeds may be far wider."""
    known = np.concatenate([mean[np.isfinite(mean)] for mean in means])
    if len(known):
        room = 0.2 * max(np.ptp(known), 1e-9 * (1 + abs(known).max()))
        ax.set_ylim(known.min() - room, known.max() + room)


def _draw_theory(ax: "Axes", name: str, result: Result | Curve | None, values: Any, colour: Any) -> None:
    values = np.asarray(values, dtype=np.float64)
    # Darker than the simulation, so that it is visible where the two agree.
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
            f"`theory[{name!r}]` must be a number or have one value per record{lengths}; got shape {values.shape}."
        )
    kept = thinned(len(values))
    ax.plot(rounds[kept], drawable(values[kept]), **style)


def _scale(
    ax: "Axes",
    results: Mapping[str, Result | Curve],
    statistics: Mapping[str, tuple[np.ndarray, ...]],
    linear: bool,
) -> None:
    """Sets a linear axis, or a logarithmic one that does not follow diverging curves far above the others."""
    rounds = max(int(result.rounds[-1]) for result in results.values())
    ax.set_xlim(0, max(1, rounds))
    if linear:
        fit_linear(ax, [mean for mean, _, _ in statistics.values()])
        return
    if not any((drawable(mean) > 0).any() for mean, _, _ in statistics.values()):
        ax.set_yticks([])  # a logarithmic axis cannot show zero and infinity
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
    """Returns legend entries for dashes: one if all curves or many have them, otherwise one for each of `shown`."""
    from matplotlib.lines import Line2D

    if not 0 < len(shown) <= MANY:
        return [(Line2D([], [], color=ink(0.8), linestyle=DASHES), label)]
    return [(Line2D([], [], **_dashed(palette[name])), f"{label}, {text}") for name, text in shown.items()]


def _ending(result: Result | Curve) -> str:
    """Returns the legend's remark on a curve that ends early."""
    failed = result.failed_round[result.failed_round >= 0]
    if len(failed):
        return f" (diverged, round {failed.min()})"
    return " (reaches 0)" if (result.error[:, -1] == 0).all() else ""

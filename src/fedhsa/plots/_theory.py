"""Figures of predictions: error against rounds, and floors against agents, local steps and step size."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..theory import Prediction
from ..theory.entry import MUCH
from ._style import (
    DASHES,
    arrange,
    darker,
    drawable,
    graded_widths,
    house_style,
    ink,
    legend_above,
    legend_inside,
    new_figure,
    pale_grid,
    plain_ticks,
    relabelled,
    session_colours,
    whole_numbers,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS, DASH_DOTS = (0, (1, 1.5)), (0, (6, 2, 1, 2))
GRID = 160
"""The number of points of a predicted curve."""
DECADES = 14
"""The fraction of its start down to which an error without a floor is followed."""
VISIBLE = 0.005
"""The estimated relative error from which a prediction has a band."""
THIN: dict[str, Any] = {"linewidth": 0.8, "zorder": 1}
WIDTH, HEIGHT, LOW, NARROWEST = 7.2, 2.5, 1.9, 2.2
"""The sizes in inches of a page with two by two panels, of a stacked panel, and the width for stacking."""
LABELS = {"step_size": r"step size $\eta$", "local_steps": "local steps $H$"}


def decay(
    predictions: Mapping[str, Prediction],
    *,
    rounds: int | None = None,
    target: float | None = None,
    labels: Mapping[str, str] | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
    legend: bool = True,
    ax: "Axes | None" = None,
) -> "Figure":
    r"""Draws the predicted mean-square error against rounds, with the floor (dashed) and its parts.

    The squared bias is dotted, the variance of the noise dash-dotted. Methods that diverge have no curve.

    **Arguments:**

    - `predictions`: the predictions, by name.
    - `rounds`: the number of rounds. Default: until all methods reach their floors.
    - `target`: an error to mark.
    - `labels`, `figsize`, `width`, `legend`, `ax`: as for `curves`.

    Raises `ValueError` if `predictions` is empty.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> prediction = fedhsa.theory.predict(problem, fedhsa.LocalSA(0.02, local_steps=5))
        >>> decay({"LocalSA": prediction}).axes[0].get_xlabel()
        'round $t$'
    """
    with _panel(predictions, ax, labels, figsize, width, legend) as (ax, palette, shown):
        stable = {name: p for name, p in predictions.items() if p.stable}
        rounds = max([10, *(_settled(p) for p in stable.values())]) if rounds is None else rounds
        at, lowest = np.unique(np.linspace(0, rounds, GRID).round().astype(int)), []
        errors = {name: drawable(p.error(rounds)[at]) for name, p in stable.items()}
        widths = graded_widths([(at, error) for error in errors.values()])
        for (name, error), wide in zip(errors.items(), widths, strict=True):
            p = stable[name]
            ax.plot(at, error, color=palette[name], label=shown[name], linewidth=wide)
            _trust(ax, at, error, p, palette[name])
            bias, colour = float(p.bias @ p.bias), darker(palette[name])
            parts = ("floor", p.floor, DASHES), ("bias", bias, DOTS), ("noise", p.noise_variance, DASH_DOTS)
            for meaning, value, style in parts:
                if value > 0:
                    ax.axhline(value, color=colour, linestyle=style, label=f"_{meaning}", **THIN)
            seen = bias / 2 if bias > p.floor / 1000 else math.inf
            floor = p.floor if p.floor >= 0 else 0.0  # unknown
            lowest.append(max(min(floor / 10, seen), float(np.nanmax(error, initial=0)) * 10.0**-DECADES))
        ax.set_xlim(0, rounds)
        whole_numbers(ax)
        _finish(ax, predictions, target, bottom=min(lowest, default=None), log_x=False)
        ax.set_xlabel("round $t$")
        ax.set_ylabel(r"mean-square error $E_t$")
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]


def speedup(
    predictions: Mapping[str, Prediction],
    *,
    target: float | None = None,
    labels: Mapping[str, str] | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
    legend: bool = True,
    ax: "Axes | None" = None,
) -> "Figure":
    r"""Draws the predicted floor against the number of similar agents.

    A dot marks the problem's number of agents. A diamond marks the number at which the variance equals the squared
    persistent bias: beyond it, more agents hardly help.

    **Arguments:**

    - `predictions`: the predictions, by name.
    - `target`, `labels`, `figsize`, `width`, `legend`, `ax`: as for `decay`.

    Raises `ValueError` if `predictions` is empty.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> prediction = fedhsa.theory.predict(problem, fedhsa.LocalSA(0.02, local_steps=5))
        >>> speedup({"LocalSA": prediction}).axes[0].get_xscale()
        'log'
    """
    with _panel(predictions, ax, labels, figsize, width, legend) as (ax, palette, shown):
        own = max((p.problem.num_agents for p in predictions.values()), default=1)
        ends = [10 * p.saturation_agents for p in predictions.values() if p.saturation_agents < 1e4 * own]
        agents = np.geomspace(1, max([100 * own, *ends]), GRID)
        sound = {name: p for name, p in predictions.items() if p.stable and not math.isnan(p.floor)}
        values = {name: drawable(np.array([p.floor_at(M) for M in agents])) for name, p in sound.items()}
        widths = graded_widths([(np.log(agents), at_each) for at_each in values.values()])
        for (name, at_each), wide in zip(values.items(), widths, strict=True):
            p = sound[name]
            ax.plot(agents, at_each, color=palette[name], label=shown[name], linewidth=wide)
            _trust(ax, agents, at_each, p, palette[name])
            _mark(ax, p.problem.num_agents, p.floor, palette[name])
            if 1 <= p.saturation_agents <= agents[-1]:
                _mark(ax, p.saturation_agents, p.floor_at(p.saturation_agents), palette[name], "D", "enough")
        _finish(ax, predictions, target)
        ax.set_xlabel("number of agents $M$")
        ax.set_ylabel("floor")
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]


def floors(
    sweeps: Mapping[str, Sequence[Prediction]],
    setting: str = "step_size",
    *,
    current: Mapping[str, Prediction] | None = None,
    target: float | None = None,
    labels: Mapping[str, str] | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
    legend: bool = True,
    ax: "Axes | None" = None,
) -> "Figure":
    r"""Draws the predicted floor against a setting of the algorithms.

    A vertical line marks the largest stable value. A method without the setting is a horizontal line.

    **Arguments:**

    - `sweeps`: for each name, predictions of one algorithm at several values of the setting.
    - `setting`: `"step_size"`, `"local_steps"`, or any other numerical field of the algorithms.
    - `current`: for each name, a prediction to mark with a dot.
    - `target`, `labels`, `figsize`, `width`, `legend`, `ax`: as for `decay`.

    Raises `ValueError` if `sweeps` is empty.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> steps = [fedhsa.FedHSA(step, local_steps=5) for step in (0.01, 0.03, 0.1)]
        >>> figure = floors({"FedHSA": [fedhsa.theory.predict(problem, step) for step in steps]}, "step_size")
        >>> figure.axes[0].lines[0].get_xdata().tolist()
        [0.01, 0.03, 0.1]
    """
    current = current or {}
    with _panel(sweeps, ax, labels, figsize, width, legend) as (ax, palette, shown):
        for name, sweep in sweeps.items():
            sound = [p for p in sweep if p.stable and not math.isnan(p.floor)]
            if not sound:
                continue
            if not hasattr(sound[0].algorithm, setting):
                ax.axhline(sound[0].floor, color=palette[name], label=shown[name])
                continue
            at = np.array([float(getattr(p.algorithm, setting)) for p in sound])
            values = drawable(np.array([p.floor for p in sound]))
            ax.plot(at, values, color=palette[name], label=shown[name], marker=".", ms=3)
            _trust(ax, at, values, sound, palette[name])
            if name in current and current[name].stable:
                _mark(ax, float(getattr(current[name].algorithm, setting)), current[name].floor, palette[name])
        _finish(ax, sweeps, target)
        firsts = {name: sweep[0] for name, sweep in sweeps.items() if sweep} | {**current}
        _last_stable(ax, firsts, setting, palette)
        if ax.get_xscale() == "log":
            plain_ticks(ax)
        ax.set_xlabel(LABELS.get(setting, words(setting.replace("_", " "))))
        ax.set_ylabel("floor")
    return ax.get_figure(root=True)  # pyright: ignore[reportReturnType]


def analysis(
    predictions: Mapping[str, Prediction],
    sweeps: Mapping[str, Mapping[str, Sequence[Prediction]]],
    *,
    target: float | None = None,
    title: str | None = None,
    absent: str = "not computed",
    labels: Mapping[str, str] | None = None,
    figsize: tuple[float, float] | None = None,
    width: float | None = None,
) -> "Figure":
    """Draws four panels: error against rounds, and the floor against agents, local steps and step size.

    **Arguments:**

    - `predictions`: for each name, the prediction at the settings of interest.
    - `sweeps`: for `"local_steps"` and `"step_size"`, the argument of `floors`; a panel without one shows `absent`.
    - `target`, `labels`, `figsize`, `width`: as for `decay`; narrow panels are stacked.
    - `title`: the title of the figure.
    - `absent`: the text in a panel without a sweep.

    Raises `ValueError` if `predictions` is empty.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> prediction = fedhsa.theory.predict(problem, fedhsa.FedHSA(0.02, local_steps=5))
        >>> figure = analysis({"FedHSA": prediction}, {"step_size": {"FedHSA": [prediction]}})
        >>> [axes.get_xlabel() for axes in figure.axes]
        ['round $t$', 'number of agents $M$', 'local steps $H$', 'step size $\\\\eta$']
    """
    if not predictions:
        raise ValueError("`predictions` is empty: there is nothing to draw.")
    with house_style():
        shown = relabelled(predictions, labels)
        figure, grow = new_figure((WIDTH, 2 * HEIGHT), figsize, width)
        across = 2 if figure.get_figwidth() >= 2 * NARROWEST else 1
        if grow:
            figure.set_size_inches(figure.get_figwidth(), max(figure.get_figheight(), 4 // across * LOW))
        first, second, third, fourth = figure.subplots(4 // across, across, squeeze=False).ravel()
        decay(predictions, target=target, labels=shown, legend=False, ax=first)
        speedup(predictions, target=target, labels=shown, legend=False, ax=second)
        for ax, setting in ((third, "local_steps"), (fourth, "step_size")):
            if sweeps.get(setting):
                floors(sweeps[setting], setting, current=predictions, target=target, legend=False, ax=ax)
            else:
                _say(ax, absent)
                ax.set_xlabel(LABELS[setting])
                ax.set_ylabel("floor")
        for ax in figure.axes:
            pale_grid(ax, figure)
        _legend(figure, predictions, shown, title, grow)
    return figure


class _Panel(NamedTuple):
    """The axes, and the colour and label of each name."""

    ax: "Axes"
    palette: dict[str, str]
    shown: dict[str, str]


@contextlib.contextmanager
def _panel(
    names: Mapping[str, Any],
    ax: "Axes | None",
    labels: Mapping[str, str] | None,
    figsize: tuple[float, float] | None,
    width: float | None,
    legend: bool,
) -> Iterator[_Panel]:
    """Yields the given axes or those of a new figure, and adds a legend afterwards if requested."""
    if not names:
        raise ValueError("The first argument is empty: there is no prediction to draw.")
    with house_style(ax):
        own, grow = (None, False) if ax is not None else new_figure((3.5, 2.4), figsize, width)
        if ax is None:
            assert own is not None
            ax = own.add_subplot()
        yield _Panel(ax, session_colours(names), relabelled(names, labels))
        handles, texts = ax.get_legend_handles_labels()
        if handles:
            pale_grid(ax, own)
        if legend and handles:
            known = _meanings([ax])
            handles += [handle for _, handle in known]
            texts += [text for text, _ in known]
            if own is not None:
                legend_above(own, handles, texts, None, grow=grow)
            else:
                legend_inside(ax, handles, texts, None)
        if own is None and legend:
            arrange(ax)


def _settled(prediction: Prediction) -> int:
    """Returns slightly more than the number of rounds until the error reaches its floor."""
    start = float(prediction.error(0)[0])
    bias = prediction.heterogeneity_bias
    floor = float(bias @ bias) if math.isnan(prediction.floor) else prediction.floor
    level = max(1.05 * floor, start * 10.0**-DECADES)
    return math.ceil(1.3 * prediction.reach(level).rounds) if level < start else 10


def _finish(
    ax: "Axes", names: Mapping[str, Any], target: float | None, *, bottom: float | None = None, log_x: bool = True
) -> None:
    """Sets logarithmic axes and draws the target."""
    if target is not None:
        ax.axhline(target, color=ink(0.6), linestyle="solid", label="_target", **THIN)
    if not ax.get_legend_handles_labels()[0]:
        unknown = any(isinstance(p, Prediction) and p.basis == "mean" for p in names.values())
        _say(ax, "the floor is not known" if unknown else "every method diverges here")
        return
    values = np.concatenate([np.atleast_1d(np.asarray(line.get_ydata(), dtype=float)) for line in ax.lines])
    if not (drawable(values) > 0).any():
        _say(ax, "no floor: the error goes to 0")
        return
    ax.set_yscale("log", nonpositive="mask")
    if log_x:
        ax.set_xscale("log")
    if bottom:
        ax.set_ylim(bottom=bottom)
    _ticks(ax)


def _ticks(ax: "Axes") -> None:
    """Shows at least one decade, so that small differences look small, and at least two tick labels."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    low, high = ax.get_ylim()
    if high < 10 * low:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(10), middle * math.sqrt(10)
        ax.set_ylim(low, high)
    if high < 100 * low:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _mark(ax: "Axes", x: float, y: float, colour: str, marker: str = "o", meaning: str = "here") -> None:
    if y > 0:
        edge: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.6}
        ax.plot([x], [y], marker=marker, color=colour, markersize=4.5, label=f"_{meaning}", **edge)


def _trust(ax: "Axes", at: Any, values: np.ndarray, of: Prediction | Sequence[Prediction], colour: str) -> None:
    """Draws a band for the estimated error of predictions, hatched if it is large."""
    left_out = np.array([p.left_out for p in (of if isinstance(of, Sequence) else [of])])
    off = np.broadcast_to(np.nan_to_num(left_out), values.shape)
    if off.max(initial=0.0) >= VISIBLE:
        hatch = "////" if off.max() > MUCH else None
        ax.fill_between(
            at,
            values / (1 + off),
            values * (1 + off),
            alpha=0.25,
            color=colour,
            hatch=hatch,
            linewidth=0,
            zorder=1,
            label="_off",
        )


def _last_stable(ax: "Axes", predictions: Mapping[str, Prediction], setting: str, palette: Mapping[str, str]) -> None:
    """Draws a vertical line at the largest stable value if it is inside the axes, another one if it is of the mean."""
    right = ax.get_xlim()[1]
    for name, p in predictions.items():
        last = {"step_size": p.max_step_size, "local_steps": p.max_local_steps}.get(setting)
        if last is not None and 0 < last <= 3 * right:
            style, label = (DOTS, "_last mean") if last.kind == "mean" else (DASHES, "_last")
            ax.axvline(last, color=palette.get(name, ink(0.6)), linestyle=style, label=label, **THIN)


def _say(ax: "Axes", words: str) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    ax.text(0.5, 0.5, words, ha="center", va="center", transform=ax.transAxes, color=ink(0.7), wrap=True)


def _meanings(axes: Sequence["Axes"]) -> list[tuple[str, Any]]:
    """Returns the legend entries of the line styles and markers in these axes, independent of colour.

    Each artist's label is its meaning after an underscore, which keeps it out of ordinary legends.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    grey: dict[str, Any] = {"color": ink(0.8), "linewidth": 0.8}
    dot: dict[str, Any] = {"color": ink(0.8), "linestyle": "none", "markersize": 4}
    seen = {artist.get_label() for ax in axes for artist in (*ax.lines, *ax.collections)}
    known = {
        "floor": ("floor", Line2D([], [], linestyle=DASHES, **grey)),
        "bias": ("part of the floor from bias", Line2D([], [], linestyle=DOTS, **grey)),
        "noise": ("part of the floor from noise", Line2D([], [], linestyle=DASH_DOTS, **grey)),
        "last": ("largest stable value", Line2D([], [], linestyle="none", marker="|", markersize=9, **grey)),
        "last mean": ("largest value at which the mean is stable", Line2D([], [], marker=r"$\vdots$", **dot)),
        "here": ("these settings", Line2D([], [], marker="o", **dot)),
        "enough": ("agents beyond which more do not help", Line2D([], [], marker="D", **dot)),
        "off": ("size of what the law leaves out", Patch(color=ink(0.8), alpha=0.25, linewidth=0)),
        "target": ("target", Line2D([], [], color=ink(0.6), linewidth=0.8)),
    }
    return [entry for name, entry in known.items() if f"_{name}" in seen]


def _legend(
    figure: "Figure",
    predictions: Mapping[str, Prediction],
    shown: Mapping[str, str],
    title: str | None,
    grow: bool,
) -> None:
    """Adds one legend above all panels: the methods, then line styles and markers."""
    from matplotlib.lines import Line2D

    palette = session_colours(predictions)
    verdict = {True: "", False: " (diverges)", None: " (stability unknown)"}
    methods = [
        (shown[name] + verdict[p.stable], Line2D([], [], color=palette[name])) for name, p in predictions.items()
    ]
    labels, handles = zip(*methods, *_meanings(figure.axes), strict=True)
    legend_above(figure, handles, labels, title, grow=grow, columns=4, first=len(methods))

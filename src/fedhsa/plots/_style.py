"""What all figures have in common: colours, sizes, legends, and how they are written.

The style here is a default. What a session has changed in Matplotlib's `rcParams` (or a user in `matplotlibrc`) wins.
"""

import contextlib
import io
import itertools
import math
import os
import pathlib
import re
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import _check, _files
from .._table import escape_latex

if TYPE_CHECKING:  # matplotlib takes most of a second to import: only those who plot should wait for it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: dict[str, str] = {
    "FedHSA": "#0072B2",
    "LocalSA": "#D55E00",
    "SynchronisedSA": "#009E73",
    "SA": "#CC79A7",
    "SCAFFLSA": "#8424FC",
    "SCAFFOLD": "#606C3C",
    "OneShotAveraging": "#F00C54",
    "FedLin": "#546C78",
    "OneExchangeFedHSA": "#E400C0",
    "Scaffnew": "#9078FC",
    "DisSACC": "#549C24",
    "LocalSVRG": "#E46C78",
}
"""The colours of methods, the same in every figure. Put a name of your own here, and it has its colour everywhere.

The first four are Okabe and Ito's; the others were chosen so that all twelve stay apart for the colour-blind. Each has
a contrast of at least 3:1 on white paper and on a dark page.
"""

PALETTE = tuple(COLOURS.values())
FALLBACK = (*PALETTE[4:], *PALETTE[3::-1])
"""The colours of other names, which begin at a place that the name decides: those of the four best known come last."""

POINTS = 1000
"""How many points a curve is drawn with; more cannot be seen, and would make the PDF heavy."""
FEWEST = 5
"""Below so many seeds an interval says more about luck than about the method, and no band is drawn."""

DASHES = (0, (3, 2))

SIZES: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "legend.title_fontsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
"""Points: what is 8 here is 8 in a paper that includes the figure one column wide."""
STYLE: dict[Any, Any] = SIZES | {
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "axes.axisbelow": True,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "pdf.fonttype": 42,  # text stays text, as journals ask for
    "ps.fonttype": 42,
}
"""The style of the house, as far as the session has none of its own."""

DPI = 200
FORMATS = (".png", ".pdf", ".svg", ".eps")


def changed(name: str) -> bool:
    """Whether the session, a style sheet or the user's `matplotlibrc` has another value than Matplotlib itself."""
    import matplotlib

    now, own = cast(Any, matplotlib.rcParams), cast(Any, matplotlib.rcParamsDefault)
    return now[name] != own[name]


@contextlib.contextmanager
def house_style(ax: "Axes | None" = None, more: Mapping[Any, Any] | None = None) -> Iterator[None]:
    """The style of the house within the block, where the session has not chosen otherwise; none in given axes.

    Matplotlib's own sizes are parts of `font.size`: who changes that one gets all the others in proportion.
    """
    import matplotlib

    own = STYLE if not changed("font.size") else {name: value for name, value in STYLE.items() if name not in SIZES}
    kept = {} if ax is not None else {name: value for name, value in own.items() if not changed(name)}
    with matplotlib.rc_context({**kept, **(more or {})}):
        yield


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Applies the style of these figures to whatever is drawn within the block.

    A setting that the session, a style sheet or a `matplotlibrc` has changed is left as it is.

    !!! example
        >>> import matplotlib.pyplot as plt
        >>> with style():
        ...     figure, axes = plt.subplots(1, 2, figsize=(7, 2.5), layout="constrained")
        >>> bool(axes[0].spines["top"].get_visible())
        False
    """
    with house_style():
        yield


def new_figure(
    default: tuple[float, float], figsize: tuple[float, float] | None = None, width: float | None = None
) -> tuple["Figure", bool]:
    """A figure, and whether its height is open, so that a legend may add to it.

    The size is the one that was asked for, that of the session, or the default, which is scaled to the width asked for.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if figsize is not None and width is not None:
        raise ValueError(f"Give `figsize` or `width`, not both; got {figsize} and {width}.")
    if width is not None:
        _check.number("width", width, above=0.0)
        size, is_open = (width, default[1] * min(max(width / default[0], 0.8), 1.5)), True
    elif figsize is not None:
        if not (np.shape(figsize) == (2,) and all(np.isfinite(side) and side > 0 for side in figsize)):
            raise ValueError(f"`figsize` must be a width and a height in inches, like (3.5, 2.6), got {figsize!r}.")
        size, is_open = figsize, False
    elif changed("figure.figsize"):
        size, is_open = matplotlib.rcParams["figure.figsize"], False
    else:
        size, is_open = default, True
    return Figure(figsize=(size[0], size[1]), layout="constrained"), is_open


def save(figure: "Figure", path: str | os.PathLike[str], suffixes: Sequence[str] | None = None) -> list[pathlib.Path]:
    """Writes the figure, each file whole or not at all; gives their paths.

    A name that ends in `.png`, `.pdf`, `.svg` or `.eps` is one file of that format; without such an ending, or with
    `suffixes`, the endings are added. A PNG has 200 dots per inch unless the session's `savefig.dpi` says otherwise.
    EPS knows no transparency, so bands get the pale colour that they have on paper.

    **Arguments:**

    - `path`: the name, with or without an ending.
    - `suffixes`: the formats, `".eps"` or `"eps"`. Default: that of the name, or PNG and PDF.

    !!! example
        >>> import pathlib, tempfile
        >>> from matplotlib.figure import Figure
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> [path.name for path in save(Figure((1, 1)), folder / "empty")]
        ['empty.png', 'empty.pdf']
        >>> [path.name for path in save(Figure((1, 1)), folder / "empty.eps")]
        ['empty.eps']
    """
    import matplotlib

    paths = _paths(os.fspath(path), suffixes)
    # Without dates and with fixed identifiers, the same figure gives the same bytes.
    metadata: dict[str, Any] = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with house_style(more={"svg.hashsalt": "fedhsa"}):
        dpi = matplotlib.rcParams["savefig.dpi"] if changed("savefig.dpi") else DPI
        engine = figure.get_layout_engine()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is the same in every format: once is enough
        try:
            for file_path, suffix in paths.items():
                with _files.atomic(file_path) as file:
                    if suffix == ".eps":
                        file.write(_eps(figure, dpi))
                    else:
                        figure.savefig(file, format=suffix[1:], dpi=dpi, metadata=metadata[suffix])
        finally:
            figure.set_layout_engine(engine)
    return [pathlib.Path(file_path) for file_path in paths]


def _paths(path: str, suffixes: Sequence[str] | None) -> dict[str, str]:
    """The files to write and their formats."""
    stem, ending = os.path.splitext(path)
    known = ending.lower() in FORMATS
    if suffixes is None:
        return {path: ending.lower()} if known else {path + suffix: suffix for suffix in FORMATS[:2]}
    wanted = [
        f".{suffix.lower().removeprefix('.')}" for suffix in ([suffixes] if isinstance(suffixes, str) else suffixes)
    ]
    for suffix in wanted:
        if suffix not in FORMATS:
            raise ValueError(f"`suffixes` must be of {', '.join(FORMATS)}, got {suffix!r}.")
    own = {path: ending.lower()} if known else {}
    return own | {(stem if known else path) + suffix: suffix for suffix in wanted if suffix not in own.values()}


def _eps(figure: "Figure", dpi: Any) -> bytes:
    """The figure as EPS, without the date, with pale colours where it is transparent."""
    from matplotlib.collections import Collection
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    paper, restore = figure.get_facecolor(), []
    artists: list[Any] = [one for one in figure.findobj() if isinstance(one, Collection | Patch | Line2D)]
    for artist in artists:
        if (alpha := artist.get_alpha()) not in (None, 1.0):
            parts = ("color",) if isinstance(artist, Line2D) else ("facecolor", "edgecolor")
            before = {part: getattr(artist, f"get_{part}")() for part in parts}
            restore.append((artist, {**before, "alpha": alpha}))
            seen = {part: _on_paper(to_rgba(c, alpha) if part == "color" else c, paper) for part, c in before.items()}
            artist.set(alpha=None, **seen)
    written = io.BytesIO()
    try:
        figure.savefig(written, format="eps", dpi=dpi)
    finally:
        for artist, before in restore:
            artist.set(**before)
    return re.sub(rb"%%CreationDate:[^\n]*\n", b"", written.getvalue(), count=1)


def _on_paper(colours: Any, paper: Any) -> np.ndarray:
    """Opaque colours that look like transparent ones on this paper."""
    rgba = np.atleast_2d(np.asarray(colours, dtype=float))
    share, below = rgba[:, 3:], np.asarray(paper, dtype=float)[:3]
    mixed = np.hstack([share * rgba[:, :3] + (1 - share) * below, np.where(share > 0, 1.0, 0.0)])
    return mixed if np.ndim(colours) == 2 else mixed[0]


def rehearse() -> None:
    """Draws a formula to nowhere: what the first figure of a process has to load and set up is there afterwards.

    That takes a second, which a command has while its programs compile. Not while another thread draws.

    !!! example
        >>> rehearse()
    """
    from matplotlib.figure import Figure

    figure = Figure((1, 1))
    figure.text(0.5, 0.5, r"a $\theta$")
    for suffix in (".png", ".pdf"):
        figure.savefig(io.BytesIO(), format=suffix[1:])


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name: its own, that of its method, or one that the name decides and nobody else has.

    The order of the names does not matter, nor does the process: a name has the same colour in every figure, unless
    two names of one figure would have the same.
    """
    names = list(names)
    found = {name: COLOURS[key] for name in names if (key := _plain(name)) in COLOURS}
    for name in names:
        own = COLOURS.get(_plain(name).partition("(")[0])  # FedHSA(local_steps=50), where it is the only FedHSA
        if name not in found and own is not None and own not in found.values():
            found[name] = own
    for name in sorted(set(names) - set(found)):
        used = [*found.values()]
        at = zlib.crc32(_plain(name).encode()) % (len(FALLBACK) - 4)
        free = (*FALLBACK[at:-4], *FALLBACK[:at], *FALLBACK[-4:])
        found[name] = min(free, key=used.count)  # the first of those that are used least
    return {name: found[name] for name in names}


def session_colours(names: Iterable[str]) -> dict[str, str]:
    """The same, in the colours of the session's `axes.prop_cycle` where that was changed."""
    theirs = dict(zip(PALETTE, _cycle(), strict=False))
    return {name: theirs.get(colour, colour) for name, colour in colours(names).items()}


def colours_in_order(names: Iterable[str]) -> dict[str, str]:
    """Colours for what is no method, such as values of a setting: the first ones are furthest apart."""
    return dict(zip(names, itertools.cycle(_cycle() or FALLBACK), strict=False))


def _cycle() -> list[str]:
    """The colours of the session, where it has chosen any."""
    import matplotlib

    if not changed("axes.prop_cycle"):
        return []
    found = list(dict.fromkeys(matplotlib.rcParams["axes.prop_cycle"].by_key().get("color", ())))
    return found if len(found) > 1 else []


def _plain(name: str) -> str:
    """The name as code spells it: Local SA is LocalSA."""
    return "".join(str(name).split())


def relabelled(names: Iterable[str], labels: Mapping[str, str] | None) -> dict[str, str]:
    """What the figure calls each name; raises if a label is for a name that is not there."""
    names, labels = list(names), dict(labels or {})
    for name in labels:
        if name not in names:
            raise ValueError(f"`labels` names {name!r}, which is not in the figure: {', '.join(names)}.")
    return {name: words(labels.get(name, name)) for name in names}


def words(text: str) -> str:
    """A text as the session typesets it: with `text.usetex`, signs that mean something to TeX are escaped."""
    import matplotlib

    return escape_latex(text) if matplotlib.rcParams["text.usetex"] else text


def ink(share: float) -> tuple[float, float, float]:
    """A colour between paper, 0, and that of the session's text, 1."""
    import matplotlib

    return mixed(matplotlib.rcParams["axes.facecolor"], matplotlib.rcParams["text.color"], share)


def darker(colour: Any) -> tuple[float, float, float]:
    """The same colour closer to that of the session's text, which is black unless it was changed."""
    import matplotlib

    return mixed(colour, matplotlib.rcParams["text.color"], 0.45)


def mixed(first: Any, second: Any, share: float) -> tuple[float, float, float]:
    """A colour between two, by the share of the second."""
    from matplotlib.colors import to_rgb

    red, green, blue = ((1 - share) * a + share * b for a, b in zip(to_rgb(first), to_rgb(second), strict=True))
    return red, green, blue


def drawable(curve: np.ndarray) -> np.ndarray:
    """NaN where a logarithmic axis has no place."""
    return np.where(np.isfinite(curve) & (curve > 0), curve, np.nan)


def thinned(length: int) -> np.ndarray:
    """Which of the records to draw: all, or `POINTS` of them evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))


OVER, LONG, GROWTH, WIDEST = 0.015, 0.5, 0.8, 3
"""Curves lie over one another where they differ by less than this part of the axis, for this part of the way; each one
that covers a curve widens it by this part of a line, at most so often."""


def graded_widths(curves: Sequence[tuple[np.ndarray, np.ndarray]], *, linear: bool = False) -> list[float]:
    """A width for each line, in the order in which they are drawn: one that later lines cover is wider than these."""
    import matplotlib

    line = matplotlib.rcParams["lines.linewidth"]
    scaled = [(np.asarray(x, float), y if linear else np.log10(drawable(np.asarray(y, float)))) for x, y in curves]
    values = np.concatenate([y[np.isfinite(y)] for _, y in scaled]) if scaled else np.zeros(0)
    near = OVER * max(float(np.ptp(values)), 1e-12) if len(values) else 0.0
    covered = [sum(_covers(a, b, near) for b in scaled[i + 1 :]) for i, a in enumerate(scaled)]
    return [line * (1 + GROWTH * min(count, WIDEST)) for count in covered]


def _covers(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], near: float) -> bool:
    """Whether two curves are the same for a good part of where both are."""
    (x, y), (u, v) = ((p[0][np.isfinite(p[1])], p[1][np.isfinite(p[1])]) for p in (a, b))
    if not (len(x) and len(u)):
        return False
    low, high = max(x[0], u[0]), min(x[-1], u[-1])
    if high < low:
        return False
    at = np.linspace(low, high, 64)
    return bool((np.abs(np.interp(at, x, y) - np.interp(at, u, v)) <= near).mean() > LONG)


def seeds_entry(seeds: Iterable[int]) -> tuple[Any, str]:
    """What the legend says about curves and intervals: over how many seeds they are, or that there are too few."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    counts = sorted(set(seeds))
    many = "/".join(map(str, counts))
    if counts[-1] < FEWEST:
        few = "1 seed: no interval" if counts[-1] == 1 else f"mean of {many} seeds: too few for an interval"
        return Line2D([], [], linestyle="none"), words(few)
    fewer = "" if counts[0] >= FEWEST else f" from {FEWEST} seeds on"
    shade = Patch(color=ink(0.5), alpha=0.3, linewidth=0), Line2D([], [], color=ink(0.5))
    return shade, words(f"mean of {many} seeds, 95 % interval{fewer}")


def band(ax: "Axes", x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: Any, seeds: int) -> None:
    """The interval around a curve, where there are seeds enough for one."""
    if seeds >= FEWEST and np.isfinite(low).any():
        ax.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)


def pale_grid(ax: "Axes", own: "Figure | None") -> None:
    """Pale lines that lead from the values to the curves; the user's axes and sessions have their own or none."""
    import matplotlib

    if own is not None and not matplotlib.rcParams["axes.grid"]:
        ax.grid(axis="y", color=ink(0.1))


def whole_numbers(ax: "Axes") -> None:
    """Ticks of a linear axis at whole numbers only: there is no half round."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10], min_n_ticks=2))


MOST_COLUMNS = 6


def legend_above(
    figure: "Figure",
    handles: Sequence[Any],
    labels: Sequence[str],
    title: str | None,
    *,
    grow: bool,
    columns: int = 2,
    first: int = 0,
) -> None:
    """A legend above all panels, in as many columns as fit; where the height is open, the figure grows by as much.

    The title is the legend's, so that the two never collide. The `first` entries have a column to themselves.
    """
    from matplotlib.lines import Line2D

    title = None if title is None else _in_lines(figure, words(title))
    style: dict[str, Any] = {"title": title, "frameon": False, "columnspacing": 1.2, "handlelength": 1.8}
    blank, extent = Line2D([], [], linestyle="none"), figure.bbox
    for count in range(min(columns, len(labels)), 0, -1):
        more = max(first, -(-(len(labels) - first) // max(count - 1, 1))) - first if first and count > 1 else 0
        shown = [*handles[:first], *[blank] * more, *handles[first:]], [*labels[:first], *[""] * more, *labels[first:]]
        legend = figure.legend(
            *shown, loc="outside upper center", ncols=count, borderpad=0.1, borderaxespad=0.1, **style
        )
        legend.get_title().set_multialignment("center")
        extent = legend.get_window_extent()
        if extent.width <= 0.97 * figure.bbox.width or count == 1:
            break
        legend.remove()
    if grow:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + extent.height / figure.dpi)


def _in_lines(figure: "Figure", title: str) -> str:
    """The title, broken after commas and colons where it is wider than the figure."""
    import matplotlib

    text = figure.text(0, 0, "", fontsize=matplotlib.rcParams["legend.title_fontsize"])
    lines = [""]
    for part in re.split(r"(?<=[,:;]) ", title):
        text.set_text(longer := f"{lines[-1]} {part}".strip())
        fits = text.get_window_extent().width <= 0.95 * figure.bbox.width
        lines = [*lines[:-1], longer] if fits or not lines[-1] else [*lines, part]
    text.remove()
    return "\n".join(lines)


def legend_inside(
    ax: "Axes", handles: Sequence[Any], labels: Sequence[str], title: str | None, *, above: bool = False
) -> None:
    """A small legend in an upper corner of one panel of several, over the curves; or above the panel, in two columns.

    The axis is made higher where the legend would hide a curve.
    """
    import matplotlib
    from matplotlib.font_manager import FontProperties

    title = None if title is None else words(title)
    if above:
        style: dict[str, Any] = {"ncols": 2, "frameon": False, "columnspacing": 1.2, "borderaxespad": 0.3}
        ax.legend(handles, labels, title=title, loc="lower center", bbox_to_anchor=(0.5, 1.0), **style)
        return
    arrange(ax)  # before anything is measured
    size = 0.8 * FontProperties(size=matplotlib.rcParams["legend.fontsize"]).get_size_in_points()
    small: dict[str, Any] = {"fontsize": size, "title_fontsize": size, "handlelength": 1.6, "labelspacing": 0.2}
    small |= {"frameon": False, "borderpad": 0.1, "borderaxespad": 0.3}
    corners = {}
    for corner in ("upper right", "upper left"):
        legend = ax.legend(handles, labels, title=title, loc=corner, **small)
        corners[corner] = _room(ax, legend.get_window_extent())
    best = min(corners, key=lambda corner: corners[corner])
    ax.legend(handles, labels, title=title, loc=best, **small)
    if corners[best] > 1:
        scale, (low, high) = ax.yaxis.get_transform(), ax.get_ylim()
        start, end = scale.transform([low, high])
        ax.set_ylim(top=float(scale.inverted().transform([start + corners[best] * (end - start)])[0]))


HIGHEST = 2.0
"""By how much an axis may be made higher for a legend."""


def _room(ax: "Axes", legend: Any) -> float:
    """By which factor the axis must be higher so that what is below a legend's place ends below it."""
    from matplotlib.collections import PolyCollection

    frame, top = ax.get_window_extent(), 0.0
    shapes: list[tuple[Any, Any]] = [(line.get_path(), line.get_transform()) for line in ax.lines]
    shapes += [
        (path, band.get_transform())
        for band in ax.collections
        if isinstance(band, PolyCollection)
        for path in band.get_paths()
    ]
    for path, transform in shapes:
        if len(path.vertices):
            points = transform.transform_path(path).interpolated(16).vertices
            under = points[np.isfinite(points).all(1) & (points[:, 0] >= legend.x0) & (points[:, 0] <= legend.x1)]
            top = max(top, *(under[:, 1] - frame.y0), 0.0) if len(under) else top
    bottom = max(legend.y0 - frame.y0 - 0.03 * frame.height, 1e-3 * frame.height)
    return min(min(top, frame.height) / bottom, HIGHEST)


def few_ticks(ax: "Axes") -> None:
    """Powers of ten on a logarithmic axis, and three times these where there are fewer than two."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    low, high = ax.get_xlim()
    powers = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if powers > 1 else (1.0, 3.0)))
    ax.xaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
    ax.xaxis.set_minor_formatter(NullFormatter())


def plain_ticks(ax: "Axes") -> None:
    """Numbers of a logarithmic axis as one writes them; between decades only where there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


_ARRANGED: "weakref.WeakKeyDictionary[Any, list[float]]" = weakref.WeakKeyDictionary()
"""The figures of users that `arrange` has made room in, and where it put their panels."""


def arrange(ax: "Axes") -> None:
    """Makes room for the labels in a figure of the user's that has no layout and was not arranged by hand."""
    import matplotlib
    from matplotlib.layout_engine import PlaceHolderLayoutEngine

    figure: Any = ax.get_figure(root=True)
    if not isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine | None):
        return
    names = ("left", "right", "bottom", "top", "wspace", "hspace")
    now = [getattr(figure.subplotpars, name) for name in names]
    ours = _ARRANGED.get(figure) == now
    usual = cast(Any, matplotlib.rcParams)
    untouched = now == [usual[f"figure.subplot.{name}"] for name in names]
    regular = not figure.subfigs and all(one.get_subplotspec() is not None for one in figure.axes)
    if regular and (ours or untouched):
        figure.tight_layout()
        _ARRANGED[figure] = [getattr(figure.subplotpars, name) for name in names]

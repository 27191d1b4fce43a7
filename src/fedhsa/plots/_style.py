"""The common style of all figures: colours, sizes, legends, and files.

The style is a default. Settings that a session has changed in Matplotlib's `rcParams`, or a user in `matplotlibrc`,
take precedence.
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

if TYPE_CHECKING:  # Matplotlib takes most of a second to import, so it is imported only for drawing
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
"""The colours of methods, which are the same in every figure. Add your own names to give them fixed colours.

The first four are Okabe and Ito's; the others were chosen so that colour-blind readers can distinguish all twelve. Each
has a contrast of at least 3:1 on a white and on a dark page.
"""

PALETTE = tuple(COLOURS.values())
FALLBACK = (*PALETTE[4:], *PALETTE[3::-1])
"""The colours of other names, from a position that the name determines; those of the first four methods are last."""

POINTS = 1000
"""The number of points of a curve; more would not be visible and would enlarge the PDF."""
FEWEST = 5
"""The smallest number of seeds for which an interval is drawn; with fewer seeds it is not reliable."""

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
"""Font sizes in points, for a figure that is one column wide in a paper."""
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
    "pdf.fonttype": 42,  # text remains text, as journals require
    "ps.fonttype": 42,
}
"""The style of figures, for settings that the session has not changed."""

DPI = 200
FORMATS = (".png", ".pdf", ".svg", ".eps")


def changed(name: str) -> bool:
    """Returns whether the session, a style sheet or the user's `matplotlibrc` has changed Matplotlib's default."""
    import matplotlib

    now, own = cast(Any, matplotlib.rcParams), cast(Any, matplotlib.rcParamsDefault)
    return now[name] != own[name]


@contextlib.contextmanager
def house_style(ax: "Axes | None" = None, more: Mapping[Any, Any] | None = None) -> Iterator[None]:
    """Applies the style within the block, except settings that the session has changed; has no effect on given axes.

    Matplotlib's sizes are relative to `font.size`, so changing that setting scales all of them.
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
    """Returns a figure, and whether its height is free, so that a legend may increase it.

    The size is the requested one, that of the session, or the default scaled to the requested width.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if figsize is not None and width is not None:
        raise ValueError(f"Pass `figsize` or `width`, not both; got {figsize} and {width}.")
    if width is not None:
        _check.number("width", width, above=0.0)
        size, is_open = (width, default[1] * min(max(width / default[0], 0.8), 1.5)), True
    elif figsize is not None:
        if not (np.shape(figsize) == (2,) and all(np.isfinite(side) and side > 0 for side in figsize)):
            raise ValueError(f"`figsize` must be a width and a height in inches, such as (3.5, 2.6), got {figsize!r}.")
        size, is_open = figsize, False
    elif changed("figure.figsize"):
        size, is_open = matplotlib.rcParams["figure.figsize"], False
    else:
        size, is_open = default, True
    return Figure(figsize=(size[0], size[1]), layout="constrained"), is_open


def save(figure: "Figure", path: str | os.PathLike[str], suffixes: Sequence[str] | None = None) -> list[pathlib.Path]:
    """Writes the figure to one or more files, each atomically, and returns their paths.

    A name that ends in `.png`, `.pdf`, `.svg` or `.eps` is one file of that format. Without such an ending, or with
    `suffixes`, the endings are added. A PNG has 200 dots per inch unless the session has changed `savefig.dpi`. EPS has
    no transparency, so bands have the pale colour that they have on paper.

    **Arguments:**

    - `figure`: the figure.
    - `path`: the name, with or without an ending.
    - `suffixes`: the formats, such as `".eps"` or `"eps"`. Default: that of the name, or PNG and PDF.

    Raises `ValueError` if a format is not supported.

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
    # Without dates and with fixed identifiers, equal figures give equal bytes.
    metadata: dict[str, Any] = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with house_style(more={"svg.hashsalt": "fedhsa"}):
        dpi = matplotlib.rcParams["savefig.dpi"] if changed("savefig.dpi") else DPI
        engine = figure.get_layout_engine()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is the same in every format
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
    """Returns the files to write and their formats."""
    stem, ending = os.path.splitext(path)
    known = ending.lower() in FORMATS
    if suffixes is None:
        return {path: ending.lower()} if known else {path + suffix: suffix for suffix in FORMATS[:2]}
    wanted = [
        f".{suffix.lower().removeprefix('.')}" for suffix in ([suffixes] if isinstance(suffixes, str) else suffixes)
    ]
    for suffix in wanted:
        if suffix not in FORMATS:
            raise ValueError(f"`suffixes` must be among {', '.join(FORMATS)}, got {suffix!r}.")
    own = {path: ending.lower()} if known else {}
    return own | {(stem if known else path) + suffix: suffix for suffix in wanted if suffix not in own.values()}


def _eps(figure: "Figure", dpi: Any) -> bytes:
    """Returns the figure as EPS, without the date, with pale colours instead of transparency."""
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
    """Returns opaque colours that look like transparent ones on this paper."""
    rgba = np.atleast_2d(np.asarray(colours, dtype=float))
    share, below = rgba[:, 3:], np.asarray(paper, dtype=float)[:3]
    mixed = np.hstack([share * rgba[:, :3] + (1 - share) * below, np.where(share > 0, 1.0, 0.0)])
    return mixed if np.ndim(colours) == 2 else mixed[0]


def rehearse() -> None:
    """Draws a formula and discards it, so that the first figure of a process does not have to load Matplotlib.

    This takes a second, which a command can spend while its programs compile. No other thread may draw meanwhile.

    !!! example
        >>> rehearse()
    """
    from matplotlib.figure import Figure

    figure = Figure((1, 1))
    figure.text(0.5, 0.5, r"a $\theta$")
    for suffix in (".png", ".pdf"):
        figure.savefig(io.BytesIO(), format=suffix[1:])


def colours(names: Iterable[str]) -> dict[str, str]:
    """Returns a colour for each name: its own, that of its method, or a unique one that the name determines.

    The colours do not depend on the order of names or on the process: a name has the same colour in every figure,
    unless two names of one figure would have the same colour.
    """
    names = list(names)
    found = {name: COLOURS[key] for name in names if (key := _plain(name)) in COLOURS}
    for name in names:
        own = COLOURS.get(_plain(name).partition("(")[0])  # for FedHSA(local_steps=50), if it is the only FedHSA
        if name not in found and own is not None and own not in found.values():
            found[name] = own
    for name in sorted(set(names) - set(found)):
        used = [*found.values()]
        at = zlib.crc32(_plain(name).encode()) % (len(FALLBACK) - 4)
        free = (*FALLBACK[at:-4], *FALLBACK[:at], *FALLBACK[-4:])
        found[name] = min(free, key=used.count)  # the first of the least used colours
    return {name: found[name] for name in names}


def session_colours(names: Iterable[str]) -> dict[str, str]:
    """Returns a colour for each name, from the session's `axes.prop_cycle` if it was changed."""
    theirs = dict(zip(PALETTE, _cycle(), strict=False))
    return {name: theirs.get(colour, colour) for name, colour in colours(names).items()}


def colours_in_order(names: Iterable[str]) -> dict[str, str]:
    """Returns colours for names that are not methods, such as values of a setting; the first differ most."""
    return dict(zip(names, itertools.cycle(_cycle() or FALLBACK), strict=False))


def _cycle() -> list[str]:
    """Returns the colours of the session, if it has changed them."""
    import matplotlib

    if not changed("axes.prop_cycle"):
        return []
    found = list(dict.fromkeys(matplotlib.rcParams["axes.prop_cycle"].by_key().get("color", ())))
    return found if len(found) > 1 else []


def _plain(name: str) -> str:
    """Returns the name as in code: Local SA is LocalSA."""
    return "".join(str(name).split())


def relabelled(names: Iterable[str], labels: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the label of each name; raises if a label is for a name that is not in the figure."""
    names, labels = list(names), dict(labels or {})
    for name in labels:
        if name not in names:
            raise ValueError(f"`labels` names {name!r}, which is not in the figure: {', '.join(names)}.")
    return {name: words(labels.get(name, name)) for name in names}


def words(text: str) -> str:
    """Returns a text as the session typesets it: with `text.usetex`, special characters of TeX are escaped."""
    import matplotlib

    return escape_latex(text) if matplotlib.rcParams["text.usetex"] else text


def ink(share: float) -> tuple[float, float, float]:
    """Returns a colour between that of the paper, 0, and that of the session's text, 1."""
    import matplotlib

    return mixed(matplotlib.rcParams["axes.facecolor"], matplotlib.rcParams["text.color"], share)


def darker(colour: Any) -> tuple[float, float, float]:
    """Returns the colour shifted towards that of the session's text, which is black unless it was changed."""
    import matplotlib

    return mixed(colour, matplotlib.rcParams["text.color"], 0.45)


def mixed(first: Any, second: Any, share: float) -> tuple[float, float, float]:
    """Returns a mixture of two colours, with the given share of the second."""
    from matplotlib.colors import to_rgb

    red, green, blue = ((1 - share) * a + share * b for a, b in zip(to_rgb(first), to_rgb(second), strict=True))
    return red, green, blue


def drawable(curve: np.ndarray) -> np.ndarray:
    """Replaces values that a logarithmic axis cannot show by NaN."""
    return np.where(np.isfinite(curve) & (curve > 0), curve, np.nan)


def thinned(length: int) -> np.ndarray:
    """Returns the records to draw: all, or `POINTS` of them evenly spaced, including the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))


OVER, LONG, GROWTH, WIDEST = 0.015, 0.5, 0.8, 3
"""A curve covers another if they differ by less than this fraction of the axis, over this fraction of their common
range; each covering curve widens the covered one by this fraction of a line, up to this number of times."""


def graded_widths(curves: Sequence[tuple[np.ndarray, np.ndarray]], *, linear: bool = False) -> list[float]:
    """Returns a width for each line in drawing order: a line that later lines cover is wider than these."""
    import matplotlib

    line = matplotlib.rcParams["lines.linewidth"]
    scaled = [(np.asarray(x, float), y if linear else np.log10(drawable(np.asarray(y, float)))) for x, y in curves]
    values = np.concatenate([y[np.isfinite(y)] for _, y in scaled]) if scaled else np.zeros(0)
    near = OVER * max(float(np.ptp(values)), 1e-12) if len(values) else 0.0
    covered = [sum(_covers(a, b, near) for b in scaled[i + 1 :]) for i, a in enumerate(scaled)]
    return [line * (1 + GROWTH * min(count, WIDEST)) for count in covered]


def _covers(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], near: float) -> bool:
    """Returns whether two curves coincide over a large part of their common range."""
    (x, y), (u, v) = ((p[0][np.isfinite(p[1])], p[1][np.isfinite(p[1])]) for p in (a, b))
    if not (len(x) and len(u)):
        return False
    low, high = max(x[0], u[0]), min(x[-1], u[-1])
    if high < low:
        return False
    at = np.linspace(low, high, 64)
    return bool((np.abs(np.interp(at, x, y) - np.interp(at, u, v)) <= near).mean() > LONG)


def seeds_entry(seeds: Iterable[int]) -> tuple[Any, str]:
    """Returns the legend entry on seeds and intervals: the number of seeds, or that there are too few."""
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
    """Draws the interval around a curve if there are enough seeds."""
    if seeds >= FEWEST and np.isfinite(low).any():
        ax.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)


def pale_grid(ax: "Axes", own: "Figure | None") -> None:
    """Draws pale grid lines, except in the user's axes and in sessions with their own grid settings."""
    import matplotlib

    if own is not None and not matplotlib.rcParams["axes.grid"]:
        ax.grid(axis="y", color=ink(0.1))


def whole_numbers(ax: "Axes") -> None:
    """Sets ticks of a linear axis at whole numbers only, for example for rounds."""
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
    """Draws a legend above all panels, in as many columns as fit; if the height is free, the figure grows accordingly.

    The title belongs to the legend, so that the two never overlap. The `first` entries have a separate column.
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
    """Returns the title, broken after commas and colons if it is wider than the figure."""
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
    """Draws a small legend in an upper corner of a panel, or above the panel in two columns.

    The axis is extended if the legend would hide a curve.
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
"""The largest factor by which an axis is extended for a legend."""


def _room(ax: "Axes", legend: Any) -> float:
    """Returns the factor by which the axis must be extended so that the legend covers no curve."""
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
    """Sets ticks at powers of ten on a logarithmic axis, and at three times these if there are fewer than two."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    low, high = ax.get_xlim()
    powers = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if powers > 1 else (1.0, 3.0)))
    ax.xaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
    ax.xaxis.set_minor_formatter(NullFormatter())


def plain_ticks(ax: "Axes") -> None:
    """Writes the tick labels of a logarithmic axis as plain numbers; between decades only if there is space."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


_ARRANGED: "weakref.WeakKeyDictionary[Any, list[float]]" = weakref.WeakKeyDictionary()
"""The users' figures that `arrange` has changed, and the positions of their panels."""


def arrange(ax: "Axes") -> None:
    """Makes room for the labels in a user's figure that has no layout engine and was not arranged manually."""
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

"""What all figures have in common: colours, sizes, dashes, and how they are written."""

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _files

if TYPE_CHECKING:  # matplotlib takes most of a second to import: only those who plot should wait for it
    from matplotlib.figure import Figure

COLOURS: dict[str, str] = {
    "FedHSA": "#0072B2",
    "LocalSA": "#D55E00",
    "SynchronisedSA": "#009E73",
    "SA": "#CC79A7",
}
"""Okabe and Ito's colours, which the colour-blind can tell apart; an algorithm always has the same one."""

FALLBACK = (
    *("#E69F00", "#56B4E9", "#000000", "#999999", "#CC79A7", "#009E73", "#D55E00", "#0072B2"),
    *("#332288", "#882255", "#999933", "#44AA99", "#661100", "#F0E442"),
)
"""The colours of other names, in the order of their appearance, without those already in the figure.

First Okabe and Ito's, then Tol's, and last the yellow that is hard to see on white.
"""

POINTS = 1000
"""How many points a curve is drawn with; more cannot be seen, and would make the PDF heavy."""

DASHES = (0, (3, 2))

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.title_fontsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,  # text stays text, as journals ask for
}
"""What is 8 points here is 8 points in a paper that includes the figure one column wide."""


def save(figure: "Figure", path: str | os.PathLike[str], suffixes: Sequence[str] = (".png", ".pdf")) -> None:
    """Writes the figure to `path` + `.png` (200 dpi), `.pdf` or `.svg`, each whole or not at all.

    !!! example
        >>> import pathlib, tempfile
        >>> from matplotlib.figure import Figure
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> save(Figure((1, 1)), folder / "empty", suffixes=[".svg"])
        >>> [path.name for path in folder.iterdir()]
        ['empty.svg']
    """
    import matplotlib

    # Without dates and with fixed identifiers, the same figure gives the same bytes.
    metadata: dict[str, Any] = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "fedhsa"}):
        engine = figure.get_layout_engine()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is the same in every format: once is enough
        for suffix in suffixes:
            with _files.atomic(f"{os.fspath(path)}{suffix}") as file:
                figure.savefig(file, format=suffix[1:], dpi=200, metadata=metadata[suffix])
        figure.set_layout_engine(engine)


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


def colours(names: list[str]) -> dict[str, str]:
    """A colour for each name: its own, or one that nobody else has."""
    known = {name: COLOURS[name] for name in names if name in COLOURS}
    free = [colour for colour in FALLBACK if colour not in known.values()]
    unknown = [name for name in names if name not in COLOURS]
    return known | {name: free[i % len(free)] for i, name in enumerate(unknown)}


def drawable(curve: np.ndarray) -> np.ndarray:
    """NaN where a logarithmic axis has no place."""
    return np.where(np.isfinite(curve) & (curve > 0), curve, np.nan)


def thinned(length: int) -> np.ndarray:
    """Which of the records to draw: all, or `POINTS` of them evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))


def darker(colour: str) -> tuple[float, ...]:
    """The same colour with less light."""
    from matplotlib.colors import to_rgb

    return tuple(0.55 * channel for channel in to_rgb(colour))

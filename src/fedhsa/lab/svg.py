"""Pictures as SVG text: quick to make, sharp at every size, and coloured by the page's light or dark style."""

import dataclasses
import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .._numbers import tick


@dataclasses.dataclass(frozen=True)
class Scale:
    """Maps values to positions: linearly, or by their logarithm.

    >>> Scale(1.0, 100.0, 0.0, 10.0, log=True)(10.0)
    5.0
    """

    low: float
    high: float
    start: float
    """The position of `low`."""
    end: float
    """The position of `high`."""
    log: bool = False

    def __call__(self, value: Any) -> Any:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        with np.errstate(all="ignore"):
            at = np.log10(np.asarray(value, float)) if self.log else np.asarray(value, float)
        found = self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start)
        return float(found) if np.ndim(found) == 0 else found

    def ticks(self, most: int = 7) -> list[float]:
        """Return round values between the ends, at most about `most` of them.

        >>> Scale(0.0, 10.0, 0.0, 1.0).ticks(6)
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / most))
            return [10.0**k for k in range(first, last + 1) if k % every == 0]
        raw = (self.high - self.low) / max(most - 1, 1) or 1.0
        size = 10.0 ** math.floor(math.log10(raw))
        step = next((size * k for k in (1, 2, 5) if size * k >= raw * (1 - 1e-9)), size * 10)
        first = math.ceil(self.low / step - 1e-9)
        return [round(k * step, 12) for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def escape(text: str) -> str:
    """Return a text with the special characters of HTML escaped."""
    return html.escape(str(text), quote=True)


def tag(name: str, inside: Any = None, **attributes: Any) -> str:
    """Return an element of SVG or HTML; `_` in a name is `-`, and `cls` is `class`. None omits an attribute.

    >>> tag("line", x1=0, stroke_width=2.0, cls="grid")
    '<line x1="0" stroke-width="2" class="grid"/>'
    """
    words = []
    for key, value in attributes.items():
        if value is None:
            continue
        shown = f"{value:.6g}" if isinstance(value, float) else escape(value)
        words.append(f' {"class" if key == "cls" else key.replace("_", "-")}="{shown}"')
    return f"<{name}{''.join(words)}/>" if inside is None else f"<{name}{''.join(words)}>{inside}</{name}>"


def points(xs: Any, ys: Any) -> str:
    """Return positions in the format of polylines."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))


def picture(parts: Iterable[str], width: float, height: float, *, label: str, cls: str = "") -> str:
    """Return a whole picture, as wide as its container on the page; `label` is the sentence for screen readers."""
    return tag(
        "svg",
        "".join(parts),
        viewBox=f"0 0 {width:g} {height:g}",
        cls=f"fh-svg {cls}".strip(),
        role="img",
        aria_label=label,
        xmlns="http://www.w3.org/2000/svg",
    )


class Plot:
    """Axes with curves; positions outside the axes are cut off.

    >>> plot = Plot(300, 200, x=(0.0, 10.0), y=(1e-3, 1.0), log_y=True)
    >>> plot.line([0, 5, 10], [1.0, 0.1, 0.01], "#0072B2", title="FedHSA")
    >>> plot.render(label="A falling curve.").startswith("<svg viewBox")
    True
    """

    def __init__(
        self,
        width: float,
        height: float,
        *,
        x: tuple[float, float],
        y: tuple[float, float],
        log_x: bool = False,
        log_y: bool = False,
        margin: tuple[float, float, float, float] = (16, 34, 54, 78),
    ):
        top, right, bottom, left = margin
        self.width, self.height = width, height
        self.x = Scale(*x, left, width - right, log=log_x)
        self.y = Scale(*y, height - bottom, top, log=log_y)
        self.under: list[str] = []
        self.parts: list[str] = []
        self.over: list[str] = []

    def clip(self, xs: Any, ys: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the positions of a curve, split at values that are not finite, and cut at the top and the bottom."""
        a, b = np.asarray(self.x(xs), float), np.asarray(self.y(ys), float)
        good = np.isfinite(a) & np.isfinite(b)
        b = np.clip(b, self.y.end - 400, self.y.start + 400)
        pieces = np.split(np.arange(len(a)), np.flatnonzero(np.diff(good.astype(int))) + 1)
        return [(a[piece], b[piece]) for piece in pieces if len(piece) and good[piece[0]]]

    def line(self, xs: Any, ys: Any, colour: str, *, title: str = "", width: float = 2.4, dash: str | None = None):
        """Add a curve; `title` is shown while the pointer rests on it."""
        inside = tag("title", escape(title)) if title else ""
        for a, b in self.clip(xs, ys):
            self.parts.append(
                tag(
                    "polyline",
                    inside,
                    points=points(a, b),
                    stroke=colour,
                    stroke_width=width,
                    stroke_dasharray=dash,
                    cls="fh-curve",
                    data_name=title or None,
                )
            )

    def band(self, xs: Any, low: Any, high: Any, colour: str):
        """Add the area between two curves, in a pale colour."""
        a = np.asarray(self.x(xs), float)
        low, high = (np.asarray(self.y(v), float) for v in (low, high))
        good = np.isfinite(a) & np.isfinite(low) & np.isfinite(high)
        if good.any():
            a, low, high = a[good], low[good], high[good]
            shape = points([*a, *a[::-1]], [*low, *high[::-1]])
            self.parts.append(tag("polygon", points=shape, fill=colour, cls="fh-band"))

    def vertical(self, x: float, text: str, colour: str):
        """Add a dashed vertical line with a text at its upper end, if it is inside the axes."""
        position = self.x(x)
        if not self.x.start - 0.5 <= position <= self.x.end + 0.5:
            return
        ends = {"x1": position, "x2": position, "y1": self.y.start, "y2": self.y.end}
        self.parts.append(tag("line", **ends, stroke=colour, stroke_width=1.6, stroke_dasharray="5 4"))
        right = position > (self.x.start + self.x.end) / 2
        self.text(position + (-6 if right else 6), self.y.end + 14, text, anchor="end" if right else "start")

    def text(self, x: float, y: float, text: str, *, anchor: str = "middle", cls: str = "fh-label", **more: Any):
        """Add a text at a position of the picture, above the curves."""
        self.over.append(tag("text", escape(text), x=x, y=y, text_anchor=anchor, cls=cls, **more))

    def axes(self, x_label: str, y_label: str, *, y_ticks: Sequence[float] | None = None):
        """Add ticks, pale horizontal lines and the labels of both axes."""
        found = []
        for value in self.y.ticks(6) if y_ticks is None else y_ticks:
            at = self.y(value)
            found.append(tag("line", x1=self.x.start, x2=self.x.end, y1=at, y2=at, cls="fh-grid"))
            shown = tick(value)
            found.append(tag("text", shown, x=self.x.start - 8, y=at + 5, text_anchor="end", cls="fh-tick"))
        for value in self.x.ticks():
            at = self.x(value)
            found.append(tag("line", x1=at, x2=at, y1=self.y.start, y2=self.y.start + 5, cls="fh-axis"))
            place = {"x": at, "y": self.y.start + 22, "text_anchor": "middle"}
            found.append(tag("text", tick(value), **place, cls="fh-tick"))
        found.append(tag("line", x1=self.x.start, x2=self.x.end, y1=self.y.start, y2=self.y.start, cls="fh-axis"))
        middle = (self.x.start + self.x.end) / 2
        self.text(middle, self.height - 8, x_label)
        if y_label:
            up = (self.y.start + self.y.end) / 2
            self.text(20, up, y_label, transform=f"rotate(-90 20 {up:g})")
        self.under += found

    def render(self, *, label: str, cls: str = "") -> str:
        """Return the picture; `label` is the sentence that a screen reader reads."""
        name = f"fh-clip-{self.width:g}-{self.height:g}-{self.x.start:g}-{self.y.end:g}"
        wide, high = self.x.end - self.x.start, self.y.start - self.y.end
        box = {"x": self.x.start - 6, "y": self.y.end - 6, "width": wide + 12, "height": high + 7}
        clip = tag("clipPath", tag("rect", **box), id=name)
        inner = tag("g", "".join(self.parts), clip_path=f"url(#{name})")
        return picture([clip, *self.under, inner, *self.over], self.width, self.height, label=label, cls=cls)


def legend(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return a row of names as HTML, from `(name, colour, kind)`; a kind is `line`, `dash`, `band` or `box`."""
    keys = {
        "line": '<line x1="0" x2="22" y1="6" y2="6" stroke="{0}" stroke-width="3"/>',
        "dash": '<line x1="0" x2="22" y1="6" y2="6" stroke="{0}" stroke-width="2" stroke-dasharray="5 4"/>',
        "band": '<rect width="22" height="12" fill="{0}" opacity="0.3"/>',
        "box": '<rect width="14" height="12" rx="2" fill="{0}"/>',
    }
    items = [
        f'<span class="fh-key"><svg width="{14 if kind == "box" else 22}" height="12" aria-hidden="true">'
        f"{keys[kind].format(escape(colour))}</svg>{escape(name)}</span>"
        for name, colour, kind in entries
    ]
    return tag("div", "".join(items), cls="fh-legend")

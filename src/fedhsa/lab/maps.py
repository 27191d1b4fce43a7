"""Grid worlds as pictures: the value of each cell as a colour and a number, arrows for the best actions, marks."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._numbers import tick
from ..environments.model import CELLS
from ..plots._maps import POINTING
from .svg import escape, picture, points, tag

SIDE = 64.0
"""The side of a cell in the units of the picture."""
MARKS = {"S": "start", "G": "goal", "H": "hole", "C": "cliff", "E": "end"}


class Colours:
    """A scale of colours for values between `low` and `high`; with `signed`, white is 0 and the scale is symmetric.

    >>> Colours(0.0, 1.0)(0.0)
    '#440154'
    """

    def __init__(self, low: float, high: float, *, signed: bool = False):
        from matplotlib import colormaps

        if signed:
            high = max(abs(low), abs(high), 1e-300)
            low = -high
        self.low, self.high, self.signed = low, high if high > low else low + 1.0, signed
        self.map = colormaps["RdBu_r" if signed else "viridis"]

    def rgb(self, value: float) -> tuple[float, float, float]:
        """Return the colour of a value as three numbers between 0 and 1."""
        red, green, blue, _ = self.map((value - self.low) / (self.high - self.low))
        return red, green, blue

    def __call__(self, value: float) -> str:
        return "#" + "".join(f"{round(255 * part):02x}" for part in self.rgb(value))

    def ink(self, value: float) -> str:
        """Return black on light colours and white on dark ones."""
        light = float(np.dot(np.array(self.rgb(value)) ** 2.2, (0.2126, 0.7152, 0.0722)))
        return "#000" if light > 0.18 else "#fff"

    def shown(self, value: float) -> str:
        """Return a value with the number of digits that the scale needs.

        >>> Colours(0.0, 0.02).shown(0.01234), Colours(-300.0, 0.0).shown(-52.3), Colours(0.0, 0.9).shown(1e-4)
        ('0.012', '−52', '0')
        """
        largest = max(abs(self.low), abs(self.high))
        digits = min(max(1 - math.floor(math.log10(largest)), 0), 9) if largest > 0 else 0
        text = f"{value:.{max(digits, 2 if largest < 10 else 0)}f}"
        return "0" if not text.strip("-0.") else text.replace("-", "\u2212")

    def bar(self, label: str) -> str:
        """Return the scale as a separate picture: a bar with the numbers at its ends."""
        stops = [
            tag("stop", offset=f"{k / 10:.0%}", stop_color=self(self.low + k / 10 * (self.high - self.low)))
            for k in range(11)
        ]
        name = f"fh-scale-{'signed' if self.signed else 'values'}"
        parts = [
            tag("defs", tag("linearGradient", "".join(stops), id=name)),
            tag("rect", x=0, y=20, width=320, height=12, rx=3, fill=f"url(#{name})"),
            tag("text", escape(label), x=160, y=12, text_anchor="middle", cls="fh-label"),
        ]
        values = [self.low, (self.low + self.high) / 2, self.high]
        for value, at, anchor in zip(values, (0, 160, 320), ("start", "middle", "end"), strict=True):
            parts.append(tag("text", self.shown(value), x=at, y=48, text_anchor=anchor, cls="fh-tick"))
        return picture(parts, 320, 54, label=f"The scale of colours, {label}.", cls="fh-scale")


def grid(
    shape: tuple[int, int],
    values: np.ndarray,
    colours: Colours,
    *,
    label: str,
    cells: str | None = None,
    hidden: np.ndarray | None = None,
    policy: np.ndarray | None = None,
    actions: tuple[str, ...] = (),
    hint: Callable[[int], str] | None = None,
    numbers: bool = True,
) -> str:
    """Return a map as SVG.

    `values` has a number and `cells` a letter of `environments.model.CELLS` for each cell. The cells in `hidden` have
    no value and are grey. Arrows show the probabilities `policy`, `(S, A)`, of `actions`. `hint` returns further text
    about a cell, shown while the pointer rests on it. `label` is for screen readers.
    """
    rows, columns = shape
    cells = "." * (rows * columns) if cells is None else cells
    parts: list[str] = []
    for state in range(rows * columns):
        row, column = divmod(state, columns)
        x, y, mark = column * SIDE, row * SIDE, cells[state]
        blank = bool(hidden is not None and hidden[state]) or not math.isfinite(values[state])
        fill, ink = (None, None) if blank else (colours(values[state]), colours.ink(values[state]))
        title = f"row {row + 1}, column {column + 1}"
        title += f", {CELLS[mark]}" if CELLS[mark] else ""
        title += "" if blank else f": {shown(values[state])}"
        title += f". {hint(state)}" if hint is not None and not blank and hint(state) else ""
        box: dict[str, Any] = {"x": x + 1, "y": y + 1, "width": SIDE - 2, "height": SIDE - 2, "rx": 6}
        inside = [tag("rect", **box, fill=fill, cls="fh-nowhere" if blank else "fh-place"), tag("title", title)]
        if not blank:
            if numbers:
                text = colours.shown(values[state])
                size = 16 * min(1.0, 4 / len(text))  # longer numbers are smaller, so that they leave room for arrows
                place = {"x": x + SIDE / 2, "y": y + SIDE / 2 + 5, "text_anchor": "middle", "font_size": size}
                inside.append(tag("text", text, **place, fill=ink, cls="fh-value"))
            if policy is not None:
                inside += _arrows(x, y, policy[state], actions, str(ink))
        inside += _mark(x, y, mark, blank, ink)
        parts.append(tag("g", "".join(inside)))
    return picture(parts, columns * SIDE, rows * SIDE, label=label, cls="fh-map")


def _arrows(x: float, y: float, chances: np.ndarray, actions: tuple[str, ...], ink: str) -> list[str]:
    """Return triangles at the sides of a cell, whose areas are the probabilities."""
    found = []
    for action, chance in zip(actions, chances, strict=True):
        if action not in POINTING or chance <= 0.01:
            continue
        across, down = POINTING[action]
        size = 7.5 * math.sqrt(chance)
        tip = x + SIDE / 2 + across * (SIDE / 2 - 3.5), y + SIDE / 2 + down * (SIDE / 2 - 3.5)
        foot = tip[0] - across * size, tip[1] - down * size
        left, right = ((foot[0] + sign * down * size, foot[1] + sign * across * size) for sign in (1, -1))
        corners = points(*zip(tip, left, right, strict=True))
        found.append(tag("polygon", points=corners, fill=ink, cls="fh-arrow", data_action=action))
    return found


def _mark(x: float, y: float, mark: str, blank: bool, ink: str | None) -> list[str]:
    """Return the mark of a start, goal, hole, cliff or end: large in an empty cell, otherwise small in a corner."""
    if mark not in MARKS:
        return []
    cx, cy, r = (x + SIDE / 2, y + SIDE / 2, 13.0) if blank else (x + 13, y + 13, 6.0)
    cls, style = f"fh-{MARKS[mark]}", {"stroke": ink}
    if mark == "G":
        reach, angles = r * np.where(np.arange(10) % 2 == 0, 1.15, 0.5), np.pi * (np.arange(10) / 5 - 0.5)
        corners = points(cx + reach * np.cos(angles), cy + reach * np.sin(angles))
        return [tag("polygon", points=corners, cls=cls, **style)]
    if mark in "SH":
        return [tag("circle", cx=cx, cy=cy, r=r * 0.85, cls=cls, **style)]
    cross = f"M{cx - r:.1f},{cy - r:.1f}L{cx + r:.1f},{cy + r:.1f}M{cx + r:.1f},{cy - r:.1f}L{cx - r:.1f},{cy + r:.1f}"
    return [tag("path", d=cross, cls=cls, **style)]


def shown(value: float) -> str:
    """Return a value in a few characters.

    >>> shown(0.1234), shown(-52.31), shown(0.0), shown(0.00012)
    ('0.12', '−52', '0', '1.2×10⁻⁴')
    """
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        text = f"{value:.2f}" if 0.095 <= abs(value) < 10 else f"{value:.3f}" if abs(value) < 1 else f"{value:.0f}"
    else:
        text = tick(value)
    return text.replace("-", "\u2212")

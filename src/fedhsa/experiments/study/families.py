"""How the families of problems look in figures that show several of them."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.lines import Line2D


class Look(NamedTuple):
    """A name for readers, a colour and a marker."""

    name: str
    colour: str
    marker: str

    @property
    def style(self) -> dict[str, Any]:
        """What `Axes.plot` needs to draw markers alone."""
        return {"color": self.colour, "marker": self.marker, "linestyle": "none", "markersize": 4.5}

    def handle(self) -> "Line2D":
        """For a legend."""
        from matplotlib.lines import Line2D

        return Line2D([], [], **self.style)


LOOKS = {
    "quadratic": Look("quadratic", "#E69F00", "o"),
    "nonconvex": Look("nonconvex", "#CC79A7", "s"),
    "td": Look("TD", "#56B4E9", "^"),
    "finite-sum": Look("finite sum", "#000000", "D"),
}
"""Of the colours that the colour-blind can tell apart, those that FedHSA and Local SA do not have."""

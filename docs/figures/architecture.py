"""Draws architecture.svg: one definition of an algorithm, and the four things that are done with it."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from fedhsa import plots

BLUE, ORANGE, GREEN, PINK = list(plots.COLOURS.values())[:4]
USES = {
    "predict": (
        GREEN,
        "fh.theory.predict",
        "stability, rate, bias and floor",
        "exact laws and close ones, before any run",
    ),
    "simulate": (
        BLUE,
        "fh.simulate",
        "all rounds, agents and seeds in one program",
        "CPU, GPU, several devices and hosts",
    ),
    "compare": (PINK, "fh.compare", "methods tuned with equal effort", "ranked on fresh seeds, with intervals"),
    "deploy": (ORANGE, "fedhsa deploy", "the same rounds as messages between sites", "gRPC, Flower and Ray"),
}
HEIGHT, GAP, LEFT, WIDTH = 0.72, 0.16, 3.35, 3.75


def box(ax: Any, x: float, y: float, width: float, height: float, colour: str) -> None:
    """A rounded box with a pale inside."""
    shape = {"boxstyle": "round,pad=0,rounding_size=0.08", "linewidth": 1.2}
    ax.add_patch(FancyBboxPatch((x, y), width, height, facecolor="white", edgecolor=colour, **shape))
    ax.add_patch(FancyBboxPatch((x, y), width, height, facecolor=colour, edgecolor="none", alpha=0.07, **shape))


def main() -> None:
    """Draws the picture into the current folder."""
    total = len(USES) * HEIGHT + (len(USES) - 1) * GAP
    with plots.style():
        figure = Figure(figsize=(7.2, total + 0.1))
        ax = figure.add_axes((0, 0, 1, 1), xlim=(0, 7.2), ylim=(-0.05, total + 0.05))
        ax.set_axis_off()
        inputs = {
            "a problem": ("agents with operators", "and their own Markov chains"),
            "an algorithm": ("the exchanges of one round:", "send, local steps, aggregate"),
        }
        for row, (name, lines) in enumerate(inputs.items()):
            y = total / 2 + (0.16 if row == 0 else -0.16 - 1.0)
            box(ax, 0.05, y, 2.2, 1.0, "0.25")
            ax.text(1.15, y + 0.74, name, ha="center", va="center", weight="bold", size=10)
            ax.text(1.15, y + 0.34, "\n".join(lines), ha="center", va="center", size=8, color="0.25")
        ax.text(1.15, total / 2, "defined once", ha="center", va="center", size=8, style="italic", color="0.35")
        for row, (name, (colour, call, *lines)) in enumerate(USES.items()):
            y = total - HEIGHT - row * (HEIGHT + GAP)
            box(ax, LEFT, y, WIDTH, HEIGHT, colour)
            ax.text(LEFT + 0.12, y + HEIGHT - 0.21, name, va="center", weight="bold", size=10, color=colour)
            right = {"ha": "right", "va": "center", "size": 8, "family": "monospace", "color": "0.3"}
            ax.text(LEFT + WIDTH - 0.12, y + HEIGHT - 0.21, call, **right)
            ax.text(LEFT + 0.12, y + 0.24, "\n".join(lines), va="center", size=7.5, color="0.2", linespacing=1.15)
            curve = f"arc3,rad={0.12 * (row - 1.5) / 1.5:.3f}"
            style = {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.2, "color": colour, "shrinkA": 2}
            start, end = (2.32, total / 2 + 0.3 * (1.5 - row)), (LEFT - 0.04, y + HEIGHT / 2)
            ax.add_patch(FancyArrowPatch(start, end, connectionstyle=curve, **style))
    plots.save(figure, "architecture.svg")


if __name__ == "__main__":
    main()

"""Floors with some of the agents: against their number, against step times local steps, and against noise."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import statistics
from ...plots._style import COLOURS, DASHES, FALLBACK, STYLE, darker
from ..study.base import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = {
    "FedHSA": COLOURS["FedHSA"],
    "Local SA": COLOURS["LocalSA"],
    "FedHSA, all answer": FALLBACK[0],
    "SCAFFOLD": FALLBACK[1],
    "Bernoulli": FALLBACK[2],
    "availability": FALLBACK[3],
    "Horvitz-Thompson": FALLBACK[4],
}
MARKERS = {"FedHSA": "o", "Local SA": "s", "FedHSA, all answer": "D", "SCAFFOLD": "^"}


def draw(study: Any, outcome: Outcome) -> "Figure":
    """Three panels: without noise in two ways, and with it."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        counts, scales, noise = figure.subplots(1, 3)
        for label in ("Local SA", "FedHSA"):
            _points(counts, outcome, label, study.counts, [f"{label}/m {m}" for m in study.counts])
        for label, key in (
            ("Bernoulli", "Bernoulli"),
            ("availability", "availability"),
            ("Horvitz-Thompson", "Horvitz-Thompson/step 0.02"),
        ):
            at = study.num_agents * (0.55 if label == "Horvitz-Thompson" else 0.5)
            _points(counts, outcome, label, [at], [key], marker="v")
        counts.set(xlabel="agents that take part $m$", ylabel="floor without noise", yscale="log")
        _points(scales, outcome, "FedHSA", [5 * s for s in study.steps], [f"FedHSA/step {s:g}" for s in study.steps])
        x = [0.02 * steps for steps in study.local_steps]
        _points(scales, outcome, "FedHSA", x, [f"FedHSA/H {steps}" for steps in study.local_steps], marker="x")
        first = [outcome.facts["first order"][f"FedHSA/step {s:g}"] for s in study.steps]
        scales.plot([5 * s for s in study.steps], first, color="0.5", linestyle=(0, (1, 1.5)), linewidth=1.0)
        scales.set(xlabel=r"step $\times$ local steps $\eta H$", xscale="log", yscale="log")
        scales.set_xticks([5 * s for s in study.steps], [f"{5 * s:g}" for s in study.steps])
        scales.set_yticks(first, [f"{floor:.2g}" for floor in first])
        scales.minorticks_off()
        noise.axvline(outcome.facts["break-even"], color="0.6", linewidth=0.8)
        noise.annotate(
            "break-even",
            (outcome.facts["break-even"], 0.02),
            xycoords=("data", "axes fraction"),
            rotation=90,
            xytext=(2, 0),
            textcoords="offset points",
            fontsize=7,
            color="0.4",
        )
        unlike = outcome.facts["unlike"]
        for label in ("FedHSA", "FedHSA, all answer", "SCAFFOLD"):
            keys = [f"{label}/noise {sigma:g}" for sigma in study.noise]
            _points(noise, outcome, label, [sigma**2 / unlike for sigma in study.noise], keys)
        noise.set(xlabel="noise by heterogeneity", ylabel="floor with noise", xscale="log", yscale="log")
        for ax in (counts, scales, noise):
            ax.grid(axis="y", color="0.9", linewidth=0.5)
        handles = [
            Line2D([], [], color=colour, marker=MARKERS.get(label, "v"), ms=4, linestyle="none", label=label)
            for label, colour in PALETTE.items()
        ]
        handles.append(Line2D([], [], color="0.2", linestyle=DASHES, linewidth=1.0, label="exact law"))
        handles.append(Line2D([], [], color="0.5", linestyle=(0, (1, 1.5)), linewidth=1.0, label="first order"))
        figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    return figure


def _points(ax: "Axes", outcome: Outcome, label: str, x: Any, keys: list[str], marker: str | None = None) -> None:
    colour = PALETTE[label]
    value, low, high = np.array([statistics.mean(outcome.arrays[key], 0.95) for key in keys]).T
    marker, size = marker or MARKERS.get(label, "v"), 6 if label == "Local SA" else 4  # FedHSA lies on it
    ax.errorbar(x, value, yerr=[value - low, high - value], fmt=marker, color=colour, ms=size, capsize=2, linewidth=0.8)
    known = [outcome.facts["laws"].get(key) for key in keys]
    if None not in known and len(known) > 1:
        order = np.argsort(x)
        ax.plot(np.array(x)[order], np.array(known)[order], color=darker(colour), linestyle=DASHES, linewidth=1.0)

"""Compressed FedHSA: floors without noise against the step, errors against bytes, and bytes to an error."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import statistics
from ...plots._style import COLOURS, DASHES, FALLBACK, STYLE, darker
from ..study.base import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PALETTE = {
    "uncompressed": COLOURS["FedHSA"],
    "TopK": FALLBACK[3],
    "RandK": FALLBACK[0],
    "Quantised": FALLBACK[1],
    "TopK, error": FALLBACK[4],
    "Sign, error": FALLBACK[5],
    "TopK, difference": FALLBACK[6],
    "RandK, difference": FALLBACK[2],
}


def draw(study: Any, outcome: Outcome, noisy: list[str]) -> "Figure":
    """Three panels: without noise, with noise against bytes, and prices."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        floors, curves, prices = figure.subplots(1, 3)
        for label, law in outcome.facts["laws"].items():
            samples = [outcome.arrays[f"{label}/step {step:g}"] for step in study.steps]
            value, low, high = np.array([statistics.mean(sample, 0.95) for sample in samples]).T
            bars = [value - low, high - value]
            floors.errorbar(study.steps, value, yerr=bars, fmt="o", color=PALETTE[label], ms=4, capsize=2)
            floors.plot(study.steps, law, color=darker(PALETTE[label]), linestyle=DASHES, linewidth=1.0)
        floors.set(xlabel=r"step size $\eta$", ylabel="floor without noise", xscale="log", yscale="log")
        floors.set_xticks(study.steps, [f"{step:g}" for step in study.steps])
        floors.minorticks_off()
        for label in noisy:
            mean, low, high = statistics.interval(outcome.arrays[f"{label}/noise {study.middle:g}"])
            sent = 5 * np.arange(len(mean)) * outcome.facts["bytes"][label]["up"]
            at = np.unique(np.geomspace(1, len(mean) - 1, 100).round().astype(int))
            curves.plot(sent[at], mean[at], color=PALETTE[label])
            curves.fill_between(sent[at], low[at], high[at], color=PALETTE[label], alpha=0.2, linewidth=0)
        curves.set(xlabel="bytes up, each agent", ylabel="$E_t$ with noise", xscale="log", yscale="log")
        for place, label in enumerate(noisy[1:]):
            found = {target: study.price(outcome, label, target) for target in study.targets}
            reached = {target: price for target, price in found.items() if price is not None}
            if reached:
                value, low, high = np.array(list(reached.values())).T
                x = np.array(list(reached)) * 1.06 ** (place - 2.5)
                prices.errorbar(
                    x, value, yerr=[value - low, high - value], fmt="o", color=PALETTE[label], ms=4, capsize=2
                )
        prices.axhline(1.0, color=PALETTE["uncompressed"], linewidth=1.0)
        prices.set(xlabel="squared error to reach", ylabel="bytes up by uncompressed", xscale="log", yscale="log")
        for ax in (floors, curves, prices):
            ax.grid(axis="y", color="0.9", linewidth=0.5)
        handles = [Line2D([], [], color=colour, marker="o", ms=4, label=label) for label, colour in PALETTE.items()]
        handles.append(Line2D([], [], color="0.2", linestyle=DASHES, linewidth=1.0, label="derived"))
        figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False)
    return figure

"""Draws one round of FedHSA: its two exchanges, and the local steps of three agents in the plane, next to LocalSA's.

The paths are computed, on a quadratic problem without noise: each agent's steps are those that the two methods take.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from fedhsa import plots

SLOPES = np.array([[[1.6, 0.3], [0.3, 0.6]], [[0.7, -0.2], [-0.2, 1.5]], [[1.0, 0.0], [0.0, 1.0]]])
ROOTS = np.array([[2.6, 0.2], [0.5, 2.4], [2.9, 2.3]])
START, STEP, LOCAL_STEPS = np.array([0.0, 0.0]), 0.12, 9
INK, PALE = "0.25", "0.93"


def operators(theta: np.ndarray) -> np.ndarray:
    """The mean operator of every agent at its own row of `theta`."""
    return -np.einsum("ikl,il->ik", SLOPES, theta - ROOTS)


def paths(corrected: bool) -> np.ndarray:
    """The local steps of all agents in one round, with FedHSA's correction or without: (agents, steps + 1, 2)."""
    theta = np.tile(START, (3, 1))
    first = operators(theta)
    correction = first.mean(0) - first if corrected else 0.0
    found = [theta]
    for _ in range(LOCAL_STEPS):
        found.append(found[-1] + STEP * (operators(found[-1]) + correction))
    return np.stack(found, axis=1)


def exchange(ax: Axes, title: str, down: str, work: str, up: str, result: str) -> None:
    """One exchange: a message from the server to three agents, their work, and their replies."""
    ax.set(xlim=(-0.3, 10.3), ylim=(0.2, 9.9))
    ax.axis("off")
    ax.set_title(title)
    box = {"boxstyle": "round,pad=0.4", "facecolor": PALE, "edgecolor": INK, "linewidth": 0.6}
    ax.text(5, 8.7, f"server\n{result}", ha="center", va="center", bbox=box)
    for number, x in enumerate((1.6, 5.0, 8.4), start=1):
        ax.text(x, 1.5, f"agent {number}\n{work}", ha="center", va="center", bbox=box)
        for offset, ends, colour in (
            (-0.35, ((5 + 0.45 * (x - 5), 7.3), (x, 2.95)), INK),
            (0.35, ((x, 2.95), (5 + 0.45 * (x - 5), 7.3)), plots.COLOURS["FedHSA"]),
        ):
            (x0, y0), (x1, y1) = ends
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", (x1 + offset, y1), (x0 + offset, y0), arrowprops=arrow)
    ax.text(1.9, 5.9, f"sends {down}", ha="right", va="center", color=INK)
    ax.text(8.3, 5.9, f"reply {up}", ha="left", va="center", color=plots.COLOURS["FedHSA"])


def plane(ax: Axes) -> None:
    """The local steps of one round in the plane."""
    common = np.linalg.solve(SLOPES.sum(0), np.einsum("ikl,il->k", SLOPES, ROOTS))
    for name, corrected in (("LocalSA", False), ("FedHSA", True)):
        found = paths(corrected)
        for number, path in enumerate(found):
            label = name if number == 0 else None
            ax.plot(*path.T, ".-", color=plots.COLOURS[name], markersize=3, linewidth=0.9, label=label)
    ax.plot(*ROOTS.T, "x", color=INK, markersize=5, label="roots of the agents")
    ax.plot(*common, "*", color=INK, markersize=9, label="common root")
    ax.plot(*START, "o", color=INK, markersize=4)
    ax.annotate(r"$\bar\theta$", (START[0], START[1]), xytext=(4, -9), textcoords="offset points")
    ax.set(xlabel=r"$\theta_1$", ylabel=r"$\theta_2$", xlim=(-0.3, 3.3), ylim=(-0.5, 3.6), aspect="equal")
    ax.set(xticks=(0, 1, 2, 3), yticks=(0, 1, 2, 3))
    ax.set_title("Local steps of one round")
    ax.legend(loc="upper left", fontsize=6.5, handlelength=1.4, frameon=False, ncols=2, columnspacing=0.8)


def main() -> None:
    """Writes round.png into the current folder."""
    with plots.style():
        figure, axes = plt.subplots(1, 3, figsize=(7.6, 2.8), layout="constrained", width_ratios=(1.15, 1.15, 1))
        exchange(
            axes[0],
            "Exchange 1: operators",
            r"$\bar\theta$",
            r"$G_i(\bar\theta, o_{i,0})$",
            r"$g_i$",
            r"averages: $\bar g$",
        )
        exchange(
            axes[1], "Exchange 2: displacements", r"$\bar g$", r"$H$ steps", r"$\Delta_i$", r"adds the mean $\Delta_i$"
        )
        plane(axes[2])
        plots.save(figure, "round.png")


if __name__ == "__main__":
    main()

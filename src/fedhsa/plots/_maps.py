"""Value functions of grid worlds as maps, with arrows for the policy, in panels on one scale."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _check
from ..environments.model import ARROWS, CELLS, Model
from ._style import house_style, words

if TYPE_CHECKING:  # Matplotlib takes most of a second to import, so it is imported only for drawing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.0
"""The width in inches of both columns of a page, which panels share."""
CELL = 0.2, 0.46
"""The smallest and the largest side of a cell in inches."""
LEGIBLE = 0.24
"""The side of a cell in inches below which it has no number."""
POINTING = dict(zip(ARROWS, ((-1, 0), (0, 1), (1, 0), (0, -1)), strict=True))
"""The directions of the arrows, in columns and rows."""
NOWHERE = "0.87"
"""The grey of cells without a value."""
INK = "0.15"
MARKERS: dict[str, dict[str, Any]] = {
    "S": {"marker": "o", "facecolor": "white", "linewidth": 1.2},
    "G": {"marker": "*", "facecolor": "#F0E442", "linewidth": 0.7},
    "H": {"marker": "o", "facecolor": INK, "linewidth": 0.7},
    "C": {"marker": "X", "facecolor": INK, "linewidth": 0.0},
    "E": {"marker": "s", "facecolor": INK, "linewidth": 0.0},
}
"""The markers of the kinds of cells (see `environments.model.CELLS`)."""


def value_map(
    model: Model,
    values: Any,
    policy: Any = None,
    *,
    agent: int | Mapping[str, int] = 0,
    label: str = "value",
    columns: int = 4,
    signed: bool = False,
) -> "Figure":
    r"""Draws value functions of a grid world as maps, one panel each, with a common colour scale.

    A cell shows its value. Triangles at its sides point in the directions of the policy, with areas proportional to the
    probabilities. Start, goal, holes, cliff and ends are marked. Cells in which no action is taken are grey: cells that
    end an episode, and cells that cannot be reached.

    **Arguments:**

    - `model`: the grid world.
    - `values`: `(S,)`, or several by name, which become the titles of panels.
    - `policy`: as for `Model.values`: probabilities or actions, or several by the same names. Default: no arrows.
    - `agent`: the agent whose cells are marked, one for all panels or by name, since agents may have different maps.
    - `label`: the label of the colour scale.
    - `columns`: the number of panels side by side.
    - `signed`: whether the values are differences: blue below 0, red above, white in the middle.

    Raises `ValueError` if the model has no grid, `values` is empty, or names do not match.

    !!! example
        >>> lake = fedhsa.environments.make("frozen-lake", {"num_agents": 2})
        >>> Q = lake.optimal()
        >>> names = {"agent 0": Q[0].max(-1), "agent 1": Q[1].max(-1)}
        >>> [ax.get_title() for ax in value_map(lake, names, lake.greedy(Q)).axes[:2]]
        ['agent 0', 'agent 1']
    """
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    panels = _panels(model, values)
    whose = agent if isinstance(agent, Mapping) else dict.fromkeys(panels, agent)
    policies = policy if isinstance(policy, Mapping) else dict.fromkeys(panels, policy)
    _check.count("columns", columns)
    _check_names(model, panels, whose, policies)
    nowhere = {name: _nowhere(model, whose.get(name, 0)) for name in panels}
    shown = np.concatenate([panels[name][~nowhere[name]] for name in panels])
    low, high = (-abs(shown).max(), abs(shown).max()) if signed else (shown.min(), shown.max())
    norm = Normalize(low, high if high > low else low + 1.0)
    palette = "RdBu_r" if signed else "viridis"
    (rows, width), columns = model.grid or (1, 1), min(columns, len(panels))
    cell = float(np.clip((WIDTH - 0.8) / (columns * width), *CELL))
    lines = -(-len(panels) // columns)
    with house_style():
        size = columns * (cell * width + 0.12) + 0.8, lines * (cell * rows + 0.25) + 0.35
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False).ravel()
        for ax in axes[len(panels) :]:
            ax.remove()
        for ax, name in zip(axes, panels, strict=False):
            chances = policies.get(name)
            arrows = None if chances is None else model.policy(chances)[whose.get(name, 0)]
            _draw(ax, model, panels[name], nowhere[name], arrows, model.cells[whose.get(name, 0)], norm, palette, cell)
            ax.set_title(words(name), pad=3)
        bar = figure.colorbar(
            axes[0].collections[0], ax=list(axes[: len(panels)]), fraction=0.04, aspect=16, pad=0.015, label=label
        )
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        _legend(figure, "".join(model.cells[whose.get(name, 0)] for name in panels))
    return figure


def _panels(model: Model, values: Any) -> dict[str, np.ndarray]:
    if model.grid is None:
        raise ValueError("`model` must be a grid world, got a model without `grid`, whose states have no positions.")
    named = dict(values) if isinstance(values, Mapping) else {"": values}
    if not named:
        raise ValueError("`values` is empty: there is nothing to draw.")
    return {
        str(name): _check.array(f"values[{name!r}]" if name else "values", panel, (model.num_states,))
        for name, panel in named.items()
    }


def _check_names(model: Model, panels: Mapping, whose: Mapping, policies: Mapping) -> None:
    for argument, given in (("agent", whose), ("policy", policies)):
        for name in set(given) - set(panels):
            raise ValueError(f"`{argument}` names {name!r}, which is not among `values`: {', '.join(panels)}.")
    for one in whose.values():
        if not 0 <= _check.count("agent", one, least=0) < model.num_agents:
            raise ValueError(f"`agent` must be below {model.num_agents}, the number of agents, got {one}.")
    if any(policy is not None for policy in policies.values()) and not set(model.actions) & set(POINTING):
        raise ValueError(f"`policy` cannot be drawn: none of the actions {', '.join(model.actions)} is an arrow.")


def _nowhere(model: Model, agent: int) -> np.ndarray:
    """Returns the cells in which no action is taken: ends of episodes, and cells that cannot be reached."""
    acts = ~model.ends[agent]
    others = (model.transitions[agent] > 0).any(1) & acts[:, None] & ~np.eye(model.num_states, dtype=bool)
    return ~acts | ~(others.any(0) | (model.start[agent] > 0))


def _draw(
    ax: "Axes",
    model: Model,
    values: np.ndarray,
    nowhere: np.ndarray,
    policy: np.ndarray | None,
    cells: str,
    norm: Any,
    palette: str,
    cell: float,
) -> None:
    from matplotlib import colormaps

    assert model.grid is not None
    rows, columns = model.grid
    cmap = colormaps[palette].with_extremes(bad=NOWHERE)
    shown = np.ma.masked_array(values, nowhere).reshape(rows, columns)
    ax.pcolormesh(shown, cmap=cmap, norm=norm, edgecolors="white", linewidth=0.8)
    ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    decimals = _decimals(norm)
    for state in range(model.num_states):
        row, column = divmod(state, columns)
        x, y, mark = column + 0.5, row + 0.5, cells[state]
        ink = _ink(NOWHERE if nowhere[state] else cmap(norm(values[state])))
        if not nowhere[state]:
            if cell >= LEGIBLE:
                number = f"{values[state]:.{decimals}f}".replace("-", "\u2212")
                size = 6.5 * min(1.0, cell / 0.38) * min(1.0, 4.4 / len(number))
                ax.text(x, y, number, color=ink, fontsize=size, ha="center", va="center")
            if policy is not None:
                _point(ax, model.actions, policy[state], x, y, ink)
        if mark in MARKERS:  # in the middle of an empty cell, in a corner of one with a number
            at, side = ((x, y), 0.5) if nowhere[state] else ((column + 0.17, row + 0.19), 0.22)
            style: dict[str, Any] = {"edgecolor": INK, **MARKERS[mark]}
            if style["facecolor"] == INK and not nowhere[state]:  # dark marks on dark cells
                style |= {"edgecolor": "white", "linewidth": 0.6}
            ax.scatter(*at, s=(side * cell * 72) ** 2, zorder=3, gid=CELLS[mark], **style)


def _point(ax: "Axes", actions: tuple[str, ...], chances: np.ndarray, x: float, y: float, ink: str) -> None:
    """Draws triangles at the sides of a cell, with areas proportional to the probabilities."""
    from matplotlib.patches import Polygon

    for action, chance in zip(actions, chances, strict=True):
        if action in POINTING and chance > 0.01:
            ahead = np.array(POINTING[action])
            across, size = ahead[::-1], np.sqrt(chance)
            tip = np.array([x, y]) + 0.45 * ahead
            foot = tip - 0.14 * size * ahead
            corners = [tip, foot + 0.14 * size * across, foot - 0.14 * size * across]
            ax.add_patch(Polygon(corners, facecolor=ink, edgecolor="none", zorder=2, gid=action))


def _decimals(norm: Any) -> int:
    """Returns the number of decimals that gives about three digits."""
    largest = max(abs(norm.vmin), abs(norm.vmax))
    return 3 if largest < 0.1 else 2 if largest < 10 else 1 if largest < 100 else 0


def _ink(colour: Any) -> str:
    """Returns black for light cells and white for dark ones."""
    from matplotlib.colors import to_rgb

    light = np.dot(np.array(to_rgb(colour)) ** 2.2, (0.2126, 0.7152, 0.0722))
    return "black" if light > 0.18 else "white"  # at this lightness both have the same contrast


def _legend(figure: "Figure", cells: str) -> None:
    """Adds a legend of the markers below the figure."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=style["marker"],
            markersize=8 if mark == "G" else 6,
            markerfacecolor=style["facecolor"],
            markeredgecolor=INK,
            markeredgewidth=style["linewidth"],
            label=CELLS[mark],
        )
        for mark, style in MARKERS.items()
        if mark in cells
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, handletextpad=0.1)

"""The pictures of the lab's grid worlds, as HTML: maps on one scale, error curves, and a picture for each agent."""

import json
import math
from typing import Any

import numpy as np

from .._numbers import tick
from ..plots import COLOURS
from ..statistics import interval
from .maps import Colours, grid, shown
from .svg import Plot, escape, legend, tag
from .telling import warned
from .worlds import Simulated, Solution

WIDE, HIGH = 640, 330
"""The size of the curves in the units of their picture."""
FAR = 10.0
"""A simulated table that is further from the root than this factor times the largest value counts as diverged."""
DECADES = 7
"""The number of decades of the error that the curves show at most."""


def scale(found: Solution) -> Colours:
    """Return the scale of colours that all maps of values share."""
    values = [found.root.max(-1)[found.active]]
    values += [own.max(-1)[visits > 0] for own, visits in zip(found.own, found.visits, strict=True)]
    all_values = np.concatenate(values)
    return Colours(float(all_values.min()), float(all_values.max()))


def world(found: Solution, agent: int, *, numbers: bool = True) -> str:
    """Return the map of one agent: its own values, its best actions, and the marks of its own world."""
    return _map(
        found,
        found.own[agent].max(-1),
        scale(found),
        label=f"The world of agent {agent + 1} with its own values.",
        cells=found.model.cells[agent],
        hidden=found.visits[agent] <= 0,
        policy=found.greedy(found.own[agent], agent),
        numbers=numbers,
    )


def _map(found: Solution, values: np.ndarray, colours: Colours, **how: Any) -> str:
    assert found.model.grid is not None
    return grid(found.model.grid, values, colours, actions=found.model.actions, **how)


def marks(found: Solution) -> str:
    """Return the meaning of the marks on the maps, as a row of words."""
    letters = set("".join(found.model.cells))
    known = {"S": ("○", "start"), "G": ("★", "goal"), "H": ("●", "hole"), "C": ("✕", "cliff")}
    words = [f"{sign} {word}" for letter, (sign, word) in known.items() if letter in letters]
    words += ["▸ best action", "grey: no visits"]
    return tag("div", "".join(tag("span", escape(word), cls="fh-key") for word in words), cls="fh-legend")


def common(found: Solution, agent: int) -> str:
    """Return maps that compare the agent's own and the common solutions on one scale, and the drift of LocalSA."""
    local, colours = found.curves["LocalSA"].limit, scale(found)
    root, mean = found.root, found.own.mean(0)
    panels = [
        (f"agent {agent + 1} alone", world(found, agent)),
        ("mean of the agents' own", _common_map(found, mean, agent, "mean of the agents' solutions")),
        ("root: the limit of FedHSA", _common_map(found, root, agent, "root")),
    ]
    if local is not None:
        panels += [
            ("the limit of LocalSA", _common_map(found, local, agent, "limit of LocalSA")),
            ("LocalSA minus root: red is too high", difference(found, local, "the limit of LocalSA minus the root")),
        ]
    return _figures(panels) + f'<div class="fh-scales">{colours.bar("value")}</div>'


def _common_map(found: Solution, table: np.ndarray, agent: int, name: str) -> str:
    visitors = (found.visits > 0).sum(0)
    return _map(
        found,
        table.max(-1),
        scale(found),
        label=f"The {name} on the grid.",
        hidden=~found.active,
        cells=shared_cells(found),
        policy=found.greedy(table, agent),
        hint=lambda state: f"{visitors[state]} of {found.model.num_agents} agents visit it",
    )


def shared_cells(found: Solution) -> str:
    """Return the marks that all agents' worlds share."""
    return "".join(letters[0] if len(set(letters)) == 1 else "." for letters in zip(*found.model.cells, strict=True))


def difference(found: Solution, table: np.ndarray, name: str, colours: Colours | None = None) -> str:
    """Return the map of a table minus the root: positive values are red, negative values blue."""
    gap = found.gap(table)
    colours = colours or Colours(float(gap.min()), float(gap.max()), signed=True)
    cells = shared_cells(found)
    return _map(found, gap, colours, label=f"The map of {name}.", hidden=~found.active, cells=cells)


def learned(found: Solution, simulated: Simulated) -> str:
    """Return maps of the simulated tables minus the root, next to the limit of LocalSA without noise, on one scale."""
    tables = {f"{name}, simulated": table for name, table in simulated.tables.items()}
    if (limit := found.curves["LocalSA"].limit) is not None:
        tables["LocalSA, exact without noise"] = limit
    most = FAR * (1 + abs(found.root).max())
    lost = [name for name, table in tables.items() if not abs(found.gap(table)).max() < most]
    words = [
        f"{name.partition(',')[0]} has diverged in the simulation, so that there is no map of it." for name in lost
    ]
    kept = {name: table for name, table in tables.items() if name not in lost}
    if not kept:
        return warned(words)
    gaps = np.concatenate([found.gap(table) for table in kept.values()])
    colours = Colours(float(gaps.min()), float(gaps.max()), signed=True)
    panels = [(name, difference(found, table, f"{name} minus the root", colours)) for name, table in kept.items()]
    return warned(words) + _figures(panels) + f'<div class="fh-scales">{colours.bar("value minus root")}</div>'


def _figures(panels: list[tuple[str, str]]) -> str:
    inside = [f"<figure><figcaption>{escape(name)}</figcaption>{picture}</figure>" for name, picture in panels]
    return f'<div class="fh-maps">{"".join(inside)}</div>'


def curves(found: Solution, simulated: Simulated | None = None) -> str:
    """Return the picture of the errors by rounds: predicted, without noise, and simulated with intervals."""
    setting = found.setting
    quiet = {name: curve.quiet for name, curve in found.curves.items()}
    noisy = setting.noisy
    starts = max(float(errors[0]) for errors in quiet.values())
    values = [*quiet.values()] + [curve.error for curve in found.curves.values()]
    runs = {} if simulated is None else {name: interval(errors) for name, errors in simulated.errors.items()}
    values += [mean for mean, _, _ in runs.values()]
    seen = np.concatenate([part[np.isfinite(part) & (part > 0)] for part in values])
    high = 10.0 ** math.ceil(math.log10(max(starts, 1e-300) * 2))
    low = max(float(seen.min()) / 2 if len(seen) else high / 10, high / 10**DECADES)
    if noisy:  # so that the noise floor is in the middle, not at the top
        floors = [curve.floor for curve in found.curves.values() if 0 < curve.floor < math.inf]
        low = max(low, min(floors) / 30) if floors else low
    low = 10.0 ** math.floor(math.log10(low))
    plot = Plot(WIDE, HIGH, x=(0.0, float(setting.rounds)), y=(low, max(high, 10 * low)), log_y=True)
    entries = [(name, COLOURS[name], "line") for name in found.curves]
    for name in reversed(list(found.curves)):
        curve, colour = found.curves[name], COLOURS[name]
        at = np.arange(len(quiet[name]))
        if noisy:
            plot.line(at, quiet[name], colour, width=1.5, dash="6 4", title=f"{name} without noise, exact")
            if math.isfinite(curve.floor):
                plot.line(at, curve.error, colour, title=f"{name}, predicted: floor {tick(curve.floor)}")
        else:
            plot.line(at, quiet[name], colour, title=f"{name} without noise, exact")
    for name, (mean, lower, upper) in runs.items():
        at = np.arange(len(mean))
        plot.band(at, np.maximum(lower, low / 10), upper, COLOURS[name])
        words = f"{name}: mean of {setting.seeds} seeds"
        plot.line(at, mean, "var(--fh-ink)", width=1.5, dash="1.5 4.5", title=words)
    if noisy:
        entries.append(("without noise, exact", "var(--fh-soft)", "dash"))
    if runs:
        entries.append((f"mean of {setting.seeds} seeds", "var(--fh-ink)", "dash"))
        entries.append(("95 % interval", "var(--fh-soft)", "band"))
    plot.axes("round", "squared distance to the root")
    words = "; ".join(f"{name} ends at {tick(float(curve.error[-1]))}" for name, curve in found.curves.items())
    return legend(entries) + plot.render(label=f"The error by rounds: {words}.", cls="fh-curves")


def returns_table(found: Solution) -> str:
    """Return a table of each agent's returns with its own best actions and with those of the common tables."""
    model = found.model
    rows = {"its own table": model.returns(model.greedy(found.own)), "the root, as FedHSA": found.returns(found.root)}
    if (limit := found.curves["LocalSA"].limit) is not None:
        rows["the limit of LocalSA"] = found.returns(limit)
    head = "".join(tag("th", f"agent {agent + 1}", scope="col") for agent in range(model.num_agents))
    body = "".join(
        tag("tr", tag("th", escape(name), scope="row") + "".join(tag("td", shown(float(value))) for value in values))
        for name, values in rows.items()
    )
    caption = tag("caption", "The expected discounted return of each agent that follows the best actions of a table.")
    table = tag("table", caption + tag("thead", tag("tr", tag("td", "") + head)) + tag("tbody", body), cls="fh-table")
    return tag("div", table, cls="fh-scroll", tabindex="0", role="region", aria_label="Returns")


def as_json(found: Solution, simulated: Simulated | None = None) -> str:
    """Return the numbers on the page, for tests and for other programs."""
    numbers: dict[str, object] = {
        name: {"bias": curve.bias, "floor": curve.floor, "error": float(curve.error[-1])}
        for name, curve in found.curves.items()
    }
    numbers["root"] = found.root.max(-1).round(6).tolist()
    if simulated is not None:
        numbers["simulated"] = {name: float(errors[:, -1].mean()) for name, errors in simulated.errors.items()}
    return escape(json.dumps(numbers))

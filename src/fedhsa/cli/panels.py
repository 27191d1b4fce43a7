"""Predictions at other step sizes and local steps, for the panels of the figure; fewer if they take long."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from ..theory import Prediction
from . import effort
from .analysis import Analysis, predicted, result_or_reason

MOST_STEPS, FEWEST = 12, 3
LOCAL_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
SECONDS = {"step_size": 4.0, "local_steps": 3.0}
"""Seconds that each sweep may take, by estimate."""


def sweeps(analysis: Analysis, progress: Callable[[str], None]) -> dict[str, dict[str, list[Prediction]]]:
    """Returns predictions by setting, then by algorithm. A setting that would take too long is omitted."""
    found = {"local_steps": _local_steps(analysis), "step_size": _step_sizes(analysis)}
    result: dict[str, dict[str, list[Prediction]]] = {}
    for setting, grid in found.items():
        if not grid:
            continue
        result[setting] = {}
        for name, values in grid.items():
            progress(f"{name} at other {setting.replace('_', ' ').removesuffix('s')}s")
            result[setting][name] = _predictions(analysis, analysis.available[name], setting, values)
    return result


def _predictions(analysis: Analysis, own: Prediction, setting: str, values: list[float]) -> list[Prediction]:
    if not hasattr(own.algorithm, setting):
        return [own]
    others = [dataclasses.replace(own.algorithm, **{setting: value}) for value in values]  # pyright: ignore[reportArgumentType]
    # The requested settings are already included.
    made = (
        own
        if a == own.algorithm
        else result_or_reason(lambda a=a: predicted(own.problem, a, analysis.samples, analysis.settings.key))
        for a in others
    )
    return [p for p in made if isinstance(p, Prediction)]


def _step_sizes(analysis: Analysis) -> dict[str, list[float]]:
    """Returns step sizes up to the largest stable one by algorithm, evenly spaced on a logarithmic axis."""
    one_each = effort.total(analysis.problem, (p.algorithm for p in analysis.available.values()))
    points = min(MOST_STEPS, int(SECONDS["step_size"] / max(one_each, 1e-9)))
    if points < FEWEST:
        return {}
    grids = {}
    for name, p in analysis.available.items():
        step = getattr(p.algorithm, "step_size", None)
        if p.basis == "mean" or not isinstance(step, int | float):
            continue  # no floor to draw, or no step size to change
        largest = p.max_step_size
        if not largest > 0:
            continue
        grids[name] = sorted({*_grid(step, largest, points), *([step] if step < largest else [])})
    return grids


def _grid(step: float, largest: float, points: int) -> list[float]:
    """Returns values that are evenly spaced on a logarithmic axis, and closer where the floor rises steeply."""
    if math.isinf(largest):
        return np.geomspace(step / 3, 30 * step, points).tolist()
    edge = [0.75, 0.87, 0.97] if points == MOST_STEPS else [0.97]
    low, high = min(step / 3, largest / 100), 0.55 * largest
    return [*np.geomspace(low, high, points - len(edge)).tolist(), *(part * largest for part in edge)]


def _local_steps(analysis: Analysis) -> dict[str, list[float]]:
    """Returns few and many stable local steps by algorithm; the most costly ones are omitted first."""
    if not any(hasattr(p.algorithm, "local_steps") for p in analysis.available.values()):
        return {}
    left, grids = SECONDS["local_steps"], {name: set[float]() for name in analysis.available}
    edges = {p.max_local_steps for p in analysis.available.values() if not p.stable} - {None, math.inf, 0}
    for H in sorted({*LOCAL_STEPS, *(int(last) for last in edges if last)}):
        for name, p in analysis.available.items():
            own = getattr(p.algorithm, "local_steps", None)
            if own is None or p.max_local_steps is None or math.isnan(p.floor):
                continue
            if min(p.max_local_steps, max(10 * own, 50)) < H:
                continue
            left -= effort.seconds(analysis.problem, dataclasses.replace(p.algorithm, local_steps=H))  # pyright: ignore[reportCallIssue, reportArgumentType]
            if left > 0 or own == H:
                grids[name].add(H)
            if p.stable:
                grids[name].add(own)
    enough = any(len(grid) >= FEWEST for grid in grids.values())
    return {name: sorted(grid) for name, grid in grids.items()} if enough else {}

"""Pairs of inputs and later targets, in the order of time, from records with gaps."""

import warnings
from typing import NamedTuple

import numpy as np

REGULAR = 0.25
"""The largest deviation of a time difference from a whole number of steps: months are regular, purchases are not."""


class Pairs(NamedTuple):
    """Pairs of inputs `(..., d)` and later targets `(...)`, with the rows of the table from which they come."""

    inputs: np.ndarray
    target: np.ndarray
    rows: np.ndarray


def make_pairs(
    name: str,
    rows: np.ndarray,
    values: dict[str, np.ndarray],
    instants: np.ndarray | None,
    target: str,
    design: list[tuple[str, int]],
    missing: str,
) -> Pairs:
    """Returns one agent's pairs, in the order of time, in the unit of the table."""
    deepest = max((k for _, k in design), default=0)
    if instants is None:
        at = np.arange(len(rows))
    else:
        rows = rows[np.argsort(instants[rows], kind="stable")]
        at = _positions(name, rows, instants[rows], deepest, missing)
    if missing == "raise":
        for column, known in values.items():
            if np.isnan(known[rows]).any():
                row = rows[np.isnan(known[rows]).argmax()]
                raise ValueError(
                    f"Agent {name!r} has no value of {column!r} in row {row}. Fill it, drop the row, or leave out the "
                    "pairs that need it with `missing='skip'`."
                )
    # With an entry for every time, present or not, a lag is a shift, and a missing value makes its pairs NaN.
    length = at[-1] + 1
    filled = {column: np.full(length, np.nan) for column in values}
    for column, grid in filled.items():
        grid[at] = values[column][rows]
    row_at = np.zeros(length, dtype=np.int64)
    row_at[at] = rows
    ends = slice(deepest, length)
    past = [filled[column][deepest - k : max(length - k, 0)] for column, k in design]
    inputs = np.stack([np.ones(max(length - deepest, 0)), *past], axis=-1)
    complete = np.isfinite(inputs).all(-1) & np.isfinite(filled[target][ends])
    return Pairs(inputs[complete], filled[target][ends][complete], row_at[ends][complete])


def _positions(name: str, rows: np.ndarray, times: np.ndarray, deepest: int, missing: str) -> np.ndarray:
    """Returns the step of a regular clock for each row; gaps that are longer than every lag are shortened."""
    if len(times) < 2:
        return np.zeros(len(times), dtype=np.int64)
    steps = np.diff(times)
    if not steps.all():
        first = (steps == 0).argmax()
        raise ValueError(
            f"`time`: agent {name!r} has the same time twice, in rows {rows[first]} and {rows[first + 1]}. Drop one of "
            "them, or average them."
        )
    usual = np.sort(steps)[(len(steps) - 1) // 2]
    usual = steps[abs(steps / usual - 1) < REGULAR].mean()  # for months, their mean length
    ratio = steps / usual
    whole = np.maximum(np.round(ratio), 1)
    if (abs(ratio - whole) > REGULAR).any():
        worst = (abs(ratio - whole) > REGULAR).argmax()
        raise ValueError(
            f"`time`: the times of agent {name!r} are not regular: after row {rows[worst]} {ratio[worst]:.3g} usual "
            "steps pass. To take rows one after the other whenever they come, sort the table and leave `time` out."
        )
    if missing == "raise" and (whole > 1).any():
        first = (whole > 1).argmax()
        raise ValueError(
            f"`time`: agent {name!r} has {(whole > 1).sum()} gaps, the first after row {rows[first]}, where "
            f"{whole[first] - 1:g} rows are missing. Fill them, or leave out the pairs that need them with "
            "`missing='skip'`; where nights or weekends do not count, sort the table and leave `time` out."
        )
    return np.concatenate([[0], np.cumsum(np.minimum(whole, deepest + 1))]).astype(np.int64)


def cut_to_shortest(names: list[str], trains: list[Pairs], batch: int) -> Pairs:
    """Returns the latest pairs of every agent, in the number of whole batches that the shortest record has."""
    lengths = [len(pairs.target) for pairs in trains]
    kept = min(lengths) // batch * batch
    if kept < max(lengths) / 2:
        shortest = names[int(np.argmin(lengths))]
        warnings.warn(
            f"All training records are cut to {kept} pairs, what the shortest has, that of agent {shortest!r}; the "
            f"longest has {max(lengths)}. Leave out agents with short records to learn from more.",
            stacklevel=3,
        )
    return Pairs(*(np.stack([part[len(part) - kept :] for part in parts]) for parts in zip(*trains, strict=True)))

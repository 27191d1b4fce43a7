"""The columns of a pandas or polars table as arrays of numbers, without importing either package."""

import datetime
import math
import numbers
from typing import Any

import numpy as np

from .. import _check


class Table:
    """The columns of a pandas or polars table as arrays; both packages have `columns`, items and `to_numpy`."""

    def __init__(self, df: Any):
        if type(df).__name__ == "LazyFrame":
            raise ValueError("`df` must be a table, got a lazy one: call its `collect()` first.")
        if not hasattr(df, "columns") or not hasattr(df, "__getitem__"):
            raise ValueError(f"`df` must be a table of pandas or polars, got {type(df).__name__}.")
        self.df, self.columns, self.length = df, list(df.columns), len(df)
        if not self.length:
            raise ValueError("`df` has no rows.")

    def column(self, argument: str, name: Any) -> np.ndarray:
        """Returns the unchanged values of a column."""
        if name not in self.columns:
            near = _check.nearest(name, map(str, self.columns))
            raise ValueError(f"`{argument}` names a column {name!r}, which the table does not have.{near}")
        values = np.asarray(self.df[name].to_numpy())
        if values.ndim != 1:
            raise ValueError(f"`{argument}`: the table has several columns {name!r}. Rename them.")
        return values

    def numbers(self, argument: str, name: str) -> np.ndarray:
        """Returns a column of numbers, with NaN for missing values."""
        values = self.column(argument, name)
        if values.dtype.kind not in "biuf":
            values = [_number(argument, name, row, value) for row, value in enumerate(values)]
        found = np.asarray(values, dtype=np.float64)
        if np.isinf(found).any():
            raise ValueError(f"`{argument}`: column {name!r} is infinite in row {np.isinf(found).argmax()}.")
        return found

    def instants(self, name: str) -> np.ndarray:
        """Returns a column of times as numbers, in any unit."""
        values = self.column("time", name)
        if values.dtype.kind == "M":
            found = np.where(np.isnat(values), np.nan, values.astype("datetime64[us]").astype(np.float64))
        elif values.dtype.kind in "iuf":
            found = values.astype(np.float64)
        else:
            found = np.array([_instant(name, row, value) for row, value in enumerate(values)])
        if not np.isfinite(found).all():
            raise ValueError(f"`time`: column {name!r} is missing in row {(~np.isfinite(found)).argmax()}.")
        return found

    def groups(self, name: str | None) -> dict[str, np.ndarray]:
        """Returns the rows of each agent, in the order of the agents' first rows in the table."""
        if name is None:
            return {"all": np.arange(self.length)}
        found: dict[str, list[int]] = {}
        for row, value in enumerate(self.column("agent", name).tolist()):
            if _absent(value):
                raise ValueError(f"`agent`: column {name!r} is missing in row {row}.")
            found.setdefault(str(value), []).append(row)
        return {value: np.array(rows) for value, rows in found.items()}


def _absent(value: Any) -> bool:
    # pandas marks missing values of integer and text columns with NAType, which is not equal to itself.
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _number(argument: str, name: str, row: int, value: Any) -> float:
    if _absent(value):
        return math.nan
    if not isinstance(value, numbers.Number | np.bool_):
        raise ValueError(
            f"`{argument}`: column {name!r} must hold numbers, got {value!r} in row {row}. Convert it first."
        )
    return float(value)  # pyright: ignore[reportArgumentType]


def _instant(name: str, row: int, value: Any) -> float:
    try:
        found = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(found, datetime.datetime):
            found = datetime.datetime.combine(found, datetime.time())
        return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
    except (TypeError, ValueError):
        raise ValueError(
            f"`time`: column {name!r} must hold numbers, dates or text like 2015-01-01T13:00, got {value!r} in row "
            f"{row}. Convert it first: months, say, to 12 * year + month."
        ) from None

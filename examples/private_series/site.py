"""One site of a federation: it reads its own time series, which stays there, and helps to fit a shared predictor.

The next value is predicted from the last three and a constant. All sites share the four coefficients: those with the
smallest average squared error over the sites. Every site has the same weight, whatever the length of its record.
`fedhsa deploy` calls `build` on every node, with the name of the node's own file in `context.config["data"]`.
"""

import csv
import math
import pathlib

import numpy as np

import fedhsa as fh
from fedhsa.deploy import AgentContext, MeasuredAgent

LAGS, DAY = 3, 24
CENTRE, SCALE = 20.0, 5.0
"""Agreed on beforehand, independent of the data, and common to all sites: with its own mean and spread, each site would
fit coefficients with a different meaning, and no site has the mean and spread of all data."""


class Predictor(fh.AbstractAgent):
    """Least squares; one observation is a day of pairs: 24 rows of inputs, and the value after each row."""

    source: fh.AbstractSource

    def operator(self, theta, o, /):
        inputs, target = o
        return inputs.T @ (target - inputs @ theta) / DAY


def build(context: AgentContext) -> fh.AbstractAgent:
    """Returns the agent of this node; raises a `ValueError` that says what is wrong with its file."""
    return Predictor(fh.sources.Replay(days_of(context), wrap=True))


def build_and_measure(context: AgentContext) -> MeasuredAgent:
    """Returns the agent, which learns from the first four fifths of its days and is measured on the others."""
    inputs, target = days_of(context)
    count = len(target) - len(target) // 5
    test, truth = inputs[count:].reshape(-1, 1 + LAGS), target[count:].ravel()

    def error(theta: np.ndarray) -> dict[str, float]:
        """Returns the error in degrees, and the error of the forecast that the next hour equals the last."""
        misses = {"rmse": truth - test @ theta, "rmse_naive": truth - test[:, 1]}
        return {name: float(SCALE * np.sqrt(np.mean(miss**2))) for name, miss in misses.items()}

    agent = Predictor(fh.sources.Replay((inputs[:count], target[:count]), wrap=True))
    return MeasuredAgent(agent, error, weight=len(truth))


def days_of(context: AgentContext) -> tuple[np.ndarray, np.ndarray]:
    """Returns the days of this node's file."""
    name = context.config.get("data")
    if not name:
        raise ValueError("`data` must name this node's file: `--data PATH`, or data='PATH' in `--node-config`.")
    return days(read(pathlib.Path(name).expanduser()))


def days(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs `(days, 24, 4)` and targets `(days, 24)`; hours after the last whole day are omitted."""
    scaled = (values - CENTRE) / SCALE
    count = (len(scaled) - LAGS) // DAY
    target = scaled[LAGS:]
    inputs = np.stack([np.ones_like(target), *(scaled[LAGS - k : -k] for k in range(1, LAGS + 1))], axis=-1)
    return inputs[: count * DAY].reshape(count, DAY, 1 + LAGS), target[: count * DAY].reshape(count, DAY)


def read(path: pathlib.Path) -> np.ndarray:
    """Returns the values of a file with the columns `time`, in whole hours without gaps, and `value`."""
    if not path.is_file():
        raise ValueError(f"`data`: there is no file {str(path)!r} on this node.")
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"time", "value"} <= set(reader.fieldnames or ()):
            raise ValueError(f"`data`: {str(path)!r} must begin with a line that names the columns time,value.")
        rows = [[_number(row[column], column, reader.line_num, path) for column in ("time", "value")] for row in reader]
    if len(rows) < LAGS + DAY:
        raise ValueError(f"`data`: {str(path)!r} has {len(rows)} rows, a day of pairs needs {LAGS + DAY}.")
    times, values = np.array(rows).T
    if (gaps := np.flatnonzero(np.diff(times) != 1)).size:
        raise ValueError(f"`data`: in {str(path)!r} time {times[gaps[0]]:g} is not followed by the next hour.")
    return values


def _number(text: str | None, column: str, line: int, path: pathlib.Path) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"`data`: line {line} of {str(path)!r} has {text!r} as its {column}, which is no number.")
    return number

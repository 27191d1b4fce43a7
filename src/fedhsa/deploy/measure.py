"""Measurements of sites on their own data: their definition at a site, and their storage at the server."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from .. import _check
from .._random import host_generator
from .._types import SeedLike
from ..sources import AbstractStream
from .outcome import Record
from .wire import RejectedError

Measure: TypeAlias = Callable[[np.ndarray], Mapping[str, float]]
"""A function that maps a parameter to named numbers."""

MOST = 16
"""The largest number of measurements that an agent may report."""
ALL = 4 * MOST
"""The largest number of different names that the server stores, so that a site cannot fill its memory."""
THETA, VALUES = "measure/theta", "measure/values"
"""The arrays of a request and of a reply: the parameter to measure at; per agent its numbers, and last its weight."""
_TAKEN = {*Record._fields, "round", "seed", "theta", "agent", "weight"}


class MeasuredAgent(NamedTuple):
    """An agent with a function that evaluates parameters on the site's own data, preferably held-out data.

    Sites measure the server's parameter at the beginning of every round, and the last parameter at the end. Only the
    numbers leave a site; the server averages them with the weights. A site that adds noise to its replies does not
    send them unless `release_metrics` is set.

    **Arguments:**

    - `agent`: an agent, or a `Live` agent.
    - `measure`: a function that takes a parameter, a vector, and returns numbers by name. The first is the main metric
      of the run. A name that extends another, as `rmse_naive` extends `rmse`, is drawn as its reference.
    - `weight`: the agent's weight in averages, such as its number of observations. Default: `measure.weight` if it
      exists, and 1 otherwise.

    !!! example
        >>> agent = fedhsa.tree.take(fedhsa.problems.quadratic.random(num_agents=2, dim=2).agents, 0)
        >>> MeasuredAgent(agent, lambda theta: {"loss": float(theta @ theta)}, weight=20).counts
        20.0
    """

    agent: Any
    measure: Measure
    weight: float | None = None

    @property
    def counts(self) -> float:
        found = getattr(self.measure, "weight", 1.0) if self.weight is None else self.weight
        _check.scalar("weight", found, least=0.0, remedy="It says how much an agent counts in averages.")
        return float(found)


class Returns:
    """What a stream that is judged by returns measures by itself: those of episodes played for that alone.

    With the generators that `simulate` uses, so that a run by messages records what it records.
    """

    named: ClassVar[tuple[str, ...]] = ("mean_return",)

    def __init__(self, stream: AbstractStream, key: SeedLike, number: int):
        self._stream, self._key, self._number = stream, key, number

    def __call__(self, theta: np.ndarray, round: int = 0) -> dict[str, float]:
        generator = host_generator(self._key, "returns", self._number, round)
        found = type(self._stream).returns_together([self._stream], [generator], [theta])
        return {"mean_return": float(found[0])}


def with_returns(
    measured: Sequence[MeasuredAgent | None] | None,
    streams: Sequence[AbstractStream] | None,
    key: SeedLike,
    numbers: Sequence[int],
) -> list[MeasuredAgent | None]:
    """What agents measure: what they were built with, or else the returns of their streams, where these know any."""
    found: list[MeasuredAgent | None] = [None] * len(numbers) if measured is None else list(measured)
    for i, stream in enumerate(streams or []):
        if found[i] is None and stream.judged_by is not None:
            found[i] = MeasuredAgent(None, Returns(stream, key, int(numbers[i])))
    return found


class Meter:
    """The measuring side: all agents of one site, whose numbers have the same names; None for those without any.

    What they measure is tried with the parameter `theta`, so that a mistake shows before the first round.
    """

    def __init__(self, measured: Sequence[MeasuredAgent | None], theta: np.ndarray):
        self._measured = measured
        # Playing episodes takes long, and their name is known.
        found = [
            list(one.measure.named) if isinstance(one.measure, Returns) else names(one.measure(theta.copy()))
            for one in measured
            if one is not None
        ]
        self.names = max(found, key=len, default=[])
        self._weights = [0.0 if one is None else one.counts for one in measured]

    def __call__(self, theta: np.ndarray, round: int = 0) -> np.ndarray:
        """Per agent the numbers by `names`, and last the weight; NaN for what an agent does not give."""
        values = np.full((len(self._measured), len(self.names) + 1), np.nan)
        values[:, -1] = self._weights
        for row, one in zip(values, self._measured, strict=True):
            if one is not None:
                own = one.measure
                given = own(theta.copy(), round) if isinstance(own, Returns) else own(theta.copy())
                row[:-1] = [float(given.get(name, np.nan)) for name in self.names]
        return values


def names(given: Any) -> list[str]:
    """The names of what was measured; raises if they are not ones that every table, file and program can take."""
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f'`measure` must give numbers by name, like {{"rmse": 0.3}}, got {given!r}.')
    for name, value in given.items():
        if not _is_name(name):
            raise ValueError(
                f"`measure`: {name!r} cannot be the name of a number. Use letters, digits and _, and none of "
                f"{', '.join(sorted(_TAKEN))}."
            )
        if not isinstance(value, int | float | np.number) and np.shape(value) != ():
            raise ValueError(f"`measure`: {name!r} must be one number, got {value!r}.")
        float(value)
    if len(given) > MOST:
        raise ValueError(f"`measure` must give at most {MOST} numbers, got {len(given)}.")
    return list(given)


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name not in _TAKEN and bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,39}", name))


class SiteReport(NamedTuple):
    """What one site has measured: the names, and per agent the numbers and last the weight."""

    names: list[str]
    values: np.ndarray

    @classmethod
    def read(cls, named: Any, values: np.ndarray | None, agents: int) -> "SiteReport | None":
        """What a reply says; None where it says nothing, and an error where it makes no sense."""
        if values is None:
            return None
        fits = isinstance(named, list) and len(named) <= MOST and all(map(_is_name, named))
        if not fits or len(set(named)) < len(named) or values.shape != (agents, len(named) + 1):
            raise RejectedError("malformed", "what was measured does not have a name and a number each")
        if values.dtype != np.float64 or not (np.isfinite(values[:, -1]) & (values[:, -1] >= 0)).all():
            raise RejectedError("malformed", "what was measured does not have weights")
        return cls(named, values)


class Measurements:
    """The server's side: by round and name a number for each agent, NaN where none came.

    !!! example
        >>> kept = Measurements(2)
        >>> kept.put(0, [0], SiteReport(["rmse"], np.array([[3.0, 1.0]])))
        >>> kept.put(0, [1], SiteReport(["rmse"], np.array([[5.0, 3.0]])))
        >>> kept.mean(kept.at(0)["rmse"])
        4.5
    """

    def __init__(self, num_agents: int):
        self.weights = np.zeros(num_agents)
        self.names: list[str] = []
        self._rows: dict[int, dict[str, np.ndarray]] = {}
        self._new: set[int] = set()  # rounds that are not kept elsewhere

    def put(self, round: int, numbers: Any, report: SiteReport) -> None:
        """Keeps what the agents `numbers` have measured of the parameter after `round` rounds."""
        row = self._rows.setdefault(round, {})
        self._new.add(round)
        self.names += [name for name in report.names if name not in self.names][: ALL - len(self.names)]
        for name, column in zip(report.names, report.values.T, strict=False):
            if name in self.names:
                row.setdefault(name, np.full(len(self.weights), np.nan))[numbers] = column
        self.weights[numbers] = report.values[:, -1]

    def at(self, round: int) -> dict[str, np.ndarray]:
        """What the parameter after so many rounds was worth, by name and agent; empty where nobody measured it."""
        return self._rows.get(round, {})

    def mean(self, values: np.ndarray) -> float:
        """The weighted average over the agents that gave a finite number; NaN if there is none."""
        weights = self.weights
        there = np.isfinite(values) & (weights > 0)
        with np.errstate(over="ignore", invalid="ignore"):  # a site may say anything
            return float(np.average(values[there], weights=weights[there])) if there.any() else float("nan")

    def facts(self, round: int) -> dict[str, Any] | None:
        """The same for the log: what was measured of the parameter after `round` rounds."""
        if not (row := self.at(round)):
            return None
        metrics = {name: {"mean": self.mean(row[name]), "agents": row[name]} for name in self.names if name in row}
        return {"round": round, "metrics": metrics, "weights": self.weights}

    def columns(self, records: int) -> dict[str, np.ndarray]:
        """The averages, `(1, records)`, and under `..._by_agent` each agent's own, `(1, records, M)`."""
        found = {}
        for name in self.names:
            table = np.full((records, len(self.weights)), np.nan)
            for round, row in self._rows.items():
                if round < records and name in row:
                    table[round] = row[name]
            found[name] = np.array([self.mean(values) for values in table])[None]
            found[f"{name}_by_agent"] = table[None]
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """What is not kept elsewhere, for a checkpoint."""
        if not self.names:
            return {}
        rounds, agents = sorted(self._new), len(self.weights)
        unknown = np.full(agents, np.nan)
        kept = {
            f"measured/{i}.{name}": np.array([self._rows[t].get(name, unknown) for t in rounds]).reshape(-1, agents)
            for i, name in enumerate(self.names)
        }
        return {"measured/rounds": np.array(rounds, np.int64), "measured/weights": self.weights, **kept}

    def rows(self) -> np.ndarray:
        """The same as rows of numbers: the round, which name it is, and a number for each agent."""
        new = [(t, i, self._rows[t].get(name)) for t in sorted(self._new) for i, name in enumerate(self.names)]
        found = [(t, i, *values) for t, i, values in new if values is not None]
        return np.array(found, float).reshape(-1, 2 + len(self.weights))

    def keep(self) -> None:
        """Notes that `rows` are kept elsewhere."""
        self._new.clear()

    @classmethod
    def read(cls, num_agents: int, arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> "Measurements":
        """What `rows` gave and, later, `arrays`."""
        found = cls(num_agents)
        if "measured/rounds" not in arrays:
            return found
        kept = {key: values for key, values in arrays.items() if re.match(r"measured/\d+\.", key)}
        ordered = sorted(kept, key=lambda key: int(key[9:].partition(".")[0]))
        found.names = [key.partition(".")[2] for key in ordered]
        for t, i, *values in rows.tolist():
            found._rows.setdefault(int(t), {})[found.names[int(i)]] = np.array(values)
        found._new = set(arrays["measured/rounds"].tolist())
        for name, key in zip(found.names, ordered, strict=True):
            for round, values in zip(arrays["measured/rounds"].tolist(), kept[key], strict=True):
                found._rows.setdefault(round, {})[name] = values
        found.weights = arrays["measured/weights"].copy()
        return found

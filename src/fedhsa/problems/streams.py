"""Streams of real data: the groups of a table become agents that learn to predict the next value from past values."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from .. import _check, tree
from ..sources import Replay
from ._pairs import Pairs, cut_to_shortest, make_pairs
from ._tables import Table
from .base import AbstractAgent, Problem

__all__ = ["HeldOut", "LinearAgent", "LogisticAgent", "Streams", "from_dataframe"]

KINDS = ("linear", "logistic")
MISSING = ("raise", "skip")

Lags: TypeAlias = int | Sequence[int] | Mapping[str, int | Sequence[int]]
Scales: TypeAlias = Mapping[str, tuple[float, float]]


class LinearAgent(AbstractAgent):
    r"""Least squares: $G_i(\theta, (X, y)) = \frac1B X^T (y - X \theta) - \lambda \theta$ for $B$ pairs at a time."""

    regularisation: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        inputs, target = o
        return inputs.T @ (target - inputs @ theta) / len(target) - self.regularisation * theta

    def lipschitz(self, o, /):
        return _square_norm(o[0]) + self.regularisation


class LogisticAgent(AbstractAgent):
    r"""Classes -1 and 1: $G_i(\theta, (X, y)) = \frac1B \sum_b \sigma(-y_b x_b^T \theta) y_b x_b - \lambda \theta$."""

    regularisation: np.ndarray

    def operator(self, theta, o, /):
        inputs, target = o
        pull = jax.nn.sigmoid(-target * (inputs @ theta)) * target
        return inputs.T @ pull / len(target) - self.regularisation * theta

    def lipschitz(self, o, /):
        return _square_norm(o[0]) / 4 + self.regularisation  # the sigmoid is steepest at theta = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Streams:
    """The agents of a table, and the later part of their records, which is held out for testing.

    Algorithms run on `problem`. Its root is the centralised fit to all training pairs, equally many from each agent.
    """

    problem: Problem
    names: tuple[str, ...]
    """The agents, in the order in which the table first names them."""
    columns: tuple[str, ...]
    """The input that each coefficient multiplies."""
    kind: str
    target: str
    scales: dict[str, tuple[float, float]]
    """Centre and scale of each column; pass them as `standardise` to scale other tables in the same way."""
    train: Pairs
    """`(M, T, d)`, `(M, T)` and `(M, T)`, scaled, in the order in which they are replayed."""
    test: tuple[Pairs, ...]
    """One for each agent, `(N_i, d)`, `(N_i,)` and `(N_i,)`: the pairs after its training pairs, in the same scale."""

    @property
    def alone(self) -> np.ndarray:
        """Each agent's fit to its own training pairs, `(M, d)`; NaN if they do not determine a unique fit."""
        return self.problem.local_roots

    def agent(self, number: int = 0) -> AbstractAgent:
        """A single agent, as a node of a federation builds it from its own table."""
        return tree.take(self.problem.agents, number)

    def held_out(self, number: int = 0) -> "HeldOut":
        """The function that evaluates coefficients on the test pairs of one agent, for the report of a site."""
        return HeldOut(self, number)

    def predict(self, theta: Any) -> tuple[np.ndarray, ...]:
        """Each agent's predictions for its test pairs: values in the unit of the table, or probabilities of a 1.

        **Arguments:**

        - `theta`: common coefficients, `(d,)`, or each agent's own, `(M, d)`.

        Raises `ValueError` if there are no test pairs or `theta` has another shape.
        """
        each = self._coefficients(theta)
        values = (pairs.inputs @ own for pairs, own in zip(self.test, each, strict=True))
        if self.kind == "logistic":
            return tuple(scipy.special.expit(value) for value in values)
        centre, scale = self.scales[self.target]
        return tuple(centre + scale * value for value in values)

    def losses(self, theta: Any) -> tuple[np.ndarray, ...]:
        """The loss of each test pair for each agent, in the order of time: squared errors in the unit of the table, or
        logarithmic losses.

        Losses of neighbouring pairs are correlated, so confidence intervals should use blocks of them.
        """
        if self.kind == "logistic":
            margins = (p.target * (p.inputs @ t) for p, t in zip(self.test, self._coefficients(theta), strict=True))
            return tuple(np.logaddexp(0, -margin) for margin in margins)
        centre, scale = self.scales[self.target]
        targets = (centre + scale * pairs.target for pairs in self.test)
        return tuple((y - p) ** 2 for y, p in zip(targets, self.predict(theta), strict=True))

    def test_error(self, theta: Any) -> np.ndarray:
        """Each agent's error on its test pairs, `(M,)`: the root-mean-square error, or the mean log loss."""
        means = np.array([loss.mean() for loss in self.losses(theta)])
        return np.sqrt(means) if self.kind == "linear" else means

    def _coefficients(self, theta: Any) -> np.ndarray:
        if not all(len(pairs.target) for pairs in self.test):
            raise ValueError("There are no test pairs: `from_dataframe` was called with `test_share=0`.")
        shape = (len(self.names), len(self.columns))
        theta = np.asarray(theta, dtype=np.float64)
        if theta.shape not in (shape, shape[1:]):
            raise ValueError(f"`theta` must have shape {shape[1:]}, or {shape} for separate ones, got {theta.shape}.")
        return np.broadcast_to(theta, shape)


class HeldOut:
    """An agent's error on its test pairs, with two errors for comparison.

    A call with coefficients returns `rmse`, in the unit of the table, or `log_loss`. `..._naive` is the error of the
    best simple forecast: the value of one of the lags or the mean, whichever fits the training pairs best (for two
    classes: their frequencies). `..._alone` is the error of the agent's own fit to its training pairs.

    **Arguments:**

    - `streams`: the result of `from_dataframe`.
    - `number`: the index of the agent.

    !!! example
        >>> import pandas as pd
        >>> table = pd.DataFrame({"value": np.sin(np.arange(100.0))})
        >>> made = from_dataframe(table, agent=None, target="value", lags=2)
        >>> measure = made.held_out()
        >>> measure.weight, {name: round(value, 3) for name, value in measure(made.problem.theta_star).items()}
        (20.0, {'rmse': 0.0, 'rmse_naive': 0.669, 'rmse_alone': 0.0})
    """

    def __init__(self, streams: Streams, number: int = 0):
        self._streams = dataclasses.replace(  # the others' pairs are not needed
            streams, names=streams.names[number : number + 1], test=streams.test[number : number + 1]
        )
        self.name = "rmse" if streams.kind == "linear" else "log_loss"
        self.weight = float(len(self._streams.test[0].target))
        """The number of test pairs."""
        self._train = Pairs(*(part[number] for part in streams.train))
        alone = self._error(streams.alone[number])
        self._references = {f"{self.name}_naive": self._naive(), f"{self.name}_alone": alone}

    def __call__(self, theta: Any) -> dict[str, float]:
        return {self.name: self._error(theta), **self._references}

    def _error(self, theta: Any) -> float:
        return float(self._streams.test_error(theta)[0])

    def _naive(self) -> float:
        (test,), train = self._streams.test, self._train
        if self._streams.kind == "logistic":
            chance = (1 + (train.target > 0).sum()) / (2 + len(train.target))  # never quite 0 or 1
            return float(-np.where(test.target > 0, np.log(chance), np.log1p(-chance)).mean())
        # A lag of the target has the target's scale, so its value needs no conversion.
        ways = [
            (train.target - train.inputs[:, j], test.target - test.inputs[:, j])
            for j, column in enumerate(self._streams.columns)
            if column.startswith(f"{self._streams.target} ") and column.endswith(" before")
        ]
        ways.append((train.target - train.target.mean(), test.target - train.target.mean()))
        _, misses = min(ways, key=lambda way: float(np.mean(way[0] ** 2)))
        _, scale = self._streams.scales[self._streams.target]
        return float(scale * np.sqrt(np.mean(misses**2)))


def from_dataframe(
    df: Any,
    *,
    agent: str | None,
    target: str,
    lags: Lags,
    time: str | None = None,
    inputs: Sequence[str] = (),
    kind: str = "linear",
    test_share: float = 0.2,
    standardise: bool | Scales = True,
    missing: str = "raise",
    regularisation: float = 0.0,
    batch: int = 1,
) -> Streams:
    r"""Makes an agent of each group of a table; agents predict a column from its past, replayed in order.

    The groups' records may differ in length. Training records are cut at their beginning to the length of the
    shortest: all agents then pass over their records equally often and have equal weight, and the root is the
    centralised fit to all these pairs. A run that is longer than the record starts over.

    **Arguments:**

    - `df`: a table of pandas or polars.
    - `agent`: the column with the name of each row's agent. None: the whole table belongs to one agent.
    - `target`: the column to predict; for `kind="logistic"` it has two values: 0 and 1, -1 and 1, or booleans.
    - `lags`: the past values used for the prediction: 3 means the last three, `(1, 24)` the values one and 24 steps
      before, and 0 none. `{"column": lags}` uses past values of other columns. A constant is always among the inputs.
    - `time`: the column to sort by: numbers, dates, or text like 2015-01-01T13:00. None: the rows are already sorted.
    - `inputs`: further columns whose value at the time of the target is known beforehand, such as the hour.
    - `kind`: `"linear"` for least squares, `"logistic"` for the probability of a 1.
    - `test_share`: the share of each agent's pairs, the latest ones, that is held out.

    **About the data:**

    - `standardise`: True subtracts the mean of all agents' training values from a column, and divides by their spread.
      A mapping `{"column": (centre, scale)}` uses numbers agreed on beforehand, which sites need if they cannot see
      each other's data. Columns are never scaled by each agent's own mean and spread: the coefficients would then have
      a different meaning for every agent.
    - `missing`: `"raise"` raises an error for missing values and for gaps in `time`; `"skip"` omits only the pairs that
      need a missing value.
    - `regularisation`: $\lambda$; it acts on the scaled coefficients, including the constant.
    - `batch`: the number of consecutive pairs in one observation; 24 turns hours into days.

    Raises `ValueError` if a column is missing or has invalid values, or if an agent has too few rows.

    !!! example
        >>> import pandas as pd
        >>> table = pd.DataFrame({"site": ["a"] * 50 + ["b"] * 50, "value": np.sin(np.arange(100.0) ** 1.5)})
        >>> streams = from_dataframe(table, agent="site", target="value", lags=2)
        >>> streams.names, streams.columns
        (('a', 'b'), ('constant', 'value 1 before', 'value 2 before'))
        >>> result = fedhsa.simulate(streams.problem, fedhsa.FedHSA(0.05, local_steps=10), rounds=20)
        >>> streams.test_error(result.theta[0]).shape
        (2,)
    """
    _check.choice("kind", kind, KINDS)
    _check.choice("missing", missing, MISSING)
    _check.number("test_share", test_share, least=0.0)
    _check.number("regularisation", regularisation, least=0.0)
    if test_share >= 1:
        raise ValueError(f"`test_share` must be below 1, got {test_share}: some pairs must remain for training.")
    B = _check.count("batch", batch)
    lagged = _lags_by_column(lags, target)
    table = Table(df)
    values = {target: table.numbers("target", target)}
    values |= {name: table.numbers("lags", name) for name in lagged}
    values |= {name: table.numbers("inputs", name) for name in _known(inputs, target)}
    if kind == "logistic":
        values[target] = _signs(target, values[target])
    instants = None if time is None else table.instants(time)
    design = [(name, k) for name in lagged for k in lagged[name]] + [(name, 0) for name in inputs]

    names, trains, tests = [], [], []
    for name, rows in table.groups(agent).items():
        pairs = make_pairs(name, rows, values, instants, target, design, missing)
        count = len(pairs.target)
        held_out = math.ceil(test_share * count - 1e-9)  # 0.28 * 25 is a little more than 7
        if count - held_out < B:
            deepest = max((k for _, k in design), default=0)
            raise ValueError(
                f"Agent {name!r} has {len(rows)} rows, which with `lags` up to {deepest} give {count} pairs, "
                f"{held_out} of them for the test: too few for one observation, `batch` is {B}. Drop this agent, or "
                "use fewer lags."
            )
        names.append(name)
        trains.append(Pairs(*(part[: count - held_out] for part in pairs)))
        tests.append(Pairs(*(part[count - held_out :] for part in pairs)))
    train = cut_to_shortest(names, trains, B)
    fixed = {target} if kind == "logistic" else set()
    scales = _scales(standardise, train, target, design, fixed)
    train, *tests = (_scaled(pairs, scales, target, design) for pairs in (train, *tests))
    columns = ("constant", *(f"{name} {k} before" if k else name for name, k in design))
    return Streams(
        problem=_problem(kind, train, regularisation, B, columns),
        names=tuple(names),
        columns=columns,
        kind=kind,
        target=target,
        scales=scales,
        train=train,
        test=tuple(tests),
    )


def _known(inputs: Any, target: str) -> list[str]:
    if isinstance(inputs, str):
        raise ValueError(f"`inputs` must be a list of columns, got {inputs!r}: write [{inputs!r}].")
    if target in inputs:
        raise ValueError(f"`inputs` must not name the target, got {target!r}: it is not known beforehand. Use `lags`.")
    return list(inputs)


def _lags_by_column(lags: Any, target: str) -> dict[str, list[int]]:
    """The lags of each column."""
    each = lags if isinstance(lags, Mapping) else {target: lags}
    found = {}
    for name, some in each.items():
        several = isinstance(some, Sequence | np.ndarray) and not isinstance(some, str)
        some = list(some) if several else range(1, 1 + _check.count("lags", some, least=0))
        found[name] = [_check.count("lags", k, remedy="A lag of 0 is the value to predict.") for k in some]
        if len(set(found[name])) < len(found[name]):
            raise ValueError(f"`lags` must not name a lag twice, got {found[name]}.")
    return found


def _signs(name: str, values: np.ndarray) -> np.ndarray:
    """Two classes as -1 and 1."""
    known = np.unique(values[~np.isnan(values)])
    if not (np.isin(known, (0, 1)).all() or np.isin(known, (-1, 1)).all()):
        raise ValueError(
            f"`target`: for `kind='logistic'` column {name!r} must contain 0 and 1, -1 and 1, or booleans, got "
            f"{', '.join(f'{v:g}' for v in known[:4])}{' and others' if len(known) > 4 else ''}."
        )
    return np.where(np.isnan(values), np.nan, np.where(values > 0, 1.0, -1.0))


def _scales(
    standardise: Any, train: Pairs, target: str, design: list[tuple[str, int]], fixed: set[str]
) -> dict[str, tuple[float, float]]:
    """Centre and scale of every column, from its training values; classes are not scaled."""
    found: dict[str, tuple[float, float]] = {}
    inputs = np.moveaxis(train.inputs[..., 1:], -1, 0)  # one by one, without the constant
    for name, values in [(target, train.target), *zip([name for name, _ in design], inputs, strict=True)]:
        if name in found:
            continue
        if name in fixed or standardise is False:
            found[name] = (0.0, 1.0)
        elif isinstance(standardise, Mapping):
            found[name] = _agreed(standardise, name)
        elif standardise is True:
            found[name] = (float(values.mean()), float(values.std()))
        else:
            raise ValueError(f"`standardise` must be True, False or a mapping of columns, got {standardise!r}.")
        if not found[name][1] > 1e-12 * abs(found[name][0]):
            raise ValueError(
                f"Column {name!r} is constant, {found[name][0]:g}, over all training rows, and cannot be scaled. "
                "Omit it, since a constant is always among the inputs."
            )
    return found


def _agreed(standardise: Mapping, name: str) -> tuple[float, float]:
    if name not in standardise:
        near = _check.nearest(name, map(str, standardise))
        raise ValueError(f"`standardise` must have a centre and a scale for column {name!r}.{near}")
    centre, scale = standardise[name]
    _check.number("standardise", centre)
    _check.number("standardise", scale, above=0.0, remedy=f"It is the scale of {name!r}.")
    return float(centre), float(scale)


def _scaled(pairs: Pairs, scales: Scales, target: str, design: list[tuple[str, int]]) -> Pairs:
    centres, spreads = np.array([(0.0, 1.0), *(scales[name] for name, _ in design)]).T
    centre, spread = scales[target]
    return Pairs((pairs.inputs - centres) / spreads, (pairs.target - centre) / spread, pairs.rows)


def _problem(kind: str, train: Pairs, regularisation: float, batch: int, columns: tuple[str, ...]) -> Problem:
    M, T, d = train.inputs.shape
    observations = train.inputs.reshape(M, T // batch, batch, d), train.target.reshape(M, T // batch, batch)
    agent = LinearAgent if kind == "linear" else LogisticAgent
    agents = agent(Replay(observations, wrap=True), np.full(M, float(regularisation)))
    try:
        return Problem(agents, like=np.zeros(d), names=columns)
    except ValueError as error:
        raise ValueError(
            f"The training pairs have no unique fit: {error} A positive `regularisation` makes it unique."
        ) from error


def _square_norm(inputs: Any) -> Any:
    """The largest eigenvalue of the mean of $x x^T$; a single pair needs no singular values."""
    one = inputs.shape[0] == 1
    return jnp.sum(inputs**2) if one else jnp.linalg.norm(inputs, ord=2) ** 2 / inputs.shape[0]

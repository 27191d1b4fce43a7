"""The result of a run: its curves as arrays, tables and figures, and its file format."""

import dataclasses
import html
import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import _files, statistics
from .._extras import install
from .._table import FIXED, Table
from ..algorithms import Cost
from ..statistics import Estimate
from ..tracking.base import AbstractTracker

if TYPE_CHECKING:  # loaded only when they are used
    import pandas
    import xarray
    from matplotlib.figure import Figure

KIND = "result"


SIGNED = ("mean_return",)
"""Quantities that may be negative and are shown on a linear axis."""


class _LazyCost:
    """A field that may be given as a function without arguments, which is called when the cost is first read."""

    def __get__(self, result: Any, owner: Any = None) -> Cost:
        if result is None:
            raise AttributeError("cost")  # so that the dataclass sees no default
        value = vars(result)["cost"]
        if not isinstance(value, Cost):
            value = vars(result)["cost"] = value()
        return value

    def __set__(self, result: Any, value: Cost | Callable[[], Cost]) -> None:
        vars(result)["cost"] = value


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Result:
    """A finished (or interrupted) simulation; all arrays are NumPy arrays.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10, seeds=2)
        >>> result.error.shape, result.theta.shape, result.status.tolist()
        ((2, 11), (2, 3), ['ok', 'ok'])
        >>> low, high = result.interval(level=0.9)
        >>> bool((low <= result.mean()).all() and (result.mean() <= high).all())
        True
    """

    error: np.ndarray
    """Squared distance to the root, `(seeds, records)`; entry 0 is before the first round."""
    theta: Any
    """The parameter after the last round, `(seeds, d)`. If the parameter is a pytree, this is the same pytree, with a
    leading axis for the seeds on its arrays."""
    rounds: np.ndarray
    """The recorded rounds, `(records,)`: 0, 1, 2, ... unless `every` was given."""
    records: dict[str, np.ndarray]
    """All recorded quantities by name, `(seeds, records, ...)`. After a seed has diverged, its real numbers are
    infinite; after all seeds have diverged, integers keep their last values."""
    failed_round: np.ndarray
    """The round in which each seed diverged, or -1."""
    settings: dict[str, Any]
    """Everything that determines the numbers: algorithm, problem, key, seeds, precision, versions."""
    timings: dict[str, float]
    """Seconds spent compiling and running."""
    cost: _LazyCost = _LazyCost()
    """The cost of one round for an agent: a `Cost`, or a function that counts it when it is first read."""
    complete: bool = True
    """False if the run was interrupted, so that the curves are shorter than requested."""

    @property
    def status(self) -> np.ndarray:
        """For each seed `"ok"` or `"diverged"`; `failed_round` has the round."""
        return np.where(self.failed_round >= 0, "diverged", "ok")

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, with the wrapped algorithm in brackets."""
        return _name(self.settings["algorithm"])

    @property
    def quantity(self) -> str:
        """The quantity that the run is judged by.

        It is `"error"` if the root is known. Otherwise it is the first of these that was recorded: the metric that the
        sites measure, `"mean_return"`, `"operator_norm"`, and `"movement"`, the distance that the parameter moved.
        """
        others = (*self.settings.get("measured", ())[:1], "mean_return", "operator_norm", "movement")
        known = [name for name in others if name in self.records and not np.isnan(self.records[name]).all()]
        return known[0] if known and np.isnan(self.error).all() else "error"

    def mean(self, quantity: str | None = None) -> np.ndarray:
        """The mean over seeds of a recorded quantity, `(records, ...)`. It is infinite where a seed has diverged.

        **Arguments:**

        - `quantity`: the name of a recorded quantity. Defaults to `Result.quantity`, the error if the root is known.

        Raises `ValueError` if `quantity` was not recorded.
        """
        return self._statistics(quantity, 0.95)[0]

    def interval(self, level: float = 0.95, quantity: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends of a confidence interval for `mean`, `(records, ...)` each, or NaN for one seed.

        **Arguments:**

        - `level`: the probability that an interval covers the mean, for each record separately.
        - `quantity`: as for `mean`.

        `fedhsa.statistics.interval` describes how the interval is computed. Raises `ValueError` if `quantity` was not
        recorded or `level` is not between 0 and 1.
        """
        _, low, high = self._statistics(quantity, level)
        return low, high

    def _statistics(self, quantity: str | None, level: float) -> tuple[np.ndarray, ...]:
        name = quantity or self.quantity
        if name not in self.records:
            remedy = "The problem has no root." if name == "error" else f"Simulate with `record=[{name!r}]`."
            known = ", ".join(self.records) or "nothing here"
            raise ValueError(f"`quantity` must be one of the recorded quantities ({known}), got {name!r}. {remedy}")
        if not (isinstance(level, int | float) and 0 < level < 1):
            raise ValueError(f"`level` must be a probability between 0 and 1, like 0.95, got {level!r}.")
        values = self.records[name]
        columns = values.reshape(len(values), -1)
        unknown = np.isnan(columns).all(0)  # a quantity that was not measured is unknown, not infinite
        found = statistics.interval(columns, level, positive=name not in SIGNED)
        return tuple(np.where(unknown, np.nan, curve).reshape(values.shape[1:]) for curve in found)

    def plot(self, quantity: str | None = None, **options: Any) -> "Figure":
        """Draws the mean over seeds with its interval against rounds.

        **Arguments:**

        - `quantity`: as for `mean`.
        - `options`: the options of `fedhsa.plots.curves`.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
            >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10, seeds=2)
            >>> result.plot(title="four agents").savefig("curve.png")
        """
        from .. import plots

        return plots.curves({self.algorithm: self}, quantity=quantity or self.quantity, **options)

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas table with one row per seed and record: `seed`, `round`, and a column for each recorded number.

        The entries of a vector are columns `theta[0]`, `theta[1]` and so on. Raises `ModuleNotFoundError` if pandas is
        not installed.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
            >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=2, record=["theta"])
            >>> result.to_pandas().columns.tolist()
            ['seed', 'round', 'error', 'theta[0]', 'theta[1]', 'theta[2]']
        """
        self._check_names("seed", "round")
        seeds, records = self.error.shape
        columns = {"seed": np.repeat(np.arange(seeds), records), "round": np.tile(self.rounds, seeds)}
        for name, values in self.records.items():
            entries = [f"{name}{list(at)}".replace(" ", "") if at else name for at in np.ndindex(values.shape[2:])]
            columns |= dict(zip(entries, values.reshape(seeds * records, -1).T, strict=True))
        return optional_package("pandas").DataFrame(columns)

    def to_xarray(self) -> "xarray.Dataset":
        """An xarray dataset over `seed` and `round`. The axes of a vector or matrix `x` are `x_0`, `x_1` and so on.

        Raises `ModuleNotFoundError` if xarray is not installed.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
            >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=2, record=["theta"])
            >>> dict(result.to_xarray().sizes)
            {'seed': 1, 'round': 3, 'theta_0': 3}
        """
        self._check_names("seed", "round", "failed_round")
        variables: dict[str, tuple] = {
            name: (("seed", "round", *(f"{name}_{axis}" for axis in range(values.ndim - 2))), values)
            for name, values in self.records.items()
        }
        variables["failed_round"] = (("seed",), self.failed_round)
        coordinates = {"seed": np.arange(len(self.error)), "round": self.rounds}
        return optional_package("xarray").Dataset(variables, coordinates, {"algorithm": self.algorithm})

    def parameters(self, level: float = 0.95) -> dict[str, Estimate]:
        """The mean over seeds of each entry of the final parameter, with its interval.

        The names are those of the problem (`Problem(names=...)`, the columns of a table), or `theta[0]`, `theta[1]` and
        so on. With a single seed the ends of the interval are NaN.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
            >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=100, seeds=4)
            >>> list(result.parameters())
            ['theta[0]', 'theta[1]', 'theta[2]']
            >>> found = result.parameters(level=0.9)["theta[1]"]
            >>> bool(found.low < found.value < found.high)
            True
        """
        seeds, columns, names = len(self.error), [], []
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.theta):
            leaf, name = np.asarray(leaf), f"theta{jax.tree_util.keystr(path)}"
            columns.append(leaf.reshape(seeds, -1))
            names += [f"{name}{list(at)}".replace(" ", "") if at else name for at in np.ndindex(leaf.shape[1:])]
        names = self.settings.get("problem", {}).get("names") or names
        found = statistics.interval(np.concatenate(columns, axis=1), level, positive=False)
        return {name: Estimate(*map(float, of)) for name, *of in zip(names, *found, strict=True)}

    def _check_names(self, *taken: str) -> None:
        for name in taken:
            if name in self.records:
                raise ValueError(
                    f"A recorded quantity is called {name!r}, like an axis of the table. Give it another name."
                )

    def _summary(self) -> list[str]:
        """The number of seeds and rounds, and whether seeds diverged or the run was interrupted."""
        seeds, rounds, diverged = len(self.error), int(self.rounds[-1]), int((self.failed_round >= 0).sum())
        notes = [f"{seeds} seed{'s' * (seeds != 1)}, {rounds} round{'s' * (rounds != 1)}"]
        notes += [f"{diverged} of {seeds} seeds diverged"] if diverged else []
        return notes if self.complete else [*notes, f"interrupted after round {rounds}"]

    def __repr__(self):
        measured = self.quantity in self.records  # false if there is neither a root nor a mean operator
        value = f"{self.quantity.replace('_', ' ')} {brief(self.quantity, self.mean()[-1])}" if measured else "no root"
        return "   ".join([f"{self.algorithm:9s} {value}", *self._summary()])

    def _repr_html_(self) -> str:
        """The view in notebooks: a line with the result, and the curve (errors on a logarithmic axis)."""
        if self.quantity not in self.records:
            return f"<pre>{html.escape(repr(self))}</pre>"
        mean, (low, high) = self.mean(), self.interval()
        spread = f" [{low[-1]:.2g}, {high[-1]:.2g}]" if np.isfinite(low[-1]) else ""
        heads = ["algorithm", f"final {self.quantity.replace('_', ' ')} [95{FIXED}% interval]", "run"]
        cells = [self.algorithm, f"{mean[-1]:.2g}{spread}", "; ".join(self._summary())]
        return Table(heads, [cells]).html() + _svg(self.rounds, mean, logarithmic=self.quantity not in SIGNED)

    def track(self, tracker: AbstractTracker) -> None:
        """Sends the result to a tracker, as if it had followed the run.

        **Arguments:**

        - `tracker`: the tracker, like `fedhsa.tracking.TensorBoard("logs")`.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
            >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10, seeds=2)
            >>> result.track(fedhsa.tracking.JSONLines("earlier.jsonl"))
        """
        from .following import follow  # which needs results

        follow(self, tracker)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the result atomically to one `.npz` file, which `fedhsa.load` reads.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
            >>> fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=2).save("run.npz")
            >>> fedhsa.load("run.npz").algorithm
            'FedHSA'
        """
        arrays, header = pack(self)
        _files.write_arrays(path, arrays, {"kind": KIND, **header, "cost": self.cost._asdict()})


def pack(result: Result) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Splits a result, without its cost, into arrays and a header that JSON can hold."""
    arrays = {f"record/{name}": value for name, value in result.records.items()}
    arrays |= {"rounds": result.rounds, "failed_round": result.failed_round}
    header = {
        "theta": _take_apart(result.theta, arrays),
        "settings": result.settings,
        "timings": result.timings,
        "complete": result.complete,
    }
    return arrays, header


def unpack(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> Result:
    """The inverse of `pack`.

    Parameters made of dictionaries, lists and tuples are restored unchanged. A named tuple becomes a dictionary of its
    fields, and any other structure, such as an Equinox module, becomes a dictionary from paths to arrays.
    """
    records = {name.removeprefix("record/"): a for name, a in arrays.items() if name.startswith("record/")}
    return Result(
        error=records.get("error", np.full((len(arrays["failed_round"]), len(arrays["rounds"])), np.nan)),
        theta=_put_together(header["theta"], arrays),
        rounds=arrays["rounds"],
        records=records,
        failed_round=arrays["failed_round"],
        cost=Cost(**header["cost"]) if "cost" in header else unknown_cost,
        settings=header["settings"],
        timings=header["timings"],
        complete=header["complete"],
    )


def unknown_cost() -> Cost:
    """Stands for the cost of a result whose file does not contain it, and raises when it is called."""
    raise ValueError("This file does not contain the cost of a round. Count it with `fedhsa.cost(problem, algorithm)`.")


def _take_apart(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Describes a pytree in JSON, and adds its arrays to `arrays` under the names in the description."""
    if tree is None:
        return None
    if isinstance(tree, np.ndarray | np.generic | jax.Array):
        name = f"theta/{len(arrays)}"
        arrays[name] = np.asarray(tree)
        return name
    if isinstance(tree, list):
        return [_take_apart(part, arrays) for part in tree]
    if hasattr(tree, "_asdict"):
        tree = tree._asdict()
    if isinstance(tree, tuple):
        return {"tuple": [_take_apart(part, arrays) for part in tree]}
    if not isinstance(tree, dict):
        tree = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    return {"dict": {str(name): _take_apart(part, arrays) for name, part in tree.items()}}


def _put_together(structure: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of `_take_apart`."""
    if structure is None or isinstance(structure, str):
        return structure and arrays[structure]
    if isinstance(structure, list):
        return [_put_together(part, arrays) for part in structure]
    if "tuple" in structure:
        return tuple(_put_together(part, arrays) for part in structure["tuple"])
    return {name: _put_together(part, arrays) for name, part in structure["dict"].items()}


def brief(quantity: str, value: float, digits: int = 1) -> str:
    """Formats a number: errors in scientific notation, returns as plain numbers."""
    return f"{value:.4g}" if quantity in SIGNED else f"{value:.{digits}e}"


def _name(algorithm: dict[str, Any]) -> str:
    inner = algorithm.get("algorithm")
    return algorithm["name"] if inner is None else f"{algorithm['name']}({_name(inner)})"


def optional_package(name: str) -> Any:
    """Imports an optional package. Raises `ModuleNotFoundError` with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"This requires {name}, which is not installed: {install('data')}.") from error


def _svg(rounds: np.ndarray, curve: np.ndarray, width: int = 320, height: int = 100, *, logarithmic: bool) -> str:
    """Draws a curve with its largest and smallest value; on a logarithmic axis, only its positive part."""
    drawn = np.flatnonzero(np.isfinite(curve) & ((curve > 0) | (not logarithmic)))
    if len(drawn) < 2:
        return ""
    drawn = drawn[np.linspace(0, len(drawn) - 1, min(len(drawn), width)).astype(int)]
    x, y = rounds[drawn] / rounds[-1], np.log10(curve[drawn]) if logarithmic else curve[drawn]
    y = (y.max() - y) / max(np.ptp(y), 1e-12)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(60 + x * (width - 60), 6 + y * (height - 12), strict=True))
    ends = ((curve[drawn].max(), 12), (curve[drawn].min(), height - 2))
    labels = "".join(
        f'<text x="0" y="{at}" font-size="11" fill="currentColor">{value:.2g}</text>' for value, at in ends
    )
    line = f'<polyline points="{points}" fill="none" stroke="#0072B2" stroke-width="1.5"/>'
    return f'<svg width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg">{labels}{line}</svg>'

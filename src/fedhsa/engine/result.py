"""What a run gives back: its curves as arrays, tables and figures, and how it is kept in a file."""

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

if TYPE_CHECKING:  # what few need is loaded when it is used
    import pandas
    import xarray
    from matplotlib.figure import Figure

KIND = "result"


SIGNED = ("mean_return",)
"""What may be negative, and is shown on a linear axis."""


class _LazyCost:
    """A field that may be given as a function without arguments: it is called when the cost is first asked for."""

    def __get__(self, result: Any, owner: Any = None) -> Cost:
        if result is None:
            raise AttributeError("cost")  # so the dataclass knows that there is no default
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
    """The parameter after the last round, `(seeds, d)`. A parameter that is a pytree comes out as the same pytree, its
    arrays with a leading axis of seeds."""
    rounds: np.ndarray
    """The rounds after which something was recorded, `(records,)`; 0, 1, 2, ... unless `every` was given."""
    records: dict[str, np.ndarray]
    """Everything recorded, by name, `(seeds, records, ...)`. After a seed has diverged real numbers are infinite, and
    once all seeds have, whole numbers stay what they were."""
    failed_round: np.ndarray
    """Per seed the round in which it diverged, or -1."""
    settings: dict[str, Any]
    """Everything that determines the numbers: algorithm, problem, key, seeds, precision, versions."""
    timings: dict[str, float]
    """Seconds spent compiling and running."""
    cost: _LazyCost = _LazyCost()
    """What one round costs an agent: a `Cost`, or a function that counts it when it is first asked for."""
    complete: bool = True
    """False when the run was interrupted and the curves are shorter than asked for."""

    @property
    def status(self) -> np.ndarray:
        """Per seed `"ok"` or `"diverged"`; `failed_round` says when."""
        return np.where(self.failed_round >= 0, "diverged", "ok")

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, with what it wraps in brackets."""
        return _name(self.settings["algorithm"])

    @property
    def quantity(self) -> str:
        """What the run is judged by: `"error"`; where no root is known, what sites measured, `"mean_return"` or
        `"operator_norm"`, and without any of them how far the parameter moved, `"movement"`."""
        others = (*self.settings.get("measured", ())[:1], "mean_return", "operator_norm", "movement")
        known = [name for name in others if name in self.records and not np.isnan(self.records[name]).all()]
        return known[0] if known and np.isnan(self.error).all() else "error"

    def mean(self, quantity: str | None = None) -> np.ndarray:
        """The mean over seeds of something recorded, `(records, ...)`; infinite where a seed has diverged.

        **Arguments:**

        - `quantity`: the name of a record. Default: `Result.quantity`, the error where the root is known.
        """
        return self._statistics(quantity, 0.95)[0]

    def interval(self, level: float = 0.95, quantity: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends of a confidence interval for `mean`, `(records, ...)` each; NaN for one seed.

        **Arguments:**

        - `level`: the probability with which an interval covers the mean. It holds for each record by itself.
        - `quantity`: as for `mean`. See `fedhsa.statistics.interval` for how it is computed.
        """
        _, low, high = self._statistics(quantity, level)
        return low, high

    def _statistics(self, quantity: str | None, level: float) -> tuple[np.ndarray, ...]:
        name = quantity or self.quantity
        if name not in self.records:
            remedy = "The problem has no root." if name == "error" else f"Simulate with `record=[{name!r}]`."
            known = ", ".join(self.records) or "nothing here"
            raise ValueError(f"`quantity` must be something recorded, {known}; got {name!r}. {remedy}")
        if not (isinstance(level, int | float) and 0 < level < 1):
            raise ValueError(f"`level` must be a probability between 0 and 1, like 0.95, got {level!r}.")
        values = self.records[name]
        columns = values.reshape(len(values), -1)
        unknown = np.isnan(columns).all(0)  # what nobody measured is not infinite
        found = statistics.interval(columns, level, positive=name not in SIGNED)
        return tuple(np.where(unknown, np.nan, curve).reshape(values.shape[1:]) for curve in found)

    def plot(self, quantity: str | None = None, **options: Any) -> "Figure":
        """A figure of the mean over seeds with its interval against rounds; `options` are those of `plots.curves`.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
            >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10, seeds=2)
            >>> result.plot(title="four agents").savefig("curve.png")
        """
        from .. import plots

        return plots.curves({self.algorithm: self}, quantity=quantity or self.quantity, **options)

    def to_pandas(self) -> "pandas.DataFrame":
        """A table with one row per seed and record: `seed`, `round`, and a column for each number recorded.

        The entries of a vector are columns `theta[0]`, `theta[1]` and so on.

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
        """A dataset over `seed` and `round`; the axes of a vector or matrix `x` are `x_0`, `x_1` and so on.

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
        """The parameter after the last round, number by number: the mean over seeds with its interval.

        The names are those of the problem (`Problem(names=...)`, the columns of a table), or else `theta[0]`,
        `theta[1]` and so on. One seed has no interval: its ends are NaN.

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
                raise ValueError(f"A record is called {name!r}, as is an axis of the table. Record it by another name.")

    def _summary(self) -> list[str]:
        """Seeds and rounds, and what went wrong, if anything did."""
        seeds, rounds, diverged = len(self.error), int(self.rounds[-1]), int((self.failed_round >= 0).sum())
        notes = [f"{seeds} seed{'s' * (seeds != 1)}, {rounds} round{'s' * (rounds != 1)}"]
        notes += [f"{diverged} of {seeds} seeds diverged"] if diverged else []
        return notes if self.complete else [*notes, f"interrupted after round {rounds}"]

    def __repr__(self):
        measured = self.quantity in self.records  # nothing is where there is neither a root nor a mean operator
        value = f"{self.quantity.replace('_', ' ')} {brief(self.quantity, self.mean()[-1])}" if measured else "no root"
        return "   ".join([f"{self.algorithm:9s} {value}", *self._summary()])

    def _repr_html_(self) -> str:
        """What notebooks show: a line with the result, and the curve, of an error on a logarithmic axis."""
        if self.quantity not in self.records:
            return f"<pre>{html.escape(repr(self))}</pre>"
        mean, (low, high) = self.mean(), self.interval()
        spread = f" [{low[-1]:.2g}, {high[-1]:.2g}]" if np.isfinite(low[-1]) else ""
        heads = ["algorithm", f"final {self.quantity.replace('_', ' ')} [95{FIXED}% interval]", "run"]
        cells = [self.algorithm, f"{mean[-1]:.2g}{spread}", "; ".join(self._summary())]
        return Table(heads, [cells]).html() + _svg(self.rounds, mean, logarithmic=self.quantity not in SIGNED)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the result to one `.npz` file, whole or not at all; `fedhsa.load` reads it."""
        arrays, header = pack(self)
        _files.write_arrays(path, arrays, {"kind": KIND, **header, "cost": self.cost._asdict()})


def pack(result: Result) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """A result as arrays and a header that JSON can hold, all but its cost."""
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

    Parameters of dictionaries, lists and tuples come back as they were; a named tuple comes back as a dictionary of its
    fields, and any other structure (an Equinox module, say) as a dictionary from the path of each array to the array.
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
    """The cost of a result whose file does not say it."""
    raise ValueError("This file does not say what a round costs: `fedhsa.cost(problem, algorithm)` counts it.")


def _take_apart(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The structure of a pytree in JSON's terms; its arrays join `arrays` under the names found in the structure."""
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
    """A number as it is shown: errors by their order of magnitude, returns as they are."""
    return f"{value:.4g}" if quantity in SIGNED else f"{value:.{digits}e}"


def _name(algorithm: dict[str, Any]) -> str:
    inner = algorithm.get("algorithm")
    return algorithm["name"] if inner is None else f"{algorithm['name']}({_name(inner)})"


def optional_package(name: str) -> Any:
    """A package that only some need."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"This needs {name}, which is not installed: {install('data')}.") from error


def _svg(rounds: np.ndarray, curve: np.ndarray, width: int = 320, height: int = 100, *, logarithmic: bool) -> str:
    """A curve with its largest and smallest value, on a logarithmic axis its positive part; nothing for no curve."""
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

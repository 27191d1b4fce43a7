"""What a run gives back, and how it is kept in a file."""

import dataclasses
import os
from typing import Any

import numpy as np

from .. import _files
from ..algorithms import Cost

KIND = "result"


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Result:
    """A finished (or interrupted) simulation; all arrays are NumPy arrays.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10, seeds=2)
        >>> result.error.shape, result.theta.shape, result.status.tolist()
        ((2, 11), (2, 3), ['ok', 'ok'])
    """

    error: np.ndarray
    """Squared distance to the root, `(seeds, records)`; entry 0 is before the first round."""
    theta: np.ndarray
    """The parameter after the last round, `(seeds, d)`."""
    rounds: np.ndarray
    """The rounds after which something was recorded, `(records,)`; 0, 1, 2, ... unless `every` was given."""
    records: dict[str, np.ndarray]
    """Everything recorded, by name, `(seeds, records, ...)`."""
    failed_round: np.ndarray
    """Per seed the round in which it diverged, or -1."""
    cost: Cost
    """What one round costs an agent."""
    settings: dict[str, Any]
    """Everything that determines the numbers: algorithm, problem, key, seeds, precision, versions."""
    timings: dict[str, float]
    """Seconds spent compiling and running."""
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

    def __repr__(self):
        exchanges = f"{self.cost.exchanges} exchange{'s' if self.cost.exchanges > 1 else ''} per round"
        diverged = int((self.failed_round >= 0).sum())
        notes = [f"{diverged} of {len(self.error)} seeds diverged"] if diverged else []
        notes += [] if self.complete else [f"interrupted after round {self.rounds[-1]}"]
        return "   ".join([f"{self.algorithm:9s} error {self.error[:, -1].mean():.1e}", exchanges, *notes])

    def save(self, path: str | os.PathLike) -> None:
        """Writes the result to one `.npz` file, whole or not at all."""
        arrays = {f"record/{name}": value for name, value in self.records.items()}
        arrays |= {"theta": self.theta, "rounds": self.rounds, "failed_round": self.failed_round}
        header = {
            "kind": KIND,
            "cost": self.cost._asdict(),
            "settings": self.settings,
            "timings": self.timings,
            "complete": self.complete,
        }
        _files.write_arrays(path, arrays, header)


def _name(algorithm: dict[str, Any]) -> str:
    inner = algorithm.get("algorithm")
    return algorithm["name"] if inner is None else f"{algorithm['name']}({_name(inner)})"


def load(path: str | os.PathLike) -> Result:
    """Reads what `Result.save` wrote.

    !!! example
        >>> fedhsa.load("nowhere.npz")
        Traceback (most recent call last):
        FileNotFoundError: There is no file 'nowhere.npz'.
    """
    arrays, header = _files.read_arrays(path, KIND)
    records = {name.removeprefix("record/"): a for name, a in arrays.items() if name.startswith("record/")}
    return Result(
        error=records["error"],
        theta=arrays["theta"],
        rounds=arrays["rounds"],
        records=records,
        failed_round=arrays["failed_round"],
        cost=Cost(**header["cost"]),
        settings=header["settings"],
        timings=header["timings"],
        complete=header["complete"],
    )

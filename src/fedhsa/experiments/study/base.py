"""The interface of a study: settings that run once, and an outcome that can be drawn, summarised and checked later."""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, dataclass_transform

import jax.numpy as jnp
import numpy as np

from ...algorithms import AbstractAlgorithm
from ...engine import Result, simulate
from ...problems import Problem
from .checks import Check, Checks
from .clock import phase
from .figures import Figure, house_style, tidy

Table: TypeAlias = Mapping[str, Sequence[Any] | np.ndarray]
"""Columns of equal length, by name."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a study: everything that its figure, its summary and its checks need."""

    arrays: dict[str, np.ndarray]
    """Curves and samples, by name."""
    facts: dict[str, Any]
    """Numbers and strings that can be stored as JSON."""


class StoppedError(Exception):
    """The study was asked to stop."""


class Runner:
    """Runs the simulations of a study, which can thus be stopped, resumed, and placed on given devices.

    **Arguments:**

    - `stopped`: called repeatedly while a simulation runs; if it returns True, `StoppedError` is raised.
    - `devices`: the devices to run on. Defaults to all of JAX's devices.
    - `folder`: the folder that stores finished simulations until the study is finished, so that it can be resumed.
    """

    def __init__(
        self, stopped: Callable[[], bool] = lambda: False, devices: Any = None, folder: pathlib.Path | None = None
    ):
        self._stopped, self._devices, self._folder, self._count = stopped, devices, folder, 0

    def stop_if_asked(self) -> None:
        """Raises `StoppedError` if the study was asked to stop."""
        if self._stopped():
            raise StoppedError

    @phase("simulate")
    def simulate(self, problem: Problem, algorithm: AbstractAlgorithm, **settings: Any) -> Result:
        """Runs `fedhsa.simulate` such that it can be interrupted, and stores its result if there is a folder."""
        self.stop_if_asked()
        settings |= {"devices": self._devices, "progress": lambda _: self.stop_if_asked()}
        if self._folder is not None:
            path = self._folder / f"{self._count}.npz"
            settings |= {"checkpoint": path, "checkpoint_every": settings["rounds"], "resume": True}
            self._count += 1
            try:
                return simulate(problem, algorithm, **settings)
            except ValueError:
                if not path.exists():
                    raise
                path.unlink()  # the file is incomplete, or belongs to another simulation
        return simulate(problem, algorithm, **settings)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(frozen=True)
class AbstractStudy(abc.ABC):
    """The settings of one figure or one question; equal settings give equal numbers.

    Subclasses are frozen dataclasses too, without a decorator: they add their settings as fields with defaults. `run`
    is slow and its outcome is stored on disk; all other methods are fast functions of the outcome.

    Settings of these names mean the same in all studies, and are documented where they mean something else: `instance`
    is the random problem, or one cohort of its agents, of which there are `copies`; `problem_key` is its key,
    `num_states` the number of states of TD problems and environments, `num_components` that of components of finite
    sums, and `eigenvalues` their range; `start` is the starting point of all runs, `zeros` or `normal` for a standard
    normal draw; `samples` counts the observations of each agent; `target` is the error to reach, relative to the first
    one; `choices` are ours where the paper leaves settings open.
    """

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True)(cls)

    name: str
    """The name on the command line, such as `quadratic/markov`."""
    title: str
    """The heading of the figure."""
    source: str
    """The figure that it reproduces, such as `Figure 2b`, or its subject."""
    seeds: int = 32
    """The number of independent runs."""
    key: int = 0
    """The key of the random observations."""

    claim: ClassVar[int]
    """The number of the claim that its checks belong to."""
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.0)
    """The size of the figure in inches."""
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 8}
    """The settings that `quick` replaces."""

    def quick(self) -> "AbstractStudy":
        """Returns a version of the study that takes a few seconds, with fewer seeds, rounds or agents."""
        return dataclasses.replace(self, **self.quick_settings)

    @abc.abstractmethod
    def seconds(self) -> float:
        """Estimates the run time on two cores in seconds, including compilation."""

    @property
    def random(self) -> bool:
        """Whether the results depend on the seed; without noise they do not."""
        return not getattr(self, "noiseless", False)

    def programs(self) -> Hashable:
        """Returns a value that is equal for studies that share programs or problems and should run in one process."""
        return self.name

    @abc.abstractmethod
    def run(self, runner: Runner) -> Outcome:
        """Runs the study and returns its outcome."""

    def draw(self, outcome: Outcome) -> Figure:
        """Returns the figure, in the package's style."""
        with house_style(self.figure_size) as figure:
            self.plot(figure, outcome)
            tidy(figure)
        return figure

    def plot(self, figure: Figure, outcome: Outcome) -> None:
        """Draws on the figure; a study that creates its figure elsewhere overrides `draw` instead."""
        raise TypeError(f"{type(self).__name__} must have `plot`, or `draw` of its own.")

    @abc.abstractmethod
    def summary(self, outcome: Outcome) -> list[str]:
        """Returns two or three sentences that describe the results, with numbers."""

    def checks(self, outcome: Outcome) -> list[Check]:
        """Returns the checks of the outcome, the rows of the table of claims."""
        checks = Checks(self.claim, self.name)
        self.check(outcome, checks)
        return checks.found

    @abc.abstractmethod
    def check(self, outcome: Outcome, checks: Checks) -> None:
        """Adds every check of the outcome."""

    def table(self, outcome: Outcome) -> Table:
        """Returns the numbers of the figure as a table; by default, the `rows` of the outcome."""
        rows = outcome.facts["rows"]
        return columns(list(rows[0]), [list(row.values()) for row in rows])

    def notes(self) -> list[str]:
        """Returns our choices where the paper gives no details; by default, those of the field `choices`, if any."""
        return [*getattr(self, "choices", ())]


def columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Returns the table with these column names and rows."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def rows_of(outcome: Outcome, table: str = "rows", **values: Any) -> list[dict[str, Any]]:
    """Returns the rows of one of the outcome's tables that have these values.

    !!! example
        >>> outcome = Outcome({}, {"rows": [{"H": 1, "error": 0.5}, {"H": 2, "error": 0.7}]})
        >>> rows_of(outcome, H=2)
        [{'H': 2, 'error': 0.7}]
    """
    return [row for row in outcome.facts[table] if all(row[name] == value for name, value in values.items())]


def second_half(curves: np.ndarray) -> np.ndarray:
    """Returns the mean of each seed over the second half of its curve, `(seeds,)`; `curves` are `(seeds, records)`."""
    return curves[:, curves.shape[1] // 2 :].mean(1)


def late(curves: np.ndarray, part: float = 0.25) -> np.ndarray:
    """Returns the mean over the last part of every curve, `(seeds,)`."""
    return curves[:, -max(1, round(part * curves.shape[1])) :].mean(1)


def reached(curve: np.ndarray, level: float) -> int | None:
    """Returns the first record at or below a level, or None."""
    below = np.flatnonzero(curve <= level)
    return int(below[0]) if len(below) else None


def max_error(snapshot: Any) -> Any:
    r"""Returns the largest error of an entry, $\|Q - Q^\star\|_\infty$."""
    return jnp.max(abs(snapshot.theta - snapshot.theta_star))

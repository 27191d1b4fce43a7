"""What a study is: settings that run once, and an outcome that is drawn, summarised and checked at leisure."""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

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
    """What a study found: all that its figure, its sentences and its checks need."""

    arrays: dict[str, np.ndarray]
    """Curves and samples, by name."""
    facts: dict[str, Any]
    """Numbers and words, as JSON has them."""


class StoppedError(Exception):
    """The study was asked to stop."""


class Runner:
    """Through which a study simulates: whoever runs it can stop it, continue it and say where it computes.

    **Arguments:**

    - `stopped`: asked again and again while a simulation runs; True ends it with `StoppedError`.
    - `devices`: where to run. Default: all of JAX's.
    - `folder`: where to keep finished simulations until the study is finished; the same study continues with them.
    """

    def __init__(
        self,
        stopped: Callable[[], bool] = lambda: False,
        devices: Any = None,
        folder: pathlib.Path | None = None,
    ):
        self._stopped, self._devices, self._folder, self._count = stopped, devices, folder, 0

    def stop_if_asked(self) -> None:
        """Raises `StoppedError` if the study was asked to stop."""
        if self._stopped():
            raise StoppedError

    @phase("simulate")
    def simulate(self, problem: Problem, algorithm: AbstractAlgorithm, **settings: Any) -> Result:
        """`fedhsa.simulate`, interruptible and kept."""
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
                path.unlink()  # it was cut short, or belongs to another simulation
        return simulate(problem, algorithm, **settings)


@dataclasses.dataclass(frozen=True)
class AbstractStudy(abc.ABC):
    """One figure or one question, as settings; equal settings give equal numbers.

    Subclasses add their settings as fields with defaults. `run` is slow and its outcome is kept on disk; everything
    else is a quick function of the outcome.
    """

    name: str
    """What the command line calls it, such as `quadratic/markov`."""
    title: str
    """A heading for its figure."""
    source: str
    """What it reproduces, such as `Figure 2b`, or what it is about."""
    seeds: int = 32
    """Independent runs."""
    key: int = 0
    """Which random observations."""

    claim: ClassVar[int]
    """The number of the claim that its checks are about."""
    figure_size: ClassVar[tuple[float, float]] = (7.2, 3.0)
    """Inches of the figure."""
    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 8}
    """What `quick` replaces."""

    def quick(self) -> "AbstractStudy":
        """The same study in a few seconds: fewer seeds, rounds or agents."""
        return dataclasses.replace(self, **self.quick_settings)

    @abc.abstractmethod
    def seconds(self) -> float:
        """How long it takes on two cores, roughly, with compilation."""

    @property
    def random(self) -> bool:
        """Whether seeds make a difference; without noise they do not."""
        return not getattr(self, "noiseless", False)

    def programs(self) -> Hashable:
        """Equal for studies that share programs or problems: whoever runs one of them had best run the others too."""
        return self.name

    @abc.abstractmethod
    def run(self, runner: Runner) -> Outcome:
        """Does the work."""

    def draw(self, outcome: Outcome) -> Figure:
        """The figure, in the style of the house."""
        with house_style(self.figure_size) as figure:
            self.plot(figure, outcome)
            tidy(figure)
        return figure

    def plot(self, figure: Figure, outcome: Outcome) -> None:
        """Fills the figure; a study whose figure is made elsewhere replaces `draw` instead."""
        raise TypeError(f"{type(self).__name__} must have `plot`, or `draw` of its own.")

    @abc.abstractmethod
    def summary(self, outcome: Outcome) -> list[str]:
        """Two or three sentences that say what to see, with the numbers."""

    def checks(self, outcome: Outcome) -> list[Check]:
        """What the outcome says about the claims, in a table's rows."""
        checks = Checks(self.claim, self.name)
        self.check(outcome, checks)
        return checks.found

    @abc.abstractmethod
    def check(self, outcome: Outcome, checks: Checks) -> None:
        """Adds every check of the outcome."""

    def table(self, outcome: Outcome) -> Table:
        """The numbers behind the figure, for a spreadsheet: those of the outcome's `rows`, unless it is replaced."""
        rows = outcome.facts["rows"]
        return columns(list(rows[0]), [list(row.values()) for row in rows])

    def notes(self) -> list[str]:
        """Choices of ours where the paper is silent, each a sentence."""
        return []


def columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table from its rows."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def rows_of(outcome: Outcome, table: str = "rows", **values: Any) -> list[dict[str, Any]]:
    """The rows of one of the outcome's tables that have these values.

    !!! example
        >>> outcome = Outcome({}, {"rows": [{"H": 1, "error": 0.5}, {"H": 2, "error": 0.7}]})
        >>> rows_of(outcome, H=2)
        [{'H': 2, 'error': 0.7}]
    """
    return [row for row in outcome.facts[table] if all(row[name] == value for name, value in values.items())]


def second_half(curves: np.ndarray) -> np.ndarray:
    """Each seed's mean over the second half of its curve, `(seeds,)`; `curves` are `(seeds, records)`."""
    return curves[:, curves.shape[1] // 2 :].mean(1)

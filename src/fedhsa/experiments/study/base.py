"""What an experiment is: settings that run once, and an outcome that is drawn, described and checked at leisure."""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ...algorithms import AbstractAlgorithm
from ...engine import Result, simulate
from ...problems import Problem
from .checks import Check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table: TypeAlias = Mapping[str, Sequence[Any] | np.ndarray]
"""Columns of equal length, by name."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an experiment found: all that its figure, its sentences and its checks need."""

    arrays: dict[str, np.ndarray]
    """Curves and samples, by name."""
    facts: dict[str, Any]
    """Numbers and words, as JSON has them."""


class StoppedError(Exception):
    """The experiment was asked to stop."""


class Watch:
    """Through which an experiment simulates: whoever runs it can stop it, continue it and say where it computes.

    **Arguments:**

    - `stopped`: asked again and again while a simulation runs; True ends it with `StoppedError`.
    - `devices`: where to run. Default: all of JAX's.
    - `folder`: where to keep finished simulations until the experiment is finished; the same experiment takes them up.
    """

    def __init__(
        self,
        stopped: Callable[[], bool] = lambda: False,
        devices: Any = None,
        folder: pathlib.Path | None = None,
    ):
        self._stopped, self._devices, self._folder, self._count = stopped, devices, folder, 0

    def look(self) -> None:
        """Stops here when asked to."""
        if self._stopped():
            raise StoppedError

    def simulate(self, problem: Problem, algorithm: AbstractAlgorithm, **settings: Any) -> Result:
        """`fedhsa.simulate`, interruptible and kept."""
        self.look()
        settings |= {"devices": self._devices, "progress": lambda _: self.look()}
        if self._folder is not None:
            path = self._folder / f"{self._count}.npz"
            settings |= {"checkpoint": path, "checkpoint_every": settings["rounds"], "resume": True}
            self._count += 1
            try:
                return simulate(problem, algorithm, **settings)
            except ValueError:
                if not path.exists():
                    raise
                path.unlink()  # a part that was cut short, or is another experiment's
        return simulate(problem, algorithm, **settings)


@dataclasses.dataclass(frozen=True)
class AbstractExperiment(abc.ABC):
    """One figure or one study, as settings; equal settings give equal numbers.

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

    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 8}
    """What `quick` replaces."""

    def quick(self) -> "AbstractExperiment":
        """The same experiment in a few seconds: fewer seeds, rounds or agents."""
        return dataclasses.replace(self, **self.quick_settings)

    @abc.abstractmethod
    def seconds(self) -> float:
        """How long it takes on two cores, roughly, with compilation."""

    @abc.abstractmethod
    def run(self, watch: Watch) -> Outcome:
        """Does the work."""

    @abc.abstractmethod
    def draw(self, outcome: Outcome) -> "Figure":
        """The figure."""

    @abc.abstractmethod
    def tell(self, outcome: Outcome) -> list[str]:
        """Two or three sentences that say what to see, with the numbers."""

    @abc.abstractmethod
    def checks(self, outcome: Outcome) -> list[Check]:
        """What the outcome says about the paper's claims."""

    @abc.abstractmethod
    def table(self, outcome: Outcome) -> Table:
        """The numbers behind the figure, for a spreadsheet."""

    def notes(self) -> list[str]:
        """Choices of ours where the paper is silent, each a sentence."""
        return []

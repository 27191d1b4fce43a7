"""The interface of trackers: one run begins, is logged round by round, and ends."""

import abc
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class AbstractTracker(abc.ABC):
    """Follows a run. Subclass it to send runs to a tool that is not listed here.

    A tracker sees one run at a time. `begin` may be called again after `end`, for another run. A tracker cannot change
    a run: it gets copies of the numbers, and an exception that it raises becomes one warning.

    !!! example
        >>> class Printed(fedhsa.tracking.AbstractTracker):
        ...     def begin(self, settings, after=None):
        ...         print("begin", settings["algorithm"]["name"])
        ...         return -1
        ...     def log(self, values, step):
        ...         print(step, sorted(values))
        ...     def end(self, status, summary, files=()):
        ...         print(status)
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> _ = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=2, tracker=Printed())
        begin FedHSA
        0 ['error']
        1 ['error']
        2 ['error']
        finished
    """

    artifacts: ClassVar[bool] = False
    """Whether the tool stores files. Only then is a result written for it."""

    @property
    def name_of_tool(self) -> str:
        """The name by which a warning calls the tool."""
        return type(self).__name__

    @abc.abstractmethod
    def begin(self, settings: Mapping[str, Any], after: int | None = None) -> int:
        """Opens the track of a run.

        **Arguments:**

        - `settings`: the settings of the run, as nested dictionaries of plain values. A run that can be resumed has a
          `fingerprint`, which identifies it.
        - `after`: for a run that is resumed, the round after which it continues.

        **Returns:** the last round that the track already contains, or -1. Later rounds are logged again.
        """

    @abc.abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Adds the numbers of one round. They may be infinite or NaN."""

    def flush(self) -> None:  # noqa: B027
        """Makes everything logged so far visible. It is called about twice a second."""

    @abc.abstractmethod
    def end(self, status: str, summary: Mapping[str, Any], files: Sequence[pathlib.Path] = ()) -> None:
        """Closes the track.

        **Arguments:**

        - `status`: `"finished"`, `"interrupted"` or `"failed"`.
        - `summary`: the final numbers and the cost of a round, as nested dictionaries.
        - `files`: results and figures, to be copied if the tool stores files.
        """


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings as one dictionary whose keys are joined by dots, as most tools show them.

    !!! example
        >>> fedhsa.tracking.flat({"algorithm": {"name": "FedHSA", "step_size": 0.1}, "seeds": 8})
        {'algorithm.name': 'FedHSA', 'algorithm.step_size': 0.1, 'seeds': 8}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping) and value
        found |= flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found

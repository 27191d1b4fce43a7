"""The policy for agents that do not answer."""

import dataclasses

from .. import _check
from .._random import Stream
from ..algorithms import AbstractAlgorithm, Effect
from ..algorithms.demands import before_rounding, objections

ACTIONS = ("wait", "skip", "fail")
PATIENCE = {"wait": 600.0, "skip": 60.0, "fail": 60.0}


@dataclasses.dataclass(frozen=True)
class Missing:
    """The server's policy for agents that do not answer.

    - `wait`: repeats the request for up to `patience` seconds, then stops; the run can be resumed. The result is that
      of a run in which every agent answered immediately.
    - `skip`: restarts the round without the agent after `patience` seconds. The agent takes part again in the first
      round after its return. Averages are over the participating agents, as in `Partial`.
    - `fail`: stops after `patience` seconds, or immediately if an agent reports that it cannot answer.

    **Arguments:**

    - `action`: `"wait"`, `"skip"` or `"fail"`.
    - `patience`: seconds per exchange. Default: 600 for `wait`, 60 otherwise.
    - `at_least`: with `skip`, the number of agents that a round needs.

    Raises `ValueError` if `action` is unknown or a number is not positive.

    !!! example
        >>> Missing("skip", patience=30, at_least=2)
        Missing(action='skip', patience=30, at_least=2)
    """

    action: str = "wait"
    patience: float | None = None
    at_least: int = 1

    def __post_init__(self):
        _check.choice("action", self.action, ACTIONS)
        if self.patience is None:
            object.__setattr__(self, "patience", PATIENCE[self.action])
        _check.number("patience", self.patience, above=0.0)
        _check.count("at_least", self.at_least)

    @property
    def seconds(self) -> float:
        return float(self.patience or 0.0)

    def check(self, algorithm: AbstractAlgorithm, num_agents: int | None = None) -> None:
        """Raises `ValueError` if the method needs agents that may be skipped, or if `at_least` exceeds `num_agents`."""
        if self.action != "skip":
            return
        if num_agents is not None and self.at_least > num_agents:
            raise ValueError(f"`at_least` must be at most {num_agents}, the number of agents, got {self.at_least}.")
        for _, layer, reason in objections(
            before_rounding(algorithm), Effect.SKIPS_AGENTS, Stream.PARTICIPATION, "skip"
        ):
            raise ValueError(
                f"`missing` cannot be 'skip' with {layer}, whose rounds need all agents: {reason} Use 'wait' or 'fail'."
            )

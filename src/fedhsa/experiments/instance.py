"""The random problem of an experiment, as settings."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from ..problems import PROBLEMS, Problem


@dataclasses.dataclass(frozen=True)
class Instance:
    """A family of problems and every argument of its generator.

    !!! example
        >>> Instance("quadratic", 4, {"dim": 3, "b_level": 10.0}).build().num_agents
        4
    """

    family: str
    """Which generator."""
    num_agents: int
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Those of the generator that are not at their defaults."""
    key: int = 0
    """Which random problem."""

    def build(self) -> Problem:
        """Draws the problem."""
        return PROBLEMS[self.family](num_agents=self.num_agents, key=self.key, **self.arguments)

    def settings(self) -> dict[str, Any]:
        """Every argument of the generator, defaults included."""
        parameters = inspect.signature(PROBLEMS[self.family]).parameters
        values = {name: p.default for name, p in parameters.items()} | dict(self.arguments)
        return {"family": self.family} | values | {"num_agents": self.num_agents, "key": self.key}

    def change(self, name: str, value: Any) -> "Instance":
        """The same with one argument replaced."""
        if name in ("num_agents", "key"):
            return dataclasses.replace(self, **{name: value})
        return dataclasses.replace(self, arguments={**self.arguments, name: value})

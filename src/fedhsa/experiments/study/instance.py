"""The settings of the random problem of an experiment."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...problems import PROBLEMS, Problem
from .clock import phase


class Seconds(NamedTuple):
    """Estimated seconds on two cores."""

    build: float
    prediction: float
    step: float
    """The time of one local step of every agent."""


@dataclasses.dataclass(frozen=True)
class Instance:
    """A family of problems and every argument of its generator.

    !!! example
        >>> Instance("quadratic", 4, {"dim": 3, "b_level": 10.0}).build().num_agents
        4
    """

    family: str
    """The name of the generator."""
    num_agents: int
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The arguments of the generator that differ from their defaults."""
    key: int = 0
    """The key of the random problem."""

    @classmethod
    def of_family(cls, family: str, num_agents: int, arguments: Mapping[str, Any], key: int) -> "Instance":
        """Returns the settings for a family; `nonconvex` is the quadratic family with indefinite agents."""
        if family == "nonconvex":
            return cls("quadratic", num_agents, {**arguments, "convex": False}, key)
        return cls(family, num_agents, arguments, key)

    @phase("build")
    def build(self) -> Problem:
        """Draws the problem; experiments with equal settings share it."""
        return _build(self.family, self.num_agents, self.key, tuple(sorted(self.arguments.items())))

    def settings(self) -> dict[str, Any]:
        """Returns every argument of the generator, including defaults."""
        parameters = inspect.signature(PROBLEMS[self.family]).parameters
        values = {name: p.default for name, p in parameters.items()} | dict(self.arguments)
        return {"family": self.family} | values | {"num_agents": self.num_agents, "key": self.key}

    def shape(self) -> tuple[Any, ...]:
        """Returns the settings that determine the shapes of the arrays: the family and every integer except the key.

        Studies with equal shapes share most of their programs, and often the problem itself.
        """
        values = self.change("key", 0).settings()
        return self.family, *((name, value) for name, value in values.items() if type(value) is int)

    def change(self, name: str, value: Any) -> "Instance":
        """Returns the same settings with one argument replaced."""
        if name in ("num_agents", "key"):
            return dataclasses.replace(self, **{name: value})
        return dataclasses.replace(self, arguments={**self.arguments, name: value})

    def cost(self) -> Seconds:
        """Estimates how long building the problem, predicting and stepping take."""
        M, settings = self.num_agents, self.settings()
        d = settings["dim"]
        if self.family == "finite-sum":
            return Seconds(1e-4 * M * d, 4 + 1.5e-8 * M * d**3, 2e-10 * M * d**2 + 2e-8 * M)
        if self.family == "td":
            S = settings["num_states"]
            return Seconds(1e-5 * M * S, 2 + 2e-8 * M * d * (d + S) ** 2, 3e-9 * M * d + 2e-8 * M)
        return Seconds(0.2, 0.5, 2.5e-8 * M * d)


@functools.lru_cache(maxsize=2)
def _build(family: str, num_agents: int, key: int, arguments: tuple[tuple[str, Any], ...]) -> Problem:
    return PROBLEMS[family](num_agents=num_agents, key=key, **dict(arguments))


def repeated(cohort: Problem, copies: int) -> Problem:
    """Returns `copies` copies of the cohort: the mean operator is unchanged, and the copies have independent noise.

    !!! example
        >>> repeated(Instance("quadratic", 4, {"dim": 3}).build(), 3).num_agents
        12
    """
    return cohort.take([*range(cohort.num_agents)] * copies)

"""Observations from outside: a running environment, a sensor, anything that is not a JAX source."""

import abc
from typing import Any, NamedTuple

import numpy as np

from .._types import Block, Observation
from ..problems import AbstractAgent


class AbstractStream(abc.ABC):
    """One agent's observations, made by ordinary Python code.

    A site draws a block once per round and saves it, so that a block is never drawn twice however often its process
    is killed. What the stream itself needs to continue, `save` gives as arrays.
    """

    @property
    @abc.abstractmethod
    def like(self) -> Observation:
        """An example of one observation; only its shape matters."""

    @property
    def controlled(self) -> bool:
        """Whether observations depend on the parameter, as when actions follow what was learned."""
        return False

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator, length: int) -> Block:
        """The next `length` observations: arrays with a leading axis.

        The generator depends on the run's key, the agent and the round. A stream that is `controlled` gets a third
        argument, the parameter with which the round begins.
        """

    def save(self) -> dict[str, np.ndarray]:
        """What the stream needs to continue in another process."""
        return {}

    def restore(self, saved: dict[str, np.ndarray]) -> None:
        """Continues where `save` was called."""
        del saved


class Live(NamedTuple):
    """An agent that observes a stream: of the agent only its operator is used, not its source."""

    agent: AbstractAgent
    stream: AbstractStream


def split_live(agents: list[Any]) -> tuple[list[AbstractAgent], list[AbstractStream] | None]:
    """The agents, and their streams if they observe streams; all do, or none."""
    live = [agent for agent in agents if isinstance(agent, Live)]
    if live and len(live) < len(agents):
        raise ValueError("The agents of one site must all be `Live`, or none of them.")
    if not live:
        return agents, None
    return [one.agent for one in live], [one.stream for one in live]

"""What an algorithm is: settings, a start, and the exchanges between server and agents that make up a round."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .. import _check
from .._types import Block, Key, Theta
from ..problems import AbstractAgent, Problem
from .schedules import AbstractSchedule


class Round(NamedTuple):
    """What server and agents know about the round they are in, without a message.

    `key` is the same for all of them, for coins that everyone must see; `agent_key` is the agent's own, and None on the
    server. Observations have keys of their own, so using these leaves the data as they were.
    """

    index: Any
    key: Key
    agent_key: Key | None = None


class Replies(NamedTuple):
    """What the agents sent back in one exchange: arrays with a leading axis, one entry per agent.

    `weights` is None where all agents count alike.
    """

    values: PyTree
    weights: Float[Array, " agents"] | None = None

    def mean(self) -> PyTree:
        """The average over the agents."""
        if self.weights is None:
            return jax.tree.map(lambda v: jnp.mean(v, axis=0), self.values)
        weights = self.weights / jnp.sum(self.weights)
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), self.values)


class Exchange(NamedTuple):
    """One trip server -> agents -> server.

    Three pure functions that know nothing of how messages travel; the engine maps `local` over agents and seeds, a
    network runs it on each node. Every exchange of a round sees the same block of observations.
    """

    name: str
    send: Callable[[Any, Round], PyTree]
    """`(server, round) -> message`, the same for all agents."""
    local: Callable[[PyTree, Any, AbstractAgent, Block, Round], tuple[PyTree, Any]]
    """`(message, memory, agent, block, round) -> (reply, memory)`, for one agent."""
    aggregate: Callable[[Any, Replies, Round], Any]
    """`(server, replies, round) -> server`."""


class AbstractAlgorithm(eqx.Module):
    """Settings as fields, the method as pure functions: a start, and the exchanges of one round.

    The server state has a field `theta`, the parameter the method stands at. The memory is what one agent keeps.
    """

    @property
    @abc.abstractmethod
    def block_length(self) -> int:
        """How many observations of each agent a round uses."""

    @abc.abstractmethod
    def init(self, theta: Theta) -> tuple[Any, Any]:
        """The server's state and one agent's memory before the first round."""

    @property
    @abc.abstractmethod
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of a round, in order."""

    def check(self, problem: Problem) -> None:
        """Refuses a problem this algorithm is not for."""


def check_step_size(name: str, value: Any) -> None:
    """Refuses a step size that is neither a positive number nor a schedule."""
    if not isinstance(value, AbstractSchedule):
        _check.number(name, value, above=0.0, remedy="Use a positive number or a schedule.")


def check_local_steps(value: Any) -> None:
    """Refuses fewer than one local step."""
    _check.count("local_steps", value, remedy="Use `local_steps=1` to synchronise every step.")

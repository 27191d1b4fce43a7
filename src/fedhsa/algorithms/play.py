"""One round: the only module that defines the order in which server and agents act.

A driver defines how the three parts of an exchange are executed (for one seed or many, compiled or one by one, traced
for their shapes or for their derivatives), and `play` executes them in turn.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import tree
from .._types import Block, Key, Theta
from ..problems import AbstractAgent
from .base import AbstractAlgorithm, Exchange, Replies, Round, checked_init, split


class Driver(NamedTuple):
    """Functions that execute the three parts of an exchange."""

    send: Callable[[Exchange, Any], PyTree]
    """`(exchange, server) -> message`."""
    local: Callable[[Exchange, PyTree, PyTree], tuple[PyTree, PyTree]]
    """`(exchange, message, memories) -> (replies, memories)`, for all agents."""
    aggregate: Callable[[Exchange, Any, PyTree], Any]
    """`(exchange, server, replies) -> server`."""


def play(algorithm: AbstractAlgorithm, driver: Driver, server: Any, memory: PyTree) -> tuple[Any, PyTree]:
    """Returns the server's state and the agents' memories after one round."""
    for exchange in algorithm.exchanges:
        message = driver.send(exchange, server)
        replies, memory = driver.local(exchange, message, memory)
        server = driver.aggregate(exchange, server, replies)
    return server, memory


def start(algorithm: AbstractAlgorithm, theta: Theta, num_agents: int) -> tuple[Any, PyTree]:
    """Returns the server's state and the agents' memories before the first round, for one seed."""
    server, memory = checked_init(algorithm, theta)
    return server, jax.tree.map(lambda x: jnp.broadcast_to(x, (num_agents, *jnp.shape(x))), memory)


def one_seed(
    agents: AbstractAgent, block: Block, shared: Round, agent_keys: Key, over_agents: Callable = tree.over_agents
) -> Driver:
    """The driver of a round for one seed.

    **Arguments:**

    - `agents`, `block`, `agent_keys`: arrays with a leading axis, one entry per agent.
    - `shared`: the data of the round that server and agents share.
    - `over_agents`: turns a function of one agent into one of all agents, as `tree.over_agents` does.
    """

    def send(exchange, server):
        return exchange.send(server, shared)

    def local(exchange, message, memory):
        own, deliver = split(message)

        def of_agent(agent, number, key, memory, block, own):
            mine = shared._replace(agent_key=key, agent=number)
            return exchange.local(deliver(own), memory, agent, block, mine)

        return over_agents(of_agent)(agents, jnp.arange(shared.num_agents), agent_keys, memory, block, own)

    def aggregate(exchange, server, replies):
        return exchange.aggregate(server, Replies(replies), shared)

    return Driver(send, local, aggregate)

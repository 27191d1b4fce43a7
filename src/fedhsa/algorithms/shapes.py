"""What travels in each exchange, told from an algorithm by tracing one round of it."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import tree
from .._types import Theta
from ..problems import AbstractAgent
from ..sources import Silent
from .base import AbstractAlgorithm, Replies, Round, split


class StandIn(AbstractAgent):
    """An agent of which only the shapes matter."""

    source: Any
    nothing: Any = None
    """An array, where stand-ins are stacked: its leading axis says how many."""

    def operator(self, theta, o, /):
        return theta

    def mean_operator(self, theta, /):
        return theta


def exchange_shapes(
    algorithm: AbstractAlgorithm, theta: Theta, num_agents: int = 1, agent: AbstractAgent | None = None
) -> list[tuple[PyTree, PyTree]]:
    """The shapes of the server's message and of one agent's reply, exchange by exchange.

    Without an `agent` a stand-in answers, which serves all methods that look at nothing but operators.
    """
    found = []

    def play(theta):
        key = jax.random.key(0)
        server, memory = algorithm.init(theta)
        block = jnp.zeros(algorithm.block_length, int)
        if agent is not None:
            keys = jnp.broadcast_to(key, algorithm.block_length)
            _, block = agent.source.draw(keys, agent.source.init(key))
        one = StandIn(Silent()) if agent is None else agent
        for exchange in algorithm.exchanges:
            shared = Round(jnp.zeros((), int), key, num_agents=num_agents)
            message = exchange.send(server, shared)
            own, deliver = split(message)
            mine = shared._replace(agent_key=key, agent=jnp.zeros((), int))
            reply, memory = exchange.local(deliver(tree.take(own, 0)), memory, one, block, mine)
            found.append(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (message, reply)))
            replies = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_agents, *x.shape)), reply)
            server = exchange.aggregate(server, Replies(replies), shared)

    with jax.disable_jit(False):
        try:
            jax.eval_shape(play, theta)
        except AttributeError as error:
            raise TypeError(
                f"What {type(algorithm).__name__} sends cannot be told from its settings, since it looks at more of an "
                f"agent than its operators ({error}). Use a method that does not."
            ) from error
    return found

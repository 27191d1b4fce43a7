"""Chains that depend on the parameter: the same algorithms, with agents that step their chains as they go."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import tree
from .._types import precision
from ..problems import AbstractAgent, AbstractControlledAgent, Problem
from ..sources import AbstractSource, PendingSteps
from .base import AbstractAlgorithm, Exchange
from .demands import Effect
from .wrapper import AbstractWrapper


class Memory(NamedTuple):
    """What an agent keeps: the inner memory, and where its chain stands."""

    inner: Any
    chain: PyTree


class Walker(AbstractAgent):
    """An agent on its way: asked for an operator, it takes a step under the parameter it is asked with.

    Where its chain stands is kept in mutable references, so that algorithms, which know nothing of this, may ask inside
    loops of their own.
    """

    source: AbstractSource
    agent: AbstractControlledAgent
    place: PyTree

    def operator(self, theta, o, /):
        state = jax.tree.map(lambda ref: ref[...], self.place)
        state, observation = self.agent.observe(theta, state, o)
        jax.tree.map(lambda ref, value: ref.__setitem__(..., value), self.place, state)
        return self.agent.operator(theta, observation)

    def mean_operator(self, theta, /):
        return self.agent.mean_operator(theta)


class Walking(AbstractWrapper):
    """An algorithm for agents whose chains depend on the parameter: their source steps inside the local phase.

    The outermost wrapper; `simulate` and the federation put it on by themselves. The chain's state is part of what an
    agent keeps, so wherever agents live their chains go on from round to round: also those of agents that are absent
    (`Partial`), who act as the others do and say nothing, as chains that depend on nothing go on without them.
    """

    algorithm: AbstractAlgorithm
    start: PyTree
    """An example of a chain's state."""

    effects = Effect.NOTHING

    def init(self, theta):
        server, memory = self.algorithm.init(theta)
        return server, Memory(memory, self.start)

    @property
    def exchanges(self):
        first, *rest = self.algorithm.exchanges
        return self._walk(first, True), *(self._walk(exchange, False) for exchange in rest)

    def _walk(self, exchange: Exchange, first: bool) -> Exchange:
        def local(message, memory, agent, block: PendingSteps, round):
            chain = memory.chain
            if first:  # of the first round: position 0 of the chain
                begun = round.index == 0
                chain = jax.tree.map(lambda new, old: jnp.where(begun, new[0], old), block.start, chain)
            place = jax.tree.map(jax.new_ref, chain)
            walker = Walker(agent.source, agent, place)
            reply, inner = exchange.local(message, memory.inner, walker, block.bits, round)
            return reply, Memory(inner, jax.tree.map(lambda ref: ref[...], place))

        return exchange._replace(local=local)


def walking(algorithm: AbstractAlgorithm, problem: Problem) -> AbstractAlgorithm:
    """The algorithm for the problem's chains: itself, unless they depend on the parameter."""
    if not problem.controlled:
        return algorithm
    with precision():
        source = tree.to_device(tree.take(problem.agents.source, 0), "float64")
        start = tree.to_host(jax.tree.map(jnp.zeros_like, source.init(jax.random.key(0))))
    return Walking(algorithm, start)

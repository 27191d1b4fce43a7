"""What a deployment would pay per round, read off the exchanges themselves."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import tree
from .._types import precision
from ..problems import AbstractAgent, Problem
from ..sources import AbstractSource, Silent
from .base import AbstractAlgorithm, Coded, Cost, Replies, Round, split
from .controlled import walking
from .shapes import StandIn


class _CountedAgent(AbstractAgent):
    """An agent whose operator leaves its name in the program each time it is evaluated."""

    source: AbstractSource
    agent: AbstractAgent

    def operator(self, theta, o, /):
        @jax.jit
        def operator_evaluation(agent, theta, o):
            return agent.operator(theta, o)

        return operator_evaluation(self.agent, theta, o)

    def mean_operator(self, theta, /):
        return self.agent.mean_operator(theta)

    def visited(self, o, /):
        """Of agents that tell; only methods that have checked for it ask."""
        return self.agent.visited(o)  # pyright: ignore[reportAttributeAccessIssue]


def cost(problem: Problem, algorithm: AbstractAlgorithm) -> Cost:
    """Counts exchanges, floats, samples and operator evaluations of one round by tracing it.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=2, dim=3)
        >>> cost(problem, fedhsa.FedHSA(0.01, local_steps=10))
        Cost(exchanges=2, floats_down=6, floats_up=6, samples=10, evaluations=10)
    """
    algorithm.check(problem)
    with precision():
        # Chains that depend on the parameter are not stepped here; what an operator's value is changes no cost.
        standing = StandIn(Silent(), np.zeros(problem.num_agents))
        agents = tree.to_device(standing if problem.controlled else problem.flat_agents, "float64")
        theta, key = jnp.zeros(problem.dim), jax.random.key(0)
        settings = tree.to_device(algorithm, "float64")
        everyone, down, up = jnp.arange(problem.num_agents), [], []

        def play(theta, key):
            """One round; only traced, never run."""
            shared = Round(jnp.zeros((), int), key, num_agents=problem.num_agents)
            server, memory = settings.init(theta)
            memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (problem.num_agents, *x.shape)), memory)
            for exchange in settings.exchanges:
                own, deliver = split(exchange.send(server, shared))

                def local(agent, memory, number, own, exchange=exchange, deliver=deliver):
                    agent = _CountedAgent(agent.source, agent)
                    keys = jax.random.split(key, settings.block_length)
                    _, block = agent.source.draw(keys, agent.source.init(key))
                    message, mine = deliver(own), shared._replace(agent_key=key, agent=number)
                    reply, memory = exchange.local(message, memory, agent, block, mine)
                    down.append(_floats(message))
                    up.append(_floats(reply))
                    return reply, memory

                replies, memory = jax.vmap(local)(agents, memory, everyone, own)
                server = exchange.aggregate(server, Replies(replies), shared)
            return server

        evaluations = _count(jax.make_jaxpr(play)(theta, key).jaxpr)
    once = Cost(len(algorithm.exchanges), sum(down), sum(up), algorithm.block_length, evaluations)
    return algorithm.average_cost(once)


def prepare(algorithm: AbstractAlgorithm, problem: Problem) -> AbstractAlgorithm:
    """The algorithm as a driver runs it on this problem; refuses a problem that it is not for."""
    algorithm.check(problem)
    if problem.controlled:
        price = cost(problem, algorithm)
        if abs(price.samples - price.evaluations) > 1e-9:
            raise TypeError(
                f"{type(algorithm).__name__} takes {price.samples:.4g} observations a round and evaluates "
                f"{price.evaluations:.4g} operators. The chains of {type(problem.agents).__name__} depend on the "
                "parameter, so each observation belongs to the one that led to it. Use a method that evaluates each "
                "observation once, like FedHSA, LocalSA or SCAFFLSA."
            )
    return walking(algorithm, problem)


def _floats(message: Any) -> float:
    """The numbers in a message; what is coded counts by its bits."""
    coded, plain = [], []
    for leaf in jax.tree.leaves(message, is_leaf=lambda x: isinstance(x, Coded)):
        (coded if isinstance(leaf, Coded) else plain).append(leaf)
    bits = sum(leaf.bits for leaf in coded)
    return tree.size(plain) + (bits / 64 if bits else 0)


def _count(jaxpr: Any) -> int:
    """How often the operator is evaluated: loops count as often as they turn, branches by the dearest."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.params.get("name") == "operator_evaluation":
            total += 1
        elif equation.primitive.name == "scan":
            total += equation.params["length"] * _count(equation.params["jaxpr"].jaxpr)
        elif equation.primitive.name == "cond":
            total += max(_count(branch.jaxpr) for branch in equation.params["branches"])
        else:
            total += sum(_count(inner) for inner in _inner(equation.params))
    return total


def _inner(params: dict[str, Any]):
    for value in params.values():
        if hasattr(value, "jaxpr"):
            yield value.jaxpr
        elif hasattr(value, "eqns"):
            yield value

"""What a deployment would pay per round, read off the exchanges themselves."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import tree
from .._types import precision
from ..problems import AbstractAgent, Problem
from ..sources import AbstractSource
from .base import AbstractAlgorithm, Replies, Round


class Cost(NamedTuple):
    """Per round and agent."""

    exchanges: int
    floats_down: int
    """Server to agent."""
    floats_up: int
    """Agent to server."""
    samples: int
    evaluations: int
    """Operator evaluations."""


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


def cost(problem: Problem, algorithm: AbstractAlgorithm) -> Cost:
    """Counts exchanges, floats, samples and operator evaluations of one round by tracing it.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=2, dim=3)
        >>> cost(problem, fedhsa.FedHSA(0.01, local_steps=10))
        Cost(exchanges=2, floats_down=6, floats_up=6, samples=10, evaluations=10)
    """
    algorithm.check(problem)
    down, up = [], []
    with precision():
        agent = tree.to_device(tree.take(problem.flat_agents, 0), "float64")
        agent = _CountedAgent(agent.source, agent)
        algorithm = tree.to_device(algorithm, "float64")

        def play(theta, key):
            """One round of one agent; only traced, never run."""
            round = Round(jnp.zeros((), int), key, key)
            keys = jax.random.split(key, algorithm.block_length)
            _, block = agent.source.draw(keys, agent.source.init(key))
            server, memory = algorithm.init(theta)
            for exchange in algorithm.exchanges:
                message = exchange.send(server, round)
                reply, memory = exchange.local(message, memory, agent, block, round)
                server = exchange.aggregate(server, Replies(jax.tree.map(lambda r: r[None], reply)), round)
                down.append(tree.size(message))
                up.append(tree.size(reply))
            return server

        evaluations = _count(jax.make_jaxpr(play)(jnp.zeros(problem.dim), jax.random.key(0)).jaxpr)
    return Cost(len(algorithm.exchanges), sum(down), sum(up), algorithm.block_length, evaluations)


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

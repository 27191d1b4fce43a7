"""What a deployment would pay per round, read off the exchanges themselves."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import tree
from .._types import precision
from ..algorithms import AbstractAlgorithm, Replies, Round
from ..problems import AbstractAgent, Problem
from ..sources import AbstractSource


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
    with precision():
        agent = tree.to_device(tree.take(problem.flat_agents, 0), "float64")
        algorithm, theta = tree.to_device((algorithm, jnp.zeros(problem.dim)), "float64")
        round = Round(jnp.zeros((), int), jax.random.key(0), jax.random.key(1))
        agent = _CountedAgent(agent.source, agent)
        _, block = agent.source.draw(jax.random.split(round.key, algorithm.local_steps), agent.source.init(round.key))
        server, memory = algorithm.init(theta)
        down = up = evaluations = 0
        for exchange in algorithm.exchanges:
            message = exchange.send(server, round)
            local, (reply, memory) = jax.make_jaxpr(
                lambda message, memory, e=exchange: e.local(message, memory, agent, block, round), return_shape=True
            )(message, memory)
            reply, memory = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (reply, memory))
            evaluations += _count(local.jaxpr)
            down, up = down + tree.size(message), up + tree.size(reply)
            server = exchange.aggregate(server, Replies(jax.tree.map(lambda r: r[None], reply)), round)
    return Cost(len(algorithm.exchanges), down, up, algorithm.local_steps, evaluations)


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

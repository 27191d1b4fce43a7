"""Traces one round to find the shapes of its messages, its evaluations, and its cost in a deployment."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import tree
from .._types import Theta, precision
from ..problems import AbstractAgent, Problem
from ..problems.base import AbstractAgentWrapper, identity
from ..sources import AbstractControlled, AbstractSource
from ..sources.base import AbstractIndependent
from ..sources.finite import key_bits
from .base import AbstractAlgorithm, Coded, Cost, Round, split
from .play import one_seed, play


class _Drawn(AbstractIndependent):
    """Observations that are a function of the key."""

    observation: Callable = eqx.field(static=True)

    def step(self, key, state, /):
        return (), self.observation(key)


class _StandIn(AbstractAgent):
    """An agent of which only the shapes matter; its observations are, like most, states of a finite chain."""

    source: AbstractSource = _Drawn(lambda key: jnp.zeros((), int))

    def operator(self, theta, o, /):
        return theta

    def mean_operator(self, theta, /):
        return theta

    def fisher_product(self, theta, o, vector, /):
        return vector

    def kl(self, old, new, o, /, of=identity):
        return of(jnp.sum((new - old) ** 2))

    def surrogate(self, theta, old, o, /, of=identity):
        return of(jnp.sum(theta - old))


class _CountedAgent(AbstractAgentWrapper):
    """An agent that marks every observation and every evaluation of its operator in the traced program."""

    def operator(self, theta, o, /):
        return _named("operator_evaluation", self.agent.operator)(theta, o)

    def weighted_operator(self, theta, o, weights, /):
        return _named("operator_evaluation", self.agent.weighted_operator)(theta, o, weights)

    def surrogate(self, theta, old, o, /, of=identity):
        # Its gradient counts, and a mark on the surrogate itself would appear twice, forward and backward.
        mark = _named("operator_evaluation", jnp.sum)(jax.lax.stop_gradient(theta))
        return self.agent.surrogate(theta, old, o, of) + 0 * mark

    def observe(self, theta, o, /):
        if not isinstance(self.agent.source, AbstractControlled):
            return _named("observation", self.agent.observe)(theta, o)
        # The state of the chain does not change the counts, so any initial state will do.
        start = self.agent.source.init(jax.random.key(0))
        return _named("observation", self.agent.react)(theta, start, o)[1]


def _named(name: str, function: Callable) -> Callable:
    """Returns the function as a part of the program with this name."""

    def call(*arguments):
        return function(*arguments)

    call.__name__ = name
    return jax.jit(call)


def exchange_shapes(
    algorithm: AbstractAlgorithm, theta: Theta, num_agents: int = 1, agent: AbstractAgent | None = None
) -> list[tuple[PyTree, PyTree]]:
    """The shapes of the server's message and of one agent's reply, for each exchange.

    Without an `agent` a stand-in answers, which suffices for all methods that only evaluate operators.
    """
    try:
        return _trace(algorithm, theta, num_agents, _StandIn() if agent is None else agent)[0]
    except AttributeError as error:
        raise TypeError(
            f"The messages of {type(algorithm).__name__} cannot be found from its settings, because it uses more of an "
            f"agent than its operators ({error}). Use a method that uses only operators."
        ) from error


def cost(problem: Problem, algorithm: AbstractAlgorithm) -> Cost:
    """Counts the exchanges, numbers, observations and operator evaluations of one round by tracing it.

    **Arguments:**

    - `problem`: the problem.
    - `algorithm`: the algorithm with its settings.

    **Returns:** a `Cost`, per round and agent; on average if some rounds or agents do not communicate.

    Raises `ValueError` or `TypeError` if the algorithm cannot run on the problem.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=2, dim=3)
        >>> cost(problem, fedhsa.FedHSA(0.01, local_steps=10))
        Cost(exchanges=2, floats_down=6, floats_up=6, samples=10, evaluations=10)
    """
    return _cost(problem, algorithm, "operator_evaluation")


def observed(problem: Problem, algorithm: AbstractAlgorithm) -> Cost:
    """The cost with the number of observations that an agent makes as `evaluations`."""
    return _cost(problem, algorithm, "observation")


def _cost(problem: Problem, algorithm: AbstractAlgorithm, counted: str) -> Cost:
    algorithm.check(problem)
    with precision():
        agent, settings = tree.to_device((tree.take(problem.flat_agents, 0), algorithm), "float64")
        # If the chain depends on the parameter, algorithms receive random bits instead of observations.
        agent = _CountedAgent(_Drawn(key_bits) if problem.controlled else agent.source, agent)
        travelled, program = _trace(settings, jnp.zeros(problem.dim), problem.num_agents, agent)
    down = sum(_floats(message) for message, _ in travelled)
    up = sum(_floats(reply) for _, reply in travelled)
    return algorithm.average_cost(
        Cost(len(travelled), down, up, algorithm.block_length, _count(program.jaxpr, counted))
    )


def _trace(
    algorithm: AbstractAlgorithm, theta: Theta, num_agents: int, agent: AbstractAgent
) -> tuple[list[tuple[PyTree, PyTree]], Any]:
    """Returns the shapes of the message to one agent and of its reply, per exchange, and the round as a program."""
    messages, replies = [], []

    def shapes(values):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), values)

    def first_agent(function):
        """Only the first agent is traced; the replies of the others have the same shapes."""

        def apply(agent, numbers, key, memory, block, own):
            reply, memory = function(agent, numbers[0], key, memory, block, tree.take(own, 0))
            replies.append(shapes(reply))
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_agents, *x.shape)), reply), memory

        return apply

    def one_round(theta):
        key = jax.random.key(0)
        block = agent.source.example(key, algorithm.block_length)
        shared = Round(jnp.zeros((), int), key, num_agents=num_agents)
        driver = one_seed(agent, block, shared, key, first_agent)

        def send(exchange, server):
            message = driver.send(exchange, server)
            messages.append(shapes(message))
            return message

        return play(algorithm, driver._replace(send=send), *algorithm.init(theta))[0]

    with jax.disable_jit(False):
        program = jax.make_jaxpr(one_round)(theta)
    return list(zip(messages, replies, strict=True)), program


def _floats(message: Any) -> float:
    """The numbers in a message to or from one agent; a coded part counts by its bits."""
    own, deliver = split(message)
    message = deliver([jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), part) for part in own])
    coded, plain = [], []
    for leaf in jax.tree.leaves(message, is_leaf=lambda x: isinstance(x, Coded)):
        (coded if isinstance(leaf, Coded) else plain).append(leaf)
    bits = sum(leaf.bits for leaf in coded)
    return tree.size(plain) + (bits / 64 if bits else 0)


def _count(jaxpr: Any, name: str) -> int:
    """Counts the calls of this name: a loop multiplies by its length, and the largest branch counts."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.params.get("name") == name:
            total += 1
        elif equation.primitive.name == "scan":
            total += equation.params["length"] * _count(equation.params["jaxpr"].jaxpr, name)
        elif equation.primitive.name == "cond":
            total += max(_count(branch.jaxpr, name) for branch in equation.params["branches"])
        else:
            total += sum(_count(inner, name) for inner in _inner(equation.params))
    return total


def _inner(params: dict[str, Any]):
    for value in params.values():
        if hasattr(value, "jaxpr"):
            yield value.jaxpr
        elif hasattr(value, "eqns"):
            yield value

"""Chains that depend on the parameter: the same algorithms, with agents that step their chains while they observe."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import tree
from .._types import precision
from ..problems import Problem
from ..problems.base import AbstractAgentWrapper
from ..sources import PendingSteps
from .base import AbstractAlgorithm
from .contract import check_contract
from .demands import Effect
from .schedules import AbstractSchedule
from .trace import observed
from .wrapper import AbstractWrapper


class Memory(NamedTuple):
    """An agent's memory: the inner memory, and the state of its chain."""

    inner: Any
    chain: PyTree


class SteppingAgent(AbstractAgentWrapper):
    """An agent whose chain takes a step whenever it observes, under the parameter it observes with.

    The state of the chain is held in mutable references, so that algorithms can observe inside their own loops without
    handling it.
    """

    chain: PyTree

    def observe(self, theta, o, /):
        state = jax.tree.map(lambda ref: ref[...], self.chain)
        state, observation = self.agent.react(theta, state, o)
        jax.tree.map(lambda ref, value: ref.__setitem__(..., value), self.chain, state)
        return observation


class OnControlledChains(AbstractWrapper):
    """An algorithm for agents whose chains depend on the parameter: their source steps inside the local phase.

    It is the outermost wrapper, and drivers add it through `adapt`. The chain's state is part of an agent's memory, so
    the chain continues from round to round wherever the agent runs. This includes absent agents (`Partial`): they act
    like the others but send nothing, just as chains that do not depend on the parameter continue without them.
    """

    start: PyTree
    """An example of a chain's state."""

    effects = Effect.NOTHING

    def init(self, theta):
        server, memory = self.algorithm.init(theta)
        return server, Memory(memory, self.start)

    def _around(self, exchange, number):
        def local(message, memory, agent, block: PendingSteps, round):
            chain = memory.chain
            if number == 0:  # in the first round the chain begins at its position 0
                begun = round.index == 0
                chain = jax.tree.map(lambda new, old: jnp.where(begun, new[0], old), block.start, chain)
            chain = jax.tree.map(jax.new_ref, chain)
            stepping = SteppingAgent(agent.source, agent, chain)
            reply, inner = exchange.local(message, memory.inner, stepping, block.bits, round)
            return reply, Memory(inner, jax.tree.map(lambda ref: ref[...], chain))

        return exchange._replace(local=local)


def adapt(algorithm: AbstractAlgorithm, problem: Problem, *, check: bool = True) -> AbstractAlgorithm:
    """Returns the algorithm as drivers run it on this problem: itself, unless the chains depend on the parameter.

    With `check` it raises an error if the algorithm cannot run on this problem.
    """
    if check:
        _check_fit(algorithm, problem)

    def adapted(algorithm: AbstractAlgorithm) -> AbstractAlgorithm:
        if not problem.controlled:
            return algorithm
        with precision():
            source, key = tree.take(problem.agents.source, 0), jax.random.key(0)
            shapes = jax.eval_shape(lambda source: source.init(key), source)
        return OnControlledChains(algorithm, jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes))

    if check:
        check_contract(algorithm, problem, adapted)
        _check_observations(algorithm, problem)
    return adapted(algorithm)


def as_written(algorithm: AbstractAlgorithm) -> AbstractAlgorithm:
    """The algorithm that `adapt` was given, for manifests."""
    return algorithm.algorithm if isinstance(algorithm, OnControlledChains) else algorithm


def _check_fit(algorithm: AbstractAlgorithm, problem: Problem) -> None:
    if not isinstance(problem, Problem):
        what = f"the class {problem.__name__}" if isinstance(problem, type) else type(problem).__name__
        advice = "For instance `problems.quadratic.random()`"
        if isinstance(problem, list | tuple):
            advice = "Build one from the agents: `Problem(agents, like=np.zeros(d))`"
        raise TypeError(f"`problem` must be a `Problem`, got {what}. {advice}.")
    if not isinstance(algorithm, AbstractAlgorithm):
        what = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else type(algorithm).__name__
        raise TypeError(
            f"`algorithm` must be an algorithm with its settings, got {what}. "
            "For instance `FedHSA(step_size=0.1, local_steps=10)`."
        )
    algorithm.check(problem)
    for layer in algorithm.layers:
        for setting in vars(layer).values():
            if isinstance(setting, AbstractSchedule):
                setting.check(problem.dim)


def _check_observations(algorithm: AbstractAlgorithm, problem: Problem) -> None:
    if not problem.controlled:
        return
    price = observed(problem, algorithm)
    if abs(price.samples - price.evaluations) > 1e-9:
        raise TypeError(
            f"{type(algorithm).__name__} uses {price.samples:.4g} observations per round but makes "
            f"{price.evaluations:.4g}. The chains of {type(problem.agents).__name__} depend on the parameter, so each "
            "step must be taken exactly once, under its own parameter: in your own method, call "
            "`o = agent.observe(theta, o)` before `agent.operator(theta, o)`. FedHSA, LocalSA and SCAFFLSA, for "
            "instance, do this."
        )

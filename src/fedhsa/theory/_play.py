"""Rounds as engines play them, on agents without noise: once, for many states, and one after the other."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from .. import tree
from .._random import fold_in
from .._types import precision
from ..algorithms import AbstractAlgorithm, Round
from ..algorithms.play import one_seed, play, start
from ..problems import Problem


class _Told(Round):
    """A round whose coin is a number between 0 and 1: what is likelier than that happens."""

    __slots__ = ()

    def happens(self, probability):
        return jnp.asarray(self.coin < probability)


def ways_of_the_coin(problem: Problem, algorithm: AbstractAlgorithm) -> tuple[np.ndarray, np.ndarray]:
    """A number for each way in which the coin can fall, and how likely it is; found by listening to what is asked."""
    asked: list[Any] = []

    class Listening(Round):
        __slots__ = ()

        def happens(self, probability):
            asked.append(probability)
            return jnp.asarray(True)

    def once(theta):
        begun = start(algorithm, theta, problem.num_agents)
        round = Listening(jnp.ones((), int), jax.random.key(0), num_agents=problem.num_agents)
        return _play(problem.agents, algorithm, begun, (), round)

    with precision():
        try:
            jax.eval_shape(once, jnp.asarray(problem.theta_star))
        except (TypeError, ValueError, IndexError) as error:
            raise TypeError(
                f"A round of {type(algorithm).__name__} cannot be played on mean operators, without observations, as "
                "where a method looks at them itself; what its rounds do on average cannot be read off its exchanges."
            ) from error
    try:
        edges = np.unique([0.0, 1.0, *(float(p) for p in asked)])
    except jax.errors.ConcretizationTypeError:
        name = type(algorithm).__name__
        raise TypeError(f"The probability of {name}'s coin is not a constant, so it has no mean map.") from None
    return (edges[:-1] + edges[1:]) / 2, np.diff(edges)


def _play(agents: Any, algorithm: AbstractAlgorithm, state: tuple[Any, Any], block: Any, shared: Round):
    """One round of one seed; nothing is drawn."""
    keys = fold_in(shared.key, jnp.arange(shared.num_agents))
    return play(algorithm, one_seed(agents, block, shared, keys), *state)


def floats(state: Any) -> tuple[Any, Any]:
    """The real numbers in a state, and the rest of it."""
    return eqx.partition(state, eqx.is_inexact_array)


def whole(numbers: Any, rest: Any) -> Any:
    """Both together again."""
    return eqx.combine(numbers, rest)


def _on_average(agents, algorithm, state, index, key, coins, weights):
    """The state after a round, averaged over the coin."""

    def fallen(coin):
        shared = _Told(index, key, coin=coin, num_agents=tree.leading_axis(agents))
        return _play(agents, algorithm, state, (), shared)

    every = jax.vmap(fallen)(coins)
    return jax.tree.map(lambda x: jnp.tensordot(weights, x, 1) if eqx.is_inexact_array(x) else x[0], every)


def _stepper(agents, algorithm, rest, unravel, coins, weights, index, key):
    """A round as a function of the flat state; beside the state it gives whether anything else changed."""

    def step(state):
        state = whole(unravel(state), rest)
        after = _on_average(agents, algorithm, state, index, jax.random.key(key), coins, weights)
        numbers, others = floats(after)
        moved = jax.tree.map(lambda x, y: jnp.any(x != y), others, rest)
        return ravel_pytree(numbers)[0], jnp.any(jnp.array([False, *jax.tree.leaves(moved)]))

    return step


@eqx.filter_jit
def follow(agents, algorithm, rest, unravel, coins, weights, states, tangents, index, key):
    """States after a round and their derivatives along tangents, row by row."""

    def one(state, tangent, index, key):
        step = _stepper(agents, algorithm, rest, unravel, coins, weights, index, key)
        return jax.jvp(step, (state,), (tangent,), has_aux=True)

    return jax.vmap(one)(states, tangents, index, key)


@eqx.filter_jit
def pull_back(agents, algorithm, rest, unravel, coins, weights, state, covector):
    """The transposed derivative of a round."""
    step = _stepper(agents, algorithm, rest, unravel, coins, weights, jnp.ones((), int), 0)
    return jax.vjp(step, state, has_aux=True)[1](covector)[0]


@eqx.filter_jit
def response(agents, algorithm, rest, unravel, state, kept, block, key):
    """How the kept state after a round responds to noise."""

    def after(block):
        shared = Round(jnp.ones((), int), jax.random.key(key), num_agents=tree.leading_axis(agents))
        return ravel_pytree(floats(_play(agents, algorithm, whole(unravel(state), rest), block, shared))[0])[0][kept]

    return jax.jacrev(after)(block)


@eqx.filter_jit
def follow_all(agents, algorithm, coins, weights, theta, rounds: int):
    """The parameter of every round, from a start."""

    def step(state, index):
        state = _on_average(agents, algorithm, state, index, jax.random.key(0), coins, weights)
        return state, state[0].theta

    _, path = jax.lax.scan(step, start(algorithm, theta, tree.leading_axis(agents)), jnp.arange(rounds))
    return jnp.concatenate([theta[None], path])

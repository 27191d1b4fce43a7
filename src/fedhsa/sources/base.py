"""The contract of a source: one agent's Markov chain, stepped with explicit keys."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from .._types import Block, Key, Observation, State


class UnknownLawError(TypeError):
    """Raised if a source does not provide its stationary distribution, so that exact means are not available.

    !!! example
        >>> fedhsa.sources.VAR1([[0.5]]).expect(lambda z: z)
        Traceback (most recent call last):
        fedhsa.sources.base.UnknownLawError: VAR1 has no exact stationary expectation: ...
    """


class AbstractSource(eqx.Module):
    """The base class of sources: one agent's Markov chain.

    Random numbers are keyed by position: `init` receives the key of position 0 and returns the initial state, and
    `step` receives the key of position $t + 1$ and leads from the state at $t$ to the state at $t + 1$, with the
    observation $o_t$. Any part of a trajectory can therefore be regenerated from its keys and its first state.

    !!! example
        >>> class Drift(AbstractSource):                       # a random walk with normal steps
        ...     def init(self, key):
        ...         return jax.numpy.zeros(())
        ...     def step(self, key, state):
        ...         return state + jax.random.normal(key), state
        >>> _, block = Drift().draw(jax.random.split(jax.random.key(1), 5), 0.0)
        >>> block.shape
        (5,)
    """

    @abc.abstractmethod
    def init(self, key: Key, /) -> State:
        """Returns the state at position 0."""

    @abc.abstractmethod
    def step(self, key: Key, state: State, /) -> tuple[State, Observation]:
        """Returns the next state, and the observation made on the way to it."""

    def draw(self, keys: Key, state: State, /) -> tuple[State, Block]:
        """Takes one step for each key. Override it to draw random numbers in bulk."""
        return jax.lax.scan(lambda state, key: self.step(key, state), state, keys)

    def sample(self, key: Key, /) -> State:
        """Draws a state from the stationary distribution. Raises `TypeError` if the source does not override it."""
        raise TypeError(
            f"{type(self).__name__} cannot draw from its stationary distribution: "
            "override `sample(key)` to use i.i.d. observations."
        )

    def sampled(self) -> "AbstractSource":
        """The source with everything that `sample` needs, prepared on the host for all agents."""
        return self

    def expect(self, function: Callable, /):
        """The exact stationary mean of `function(o)`. Raises `UnknownLawError` if the source does not override it."""
        raise UnknownLawError(
            f"{type(self).__name__} has no exact stationary expectation: override the agent's `mean_operator(theta)`, "
            "or pass `theta_star` to the problem."
        )

    @property
    def length(self) -> int | None:
        """The number of observations, or None if it is unlimited."""
        return None

    @property
    def like(self) -> Observation | None:
        """An example of an observation if the source itself draws none; otherwise None."""
        return None

    def example(self, key: Key, length: int) -> Block:
        """A block of which only the shape matters, for tracing a program."""
        if self.like is None:
            return self.draw(jnp.broadcast_to(key, length), self.init(key))[1]
        return jax.tree.map(lambda x: jnp.zeros((length, *jnp.shape(x)), jnp.asarray(x).dtype), self.like)


class AbstractIndependent(AbstractSource):
    """The base class of sources whose observations are independent, so that the chain has no state."""

    def init(self, key, /):
        return ()

    def sample(self, key, /):
        return ()

    def draw(self, keys, state, /):
        return jax.vmap(lambda key: self.step(key, ()))(keys)


class Silent(AbstractSource):
    """A source without observations, for agents without noise.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2).noiseless()
        >>> type(problem.agents.source).__name__
        'Silent'
    """

    def init(self, key, /):
        return ()

    def step(self, key, state, /):
        return (), ()

    def draw(self, keys, state, /):
        return (), ()

    def sample(self, key, /):
        return ()

    def expect(self, function, /):
        return function(())

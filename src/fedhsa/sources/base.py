"""What a source is: one agent's Markov chain, stepped with explicit keys."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from .._types import Block, Key, Observation, State


class UnknownLawError(TypeError):
    """A source does not know its stationary law, so that there is no exact mean under it."""


class AbstractSource(eqx.Module):
    """One agent's Markov chain.

    Random numbers are keyed by position: `init` gets the key of position 0 and makes the start of the chain,
    `step` gets the key of position $t + 1$ and leads from the state at $t$ to the state at $t + 1$, giving the
    observation $o_t$ on the way. So any stretch of a trajectory can be made again from its keys and its first state.

    !!! example
        >>> class Drift(AbstractSource):                       # a state that moves on by a normal number
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
        """The state at position 0."""

    @abc.abstractmethod
    def step(self, key: Key, state: State, /) -> tuple[State, Observation]:
        """The next state, and the observation made on the way to it."""

    def draw(self, keys: Key, state: State, /) -> tuple[State, Block]:
        """As many steps as there are keys. Override it to make random numbers in bulk."""
        return jax.lax.scan(lambda state, key: self.step(key, state), state, keys)

    def sample(self, key: Key, /) -> State:
        """A state drawn from the stationary law."""
        raise TypeError(
            f"{type(self).__name__} cannot draw from its stationary law: "
            "override `sample(key)` to use i.i.d. observations."
        )

    def sampled(self) -> "AbstractSource":
        """The source with all that `sample` needs, where it holds that only on request; on the host, of all agents."""
        return self

    def expect(self, function: Callable, /):
        """The stationary mean of `function(o)`, exactly."""
        raise UnknownLawError(
            f"{type(self).__name__} has no exact stationary expectation: override the agent's `mean_operator(theta)`, "
            "or pass `theta_star` to the problem."
        )

    @property
    def length(self) -> int | None:
        """How many observations there are, or None when they never end."""
        return None

    @property
    def like(self) -> Observation | None:
        """An example of an observation where the source itself draws none; None where it does."""
        return None

    def example(self, key: Key, length: int) -> Block:
        """A block of which only the shape matters, for those who trace a program."""
        if self.like is None:
            return self.draw(jnp.broadcast_to(key, length), self.init(key))[1]
        return jax.tree.map(lambda x: jnp.zeros((length, *jnp.shape(x)), jnp.asarray(x).dtype), self.like)


class Silent(AbstractSource):
    """A source that says nothing: the observations of agents without noise.

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

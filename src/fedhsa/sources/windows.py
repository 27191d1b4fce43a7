"""The recent past of a finite chain: windows of consecutive states, and eligibility traces."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .base import AbstractSource
from .finite import FiniteChain


class Windows(AbstractSource):
    r"""A finite chain observed in windows: the observation at time $t$ is $(s_t, \dots, s_{t+n})$.

    **Arguments:**

    - `chain`: the chain.
    - `steps`: $n$, the number of steps in a window.

    !!! example
        >>> chain = FiniteChain([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]], start=0)
        >>> source = fedhsa.tree.to_device(Windows(chain, steps=2), "float32")
        >>> _, seen = source.step(jax.random.key(0), source.init(jax.random.key(1)))
        >>> seen.tolist()
        [0, 1, 2]
    """

    chain: FiniteChain
    steps: int = eqx.field(static=True)

    def init(self, key, /):
        return self._from(self.chain.init(key), key)

    def sample(self, key, /):
        return self._from(self.chain.sample(key), key)

    def step(self, key, state, /):
        # The window at time t + 1 ends with the state after the last one of the window at time t.
        following, _ = self.chain.step(key, state[-1])
        return jnp.append(state[1:], following), state

    def draw(self, keys, state, /):
        # One chain, cut into windows that overlap.
        last, after = self.chain.draw(keys, state[-1])
        path = jnp.concatenate([state, jnp.append(after[1:], last)])
        windows = path[jnp.arange(keys.shape[0])[:, None] + jnp.arange(self.steps + 1)[None, :]]
        return path[-self.steps - 1 :], windows

    def _from(self, state, key):
        def move(state, key):
            return self.chain.step(key, state)[0], state

        # Keys other than that of position 0, which has determined the first state.
        last, states = jax.lax.scan(move, state, jax.random.split(key, self.steps + 1)[1:])
        return jnp.append(states, last)


class Traced(NamedTuple):
    """Two consecutive states of a chain, and the trace of the features up to the first."""

    state: Int[Array, "*batch"]
    """The state at time $t$."""
    next_state: Int[Array, "*batch"]
    """The state at time $t + 1$."""
    trace: Float[Array, "*batch d"]
    """The trace $z_t$."""


class Traces(AbstractSource):
    r"""A finite chain with an eligibility trace: the observation at time $t$ is $(s_t, s_{t+1}, z_t)$.

    $$z_t = \lambda \gamma(s_t)\, z_{t-1} + \phi(s_t)$$

    Here $\gamma(s)$ is the discount on entering $s$. The trace is zero before the first state.

    **Arguments:**

    - `chain`: the chain.
    - `features`: $\phi$, of shape `(S, d)`.
    - `decay`: $\lambda \gamma$, of shape `(S,)`.

    !!! example
        >>> chain = FiniteChain([[0.0, 1.0], [0.5, 0.5]], start=0)
        >>> source = Traces(chain, features=np.eye(2), decay=np.array([0.5, 0.5]))
        >>> state, first = source.step(jax.random.key(0), source.init(jax.random.key(1)))
        >>> state, second = source.step(jax.random.key(0), state)
        >>> second.trace.tolist()  # at state 1, after state 0
        [0.5, 1.0]
    """

    chain: FiniteChain
    features: np.ndarray
    decay: np.ndarray

    def init(self, key, /) -> tuple[Any, Any]:
        return self.chain.init(key), jnp.zeros_like(self.features[0])

    def step(self, key, state, /):
        s, before = state
        trace = self.decay[s] * before + self.features[s]
        following, _ = self.chain.step(key, s)
        return (following, trace), Traced(s, following, trace)

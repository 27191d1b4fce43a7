"""Sources built from others: i.i.d. draws from a stationary distribution, and replay of recorded observations."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import tree
from .base import AbstractIndependent, AbstractSource


class IID(AbstractIndependent):
    """Independent observations from the stationary distribution of `source`: the paper's warm-up setting.

    **Arguments:**

    - `source`: a source that can draw from its stationary distribution.

    !!! example
        >>> problem = fedhsa.problems.finite_sum.random(num_agents=2, num_components=3, dim=1)
        >>> type(problem.iid().agents.source).__name__
        'IID'
    """

    source: AbstractSource = eqx.field(converter=lambda source: source.sampled())

    def step(self, key, state, /):
        start, move = jax.random.split(key)
        return (), self.source.step(move, self.source.sample(start))[1]

    def expect(self, function, /):
        return self.source.expect(function)


class Replay(AbstractSource):
    """Replays recorded observations in their order, so that several methods or programs see exactly the same data.

    **Arguments:**

    - `observations`: a pytree of arrays whose leading axis is time; for several agents, agents first, then time.
    - `wrap`: whether to start over at the end. Otherwise a run that is longer than the record raises an error.
    - `source`: the source of the observations. `expect` returns its stationary mean; by default, the average over the
      record.

    !!! example
        >>> recorded = Replay(np.array([0.0, 4.0]))
        >>> float(recorded.expect(lambda o: o)), recorded.length
        (2.0, 2)
    """

    observations: PyTree
    wrap: bool = eqx.field(static=True, default=False)
    source: AbstractSource | None = None

    def init(self, key, /):
        return jnp.zeros((), dtype=jnp.int32)

    def step(self, key, state, /):
        return state + 1, tree.take(self.observations, state % self._recorded)

    def draw(self, keys, state, /):
        positions = (state + jnp.arange(keys.shape[0], dtype=jnp.int32)) % self._recorded
        return state + keys.shape[0], tree.take(self.observations, positions)

    def expect(self, function, /):
        if self.source is not None:
            return self.source.expect(function)
        return jax.tree.map(lambda v: jnp.mean(v, axis=0), jax.vmap(function)(self.observations))

    @property
    def _recorded(self) -> int:
        return jax.tree.leaves(self.observations)[0].shape[0]

    @property
    def length(self):
        return None if self.wrap else self._recorded

"""What a hostile agent replies instead of what the method asks for: attacks for `Byzantine`."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _check
from .._types import Key
from ..problems import AbstractAgent
from ..problems.base import AbstractAgentWrapper
from ..sources import AbstractSource


class AbstractAttack(eqx.Module):
    """What one hostile agent makes of one array of its reply; it knows nothing of what the others reply."""

    needs_policy: ClassVar[bool] = False
    """Whether it is only for agents that learn a policy."""

    @abc.abstractmethod
    def __call__(self, key: Key, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """What is sent instead of `x`; `key` is the agent's own, another in every exchange."""

    def agent(self, agent: AbstractAgent, hostile: Any) -> AbstractAgent:
        """The agent itself, which may behave otherwise where it is `hostile`."""
        return agent


class SignFlip(AbstractAttack):
    r"""$-c\,x$: the opposite of what it should say.

    **Arguments:**

    - `scale`: $c$. FedPG-BR's authors use 2.5.

    !!! example
        >>> SignFlip(2.5)(None, jnp.array([1.0, -2.0])).tolist()
        [-2.5, 5.0]
    """

    scale: float = 1.0

    def __check_init__(self):
        _check.scalar("scale", self.scale, above=0.0)

    def __call__(self, key, x):
        return -self.scale * x


class Noise(AbstractAttack):
    r"""$x + s\,z$ with standard normal $z$: the reply with noise, drawn again in each exchange.

    **Arguments:**

    - `std`: $s$.
    - `relative`: whether $s$ is `std` times the range of the reply's entries, $\max_j x_j - \min_j x_j$.

    !!! example
        >>> bool(Noise(0.1)(jax.random.key(0), jnp.ones(3)).std() > 0)
        True
    """

    std: float = 1.0
    relative: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        _check.scalar("std", self.std, above=0.0)

    def __call__(self, key, x):
        size = self.std * (jnp.max(x) - jnp.min(x)) if self.relative else self.std
        return x + size * jax.random.normal(key, x.shape, x.dtype)


class Random(AbstractAttack):
    r"""$s\,z$ with standard normal $z$ in the place of the reply.

    **Arguments:**

    - `std`: $s$.

    !!! example
        >>> Random(10.0)(jax.random.key(0), jnp.ones(3)).shape
        (3,)
    """

    std: float = 1.0

    def __check_init__(self):
        _check.scalar("std", self.std, above=0.0)

    def __call__(self, key, x):
        return self.std * jax.random.normal(key, x.shape, x.dtype)


class Zero(AbstractAttack):
    """Nothing but zeros: an agent that takes part and does not work.

    !!! example
        >>> Zero()(None, jnp.array([1.0, -2.0])).tolist()
        [0.0, 0.0]
    """

    def __call__(self, key, x):
        return jnp.zeros_like(x)


class Shift(AbstractAttack):
    r"""$x + s\,(1, \dots, 1)$: all hostile agents push in the same direction, and in every round.

    A small shift hides among the differences of heterogeneous agents, and does not average out over rounds.

    **Arguments:**

    - `size`: $s$, of either sign.

    !!! example
        >>> Shift(0.5)(None, jnp.array([1.0, -2.0])).tolist()
        [1.5, -1.5]
    """

    size: float = 1.0

    def __check_init__(self):
        _check.scalar("size", self.size)

    def __call__(self, key, x):
        return x + self.size


class NotFinite(AbstractAttack):
    """No numbers at all, `nan` in every entry: what breaks a mean at once.

    !!! example
        >>> NotFinite()(None, jnp.array([1.0, -2.0])).tolist()
        [nan, nan]
    """

    def __call__(self, key, x):
        return jnp.full_like(x, jnp.nan)


class RandomAction(AbstractAttack):
    r"""The agent acts at random and reports honestly what it computes from that; for problems with a policy.

    It acts as under the parameter zero, at which the policies of `fedhsa.environments` do not look at what they see:
    all actions are equally likely, or normal around 0. In FedPG-BR's public code the action is always the first one.

    !!! example
        >>> RandomAction()(None, jnp.array([1.0, -2.0])).tolist()            # what it says is what it computed
        [1.0, -2.0]

    !!! cite "Fan et al. (2021), FedPG-BR, arXiv:2110.14074"
    """

    needs_policy = True

    def __call__(self, key, x):
        return x

    def agent(self, agent, hostile):
        return ActsAtRandom(agent.source, agent, hostile)


class ActsAtRandom(AbstractAgentWrapper):
    """An agent that, where it is hostile, observes what happens under the parameter zero."""

    source: AbstractSource
    agent: Any
    hostile: Any

    def observe(self, theta, o, /):
        return self.agent.observe(jnp.where(self.hostile, jnp.zeros_like(theta), theta), o)

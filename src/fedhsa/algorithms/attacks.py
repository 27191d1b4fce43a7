"""Attacks for `Byzantine`: the replies that Byzantine agents send instead of the method's."""

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

__all__ = ["AbstractAttack", "Noise", "NotFinite", "Random", "RandomAction", "Shift", "SignFlip", "Zero"]


class AbstractAttack(eqx.Module):
    """The base class of attacks: a map from one array of an agent's reply to the array that is sent instead.

    An attack uses only the agent's own reply and has no access to those of other agents.

    !!! example
        >>> class Doubled(AbstractAttack):
        ...     def __call__(self, key, x):
        ...         return 2 * x
        >>> Doubled()(None, jnp.array([1.0, -2.0])).tolist()
        [2.0, -4.0]
    """

    needs_policy: ClassVar[bool] = False
    """Whether the attack applies only to agents that learn a policy."""

    @abc.abstractmethod
    def __call__(self, key: Key, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns the array that is sent instead of `x`; `key` differs between agents and exchanges."""

    def agent(self, agent: AbstractAgent, hostile: Any) -> AbstractAgent:
        """Returns the agent, whose behaviour may differ where it is `hostile`."""
        return agent


class SignFlip(AbstractAttack):
    r"""The negative of the reply, $-c\,x$.

    **Arguments:**

    - `scale`: $c$, which must be positive. The authors of FedPG-BR use 2.5.

    Raises `ValueError` if `scale` is not positive.

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
    r"""The reply with added noise, $x + s\,z$ with standard normal $z$, drawn independently in each exchange.

    **Arguments:**

    - `std`: $s$, which must be positive.
    - `relative`: whether $s$ is `std` times the range of the reply's entries, $\max_j x_j - \min_j x_j$.

    Raises `ValueError` if `std` is not positive.

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
    r"""Noise instead of the reply, $s\,z$ with standard normal $z$.

    **Arguments:**

    - `std`: $s$, which must be positive.

    Raises `ValueError` if `std` is not positive.

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
    """Zeros instead of the reply: an agent that takes part without doing any work.

    !!! example
        >>> Zero()(None, jnp.array([1.0, -2.0])).tolist()
        [0.0, 0.0]
    """

    def __call__(self, key, x):
        return jnp.zeros_like(x)


class Shift(AbstractAttack):
    r"""The reply shifted by a constant, $x + s\,(1, \dots, 1)$: all Byzantine agents push in the same direction.

    A small shift is hidden by the differences between heterogeneous agents and does not average out over rounds.

    **Arguments:**

    - `size`: $s$, of either sign.

    Raises `ValueError` if `size` is not a finite number.

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
    """NaN in every entry of the reply, which breaks a mean immediately.

    !!! example
        >>> NotFinite()(None, jnp.array([1.0, -2.0])).tolist()
        [nan, nan]
    """

    def __call__(self, key, x):
        return jnp.full_like(x, jnp.nan)


class RandomAction(AbstractAttack):
    r"""The agent acts at random and reports its results honestly; for problems with a policy.

    It acts under the parameter zero, at which the policies of `fedhsa.environments` ignore their observation: all
    actions are equally likely, or normal around 0. In FedPG-BR's public code the action is always the first one.

    !!! example
        >>> RandomAction()(None, jnp.array([1.0, -2.0])).tolist()            # the reply itself is honest
        [1.0, -2.0]

    !!! cite "Fan et al. (2021), FedPG-BR, arXiv:2110.14074"
    """

    needs_policy = True

    def __call__(self, key, x):
        return x

    def agent(self, agent, hostile):
        return ActsAtRandom(agent.source, agent, hostile)


class ActsAtRandom(AbstractAgentWrapper):
    """An agent that observes the outcomes under the parameter zero if it is Byzantine."""

    hostile: Any

    def observe(self, theta, o, /):
        return self.agent.observe(jnp.where(self.hostile, jnp.zeros_like(theta), theta), o)

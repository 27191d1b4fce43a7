"""Policies: the probabilities of actions, fixed or improved with the parameter of a value function."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy

from .. import _check


def softmax(values: Any, inverse_temperature: Any = 1.0) -> Any:
    r"""Probabilities $\propto e^{\beta q(a)}$ of the actions, from their values `(..., actions)`.

    !!! example
        >>> softmax(np.log(np.array([1.0, 3.0]))).tolist()
        [0.25, 0.75]
    """
    scaled = inverse_temperature * values
    return (jax.nn.softmax if isinstance(scaled, jax.Array) else scipy.special.softmax)(scaled, axis=-1)


class Uniform(eqx.Module):
    """The same probability for all actions and observations.

    !!! example
        >>> Uniform(2)(np.zeros(4))
        array([0.5, 0.5])
    """

    num_actions: int = eqx.field(static=True)

    def __check_init__(self):
        _check.count("num_actions", self.num_actions)

    def __call__(self, observation: Any) -> Any:
        """The probabilities of the actions, the same for all observations."""
        del observation
        return np.full(self.num_actions, 1 / self.num_actions)


class AbstractImprovement(eqx.Module):
    r"""Behaviour that depends on the parameter $\theta$ of the action values $\phi(s)^T \theta_a$.

    `at(theta)` is the policy for one parameter: a function of the observation, like any other policy.
    """

    features: Any
    num_actions: int = eqx.field(static=True)

    @abc.abstractmethod
    def probabilities(self, values: Any, /) -> Any:
        """The probabilities of the actions, given their values `(..., actions)`."""

    def at(self, theta: Any) -> Callable[[Any], Any]:
        """The policy for the parameter `theta`, `(actions * k,)`."""

        def policy(observation: Any) -> Any:
            phi = self.features(observation)
            return self.probabilities(phi @ theta.reshape(self.num_actions, -1).T)

        return policy


class Softmax(AbstractImprovement):
    r"""$\pi(a \mid s) \propto \exp(\beta\, \phi(s)^T \theta_a)$: Lipschitz in the parameter.

    **Arguments:**

    - `features`: $\phi$.
    - `num_actions`: the number of actions.
    - `inverse_temperature`: $\beta$; 0 is the uniform policy.

    !!! example
        >>> Softmax(lambda s: s, 2, 1.0).at(np.array([0.0, np.log(3.0)]))(np.array([1.0]))
        array([0.25, 0.75])
    """

    inverse_temperature: Any = 1.0

    def probabilities(self, values, /):
        return softmax(values, self.inverse_temperature)


class EpsilonGreedy(AbstractImprovement):
    r"""The best action with probability $1 - \varepsilon$, otherwise a uniformly random action; ties go to the first.

    **Arguments:**

    - `features`: $\phi$.
    - `num_actions`: the number of actions.
    - `epsilon`: $\varepsilon$.

    !!! example
        >>> EpsilonGreedy(lambda s: s, 2, 0.2).at(np.array([0.0, 3.0]))(np.array([1.0]))
        array([0.1, 0.9])
    """

    epsilon: Any = 0.1

    def probabilities(self, values, /):
        xp = jnp if isinstance(values, jax.Array) else np
        best = values.argmax(-1)[..., None] == xp.arange(self.num_actions).reshape(*[1] * (values.ndim - 1), -1)
        return self.epsilon / self.num_actions + (1 - self.epsilon) * best.astype(values.dtype)

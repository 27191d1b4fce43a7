"""Linear dynamics with Gaussian noise, observed in pairs: a plant under feedback, a fading channel."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check
from .._linear import check_stable, lyapunov
from .._random import complex_normal, real_parts
from .base import AbstractSource
from .finite import Transition
from .var import STARTS, covariance_factor

SYMMETRY_TOLERANCE = 1e-9


class LinearGaussian(AbstractSource):
    r"""$s_{t+1} = F s_t + w_t$ with $w_t \sim N(0, W)$; the observation at time $t$ is $(s_t, s_{t+1})$.

    **Arguments:**

    - `transition`: $F$, of shape `(n, n)`, with a spectral radius below 1.
    - `noise`: $W$, the covariance of the noise, of shape `(n, n)`; it may be singular.
    - `start`: `"stationary"` or `"zero"`.

    The arrays may have a leading axis, one entry per agent.

    Raises `ValueError` if an argument is not valid or the dynamics are not stable.

    !!! example
        >>> float(LinearGaussian([[0.5]], [[3.0]]).covariance[0, 0])   # 3 / (1 - 0.25)
        4.0
    """

    transition: np.ndarray
    noise: np.ndarray
    covariance: np.ndarray
    """The stationary covariance."""
    _noise_factor: np.ndarray
    _factor: np.ndarray
    start: str = eqx.field(static=True)

    def __init__(self, transition, noise, start="stationary"):
        batched, sizes = np.ndim(transition) == 3, {}
        shape = ("agents", "n", "n") if batched else ("n", "n")
        F = _check.array("transition", transition, shape, sizes)
        W = _check.array("noise", noise, shape, sizes)
        _check.choice("start", start, STARTS)
        F, W = (F, W) if batched else (F[None], W[None])
        check_stable("transition", F, "A plant needs stabilising feedback; the memory of a channel must decay.")
        _check_covariance(W)
        covariance = lyapunov(F, W)
        unbatch = (lambda x: x) if batched else (lambda x: x[0])
        self.transition, self.noise, self.covariance = unbatch(F), unbatch(W), unbatch(covariance)
        self._noise_factor, self._factor = unbatch(covariance_factor(W)), unbatch(covariance_factor(covariance))
        self.start = start

    def init(self, key, /):
        return self.sample(key) if self.start == "stationary" else jnp.zeros_like(self._factor[0])

    def sample(self, key, /):
        return self._factor @ self._normal(key)

    def step(self, key, state, /):
        return self._move(state, self._normal(key))

    def draw(self, keys, state, /):
        return jax.lax.scan(lambda state, normal: self._move(state, normal), state, jax.vmap(self._normal)(keys))

    def _move(self, state, normal):
        next_state = self.transition @ state + self._noise_factor @ normal
        return next_state, Transition(state, next_state)

    def _normal(self, key):
        n = self._factor.shape[-1]
        return real_parts(complex_normal(key, (n + 1) // 2, self._factor.dtype), n)


def _check_covariance(W: np.ndarray) -> None:
    size = 1 + abs(W).max((-1, -2))
    for agent, smallest in enumerate(np.linalg.eigvalsh(W)[:, 0]):
        if abs(W[agent] - W[agent].T).max() > SYMMETRY_TOLERANCE * size[agent]:
            raise ValueError(
                f"`noise` must be a symmetric matrix, but that of agent {agent} is not. Use (W + W^T) / 2."
            )
        if smallest < -SYMMETRY_TOLERANCE * size[agent]:
            raise ValueError(
                f"`noise` must be positive semidefinite, but that of agent {agent} has the eigenvalue {smallest:.3g}."
            )

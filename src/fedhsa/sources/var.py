"""Vector autoregressive noise: the paper's continuous-state Markov chain."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check, kernels
from .._linear import by_parts, check_stable, lyapunov
from .._random import complex_normal, real_parts
from .base import AbstractSource

STARTS = ("zero", "stationary")


class VAR1(AbstractSource):
    r"""Vector AR(1) noise, $z_{t+1} = Q z_t + \epsilon_t$ with $\epsilon_t \sim N(0, \sigma^2 I)$, observed as $z_t$.

    **Arguments:**

    - `transition`: $Q$, of shape `(d, d)`, with a spectral radius below 1.
    - `noise_std`: $\sigma$, the standard deviation of $\epsilon$, at least 0.
    - `start`: `"zero"` (the paper's choice) or `"stationary"`.

    The arrays may have a leading axis, one entry per agent.

    Raises `ValueError` if an argument is not valid or the noise is not stable.

    !!! example
        >>> float(VAR1([[0.5]], noise_std=1.0).covariance[0, 0])   # 1 / (1 - 0.25)
        1.3333333333333333
    """

    transition: np.ndarray
    noise_std: np.ndarray
    _factor: np.ndarray | None
    """A factor of the stationary covariance; None until it is needed."""
    start: str = eqx.field(static=True)

    def __init__(self, transition, noise_std=1.0, start="zero"):
        batched = np.ndim(transition) == 3
        Q = _check.array("Q", transition, ("agents", "d", "d") if batched else ("d", "d"))
        Q = Q if batched else Q[None]
        _check.number("noise_std", noise_std, least=0.0)
        _check.choice("start", start, STARTS)
        try:
            std = np.broadcast_to(np.asarray(noise_std, dtype=np.float64), len(Q)).copy()
        except ValueError:
            raise ValueError(
                f"`noise_std` must be one number, or one per agent, got shape {np.shape(noise_std)}."
            ) from None
        check_stable("Q", Q, "Otherwise the noise has no stationary distribution.")
        unbatch = (lambda x: x) if batched else (lambda x: x[0])
        self.transition, self.noise_std = unbatch(Q), unbatch(std)
        self._factor, self.start = None, start
        if start == "stationary":
            self._factor = covariance_factor(self.covariance)

    @property
    def covariance(self) -> np.ndarray:
        """The stationary covariance, computed on request."""
        return lyapunov(self.transition, self.noise_std[..., None, None] ** 2 * np.eye(self.transition.shape[-1]))

    def sampled(self):
        return eqx.tree_at(lambda s: s._factor, self, self._stationary_factor(), is_leaf=lambda x: x is None)

    def init(self, key, /):
        return self.sample(key) if self.start == "stationary" else jnp.zeros_like(self.transition[0])

    def sample(self, key, /):
        return self._stationary_factor() @ self._real(self._noise(key))

    def step(self, key, state, /):
        return self._move(state, self._noise(key)), state

    def draw(self, keys, state, /):
        if kernels.kernel_for("normal_walk"):
            first, second = jnp.moveaxis(jax.random.key_data(keys), -1, 0)
            return kernels.normal_walk(first, second, self.transition, self.noise_std, state)
        if kernels.kernel_for("linear_walk"):
            noise = jax.vmap(self._noise)(keys)
            return kernels.linear_walk(self.transition, self.noise_std, (noise.real, noise.imag), state)
        # Complex numbers until the end: if split before the scan, each would be computed twice.
        return jax.lax.scan(lambda z, noise: (self._move(z, noise), z), state, jax.vmap(self._noise)(keys))

    def _stationary_factor(self):
        return covariance_factor(self.covariance) if self._factor is None else self._factor

    def _move(self, z, noise):
        return self.transition @ z + self.noise_std * self._real(noise)

    def _noise(self, key):
        return complex_normal(key, (self.transition.shape[-1] + 1) // 2, self.transition.dtype)

    def _real(self, noise):
        return real_parts(noise, self.transition.shape[-1])


def covariance_factor(covariance: np.ndarray) -> np.ndarray:
    """A factor $L$ with $L L^T$ equal to the covariance, which may be singular, so that Cholesky would fail."""
    if covariance.ndim == 2:
        return covariance_factor(covariance[None])[0]

    def factor(covariance):
        values, vectors = np.linalg.eigh(covariance)
        return vectors * np.sqrt(values.clip(min=0))[:, None, :]

    return by_parts(factor, covariance, size=covariance[0].size)

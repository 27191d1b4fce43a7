"""What all random generators share: blending towards a common agent, and random kernels."""

from collections.abc import Callable

import numpy as np

from . import _check
from ._random import Stream, host_generator
from ._types import SeedLike


def blend(
    draw: Callable[[np.random.Generator], np.ndarray],
    name: str,
    num_agents: int,
    heterogeneity: float,
    key: SeedLike,
) -> np.ndarray:
    """One draw per agent, moved from a common draw by `heterogeneity`: 0 gives equal agents, 1 independent ones.

    Agent `i` depends on `key`, `name` and `i` alone, so more agents extend a problem instead of changing it.
    """
    _check.count("num_agents", num_agents)
    _check.number("heterogeneity", heterogeneity, least=0.0, most=1.0)
    common = draw(host_generator(key, name, Stream.COMMON))
    own = np.stack([draw(host_generator(key, name, i)) for i in range(num_agents)])
    return (1 - heterogeneity) * common + heterogeneity * own


def lazy(P: np.ndarray, laziness: float) -> np.ndarray:
    """Stays in place with probability `laziness`: the same stationary law, mixing `1 / (1 - laziness)` times slower."""
    _check.number("laziness", laziness, least=0.0)
    if laziness >= 1:
        raise ValueError(f"`laziness` must be below 1, got {laziness}: the chain would never move.")
    if laziness == 0:
        return P  # the same numbers, without a copy of all kernels
    return (1 - laziness) * P + laziness * np.eye(P.shape[-1])


def dense_kernel(states: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Rows of uniform random numbers, normalised: the paper's kernels, which mix almost at once."""

    def draw(rng):
        P = rng.random((states, states))
        return P / P.sum(1, keepdims=True)

    return draw


def doubly_stochastic_kernel(states: int) -> Callable[[np.random.Generator], np.ndarray]:
    """A symmetric positive matrix balanced by Sinkhorn sweeps, so that the stationary law is uniform."""

    def draw(rng):
        P = rng.random((states, states))
        P = P + P.T
        for _ in range(1000):
            P = P / P.sum(1, keepdims=True)
            P = P / P.sum(0, keepdims=True)
            if abs(P.sum(1) - 1).max() < 1e-14:
                break
        return P

    return draw

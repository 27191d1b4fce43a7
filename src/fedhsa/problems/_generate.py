"""Random kernels for the problem generators, beside the pieces that all generators share."""

from collections.abc import Callable

import numpy as np

from .._generate import blend as blend
from .._generate import lazy as lazy


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

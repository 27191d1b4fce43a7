"""Code shared by all random generators: drawing agents together, blending towards a common agent, random kernels."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from . import _check
from ._arrays import chunks, empty, share
from ._linear import by_parts, spectral_radius
from ._random import Stream, host_generator
from ._types import SeedLike

Draw: TypeAlias = Callable[[np.random.Generator, int], np.ndarray]
"""Some agents' values of a quantity, `(count, ...)`, from one array of random numbers with a row for each of them.

A generator fills an array from beginning to end, so an agent's numbers do not depend on the number of agents. A second
array from the same generator would break this, so it needs a separate name.
"""


NEWTON_STEPS = 100
"""Five to ten are enough, but rounding may prevent a large matrix from being balanced to the last digit."""


def per_agent(draw: Draw, name: str, num_agents: int, key: SeedLike) -> np.ndarray:
    """One draw for each agent. Agent `i` depends only on `key`, `name` and `i`, so more agents extend a problem."""
    return blend(draw, name, num_agents, 1.0, key)


def blend(draw: Draw, name: str, num_agents: int, heterogeneity: float, key: SeedLike) -> np.ndarray:
    """One draw per agent, moved away from a common draw by `heterogeneity`: 0 gives equal agents, 1 independent ones.

    Agent `i` depends only on `key`, `name` and `i`, so more agents extend a problem instead of changing it.
    """
    _check.count("num_agents", num_agents)
    _check.number("heterogeneity", heterogeneity, least=0.0, most=1.0)
    common, rng = draw(host_generator(key, name, Stream.COMMON), 1), host_generator(key, name)
    if heterogeneity == 0:
        return share(common[0], num_agents)
    blended = empty((num_agents, *common.shape[1:]))
    for some in chunks(num_agents, common.size):
        own = draw(rng, len(blended[some]))
        blended[some] = own if heterogeneity == 1 else (1 - heterogeneity) * common + heterogeneity * own
    return blended


def with_radius(matrices: np.ndarray, radius: float) -> np.ndarray:
    """Scales each agent's matrix to this spectral radius, in place unless it is a shared one, which is read-only."""
    if not matrices.flags.writeable:
        return share(with_radius(matrices[:1].copy(), radius)[0], len(matrices))
    matrices *= (radius / spectral_radius(matrices))[:, None, None]
    return matrices


def lazy(P: np.ndarray, laziness: float) -> np.ndarray:
    """Stays with probability `laziness`: the same stationary distribution, mixing `1 / (1 - laziness)` times slower."""
    _check.number("laziness", laziness, least=0.0)
    if laziness >= 1:
        raise ValueError(f"`laziness` must be below 1, got {laziness}: the chain would never move.")
    if laziness == 0:
        return P  # without a copy of all kernels

    def stay(P):
        return (1 - laziness) * P + laziness * np.eye(P.shape[-1])

    return by_parts(stay, P, size=P[0].size)


def normalised(weights: np.ndarray) -> np.ndarray:
    """Weights divided by their sum over the last axis."""
    return weights / weights.sum(-1, keepdims=True)


def dense_kernel(states: int) -> Draw:
    """Rows of normalised uniform random numbers: the paper's kernels, which mix almost immediately."""
    return lambda rng, count: normalised(rng.random((count, states, states)))


def doubly_stochastic_kernel(states: int) -> Draw:
    """A symmetric positive matrix, balanced so that the stationary distribution is uniform."""

    def draw(rng, count):
        P = rng.random((count, states, states))
        return balanced(P + np.swapaxes(P, 1, 2))

    return draw


def balanced(P: np.ndarray) -> np.ndarray:
    r"""$D P D$ with the diagonal matrices $D$ that make the rows of symmetric positive `(n, S, S)` add up to 1.

    It is the limit of Sinkhorn's sweeps, which converge very slowly if a matrix is nearly diagonal. Here Newton's
    method minimises the convex $\frac12 \sum_{ij} e^{y_i} P_{ij} e^{y_j} - \sum_i y_i$ with $D = e^y$.
    """
    found, left = np.empty_like(P), np.arange(len(P))
    y = -np.log(P.sum(2)) / 2
    for _ in range(NEWTON_STEPS):
        scale = np.exp(y[left])
        Q = scale[:, :, None] * P[left] * scale[:, None, :]
        found[left] = Q
        sums = Q.sum(2)
        far = abs(sums - 1).max(1) >= 1e-14  # each matrix continues as long as it needs to, independently of the others
        left, Q, sums = left[far], Q[far], sums[far]
        if not len(left):
            break
        step = np.linalg.solve(Q + sums[:, None, :] * np.eye(P.shape[-1]), (sums - 1)[..., None])[..., 0]
        y[left] -= step / np.maximum(1, abs(step).max(1, keepdims=True))
    return found

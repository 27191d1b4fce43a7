"""Finite sums of quadratics whose components are selected by a Markov chain (section 6.3 of the paper)."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from .. import _check
from .._arrays import freeze
from .._generate import blend, doubly_stochastic_kernel, lazy
from .._types import SeedLike
from ..kernels import Affine, component_product
from ..sources import FiniteChain
from .base import AbstractAgent, Problem

__all__ = ["FiniteSumAgent", "from_arrays", "random"]


class FiniteSumAgent(AbstractAgent):
    r"""$G_i(\theta, j) = -(A_{ij} \theta - b_{ij})$ for the component $j$ at which the chain is."""

    A: np.ndarray
    b: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return self.b[o] - component_product(self.A, o, theta)

    def form(self, block, /):
        return Affine(self.A, self.b, component=block)

    def mean_operator(self, theta, /):
        return jnp.mean(self.b - self.A @ theta, axis=0)


def from_arrays(A: Any, b: Any, P: Any, *, start: Any = None) -> Problem:
    r"""Make the problem of minimising $\frac1M \sum_i \frac1N \sum_j \frac12 \theta^T A_{ij} \theta - b_{ij}^T \theta$.

    **Arguments:**

    - `A`, `b`: $A_{ij}$ `(M, N, d, d)` and $b_{ij}$ `(M, N, d)`.
    - `P`: kernels over the components, `(M, N, N)`, doubly stochastic so that all components have equal weight.
    - `start`: the distribution of the first component, or its index. Default: uniform.

    Raises `ValueError` if an array is invalid or a stationary distribution is not uniform.

    !!! example
        >>> from_arrays(A=[[[[1.0]], [[3.0]]]], b=[[[1.0], [1.0]]], P=[[[0.9, 0.1], [0.1, 0.9]]]).theta_star
        array([0.5])
    """
    sizes: dict[str, int] = {}
    A = _check.array("A", A, ("M", "N", "d", "d"), sizes)
    b = _check.array("b", b, ("M", "N", "d"), sizes)
    P = _check.array("P", P, ("M", "N", "N"), sizes)
    chain = FiniteChain(P, start)
    off = abs(chain.stationary - 1 / sizes["N"]).max(1)
    if off.max() > 1e-8:
        agent = int(np.argmax(off))
        raise ValueError(
            f"`P` must have a uniform stationary distribution, but agent {agent} visits its components with "
            f"frequencies from {chain.stationary[agent].min():.3g} to {chain.stationary[agent].max():.3g}. "
            "Make its columns sum to 1."
        )
    return Problem(FiniteSumAgent(chain, A, b), like=np.zeros(sizes["d"]))


def random(
    num_agents: int = 200,
    num_components: int = 2,
    dim: int = 200,
    *,
    heterogeneity: float = 1.0,
    eigenvalues: tuple[float, float] = (1.0, 10.0),
    min_eigenvalue: float | None = None,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    r"""Make the paper's random finite-sum problem.

    $A_{ij}$ is a symmetric Gaussian matrix whose eigenvalues are moved linearly onto the interval `eigenvalues`,
    $b_{ij} \sim N(0, I)$, and $P_i$ a symmetric positive matrix balanced until it is doubly stochastic.

    **Arguments:**

    - `num_agents`, `num_components`, `dim`: $M$, $N$ and $d$. More agents with the same key extend the problem.
    - `heterogeneity`: 0 makes all agents equal (components and kernel), 1 makes them independent draws.
    - `eigenvalues`: the smallest and the largest eigenvalue of every component.
    - `min_eigenvalue`: instead of moving eigenvalues onto an interval, shifts the Gaussian matrices to this smallest
      eigenvalue and multiplies the matrices of each agent by one Exp(1) number, as the authors' public scripts do.
    - `laziness`: the probability of staying at the same component.

    !!! example
        >>> random(num_agents=3, num_components=4, dim=5).theta_star.shape
        (5,)
    """
    N = _check.count("num_components", num_components)
    _check.count("dim", dim)
    low, high = eigenvalues
    _check.number("eigenvalues", eigenvalues, above=0.0)
    if low > high:
        raise ValueError(f"`eigenvalues` must be (smallest, largest), got {eigenvalues}.")

    if min_eigenvalue is not None:
        _check.scalar("min_eigenvalue", min_eigenvalue, above=0.0)

    def draw_A(rng, count):
        # Half the sum of two squared Gaussian numbers is an Exp(1) number.
        drawn = rng.normal(size=(count, N * dim**2 + 2))
        A, scale = drawn[:, :-2].reshape(count, N, dim, dim), (drawn[:, -2:] ** 2).sum(1) / 2
        A = (A + np.swapaxes(A, -1, -2)) / 2
        if min_eigenvalue is not None:
            shift = min_eigenvalue - np.linalg.eigvalsh(A)[..., 0]
            return scale[:, None, None, None] * (A + shift[..., None, None] * np.eye(dim))
        values, vectors = np.linalg.eigh(A)
        spread = np.ptp(values, axis=-1, keepdims=True)
        unit = (values - values[..., :1]) / np.where(spread > 0, spread, 1)
        return (vectors * (low + (high - low) * unit)[..., None, :]) @ np.swapaxes(vectors, -1, -2)

    A = blend(draw_A, "A", num_agents, heterogeneity, key)
    b = blend(lambda rng, count: rng.normal(size=(count, N, dim)), "b", num_agents, heterogeneity, key)
    P = blend(doubly_stochastic_kernel(N), "P", num_agents, heterogeneity, key)
    return from_arrays(freeze(A), freeze(b), freeze(lazy(P, laziness)))

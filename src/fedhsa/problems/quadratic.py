"""Quadratic losses with additive VAR(1) noise (section 6.1 of the paper)."""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import _check
from .._arrays import freeze, share
from .._generate import blend, per_agent, with_radius
from .._random import host_generator
from .._types import SeedLike
from ..kernels import Affine
from ..sources import VAR1
from .base import AbstractAgent, Problem

__all__ = ["QuadraticAgent", "Spectrum", "from_arrays", "random", "spectrum"]


class QuadraticAgent(AbstractAgent):
    r"""$G_i(\theta, z) = -(A_i \theta - b_i) + z$: the negative gradient of a quadratic, plus Markov noise $z$."""

    A: np.ndarray
    b: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return self.b - self.A @ theta + o

    def form(self, block, /):
        return Affine(self.A[None], self.b[None], noise=block)

    def mean_operator(self, theta, /):
        return self.b - self.A @ theta


class Spectrum(NamedTuple):
    """Eigenvalues of the symmetric parts: `(M, d)` for the agents, `(d,)` for the average, ascending."""

    agents: np.ndarray
    average: np.ndarray


def from_arrays(A: Any, b: Any, Q: Any = None, noise_std: Any = 0.0, *, start: str = "zero") -> Problem:
    r"""Make the problem of minimising $\frac1M \sum_i \frac12 \theta^T A_i \theta - b_i^T \theta$.

    Individual agents may be indefinite; only the average must be positive definite.

    **Arguments:**

    - `A`, `b`: $A_i$ `(M, d, d)` and $b_i$ `(M, d)`.
    - `Q`, `noise_std`: the noise is $z' = Q_i z + N(0, \sigma^2 I)$, with `Q` of shape `(M, d, d)` and $\sigma$ a
      number or one number per agent. Without `Q` the noise is white.
    - `start`: the initial value of the noise, `"zero"` as in the paper, or `"stationary"`.

    Raises `ValueError` if the shapes do not agree or the average of `A` is not positive definite.

    !!! example
        >>> from_arrays(A=[[[1.0]], [[3.0]]], b=[[1.0], [1.0]]).theta_star
        array([0.5])
    """
    sizes: dict[str, int] = {}
    A = _check.array("A", A, ("M", "d", "d"), sizes)
    b = _check.array("b", b, ("M", "d"), sizes)
    Q = share(np.zeros(A.shape[1:]), len(A)) if Q is None else _check.array("Q", Q, ("M", "d", "d"), sizes)
    average = np.linalg.eigvals(A.mean(0)).real
    if average.min() <= 0:
        raise ValueError(
            "The average of `A` must have eigenvalues with positive real parts, but its smallest is "
            f"{average.min():.3g} (the smallest of any agent is {np.linalg.eigvals(A).real.min():.3g}): the average "
            "loss has no minimum. Add a multiple of the identity, or drop agents."
        )
    return Problem(QuadraticAgent(VAR1(Q, noise_std, start), A, b), like=np.zeros(sizes["d"]))


def random(
    num_agents: int = 20,
    dim: int = 10,
    *,
    heterogeneity: float = 1.0,
    noise_std: float = 0.1,
    min_eigenvalue: float = 1.0,
    b_level: float = 0.0,
    noise_radius: float = 1 / 1.2,
    convex: bool = True,
    start: str = "zero",
    key: SeedLike = 0,
) -> Problem:
    r"""Make the paper's random quadratic problem.

    $A_i = R^T R / d$ shifted to the smallest eigenvalue `min_eigenvalue`, $b_i \sim N(0, I)$, $Q_i$ Gaussian and scaled
    to spectral radius `noise_radius`.

    **Arguments:**

    - `num_agents`, `dim`: $M$ and $d$. More agents with the same key extend the problem.
    - `heterogeneity`: 0 makes all agents equal (operator and noise distribution), 1 makes them independent draws.
    - `noise_std`: $\sigma_\epsilon$; the paper's variance 0.01 is 0.1 here.
    - `min_eigenvalue`, `noise_radius`: the smallest eigenvalue of $A_i$ and the spectral radius of $Q_i$.
    - `b_level`: adds `b_level * N(0, I)` to each $b_i$, which the authors' public scripts call "heterogeneity".
    - `convex`: if False, every agent except the first is indefinite (for `heterogeneity` above 2/3, each has one
      direction of negative curvature), while the average over the first `m` agents is positive definite for every `m`.
    - `start`: the initial value of the noise, `"zero"` or `"stationary"`.
    - `key`: a seed; the same key gives the same problem.

    !!! example
        >>> random(num_agents=2, dim=3, key=1).theta_star.shape
        (3,)
    """
    A, b, Q = draw(num_agents, dim, heterogeneity, min_eigenvalue, b_level, noise_radius, convex, key)
    return from_arrays(A, b, Q, noise_std, start=start)


def draw(
    num_agents: int,
    dim: int,
    heterogeneity: float,
    min_eigenvalue: float,
    b_level: float,
    noise_radius: float,
    convex: bool,
    key: SeedLike,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays `A`, `b` and `Q` of the problem that `random` makes; the arguments are the same.

    !!! example
        >>> A, b, Q = draw(2, 3, 1.0, 1.0, 0.0, 0.5, True, 0)
        >>> A.shape, b.shape, Q.shape
        ((2, 3, 3), (2, 3), (2, 3, 3))
    """
    _check.count("dim", dim)
    _check.number("min_eigenvalue", min_eigenvalue, above=0.0)
    _check.number("b_level", b_level)
    _check.number("noise_radius", noise_radius, least=0.0, below=1.0, remedy="Noise must forget.")

    def draw_A(rng, count):
        R = rng.normal(size=(count, dim, dim))
        A = np.swapaxes(R, 1, 2) @ R / dim
        A += (min_eigenvalue - np.linalg.eigvalsh(A)[:, :1, None]) * np.eye(dim)
        return A

    def draw_b(rng, count):
        own, level = np.moveaxis(rng.normal(size=(count, 2, dim)), 1, 0)
        return own + b_level * level

    def draw_Q(rng, count):
        return rng.normal(size=(count, dim, dim))

    if convex:
        A = blend(draw_A, "A", num_agents, heterogeneity, key)
    else:
        A = _indefinite(draw_A, dim, num_agents, heterogeneity, key)
    b = blend(draw_b, "b", num_agents, heterogeneity, key)
    Q = blend(draw_Q, "Q", num_agents, heterogeneity, key)
    Q = with_radius(Q, noise_radius)
    return freeze(A), freeze(b), freeze(Q)


def spectrum(problem: Problem) -> Spectrum:
    """Compute the curvatures of the agents' losses and of the average loss.

    !!! example
        >>> problem = random(num_agents=4, dim=3, convex=False)
        >>> s = spectrum(problem)
        >>> (s.agents[1:, 0] < 0).all(), s.agents[0, 0] > 0, s.average[0] > 0
        (np.True_, np.True_, np.True_)
    """
    A = -problem.affine_parts()[0]
    symmetric = (A + np.swapaxes(A, 1, 2)) / 2
    return Spectrum(np.linalg.eigvalsh(symmetric), np.linalg.eigvalsh(symmetric.mean(0)))


def _indefinite(draw_A, dim: int, num_agents: int, heterogeneity: float, key: SeedLike) -> np.ndarray:
    r"""Agents $A_i = B - s P_i + W_i$, indefinite for $s > 1$, with positive definite prefix averages.

    $P_i = u u^T / (u^T B^{-1} u)$ satisfies $P_i \preceq B$ and $x^T P_i x = x^T B x$ at $x = B^{-1} u$, so $s > 1$
    makes $x$ a direction of negative curvature; $W_i \succeq 0$ vanishes there. The directions $u$ cycle through a
    $B$-orthogonal basis, so after $m$ agents none has been used more than $\lceil (m-1)/d \rceil$ times and the prefix
    average is at least $(1 - s/2) B$.
    """
    if dim < 2:
        raise ValueError(f"`dim` must be at least 2 for `convex=False`, got {dim}: a scalar cannot be indefinite.")
    s = 1.5 * heterogeneity
    B = blend(draw_A, "A", 1, 0.0, key)[0]
    values, vectors = np.linalg.eigh(B)
    rotation = np.linalg.qr(host_generator(key, "directions").normal(size=(dim, dim)))[0]
    basis = (vectors * np.sqrt(values)) @ rotation  # columns u_j with u_j^T B^{-1} u_k = [j = k]
    directions = np.linalg.solve(B, basis)
    turn = (np.arange(num_agents) - 1) % dim
    u, x = basis.T[turn], directions.T[turn]
    W = per_agent(lambda rng, count: rng.normal(size=(count, dim, dim)), "W", num_agents, key) / np.sqrt(dim)
    W -= (W @ x[..., None]) * x[:, None] / (x**2).sum(1)[:, None, None]
    A = B - s * u[..., None] * u[:, None] + heterogeneity * (np.swapaxes(W, 1, 2) @ W)
    A[0] = B
    return A

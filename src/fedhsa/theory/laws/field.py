r"""The noise of all agents together as a Gaussian field, which decides on stability where no few agents do.

Given the states of the chains at its start, a round maps the error on average by $\bar\Phi + \sum_i (\Phi_i(s_i) -
\bar\Phi_i)$, to first order in the deviations. The sum over many agents is nearly Gaussian. Its strongest directions
$B_j$ are followed as autoregressions $\xi_j$ with the same variance and long-run variance, and the mean square as the
moments $E[e e^T h_n(\xi)]$ with Hermite polynomials $h_n$. In contrast to laws of a few sites, this contains the
effects of all sets of agents, which matter near the edge of stability if chains are slow.
"""

import itertools

import numpy as np
from scipy.linalg import schur
from scipy.sparse.linalg import LinearOperator

from ..._linear import spectral_radius
from .solve import radius

DIRECTIONS, WEAK = 2, 0.05
"""The largest number of directions of the field, and the strength below which a direction is neglected, relative to the
strongest one."""
LEVELS = (0, 40, 66)
"""The numbers of Hermite polynomials for each number of directions."""
SLOW, APART = (3, 2, 1, 4, 5, 6), 1e-6
"""The numbers of slow modes of the mean in which the field is followed, the first one that separates modes of different
moduli."""
FAINT = 1e-3
"""The long-run variance, relative to the contraction of the mean square, below which the field does not matter."""


def field_radius(
    mean: np.ndarray, maps: np.ndarray, counts: np.ndarray, kernels: np.ndarray, stationary: np.ndarray
) -> float | None:
    r"""Returns the factor of the mean-square error per round in a Gaussian field; None if the field is too faint.

    **Arguments:**

    - `mean`: the mean map of a round $\bar\Phi$, `(n, n)`.
    - `maps`: the contributions $\Phi_i(s)$ of the different agents, given their states at the start, `(k, S, n, n)`.
    - `counts`: the number of agents of each kind, `(k,)`.
    - `kernels`: the transition probabilities of their chains over a round, `(k, S, S)`.
    - `stationary`: the stationary distributions, `(k, S)`.
    """
    if not (slack := 1 - spectral_radius(mean) ** 2) > 0:
        return None
    V, W = _slow_modes(mean)
    mean, maps = W @ mean @ V, W @ maps @ V
    n, S = len(mean), stationary.shape[-1]
    F = (maps - np.einsum("ks,ksab->kab", stationary, maps)[:, None]).reshape(len(maps), S, n * n)
    weighted = (counts[:, None] * stationary)[..., None] * F
    spread = np.einsum("ksa,ksb->ab", weighted, F)
    sums = np.linalg.solve(np.eye(S) - kernels + stationary[:, None], F)  # over all later rounds
    lasting = np.einsum("ksa,ksb->ab", weighted, sums)
    lasting = lasting + lasting.T - spread
    strengths, vectors = np.linalg.eigh(lasting)
    if strengths[-1] <= FAINT * slack:
        return None
    chosen = [k for k in range(len(strengths))[::-1][:DIRECTIONS] if strengths[k] > WEAK * strengths[-1]]
    variances = [float(vectors[:, k] @ spread @ vectors[:, k]) for k in chosen]
    correlations = [max((strengths[k] - v) / (strengths[k] + v), 0.0) for k, v in zip(chosen, variances, strict=True)]
    B = [np.sqrt(v) * vectors[:, k].reshape(n, n) for k, v in zip(chosen, variances, strict=True)]
    decay, X = _hermite(correlations)

    def after(Y: np.ndarray) -> np.ndarray:
        """Returns the moments after a round: the map is applied from both sides, then the field moves."""
        for _ in range(2):
            Y = Y.reshape(len(decay), n, n)
            Y = (mean @ Y + sum(np.tensordot(x, b @ Y, 1) for x, b in zip(X, B, strict=True))).swapaxes(-1, -2)
        return (decay[:, None, None] * Y).ravel()

    size = len(decay) * n * n
    return radius(LinearOperator((size, size), matvec=after, dtype=np.float64))  # pyright: ignore[reportCallIssue]


def _hermite(correlations: list[float]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns the factors of Hermite polynomials per round, and multiplication by each variable as a matrix."""
    directions = len(correlations)
    most = next(k for k in itertools.count() if len(_degrees(k + 1, directions)) > LEVELS[directions])
    degrees = _degrees(most, directions)
    place = {degree: k for k, degree in enumerate(degrees)}
    every = []
    for j in range(directions):
        X = np.zeros((len(degrees), len(degrees)))
        for degree, k in place.items():
            above = (*degree[:j], degree[j] + 1, *degree[j + 1 :])
            if above in place:
                X[place[above], k] = X[k, place[above]] = np.sqrt(above[j])
        every.append(X)
    return np.prod(np.power(correlations, np.array(degrees)), axis=1), every


def _degrees(most: int, directions: int) -> list[tuple[int, ...]]:
    return [degree for degree in itertools.product(range(most + 1), repeat=directions) if sum(degree) <= most]


def _slow_modes(mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the slowest modes of the mean as columns, and the projection to them along all other modes as rows."""
    sizes = np.sort(np.abs(np.linalg.eigvals(mean)))[::-1]
    numbers = (r for r in SLOW if r >= len(mean) or sizes[r] < (1 - APART) * sizes[r - 1])
    if (number := next(numbers, len(mean))) >= len(mean):
        return np.eye(len(mean)), np.eye(len(mean))
    least = (sizes[number - 1] + sizes[number]) / 2
    slow = [schur(A, output="real", sort=lambda x, y=0.0: np.hypot(x, y) > least)[1] for A in (mean, mean.T)]
    V, W = (vectors[:, :number] for vectors in slow)
    return V, np.linalg.solve(W.T @ V, W.T)

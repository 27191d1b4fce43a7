"""FedHSA and Local SA under partial participation: exact floors on affine operators, and their first-order limits.

A round is a random subset of the agents; given the subset it is an affine map of the error, so that second moments
close on the sum over all subsets.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_continuous_lyapunov, solve_discrete_lyapunov
from scipy.stats import binom

from ...problems import Problem
from ..maps.rounds import local_powers


class MeanOperators(NamedTuple):
    r"""The agents' mean operators seen from the root, $\bar G_i(\theta^\star + e) = A_i e + r_i$."""

    A: np.ndarray
    """`(M, d, d)`."""
    r: np.ndarray
    """`(M, d)`."""


class RoundMaps(NamedTuple):
    r"""For each of `n` subsets of agents a round $e' = \Phi e + c + \text{noise}$, and the covariance of that noise."""

    maps: np.ndarray
    r"""$\Phi$, `(n, d, d)`."""
    shifts: np.ndarray
    """$c$, `(n, d)`."""
    noise: np.ndarray
    """`(n, d, d)`."""


def mean_operators(problem: Problem) -> MeanOperators:
    """The mean operators of an affine problem."""
    A, b = problem.affine_parts()
    return MeanOperators(A, A @ problem.root - b)


def uniform_subsets(num_agents: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """All subsets of `count` agents, as the weights in their mean, and the probability of each.

    !!! example
        >>> weights, chances = uniform_subsets(3, 2)
        >>> weights.tolist(), chances.sum().round(12)
        ([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]], np.float64(1.0))
    """
    sets = list(itertools.combinations(range(num_agents), count))
    weights = np.zeros((len(sets), num_agents))
    for row, present in zip(weights, sets, strict=True):
        row[list(present)] = 1 / count
    return weights, np.full(len(sets), 1 / len(sets))


def independent_subsets(probabilities: Any) -> tuple[np.ndarray, np.ndarray]:
    """All subsets as rows of 0 and 1, and their probabilities if agents take part independently of one another."""
    p = np.asarray(probabilities, dtype=float)
    there = np.array(list(itertools.product((0.0, 1.0), repeat=len(p))))
    return there, np.prod(np.where(there > 0, p, 1 - p), axis=1)


def weights_of_present(there: np.ndarray) -> np.ndarray:
    """The weights in the mean over the agents that take part; all zero for the empty subset."""
    return there / np.maximum(there.sum(1, keepdims=True), 1)


def availability_kernel(num_agents: int, up: float, down: float) -> np.ndarray:
    """The transition probabilities between the subsets of `independent_subsets`.

    Each agent becomes available with probability `up` and unavailable with probability `down`, on its own.
    """
    kernel = np.ones((1, 1))
    for _ in range(num_agents):
        kernel = np.kron(kernel, [[1 - up, up], [down, 1 - down]])
    return kernel


def round_maps(
    agents: MeanOperators,
    weights: np.ndarray,
    step: float,
    local_steps: int,
    *,
    corrected: bool = True,
    all_answer: bool = False,
    noise_std: float = 0.0,
) -> RoundMaps:
    r"""The round maps of all subsets at once; a subset is given by the weights $w_i$ of its replies.

    With $F_i = I + \eta A_i$, $S_i = \sum_{k<H} F_i^k$ and $\hat g$ the weighted mean of operators, or the mean of all,
    FedHSA's agents move by $\eta S_i \hat g$ and Local SA's by $\eta S_i g_i$. White noise that enters agent $i$'s
    operator at step $\ell$ moves the server by $K_{i,\ell}$ times it.

    **Arguments:**

    - `weights`: `(n, M)`, see `uniform_subsets` and `weights_of_present`.
    - `corrected`: True for FedHSA, False for Local SA.
    - `all_answer`: whether all agents answer the first exchange, so that $\hat g$ is the mean of all operators.
    - `noise_std`: the standard deviation of the white noise.
    """
    A, r = agents
    M, d = r.shape
    powers = local_powers(A, step, local_steps)
    S = powers.sum(0)
    mean = np.full_like(weights, 1 / M) if all_answer else weights
    S_bar, A_bar, r_bar = _mix(weights, S), _mix(mean, A), mean @ r
    if corrected:
        maps, shifts = step * S_bar @ A_bar, step * np.einsum("nij,nj->ni", S_bar, r_bar)
    else:
        maps, shifts = step * _mix(weights, S @ A), step * weights @ np.einsum("mij,mj->mi", S, r)
    noise = np.zeros_like(maps)
    for step_number in range(local_steps):
        K = weights[:, :, None, None] * powers[local_steps - 1 - step_number]
        if corrected and step_number == 0:
            K = K + mean[:, :, None, None] * S_bar[:, None] - weights[:, :, None, None] * S
        noise = noise + (step * noise_std) ** 2 * np.einsum("nmij,nmkj->nik", K, K)
    return RoundMaps(np.eye(d) + maps, shifts, noise)


def independent_floor(law: RoundMaps, chances: np.ndarray) -> tuple[float, np.ndarray]:
    r"""The mean squared error at stationarity, and the mean error, if subsets are independent from round to round.

    Exact: $X = E[\Phi X \Phi^T + \Phi m c^T + c\, m^T \Phi^T + c c^T + N]$ with $m = (I - E\Phi)^{-1} E c$.
    """
    maps, shifts, noise = law
    d = shifts.shape[1]
    mean = np.linalg.solve(np.eye(d) - np.einsum("n,nij->ij", chances, maps), chances @ shifts)
    cross = np.einsum("n,ni,nj->ij", chances, maps @ mean, shifts)
    added = cross + cross.T + np.einsum("n,ni,nj->ij", chances, shifts, shifts) + np.einsum("n,nij->ij", chances, noise)
    squared = np.einsum("n,nij,nkl->ikjl", chances, maps, maps).reshape(d * d, d * d)
    X = np.linalg.solve(np.eye(d * d) - squared, added.ravel()).reshape(d, d)
    return float(np.trace(X)), mean


def expected_errors(law: RoundMaps, chances: np.ndarray, error: np.ndarray, rounds: int) -> np.ndarray:
    """The mean squared error of every round from an error at the start, if subsets are independent; exact."""
    maps, shifts, noise = law
    mean, X, found = error, np.outer(error, error), [error @ error]
    fixed = np.einsum("ni,nj->nij", shifts, shifts) + noise
    for _ in range(rounds):
        cross = np.einsum("ni,nj->nij", maps @ mean, shifts)
        after = maps @ X @ maps.transpose(0, 2, 1) + cross + cross.transpose(0, 2, 1) + fixed
        mean, X = chances @ (maps @ mean + shifts), np.einsum("n,nij->ij", chances, after)
        found.append(np.trace(X))
    return np.array(found)


def chain_floor(law: RoundMaps, chances: np.ndarray, kernel: np.ndarray) -> tuple[float, np.ndarray]:
    """`independent_floor` if the subsets are a Markov chain with this kernel: the moments on each subset, iterated."""
    maps, shifts, noise = law
    n, d = shifts.shape
    mean, X = np.zeros((n, d)), np.zeros((n, d, d))
    size = 0.0
    while True:
        moved = np.einsum("nij,nj->ni", maps, mean)
        cross = np.einsum("ni,nj->nij", moved, shifts)
        fixed = chances[:, None, None] * (np.einsum("ni,nj->nij", shifts, shifts) + noise)
        after = maps @ X @ maps.transpose(0, 2, 1) + cross + cross.transpose(0, 2, 1) + fixed
        mean = kernel.T @ (moved + chances[:, None] * shifts)
        X = (kernel.T @ after.reshape(n, -1)).reshape(n, d, d)
        before, size = size, float(np.trace(X.sum(0)))
        if abs(size - before) <= 1e-10 * size:
            return size, mean.sum(0)


def first_order_floor(agents: MeanOperators, scale: float, factor: float) -> float:
    r"""The trace of $X$ in $\bar A X + X \bar A^T = -s \varphi \frac1M \sum_i r_i r_i^T$, $s$ the scale $\eta H$."""
    A, r = agents
    return float(np.trace(solve_continuous_lyapunov(A.mean(0), -scale * factor * (r.T @ r) / len(r))))


def sampling_factor(num_agents: int, count: Any) -> Any:
    r"""$\varphi = (M - m) / (m (M - 1))$: the variance of a mean over $m$ of $M$, by that over one.

    !!! example
        >>> sampling_factor(8, 1), sampling_factor(8, 8)
        (1.0, 0.0)
    """
    return (num_agents - count) / (count * (num_agents - 1))


def correlated_floor(agents: MeanOperators, scale: float, factor: float, correlation: float) -> float:
    r"""The floor if participation has the correlation $\lambda$ from one round to the next.

    With $\Phi = I + \text{scale} \cdot \bar A$ and $Q$ the covariance of one round's noise it is the trace of $X$ in
    $X = \Phi X \Phi^T + Q + B Q + Q B^T$, $B = \lambda\Phi (I - \lambda\Phi)^{-1}$: the noise of a round meets its own
    echoes. At small steps $\Phi \approx I$ and $Q$ is multiplied by $(1 + \lambda) / (1 - \lambda)$.
    """
    A, r = agents
    identity = np.eye(A.shape[1])
    Phi, Q = identity + scale * A.mean(0), scale**2 * factor * (r.T @ r) / len(r)
    B = correlation * Phi @ np.linalg.inv(identity - correlation * Phi)
    return float(np.trace(solve_discrete_lyapunov(Phi, Q + B @ Q + Q @ B.T)))


def binomial_sampling_factor(num_agents: int, probability: float) -> float:
    r"""$E[\varphi(N) \mid N \ge 1]$ for a binomial number $N$ of agents; see `sampling_factor`."""
    n = np.arange(1, num_agents + 1)
    chances = binom.pmf(n, num_agents, probability)
    return float(chances @ sampling_factor(num_agents, n) / chances.sum())


def product_bias(agents: MeanOperators, probabilities: np.ndarray) -> np.ndarray:
    r"""The error that FedHSA tends to at small steps if the replies of both exchanges are weighted by $1/p_i$.

    It is $-(E[\hat w \hat A])^{-1} E[\hat w \hat r]$: the mean operator $\hat r$ and the weight $\hat w$ of the
    displacements come from the same agents; each is right on average, their product is not.
    """
    A, r = agents
    M = len(r)
    excess = (1 / probabilities - 1) / M**2
    return -np.linalg.solve(A.mean(0) + np.einsum("m,mij->ij", excess, A), excess @ r)


def _mix(weights: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    return np.einsum("nm,mij->nij", weights, matrices)

"""Floors of FedHSA under partial participation in the limit of small step sizes."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy.linalg import solve_continuous_lyapunov, solve_discrete_lyapunov

from ...problems import Problem
from ...theory.rule import local_powers


class MeanOperators(NamedTuple):
    r"""The agents' mean operators relative to the root, $\bar G_i(\theta^\star + e) = A_i e + r_i$."""

    A: np.ndarray
    """`(M, d, d)`."""
    r: np.ndarray
    """`(M, d)`."""


def mean_operators(problem: Problem) -> MeanOperators:
    """Returns the mean operators of an affine problem."""
    A, b = problem.affine_parts()
    return MeanOperators(A, A @ problem.root - b)


def first_order_floor(agents: MeanOperators, scale: float, factor: float) -> float:
    r"""Returns the trace of $X$ in $\bar A X + X \bar A^T = -s \varphi \frac1M \sum_i r_i r_i^T$, for $s = \eta H$."""
    A, r = agents
    return float(np.trace(solve_continuous_lyapunov(A.mean(0), -scale * factor * (r.T @ r) / len(r))))


def sampling_factor(num_agents: int, count: Any) -> Any:
    r"""Returns $\varphi = (M - m) / (m (M - 1))$, the variance of a mean over $m$ of $M$ agents relative to one agent.

    !!! example
        >>> sampling_factor(8, 1), sampling_factor(8, 8)
        (1.0, 0.0)
    """
    return (num_agents - count) / (count * (num_agents - 1))


def correlated_floor(agents: MeanOperators, scale: float, factor: float, correlation: float) -> float:
    r"""Returns the floor if participation has the correlation $\lambda$ from one round to the next.

    With $\Phi = I + \text{scale} \cdot \bar A$ and $Q$ the covariance of one round's noise, it is the trace of $X$ in
    $X = \Phi X \Phi^T + Q + B Q + Q B^T$, $B = \lambda\Phi (I - \lambda\Phi)^{-1}$, since the noise is correlated over
    rounds. At small step sizes $\Phi \approx I$, and $Q$ is multiplied by $(1 + \lambda) / (1 - \lambda)$.
    """
    A, r = agents
    identity = np.eye(A.shape[1])
    Phi, Q = identity + scale * A.mean(0), scale**2 * factor * (r.T @ r) / len(r)
    B = correlation * Phi @ np.linalg.inv(identity - correlation * Phi)
    return float(np.trace(solve_discrete_lyapunov(Phi, Q + B @ Q + Q @ B.T)))


def binomial_sampling_factor(num_agents: int, probability: float) -> float:
    r"""Returns $E[\varphi(N) \mid N \ge 1]$ for a binomial number $N$ of agents; see `sampling_factor`."""
    n = np.arange(1, num_agents + 1)
    chances = scipy.stats.binom.pmf(n, num_agents, probability)
    return float(chances @ sampling_factor(num_agents, n) / chances.sum())


def weighted_floor(agents: MeanOperators, probabilities: np.ndarray, step: float, local_steps: int) -> float:
    r"""Returns FedHSA's floor if replies of both exchanges are weighted by $1/p_i$, as a sum over all sets of agents.

    With $\hat S$, $\hat A$ and $\hat r$ the weighted sums over a set, a round is $e' = (I + \eta \hat S \hat A) e +
    \eta \hat S \hat r$. `Partial` rejects these weights because of `product_bias`.
    """
    A, r = agents
    M, d = r.shape
    there = np.array(list(itertools.product((0.0, 1.0), repeat=M)))
    chances = np.prod(np.where(there > 0, probabilities, 1 - probabilities), axis=1)
    weights = there / probabilities / M
    S = step * np.einsum("nm,mij->nij", weights, local_powers(A, step, local_steps).sum(0))
    maps = np.eye(d) + S @ np.einsum("nm,mij->nij", weights, A)
    shifts = np.einsum("nij,nj->ni", S, weights @ r)
    mean = np.linalg.solve(np.eye(d) - np.einsum("n,nij->ij", chances, maps), chances @ shifts)
    cross = np.einsum("n,ni,nj->ij", chances, maps @ mean, shifts)
    added = cross + cross.T + np.einsum("n,ni,nj->ij", chances, shifts, shifts)
    squared = np.einsum("n,nij,nkl->ikjl", chances, maps, maps).reshape(d * d, d * d)
    return float(np.trace(np.linalg.solve(np.eye(d * d) - squared, added.ravel()).reshape(d, d)))


def product_bias(agents: MeanOperators, probabilities: np.ndarray) -> np.ndarray:
    r"""Returns the limit of FedHSA's error at small step sizes if replies of both exchanges are weighted by $1/p_i$.

    It is $-(E[\hat w \hat A])^{-1} E[\hat w \hat r]$. The mean operator $\hat r$ and the weight $\hat w$ of the
    displacements come from the same agents: each is unbiased, but their product is not.
    """
    A, r = agents
    M = len(r)
    excess = (1 / probabilities - 1) / M**2
    return -np.linalg.solve(A.mean(0) + np.einsum("m,mij->ij", excess, A), excess @ r)

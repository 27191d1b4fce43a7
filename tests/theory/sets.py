"""Partial participation set by set: round maps of all sets of agents, and floors as sums over them."""

import itertools
from typing import NamedTuple

import numpy as np


class RoundMaps(NamedTuple):
    r"""For each of `n` subsets of agents a round $e' = \Phi e + c + \text{noise}$, and the covariance of that noise."""

    maps: np.ndarray
    r"""$\Phi$, `(n, d, d)`."""
    shifts: np.ndarray
    """$c$, `(n, d)`."""
    noise: np.ndarray
    """`(n, d, d)`."""


def uniform_subsets(num_agents: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """All subsets of `count` agents, as the weights in their mean, and the probability of each."""
    sets = list(itertools.combinations(range(num_agents), count))
    weights = np.zeros((len(sets), num_agents))
    for row, present in zip(weights, sets, strict=True):
        row[list(present)] = 1 / count
    return weights, np.full(len(sets), 1 / len(sets))


def independent_subsets(probabilities) -> tuple[np.ndarray, np.ndarray]:
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
    agents,
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
    F = np.eye(d) + step * A
    powers = np.stack([np.linalg.matrix_power(F, k) for k in range(local_steps)])
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


def _mix(weights: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    return np.einsum("nm,mij->nij", weights, matrices)

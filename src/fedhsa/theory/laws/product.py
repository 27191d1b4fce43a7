"""The exact law of Markov sampling on the product of the agents' chains, where that product is small."""

import functools

import numpy as np

from ..._linear import spectral_radius, transpose
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..maps.rounds import limit_error, require_rule, require_stable, round_map
from .finite import FiniteLaw, affine_operators, finite_law
from .moments import AbstractLaw, Moments, TooLargeError

LARGEST = 2**25
"""How many numbers the maps of all edges of the product chain may have together."""
LARGEST_SYSTEM = 500
"""How many equations the stationary law may have."""


class ProductLaw(AbstractLaw):
    r"""The error with all agents' chains: $E[y y^T 1\{s = \sigma\}]$ for every joint state $\sigma$ closes.

    Along an edge $\sigma \to \sigma'$ every agent's step is a known linear map $L$ of
    $y = (e, y_1, \dots, y_M, g_1, \dots, g_M, 1)$: the server's error, the local errors, the first operators. So

    $$Y'(\sigma') = \sum_\sigma P(\sigma, \sigma')\, L_{\sigma\sigma'} Y(\sigma) L_{\sigma\sigma'}^T .$$

    The product has $S^M$ states: a handful of agents at most. Also right for independent observations, and then a
    check of `IndependentLaw`.
    """

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm):
        self.rule, self.algorithm = require_rule(algorithm), algorithm
        law = finite_law(problem.agents.source)
        assert law is not None
        M, d = problem.num_agents, problem.dim
        self.M, self.d, self.size = M, d, (1 + 2 * M) * d + 1
        states = law.num_outcomes if law.independent else law.num_states
        edges = states ** (2 * M if law.pairs and not law.independent else M)
        needed = max(float(edges) * self.size**2, float(states) ** (2 * M))
        if needed > LARGEST:
            raise TooLargeError(
                f"The product of {M} chains with {states} states is too large for the exact law ({needed:.2g} numbers, "
                f"the limit is {LARGEST:.2g}). `theory.predict` has the expansion in the noise at any size."
            )
        self.map = round_map(problem, algorithm)
        A, g = affine_operators(problem, law)
        kernels, starts, stationary = _kernels(law)
        self.P = functools.reduce(np.kron, kernels)
        self.start, self.stationary_law = functools.reduce(np.kron, starts), functools.reduce(np.kron, stationary)
        # The observation of each agent on each edge: from the joint state alone, or from it and the next.
        own = np.stack(np.unravel_index(np.arange(len(self.P)), (states,) * M))
        self.pairs = law.pairs and not law.independent
        seen = own[:, :, None] * states + own[:, None, :] if self.pairs else own[:, :, None]
        agents = np.arange(M)[:, None, None]
        self.first, self.later = self._steps(np.moveaxis(A[agents, seen], 0, 2), np.moveaxis(g[agents, seen], 0, 2))

    def path(self, start, rounds):
        y = np.append(start, 1.0)
        Y = self.start[:, None, None] * np.outer(y, y)
        yield self._moments(Y)
        for _ in range(rounds):
            Y = self._round(Y)
            yield self._moments(Y)

    def stationary(self):
        """Solves for the second moments, given that each joint state has its stationary probability."""
        limit_error(self.map, self.algorithm)  # says so where the mean diverges
        shape = (len(self.P), self.d + 1, self.d + 1)
        count = int(np.prod(shape))
        if count > LARGEST_SYSTEM:
            raise TooLargeError(
                f"The stationary law of {len(self.P)} joint states in {self.d} dimensions is a system of {count} "
                f"equations, more than {LARGEST_SYSTEM}. `theory.predict` has the expansion in the noise at any size."
            )
        round = self._round(np.eye(count).reshape(count, *shape)).reshape(count, count).T
        known = np.zeros(shape, dtype=bool)
        known[:, -1, -1] = True
        known = known.ravel()
        moving = round[np.ix_(~known, ~known)]
        require_stable(spectral_radius(moving), type(self.algorithm).__name__, mean_square=True)
        Y = np.zeros(count)
        Y[known] = self.stationary_law
        Y[~known] = np.linalg.solve(np.eye(len(moving)) - moving, round[np.ix_(~known, known)] @ Y[known])
        return self._moments(Y.reshape(shape))

    def _moments(self, Y: np.ndarray) -> Moments:
        total = Y.sum(0)
        mean = total[:-1, -1]
        return Moments(mean, total[:-1, :-1] - np.outer(mean, mean))

    def _round(self, Y: np.ndarray) -> np.ndarray:
        """Second moments of $(e, 1)$ by joint state, one round later."""
        keep = np.r_[: self.d, self.size - 1]
        full = np.zeros((*Y.shape[:-2], self.size, self.size))
        full[..., keep[:, None], keep] = Y
        full = self._step(self.first, full)
        for _ in range(self.rule.local_steps - 1):
            full = self._step(self.later, full)
        end = np.zeros((self.d + 1, self.size))  # e' = (1 - server_step) e + server_step * mean of the local errors
        end[-1, -1] = 1
        end[:-1, : self.d] = (1 - self.rule.server_step) * np.eye(self.d)
        for i in range(self.M):
            end[:-1, self._local(i)] = self.rule.server_step / self.M * np.eye(self.d)
        return end @ full @ end.T

    def _step(self, maps: np.ndarray, Y: np.ndarray) -> np.ndarray:
        if self.pairs:
            moved = maps @ Y[..., None, :, :] @ transpose(maps)
            return np.einsum("st,...stab->...tab", self.P, moved)
        moved = maps[:, 0] @ Y @ transpose(maps[:, 0])
        return np.einsum("st,...sab->...tab", self.P, moved)

    def _local(self, i: int) -> slice:
        return slice((1 + i) * self.d, (2 + i) * self.d)

    def _steps(self, A: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The maps of the first and of a later local step on each edge; `A` and `g` are `(state, next, M, ...)`."""
        M, d, n, (eta, _, _, kappa) = self.M, self.d, self.size, self.rule
        operators = [slice((1 + M + i) * d, (2 + M + i) * d) for i in range(M)]
        anchor = np.broadcast_to(np.eye(n), (*A.shape[:2], n, n)).copy()
        later = anchor.copy()
        for i in range(M):
            anchor[..., operators[i], :] = 0
            anchor[..., operators[i], :d], anchor[..., operators[i], -1] = A[:, :, i], g[:, :, i]
            anchor[..., self._local(i), :] = 0
            anchor[..., self._local(i), :d] = np.eye(d)
            later[..., self._local(i), self._local(i)] += eta * A[:, :, i]
            later[..., self._local(i), -1] += eta * g[:, :, i]
            for j in range(M):
                correction = eta * kappa * (1 / M - (i == j)) * np.eye(d)
                later[..., self._local(i), operators[j]] += correction
        return later @ anchor, later


def _kernels(law: FiniteLaw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kernels, start laws and stationary laws of the chains whose states, or edges, are what the agents observe."""
    if law.independent:
        weights = law.weights()
        return np.repeat(weights[:, None], law.num_outcomes, axis=1), weights, weights
    return law.chain.transition, law.chain.start, law.chain.stationary

"""The exact law of independent observations from finite chains: second moments close."""

from typing import Any

import numpy as np
from scipy.linalg import solve_discrete_lyapunov
from scipy.sparse.linalg import LinearOperator, eigs

from ..._linear import spectral_radius, transpose
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..maps.rounds import RoundMap, limit_error, require_rule, require_stable, round_map
from .finite import affine_operators, finite_law
from .moments import AbstractLaw, Moments, TooLargeError

LARGEST = 2**26
"""How many numbers the fourth-order noise tensors may have, half a gigabyte."""
TOLERANCE = 1e-14
SWEEPS = 10_000
PATIENCE = 50
"""After how many sweeps it is asked whether they converge at all."""
DENSE = 5
"""Up to which dimension eigenvalues of the map of second moments are computed from its matrix."""


class IndependentLaw(AbstractLaw):
    r"""The error under i.i.d. sampling, the setting of the paper's Theorem 1.

    Write $G_i(\theta^\star + y, o) = A_i y + r_i + \tilde A_i(o) y + \tilde g_i(o)$, with noise of mean zero. Given the
    error $e$ at the start of a round and the agents' first operators $g_i$, their local steps are independent, so

    $$E' = B \hat E B^T + \frac{\alpha_g^2}{M^2} \sum_i \bigl(D_i \Xi_i D_i^T + C_{i,H}\bigr), \qquad
      \Xi_i = N_i\bigl(E[e e^T], E[e]\bigr),$$

    where $B \hat E B^T$ is the map without noise, $\Xi_i$ the covariance of $g_i$ given $e$, $D_i$ the response of the
    mean to it, and $C_{i,\ell}$ the covariance that the later observations give the local error $y_{i,\ell}$,

    $$C_{i,\ell+1} = F_i C_{i,\ell} F_i^T + \eta^2 N_i(C_{i,\ell} + E[\bar y \bar y^T], E[\bar y]),$$

    with $N_i(Y, y) = E[\tilde A Y \tilde A^T + \tilde A y \tilde g^T + \tilde g y^T \tilde A^T + \tilde g \tilde g^T]$.
    """

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap | None = None):
        self.rule, self.map, self.algorithm = require_rule(algorithm), map or round_map(problem, algorithm), algorithm
        law = finite_law(problem.agents.source)
        assert law is not None
        M, d = problem.num_agents, problem.dim
        size = M * max(d**4, law.num_outcomes * d**2)
        if size > LARGEST:
            raise TooLargeError(
                f"The exact law of {M} agents with {law.num_outcomes} outcomes in {d} dimensions needs {size:.2g} "
                f"numbers, more than {LARGEST:.2g}. `theory.predict` has the expansion in the noise at any size."
            )
        weights, (A, g) = law.weights(), affine_operators(problem, law)
        self.A, self.r = np.einsum("io,ioab->iab", weights, A), np.einsum("io,ioa->ia", weights, g)
        A, g = A - self.A[:, None], g - self.r[:, None]
        self._AA = np.einsum("io,ioab,iocd->iacbd", weights, A, A, optimize=True).reshape(M, d * d, d * d)
        self._Ag = np.einsum("io,ioab,ioc->iacb", weights, A, g, optimize=True)
        self._gg = np.einsum("io,ioa,ioc->iac", weights, g, g, optimize=True)
        self._responses = self._local_responses()

    def path(self, start, rounds):
        mean, E = start, np.outer(start, start)
        yield Moments(mean, E - np.outer(mean, mean))
        for _ in range(rounds):
            mean, E = self._next(mean, E)
            yield Moments(mean, E - np.outer(mean, mean))

    def stationary(self):
        r"""Sweeps of $E = \Phi E \Phi^T + R(E)$, which converge exactly where the method is mean-square stable."""
        mean = limit_error(self.map, self.algorithm)
        E, Phi = np.outer(mean, mean), self.map.transition
        for sweep in range(SWEEPS):
            before, E = E, solve_discrete_lyapunov(Phi, self._next(mean, E)[1] - Phi @ E @ Phi.T)
            size = np.abs(E).max()
            if np.abs(E - before).max() <= TOLERANCE * size:
                break
            if sweep == PATIENCE or not size < 1e100:
                require_stable(self.growth(), type(self.algorithm).__name__, mean_square=True)
        return Moments(mean, E - np.outer(mean, mean))

    def growth(self) -> float:
        """The factor of the mean-square error per round in the long run; from 1 on it grows without bound."""
        d, zero = len(self.map.offset), np.zeros(len(self.map.offset))
        base = self._next(zero, np.zeros((d, d)))[1]

        def after_a_round(E: np.ndarray) -> np.ndarray:
            E = E.reshape(d, d)
            return (self._next(zero, (E + E.T) / 2)[1] - base).ravel()

        if d <= DENSE:
            return spectral_radius(np.stack([after_a_round(unit) for unit in np.eye(d * d)], axis=1))
        operator: Any = LinearOperator((d * d, d * d), matvec=after_a_round, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        values = eigs(operator, k=1, v0=np.eye(d).ravel(), maxiter=10_000, return_eigenvectors=False)
        return float(abs(values[0]))

    def _next(self, mean: np.ndarray, E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean and second moment of the error after one more round."""
        (eta, _, server_step, _), M, d = self.rule, len(self.A), len(mean)
        Phi, c = self.map.transition, self.map.offset
        Xi = self._noise(np.broadcast_to(E, (M, d, d)), np.broadcast_to(mean, (M, d)))
        Xi_bar = Xi.mean(0)
        F, C = np.eye(d) + eta * self.A, np.zeros((M, d, d))
        for to_e, to_g, to_g_bar, to_one in self._responses[:-1]:
            # The local mean is to_e e + to_g xi_i + to_g_bar xi_bar + to_one, and xi_i is in xi_bar with weight 1/M.
            y = to_e @ mean + to_one
            both = np.einsum("ia,ic->iac", to_e @ mean, to_one)
            Y = to_e @ E @ transpose(to_e) + both + transpose(both) + np.einsum("ia,ic->iac", to_one, to_one)
            cross = to_g @ Xi @ transpose(to_g_bar) / M
            Y += to_g @ Xi @ transpose(to_g) + cross + transpose(cross) + to_g_bar @ Xi_bar @ transpose(to_g_bar) / M
            C = F @ C @ transpose(F) + eta**2 * self._noise(C + Y, y)
        _, to_g, to_g_bar, _ = self._responses[-1]
        D = to_g + to_g_bar.mean(0)
        added = (server_step / M) ** 2 * (D @ Xi @ transpose(D) + C).sum(0)
        drift = np.outer(Phi @ mean, c)
        return Phi @ mean + c, Phi @ E @ Phi.T + drift + drift.T + np.outer(c, c) + added

    def _noise(self, Y: np.ndarray, y: np.ndarray) -> np.ndarray:
        """$N_i(Y, y)$ for every agent."""
        quadratic = (self._AA @ Y.reshape(len(Y), -1, 1)).reshape(Y.shape)
        linear = np.einsum("iacb,ib->iac", self._Ag, y)
        return quadratic + linear + transpose(linear) + self._gg

    def _local_responses(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        r"""How the mean local error depends on $e$, on the noise $\xi_i$ of the first operator, on $\bar\xi$, and on 1.

        After each of the steps $1, \dots, H$: $\bar y_{\ell+1} = F_i \bar y_\ell + \eta (r_i + \kappa (\bar g - g_i))$.
        """
        (eta, H, _, kappa), (M, d, _) = self.rule, self.A.shape
        identity, A_bar, r_bar = np.eye(d), self.A.mean(0), self.r.mean(0)
        g, g_bar = (1 - kappa) * eta * identity, kappa * eta * identity
        F = identity + eta * self.A
        e = identity + eta * (self.A + kappa * (A_bar - self.A))
        one = eta * (self.r + kappa * (r_bar - self.r))
        steps = [(e, np.broadcast_to(g, (M, d, d)), np.broadcast_to(g_bar, (M, d, d)), one)]
        for _ in range(H - 1):
            e = F @ e + eta * kappa * (A_bar - self.A)
            g, g_bar = F @ g - eta * kappa * identity, F @ g_bar + eta * kappa * identity
            one = np.einsum("iab,ib->ia", F, one) + eta * (self.r + kappa * (r_bar - self.r))
            steps.append((e, g, g_bar, one))
        return steps

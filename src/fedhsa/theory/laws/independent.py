"""The exact law for independent observations of finite chains, whose second moments form a closed system."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import solve_discrete_lyapunov
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, gmres

from ..._linear import spectral_radius, transpose
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..maps.rounds import RoundMap, limit_error, require_rule, require_stable, round_map
from .finite import affine_operators, finite_law
from .moments import AbstractSteppedLaw, Moments, Radius, TooLargeError

LARGEST = 2**26
"""The largest size of the fourth-order noise tensors, half a gigabyte."""
TOLERANCE = 1e-12
ROUNDING = 1e-14
RESTART = 100
ARNOLDI = 1000
"""The number of iterations after which a radius counts as an estimate."""
DENSE = 5
"""The largest dimension in which eigenvalues of the map of second moments are computed from its matrix."""


class IndependentNoise:
    r"""The covariance $N_i$ of `IndependentLaw`, of independent operators of finite chains at a random point."""

    def __init__(self, problem: Problem):
        law = finite_law(problem.agents.source)
        assert law is not None
        M, d = problem.num_agents, problem.dim
        size = M * max(d**4, law.num_outcomes * d**2)
        if size > LARGEST:
            raise TooLargeError(
                f"The exact law of {M} agents with {law.num_outcomes} outcomes in {d} dimensions requires {size:.2g} "
                f"numbers, more than {LARGEST:.2g}. `theory.predict` supports every size."
            )
        weights, (A, g) = law.weights(), affine_operators(problem, law)
        self.A, self.r = np.einsum("io,ioab->iab", weights, A), np.einsum("io,ioa->ia", weights, g)
        A, g = A - self.A[:, None], g - self.r[:, None]
        self.AA = np.einsum("io,ioab,iocd->iacbd", weights, A, A, optimize=True).reshape(M, d * d, d * d)
        self.Ag = np.einsum("io,ioab,ioc->iacb", weights, A, g, optimize=True)
        self.gg = np.einsum("io,ioa,ioc->iac", weights, g, g, optimize=True)

    def covariance(self, Y: np.ndarray, y: np.ndarray, one: Any = 1.0) -> np.ndarray:
        """Returns $N_i(Y, y)$ for every agent; for moments of weighted points, `one` is the mean of the weights."""
        quadratic = (self.AA @ Y.reshape(len(Y), -1, 1)).reshape(Y.shape)
        linear = np.einsum("iacb,ib->iac", self.Ag, y)
        return quadratic + linear + transpose(linear) + np.reshape(one, (-1, 1, 1)) * self.gg


class IndependentLaw(AbstractSteppedLaw):
    r"""The error under i.i.d. sampling, the setting of the paper's Theorem 1.

    Let $G_i(\theta^\star + y, o) = A_i y + r_i + \tilde A_i(o) y + \tilde g_i(o)$, with noise of mean zero. Given the
    error $e$ at the start of a round and the agents' first operators $g_i$, their local steps are independent, so

    $$E' = B \hat E B^T + \frac{\alpha_g^2}{M^2} \sum_i \bigl(D_i \Xi_i D_i^T + C_{i,H}\bigr), \qquad
      \Xi_i = N_i\bigl(E[e e^T], E[e]\bigr),$$

    where $B \hat E B^T$ is the noiseless map, $\Xi_i$ the covariance of $g_i$ given $e$, $D_i$ the response of the mean
    to it, and $C_{i,\ell}$ the covariance of the local error $y_{i,\ell}$ due to the later observations,

    $$C_{i,\ell+1} = F_i C_{i,\ell} F_i^T + \eta^2 N_i(C_{i,\ell} + E[\bar y \bar y^T], E[\bar y]),$$

    with $N_i(Y, y) = E[\tilde A Y \tilde A^T + \tilde A y \tilde g^T + \tilde g y^T \tilde A^T + \tilde g \tilde g^T]$.
    """

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap | None = None):
        self.rule, self.map, self.algorithm = require_rule(algorithm), map or round_map(problem, algorithm), algorithm
        self.noise = IndependentNoise(problem)
        self.A, self.r = self.noise.A, self.noise.r
        self._responses = self._local_responses()

    def enter(self, start):
        return start, np.outer(start, start)

    def step(self, state):
        return self._next(*state)

    def seen(self, state):
        mean, E = state
        return Moments(mean, E - np.outer(mean, mean))

    def stationary(self):
        r"""Solves $E = T(E) + E_0$ for the second moment, the map of a round at the limit of the mean.

        Small systems use their matrix; others use GMRES, preconditioned with the noiseless map $\Phi E \Phi^T$.
        """
        mean = limit_error(self.map, self.algorithm)
        radius = self.mean_square_radius().value
        require_stable(radius, type(self.algorithm).__name__, mean_square=True)
        d, Phi = len(mean), self.map.transition
        base = self._next(mean, np.zeros((d, d)))[1].ravel()
        if d <= DENSE:
            E = np.linalg.solve(np.eye(d * d) - self._matrix, base)
        else:
            left = _operator(d, lambda E: E.ravel() - self._carried(E))
            first = _operator(d, lambda E: solve_discrete_lyapunov(Phi, E).ravel())
            rtol = max(TOLERANCE, ROUNDING / (1 - radius))  # the solution is larger than `base` by this factor
            E, failed = gmres(left, base, rtol=rtol, atol=0.0, M=first, restart=RESTART, maxiter=10)
            if failed:
                raise ArithmeticError(f"GMRES did not converge to {rtol:.1g}. Use a smaller step size.")
        E = E.reshape(d, d)
        return Moments(mean, (E + E.T) / 2 - np.outer(mean, mean))

    def mean_square_radius(self):
        """Computes the radius from the matrix or, in larger dimensions, by Arnoldi iteration."""
        d = len(self.map.offset)
        if d <= DENSE:
            return Radius(spectral_radius(self._matrix), "exact")
        operator = _operator(d, self._carried)
        try:
            values = eigs(operator, k=1, v0=np.eye(d).ravel(), maxiter=ARNOLDI, return_eigenvectors=False)
        except ArpackNoConvergence:
            return Radius(self._power_iteration(), "estimate")
        return Radius(float(abs(values[0])), "exact")

    def _power_iteration(self) -> float:
        E, size = np.eye(len(self.map.offset)), 1.0
        for _ in range(ARNOLDI):
            E = self._carried(E).reshape(E.shape)
            size = np.abs(E).max()
            E = E / size
        return float(size)

    @functools.cached_property
    def _matrix(self) -> np.ndarray:
        d = len(self.map.offset)
        return np.stack([self._carried(unit.reshape(d, d)) for unit in np.eye(d * d)], axis=1)

    def _carried(self, E: np.ndarray) -> np.ndarray:
        """Applies the linear part of a round to the second moment `E`; flat."""
        return (self._next(np.zeros(len(E)), (E + E.T) / 2)[1] - self._added).ravel()

    @functools.cached_property
    def _added(self) -> np.ndarray:
        zero = np.zeros_like(self.map.transition)
        return self._next(zero[0], zero)[1]

    def _next(self, mean: np.ndarray, E: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and second moment of the error after one more round."""
        (eta, _, server_step, _), M, d = self.rule, len(self.A), len(mean)
        Phi, c = self.map.transition, self.map.offset
        Xi = self.noise.covariance(np.broadcast_to(E, (M, d, d)), np.broadcast_to(mean, (M, d)))
        Xi_bar = Xi.mean(0)
        F, C = np.eye(d) + eta * self.A, np.zeros((M, d, d))
        for to_e, to_g, to_g_bar, to_one in self._responses[:-1]:
            # The local mean is to_e e + to_g xi_i + to_g_bar xi_bar + to_one, and xi_bar contains xi_i with weight 1/M.
            y = to_e @ mean + to_one
            both = np.einsum("ia,ic->iac", to_e @ mean, to_one)
            Y = to_e @ E @ transpose(to_e) + both + transpose(both) + np.einsum("ia,ic->iac", to_one, to_one)
            cross = to_g @ Xi @ transpose(to_g_bar) / M
            Y += to_g @ Xi @ transpose(to_g) + cross + transpose(cross) + to_g_bar @ Xi_bar @ transpose(to_g_bar) / M
            C = F @ C @ transpose(F) + eta**2 * self.noise.covariance(C + Y, y)
        _, to_g, to_g_bar, _ = self._responses[-1]
        D = to_g + to_g_bar.mean(0)
        added = (server_step / M) ** 2 * (D @ Xi @ transpose(D) + C).sum(0)
        drift = np.outer(Phi @ mean, c)
        return Phi @ mean + c, Phi @ E @ Phi.T + drift + drift.T + np.outer(c, c) + added

    def _local_responses(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        r"""The coefficients of the mean local error in $e$, the noise $\xi_i$ of the first operator, $\bar\xi$, and 1.

        There is one entry per step, where $\bar y_{\ell+1} = F_i \bar y_\ell + \eta (r_i + \kappa (\bar g - g_i))$.
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


def _operator(d: int, of_matrix: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Returns a linear map of matrices as a SciPy operator."""
    return LinearOperator((d * d, d * d), matvec=lambda E: of_matrix(E.reshape(d, d)), dtype=np.float64)  # pyright: ignore[reportCallIssue]

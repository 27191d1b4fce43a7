"""The exact law of additive VAR(1) noise: error and noise form a linear-Gaussian system."""

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from ..._linear import stein_sum, transpose
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ...sources import IID, VAR1, AbstractSource
from ..maps.rounds import RoundMap, limit_error, round_map
from .moments import AbstractLaw, Moments


class GaussianLaw(AbstractLaw):
    r"""The error under additive VAR(1) noise, $G_i = A_i \theta - b_i + z_i$ with $z_i' = Q_i z_i + \epsilon_i$.

    With $E = \mathrm{cov}(e)$, $X_i = \mathrm{cov}(e, z_i)$ and $Z_i = \mathrm{cov}(z_i)$ at the start of a round,

    $$E' = \Phi E \Phi^T + \sum_i (\Phi X_i \Psi_i^T + \Psi_i X_i^T \Phi^T + \Psi_i Z_i \Psi_i^T) + N,$$

    $X_i' = (\Phi X_i + \Psi_i Z_i) (Q_i^H)^T + N_i$ and $Z_i' = Q_i^H Z_i (Q_i^H)^T + N_{ii}$: $O(M d^3)$ a round.
    $\Psi_i$ is the response of the parameter to the noise at the start of the round; $N$, $N_i$ and $N_{ii}$ are what
    the round's fresh noise adds.
    """

    def __init__(self, problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap | None = None):
        self.map, self.algorithm = map or round_map(problem, algorithm), algorithm
        assert self.map.noise is not None
        K, (Q, variance, self.covariance, self.start) = self.map.noise, _noise(problem.agents.source)
        M, H, n, d = K.shape  # a method that carries more than theta has a larger state than its noise
        power = np.broadcast_to(np.eye(d), (M, d, d))
        J = np.zeros((M, n, d))
        self.fresh, self.fresh_cross, self.fresh_own = np.zeros((n, n)), np.zeros((M, n, d)), np.zeros((M, d, d))
        for k in range(H - 1, -1, -1):
            # J is the response to the noise eps_k, which is Q^(l-1-k) eps_k in z_l for l > k; `power` its part in z_H.
            self.fresh += (J @ variance @ transpose(J)).sum(0)
            self.fresh_cross += J @ variance @ transpose(power)
            self.fresh_own += power @ variance @ transpose(power)
            J, power = K[:, k] + J @ Q, power @ Q
        self.Psi, self.QH = J, power

    def path(self, start, rounds):
        Phi, Z = self.map.transition, self.start
        mean, E, X = start, np.zeros_like(Phi), np.zeros_like(self.Psi)
        yield Moments(mean, E)
        for _ in range(rounds):
            E = Phi @ E @ Phi.T + self._driven(X, Z)
            X = (Phi @ X + self.Psi @ Z) @ transpose(self.QH) + self.fresh_cross
            Z = self.QH @ Z @ transpose(self.QH) + self.fresh_own
            mean = Phi @ mean + self.map.offset
            yield Moments(mean, E)

    def stationary(self):
        Phi, Z = self.map.transition, self.covariance
        mean = limit_error(self.map, self.algorithm)
        X = stein_sum(Phi, transpose(self.QH), self.Psi @ Z @ transpose(self.QH) + self.fresh_cross)
        return Moments(mean, solve_discrete_lyapunov(Phi, self._driven(X, Z)))

    def _driven(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """What the noise adds to the covariance of the error in one round."""
        mixed = (self.map.transition @ X @ transpose(self.Psi)).sum(0)
        return mixed + mixed.T + (self.Psi @ Z @ transpose(self.Psi)).sum(0) + self.fresh


class _Noise(NamedTuple):
    r"""$z_i' = Q_i z_i + \epsilon_i$: covariances of $\epsilon$, and of $z$ in the long run and at the start."""

    Q: np.ndarray
    fresh: np.ndarray
    stationary: np.ndarray
    start: np.ndarray


def _noise(source: AbstractSource) -> _Noise:
    if isinstance(source, IID) and isinstance(source.source, VAR1):
        covariance = source.source.covariance
        return _Noise(np.zeros_like(covariance), covariance, covariance, covariance)
    assert isinstance(source, VAR1)
    Q, covariance = source.transition, source.covariance
    fresh = source.noise_std[:, None, None] ** 2 * np.eye(Q.shape[-1])
    return _Noise(Q, fresh, covariance, covariance if source.start == "stationary" else np.zeros_like(covariance))

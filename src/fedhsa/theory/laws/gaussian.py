"""The exact law of additive VAR(1) noise: error and noise form a linear-Gaussian system."""

import numpy as np

from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ...sources import IID, VAR1, AbstractSource
from ..maps.rounds import RoundMap
from .additive import AdditiveLaw, HiddenNoise


def gaussian_law(problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap) -> AdditiveLaw:
    r"""Returns the law under VAR(1) noise, $G_i = A_i \theta - b_i + z_i$ with $z_i' = Q_i z_i + \epsilon_i$."""
    Phi, offset, K = map
    assert K is not None
    noise = autoregressive(problem.agents.source, K)
    return AdditiveLaw(Phi, offset, noise, type(algorithm).__name__, basis="exact")


def autoregressive(source: AbstractSource, K: np.ndarray) -> HiddenNoise:
    """Returns VAR(1) noise, sequential or independent, in a round with the response `K`, `(M, H, n, d)`."""
    if isinstance(source, IID) and isinstance(source.source, VAR1):
        covariance = start = hidden = source.source.covariance
        Q = np.zeros_like(covariance)
    else:
        assert isinstance(source, VAR1)
        Q, covariance = source.transition, source.covariance
        hidden = source.noise_std[:, None, None] ** 2 * np.eye(Q.shape[-1])
        start = covariance if source.start == "stationary" else np.zeros_like(covariance)
    M, H, n, d = K.shape
    nothing = np.zeros((H, n, n)), np.zeros((M, H, n, d))
    return HiddenNoise(Q, K, hidden, *nothing, covariance, start, np.zeros((M, d)))

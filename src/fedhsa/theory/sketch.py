"""Fast approximate predictions: the noiseless round map, and the floor to first order in the step size."""

import math
from typing import NamedTuple

import numpy as np

from .._linear import spectral_radius, stein_sum
from ..problems import Problem
from .laws.first_order import bias_of, correlations, covariance_of
from .laws.moments import Moments
from .maps.linearise import linearised
from .maps.rounds import LocalRule
from .samples.estimate import Estimates

MOST_DOUBLINGS = 60


class Outline(NamedTuple):
    r"""An approximate prediction: the error relaxes to its long-run mean and covariance by $\Phi$, as in
    `RelaxationLaw`."""

    transition: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def stable(self) -> bool:
        """Whether the mean converges."""
        return bool(np.isfinite(self.transition).all()) and spectral_radius(self.transition) < 1

    @property
    def floor(self) -> float:
        """The mean-square error in the long run."""
        return float(self.mean @ self.mean + np.trace(self.covariance)) if self.stable else math.inf

    def scaled(self, factor: float) -> "Outline":
        """Returns the outline with its floor multiplied by `factor`."""
        return self._replace(mean=math.sqrt(factor) * self.mean, covariance=factor * self.covariance)

    def after(self, rounds: int, start: Moments) -> Moments:
        return self._moments(np.linalg.matrix_power(self.transition, rounds), start)

    def rounds_to(self, target: float, start: Moments) -> float:
        """Returns the rounds until the error is at most `target`, with fractions, so that they vary smoothly."""
        if not self.floor < target:
            return math.inf
        if start.square <= target:
            return 0.0
        powers = [self.transition]
        while self._error(powers[-1], start) > target:
            if len(powers) > MOST_DOUBLINGS:
                return math.inf
            powers.append(powers[-1] @ powers[-1])
        rounds, left = 0, np.eye(len(self.mean))
        for k in range(len(powers) - 2, -1, -1):  # the last round above the target, digit by digit
            if self._error(further := powers[k] @ left, start) > target:
                rounds, left = rounds + 2**k, further
        above, below = self._error(left, start), max(self._error(self.transition @ left, start), 1e-300)
        if not below < above:
            return rounds
        return rounds + min(max(math.log(above / target) / math.log(above / below), 0.0), 1.0)

    def _moments(self, left: np.ndarray, start: Moments) -> Moments:
        away = start.covariance - self.covariance
        return Moments(self.mean + left @ (start.mean - self.mean), self.covariance + left @ away @ left.T)

    def _error(self, left: np.ndarray, start: Moments) -> float:
        return self._moments(left, start).square


class Sketch:
    """Outlines of local rules on a problem, from the laws of its agents or from `estimates`."""

    def __init__(self, problem: Problem, estimates: Estimates | None, local_steps: int):
        if estimates is None:
            model = linearised(problem)
            self.A, b = model.affine_parts()
            self.residuals = self.A @ problem.root - b
            self.long_run, self.lagged, self.lagged_sum = correlations(model, lags=max(local_steps - 1, 1))
        else:
            self.A, self.lagged = estimates.jacobians, estimates.lagged[:, 1:]
            self.residuals = estimates.residuals - estimates.residuals.mean(0)  # at the root they average to zero
            self.long_run, self.lagged_sum = estimates.long_run, self.lagged.sum(1)
        self.A_bar = self.A.mean(0)

    def outline(self, rule: LocalRule) -> Outline:
        r"""Returns the outline of a rule. Its covariance is the noise of one round's local steps, summed over rounds.

        With the first-order covariance $X$ for a server step of 1, $F = I + \eta \bar A$ and the server step
        $\alpha_g$, each round adds $\alpha_g^2 (X - F^H X (F^H)^T)$.
        """
        Phi, d = rule.transition(self.A), len(self.A_bar)
        unstable = Outline(Phi, np.zeros(d), np.zeros((d, d)))
        if not unstable.stable:
            return unstable
        mean = rule.limit_error(self.A, self.residuals)
        mean = mean + bias_of(self.A_bar, self.lagged, self.lagged_sum, rule, 1 / len(self.A))
        X = covariance_of(self.A_bar, self.long_run, rule._replace(server_step=1.0))
        if rule.server_step != 1:
            power = rule.powers(self.A_bar[None])[0]
            X = stein_sum(Phi, Phi.T, rule.server_step**2 * (X - power @ X @ power.T))
        return Outline(Phi, mean, X)

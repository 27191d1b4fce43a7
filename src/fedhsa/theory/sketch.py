"""Fast approximate predictions: the noiseless round map with the floor to first order in the step size, and laws that
are interpolated between step sizes."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._linear import spectral_radius, stein_sum
from ..problems import Problem
from .laws.first_order import correlations, first_order
from .laws.moments import Moments
from .laws.nonlinear import linearised
from .laws.pieces import pieces_of_rule
from .rule import LocalRule
from .samples.estimate import Estimates

MOST_DOUBLINGS = 60
NODES = 4
"""The number of step sizes between which a law is interpolated."""


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
            found = correlations(model, lags=max(local_steps - 1, 1))
            self.long_run, self.lagged_sum = found.long_run.mean(0), found.lagged_sum.mean(0)
            self.lagged = np.concatenate([found.product[:, None], found.lagged], axis=1).mean(0)
        else:
            self.A, self.lagged = estimates.jacobians, estimates.lagged.mean(0)
            self.residuals = estimates.residuals - estimates.residuals.mean(0)  # at the root they average to zero
            self.long_run, self.lagged_sum = estimates.long_run.mean(0), self.lagged[1:].sum(0)
        self.A_bar = self.A.mean(0)
        self._known = functools.cache(lambda rule: first_order(pieces_of_rule(rule, len(self.A))))

    def outline(self, rule: LocalRule) -> Outline:
        r"""Returns the outline of a rule. Its covariance is the noise of one round's local steps, summed over rounds.

        With the first-order covariance $X$ for a server step of 1, $F = I + \eta \bar A$ and the server step
        $\alpha_g$, each round adds $\alpha_g^2 (X - F^H X (F^H)^T)$.
        """
        Phi, d = rule.transition(self.A), len(self.A_bar)
        unstable = Outline(Phi, np.zeros(d), np.zeros((d, d)))
        if not unstable.stable:
            return unstable
        known = self._known(rule._replace(step_size=1.0)).scaled(rule.step_size)
        mean = rule.limit_error(self.A, self.residuals)
        mean = mean + known.bias(self.A_bar, self.lagged, self.lagged_sum)
        X = known.covariance(self.A_bar, self.long_run / rule.server_step)
        if rule.server_step != 1:
            power = rule.powers(self.A_bar[None])[0]
            X = stein_sum(Phi, Phi.T, rule.server_step**2 * (X - power @ X @ power.T))
        return Outline(Phi, mean, X)


class Along:
    r"""The long run of a method by its step size: laws are solved at a few step sizes, and interpolated in between.

    The mean over the step size $\eta$, the shape of the covariance, and $\eta$ over its trace are smooth functions of
    $\log \eta$; the last one falls to zero where the mean square diverges. They are interpolated by a cubic, as long as
    the parabolas without the first or the last of its four step sizes differ from it by less than `tolerance`.
    """

    def __init__(self, settled: Callable[[float, bool], Moments], tolerance: float = 0.02):
        self.settled, self.tolerance = settled, tolerance
        """`settled` returns the moments in the long run at a step size, and whether it is known to be stable; it raises
        `ValueError` if the method diverges."""
        self.known: dict[float, Moments] = {}
        self.accepted: dict[float, Moments] = {}
        """Interpolated moments that were accurate, although others may be nearer by now."""
        self.largest = math.inf
        """The smallest step size that is known to diverge."""

    def at(self, step: float) -> Moments | None:
        """Returns the moments in the long run; None if the method diverges."""
        if step >= self.largest:
            return None
        if (found := self.known.get(step) or self.accepted.get(step) or self.between(step)) is None:
            try:
                found = self.settled(step, step <= max(self.known, default=0.0))
            except ValueError:
                self.largest = min(self.largest, step)
                return None
            self.known[step] = found
        return found

    def between(self, step: float) -> Moments | None:
        """Returns the interpolated moments; None if they are not accurate."""
        known = dict(self.known)  # another thread may add to it
        steps = sorted(sorted(known, key=lambda other: abs(math.log(step / other)))[:NODES])
        if len(steps) < NODES or not steps[0] < step < steps[-1]:
            return None
        found = _interpolated(known, steps, step)
        others = [_interpolated(known, part, step) for part in (steps[1:], steps[:-1])]
        close = all(abs(other.square - found.square) <= self.tolerance * found.square for other in others)
        if close:
            self.accepted[step] = found
        return found if close else None


def _interpolated(known: dict[float, Moments], steps: list[float], step: float) -> Moments:
    at, x = np.log(steps), math.log(step)
    weights = [np.prod([(x - b) / (a - b) for b in at if b != a]) for a in at]
    means, covariances = (np.stack(part) for part in zip(*(known[own] for own in steps), strict=True))
    traces = np.trace(covariances, axis1=1, axis2=2).clip(min=np.finfo(float).tiny)
    mean, shape = (
        np.tensordot(weights, x, 1) for x in (means / np.array(steps)[:, None], covariances / traces[:, None, None])
    )
    return Moments(step * mean, step / (weights @ (np.array(steps) / traces)) * shape)

"""The law of a method on agents that are known from samples alone."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..laws.agents import AddedNoise, Agents
from ..laws.first_order import first_order
from ..laws.law import best_law, federation_on
from ..laws.levels import LinearLaw, SitesLaw
from ..laws.moments import AbstractSteppedLaw, LongRun, Moments, Steps
from .estimate import Estimates

SLOWEST = 0.9999
"""The largest correlation of noise from one observation to the next."""
UNCLEAR = 0.5
"""The share of noise in the matrices above which a prediction from samples says nothing."""


class SampledLaw(AbstractSteppedLaw):
    """Estimated mean operators under autoregressive noise with the estimated variance and long-run covariance.

    The error's mean is shifted by the Markov bias, to first order in the step size.
    """

    basis = "samples"

    def __init__(self, estimates: Estimates, law: SitesLaw | LinearLaw):
        self.estimates, self.law, self.jacobians = estimates, law, estimates.jacobians
        self.scale, self.A_bar = law.federation.agents.scale, estimates.jacobians.mean(0)
        self.first_order = first_order(law.federation.pieces).scaled(self.scale)

    @staticmethod
    def of(problem: Problem, algorithm: AbstractAlgorithm, estimates: Estimates) -> "SampledLaw":
        """Returns the law of an algorithm."""
        return SampledLaw(estimates, best_law(federation_on(problem, algorithm, agents_from(estimates))))

    def _with(self, agents: Agents) -> SitesLaw | LinearLaw:
        """Returns the law of the method on other agents."""
        return best_law(self.law.federation.with_agents(agents.scaled(self.scale)))

    def _markov(self, *, persistent: bool = False) -> np.ndarray:
        lagged = self.estimates.lagged.mean(0)
        return self.first_order.bias(self.A_bar, lagged, lagged[1:].sum(0), persistent=persistent)

    @functools.cached_property
    def _shift(self) -> np.ndarray:
        return self._markov()

    def enter(self, start):
        return self.law.enter(start - self._shift)

    def step(self, state):
        return self.law.step(state)

    def seen(self, state):
        mean, covariance = self.law.seen(state)
        return Moments(mean + self._shift, covariance)

    def family(self, algorithm, steps: Sequence[Steps]):
        return [SampledLaw(self.estimates, law) for law in self.law.family(algorithm, steps)]

    def stationary(self):
        mean, covariance = self.law.stationary()
        return Moments(mean + self._shift, covariance)

    def long_run(self):
        limit = self.law.quiet.stationary().mean
        covariance = self.law.stationary().covariance
        return LongRun(limit, self._shift, np.zeros(len(limit)), covariance)

    def persistent_bias(self):
        return self.law.quiet.stationary().mean + self._markov(persistent=True)

    @property
    def affine(self):
        return self.law

    def mean_radius(self):
        return self.law.mean_radius()

    def stable(self):
        """Returns whether the mean converges; None if noise in the matrices may make the mean square diverge."""
        return None if (found := self.law.stable()) and not math.isfinite(self.left_out) else found

    @functools.cached_property
    def left_out(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        r"""The relative error of the floor.

        Three effects are neglected: noise in the matrices, a share $x$ of that which the error itself causes, which
        multiplies the variance by $1 / (1 - x)$, exactly so for independent scalar observations; noise that is
        correlated over $\tau$ steps, which acts on an error that meanwhile shrinks by $a \tau$; and what is of higher
        order in the step size in the Markov bias, a share $y$. It is infinite if $x$ is so large that the method may
        diverge.
        """
        if not self.law.stable():
            return math.inf
        (mean, covariance), known, shift = self.stationary(), self.first_order, np.linalg.norm(self._shift)
        size, total = np.linalg.norm(mean), np.trace(covariance)
        sloped = self._with(agents_from(self.estimates, self.estimates.slopes))
        x = np.trace(sloped.stationary().covariance)
        y = abs(known.step) * known.block_length * np.linalg.norm(self.A_bar, 2) / 2
        if not (x < UNCLEAR and x + y < 1):
            return math.inf
        correlated = (self.estimates.samples / self.estimates.effective_samples.mean() - 1) / 2
        shrinks = -known.step * np.trace(self.A_bar @ covariance) / total if total > 0 else 0.0
        slow = 1 + abs(shrinks) * max(correlated, 0.0)
        largest = size + (slow / (1 - x - y) - 1) * shift
        spread = slow / (1 - x) * (math.sqrt(total) + math.sqrt(x) * size) ** 2
        return float((largest**2 + spread) / (size**2 + total) - 1) if size + total > 0 else 0.0

    @functools.cached_property
    def interval(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """What repetitions of the estimation say, and what is left out."""

        def floor(estimates: Estimates) -> float:
            return SampledLaw(estimates, self._with(agents_from(estimates))).stationary().square

        _, low, high = self.estimates.interval(floor)
        return max(float(low), 0.0) / (1 + self.left_out), float(high) * (1 + self.left_out)


def agents_from(estimates: Estimates, long_run: np.ndarray | None = None) -> Agents:
    """Returns agents with estimated mean operators and autoregressive noise, relative to the root.

    Their noise has the estimated long-run covariance, or this one.
    """
    A, residuals = estimates.jacobians, estimates.residuals
    W = np.concatenate([A, (residuals - residuals.mean(0))[..., None]], axis=-1)  # at the root they average to zero
    one, long_run = np.ones((len(A), 1)), estimates.long_run if long_run is None else long_run
    times = estimates.samples / estimates.effective_samples
    slow = np.clip((times - 1) / (times + 1), -SLOWEST, SLOWEST)[:, None, None]
    spread = long_run * (1 - slow) / (1 + slow)
    noise = AddedNoise(slow * np.eye(A.shape[-1]), spread * (1 - slow**2), spread, spread)
    return Agents(one[..., None], one, one, one[..., None], W[:, None, None], noise=noise)

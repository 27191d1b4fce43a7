"""What a prediction holds: stability, rate, limit and floor, and what follows from them."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from .. import _check
from .._json import plain
from .._linear import spectral_radius
from ..algorithms import AbstractAlgorithm, Cost, cost
from ..problems import Problem
from .laws.moments import AbstractLaw
from .maps.rounds import require_rule, start_error
from .stability import largest_local_steps, largest_step

FLOAT_BYTES = 8
MOST_FOLLOWED = 2000
"""How many rounds of an exact law are followed to find the one that reaches a target."""
UNLIMITED = 1e12
"""A speed-up that lasts for so many agents counts as unlimited."""


class Reach(NamedTuple):
    """What it takes to bring the mean-square error down to a target; infinite where it never gets there."""

    rounds: float
    samples: float
    """Observations, of all agents together."""
    bytes: float
    """Sent up and down, of all agents together, at 8 bytes a number."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    r"""What an algorithm does on a problem, without running it.

    In the long run the error has the mean `heterogeneity_bias + markov_bias + curvature_bias` and the covariance
    `covariance`; the `floor` is the squared norm of the first plus the trace of the second. Where the method diverges,
    bias, covariance and floor are infinite.
    """

    basis: str
    """What the numbers rest on: an `exact` law, the `expansion` to second order in the noise, or `samples`.

    Or the `mean` alone: then the rate is that of the mean, `error` its squared distance, and what noise adds is NaN.
    """
    stable: bool
    """Whether the error stays bounded: in the mean, and where it is known, in the mean square."""
    heterogeneity_bias: np.ndarray
    """Where the method goes without noise, minus the root."""
    markov_bias: np.ndarray
    """What correlation in time adds to the mean."""
    curvature_bias: np.ndarray
    """What the noise adds to the mean because the operators are curved; zero for affine ones."""
    covariance: np.ndarray
    persistent_bias: np.ndarray
    """The part of the bias that stays however many agents like these there are."""
    interval: tuple[float, float] | None
    """A 95 % interval of the floor, where it is estimated from samples."""
    transition: np.ndarray = dataclasses.field(repr=False)
    """The round map of the error, $\\Phi$."""
    offset: np.ndarray = dataclasses.field(repr=False)
    """What a round without noise adds at the root, $c$."""
    jacobians: np.ndarray = dataclasses.field(repr=False)
    problem: Problem = dataclasses.field(repr=False)
    algorithm: AbstractAlgorithm = dataclasses.field(repr=False)
    law: AbstractLaw | None = dataclasses.field(repr=False)
    """The exact law, where there is one."""

    @functools.cached_property
    def spectral_radius(self) -> float:
        """Of the round map: from 1 on the method diverges."""
        return spectral_radius(self.transition)

    @functools.cached_property
    def mean_square_radius(self) -> float | None:
        """The factor of the mean-square error per round, noise in the operators' matrices included, or None."""
        radius = None if self.law is None else self.law.mean_square_radius()
        return None if radius is None else radius.value

    @property
    def rate(self) -> float:
        """The factor of the root-mean-square error per round, while it is far above the floor."""
        square = self.mean_square_radius
        return self.spectral_radius if square is None else math.sqrt(square)

    @functools.cached_property
    def max_step_size(self) -> float:
        """The first step at which the spectral radius reaches 1, at these local steps."""
        return largest_step(self.jacobians, require_rule(self.algorithm))

    @functools.cached_property
    def max_local_steps(self) -> float | None:
        """The last number of local steps before it does, at this step; None for methods without local steps."""
        if not hasattr(self.algorithm, "local_steps"):
            return None
        return largest_local_steps(self.jacobians, require_rule(self.algorithm))

    @property
    def bias(self) -> np.ndarray:
        """The mean of the error in the long run, `(d,)`."""
        return self.heterogeneity_bias + self.markov_bias + self.curvature_bias

    @property
    def noise_variance(self) -> float:
        """The trace of the covariance."""
        return max(float(np.trace(self.covariance)), 0.0)  # no noise may come out as a little less than none

    @property
    def floor(self) -> float:
        """The mean-square error in the long run."""
        return float(self.bias @ self.bias) + self.noise_variance

    @property
    def saturation_agents(self) -> float:
        """The number of agents at which the variance has sunk to the squared bias that more agents do not remove.

        Infinite where there is no such bias, 0 where there is no variance, NaN where it is not known.
        """
        persistent = float(self.persistent_bias @ self.persistent_bias)
        agents = self.problem.num_agents * self.noise_variance / persistent if 0 < persistent < math.inf else math.inf
        return math.inf if agents >= UNLIMITED else agents

    @functools.cached_property
    def cost(self) -> Cost:
        """Per round and agent."""
        return cost(self.problem, self.algorithm)

    def floor_at(self, num_agents: float) -> float:
        """The floor with another number of agents like these: the variance and part of the bias go with its inverse."""
        _check.number("num_agents", num_agents, above=0.0)
        if not self.stable:
            return math.inf
        share = self.problem.num_agents / num_agents
        bias = self.persistent_bias + share * (self.bias - self.persistent_bias)
        return float(bias @ bias + share * self.noise_variance)

    def error(self, rounds: int, theta: Any = None) -> np.ndarray:
        """The predicted mean-square error before the first round and after each of `rounds`, from `theta`.

        Exact where there is an exact law; elsewhere as `error_after`.
        """
        start = start_error(self.problem, theta)
        if self.law is not None:
            path = self.law.path(start, _check.count("rounds", rounds, least=0))
            return np.array([moments.square for moments in path])
        left, errors = np.eye(len(start) + 1), []
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(_check.count("rounds", rounds, least=0) + 1):
                errors.append(self._after(left, start))
                left = self._augmented @ left
        return np.array(errors)

    def error_after(self, rounds: int, theta: Any = None) -> float:
        r"""The predicted mean-square error after `rounds`, without going through them one by one.

        $|m + \Phi^t (e_0 - m)|^2 + \mathrm{tr}(\Sigma - \Phi^t \Sigma (\Phi^t)^T)$ with the mean $m$ and the covariance
        $\Sigma$ of the long run. It leaves out that noise in the operators' matrices is larger far from the root, and
        how correlated noise builds up in the first rounds. Where the method diverges, the error of its mean.
        """
        _check.count("rounds", rounds, least=0)
        return self._after(np.linalg.matrix_power(self._augmented, rounds), start_error(self.problem, theta))

    def reach(self, target: float, theta: Any = None) -> Reach:
        """The rounds, samples and bytes until the mean-square error is at most `target`, from `theta`."""
        rounds = self.rounds_to(target, theta)
        if self.law is not None and not MOST_FOLLOWED < rounds < math.inf:
            path = self.law.path(start_error(self.problem, theta), MOST_FOLLOWED)
            rounds = next((t for t, moments in enumerate(path) if moments.square <= target), rounds)
        return total_cost(rounds, self.cost, self.problem.num_agents)

    def rounds_to(self, target: float, theta: Any = None) -> float:
        """The rounds until `error_after` is at most `target`; infinite where the floor is above it.

        By doubling and bisection: of an error that falls and rises again, one of the crossings.
        """
        _check.number("target", target, above=0.0)
        start = start_error(self.problem, theta)
        if start @ start <= target:
            return 0
        if self.floor >= target or not self.stable:
            return math.inf
        powers = [self._augmented]  # after 1, 2, 4, ... rounds
        while self._after(powers[-1], start) > target:
            powers.append(powers[-1] @ powers[-1])
        rounds, left = 0, np.eye(len(self._augmented))
        for k in range(len(powers) - 2, -1, -1):  # the last round above the target, digit by digit
            if self._after(further := powers[k] @ left, start) > target:
                rounds, left = rounds + 2**k, further
        return rounds + 1

    @functools.cached_property
    def _augmented(self) -> np.ndarray:
        """The round map on $(e, 1)$."""
        top = np.concatenate([self.transition, self.offset[:, None]], axis=1)
        return np.concatenate([top, np.eye(len(top) + 1)[-1:]])

    def _after(self, rounds: np.ndarray, start: np.ndarray) -> float:
        """The error after some rounds, given the power of the augmented map that they are."""
        left, added = rounds[:-1, :-1], rounds[:-1, -1]
        if not self.stable:
            mean = left @ start + added
            return float(mean @ mean)
        mean = self.bias + left @ (start - self.bias)
        return float(mean @ mean + np.trace(self.covariance - left @ self.covariance @ left.T))

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON values; what is infinite becomes the word "infinity"."""
        names = ("basis", "stable", "spectral_radius", "mean_square_radius", "max_step_size")
        names += ("max_local_steps", "rate", "heterogeneity_bias", "markov_bias", "curvature_bias", "noise_variance")
        names += ("floor", "saturation_agents", "interval")
        return {"algorithm": type(self.algorithm).__name__} | {name: plain(getattr(self, name)) for name in names}


def total_cost(rounds: float, cost: Cost, num_agents: int) -> Reach:
    """What so many rounds take, of all agents together."""
    floats = cost.floats_up + cost.floats_down
    return Reach(rounds, rounds * num_agents * cost.samples, rounds * num_agents * FLOAT_BYTES * floats)

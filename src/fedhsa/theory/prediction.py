"""What a prediction holds: stability, rate, limit and floor, and what follows from them."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _check
from .._json import plain
from .._linear import spectral_radius
from .._table import FIXED, Table
from ..algorithms import AbstractAlgorithm, Cost, cost
from ..problems import Problem
from .laws.moments import AbstractLaw, Radius
from .maps.rounds import require_rule, start_error
from .stability import KINDS, Limit, largest_local_steps, largest_mean_square_step, largest_step

FLOAT_BYTES = 8
FIRST_LOOK, LONGEST = 64, 4096
"""How many rounds are followed at first to find the one that reaches a target, and at most."""
UNLIMITED = 1e12
"""A speed-up that lasts for so many agents counts as unlimited."""


class Reach(NamedTuple):
    """What it takes to bring the mean-square error down to a target; infinite where it never gets there."""

    rounds: float
    samples: float
    """Observations, of all agents together."""
    bytes: float
    """Sent up and down, of all agents together, at 8 bytes a number."""


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction:
    r"""What an algorithm does on a problem, without running it.

    In the long run the error has the mean `heterogeneity_bias + markov_bias + curvature_bias` and the covariance
    `covariance`; the `floor` is the squared norm of the first plus the trace of the second. Where the method diverges,
    bias, covariance and floor are infinite.
    """

    basis: str
    """What the numbers rest on.

    An `exact` law; for Markov chains the laws of `pairs` of agents, of each agent alone (`one site`) or of `many
    agents`; `samples`; or the `mean` alone: then the rate is that of the mean, `error` its squared distance, and what
    noise adds is NaN.
    """
    stable: bool
    """Whether the error stays bounded: in the mean square where that is known, see `stability`, and in the mean."""
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
    left_out: float
    """The size of what the law leaves out, as an estimated relative error of the floor: 0 where it is exact, NaN where
    nobody knows."""
    transition: np.ndarray = dataclasses.field(repr=False)
    """The round map of the error without noise, $\\Phi$."""
    offset: np.ndarray = dataclasses.field(repr=False)
    """What a round without noise adds at the root, $c$."""
    jacobians: np.ndarray = dataclasses.field(repr=False)
    problem: Problem = dataclasses.field(repr=False)
    algorithm: AbstractAlgorithm = dataclasses.field(repr=False)
    law: AbstractLaw = dataclasses.field(repr=False)
    """The law that the numbers are from."""
    radius_at: Callable[[AbstractAlgorithm], Radius | None] | None = dataclasses.field(repr=False)
    """The mean-square radius of the algorithm with another step; None where it is the square of the mean's."""

    @functools.cached_property
    def spectral_radius(self) -> float:
        """The factor of the mean error per round: from 1 on the method diverges."""
        radius = self.law.mean_radius()
        return spectral_radius(self.transition) if radius is None else radius

    @functools.cached_property
    def _radius(self) -> Radius | None:
        return self.law.mean_square_radius()

    @property
    def mean_square_radius(self) -> float | None:
        """The factor of the mean-square error per round, noise in the operators' matrices included, or None."""
        return None if self._radius is None else self._radius.value

    @property
    def stability(self) -> str:
        """In which sense `stable` is meant: of the mean square, exact, estimated or bounded, or of the mean only."""
        return "mean only" if self._radius is None else KINDS[self._radius.kind]

    @property
    def rate(self) -> float:
        """The factor of the root-mean-square error per round, while it is far above the floor."""
        square = self.mean_square_radius
        return self.spectral_radius if square is None else math.sqrt(square)

    @functools.cached_property
    def max_step_size(self) -> Limit:
        """The first step at which the method diverges, at these local steps; its `kind` says in which sense."""
        mean = largest_step(self.jacobians, require_rule(self.algorithm))
        if self.radius_at is None:
            return Limit(mean, self.stability, mean.scanned)
        return largest_mean_square_step(self.algorithm, self.radius_at, mean)

    @functools.cached_property
    def max_local_steps(self) -> Limit | None:
        """The last number of local steps before the mean diverges, at this step; None for methods without them."""
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
        if math.isnan(persistent):
            return math.nan
        agents = self.problem.num_agents * self.noise_variance / persistent if 0 < persistent < math.inf else math.inf
        return math.inf if agents >= UNLIMITED else agents

    @functools.cached_property
    def cost(self) -> Cost:
        """Per round and agent."""
        return cost(self.problem, self.algorithm)

    def floor_at(self, num_agents: float) -> float:
        """The floor with another number of agents like these, to leading order in the inverse of their number.

        The variance and a part of the bias go with that inverse.
        """
        _check.number("num_agents", num_agents, above=0.0)
        if not self.stable:
            return math.inf
        share = self.problem.num_agents / num_agents
        bias = self.persistent_bias + share * (self.bias - self.persistent_bias)
        return float(bias @ bias + share * self.noise_variance)

    def error(self, rounds: int, theta: Any = None) -> np.ndarray:
        """The predicted mean-square error before the first round and after each of `rounds`, from `theta`."""
        return self.law.errors(start_error(self.problem, theta), _check.count("rounds", rounds, least=0))

    def error_after(self, rounds: int, theta: Any = None) -> float:
        """The predicted mean-square error after `rounds`."""
        return float(self.error(rounds, theta)[-1])

    def reach(self, target: float, theta: Any = None) -> Reach:
        """The rounds, samples and bytes until the mean-square error is at most `target`, from `theta`."""
        return total_cost(self.rounds_to(target, theta), self.cost, self.problem.num_agents)

    def rounds_to(self, target: float, theta: Any = None) -> float:
        """The first round after which the predicted error is at most `target`; infinite where it stays above."""
        _check.number("target", target, above=0.0)
        floor = float(self.heterogeneity_bias @ self.heterogeneity_bias) if self.basis == "mean" else self.floor
        rounds = FIRST_LOOK
        while True:
            errors = self.error(rounds, theta)
            if (errors <= target).any():
                return int(np.argmax(errors <= target))
            if not self.stable or floor >= target:
                return math.inf
            left = math.log((errors[-1] - floor) / (target - floor)) / (-2 * math.log(self.rate))
            if rounds >= LONGEST:  # from here on at the rate of the long run
                return rounds + math.ceil(left)
            rounds = min(LONGEST, rounds + max(math.ceil(1.2 * left), FIRST_LOOK))

    def _table(self) -> Table:
        """What it comes to, in words; nothing that would have to be computed first."""
        problem, known = self.problem, "exact law" if self.basis == "exact" else self.basis
        rows = [
            ("algorithm", repr(self.algorithm)),
            ("problem", f"{problem.num_agents:,} agents, {problem.dim:,} parameters"),
            ("stable", f"{'yes' if self.stable else 'no: the error grows'} ({self.stability})"),
        ]
        if self.stable:
            rows += [
                ("r.m.s. error", f"times {self.rate:.4g} per round, far above the floor"),
                ("floor", self._floor_in_words()),
                ("agents that help", _agents_in_words(self.saturation_agents)),
            ]
        doubt = f", may be off by {100 * self.left_out:.2g}{FIXED}%" if self.left_out > 0 else ""
        return Table(("", ""), [*rows, ("known by", f"{known}{doubt}")])

    def _floor_in_words(self) -> str:
        if math.isnan(self.floor):
            return "not known: only the mean is"
        if self.floor == 0:
            return "none: the error goes to 0"
        bias = 100 * float(self.bias @ self.bias) / self.floor
        parts = f"{bias:.3g}{FIXED}% squared bias, {100 - bias:.3g}{FIXED}% noise"
        return f"mean-square error {self.floor:.3g}: {parts}"

    def __repr__(self):
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def to_dict(self) -> dict[str, Any]:
        """The numbers as JSON values; what is infinite becomes the word "infinity"."""
        names = ("basis", "stable", "spectral_radius", "mean_square_radius", "stability", "max_step_size")
        names += ("max_local_steps", "rate", "heterogeneity_bias", "markov_bias", "curvature_bias", "noise_variance")
        names += ("floor", "left_out", "saturation_agents", "interval")
        return {"algorithm": type(self.algorithm).__name__} | {name: plain(getattr(self, name)) for name in names}


def total_cost(rounds: float, cost: Cost, num_agents: int) -> Reach:
    """What so many rounds take, of all agents together."""
    floats = cost.floats_up + cost.floats_down
    return Reach(rounds, rounds * num_agents * cost.samples, rounds * num_agents * FLOAT_BYTES * floats)


def _agents_in_words(agents: float) -> str:
    if math.isnan(agents):
        return "not known"
    if math.isinf(agents):
        return "any number: the floor goes like 1/M"
    if agents < 1:
        return "none: there is little noise or none"
    rough = float(f"{agents:.1e}")
    return f"up to about {rough:,.0f}; beyond that, bias is what is left"

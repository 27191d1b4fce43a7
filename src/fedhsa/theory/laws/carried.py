"""Predictions for methods that carry more than the parameter from round to round, from their joint maps."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..._linear import spectral_radius
from ..._types import SeedLike
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ...problems.base import AffineAgent
from ...sources import Silent
from ..maps.joint import Joint, JointMap
from ..maps.linearise import linearised
from ..maps.modes import DENSE, Modes, error_of, radius_of, reduced, settled, visible_radius
from ..maps.rounds import require_stable
from ..prediction import Prediction
from ..samples.estimate import Estimates, estimates_of
from ..stability import Limit, largest_carried_step, largest_mean_square_step
from .additive import AdditiveLaw, AdditiveState, ChainNoise, HiddenNoise
from .finite import additive_noise, finite_law
from .first_order import noise_is_known
from .gaussian import autoregressive
from .moments import AbstractLaw, Moments, Radius, TooLargeError
from .played import AbstractPlayedLaw, predict_played

CLOSE = 1e-10
"""The tolerance for the first round to follow the map of the others, and for noise to preserve conserved sums."""


class CarriedLaw(AbstractPlayedLaw):
    """The mean of the error, computed round by round with the algorithm's exchanges."""

    def stationary(self):
        require_stable(radius_of(self.joint), self.joint.name)
        return Moments(error_of(self.joint), np.zeros((self.joint.problem.dim,) * 2))


class ErrorsOverTime(NamedTuple):
    """The correlations of errors of different rounds, as a projection of a state with additive noise.

    They are in the coordinates of the whole carried state, and in those of its reachable part, which converges.
    """

    law: AdditiveLaw
    observe: np.ndarray
    settling: AdditiveLaw
    observe_settling: np.ndarray
    scale: float = 1.0
    """The ratio of errors to those that additive noise alone would cause."""


class CarriedNoiseLaw(AbstractLaw):
    """The error under additive noise: the carried state and the noise form a linear system.

    The mean is that of `CarriedLaw` plus the mean that the noise adds.
    """

    def __init__(self, joint: Joint, noise: HiddenNoise, *, basis: str):
        self.joint, self.noise, self.basis, self.map = joint, noise, basis, joint.map()
        self.modes = reduced(self.map)
        self.push = np.zeros(joint.size)
        """The mean that noise adds to the state in a round."""
        self.whole = AdditiveLaw(self.map.transition, self.push, noise, joint.name, basis=basis)
        part = noise.through(self.modes.project)
        self.reachable = AdditiveLaw(self.modes.transition, self.modes.offset, part, joint.name, basis=basis)

    def path(self, start, rounds):
        C = self.map.observe
        added = AdditiveLaw(self.map.transition, self.push, self.noise, self.joint.name, basis=self.basis)
        both = zip(
            CarriedLaw(self.joint).path(start, rounds), added.path(np.zeros(len(self.push)), rounds), strict=True
        )
        for (mean, _), (more, covariance) in both:
            yield Moments(mean + C @ more, C @ covariance @ C.T)

    @functools.cached_property
    def state(self) -> AdditiveState:
        """The moments of the reachable state in the long run, in its own coordinates."""
        return self.reachable.settled()

    def added_mean(self) -> np.ndarray:
        """The mean that noise adds to the error in the long run."""
        Phi, project, C = self.modes.transition, self.modes.project, self.modes.observe
        return C @ np.linalg.solve(np.eye(len(Phi)) - Phi, project @ self.push)

    def pushed_modes(self) -> Modes:
        """The map of the reachable state, including the mean that noise adds."""
        return self.modes._replace(offset=self.modes.offset + self.modes.project @ self.push)

    def stationary(self):
        C, (mean, covariance, *_) = self.modes.observe, self.state
        return Moments(self.modes.origin + C @ mean + self.added_mean(), C @ covariance @ C.T)

    def correlations(self) -> ErrorsOverTime:
        """Returns the correlations of errors over time."""
        return ErrorsOverTime(self.whole, self.map.observe, self.reachable, self.modes.observe)

    def mean_square_radius(self):
        return Radius(visible_radius(self.modes) ** 2, "exact") if self.basis == "exact" else None


def carried_gaussian_law(joint: Joint) -> CarriedNoiseLaw | None:
    """Returns the law under additive VAR(1) noise; None for other noise, other randomness or rounds that differ."""
    noise = joint.noise() if joint.size <= DENSE and additive_noise(joint.problem) is not None else None
    if noise is None:
        return None
    law = CarriedNoiseLaw(joint, autoregressive(joint.problem.agents.source, noise), basis="exact")
    return law if _first_is_like_others(joint, law.map) and _leaves_alone(law, noise) else None


def chain_law(joint: Joint) -> CarriedNoiseLaw | None:
    """Returns the law under the noise of finite chains; None for other randomness or problems that are too large."""
    if joint.size > DENSE or joint.chancy or finite_law(joint.problem.agents.source) is None:
        return None
    map = joint.map()
    modes = reduced(map)
    if not spectral_radius(modes.transition) < 1:
        return None
    x = np.linalg.solve(np.eye(len(modes.offset)) - modes.transition, modes.offset)
    try:
        chains = ChainNoise(joint, map.first + modes.project.T @ x)
    except TooLargeError:
        return None
    law = CarriedNoiseLaw(joint, chains.hidden(), basis="additive noise")
    if not _leaves_alone(law, chains.R):
        return None
    law.whole.offset = law.push = chains.push(law.whole.crossed())
    # When an agent observes, its error is the server's plus the effect of its own noise in the round.
    C = law.map.observe
    own = joint.num_agents * C @ law.whole.added() @ C.T
    law.left_out = chains.strength(law.stationary().covariance + own)
    return law


def noise_law(joint: Joint) -> CarriedNoiseLaw | None:
    """Returns the law with noise, which is exact under VAR(1) noise; None if there is none."""
    return carried_gaussian_law(joint) or chain_law(joint)


def _first_is_like_others(joint: Joint, map: JointMap) -> bool:
    spread = map.transition @ joint.start_spread[joint.kept]
    return np.allclose(map.first, map.offset, atol=CLOSE) and np.allclose(map.spread, spread, atol=CLOSE)


def _leaves_alone(law: CarriedNoiseLaw, responses: np.ndarray) -> bool:
    """Returns whether noise preserves visible conserved quantities; `responses` are `(M, H, n, k)`."""
    hidden = responses - law.modes.project.T @ (law.modes.project @ responses)
    return float(np.abs(law.map.observe @ law.map.transition @ hidden).max()) <= CLOSE * float(np.abs(responses).max())


@dataclasses.dataclass(frozen=True, repr=False)
class CarriedPrediction(Prediction):
    """A prediction from the joint map; `transition` and `offset` are those of its reachable part."""

    joint: Joint = dataclasses.field(repr=False)
    modes: Modes | None = dataclasses.field(repr=False)
    growth: float = dataclasses.field(repr=False)

    @property
    def spectral_radius(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The spectral radius of the joint map, for modes that a run excites and that affect the parameter."""
        radius = self.law.mean_radius()
        return self.growth if radius is None else radius

    @functools.cached_property
    def max_step_size(self) -> Limit:
        """The smallest step size at which the method diverges; NaN if the search would take long.

        The attribute `kind` of the result states whether it refers to the mean or to the mean square.
        """
        mean = largest_carried_step(self.joint, self.algorithm, self.jacobians)
        if self.radius_at is None:
            return Limit(mean, self.stability, mean.scanned)
        return largest_mean_square_step(self.algorithm, self.radius_at, mean)

    @property
    def max_local_steps(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None, since it is unknown."""
        return None


def predict_carried(
    problem: Problem, algorithm: AbstractAlgorithm, *, samples: int | Estimates | None = None, key: SeedLike = 0
) -> Prediction:
    """Predicts an algorithm without a closed form: its mean, and its noise if the law is known."""
    if noise_is_known(problem):
        model = linearised(problem)
    else:
        found = estimates_of(problem, samples, key)
        b = found.jacobians @ problem.root - found.residuals + found.residuals.mean(0)
        agents = AffineAgent(Silent(), found.jacobians, b)
        model = Problem(agents, like=np.zeros(problem.dim), theta_star=problem.root)
    joint = Joint(model, algorithm)
    if isinstance(problem.agents.source, Silent) and problem.affine and len(joint.coins) == 1 and not joint.one_map:
        return predict_played(joint, algorithm)
    joint.check()
    A, modes, d = model.affine_parts()[0], None, problem.dim
    if joint.size <= DENSE:
        modes = reduced(joint.map())
        growth, limit = visible_radius(modes), settled(modes)
    else:
        growth = radius_of(joint)
        limit = error_of(joint) if growth < 1 else np.full(d, np.inf)
    stable, nothing, unknown = growth < 1, np.zeros(d), np.full(d, np.nan)
    law, covariance, markov, basis, persistent = CarriedLaw(joint), np.diag(unknown), unknown, "mean", limit
    radius_at: Callable | None = _unknown_radius
    if not stable:
        limit = persistent = np.full(d, np.inf)
        covariance, markov = np.diag(limit), nothing
    elif isinstance(problem.agents.source, Silent) and problem.affine and len(joint.coins) == 1:
        covariance, markov, basis, radius_at = np.zeros((d, d)), nothing, "exact", None
    elif noise_is_known(problem) and problem.affine and (found := noise_law(joint)) is not None:
        law, basis, markov, covariance = found, found.basis, found.added_mean(), found.stationary().covariance
        modes, persistent = found.pushed_modes(), limit if basis == "exact" else unknown
        radius_at = None if basis == "exact" else radius_at
    return CarriedPrediction(
        basis=basis,
        stable=stable,
        heterogeneity_bias=limit,
        markov_bias=markov,
        curvature_bias=nothing if problem.affine or not stable else unknown,
        covariance=covariance,
        persistent_bias=persistent,
        interval=None,
        left_out=math.nan if basis == "mean" else law.left_out,
        radius_at=radius_at,
        transition=np.empty((0, 0)) if modes is None else modes.transition,
        offset=np.empty(0) if modes is None else modes.offset,
        jacobians=A,
        problem=problem,
        algorithm=algorithm,
        law=law,
        joint=joint,
        modes=modes,
        growth=growth,
    )


def _unknown_radius(algorithm: AbstractAlgorithm) -> None:
    """The mean-square radius of methods for which only that of the mean is known."""


def carried_law(joint: Joint) -> AbstractLaw:
    """Returns the exact law of a method that carries more than the parameter; raises `TypeError` if there is none."""
    joint.check()
    if isinstance(joint.problem.agents.source, Silent) and len(joint.coins) == 1:
        return CarriedLaw(joint)
    law = carried_gaussian_law(joint)
    if law is None:
        raise TypeError(
            f"The exact law of {joint.name}, which carries more than theta from round to round, is known without noise "
            "and under additive VAR(1) noise, unless it has a coin, its first round differs from the others, or it "
            "carries more than 600 numbers. `theory.predict` predicts its mean."
        )
    return law

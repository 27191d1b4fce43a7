"""Predictions of the mean alone, from the joint map of all that a method carries or from rounds that are run."""

import functools
import math

import numpy as np

from ..._types import SeedLike
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ...problems.base import AffineAgent
from ...sources import Silent
from ..maps.joint import Joint
from ..maps.linearise import linearised
from ..maps.modes import error_of, radius_of
from ..maps.rounds import RoundMap, require_stable
from ..prediction import Prediction, settled, undecided, unstable
from ..samples.estimate import Estimates, estimates_of
from ..stability import Limit, largest_carried_step
from .first_order import noise_is_known
from .moments import AbstractLaw, Moments

SETTLING = 4000
"""The number of rounds that are run; the second half counts as the long run."""
FAR = 1e12
"""A method diverges if its squared error exceeds the first one by this factor."""


class MeanLaw(AbstractLaw):
    """The mean of the error, computed round by round with the algorithm's exchanges."""

    def __init__(self, joint: Joint):
        self.joint = joint
        self.exact = isinstance(joint.problem.agents.source, Silent) and len(joint.coins) == 1
        self.basis = "exact" if self.exact else "mean"

    def path(self, start, rounds):
        root, nothing = self.joint.problem.root, np.zeros((len(start),) * 2)
        for theta in self.joint.parameters(rounds, root + start):
            yield Moments(theta - root, nothing)

    def stationary(self):
        require_stable(self.mean_radius(), self.joint.name)
        return Moments(error_of(self.joint), np.zeros((self.joint.problem.dim,) * 2))

    def mean_radius(self) -> float:
        return self._radius

    @functools.cached_property
    def _radius(self) -> float:
        return radius_of(self.joint)


class PlayedLaw(MeanLaw):
    """The error of a deterministic method whose rounds are not affine; its long-run moments are those over rounds.

    The long run is that of a run from the root. Other starts may have another limit.
    """

    def __init__(self, joint: Joint):
        self.joint, self.basis = joint, "played"

    @functools.cached_property
    def _settled(self) -> np.ndarray:
        root = self.joint.problem.root
        errors = self.joint.parameters(SETTLING, root) - root
        largest = FAR * (1 + float(root @ root))
        if not (np.isfinite(errors).all() and (errors**2).sum(1).max() < largest):
            raise ValueError(f"{self.joint.name} diverges on this problem: it has no limit. Use a smaller step size.")
        return errors[SETTLING // 2 :]

    def stationary(self):
        return Moments(self._settled.mean(0), np.atleast_2d(np.cov(self._settled.T, bias=True)))

    def mean_radius(self):
        """Returns NaN, since it is unknown."""
        return math.nan

    def unsettled(self) -> float:
        """The difference of the squared errors of the two halves of the long run, relative to their mean."""
        halves = np.array([(half**2).sum(1).mean() for half in np.array_split(self._settled, 2)])
        return float(np.ptp(halves) / max(halves.mean(), np.finfo(float).tiny)) if halves.max() > 1e-20 else 0.0


def predict_mean(
    problem: Problem, algorithm: AbstractAlgorithm, *, samples: int | Estimates | None = None, key: SeedLike = 0
) -> Prediction:
    """Predicts the mean of an algorithm by running its exchanges on mean operators, which is all without noise."""
    if noise_is_known(problem):
        model = linearised(problem)
    else:
        found = estimates_of(problem, samples, key)
        b = found.jacobians @ problem.root - found.residuals + found.residuals.mean(0)
        agents = AffineAgent(Silent(), found.jacobians, b)
        model = Problem(agents, like=np.zeros(problem.dim), theta_star=problem.root)
    joint, d = Joint(model, algorithm), problem.dim
    law = MeanLaw(joint)
    silent = isinstance(problem.agents.source, Silent) and problem.affine
    if silent and law.exact and not joint.one_map:
        law = PlayedLaw(joint)
    else:
        joint.check()
        law.basis = "exact" if silent and law.exact else "mean"
    nothing, unknown = np.zeros(d), np.full(d, np.nan)
    A, radius_at = model.affine_parts()[0], None if law.basis == "exact" else lambda algorithm: None
    mean_limit = functools.partial(_mean_limit, law, algorithm, A)
    nowhere = RoundMap(np.empty((0, 0)), np.empty(0))  # the map of all that is carried is not formed
    prediction = undecided(problem, algorithm, law, nowhere, A, radius_at, mean_limit)
    try:
        mean, covariance = law.stationary()
    except ValueError:
        return unstable(prediction)
    if isinstance(law, PlayedLaw):
        return settled(prediction, mean, nothing, nothing, covariance, unknown, law.unsettled())
    if law.basis == "exact":
        return settled(prediction, mean, nothing, nothing, covariance, mean, math.nan)
    curvature = nothing if problem.affine else unknown
    return settled(prediction, mean, unknown, curvature, np.diag(unknown), mean, math.nan)


def _mean_limit(law: MeanLaw, algorithm: AbstractAlgorithm, A: np.ndarray) -> Limit:
    """Returns the smallest step size at which the mean diverges; NaN if it is unknown."""
    if isinstance(law, PlayedLaw):
        return Limit(math.nan, "mean", "no step at all")
    found = largest_carried_step(law.joint, algorithm, A)
    return Limit(found, "mean only", found.scanned)

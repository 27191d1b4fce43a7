"""Noiseless rounds that are not one affine map, such as those of codecs that select entries, by running them."""

import dataclasses
import functools
import math

import numpy as np

from ...algorithms import AbstractAlgorithm
from ..maps.joint import Joint
from ..prediction import Prediction
from ..stability import Limit
from .moments import AbstractLaw, Moments

SETTLING = 4000
"""The number of rounds that are run; the second half counts as the long run."""
FAR = 1e12
"""A method diverges if its squared error exceeds the first one by this factor."""


class AbstractPlayedLaw(AbstractLaw):
    """A law whose rounds are run on the mean operators with the algorithm's exchanges."""

    def __init__(self, joint: Joint):
        self.joint = joint

    def path(self, start, rounds):
        root, nothing = self.joint.problem.root, np.zeros((len(start),) * 2)
        for theta in self.joint.parameters(rounds, root + start):
            yield Moments(theta - root, nothing)


class PlayedLaw(AbstractPlayedLaw):
    """The error of a deterministic method, round by round; its long-run moments are those over rounds.

    The long run is that of a run from the root. If a round is not affine, other starts may have another limit.
    """

    basis = "played"

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

    def unsettled(self) -> float:
        """The difference of the squared errors of the two halves of the long run, relative to their mean."""
        halves = np.array([(half**2).sum(1).mean() for half in np.array_split(self._settled, 2)])
        return float(np.ptp(halves) / max(halves.mean(), np.finfo(float).tiny)) if halves.max() > 1e-20 else 0.0


@dataclasses.dataclass(frozen=True, repr=False)
class PlayedPrediction(Prediction):
    """A prediction from rounds that were run; `stable` means that this run did not diverge."""

    @property
    def spectral_radius(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Unknown."""
        return math.nan

    @property
    def max_step_size(self) -> Limit:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Unknown."""
        return Limit(math.nan, "mean", "no step at all")

    @property
    def max_local_steps(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Unknown."""
        return None


def predict_played(joint: Joint, algorithm: AbstractAlgorithm) -> PlayedPrediction:
    """Returns the prediction of a deterministic method on agents without noise."""
    law, d = PlayedLaw(joint), joint.problem.dim
    try:
        mean, covariance = law.stationary()
        stable, law.left_out = True, law.unsettled()
    except ValueError:
        stable, mean, covariance = False, np.full(d, np.inf), np.diag(np.full(d, np.inf))
    return PlayedPrediction(
        basis=law.basis,
        stable=stable,
        heterogeneity_bias=mean,
        markov_bias=np.zeros(d),
        curvature_bias=np.zeros(d),
        covariance=covariance,
        persistent_bias=np.full(d, np.nan),
        interval=None,
        left_out=law.left_out if stable else math.nan,
        transition=np.full((d, d), np.nan),
        offset=np.full(d, np.nan),
        jacobians=joint.problem.affine_parts()[0],
        problem=joint.problem,
        algorithm=algorithm,
        law=law,
        radius_at=lambda algorithm: None,
    )

"""Predictions for any method with affine exchanges whose noise is known, from the law of these exchanges."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._linear import spectral_radius
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..prediction import Prediction, undecided, unstable
from ..stability import Limit, first_crossing, largest_mean_square_step, with_step
from .curvature import BentLaw, bent_law
from .federation import Federation
from .finite import finite_law
from .first_order import noise_is_known
from .markov import sites_law
from .moments import NotDerivedError, Radius, TooLargeError
from .sites import EverySiteLaw, SitesLaw

EACH, LONG = 2.0**26, 8
"""The time of the pieces for another step size, in multiplications, and the number of observations in a round above
which it grows with their number."""


@dataclasses.dataclass(frozen=True, repr=False)
class ChainsPrediction(Prediction):
    """A prediction from exchanges; `transition` and `offset` are those of all that the method carries."""

    law: SitesLaw | BentLaw = dataclasses.field(repr=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    mean_radius_at: Callable[[AbstractAlgorithm], float] = dataclasses.field(repr=False)
    """A function from the algorithm with another step size to the factor of its mean error per round without noise."""

    @functools.cached_property
    def max_step_size(self) -> Limit:
        """The smallest step size at which the method diverges; NaN if it has no single step size.

        The attribute `kind` of the result states whether it refers to the mean or to the mean square.
        """
        if with_step(self.algorithm, 1.0) is None:
            return Limit(math.nan, "mean", "no step at all")

        def excess(steps: np.ndarray) -> np.ndarray:
            return np.array([self.mean_radius_at(with_step(self.algorithm, step)) - 1 for step in steps])

        own = getattr(self.algorithm.layers[-1], "step_size", None)
        each = EACH * len(self.law.federation.rounds) * max(self.algorithm.block_length / LONG, 1.0)
        mean = first_crossing(excess, self.jacobians, self.algorithm.block_length, own, each)
        if self.radius_at is None:
            return Limit(mean, self.stability, mean.scanned)
        return largest_mean_square_step(self.algorithm, self.radius_at, mean)

    @property
    def max_local_steps(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None, since it is unknown."""
        return None


def predict_on_chains(problem: Problem, algorithm: AbstractAlgorithm) -> ChainsPrediction | None:
    """Predicts a method on finite chains, with additive noise or without; None without a law or if it would take long.

    If the operators are not affine, they are averaged over the long run of finite chains.
    """
    if not noise_is_known(problem) or (finite_law(problem.agents.source) is None and not problem.affine):
        return None
    try:
        law = sites_law(problem, algorithm) if problem.affine else bent_law(problem, algorithm, sites_law)
    except (NotDerivedError, TooLargeError):
        return None
    federation, d = law.federation, problem.dim
    quiet = federation.noiseless()
    transition, offset = quiet.mean_round()
    limit = quiet.show @ np.linalg.lstsq(np.eye(len(transition)) - transition, offset)[0]
    stable, unknown = law.stable(), np.full(d, np.nan)
    found: dict[str, Any] = {"basis": law.basis, "law": law, "interval": None, "problem": problem}
    found |= {"jacobians": problem.jacobians(problem.root), "transition": transition, "offset": offset}
    homogeneous = EverySiteLaw(quiet) if federation.added else law  # added noise does not affect the radius
    radius_at = None if law.additive else functools.partial(_radius_at, problem, homogeneous)
    found |= {"algorithm": algorithm, "radius_at": radius_at}
    found |= {"mean_radius_at": functools.partial(_mean_radius_at, quiet)}
    if stable is None:
        return ChainsPrediction(**found | undecided(d))
    if not stable or not spectral_radius(transition) < 1:
        return ChainsPrediction(**found | unstable(d), left_out=law.left_out if law.basis == "exact" else math.nan)
    (linear, covariance), mean = law.affine.stationary(), law.stationary().mean
    linear, mean = (limit, limit) if law.additive else (linear, mean)
    biases = {"heterogeneity_bias": limit, "markov_bias": linear - limit, "curvature_bias": mean - linear}
    persistent = limit if law.additive else unknown
    return ChainsPrediction(
        **found, **biases, left_out=law.left_out, stable=True, covariance=covariance, persistent_bias=persistent
    )


def _radius_at(problem: Problem, law: SitesLaw | BentLaw, algorithm: AbstractAlgorithm) -> Radius | None:
    """Returns the mean-square radius at another step size; None if it would take long."""
    return sites_law(problem, algorithm, law.federation).mean_square_radius() if law.quick else None


def _mean_radius_at(quiet: Federation, algorithm: AbstractAlgorithm) -> float:
    return min(spectral_radius(quiet.at(algorithm).mean_round()[0]), 1e100)

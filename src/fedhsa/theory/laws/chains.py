"""Predictions for any method with affine exchanges whose noise is known, from the law of these exchanges."""

import functools
import math

import numpy as np

from ..._linear import spectral_radius
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ..maps.rounds import RoundMap
from ..prediction import Prediction, settled, undecided, unstable
from ..stability import Limit, first_crossing, with_step
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


def predict_on_chains(problem: Problem, algorithm: AbstractAlgorithm) -> Prediction | None:
    """Predicts a method on finite chains, with additive noise or without; None without a law or if it would take long.

    If the operators are not affine, they are averaged over the long run of finite chains.
    """
    if not noise_is_known(problem) or (finite_law(problem.agents.source) is None and not problem.affine):
        return None
    try:
        law = sites_law(problem, algorithm) if problem.affine else bent_law(problem, algorithm, sites_law)
    except (NotDerivedError, TooLargeError):
        return None
    federation = law.federation
    quiet = federation.noiseless()
    map = RoundMap(*quiet.mean_round())
    limit = quiet.show @ np.linalg.lstsq(np.eye(len(map.offset)) - map.transition, map.offset)[0]
    homogeneous = EverySiteLaw(quiet) if federation.added else law  # added noise does not affect the radius
    radius_at = None if law.additive else functools.partial(_radius_at, problem, homogeneous)
    A = problem.jacobians(problem.root)
    mean_limit = functools.partial(_mean_limit, quiet, algorithm, A, len(federation.rounds))
    found = undecided(problem, algorithm, law, map, A, radius_at, mean_limit)
    if (stable := law.stable()) is None:
        return found
    if not stable or not spectral_radius(map.transition) < 1:
        return unstable(found, law.left_out if law.basis == "exact" else math.nan)
    (linear, covariance), mean = law.affine.stationary(), law.stationary().mean
    linear, mean = (limit, limit) if law.additive else (linear, mean)
    persistent = limit if law.additive else np.full(problem.dim, np.nan)
    return settled(found, limit, linear - limit, mean - linear, covariance, persistent, law.left_out)


def _radius_at(problem: Problem, law: SitesLaw | BentLaw, algorithm: AbstractAlgorithm) -> Radius | None:
    """Returns the mean-square radius at another step size; None if it would take long."""
    return sites_law(problem, algorithm, law.federation).mean_square_radius() if law.quick else None


def _mean_limit(quiet: Federation, algorithm: AbstractAlgorithm, A: np.ndarray, kinds_of_rounds: int) -> Limit:
    """Returns the smallest step size at which the mean diverges; NaN if the method has no single step size."""
    if with_step(algorithm, 1.0) is None:
        return Limit(math.nan, "mean", "no step at all")

    def growth(step: float) -> float:
        return min(spectral_radius(quiet.at(with_step(algorithm, step)).mean_round()[0]), 1e100) - 1

    own = getattr(algorithm.layers[-1], "step_size", None)
    each = EACH * kinds_of_rounds * max(algorithm.block_length / LONG, 1.0)
    return first_crossing(lambda steps: np.array([growth(s) for s in steps]), A, algorithm.block_length, own, each)

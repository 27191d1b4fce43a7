"""What will happen, before anything runs: an algorithm on a problem, from exact laws, expansions or samples."""

import contextlib
import functools
from typing import NamedTuple

import numpy as np

from .._linear import spectral_radius
from .._types import SeedLike
from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from ..sources import Silent
from . import exact
from .laws.carried import predict_carried
from .laws.expansion import expansion
from .laws.finite import check_exogenous, finite_law
from .laws.first_order import bias_of, covariance_of, noise_is_known
from .laws.moments import AbstractLaw, TooLargeError
from .laws.reported import predict_reported
from .maps.linearise import LinearisedAgent, curvature, linearised
from .maps.rounds import LocalRule, RoundMap, check_schedule, limit_error, local_rule
from .prediction import Prediction
from .samples.estimate import Estimates, estimate


def predict(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    *,
    samples: int | None = None,
    key: SeedLike = 0,
) -> Prediction:
    r"""What `algorithm` will do on `problem`.

    Exact without noise, with additive VAR(1) noise and for independent observations of finite chains; to second order
    in the noise on Markov chains with finitely many states; elsewhere from `samples` observations of every agent.
    Nonlinear operators are linearised at the root, and what their curvature does to the mean is added.

    All this for FedHSA, LocalSA, SynchronisedSA and SA. For every other method whose rounds are affine it gives
    stability, rate and limit of the mean, and under additive VAR(1) noise everything, unless it has a coin, its first
    round differs from the others, or it carries more than 600 numbers.

    **Arguments:**

    - `samples`, `key`: how many observations, and which, where the sources can only be sampled. See `estimate`.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=4, dim=2, laziness=0.5)
        >>> prediction = predict(problem, fedhsa.FedHSA(0.05, local_steps=5))
        >>> prediction.stable, prediction.basis
        (True, 'expansion')
        >>> runs = fedhsa.simulate(problem, fedhsa.FedHSA(0.05, local_steps=5), rounds=600, seeds=50)
        >>> bool(0.9 < runs.error[:, 300:].mean() / prediction.floor < 1.1)
        True
    """
    check_schedule(algorithm)
    algorithm.check(problem)
    check_exogenous(problem)
    again = functools.partial(predict, samples=samples, key=key)
    if (reported := predict_reported(problem, algorithm, again)) is not None:
        return reported
    rule = local_rule(algorithm)
    if rule is None:
        return predict_carried(problem, algorithm, samples=samples, key=key)
    if noise_is_known(problem):
        A, map, long_run, law = _from_knowledge(problem, algorithm, rule)
        basis = "exact" if law is not None and problem.affine else "expansion"
    else:
        estimates = estimate(problem, samples=samples, key=key)
        A, long_run = estimates.jacobians, _from_samples(problem, rule, estimates)
        map = RoundMap(rule.transition(A), rule.offset(A, estimates.residuals), None)
        basis, law = "samples", None
    stable = long_run is not None
    if long_run is None:
        nowhere, nothing = np.full(problem.dim, np.inf), np.zeros(problem.dim)
        long_run = _LongRun(nowhere, nothing, nothing, np.diag(nowhere), nowhere)
    return Prediction(
        basis=basis,
        stable=stable,
        transition=map.transition,
        offset=map.offset,
        jacobians=A,
        problem=problem,
        algorithm=algorithm,
        law=law,
        **long_run._asdict(),
    )


class _LongRun(NamedTuple):
    """Bias, by its causes, and covariance of the error in the long run."""

    heterogeneity_bias: np.ndarray
    markov_bias: np.ndarray
    curvature_bias: np.ndarray
    covariance: np.ndarray
    persistent_bias: np.ndarray
    interval: tuple[float, float] | None = None


def _from_knowledge(
    problem: Problem, algorithm: AbstractAlgorithm, rule: LocalRule
) -> tuple[np.ndarray, RoundMap, _LongRun | None, AbstractLaw | None]:
    model = linearised(problem)
    A, b = model.affine_parts()
    residuals = A @ problem.root - b
    map = RoundMap(rule.transition(A), rule.offset(A, residuals), None)
    if not spectral_radius(map.transition) < 1:
        return A, map, None, None
    law = _law(model, algorithm, rule, A, residuals, map)
    if law is not None:
        return A, map, _from_law(law, limit_error(map, algorithm)), law
    found = expansion(model, algorithm)
    curved = -np.linalg.solve(A.mean(0), curvature(problem, found.covariance))
    persistent = found.heterogeneity_bias + found.persistent_bias
    long_run = _LongRun(found.heterogeneity_bias, found.markov_bias, curved, found.covariance, persistent)
    return A, map, long_run, None


def _law(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    rule: LocalRule,
    A: np.ndarray,
    residuals: np.ndarray,
    map: RoundMap,
) -> AbstractLaw | None:
    """The exact law of affine agents, where it has one that is quick at any size; products of chains are not."""
    finite = finite_law(problem.agents.source)
    if isinstance(problem.agents, LinearisedAgent) and finite is not None:
        return None  # the expansion knows what curvature adds
    if finite is not None and not finite.independent:
        return None
    with contextlib.suppress(TooLargeError):
        silent = isinstance(problem.agents.source, Silent)
        return exact.law(problem, algorithm, map if silent else rule.round_map(A, residuals))
    return None


def _from_law(law: AbstractLaw, heterogeneity: np.ndarray) -> _LongRun | None:
    try:
        mean, covariance = law.stationary()
    except ValueError:  # stable in the mean, but not in the mean square
        return None
    nothing = np.zeros_like(mean)
    return _LongRun(heterogeneity, mean - heterogeneity, nothing, covariance, heterogeneity)


def _from_samples(problem: Problem, rule: LocalRule, estimates: Estimates) -> _LongRun | None:
    def from_estimates(estimates: Estimates) -> _LongRun:
        A, lagged = estimates.jacobians, estimates.lagged[:, 1:]
        residuals = estimates.residuals - estimates.residuals.mean(0)  # at the root they average to zero
        heterogeneity, A_bar = rule.limit_error(A, residuals), A.mean(0)
        shares = (1 / problem.num_agents, 0.0)
        markov, persistent = (bias_of(A_bar, lagged, lagged.sum(1), rule, share) for share in shares)
        covariance = covariance_of(A_bar, estimates.long_run, rule)
        return _LongRun(heterogeneity, markov, np.zeros(problem.dim), covariance, heterogeneity + persistent)

    def floor(estimates: Estimates) -> float:
        found = from_estimates(estimates)
        bias = found.heterogeneity_bias + found.markov_bias
        return float(bias @ bias + np.trace(found.covariance))

    if not spectral_radius(rule.transition(estimates.jacobians)) < 1:
        return None
    _, low, high = estimates.interval(floor)
    return from_estimates(estimates)._replace(interval=(max(float(low), 0.0), float(high)))

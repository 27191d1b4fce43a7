"""What will happen, before anything runs: an algorithm on a problem, from its law or from samples."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from .._linear import spectral_radius
from .._types import SeedLike
from ..algorithms import AbstractAlgorithm, Stages
from ..problems import Problem
from ..sources import Silent
from . import exact
from .laws.carried import predict_carried
from .laws.curvature import CurvedLaw, curved_law
from .laws.finite import check_exogenous, finite_law
from .laws.first_order import bias_of, covariance_of, noise_is_known
from .laws.markov import markov_law
from .laws.moments import AbstractLaw, Moments, Radius, RelaxationLaw, TooLargeError
from .laws.replies import predict_replies
from .laws.reported import predict_reported
from .laws.unbiased import predict_unbiased
from .maps.linearise import linearised
from .maps.rounds import LocalRule, RoundMap, check_schedule, local_rule, require_rule
from .prediction import Prediction
from .samples.estimate import Estimates, estimates_of
from .staged import staged

MUCH, BENT = 0.03, 0.1
"""From which estimated relative error on a prediction carries a warning: of affine operators, and of curved ones."""
HOPELESS = 1e100
"""Rounds that grow so much without noise diverge, and their moments overflow."""


class PredictionWarning(UserWarning):
    """A prediction may be off by more than a few per cent."""


def predict(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    *,
    samples: int | Estimates | None = None,
    key: SeedLike = 0,
) -> Prediction:
    r"""What `algorithm` will do on `problem`.

    Exact without noise, with additive VAR(1) noise, for independent observations of finite chains, and for Markov
    chains whose product is small or whose agents are equal. On other finite chains from the law of each agent, with
    pairs of agents where these are few; elsewhere from `samples` observations of every agent. `basis` says which, and
    `left_out` how far off it may be; from 3 % on a `PredictionWarning` says so. Nonlinear operators are averaged over
    where the agents are inside their rounds, and then linearised: a warning says where that may be off by 10 %.

    All this for FedHSA, LocalSA, SynchronisedSA and SA; also where some agents are absent (`Partial`), replies are lost
    or fade (`Lossy`, `OverTheAir`) or are coded by `RandK`: exactly but for Markov chains, whose noise is then taken at
    the root. For every other method whose rounds are affine it gives stability, rate and limit of the mean, under
    additive VAR(1) noise everything, and on finite chains the floor as if the noise were additive, unless it has a
    coin, its first round differs from the others, or it carries more than 600 numbers. `Averaged`, `GeometricAverage`
    and `RichardsonRomberg` around any of these: what they report. Steps may change in `Stages`.

    **Arguments:**

    - `samples`, `key`: how many observations, and which, where the sources can only be sampled. Or what `estimate`
      made of them, to predict many algorithms from the same.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=4, dim=2, laziness=0.5)
        >>> prediction = predict(problem, fedhsa.FedHSA(0.05, local_steps=5))
        >>> prediction.stable, prediction.basis
        (True, 'exact')
        >>> runs = fedhsa.simulate(problem, fedhsa.FedHSA(0.05, local_steps=5), rounds=600, seeds=50)
        >>> bool(0.9 < runs.error[:, 300:].mean() / prediction.floor < 1.1)
        True
    """
    found = _predict(problem, algorithm, samples=samples, key=key)
    for sentence in _doubts(found):
        warnings.warn(sentence, PredictionWarning, stacklevel=2)
    return found


def _predict(
    problem: Problem, algorithm: AbstractAlgorithm, *, samples: int | Estimates | None, key: SeedLike
) -> Prediction:
    schedule = getattr(algorithm, "step_size", None)
    if isinstance(schedule, Stages):
        known = samples if noise_is_known(problem) else estimates_of(problem, samples, key)
        stages = [dataclasses.replace(cast(Any, algorithm), step_size=float(step)) for step in schedule.step_sizes]
        return staged(algorithm, schedule, [_predict(problem, stage, samples=known, key=key) for stage in stages])
    check_schedule(algorithm)
    algorithm.check(problem)
    check_exogenous(problem)
    again = functools.partial(_predict, samples=samples, key=key)
    if (reported := predict_reported(problem, algorithm, again)) is not None:
        return reported
    if (partial := predict_replies(problem, algorithm, again)) is not None:
        return partial
    if (coded := predict_unbiased(problem, algorithm, again)) is not None:
        return coded
    rule = local_rule(algorithm)
    if rule is None:
        return predict_carried(problem, algorithm, samples=samples, key=key)
    if noise_is_known(problem):
        found = _from_knowledge(problem, algorithm, rule)
    else:
        found = _from_samples(problem, rule, estimates_of(problem, samples, key))
    return Prediction(problem=problem, algorithm=algorithm, **found)


def law_of(problem: Problem, algorithm: AbstractAlgorithm, map: RoundMap | None = None) -> AbstractLaw:
    """The best law of affine agents whose noise is known; `map` is their round without it, where it is at hand."""
    finite, rule = finite_law(problem.agents.source), require_rule(algorithm)
    A, b = problem.affine_parts()
    residuals = A @ problem.root - b
    map = rule.mean_map(A, residuals) if map is None else map
    if isinstance(problem.agents.source, Silent) or not np.abs(map.transition).max() < HOPELESS:
        return exact.NoiselessLaw(problem, algorithm, map)
    if finite is not None and not finite.independent:
        return markov_law(problem, algorithm, map)
    try:
        return exact.law(problem, algorithm, rule.round_map(A, residuals))
    except TooLargeError:
        return markov_law(problem, algorithm, map)


def _from_knowledge(problem: Problem, algorithm: AbstractAlgorithm, rule: LocalRule) -> dict[str, Any]:
    model = linearised(problem)
    A, b = model.affine_parts()
    residuals = A @ problem.root - b
    map = rule.mean_map(A, residuals)
    law = law_of(problem, algorithm, map) if problem.affine else curved_law(problem, algorithm, law_of)
    heterogeneity, curved = map.limit_error(), np.zeros(problem.dim)
    found = {"basis": law.basis, "left_out": math.nan, "interval": None, "law": law, "jacobians": A}
    found |= {"transition": map.transition, "offset": map.offset, "radius_at": _radius_at(model, law)}
    try:
        mean, covariance = law.stationary()
    except ValueError:
        return found | unstable(problem.dim)
    persistent, left_out = law.persistent_bias(), law.left_out
    if isinstance(law, CurvedLaw):
        heterogeneity, curved = law.heterogeneity_bias, law.curvature_bias
    elif not problem.affine:
        left_out = math.nan
    return found | {
        "left_out": left_out,
        "stable": True,
        "heterogeneity_bias": heterogeneity,
        "markov_bias": mean - heterogeneity - curved,
        "curvature_bias": curved,
        "covariance": covariance,
        "persistent_bias": heterogeneity if persistent is None else persistent,
    }


def _doubts(found: Prediction) -> Iterator[str]:
    """Why the floor may be off by more than it should."""
    law, name, kind = found.law, type(found.algorithm).__name__, type(found.problem.agents).__name__
    affine = law.law if isinstance(law, CurvedLaw) else found
    if found.stable and found.basis == "samples" and found.left_out > MUCH:
        yield (
            f"The floor of {name} may be off by {found.left_out:.0%}, besides its interval: what is known from samples "
            "alone is predicted to first order in the step. A smaller step or fewer local steps make it better."
        )
    elif found.stable and affine.left_out > MUCH:
        yield (
            f"The floor of {name} may be off by {affine.left_out:.0%}: the noise in the operators' matrices is strong "
            f"or sticky, and the law that was used ({affine.basis}) leaves out what only more of the agents' chains "
            "together would show. A smaller step or more agents make it better."
        )
    if found.stable and isinstance(law, CurvedLaw) and law.bend > BENT:
        yield (
            f"The floor of {name} may be off by {law.bend:.0%}: inside a round the agents spread so far that the "
            f"average slope of {kind} is not that at the root. A smaller step or fewer local steps make it better."
        )
    known = isinstance(law, CurvedLaw) or found.problem.affine or not noise_is_known(found.problem)
    if found.stable and not known and local_rule(found.algorithm) is not None:
        yield (
            f"What the curvature of {kind} does to the floor of {name} is not known: there are too many observations "
            "to average over, or the mean does not settle. The problem was linearised at its root."
        )


def _radius_at(problem: Problem, law: AbstractLaw) -> Callable[[AbstractAlgorithm], Radius | None] | None:
    """The mean-square radius at other steps; it is known of the mean alone where that would take long."""
    if law.additive:
        return None
    return (lambda algorithm: law_of(problem, algorithm).mean_square_radius()) if law.quick else lambda algorithm: None


def _from_samples(problem: Problem, rule: LocalRule, estimates: Estimates) -> dict[str, Any]:
    """To first order in the step."""

    def biases(estimates: Estimates) -> tuple[np.ndarray, ...]:
        A, lagged = estimates.jacobians, estimates.lagged[:, 1:]
        residuals = estimates.residuals - estimates.residuals.mean(0)  # at the root they average to zero
        shares = (1 / problem.num_agents, 0.0)
        markov, persistent = (bias_of(A.mean(0), lagged, lagged.sum(1), rule, share) for share in shares)
        return rule.limit_error(A, residuals), markov, persistent, covariance_of(A.mean(0), estimates.long_run, rule)

    def floor(estimates: Estimates) -> float:
        heterogeneity, markov, _, covariance = biases(estimates)
        return float((heterogeneity + markov) @ (heterogeneity + markov) + np.trace(covariance))

    A = estimates.jacobians
    transition, offset = rule.transition(A), rule.offset(A, estimates.residuals)
    heterogeneity, markov, persistent, covariance = biases(estimates)
    left_out = np.linalg.norm(np.eye(len(transition)) - transition, 2) / 2  # the next order in the step
    moments = Moments(heterogeneity + markov, covariance)
    law = RelaxationLaw(transition, moments, basis="samples", left_out=float(min(left_out, 1.0)))
    found = {"basis": law.basis, "left_out": law.left_out, "interval": None, "law": law, "jacobians": A}
    found |= {"transition": transition, "offset": offset, "radius_at": lambda algorithm: None}
    if not spectral_radius(transition) < 1:
        return found | unstable(problem.dim)
    _, low, high = estimates.interval(floor)
    return found | {
        "stable": True,
        "heterogeneity_bias": heterogeneity,
        "markov_bias": markov,
        "curvature_bias": np.zeros(problem.dim),
        "covariance": covariance,
        "persistent_bias": heterogeneity + persistent,
        "interval": (max(float(low), 0.0), float(high)),
    }


def unstable(dim: int) -> dict[str, Any]:
    """What is said of the long run of a method that has none."""
    nowhere, nothing = np.full(dim, np.inf), np.zeros(dim)
    return {
        "stable": False,
        "heterogeneity_bias": nowhere,
        "markov_bias": nothing,
        "curvature_bias": nothing,
        "covariance": np.diag(nowhere),
        "persistent_bias": nowhere,
    }

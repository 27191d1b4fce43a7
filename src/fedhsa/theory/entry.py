"""`predict`: predicts an algorithm on a problem, from the law of its error or from samples."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator

import numpy as np

from .._linear import spectral_radius
from .._types import SeedLike
from ..algorithms import AbstractAlgorithm, AbstractSchedule, PerBlock
from ..problems import Problem
from ..problems.base import AffineAgent
from ..sources import Silent
from .changing import predict_changing, predict_per_block
from .exact import quiet
from .laws.agents import check_exogenous, noise_is_known
from .laws.averages import average_of, split
from .laws.first_order import bias_of, covariance_of
from .laws.law import law_of
from .laws.levels import LinearLaw
from .laws.moments import MUCH as MUCH
from .laws.moments import TOO_MUCH_OF_TRIPLES, AbstractLaw, Moments, NotDerivedError, RelaxationLaw, TooLargeError
from .laws.nonlinear import NonlinearLaw, linearised, nonlinear_law, quiet_law
from .laws.played import PlayedLaw
from .prediction import Prediction
from .rule import LocalRule, local_rule
from .samples.estimate import Estimates, estimates_of
from .steps import check_schedule, step_of

BENT = 0.1
"""The estimated relative error above which a prediction for nonlinear operators warns."""
UNCLEAR = 0.5
"""The share of noise in the matrices above which a prediction from samples says nothing."""


class PredictionWarning(UserWarning):
    """Warns that a prediction may be inaccurate by more than a few per cent."""


def predict(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    *,
    samples: int | Estimates | None = None,
    key: SeedLike = 0,
) -> Prediction:
    r"""Predicts the behaviour of `algorithm` on `problem`: stability, rate, bias, noise floor and error curve.

    The prediction is exact without noise, with additive VAR(1) noise, for independent observations of finite chains,
    and for Markov chains whose product is small or whose agents are equal. On other finite chains it comes from the law
    of each agent, and of pairs of agents if these are few. For all other sources it is estimated from `samples`
    observations of every agent. The field `basis` states which of these applies, and `left_out` estimates the relative
    error of the floor; above 3 % there is a `PredictionWarning`. Close to the edge of stability, where the law of a few
    agents and the joint noise of all agents disagree, or where pairs of agents suggest that much is left out,
    `stable` is None and there is no floor. Nonlinear operators are averaged over the distribution of the agents inside
    their rounds and then linearised, with a warning if this may cause an error above 10 %.

    All of this holds for every method whose rounds are affine, a class of your own included: its law is derived from
    its exchanges, with coins, absent agents (`Partial`), and replies that are lost, fade, are late or are compressed
    (`Lossy`, `OverTheAir`, `Delayed`, `RandK`). For codes, and for more than 64 sets of agents, the noise of Markov
    chains is evaluated at the root. Methods other than FedHSA, LocalSA, SynchronisedSA and SA that carry too much, or
    have more than 64 agents on chains, get the stability, rate and limit of their mean alone. For `Averaged` and
    `GeometricAverage` around any of these, the prediction is for the reported parameter. Step sizes may follow any
    schedule; if they decrease for ever, there is an error curve and no floor.

    **Arguments:**

    - `problem`: the problem.
    - `algorithm`: the algorithm with all its settings.
    - `samples`: the number of observations if the sources can only be sampled; or the result of `estimate`, to predict
      many algorithms from the same observations.
    - `key`: the key of these observations.

    **Returns:** a `Prediction`, which prints as a table.

    Raises `TypeError` if nothing can be predicted for this algorithm on this problem, for example because its rounds
    are not affine.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=3, num_states=4, dim=2, laziness=0.5)
        >>> prediction = predict(problem, fedhsa.FedHSA(0.05, local_steps=5))
        >>> prediction.stable, prediction.basis
        (True, 'exact')
        >>> runs = fedhsa.simulate(problem, fedhsa.FedHSA(0.05, local_steps=5), rounds=600, seeds=50)
        >>> bool(0.9 < runs.error[:, 300:].mean() / prediction.floor < 1.1)
        True
    """
    with np.errstate(over="ignore", invalid="ignore"):  # far beyond the stable step sizes moments may overflow
        found = _predict(problem, algorithm, samples=samples, key=key)
    for sentence in _doubts(found):
        warnings.warn(sentence, PredictionWarning, stacklevel=2)
    return found


def _predict(
    problem: Problem, algorithm: AbstractAlgorithm, *, samples: int | Estimates | None, key: SeedLike
) -> Prediction:
    algorithm.check(problem)
    check_exogenous(problem)
    schedule, again = step_of(algorithm), functools.partial(_predict, samples=samples, key=key)
    if isinstance(schedule, PerBlock):
        return predict_per_block(problem, algorithm, schedule, again)
    if isinstance(schedule, AbstractSchedule):
        known = samples if noise_is_known(problem) else estimates_of(problem, samples, key)
        return predict_changing(algorithm, schedule, functools.partial(_predict, problem, samples=known, key=key))
    check_schedule(algorithm)
    average, method = split(algorithm)
    if average is not None:
        return _averaged(algorithm, average, again(problem, method))
    if not noise_is_known(problem):
        estimates, rule = estimates_of(problem, samples, key), local_rule(algorithm)
        if rule is not None:
            return _from_samples(problem, algorithm, rule, estimates)
        return _of_mean(problem, algorithm, _mean_problem(problem, estimates), "mean")
    try:
        law = law_of(problem, algorithm) if problem.affine else nonlinear_law(problem, algorithm)
    except (NotDerivedError, TooLargeError):
        exact = isinstance(problem.agents.source, Silent) and problem.affine
        return _of_mean(problem, algorithm, linearised(problem), "exact" if exact else "mean")
    return _of_law(problem, algorithm, law)


def _of_law(problem: Problem, algorithm: AbstractAlgorithm, law: AbstractLaw) -> Prediction:
    """Returns what follows from the law of a method."""
    silent = quiet_law(law.affine)  # pyright: ignore[reportArgumentType]
    found = _undecided(problem, algorithm, law, silent)
    if (stable := law.stable()) is None:
        return found
    if not stable or not silent.mean_radius() < 1:
        return _unstable(found, law.left_out if law.basis == "exact" else math.nan)
    (mean, covariance), limit = law.stationary(), silent.stationary().mean
    curved = np.zeros(problem.dim)
    if isinstance(law, NonlinearLaw):
        curved, limit = limit + law.shift - law.limit, law.limit
    persistent = law.persistent_bias()
    return dataclasses.replace(
        found,
        stable=True,
        heterogeneity_bias=limit,
        markov_bias=np.zeros(problem.dim) if law.affine.additive else mean - limit - curved,
        curvature_bias=curved,
        covariance=covariance,
        persistent_bias=found.persistent_bias if persistent is None else persistent,
        left_out=law.left_out,
    )


def _undecided(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    law: AbstractLaw,
    silent: LinearLaw | None,
    jacobians: np.ndarray | None = None,
) -> Prediction:
    """Returns the prediction for a method that may be unstable; `silent` is its law without noise."""
    nan, nothing = np.full(problem.dim, np.nan), (np.empty((0, 0)), np.empty(0))
    map = nothing if silent is None else (silent.A, silent.c)
    jacobians = problem.jacobians(problem.root) if jacobians is None else jacobians
    return Prediction(
        law.basis, None, nan, nan, nan, np.diag(nan), nan, None, math.nan, *map, jacobians, problem, algorithm, law
    )


def _unstable(found: Prediction, left_out: float = math.nan) -> Prediction:
    """Returns the prediction if the method diverges."""
    nothing, nowhere = np.zeros(found.problem.dim), np.full(found.problem.dim, np.inf)
    return dataclasses.replace(
        found,
        stable=False,
        heterogeneity_bias=nowhere,
        markov_bias=nothing,
        curvature_bias=nothing,
        covariance=np.diag(nowhere),
        persistent_bias=nowhere,
        left_out=left_out,
    )


def _averaged(algorithm: AbstractAlgorithm, average: AbstractAlgorithm, inner: Prediction) -> Prediction:
    """Returns the prediction for a reported average of a method."""
    known = dataclasses.replace(inner, algorithm=algorithm, inner=inner, course="average")
    if not inner.stable:
        return known
    law = average_of(inner.law, average, inner.transition)  # pyright: ignore[reportArgumentType]
    # If only the mean is known, the contribution of noise is NaN and remains NaN.
    covariance = inner.covariance if np.isnan(inner.covariance).any() else law.stationary().covariance
    return dataclasses.replace(known, law=law, left_out=law.left_out, covariance=covariance)


def _mean_problem(problem: Problem, found: Estimates) -> Problem:
    """Returns the estimated mean operators without noise."""
    b = found.jacobians @ problem.root - found.residuals + found.residuals.mean(0)
    agents = AffineAgent(Silent(), found.jacobians, b)
    return Problem(agents, like=np.zeros(problem.dim), theta_star=problem.root)


def _of_mean(problem: Problem, algorithm: AbstractAlgorithm, model: Problem, basis: str) -> Prediction:
    """Predicts a method on mean operators, which is everything if there is no noise."""
    try:
        law: AbstractLaw = quiet(model, algorithm)
    except NotDerivedError:
        if basis != "exact":
            raise
        law = PlayedLaw(problem, algorithm)
        found, nothing = _undecided(problem, algorithm, law, None), np.zeros(problem.dim)
        try:
            mean, covariance = law.stationary()
        except ValueError:
            return _unstable(found)
        long_run = {"heterogeneity_bias": mean, "markov_bias": nothing, "curvature_bias": nothing}
        return dataclasses.replace(found, stable=True, **long_run, covariance=covariance, left_out=law.left_out)
    assert isinstance(law, LinearLaw)
    law.basis = basis if len(law.federation.pieces.rounds) == 1 else "mean"
    found = _undecided(problem, algorithm, law, law)
    if not law.mean_radius() < 1:
        return _unstable(found)
    mean, unknown, nothing = law.persistent_bias(), np.full(problem.dim, np.nan), np.zeros(problem.dim)
    noise = nothing if law.basis == "exact" else unknown
    return dataclasses.replace(
        found,
        stable=True,
        heterogeneity_bias=mean,
        markov_bias=noise,
        curvature_bias=nothing if problem.affine else unknown,
        covariance=np.diag(noise),
        persistent_bias=mean,
        left_out=0.0 if law.basis == "exact" else math.nan,
    )


def _doubts(found: Prediction) -> Iterator[str]:
    """Yields the reasons why the floor may be inaccurate."""
    law, name, kind = found.law, type(found.algorithm).__name__, type(found.problem.agents).__name__
    radius = law.mean_square_radius() if found.stable is None else None
    if found.stable is None and found.basis == "samples":
        yield (
            f"Whether {name} is stable is unknown: the noise in the operators' matrices is strong or slowly mixing, "
            "and predictions from samples are of first order in the step size. No floor is given. Use a smaller step "
            "size."
        )
    elif radius is not None and radius.stable is None:
        yield (
            f"Whether {name} is stable is unknown: by the law of a few agents the mean-square error is multiplied by "
            f"{radius.value:.4g} per round, but by {radius.highest:.4g} in the joint noise of all agents. No floor is "
            "given. Use a smaller step size."
        )
    elif found.stable is None and law.affine.left_out > TOO_MUCH_OF_TRIPLES:
        size = f"{law.affine.left_out:.0%}" if law.affine.left_out <= 1 else "more than 100%"
        yield (
            f"Whether {name} is stable is unknown: the law that was used ({law.affine.basis}) may leave out {size} of "
            "the floor, and the joint effects of more agents may be larger still. No floor is given. Use a smaller "
            "step size."
        )
    elif found.stable is None:
        yield (
            f"Whether {name} is stable is unknown: the law that was used ({law.basis}) cannot tell. No floor is given. "
            "Use a smaller step size."
        )
    affine = found if law.affine is law else law.affine
    if found.stable and found.basis == "samples" and found.noise_variance == 0:
        yield f"The floor of {name} is 0 if there is no noise: the samples contain none. More of them would tell."
    if found.stable and found.basis == "samples" and found.left_out > MUCH:
        yield (
            f"The floor of {name} may be off by {found.left_out:.0%}, which its interval includes: predictions from "
            "samples are of first order in the step size. They improve with a smaller step size or fewer local steps."
        )
    elif found.stable and affine.left_out > MUCH:
        yield (
            f"The floor of {name} may be off by {affine.left_out:.0%}: the noise in the operators' matrices is strong "
            f"or slowly mixing, and the law that was used ({affine.basis}) neglects some joint effects of several "
            "agents' chains. The prediction is better with a smaller step size or more agents."
        )
    if found.stable and law.bend > BENT:
        yield (
            f"The floor of {name} may be off by {law.bend:.0%}: inside a round the agents spread so far that the "
            f"average slope of {kind} differs from the slope at the root. The prediction is better with a smaller step "
            "size or fewer local steps."
        )
    if found.stable and found.basis == "mean" and not found.problem.affine and noise_is_known(found.problem):
        yield (
            f"The effect of the curvature of {kind} on the floor of {name} is unknown: there are too many observations "
            "to average over, or the mean does not converge. The problem was linearised at its root."
        )


def _from_samples(problem: Problem, algorithm: AbstractAlgorithm, rule: LocalRule, estimates: Estimates) -> Prediction:
    """Predicts from estimates, to first order in the step size."""

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
    map = rule.mean_map(A, estimates.residuals)
    heterogeneity, markov, persistent, covariance = biases(estimates)
    moments = Moments(heterogeneity + markov, covariance)
    settles = spectral_radius(map.transition) < 1
    left_out = _neglected(moments, map.transition, rule, estimates) if settles else math.nan
    law = RelaxationLaw(map.transition, moments, basis="samples", left_out=left_out)
    found = dataclasses.replace(
        _undecided(problem, algorithm, law, None, A), transition=map.transition, offset=map.offset
    )
    if not settles:
        return _unstable(found)
    if not math.isfinite(left_out):
        return found
    _, low, high = estimates.interval(floor)
    interval = max(float(low), 0.0) / (1 + left_out), float(high) * (1 + left_out)
    return dataclasses.replace(
        found,
        stable=True,
        heterogeneity_bias=heterogeneity,
        markov_bias=markov,
        curvature_bias=np.zeros(problem.dim),
        covariance=covariance,
        persistent_bias=heterogeneity + persistent,
        left_out=left_out,
        interval=interval,
    )


def _neglected(moments: Moments, transition: np.ndarray, rule: LocalRule, estimates: Estimates) -> float:
    r"""Returns the relative error of a floor from samples, which is of first order in the step size.

    Three effects are neglected: the next order $y$ in the step size; noise in the matrices, a share $x$ of that which
    the error itself causes; and noise that is correlated over $\tau$ steps, which acts on an error that meanwhile
    shrinks by $a \tau$. The first two multiply the variance by $1 / (1 - x - y)$, exactly so for independent scalar
    observations and one local step. It is infinite if $x$ is so large that the method may diverge.
    """
    (mean, covariance), A_bar = moments, estimates.jacobians.mean(0)
    square, total = mean @ mean, np.trace(covariance)
    x = np.trace(covariance_of(A_bar, estimates.slopes, rule))
    y = np.linalg.norm(np.eye(len(A_bar)) - transition, 2) / 2
    if not (x < UNCLEAR and x + y < 1):
        return math.inf
    correlated = (estimates.samples / estimates.effective_samples.mean() - 1) / 2
    shrinks = -rule.server_step * rule.step_size * np.trace(A_bar @ covariance) / total if total > 0 else 0.0
    factor = (1 + abs(shrinks) * max(correlated, 0.0)) / (1 - x - y)
    spread = factor * (math.sqrt(total) + math.sqrt(x * square)) ** 2
    return float((factor**2 * square + spread) / (square + total) - 1) if square + total > 0 else 0.0

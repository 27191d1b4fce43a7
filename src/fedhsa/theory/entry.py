"""`predict`: predicts an algorithm on a problem, from the law of its error or from samples."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator

from .._types import SeedLike
from ..algorithms import AbstractAlgorithm, AbstractSchedule, PerBlock
from ..problems import Problem
from ..sources import Silent
from .changing import predict_changing, predict_per_block
from .exact import quiet
from .laws.agents import check_exogenous, noise_is_known
from .laws.averages import average_of, split
from .laws.law import law_of
from .laws.moments import MUCH as MUCH
from .laws.moments import TOO_MUCH_OF_TRIPLES, AbstractLaw, NotDerivedError, TooLargeError
from .laws.nonlinear import linearised, nonlinear_law
from .laws.played import PlayedLaw
from .prediction import Prediction, quietly
from .samples.estimate import Estimates, estimates_of
from .samples.law import SampledLaw
from .steps import check_schedule, step_of

BENT = 0.1
"""The estimated relative error above which a prediction for nonlinear operators warns."""


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
    with quietly():
        found = _predict(problem, algorithm, samples=samples, key=key)
        doubts = list(_doubts(found))
    for sentence in doubts:
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
    if average is None:
        return Prediction(problem, algorithm, _law(problem, algorithm, samples, key))
    inner = again(problem, method)
    law = average_of(inner.law, average) if inner.stable else inner.law
    return dataclasses.replace(inner, algorithm=algorithm, law=law, inner=inner, course="average")


def _law(problem: Problem, algorithm: AbstractAlgorithm, samples: int | Estimates | None, key: SeedLike) -> AbstractLaw:
    """Returns the law of a method with a constant step size."""
    if not noise_is_known(problem):
        return SampledLaw.of(problem, algorithm, estimates_of(problem, samples, key))
    try:
        return law_of(problem, algorithm) if problem.affine else nonlinear_law(problem, algorithm)
    except (NotDerivedError, TooLargeError):
        return _law_of_mean(problem, algorithm)


def _law_of_mean(problem: Problem, algorithm: AbstractAlgorithm) -> AbstractLaw:
    """Returns the law of a method on mean operators, which is everything if there is no noise."""
    exact = isinstance(problem.agents.source, Silent) and problem.affine
    try:
        law = quiet(linearised(problem), algorithm)
    except NotDerivedError:
        if not exact:
            raise
        return PlayedLaw(problem, algorithm)
    if not exact or len(law.federation.pieces.rounds) > 1:
        law.basis, law.left_out = "mean", math.nan
    return law


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
    elif found.stable is None and law.affine.leaves_out_more_than(TOO_MUCH_OF_TRIPLES):
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
    if found.stable and found.basis == "samples" and found.noise_variance == 0:
        yield f"The floor of {name} is 0 if there is no noise: the samples contain none. More of them would tell."
    if found.stable and found.basis == "samples" and found.left_out > MUCH:
        yield (
            f"The floor of {name} may be off by {found.left_out:.0%}, which its interval includes: predictions from "
            "samples are of first order in the step size. They improve with a smaller step size or fewer local steps."
        )
    elif found.stable and law.affine.leaves_out_more_than(MUCH):
        yield (
            f"The floor of {name} may be off by {law.affine.left_out:.0%}: the noise in the operators' matrices is "
            f"strong or slowly mixing, and the law that was used ({law.affine.basis}) neglects some joint effects of "
            "several agents' chains. The prediction is better with a smaller step size or more agents."
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

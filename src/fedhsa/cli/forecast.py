"""What theory says before and during a run: warnings, rounds to a target, and the predicted curves."""

import concurrent.futures
import math
import warnings
from collections.abc import Mapping

import numpy as np

from .._linear import spectral_radius
from ..algorithms import AbstractAlgorithm
from ..engine import Result
from ..problems import Problem
from ..theory import Prediction, predict
from ..theory.laws.finite import finite_law
from ..theory.laws.first_order import noise_is_known
from ..theory.laws.independent import IndependentLaw
from ..theory.maps.rounds import local_rule
from ..theory.stability import largest_local_steps, largest_step
from . import effort
from .settings import RunSettings

PATIENCE = 2.0
"""Seconds that predictions may take away from a run, compilation apart."""
PER_ROUND = 2e-4
"""Seconds per round and local step of the exact law of independent sampling, the slowest to follow."""


class Forecast:
    """Predictions of what can be predicted without sampling and without a wait.

    Those that take a compilation are made in the background while the simulation runs; what will diverge is known
    before, from the Jacobians alone.
    """

    def __init__(self, problem: Problem, algorithms: Mapping[str, AbstractAlgorithm]):
        self.problem, self.algorithms = problem, algorithms
        self.slow = not _has_quick_law(problem)
        self.futures: dict[str, concurrent.futures.Future[Prediction | None]] = {}
        if noise_is_known(problem) and effort.total(problem, algorithms.values()) <= PATIENCE:
            pool = concurrent.futures.ThreadPoolExecutor(1)
            self.futures = {name: pool.submit(_predict, problem, a) for name, a in algorithms.items()}
            pool.shutdown(wait=False)

    def predictions(self) -> dict[str, Prediction]:
        """The predictions by name, once they are all there."""
        found = {name: future.result() for name, future in self.futures.items()}
        return {name: prediction for name, prediction in found.items() if prediction is not None}

    def announce(self, settings: RunSettings) -> list[str]:
        """Warns of what will diverge or miss the target; gives sentences on how long the rest will take."""
        if settings.target is not None or not self.slow:
            return warn(self.predictions(), settings)
        A = self.problem.jacobians(self.problem.theta_star) if self.futures else None
        for name, algorithm in self.algorithms.items():
            rule = local_rule(algorithm)
            if A is not None and rule is not None and not (growth := spectral_radius(rule.transition(A))) < 1:
                warnings.warn(divergence(name, algorithm, growth, A), stacklevel=2)
        return []


def _predict(problem: Problem, algorithm: AbstractAlgorithm) -> Prediction | None:
    try:
        with np.errstate(all="ignore"):  # far beyond the stable steps numbers overflow
            return predict(problem, algorithm)
    except (TypeError, ValueError):  # theory has nothing to say: the run goes on without it
        return None


def _has_quick_law(problem: Problem) -> bool:
    """Whether predictions come from an exact law, which compiles next to nothing."""
    finite = finite_law(problem.agents.source)
    return problem.affine and (finite is None or finite.independent)


def warn(predictions: Mapping[str, Prediction], settings: RunSettings) -> list[str]:
    """Warns of what will diverge or miss the target; gives sentences on how long the rest will take."""
    sentences = []
    for name, prediction in predictions.items():
        if not prediction.stable:
            warnings.warn(explain_divergence(name, prediction), stacklevel=2)
        elif settings.target is not None:
            rounds = prediction.reach(settings.target).rounds
            if math.isinf(rounds):
                warnings.warn(out_of_reach(name, prediction, settings.target), stacklevel=2)
            elif rounds > settings.rounds:
                warnings.warn(
                    f"{name} needs about {rounds:,.0f} rounds to reach `target` {settings.target:g}, more than "
                    f"`rounds` {settings.rounds:,}.",
                    stacklevel=2,
                )
            elif prediction.basis == "mean":
                sentences.append(f"The mean of {name} should reach {settings.target:g} after {rounds:,.0f} rounds.")
            else:
                sentences.append(f"{name} should reach {settings.target:g} after {rounds:,.0f} rounds.")
    if settings.target is not None and not predictions:
        sentences.append(
            "Whether the target can be reached is not known, or takes long to predict: `fedhsa analyze` says which."
        )
    return sentences


def divergence(name: str, algorithm: AbstractAlgorithm, growth: float, jacobians: np.ndarray) -> str:
    """A sentence: that a method with this spectral radius diverges, and what to change."""
    rule, H = local_rule(algorithm), algorithm.block_length
    if rule is None:
        return f"{name} will diverge with these settings: its spectral radius is {growth:.4g}. Use a smaller step."
    local = largest_local_steps(jacobians, rule) if hasattr(algorithm, "local_steps") else None
    at = f"step {rule.step_size:g}" + (f" and {H} local steps" if local is not None else "")
    if growth < 1:
        return (
            f"{name} will diverge at {at}: its mean converges, but noise in the operators makes the mean-square error "
            "grow. Use a smaller step."
        )
    largest = largest_step(jacobians, rule)
    if not largest > 0:
        return f"{name} will diverge at {at}: no step is stable on this problem (spectral radius {growth:.4g})."
    fewer = f", or at most {local:.0f} local steps" if local and local < H else ""
    return f"{name} will diverge at {at}: its spectral radius is {growth:.4g}. Use a step below {largest:.3g}{fewer}."


def explain_divergence(name: str, prediction: Prediction) -> str:
    """The same sentence for a prediction."""
    return divergence(name, prediction.algorithm, prediction.spectral_radius, prediction.jacobians)


def out_of_reach(name: str, prediction: Prediction, target: float) -> str:
    """A sentence: that a method stops above the target, and what to change."""
    if prediction.basis == "mean":
        bias = float(prediction.heterogeneity_bias @ prediction.heterogeneity_bias)
        return f"{name} cannot reach `target` {target:g} with these settings: its mean alone stops at {bias:.3g}."
    return (
        f"{name} cannot reach `target` {target:g} with these settings: its error stops at {prediction.floor:.3g}. "
        f"`fedhsa analyze --target {target:g}` proposes settings that can."
    )


def curves(predictions: Mapping[str, Prediction], results: Mapping[str, Result]) -> tuple[dict[str, np.ndarray], str]:
    """The predicted error at the recorded rounds by name, and what to call it."""
    found, exact = {}, True
    for name, result in results.items():
        prediction = predictions.get(name)
        if prediction is None or not prediction.stable or prediction.basis == "mean":
            continue  # the mean is not what runs show
        last, law = int(result.rounds[-1]), prediction.law
        slow = isinstance(law, IndependentLaw) and last * prediction.algorithm.block_length * PER_ROUND > PATIENCE
        exact = exact and law is not None and not slow
        if last == 0 or slow:
            found[name] = np.array([prediction.error_after(int(t)) for t in result.rounds])
        else:
            found[name] = prediction.error(last)[result.rounds]
    return found, "exact law" if exact else "theory"

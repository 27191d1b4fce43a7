"""What theory says before and beside a run: warnings, rounds to a target, and the predicted curves."""

import concurrent.futures
import math
import warnings
from collections.abc import Mapping

import numpy as np

from ..algorithms import AbstractAlgorithm
from ..engine import Result
from ..problems import Problem
from ..theory import Prediction, predict
from ..theory.first_order import known
from ..theory.independent import IndependentLaw
from . import effort
from .settings import RunSettings

PATIENCE = 2.0
"""Seconds that predictions may take away from a run, compilation apart."""
PER_ROUND = 2e-4
"""Seconds per round and local step of the exact law of independent sampling, the slowest to follow."""


def forecast(problem: Problem, algorithms: Mapping[str, AbstractAlgorithm]) -> dict[str, Prediction]:
    """Predictions by name, of what can be predicted without sampling and without a wait."""
    if not known(problem) or effort.total(problem, algorithms.values()) > PATIENCE:
        return {}

    def one(algorithm: AbstractAlgorithm) -> Prediction | None:
        try:
            with np.errstate(all="ignore"):  # far beyond the stable steps numbers overflow, and may
                return predict(problem, algorithm)
        except (TypeError, ValueError):  # theory has nothing to say: the run goes on without it
            return None

    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # most of the time is compilation, which runs in parallel
        found = dict(zip(algorithms, pool.map(one, algorithms.values()), strict=True))
    return {name: prediction for name, prediction in found.items() if prediction is not None}


def warn(predictions: Mapping[str, Prediction], settings: RunSettings) -> list[str]:
    """Warns of what will diverge or miss the target; gives sentences on how long the rest will take."""
    said = []
    for name, prediction in predictions.items():
        if not prediction.stable:
            warnings.warn(divergence(name, prediction), stacklevel=2)
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
            else:
                said.append(f"{name} should reach {settings.target:g} after {rounds:,.0f} rounds.")
    if settings.target is not None and not predictions:
        said.append("Whether the target can be reached takes too long to predict here; `fedhsa analyze` does it.")
    return said


def divergence(name: str, prediction: Prediction) -> str:
    """That a method diverges, and what to change."""
    algorithm, radius, local = prediction.algorithm, prediction.spectral_radius, prediction.max_local_steps
    at = f"step {algorithm.step_size:g}"  # pyright: ignore[reportAttributeAccessIssue]
    at += f" and {algorithm.block_length} local steps" if local is not None else ""
    if radius < 1:
        return (
            f"{name} will diverge at {at}: its mean converges, but noise in the operators makes the mean-square error "
            "grow. Use a smaller step."
        )
    if not prediction.max_step_size > 0:
        return f"{name} will diverge at {at}: no step is stable on this problem (spectral radius {radius:.4g})."
    fewer = f", or at most {local:.0f} local steps" if local and local < algorithm.block_length else ""
    return (
        f"{name} will diverge at {at}: its spectral radius is {radius:.4g}. "
        f"Use a step below {prediction.max_step_size:.3g}{fewer}."
    )


def out_of_reach(name: str, prediction: Prediction, target: float) -> str:
    """That a method stops above the target, and what to change."""
    return (
        f"{name} cannot reach `target` {target:g} with these settings: its error stops at {prediction.floor:.3g}. "
        f"`fedhsa analyze --target {target:g}` proposes settings that can."
    )


def curves(predictions: Mapping[str, Prediction], results: Mapping[str, Result]) -> tuple[dict[str, np.ndarray], str]:
    """The predicted error at the recorded rounds by name, and what to call it."""
    found, exact = {}, True
    for name, result in results.items():
        prediction = predictions.get(name)
        if prediction is None or not prediction.stable:
            continue
        last, law = int(result.rounds[-1]), prediction.law
        slow = isinstance(law, IndependentLaw) and last * prediction.algorithm.block_length * PER_ROUND > PATIENCE
        exact = exact and law is not None and not slow
        if last == 0 or slow:
            found[name] = np.array([prediction.error_after(int(t)) for t in result.rounds])
        else:
            found[name] = prediction.error(last)[result.rounds]
    return found, "exact law" if exact else "theory"

"""Predictions before and during a run: warnings, rounds to a target, and the predicted curves."""

import concurrent.futures
import math
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._linear import spectral_radius
from ..algorithms import AbstractAlgorithm
from ..engine import Result, Sweep
from ..engine.sweep import pairs
from ..problems import Problem
from ..theory import Prediction
from ..theory.laws.agents import noise_is_known
from ..theory.rule import local_rule
from ..theory.stability import largest_local_steps, largest_step
from . import effort
from .analysis import predicted, result_or_reason
from .settings import RunSettings

PATIENCE = 2.0
"""Seconds that predictions may add to a run, without compilation."""
LATE = 5.0
"""Seconds that a finished run waits for predictions that take longer than expected."""


class Forecast:
    """Predictions that need no sampling, computed in the background while the simulation runs.

    Methods that will diverge are announced before the run: from the predictions that are ready by then, and otherwise
    from the Jacobians alone, which determine the mean.
    """

    def __init__(self, problem: Problem, algorithms: Mapping[str, AbstractAlgorithm]):
        self.problem, self.algorithms = problem, algorithms
        self.futures: dict[str, concurrent.futures.Future[Prediction | None]] = {}
        if noise_is_known(problem) and effort.total(problem, algorithms.values()) <= PATIENCE:
            self.futures = {name: concurrent.futures.Future() for name in algorithms}
            # A separate thread, which does not keep a finished command alive.
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        for name, future in self.futures.items():
            try:
                future.set_result(_predict(self.problem, self.algorithms[name]))
            except Exception as error:
                future.set_exception(error)

    def predictions(self) -> dict[str, Prediction]:
        """Returns the predictions by name, without predictions that take far longer than expected."""
        concurrent.futures.wait(self.futures.values(), timeout=LATE)
        found = {name: future.result() for name, future in self.futures.items() if future.done()}
        return {name: prediction for name, prediction in found.items() if prediction is not None}

    def announce(self, settings: RunSettings) -> list[str]:
        """Warns about methods that will diverge or miss the target; returns sentences on the rounds of the others."""
        late = {}
        if settings.target is None:
            concurrent.futures.wait(self.futures.values(), timeout=PATIENCE)
            late = {name: self.algorithms[name] for name, future in self.futures.items() if not future.done()}
        A = self.problem.jacobians(self.problem.theta_star) if late else None
        for name, algorithm in late.items():
            rule = local_rule(algorithm)
            if A is not None and rule is not None and not (growth := spectral_radius(rule.transition(A))) < 1:
                warnings.warn(divergence(name, algorithm, growth, A), stacklevel=2)
        early = {name: future.result() for name, future in self.futures.items() if name not in late}
        return warn({name: prediction for name, prediction in early.items() if prediction is not None}, settings)


def _predict(problem: Problem, algorithm: AbstractAlgorithm) -> Prediction | None:
    """Returns a prediction; None if it is not available, because the run continues without it."""
    found = result_or_reason(lambda: predicted(problem, algorithm))
    return found if isinstance(found, Prediction) else None


def of_sweep(
    found: Sweep, problems: Callable[..., Problem], method: Callable[[Problem], AbstractAlgorithm]
) -> tuple[float, ...] | None:
    """Predicts the last error of each combination, NaN if there is no prediction; None if there is none at all."""
    predicted, spent = [], 0.0
    for problem, algorithm in pairs(problems, method, found.settings):
        spent += effort.seconds(problem, algorithm) if problem.theta_star is not None else 0.0
        known = problem.theta_star is not None and noise_is_known(problem) and spent <= PATIENCE
        prediction = _predict(problem, algorithm) if known else None
        usable = prediction is not None and prediction.stable and prediction.basis != "mean"
        rounds = int(found.results[0].rounds[-1])
        predicted.append(prediction.error_after(rounds) if prediction is not None and usable else math.nan)
    return tuple(predicted) if any(map(math.isfinite, predicted)) else None


def warn(predictions: Mapping[str, Prediction], settings: RunSettings) -> list[str]:
    """Warns about methods that will diverge or miss the target; returns sentences on the rounds of the others."""
    sentences = []
    for name, prediction in predictions.items():
        if not prediction.stable:
            warnings.warn(explain_divergence(name, prediction), stacklevel=2)
        elif settings.target is not None:
            rounds = prediction.reach(settings.target).rounds
            if math.isnan(rounds):
                sentences.append(f"When {name} reaches {settings.target:g} is unknown.")
            elif math.isinf(rounds):
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
    """Returns a sentence that a method with this spectral radius diverges, and what to change."""
    rule, H = local_rule(algorithm), algorithm.block_length
    if rule is None:
        return f"{name} will diverge with these settings: its spectral radius is {growth:.4g}. Use a smaller step."
    local = largest_local_steps(jacobians, rule) if hasattr(algorithm, "local_steps") else None
    at = f"step {rule.step_size:g}" + (f" and {H} local steps" if local is not None else "")
    largest = largest_step(jacobians, rule)
    if not largest > 0:
        return f"{name} will diverge at {at}: no step is stable on this problem (spectral radius {growth:.4g})."
    fewer = f", or at most {local:.0f} local steps" if local and local < H else ""
    return f"{name} will diverge at {at}: its spectral radius is {growth:.4g}. Use a step below {largest:.3g}{fewer}."


def explain_divergence(name: str, prediction: Prediction) -> str:
    """Returns this sentence for a prediction that is not stable, or may not be; its mean may still converge."""
    square = prediction.mean_square_radius
    if prediction.stable is None:
        return (
            f"Whether {name} is stable with these settings is unknown: they are too close to the edge of stability. "
            "Use a smaller step."
        )
    if square is None or not prediction.spectral_radius < 1:
        return divergence(name, prediction.algorithm, prediction.spectral_radius, prediction.jacobians)
    largest = prediction.max_step_size
    advice = f"Use a step below {largest:.3g}." if largest.kind.startswith("mean square") else "Use a smaller step."
    step = getattr(prediction.algorithm, "step_size", None)
    at = "with these settings" if step is None else f"at step {step:g}"
    return (
        f"{name} will diverge {at}: its mean converges, but noise in the operators' matrices makes the mean-square "
        f"error grow by {square:.4g} per round ({prediction.stability.removeprefix('mean square, ')}). {advice}"
    )


def out_of_reach(name: str, prediction: Prediction, target: float) -> str:
    """Returns a sentence that a method stops above the target, and what to change."""
    if prediction.basis == "mean":
        bias = float(prediction.heterogeneity_bias @ prediction.heterogeneity_bias)
        return f"{name} cannot reach `target` {target:g} with these settings: its mean alone stops at {bias:.3g}."
    return (
        f"{name} cannot reach `target` {target:g} with these settings: its error stops at {prediction.floor:.3g}. "
        f"`fedhsa analyze --target {target:g}` proposes settings that can."
    )


def for_manifest(predictions: Mapping[str, Prediction]) -> dict[str, dict[str, Any]]:
    """Returns predictions as JSON values by name, without the largest stable steps, which take a search."""
    with np.errstate(all="ignore"):
        return {name: prediction.to_dict(limits=False) for name, prediction in predictions.items()}


def curves(predictions: Mapping[str, Prediction], results: Mapping[str, Result]) -> tuple[dict[str, np.ndarray], str]:
    """Returns the predicted error at the recorded rounds by name, and its label."""
    found, exact = {}, True
    for name, result in results.items():
        prediction = predictions.get(name)
        if prediction is None or not prediction.stable or prediction.basis == "mean":
            continue  # runs do not show the mean
        exact = exact and prediction.basis == "exact"
        found[name] = prediction.error(int(result.rounds[-1]))[result.rounds]
    return found, "exact" if exact else "predicted"

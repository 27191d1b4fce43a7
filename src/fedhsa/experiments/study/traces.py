"""Simulated error curves with their predictions and their floors, for the figures of the paper."""

from typing import Any, NamedTuple

import numpy as np

from ... import statistics
from ..._random import host_generator
from ...algorithms import AbstractAlgorithm
from ...plots import Curve
from ...problems import Problem
from ...sources import Silent
from ...statistics import Estimate
from ...theory import Prediction
from .base import Outcome, Runner, Table
from .checks import UNDECIDED, Checks
from .clock import phase
from .foresight import doubt, foresee

SETTLED = 1.02
"""A predicted error below this multiple of its floor counts as settled."""


class Followed(NamedTuple):
    """One simulated curve with its prediction."""

    error: np.ndarray
    """Squared errors, `(seeds, rounds + 1)`."""
    predicted: np.ndarray
    """Their predicted mean, `(rounds + 1,)`."""
    theta: np.ndarray
    """The final parameter of each seed, `(seeds, d)`."""
    facts: dict[str, Any]


def follow(
    runner: Runner, problem: Problem, algorithm: AbstractAlgorithm, *, rounds: int, seeds: int, key: int, theta: Any
) -> Followed:
    """Predicts and simulates one curve."""
    runner.stop_if_asked()
    prediction = foresee(problem, algorithm)
    if not prediction.stable:
        raise ValueError(
            f"{type(algorithm).__name__} is not stable with these settings, or may not be (spectral radius "
            f"{prediction.spectral_radius:.4g}). Use a `step_size` below {prediction.max_step_size:.3g}."
        )
    if not prediction.floor > 0 and not isinstance(problem.agents.source, Silent):
        raise ValueError("Without noise there is no floor to look at: use the experiment without noise instead.")
    result = runner.simulate(problem, algorithm, rounds=rounds, seeds=seeds, key=key, theta=theta)
    floor = prediction.floor
    with phase("predict"):
        predicted = prediction.error(rounds, theta)
        settled = _settled(prediction, predicted, theta) if floor > 0 else None
    facts: dict[str, Any] = {
        "basis": prediction.basis,
        "radius": prediction.spectral_radius,
        "predicted_floor": floor,
        "doubt": doubt(prediction),
        "predicted_bias": float(prediction.bias @ prediction.bias),
        "settled": None if settled is None else int(settled),
        "diverged": int((result.failed_round >= 0).sum()),
        "cost": result.cost._asdict(),
    }
    return Followed(result.error, predicted, result.theta, facts)


def _settled(prediction: Prediction, predicted: np.ndarray, theta: Any) -> float:
    """Returns the first round whose predicted error counts as settled, which may be after the end of the run."""
    target = SETTLED * prediction.floor
    near = predicted <= target
    return int(np.argmax(near)) if near.any() else prediction.rounds_to(target, theta)


def gather(traces: dict[str, Followed], facts: dict[str, Any]) -> Outcome:
    """Returns the outcome that holds these curves, by label, and other facts."""
    arrays = {}
    for label, trace in traces.items():
        arrays |= {f"{label}/error": trace.error, f"{label}/predicted": trace.predicted, f"{label}/theta": trace.theta}
    return Outcome(arrays, facts | {"curves": {label: trace.facts for label, trace in traces.items()}})


def curves(outcome: Outcome) -> dict[str, Curve]:
    """Returns the curves to draw, by label."""
    found = {}
    for label in outcome.facts["curves"]:
        error = outcome.arrays[f"{label}/error"]
        found[label] = Curve(error, np.arange(error.shape[1]), np.full(len(error), -1))
    return found


def predicted(outcome: Outcome) -> dict[str, np.ndarray]:
    """Returns the predicted errors, by label."""
    return {label: outcome.arrays[f"{label}/predicted"] for label in outcome.facts["curves"]}


def flat_part(outcome: Outcome, label: str) -> np.ndarray:
    """Returns the errors of the second half of the rounds, `(seeds, rounds)`."""
    error = outcome.arrays[f"{label}/error"]
    return error[:, error.shape[1] // 2 :]


def is_flat(outcome: Outcome, label: str) -> bool:
    """Returns whether the prediction has settled before the second half of the rounds."""
    settled = outcome.facts["curves"][label]["settled"]
    return settled is not None and settled <= outcome.arrays[f"{label}/error"].shape[1] // 2


def floors(outcome: Outcome, label: str) -> np.ndarray:
    """Returns the mean of each seed over the flat part, `(seeds,)`; the means are independent between seeds."""
    return flat_part(outcome, label).mean(1)


def floor(outcome: Outcome, label: str, level: float = statistics.LEVEL) -> Estimate:
    """Returns the floor with its confidence interval."""
    return statistics.mean(floors(outcome, label), level)


def flatness(outcome: Outcome, label: str) -> Estimate:
    """Returns the mean over the last quarter of the rounds relative to that over the third; 1 if the floor is flat."""
    flat = flat_part(outcome, label)
    middle = flat.shape[1] // 2
    return statistics.ratio(flat[:, middle:].mean(1), flat[:, :middle].mean(1))


def doubt_unsettled(outcome: Outcome, checks: Checks) -> None:
    """Marks the checks of floors as not decided if a run is too short to reach its floor."""
    if not all(is_flat(outcome, label) for label in outcome.facts["curves"]):
        short = "; the run is too short to have a floor"
        checks.found = [check._replace(verdict=UNDECIDED, rule=check.rule + short) for check in checks.found]


def table(outcome: Outcome) -> Table:
    """Returns the mean, the 95 % interval and the prediction of every curve, by round."""
    found: dict[str, Any] = {}
    for label, curve in curves(outcome).items():
        found.setdefault("round", curve.rounds)
        mean, low, high = statistics.interval(curve.error)
        found |= {f"{label} mean": mean, f"{label} low": low, f"{label} high": high}
        found[f"{label} predicted"] = outcome.arrays[f"{label}/predicted"]
    return found


def starting_point(start: str, dim: int, key: int) -> np.ndarray:
    """Returns the starting point: `zeros`, or `normal` for a standard normal draw."""
    if start not in ("zeros", "normal"):
        raise ValueError(f"`start` must be zeros or normal, got {start!r}.")
    return np.zeros(dim) if start == "zeros" else host_generator(key, "start").normal(size=dim)

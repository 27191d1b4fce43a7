"""Predictions of a study, with their own estimates of their errors."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._linear import spectral_radius
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ...theory import Prediction, PredictionWarning, predict
from ...theory.rule import require_rule
from .clock import phase
from .instance import Instance

WIDEST = 0.05
"""The largest relative error that is allowed for a predicted floor, also used if its error is unknown."""
WIDEST_SLOPE = 0.02
"""The largest error that is allowed for a predicted slope on logarithmic axes."""
TRIES = 20
"""The number of random problems that are tried to find one on which every method is stable."""
LAWS = {
    "exact": "exact law",
    "pairs": "law of pairs of agents",
    "one site": "law of each agent among the others",
    "many agents": "law of many agents",
}


def law(basis: str) -> str:
    """Returns the name of the basis of a prediction.

    !!! example
        >>> law("exact")
        'exact law'
    """
    return LAWS.get(basis, "prediction")


@phase("predict")
def foresee(problem: Problem, algorithm: AbstractAlgorithm) -> Prediction:
    """Runs `theory.predict` without its warnings, because checks allow for the omitted terms and report them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PredictionWarning)
        return predict(problem, algorithm)


def doubt(prediction: Prediction) -> float:
    """Returns the relative error of a predicted floor, as estimated by the prediction; 0 if it is exact.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> doubt(foresee(problem, fedhsa.FedHSA(0.01, local_steps=5)))
        0.0
    """
    return WIDEST if math.isnan(prediction.left_out) else min(float(prediction.left_out), WIDEST)


def slope_doubt(x: Any, doubts: Any) -> float:
    """Returns the error of a slope through numbers at `x` on logarithmic axes, given the numbers' relative errors.

    !!! example
        >>> round(slope_doubt([1, np.e], [0.002, 0.003]), 6)
        0.005
    """
    at = np.log(np.asarray(x, dtype=float))
    weights = (at - at.mean()) / ((at - at.mean()) ** 2).sum()
    return min(float(np.abs(weights) @ doubts), WIDEST_SLOPE)


def settling(prediction: Prediction, part: float) -> int:
    """Returns the number of rounds after which a deviation has fallen to this fraction of itself without noise."""
    return math.ceil(math.log(part) / math.log(prediction.spectral_radius))


@phase("build")
def draw_stable(instance: Instance, algorithms: Sequence[AbstractAlgorithm]) -> tuple[Problem, int]:
    """Returns the first random problem on which every method is stable, with keys counted upwards, and its key.

    !!! example
        >>> problem, key = draw_stable(Instance("quadratic", 4, {"dim": 3}), [fedhsa.FedHSA(0.01, local_steps=5)])
        >>> key
        0
    """
    growth = 0.0
    for key in range(instance.key, instance.key + TRIES):
        problem = instance.change("key", key).build()
        A, _ = problem.affine_parts()
        growth = max(spectral_radius(require_rule(algorithm).transition(A)) for algorithm in algorithms)
        if growth < 1:
            return problem, key
    raise ValueError(
        f"On {TRIES} random problems from `key` {instance.key} on some method diverges (spectral radius {growth:.4g}). "
        "Use a smaller `step_size` or fewer `local_steps`."
    )

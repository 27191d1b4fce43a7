"""Predictions of a study, and how far off they may be by their own account."""

import math
import warnings
from typing import Any

import numpy as np

from ..._linear import spectral_radius
from ...algorithms import AbstractAlgorithm
from ...problems import Problem
from ...theory import Prediction, PredictionWarning, predict
from .clock import phase

WIDEST = 0.05
"""A predicted floor that may be further off, as a part, or does not know how far, is compared as if it were so much."""
WIDEST_SLOPE = 0.02
"""The same for slopes on logarithmic axes."""
LAWS = {
    "exact": "exact law",
    "pairs": "law of pairs of agents",
    "one site": "law of each agent among the others",
    "many agents": "law of many agents",
}


def law(basis: str) -> str:
    """What a prediction rests on, in words.

    !!! example
        >>> law("exact")
        'exact law'
    """
    return LAWS.get(basis, "prediction")


@phase("predict")
def foresee(problem: Problem, algorithm: AbstractAlgorithm) -> Prediction:
    """`theory.predict` without its warnings: checks allow for what a prediction leaves out, and say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PredictionWarning)
        return predict(problem, algorithm)


def doubt(prediction: Prediction) -> float:
    """How far a predicted floor may be off, as a part, by its own account: nothing where the law is exact.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> doubt(foresee(problem, fedhsa.FedHSA(0.01, local_steps=5)))
        0.0
    """
    return WIDEST if math.isnan(prediction.left_out) else min(float(prediction.left_out), WIDEST)


def slope_doubt(x: Any, doubts: Any) -> float:
    """How far the slope through numbers at `x` may be off, on logarithmic axes, if each may be off by such a part.

    !!! example
        >>> round(slope_doubt([1, np.e], [0.002, 0.003]), 6)
        0.005
    """
    at = np.log(np.asarray(x, dtype=float))
    weights = (at - at.mean()) / ((at - at.mean()) ** 2).sum()
    return min(float(np.abs(weights) @ doubts), WIDEST_SLOPE)


def settling(prediction: Prediction, part: float) -> int:
    """The rounds until a deviation has sunk to this part of itself without noise."""
    return math.ceil(math.log(part) / math.log(spectral_radius(prediction.transition)))

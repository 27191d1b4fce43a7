"""Theory: predictions of an algorithm's behaviour on a problem, computed instead of simulated.

`predict` and `choose` are the main functions. The subpackages are `maps` (noiseless rounds), `laws` (moments of the
error), `paper` (the paper's constants, assumptions and bounds) and `samples` (estimates from observations).
"""

from . import exact
from .choice import Candidate, Choice, Unknown, choose
from .entry import PredictionWarning, predict
from .exact import JointMap, joint_map
from .laws.first_order import Correlations, correlations, first_order_bias, first_order_covariance
from .paper import bounds, measure, mixing
from .paper.assumptions import Line, Verdicts, check
from .paper.constants import AutoregressiveNoise, Constants, constants
from .paper.theorems import theorem_1, theorem_2
from .prediction import Prediction, Reach
from .samples.estimate import Estimates, estimate
from .stability import Limit, max_local_steps, max_step_size

__all__ = [
    "AutoregressiveNoise",
    "Candidate",
    "Choice",
    "Constants",
    "Correlations",
    "Estimates",
    "JointMap",
    "Limit",
    "Line",
    "Prediction",
    "PredictionWarning",
    "Reach",
    "Unknown",
    "Verdicts",
    "bounds",
    "check",
    "choose",
    "constants",
    "correlations",
    "estimate",
    "exact",
    "first_order_bias",
    "first_order_covariance",
    "joint_map",
    "max_local_steps",
    "max_step_size",
    "measure",
    "mixing",
    "predict",
    "theorem_1",
    "theorem_2",
]

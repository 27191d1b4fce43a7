"""Theory: predictions of an algorithm's behaviour on a problem, computed instead of simulated.

`predict` and `choose` are the main functions. The subpackages are `maps` (noiseless rounds), `laws` (moments of the
error), `paper` (the paper's constants, assumptions and bounds) and `samples` (estimates from observations).
"""

from . import exact as exact
from .choice import Candidate as Candidate
from .choice import Choice as Choice
from .choice import Unknown as Unknown
from .choice import choose as choose
from .entry import PredictionWarning as PredictionWarning
from .entry import predict as predict
from .laws.first_order import Correlations as Correlations
from .laws.first_order import correlations as correlations
from .laws.first_order import first_order_bias as first_order_bias
from .laws.first_order import first_order_covariance as first_order_covariance
from .maps.joint import JointMap as JointMap
from .maps.joint import joint_map as joint_map
from .paper import bounds as bounds
from .paper import measure as measure
from .paper import mixing as mixing
from .paper.assumptions import Line as Line
from .paper.assumptions import Verdicts as Verdicts
from .paper.assumptions import check as check
from .paper.constants import AutoregressiveNoise as AutoregressiveNoise
from .paper.constants import Constants as Constants
from .paper.constants import constants as constants
from .paper.theorems import theorem_1 as theorem_1
from .paper.theorems import theorem_2 as theorem_2
from .prediction import Prediction as Prediction
from .prediction import Reach as Reach
from .samples.estimate import Estimates as Estimates
from .samples.estimate import estimate as estimate
from .stability import Limit as Limit
from .stability import max_local_steps as max_local_steps
from .stability import max_step_size as max_step_size

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

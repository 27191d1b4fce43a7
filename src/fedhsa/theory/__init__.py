"""Theory: what will happen, computed instead of simulated.

`boundary`, `compression` and `participation` are for studies of variants, and are imported by name.
"""

from . import bounds as bounds
from . import exact as exact
from . import measure as measure
from . import mixing as mixing
from .assumptions import check as check
from .choose import Candidate as Candidate
from .choose import Choice as Choice
from .choose import choose as choose
from .constants import Constants as Constants
from .constants import constants as constants
from .estimate import Estimates as Estimates
from .estimate import estimate as estimate
from .expansion import Expansion as Expansion
from .expansion import expansion as expansion
from .first_order import Correlations as Correlations
from .first_order import correlations as correlations
from .first_order import first_order_bias as first_order_bias
from .first_order import first_order_covariance as first_order_covariance
from .joint import JointMap as JointMap
from .joint import joint_map as joint_map
from .predict import predict as predict
from .prediction import Prediction as Prediction
from .prediction import Reach as Reach
from .stability import max_local_steps as max_local_steps
from .stability import max_step_size as max_step_size

"""Experiments beyond the paper: what the field's other papers claim, and what nobody has measured yet."""

from ..base import AbstractExperiment
from .boundary import Boundary
from .compressed import CompressedStudy
from .delays import Delays
from .extrapolation import Extrapolation
from .fixed_points import FixedPoints
from .garnet import Garnet
from .one_exchange import OneExchange
from .participation import Participation
from .quadratics import Quadratics
from .rounds import Rounds
from .scaffnew import Probability
from .speedup import Speedup
from .systems import Systems

FIELD: tuple[type[AbstractExperiment], ...] = (
    Garnet,
    Speedup,
    FixedPoints,
    Probability,
    Quadratics,
    Delays,
    Rounds,
    Boundary,
    Systems,
    CompressedStudy,
    Participation,
    Extrapolation,
    OneExchange,
)
"""In the order of the page."""

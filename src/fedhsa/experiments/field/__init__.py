"""Experiments beyond the paper: what the field's other papers claim, and what nobody has measured yet."""

from ..base import AbstractExperiment
from .boundary import Boundary
from .delays import Delays
from .garnet import Garnet
from .quadratics import Quadratics
from .speedup import Speedup

FIELD: tuple[type[AbstractExperiment], ...] = (Garnet, Speedup, Quadratics, Delays, Boundary)
"""In the order of the page."""

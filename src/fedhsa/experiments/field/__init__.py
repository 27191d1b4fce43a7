"""Experiments beyond the paper: what the field's other papers claim, and what nobody has measured yet."""

from ..base import AbstractExperiment
from .quadratics import Quadratics

FIELD: tuple[type[AbstractExperiment], ...] = (Quadratics,)
"""In the order of the page."""

"""Experiments beyond the paper: what the field's other papers claim, and what nobody has measured yet."""

from ..base import AbstractExperiment

FIELD: tuple[type[AbstractExperiment], ...] = ()
"""In the order of the page."""

"""Environments: finite models of decision processes, with exact values and policies."""

from .model import Chain as Chain
from .model import Model as Model

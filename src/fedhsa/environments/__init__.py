"""Environments: finite models of decision processes, with exact values and policies."""

from . import toy_text as toy_text
from . import worlds as worlds
from .make import ENVIRONMENTS as ENVIRONMENTS
from .make import make as make
from .model import Chain as Chain
from .model import Model as Model

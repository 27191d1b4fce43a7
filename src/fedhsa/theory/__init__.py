"""Theory: what will happen, computed instead of simulated."""

from . import exact as exact

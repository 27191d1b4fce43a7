"""Comparison of methods that are tuned with the same effort, run on the same observations, and ranked."""

from .contest import Contest, Entry, Terms, compare
from .ranking import Pair, Place, Ranking, rank
from .tuning import Trial, Tuning

__all__ = ["Contest", "Entry", "Pair", "Place", "Ranking", "Terms", "Trial", "Tuning", "compare", "rank"]

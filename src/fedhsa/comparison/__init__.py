"""Comparison of methods that are tuned with the same effort, run on the same observations, and ranked."""

from .contest import Contest as Contest
from .contest import Entry as Entry
from .contest import Terms as Terms
from .contest import compare as compare
from .ranking import Pair as Pair
from .ranking import Place as Place
from .ranking import Ranking as Ranking
from .ranking import rank as rank
from .tuning import Trial as Trial
from .tuning import Tuning as Tuning

__all__ = ["Contest", "Entry", "Pair", "Place", "Ranking", "Terms", "Trial", "Tuning", "compare", "rank"]

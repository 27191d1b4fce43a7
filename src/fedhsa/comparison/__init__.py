"""Comparing methods on equal terms: tuning with the same effort, runs on the same observations, a ranking."""

from .contest import Contest as Contest
from .contest import Entry as Entry
from .contest import Terms as Terms
from .contest import compare as compare
from .ranking import Ranking as Ranking

"""The engine: many rounds, agents and seeds as one compiled program."""

from .confidence import Confidence as Confidence
from .confidence import confidence as confidence
from .record import Snapshot as Snapshot
from .result import Result as Result
from .result import load as load
from .simulate import simulate as simulate

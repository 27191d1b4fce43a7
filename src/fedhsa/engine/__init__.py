"""The engine: many rounds, agents and seeds as one compiled program."""

from .hosts import join_processes as join_processes
from .peers import LostProcessError as LostProcessError
from .record import Snapshot as Snapshot
from .result import Result as Result
from .simulate import simulate as simulate
from .state import State as State
from .state import init as init
from .state import step as step
from .sweep import Sweep as Sweep
from .sweep import sweep as sweep

__all__ = [
    "LostProcessError",
    "Result",
    "Snapshot",
    "State",
    "Sweep",
    "init",
    "join_processes",
    "simulate",
    "step",
    "sweep",
]

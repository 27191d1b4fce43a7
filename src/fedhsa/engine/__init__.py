"""The engine: many rounds, agents and seeds as one compiled program."""

from .hosts import join_processes
from .peers import LostProcessError
from .record import Snapshot
from .result import Result
from .simulate import simulate
from .state import State, init, step
from .sweep import Sweep, sweep

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

"""Sources of observations: each is one agent's Markov chain."""

from .base import AbstractSource, Silent, UnknownLawError
from .decisions import AbstractControlled, Decision, Decisions, Generative, PendingSteps, Restarts
from .finite import FiniteChain, Transition, Transitions
from .linear import LinearGaussian
from .stream import AbstractStream
from .var import VAR1
from .windows import Traced, Traces, Windows
from .wrappers import IID, Replay

__all__ = [
    "IID",
    "VAR1",
    "AbstractControlled",
    "AbstractSource",
    "AbstractStream",
    "Decision",
    "Decisions",
    "FiniteChain",
    "Generative",
    "LinearGaussian",
    "PendingSteps",
    "Replay",
    "Restarts",
    "Silent",
    "Traced",
    "Traces",
    "Transition",
    "Transitions",
    "UnknownLawError",
    "Windows",
]

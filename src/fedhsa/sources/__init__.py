"""Sources of observations: each is one agent's Markov chain."""

from .base import AbstractSource as AbstractSource
from .base import Silent as Silent
from .base import UnknownLawError as UnknownLawError
from .decisions import AbstractControlled as AbstractControlled
from .decisions import Decision as Decision
from .decisions import Decisions as Decisions
from .decisions import Generative as Generative
from .decisions import PendingSteps as PendingSteps
from .decisions import Restarts as Restarts
from .finite import FiniteChain as FiniteChain
from .finite import Transition as Transition
from .finite import Transitions as Transitions
from .linear import LinearGaussian as LinearGaussian
from .stream import AbstractStream as AbstractStream
from .var import VAR1 as VAR1
from .windows import Traced as Traced
from .windows import Traces as Traces
from .windows import Windows as Windows
from .wrappers import IID as IID
from .wrappers import Replay as Replay

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

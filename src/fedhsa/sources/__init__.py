"""Sources of observations: one agent's Markov chain each."""

from .base import AbstractSource as AbstractSource, Silent as Silent
from .finite import FiniteChain as FiniteChain, Transition as Transition, Transitions as Transitions
from .var import VAR1 as VAR1
from .wrappers import IID as IID, Replay as Replay

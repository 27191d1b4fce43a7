"""Experiments of other papers in reinforcement learning: evaluation and control by agents in unlike environments."""

from ..base import AbstractExperiment
from .importance import Importance
from .one_shot import OneShot
from .qavg import QAvg
from .sarsa import FedSARSA
from .two_phases import TwoPhases

RL: tuple[type[AbstractExperiment], ...] = (Importance, OneShot, QAvg, FedSARSA, TwoPhases)
"""In the order of the page."""

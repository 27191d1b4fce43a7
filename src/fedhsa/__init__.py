"""Federated stochastic approximation with Markovian data and heterogeneous agents.

These are the names for everyday use. Each is loaded when it is first used, together with JAX, so importing the package
itself takes almost no time.
"""
# ruff: noqa: F403, F405 - `__all__` says which names of these modules are public here

import importlib
from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from . import (
        algorithms,
        comparison,
        deploy,
        engine,
        environments,
        plots,
        problems,
        sources,
        statistics,
        theory,
        tracking,
    )
    from .algorithms import *
    from .comparison import compare
    from .engine import *
    from .opening import load
    from .problems import PROBLEMS, AbstractAgent, Problem
    from .sources import AbstractSource
    from .statistics import Confidence, confidence

__all__ = [
    "ALGORITHMS",
    "MCSAG",
    "PROBLEMS",
    "SA",
    "SCAFFLSA",
    "SCAFFOLD",
    "WRAPPERS",
    "AbstractAgent",
    "AbstractAlgorithm",
    "AbstractSource",
    "Averaged",
    "Byzantine",
    "Compressed",
    "Confidence",
    "Cost",
    "DecentralisedScaffnew",
    "Delayed",
    "Demand",
    "DisSACC",
    "Effect",
    "Exchange",
    "ExtragradientSA",
    "FedDVRQ",
    "FedHSA",
    "FedKL",
    "FedLin",
    "FedNPG",
    "FedNPGADMM",
    "FedPGBR",
    "FixedPoint",
    "GappedSA",
    "GeometricAverage",
    "Gossip",
    "ImportanceAveraging",
    "LocalSA",
    "LocalSVRG",
    "LooplessSA",
    "Lossy",
    "LostProcessError",
    "MomentumSA",
    "MultilevelSA",
    "OneExchangeFedHSA",
    "OneShotAveraging",
    "OracleShift",
    "OverTheAir",
    "Partial",
    "PerBlock",
    "PersonalisedSA",
    "Polynomial",
    "Problem",
    "Projected",
    "Replayed",
    "Replies",
    "Result",
    "RichardsonRomberg",
    "Robust",
    "Round",
    "SSLocalSGD",
    "Scaffnew",
    "ServerMomentum",
    "Snapshot",
    "Stages",
    "State",
    "Sweep",
    "SynchronisedSA",
    "Thinned",
    "VarianceReducedSA",
    "Weighted",
    "__version__",
    "algorithms",
    "attacks",
    "codecs",
    "compare",
    "comparison",
    "confidence",
    "corollary_step",
    "cost",
    "deploy",
    "engine",
    "environments",
    "graphs",
    "init",
    "join_processes",
    "load",
    "plots",
    "problems",
    "rules",
    "sampling",
    "simulate",
    "sources",
    "statistics",
    "step",
    "sweep",
    "theory",
    "tracking",
]


_HOMES = ("engine", "algorithms", "problems", "sources", "statistics", "comparison", "opening")
"""The modules that hold the other names; the first one imports everything that a simulation needs."""
_MODULES = (*(home for home in _HOMES if home in __all__), "deploy", "environments", "plots", "theory", "tracking")


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    modules = (importlib.import_module(f".{home}", __name__) for home in _HOMES)
    value = globals()[name] = next(getattr(module, name) for module in modules if hasattr(module, name))
    return value


def __dir__():
    return __all__

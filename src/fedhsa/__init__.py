"""Federated stochastic approximation with Markovian data and heterogeneous agents.

The names here are what one types daily. What only some programs need (`compare`, `deploy`, `environments`, `plots`,
`theory`) is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

from . import algorithms, engine, problems, sources, statistics
from ._version import __version__
from .algorithms import (
    ALGORITHMS,
    MCSAG,
    SA,
    SCAFFLSA,
    SCAFFOLD,
    WRAPPERS,
    AbstractAlgorithm,
    Averaged,
    Byzantine,
    Compressed,
    Cost,
    Delayed,
    Demand,
    DisSACC,
    Effect,
    Exchange,
    FedDVRQ,
    FedHSA,
    FedLin,
    GappedSA,
    GeometricAverage,
    Gossip,
    ImportanceAveraging,
    LocalSA,
    LocalSVRG,
    LooplessSA,
    Lossy,
    MomentumSA,
    MultilevelSA,
    OneExchangeFedHSA,
    OneShotAveraging,
    OracleShift,
    OverTheAir,
    Partial,
    PerBlock,
    Polynomial,
    Projected,
    Replies,
    RichardsonRomberg,
    Robust,
    Round,
    Scaffnew,
    ServerMomentum,
    SSLocalSGD,
    Stages,
    SynchronisedSA,
    Thinned,
    Weighted,
    attacks,
    codecs,
    corollary_step,
    cost,
    graphs,
    rules,
    sampling,
)
from .engine import Result, Snapshot, State, Sweep, init, load, simulate, step, sweep
from .problems import PROBLEMS, AbstractAgent, Problem
from .sources import AbstractSource
from .statistics import Confidence, confidence

if TYPE_CHECKING:
    from . import comparison, deploy, environments, plots, theory
    from .comparison import compare

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
    "Delayed",
    "Demand",
    "DisSACC",
    "Effect",
    "Exchange",
    "FedDVRQ",
    "FedHSA",
    "FedLin",
    "GappedSA",
    "GeometricAverage",
    "Gossip",
    "ImportanceAveraging",
    "LocalSA",
    "LocalSVRG",
    "LooplessSA",
    "Lossy",
    "MomentumSA",
    "MultilevelSA",
    "OneExchangeFedHSA",
    "OneShotAveraging",
    "OracleShift",
    "OverTheAir",
    "Partial",
    "PerBlock",
    "Polynomial",
    "Problem",
    "Projected",
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
]


def __getattr__(name: str):
    if name == "compare":
        return importlib.import_module(".comparison", __name__).compare
    if name in __all__:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__

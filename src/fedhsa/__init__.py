"""Federated stochastic approximation with Markovian data and heterogeneous agents."""

from . import (
    algorithms as algorithms,
    engine as engine,
    problems as problems,
    sources as sources,
    theory as theory,
)
from ._version import __version__ as __version__
from .algorithms import (
    ALGORITHMS as ALGORITHMS,
    SA as SA,
    AbstractAlgorithm as AbstractAlgorithm,
    Exchange as Exchange,
    FedHSA as FedHSA,
    LocalSA as LocalSA,
    Polynomial as Polynomial,
    Replies as Replies,
    Round as Round,
    SynchronisedSA as SynchronisedSA,
    corollary_step as corollary_step,
)
from .engine import Cost as Cost, Result as Result, Snapshot as Snapshot, cost as cost, load as load, simulate as simulate
from .problems import PROBLEMS as PROBLEMS, AbstractAgent as AbstractAgent, Problem as Problem
from .sources import AbstractSource as AbstractSource

"""Federated stochastic approximation with Markovian data and heterogeneous agents."""

from . import (
    algorithms as algorithms,
)
from . import deploy as deploy
from . import (
    engine as engine,
)
from . import environments as environments
from . import (
    problems as problems,
)
from . import (
    sources as sources,
)
from . import (
    theory as theory,
)
from ._version import __version__ as __version__
from .algorithms import (
    ALGORITHMS as ALGORITHMS,
)
from .algorithms import (
    MCSAG as MCSAG,
)
from .algorithms import (
    SA as SA,
)
from .algorithms import SCAFFLSA as SCAFFLSA
from .algorithms import SCAFFOLD as SCAFFOLD
from .algorithms import (
    WRAPPERS as WRAPPERS,
)
from .algorithms import (
    AbstractAlgorithm as AbstractAlgorithm,
)
from .algorithms import Averaged as Averaged
from .algorithms import Compressed as Compressed
from .algorithms import (
    Cost as Cost,
)
from .algorithms import Delayed as Delayed
from .algorithms import Demand as Demand
from .algorithms import (
    DisSACC as DisSACC,
)
from .algorithms import Effect as Effect
from .algorithms import (
    Exchange as Exchange,
)
from .algorithms import (
    FedHSA as FedHSA,
)
from .algorithms import FedLin as FedLin
from .algorithms import (
    GappedSA as GappedSA,
)
from .algorithms import GeometricAverage as GeometricAverage
from .algorithms import Gossip as Gossip
from .algorithms import ImportanceAveraging as ImportanceAveraging
from .algorithms import (
    LocalSA as LocalSA,
)
from .algorithms import (
    LocalSVRG as LocalSVRG,
)
from .algorithms import LooplessSA as LooplessSA
from .algorithms import Lossy as Lossy
from .algorithms import (
    MomentumSA as MomentumSA,
)
from .algorithms import (
    MultilevelSA as MultilevelSA,
)
from .algorithms import OneExchangeFedHSA as OneExchangeFedHSA
from .algorithms import (
    OneShotAveraging as OneShotAveraging,
)
from .algorithms import OracleShift as OracleShift
from .algorithms import OverTheAir as OverTheAir
from .algorithms import Partial as Partial
from .algorithms import (
    Polynomial as Polynomial,
)
from .algorithms import Projected as Projected
from .algorithms import (
    Replies as Replies,
)
from .algorithms import RichardsonRomberg as RichardsonRomberg
from .algorithms import (
    Round as Round,
)
from .algorithms import Scaffnew as Scaffnew
from .algorithms import ServerMomentum as ServerMomentum
from .algorithms import SSLocalSGD as SSLocalSGD
from .algorithms import (
    SynchronisedSA as SynchronisedSA,
)
from .algorithms import Thinned as Thinned
from .algorithms import Weighted as Weighted
from .algorithms import codecs as codecs
from .algorithms import (
    corollary_step as corollary_step,
)
from .algorithms import (
    cost as cost,
)
from .algorithms import graphs as graphs
from .algorithms import sampling as sampling
from .engine import Result as Result
from .engine import Snapshot as Snapshot
from .engine import load as load
from .engine import simulate as simulate
from .problems import PROBLEMS as PROBLEMS
from .problems import AbstractAgent as AbstractAgent
from .problems import Problem as Problem
from .sources import AbstractSource as AbstractSource
from .statistics import Confidence as Confidence
from .statistics import confidence as confidence

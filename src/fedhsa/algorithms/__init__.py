"""Algorithms: one class per method, with its settings as fields."""

from . import attacks as attacks
from . import codecs as codecs
from . import graphs as graphs
from . import rules as rules
from . import sampling as sampling
from .base import AbstractAlgorithm as AbstractAlgorithm
from .base import Coded as Coded
from .base import Cost as Cost
from .base import Exchange as Exchange
from .base import PerAgent as PerAgent
from .base import Replies as Replies
from .base import Round as Round
from .base import check_local_steps as check_local_steps
from .byzantine import Byzantine as Byzantine
from .channel import Lossy as Lossy
from .channel import OverTheAir as OverTheAir
from .compression import Compressed as Compressed
from .controlled import adapt as adapt
from .delay import Delayed as Delayed
from .demands import Demand as Demand
from .demands import Effect as Effect
from .dissacc import DisSACC as DisSACC
from .extragradient import ExtragradientSA as ExtragradientSA
from .fed_dvr_q import FedDVRQ as FedDVRQ
from .fed_hsa import FedHSA as FedHSA
from .fed_kl import FedKL as FedKL
from .fed_lin import FedLin as FedLin
from .fed_lin import SSLocalSGD as SSLocalSGD
from .fed_pg_br import FedPGBR as FedPGBR
from .finite_sums import MCSAG as MCSAG
from .finite_sums import LocalSVRG as LocalSVRG
from .fixed_point import FixedPoint as FixedPoint
from .gapped import GappedSA as GappedSA
from .gossip import Gossip as Gossip
from .importance import ImportanceAveraging as ImportanceAveraging
from .local_sa import SA as SA
from .local_sa import LocalSA as LocalSA
from .local_sa import SynchronisedSA as SynchronisedSA
from .loopless import DecentralisedScaffnew as DecentralisedScaffnew
from .loopless import LooplessSA as LooplessSA
from .loopless import Scaffnew as Scaffnew
from .momentum import MomentumSA as MomentumSA
from .multilevel import MultilevelSA as MultilevelSA
from .natural import FedNPG as FedNPG
from .natural import FedNPGADMM as FedNPGADMM
from .one_shot import OneShotAveraging as OneShotAveraging
from .oracle import OracleShift as OracleShift
from .output import Averaged as Averaged
from .output import GeometricAverage as GeometricAverage
from .output import RichardsonRomberg as RichardsonRomberg
from .output import scaled as scaled
from .parse import parse as parse
from .participation import Partial as Partial
from .personalised import OwnError as OwnError
from .personalised import PersonalisedSA as PersonalisedSA
from .replay import Replayed as Replayed
from .robust import Robust as Robust
from .scafflsa import SCAFFLSA as SCAFFLSA
from .scaffold import SCAFFOLD as SCAFFOLD
from .scaffold import OneExchangeFedHSA as OneExchangeFedHSA
from .schedules import AbstractSchedule as AbstractSchedule
from .schedules import PerBlock as PerBlock
from .schedules import Polynomial as Polynomial
from .schedules import Stages as Stages
from .schedules import check_step_size as check_step_size
from .schedules import corollary_step as corollary_step
from .schedules import step_at as step_at
from .server import Projected as Projected
from .server import ServerMomentum as ServerMomentum
from .server import Weighted as Weighted
from .thinning import Thinned as Thinned
from .trace import cost as cost
from .variance_reduced import VarianceReducedSA as VarianceReducedSA
from .wrapper import AbstractWrapper as AbstractWrapper

__all__ = [
    "ALGORITHMS",
    "MCSAG",
    "SA",
    "SCAFFLSA",
    "SCAFFOLD",
    "WRAPPERS",
    "AbstractAlgorithm",
    "AbstractSchedule",
    "AbstractWrapper",
    "Averaged",
    "Byzantine",
    "Coded",
    "Compressed",
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
    "MomentumSA",
    "MultilevelSA",
    "OneExchangeFedHSA",
    "OneShotAveraging",
    "OracleShift",
    "OverTheAir",
    "OwnError",
    "Partial",
    "PerAgent",
    "PerBlock",
    "PersonalisedSA",
    "Polynomial",
    "Projected",
    "Replayed",
    "Replies",
    "RichardsonRomberg",
    "Robust",
    "Round",
    "SSLocalSGD",
    "Scaffnew",
    "ServerMomentum",
    "Stages",
    "SynchronisedSA",
    "Thinned",
    "VarianceReducedSA",
    "Weighted",
    "attacks",
    "check_local_steps",
    "check_step_size",
    "codecs",
    "corollary_step",
    "cost",
    "graphs",
    "parse",
    "rules",
    "sampling",
    "scaled",
    "step_at",
]

ALGORITHMS: dict[str, type[AbstractAlgorithm]] = {
    algorithm.__name__: algorithm
    for algorithm in (
        FedHSA,
        LocalSA,
        SynchronisedSA,
        SA,
        DisSACC,
        GappedSA,
        OneShotAveraging,
        ImportanceAveraging,
        FedPGBR,
        FedDVRQ,
        FedNPG,
        FedNPGADMM,
        FedKL,
        LocalSVRG,
        MCSAG,
        MultilevelSA,
        MomentumSA,
        ExtragradientSA,
        VarianceReducedSA,
        PersonalisedSA,
        FedLin,
        SSLocalSGD,
        LooplessSA,
        Scaffnew,
        DecentralisedScaffnew,
        SCAFFLSA,
        SCAFFOLD,
        OneExchangeFedHSA,
        OracleShift,
    )
}
"""The algorithms by name, as `fedhsa run --algorithm` and `parse` find them."""

WRAPPERS: dict[str, type[AbstractWrapper]] = {
    wrapper.__name__: wrapper
    for wrapper in (
        Weighted,
        Projected,
        ServerMomentum,
        Gossip,
        Thinned,
        Replayed,
        Averaged,
        GeometricAverage,
        RichardsonRomberg,
        Robust,
        Byzantine,
        Compressed,
        Delayed,
        OverTheAir,
        Lossy,
        Partial,
        FixedPoint,
    )
}
"""The wrappers by name. A wrapper is an algorithm around another algorithm."""

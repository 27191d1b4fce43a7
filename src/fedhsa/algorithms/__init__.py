"""Algorithms: one class per method, with its settings as fields."""

from . import attacks, codecs, graphs, rules, sampling
from .base import AbstractAlgorithm, Coded, Cost, Exchange, PerAgent, Replies, Round, check_local_steps
from .byzantine import Byzantine
from .channel import Lossy, OverTheAir
from .compression import Compressed
from .controlled import adapt as adapt
from .delay import Delayed
from .demands import Demand, Effect
from .extragradient import ExtragradientSA
from .fed_dvr_q import FedDVRQ
from .fed_hsa import FedHSA
from .fed_kl import FedKL
from .fed_lin import FedLin, SSLocalSGD
from .fed_pg_br import FedPGBR
from .finite_sums import MCSAG, LocalSVRG
from .fixed_point import FixedPoint
from .gossip import Gossip
from .importance import ImportanceAveraging
from .local_sa import SA, DisSACC, GappedSA, LocalSA, OneShotAveraging, SynchronisedSA
from .loopless import DecentralisedScaffnew, LooplessSA, Scaffnew
from .momentum import MomentumSA
from .multilevel import MultilevelSA
from .natural import FedNPG, FedNPGADMM
from .observations import Replayed, Thinned
from .output import Averaged, GeometricAverage, RichardsonRomberg, scaled
from .parse import parse
from .participation import Partial
from .personalised import OwnError, PersonalisedSA
from .robust import Robust
from .scafflsa import SCAFFLSA, OracleShift
from .scaffold import SCAFFOLD, OneExchangeFedHSA
from .schedules import AbstractSchedule, PerBlock, Polynomial, Stages, check_step_size, corollary_step, step_at
from .server import Projected, ServerMomentum, Weighted
from .trace import cost
from .variance_reduced import VarianceReducedSA
from .wrapper import AbstractWrapper

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
        *(FedHSA, LocalSA, SynchronisedSA, SA, DisSACC, GappedSA, OneShotAveraging, ImportanceAveraging),
        *(FedPGBR, FedDVRQ, FedNPG, FedNPGADMM, FedKL),
        *(LocalSVRG, MCSAG, MultilevelSA, MomentumSA, ExtragradientSA, VarianceReducedSA, PersonalisedSA),
        *(FedLin, SSLocalSGD, LooplessSA, Scaffnew, DecentralisedScaffnew),
        *(SCAFFLSA, SCAFFOLD, OneExchangeFedHSA, OracleShift),
    )
}
"""The algorithms by name, as `fedhsa run --algorithm` and `parse` find them."""

WRAPPERS: dict[str, type[AbstractWrapper]] = {
    wrapper.__name__: wrapper
    for wrapper in (
        *(Weighted, Projected, ServerMomentum, Gossip, Thinned, Replayed),
        *(Averaged, GeometricAverage, RichardsonRomberg),
        *(Robust, Byzantine, Compressed, Delayed, OverTheAir, Lossy, Partial, FixedPoint),  # from the inside out
    )
}
"""The wrappers by name. A wrapper is an algorithm around another algorithm."""

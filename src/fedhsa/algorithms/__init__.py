"""Algorithms: one class per method, its settings as fields."""

from .base import (
    AbstractAlgorithm as AbstractAlgorithm,
    Exchange as Exchange,
    Replies as Replies,
    Round as Round,
)
from .fed_hsa import FedHSA as FedHSA
from .local_sa import SA as SA, LocalSA as LocalSA, SynchronisedSA as SynchronisedSA
from .schedules import (
    AbstractSchedule as AbstractSchedule,
    Polynomial as Polynomial,
    corollary_step as corollary_step,
)

ALGORITHMS: dict[str, type[AbstractAlgorithm]] = {
    algorithm.__name__: algorithm for algorithm in (FedHSA, LocalSA, SynchronisedSA, SA)
}
"""Every algorithm by name."""

"""Algorithms: one class per method, its settings as fields."""

from .base import (
    AbstractAlgorithm as AbstractAlgorithm,
)
from .base import (
    Coded as Coded,
)
from .base import (
    Cost as Cost,
)
from .base import (
    Exchange as Exchange,
)
from .base import (
    PerAgent as PerAgent,
)
from .base import (
    Replies as Replies,
)
from .base import (
    Round as Round,
)
from .cost import cost as cost
from .fed_hsa import FedHSA as FedHSA
from .local_sa import SA as SA
from .local_sa import LocalSA as LocalSA
from .local_sa import SynchronisedSA as SynchronisedSA
from .parse import parse as parse
from .schedules import (
    AbstractSchedule as AbstractSchedule,
)
from .schedules import (
    Polynomial as Polynomial,
)
from .schedules import (
    corollary_step as corollary_step,
)
from .wrapper import AbstractWrapper as AbstractWrapper

ALGORITHMS: dict[str, type[AbstractAlgorithm]] = {
    algorithm.__name__: algorithm for algorithm in (FedHSA, LocalSA, SynchronisedSA, SA)
}
"""Every algorithm by name."""

WRAPPERS: dict[str, type[AbstractWrapper]] = {}
"""Every wrapper by name: what composes with the algorithms."""

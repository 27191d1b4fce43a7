"""FedHSA against Local SA on one problem, with or without noise: figures 2, 4, 6 and 8 of the paper."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from ..algorithms import AbstractAlgorithm, FedHSA, LocalSA
from ..problems import Problem
from ..theory import Prediction, predict
from . import statistics
from .assumptions import assumption_checks, examine
from .base import AbstractExperiment, Outcome, Table, Watch
from .checks import Check, at_most, equals, inside, near
from .instance import Instance, stable
from .traces import Trace, cost_checks, draw_traces, floor_samples, trace_table

DEEP = 1e-20
"""The squared error that counts as none."""
WITHIN = 0.05
"""How far predictions that are no exact laws may be off, as a part."""


@dataclasses.dataclass(frozen=True)
class Comparison(AbstractExperiment):
    """Both methods on the same problem, from the same start, with the same noise."""

    instance: Instance = dataclasses.field(default_factory=lambda: Instance("quadratic", 20))
    noiseless: bool = False
    """Give every agent its mean operator."""
    step_size: float = 0.001
    local_steps: int = 10
    rounds: int = 1500
    start: str = "zeros"
    """Where both start: `zeros`, or `normal` for a standard normal draw."""
    silent: tuple[str, ...] = ()
    """What the paper leaves open here, and what we chose."""

    quick_settings: ClassVar[dict[str, Any]] = {"seeds": 8}

    def algorithms(self) -> dict[str, AbstractAlgorithm]:
        """The two methods."""
        return {a.__name__: a(self.step_size, local_steps=self.local_steps) for a in (FedHSA, LocalSA)}

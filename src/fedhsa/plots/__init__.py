"""Figures: error curves with intervals over seeds, comparisons of methods, value maps, sweeps, and predictions."""

from ._compare import Trace, compare, tuning
from ._curves import Curve, curves
from ._maps import value_map
from ._sites import sites
from ._style import COLOURS, save, style
from ._style import FORMATS as FORMATS
from ._style import POINTS as POINTS
from ._style import rehearse as rehearse
from ._sweep import sweep
from ._theory import analysis, decay, floors, speedup

__all__ = [
    "COLOURS",
    "Curve",
    "Trace",
    "analysis",
    "compare",
    "curves",
    "decay",
    "floors",
    "save",
    "sites",
    "speedup",
    "style",
    "sweep",
    "tuning",
    "value_map",
]

"""Figures: error curves with intervals over seeds, comparisons of methods, value maps, sweeps, and predictions."""

from ._compare import Trace as Trace
from ._compare import compare as compare
from ._compare import tuning as tuning
from ._curves import Curve as Curve
from ._curves import curves as curves
from ._maps import value_map as value_map
from ._sites import sites as sites
from ._style import COLOURS as COLOURS
from ._style import FORMATS as FORMATS
from ._style import POINTS as POINTS
from ._style import rehearse as rehearse
from ._style import save as save
from ._style import style as style
from ._sweep import sweep as sweep
from ._theory import analysis as analysis
from ._theory import decay as decay
from ._theory import floors as floors
from ._theory import speedup as speedup

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

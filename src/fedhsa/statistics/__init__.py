"""Statistics: estimates with intervals over independent seeds, and confidence regions from one run."""

from .confidence import Confidence, confidence
from .estimates import LEVEL as LEVEL
from .estimates import ROUNDING as ROUNDING
from .estimates import (
    Estimate,
    autocorrelation_time,
    crossing,
    growth,
    interval,
    jackknife,
    mean,
    power,
    ratio,
    slope,
    squared_bias,
    squared_bias_samples,
)

__all__ = [
    "Confidence",
    "Estimate",
    "autocorrelation_time",
    "confidence",
    "crossing",
    "growth",
    "interval",
    "jackknife",
    "mean",
    "power",
    "ratio",
    "slope",
    "squared_bias",
    "squared_bias_samples",
]

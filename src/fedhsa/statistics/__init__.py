"""Statistics: estimates with intervals over independent seeds, and confidence regions from one run."""

from .confidence import Confidence as Confidence
from .confidence import confidence as confidence
from .estimates import LEVEL as LEVEL
from .estimates import ROUNDING as ROUNDING
from .estimates import Estimate as Estimate
from .estimates import autocorrelation_time as autocorrelation_time
from .estimates import crossing as crossing
from .estimates import growth as growth
from .estimates import interval as interval
from .estimates import jackknife as jackknife
from .estimates import mean as mean
from .estimates import power as power
from .estimates import ratio as ratio
from .estimates import slope as slope
from .estimates import squared_bias as squared_bias
from .estimates import squared_bias_samples as squared_bias_samples

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

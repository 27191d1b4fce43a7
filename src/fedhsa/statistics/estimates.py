r"""Means, ratios and slopes with intervals, for positive and skewed errors of independent seeds.

A smooth function of means over seeds is, to first order, itself a mean over seeds of its influence values, and the
spread of these values gives its standard error (delta method). Intervals of means, ratios and slopes are symmetric on
the logarithmic scale: with the standard error $e$ of the logarithm and Student's quantile $q$ of $n - 1$ degrees of
freedom, the half-width is $q e (1 + 1.25 e^2)$. The last factor makes up for the skewness of errors and was chosen by
measurement. Without it, 95 % intervals of squared Gaussian errors in 1, 2, 5 and 10 dimensions cover in 91 to 95 % of
cases with 8, 16 and 32 seeds; with it, means cover in 94.1 to 95 %, ratios in 95 to 95.9 %, slopes in 94.3 to 95.3 %.
Log-normal errors have heavier tails: their means cover in 93.6 to 94.3 % for sigma 0.5, and in 90 to 92 % for sigma 1.
At the level 99.9 %, means of squared Gaussian errors cover in 99.7 to 99.9 %.

Seeds are independent, so the autocorrelation within a run is already reflected in the spread between seeds, and
comparisons of curves that share their noise keep the benefit of pairing.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

LEVEL = 0.999
"""The default level of intervals. It is so high that some seventy of them can be expected to hold jointly."""

WIDENING = 1.25
"""The factor of the squared standard error by which intervals on the logarithmic scale are wider than Student's."""

ROUNDING = 1e-10
"""The error relative to the initial one below which `growth` ignores records, since rounding dominates there."""


class Estimate(NamedTuple):
    """An estimated number with its confidence interval.

    !!! example
        >>> found = Estimate(2.0, low=1.5, high=2.7)
        >>> found.contains(1.6), f"{found:.2f}", (found / 2).interval
        (True, '2.00 [1.50, 2.70]', (0.75, 1.35))
    """

    value: float
    """The estimate."""
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval."""

    @property
    def interval(self) -> tuple[float, float]:
        """The two ends of the interval."""
        return self.low, self.high

    def contains(self, value: float) -> bool:
        """Returns whether the interval contains the value."""
        return self.low <= value <= self.high

    def __truediv__(self, unit: float) -> "Estimate":
        """Returns the estimate in another unit."""
        return Estimate(*(end / unit for end in (self.value, self.low, self.high)))

    def __format__(self, spec: str) -> str:
        """Formats the number with its interval, such as `2.00 [1.50, 2.70]`."""
        value, low, high = (format(end, spec) for end in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"


def mean(samples: Any, level: float = LEVEL) -> Estimate:
    """Estimates the mean of positive samples, one per seed.

    **Arguments:**

    - `samples`: one positive number per seed, at least two.
    - `level`: the level of the interval.

    Raises `ValueError` if `samples` is not one row of at least two numbers.

    !!! example
        >>> found = mean([1.0, 2.0, 3.0, 2.0], level=0.95)
        >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
        (2.0, 1.01, 3.96)
    """
    samples = _row(samples)
    return _logarithmic(samples.mean(), samples / samples.mean() - 1, level)


def ratio(above: Any, below: Any, level: float = LEVEL) -> Estimate:
    """Estimates the ratio of two means over the same seeds. The seeds are paired, so that common noise cancels.

    **Arguments:**

    - `above`, `below`: the samples of the numerator and of the denominator, one positive number per seed.
    - `level`: the level of the interval.

    Raises `ValueError` if `above` or `below` is not one row of at least two numbers.

    !!! example
        >>> noise = np.array([1.0, 2.0, 3.0, 2.0])
        >>> tuple(round(x, 6) for x in ratio(2 * noise, noise))
        (2.0, 2.0, 2.0)
    """
    above, below = _row(above), _row(below)
    influence = above / above.mean() - below / below.mean()
    return _logarithmic(above.mean() / below.mean(), influence, level)


def slope(x: Any, samples: Any, level: float = LEVEL) -> Estimate:
    """Estimates the least-squares slope of the logarithm of the mean over seeds against the logarithm of `x`.

    **Arguments:**

    - `x`: positive numbers.
    - `samples`: positive numbers, `(len(x), seeds)`.
    - `level`: the level of the interval.

    Raises `ValueError` if there are fewer than two seeds.

    !!! example
        >>> samples = np.outer([8.0, 4.0, 2.0], [0.9, 1.0, 1.1])
        >>> round(slope([1, 2, 4], samples).value, 6)
        -1.0
    """
    samples = np.stack([_row(row) for row in samples])
    at = np.log(np.asarray(x, dtype=float))
    weights = (at - at.mean()) / ((at - at.mean()) ** 2).sum()
    averages = samples.mean(1, keepdims=True)
    influence = weights @ (samples / averages - 1)
    value = float(weights @ np.log(averages[:, 0]))
    unit = abs(weights).sum() / 2  # for two points, the slope in this unit is the logarithm of the ratio
    half = float(unit * _half_width(influence / unit, level))
    return Estimate(value, value - half, value + half)


def power(x: Any, values: Any) -> float:
    """Returns the slope of noiseless numbers on logarithmic axes.

    **Arguments:**

    - `x`, `values`: positive numbers, equally many.

    !!! example
        >>> round(power([1, 2, 4], [8.0, 4.0, 2.0]), 6)
        -1.0
    """
    return float(np.polyfit(np.log(x), np.log(values), 1)[0])


def squared_bias(means: np.ndarray, level: float = LEVEL) -> Estimate:
    r"""Estimates the squared norm of a mean from one estimate of the mean per seed.

    With the average $m$ of the $K$ seeds and their covariance $S$, $|m|^2$ exceeds the squared norm by
    $\mathrm{tr} S / K$ on average, which is subtracted. The interval uses the variance
    $4 m^T S m / K + 2\,\mathrm{tr}(S^2) / K^2$, which is conservative if the bias is small. The estimate may be
    negative if there is no bias.

    **Arguments:**

    - `means`: one estimate of the mean per seed, `(seeds, d)`.
    - `level`: the level of the interval.

    !!! example
        >>> seeds = np.random.default_rng(0).normal([3.0, 4.0], 1.0, size=(10000, 2))
        >>> bool(abs(squared_bias(seeds).value - 25) < 0.5), squared_bias(seeds - [3.0, 4.0]).contains(0.0)
        (True, True)
    """
    K, m = len(means), means.mean(0)
    S = np.atleast_2d(np.cov(means.T)) / K
    value = float(m @ m - np.trace(S))
    half = float(scipy.special.stdtrit(K - 1, (1 + level) / 2) * np.sqrt(4 * m @ S @ m + 2 * np.trace(S @ S)))
    return Estimate(value, value - half, value + half)


def squared_bias_samples(means: np.ndarray) -> np.ndarray:
    """Returns one number per seed, whose mean is the estimated squared bias.

    To first order, the spread of these numbers is that of the estimate.

    **Arguments:**

    - `means`: one estimate of the mean per seed, `(seeds, d)`.

    !!! example
        >>> errors = np.random.default_rng(0).normal(loc=[3.0, 4.0], size=(1000, 2))  # mean errors of 1000 seeds
        >>> squared_bias_samples(errors).mean().round(0)
        np.float64(25.0)
    """
    m = means.mean(0)
    return squared_bias(means).value + 2 * (means - m) @ m


def jackknife(value: Callable[[np.ndarray], float], seeds: np.ndarray, level: float = LEVEL) -> Estimate:
    """Estimates a smooth positive function of the seeds, with an interval from leaving out one seed at a time.

    **Arguments:**

    - `value`: a function from an array of seeds to a positive number.
    - `seeds`: all seeds.
    - `level`: the level of the interval.

    !!! example
        >>> samples = np.array([1.0, 2.0, 3.0, 2.0])
        >>> found, known = jackknife(lambda seeds: samples[seeds].mean(), np.arange(4)), mean(samples)
        >>> abs(found.low - known.low) < 0.05
        True
    """
    whole, n = value(seeds), len(seeds)
    left_out = np.array([value(np.delete(seeds, i)) for i in range(n)])
    influence = (n - 1) * (np.log(whole) - np.log(left_out))
    return _logarithmic(whole, influence, level)


def autocorrelation_time(errors: Any) -> float:
    r"""Estimates the integrated autocorrelation time $1 + 2 \sum_k \rho_k$, in records.

    One independent record is worth this number of successive records. The correlations $\rho_k$ are averaged over
    seeds, and the sum ends at five times its own value (Sokal's window).

    **Arguments:**

    - `errors`: the records of a stationary run, `(seeds, records)`.

    !!! example
        >>> rng = np.random.default_rng(0)
        >>> 0.9 < autocorrelation_time(rng.normal(size=(20, 1000))) < 1.1
        True
    """
    errors = np.asarray(errors, dtype=float)
    centred = errors - errors.mean()
    length = errors.shape[1]
    power = np.abs(np.fft.rfft(centred, 2 * length, axis=1)) ** 2
    covariance = np.fft.irfft(power, axis=1)[:, :length].mean(0) / np.arange(length, 0, -1)
    if not covariance[0] > 0:
        return 1.0
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    enough = np.flatnonzero(np.arange(length) >= 5 * times)
    return float(max(times[enough[0]] if len(enough) else times[length // 2], 1.0))


def interval(error: Any, level: float = 0.95, *, positive: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Returns the mean over seeds and the two ends of its interval, three arrays of shape `(records,)`.

    Errors are positive and skewed, so the interval is symmetric for the logarithm of the mean (delta method). With
    the sample mean $m$, the standard deviation $s$, the relative standard error $e = s / (m \sqrt n)$ and the Student
    quantile $q$ of $n - 1$ degrees of freedom, it is $m \exp(\pm q e (1 + 1.25 e^2))$. For squared Gaussian errors,
    intervals at 95 % cover in 94.1 to 95 % of cases, with 8 to 32 seeds in one or more dimensions.

    If `positive=False`, or if any value is negative, it is Student's interval $m \pm q\, s / \sqrt n$ instead. All
    three numbers are infinite at records where a seed has diverged (is infinite or NaN). With a single seed the two
    ends are NaN.

    **Arguments:**

    - `error`: one row of records per seed, `(seeds, records)`.
    - `level`: the level of the interval.
    - `positive`: whether the quantity is always positive.

    Raises `ValueError` if `error` has another shape.

    !!! example
        >>> mean, low, high = interval([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [2.0, 0.0]])
        >>> mean.tolist(), low.round(2).tolist(), high.round(2).tolist()
        ([2.0, 0.0], [1.01, 0.0], [3.96, 0.0])
    """
    error = np.asarray(error, dtype=np.float64)
    if error.ndim != 2 or not error.size:
        raise ValueError(f"`error` must have shape (seeds, records), got {error.shape}.")
    seeds = len(error)
    finite = np.isfinite(error).all(0)
    error = np.where(finite, error, 1.0)
    mean, half = error.mean(0), np.nan
    if not positive or (error < 0).any():
        half = _half_width(error, level, widening=0.0) if seeds > 1 else half
        low, high = mean - half, mean + half
    else:
        half = _half_width(error / np.where(mean > 0, mean, 1.0), level) if seeds > 1 else half
        low, high = mean / np.exp(half), mean * np.exp(half)
    return np.where(finite, mean, np.inf), np.where(finite, low, np.inf), np.where(finite, high, np.inf)


def growth(error: np.ndarray) -> float:
    """Returns the factor per round of the root of a squared error, over the second half of a noiseless run.

    The run ends where the error overflows or reaches the level of rounding. The factor is the slope of a line fitted to
    the logarithms, since errors may oscillate.

    **Arguments:**

    - `error`: the squared error after each round.

    !!! example
        >>> round(growth(0.25 ** np.arange(50)), 6), round(growth(4.0 ** np.arange(50)), 6)
        (0.5, 2.0)
    """
    fine = np.isfinite(error) & (error > ROUNDING**2 * error[0])
    last = len(error) - 1 if fine.all() else int(np.argmin(fine)) - 1
    if last < 1:
        return 0.0 if error[1] < error[0] else 1e300
    at = np.arange(last // 2, last + 1)
    return float(np.exp(np.polyfit(at, np.log(error[at]), 1)[0] / 2))


def crossing(error: np.ndarray, target: float) -> float:
    """Returns the round at which the error reaches the target, or infinity if it never does.

    Between two rounds the logarithm of the error is interpolated linearly.

    **Arguments:**

    - `error`: the error after each round.
    - `target`: the error to reach.

    !!! example
        >>> crossing(np.array([1.0, 0.1, 0.01]), 0.1), crossing(np.array([1.0, 0.5]), 0.1)
        (1.0, inf)
    """
    reached = np.flatnonzero(error <= target)
    if not len(reached) or not reached[0]:
        return 0.0 if len(reached) else math.inf
    before, after = np.log(error[reached[0] - 1 : reached[0] + 1])
    return float(reached[0] - 1 + (before - math.log(target)) / (before - after))


def _row(samples: Any) -> np.ndarray:
    samples = np.asarray(samples, dtype=float)
    if samples.ndim != 1 or len(samples) < 2:
        raise ValueError(f"An interval requires one row of at least two seeds, got an array of shape {samples.shape}.")
    return samples


def _logarithmic(value: float, influence: np.ndarray, level: float) -> Estimate:
    factor = np.exp(_half_width(influence, level))
    return Estimate(float(value), float(value / factor), float(value * factor))


def _half_width(influence: np.ndarray, level: float, widening: float = WIDENING) -> Any:
    seeds = len(influence)
    error = influence.std(0, ddof=1) / np.sqrt(seeds)
    return scipy.special.stdtrit(seeds - 1, (1 + level) / 2) * error * (1 + widening * error**2)

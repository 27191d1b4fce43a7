"""Statistics of correlated samples: long-run covariances by kernels, lagged products, roots, and intervals."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from ... import _check

KERNELS = ("quadratic-spectral", "bartlett")
LEAST_SAMPLES = 100
"""The fewest steps, in all repetitions, from which a bandwidth can be estimated."""
LEAST_EFFECTIVE = 50.0
"""The number of effective samples below which an estimate depends mostly on the kernel."""
BANDWIDTH_CAP = 1 / 8
"""The largest bandwidth, as a fraction of the series."""
QUIET_LAGS = 5
"""The number of successive lags without correlation that ends the search."""
LAG_FACTOR = 6
"""The bandwidth in units of the last correlated lag, which makes the bias small relative to the standard error."""
LARGEST_FIT = 0.97
"""The largest singular value of a fitted autoregression (Andrews and Monahan, 1992)."""
NEWTON_STEPS = 50
NEWTON_TOLERANCE = 1e-10


def long_run_covariance(
    series: Any, *, kernel: str = "quadratic-spectral", bandwidth: float | None = None
) -> np.ndarray:
    r"""Estimates $\Gamma = \sum_k \mathrm{Cov}(x_0, x_k)$ over all lags of both signs, from a series.

    The series is prewhitened (Andrews and Monahan, 1992): with the autoregression $x_t = A x_{t-1} + e_t$ fitted by
    least squares, $\hat\Gamma = (I - A)^{-1} \hat\Gamma_e (I - A)^{-T}$, where
    $\hat\Gamma_e = \frac1n \sum_{s,t} w\left(\frac{s-t}{b}\right) (e_s - \bar e)(e_t - \bar e)^T / (1 - S/n)$ is the
    kernel estimate of the $n$ residuals, and $S = \sum_{|k|<n} w(k/b) (1 - |k|/n)$ corrects for the estimated mean.
    Both kernels $w$ are positive definite, so the result is symmetric and positive semi-definite.

    **Arguments:**

    - `series`: `(time, d)`; further leading axes are independent repetitions, each with its own covariance.
    - `kernel`: `"quadratic-spectral"`, the best among those with semi-definite results (Andrews, 1991), or
      `"bartlett"` (Newey and West, 1987).
    - `bandwidth`: $b$, in steps. Default: `choose_bandwidth(series)`.

    Warns if the series is worth fewer than 50 independent samples.

    !!! example
        >>> noise = np.random.default_rng(0).normal(size=100_000)
        >>> moving_sum = noise[1:] + noise[:-1]                    # 1 + 2 + 1: the sum over lags is 4
        >>> bool(abs(long_run_covariance(moving_sum[:, None])[0, 0] / 4 - 1) < 0.03)
        True
    """
    x = _as_series(series)
    _check.choice("kernel", kernel, KERNELS)
    if bandwidth is None:
        bandwidth = choose_bandwidth(x, kernel=kernel)
    _check.number("bandwidth", bandwidth, above=0.0)
    result = smooth_covariance(x, bandwidth, kernel)
    warn_if_short("series", x.shape[-2], np.array([bandwidth]), np.array([effective_samples(x, result)]))
    return result


def choose_bandwidth(series: Any, *, kernel: str = "quadratic-spectral") -> float:
    r"""Chooses a bandwidth for the long-run covariance of `series`, `(time, d)` or `(repeats, time, d)`.

    It is the larger of the following two, but at least 1 and at most an eighth of the series:

    - the plug-in rule of Andrews (1991, eq. 6.2 and 6.4): the bandwidth with the least mean-square error if every
      component were an AR(1) with its lag-one correlation $\rho_a$. With components scaled to variance one,
      $b = 1.3221 (\alpha n)^{1/5}$ and $\alpha = \sum_a \frac{4 \rho_a^2 (1+\rho_a)^2}{(1-\rho_a)^6} / \sum_a
      \frac{(1+\rho_a)^2}{(1-\rho_a)^2}$ for the quadratic-spectral kernel; $b = 1.1447 (\alpha n)^{1/3}$ and
      $\alpha = \sum_a \frac{4 \rho_a^2}{(1-\rho_a)^4} / \sum_a \frac{(1+\rho_a)^2}{(1-\rho_a)^2}$ for Bartlett's;
    - six times the last lag $k$ at which some component is visibly correlated, $|\rho_k| > 2 \sqrt{\log_{10} n} s_k$
      with the standard error $s_k^2 = \frac1n (1 + 2 \sum_{0<j<k} \rho_j^2)$. The search ends after five lags in a row
      below this bound (the rule of Politis, 2003). Unlike the first rule, this one detects a slow component under fast
      noise.

    Here $n$ counts the samples of all repetitions, since their estimates are averaged.
    """
    x = _as_series(series)
    _check.choice("kernel", kernel, KERNELS)
    n, total = x.shape[-2], x.shape[-2] * math.prod(x.shape[:-2])
    cap = max(1, int(BANDWIDTH_CAP * n))
    correlation = _autocorrelation(x, cap // LAG_FACTOR + QUIET_LAGS)
    return float(
        np.clip(max(_plug_in(correlation[1], total, kernel), LAG_FACTOR * _last_lag(correlation, total)), 1, cap)
    )


def smooth_covariance(x: np.ndarray, bandwidth: float, kernel: str = "quadratic-spectral") -> np.ndarray:
    """Computes the kernel estimate for series `(..., n, d)` at a given bandwidth, prewhitened and recoloured."""
    fit, x = _prewhiten(x)
    recolour = np.linalg.inv(np.eye(len(fit)) - fit)
    n = x.shape[-2]
    x = x - x.mean(-2, keepdims=True)
    weights = _weights(kernel, np.arange(n) / bandwidth)
    # The double sum is the series times its convolution with the weights, which takes n log n operations.
    size = _fast_length(2 * n)
    window = np.zeros(size)
    window[:n], window[size - n + 1 :] = weights, weights[:0:-1]
    smooth = np.fft.irfft(np.fft.rfft(x, size, axis=-2) * np.fft.rfft(window)[:, None], size, axis=-2)[..., :n, :]
    covariance = np.swapaxes(x, -1, -2) @ smooth / n
    spent = (2 * np.sum(weights * (1 - np.arange(n) / n)) - weights[0]) / n
    return recolour @ ((covariance + np.swapaxes(covariance, -1, -2)) / 2 / (1 - spent)) @ recolour.T


def _prewhiten(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Fits $x_t = A x_{t-1} + e_t$ plus a constant to all repetitions; returns $A$ and the residuals $e_t$.

    In units of the standard deviations, singular values of $A$ are at most `LARGEST_FIT`, so that $I - A$ has an
    inverse. The residuals of any $A$ estimate the same covariance, and those of a good fit with less bias.
    """
    every = tuple(range(x.ndim - 1))
    scale = x.std(every)
    varies = scale > 1e-12 * abs(x).max(every)  # the rest is rounding, to which nothing is fitted
    scale = np.where(varies, scale, 1.0)
    now, before = (varies * (part - part.mean(every)) / scale for part in (x[..., 1:, :], x[..., :-1, :]))
    now, before = now.reshape(-1, len(scale)), before.reshape(-1, len(scale))
    inverse = np.linalg.pinv(before.T @ before, rcond=1e-10, hermitian=True)  # noise may fill a subspace only
    left, values, right = np.linalg.svd(now.T @ before @ inverse)
    fit = scale[:, None] * (left * values.clip(max=LARGEST_FIT)) @ right / scale
    return fit, x[..., 1:, :] - x[..., :-1, :] @ fit.T


def centred(x: np.ndarray) -> np.ndarray:
    """Returns series `(repeats, n, d)` minus their common mean, which is exactly zero for constants."""
    away = x - x.mean((0, 1))  # the mean over all repetitions causes the least bias of products
    return np.where(abs(away).max((0, 1)) > 1e-12 * abs(x).max((0, 1)), away, 0.0)


def effective_samples(x: np.ndarray, long_run: np.ndarray) -> float:
    """Returns the number of independent samples with the same accuracy of the mean, for the slowest component."""
    variance = x.var(-2).reshape(-1, x.shape[-1]).mean(0)
    slow = np.diagonal(long_run, axis1=-2, axis2=-1).reshape(-1, x.shape[-1]).mean(0)
    times = slow[variance > 0] / variance[variance > 0]
    return float(x.shape[-2] / times.max(initial=1.0))


def warn_if_short(what: str, n: int, bandwidths: np.ndarray, effective: np.ndarray) -> None:
    """Warns if `n` steps are too few for their bandwidth or have too few effective samples; names the worst case."""
    short = (effective < LEAST_EFFECTIVE) | (bandwidths >= int(BANDWIDTH_CAP * n))
    if short.any():
        worst = int(np.argmin(np.where(short, effective, np.inf)))
        warnings.warn(
            f"{n} steps are too few for their correlation: those of {what} {worst} are worth about "
            f"{effective[worst]:.0f} independent ones, so its long-run covariance is uncertain and likely too small. "
            f"Use more steps, or a longer record ({int(short.sum())} of {len(short)} {what}s need them).",
            stacklevel=3,
        )


def check_finite(owner: str, values: np.ndarray, jacobians: np.ndarray) -> None:
    """Raises if values `(repeats, n, d)` of an operator, or mean Jacobians, are not finite."""
    bad = (~np.isfinite(values)).any(-1)
    if bad.any() or not np.isfinite(jacobians).all():
        what = f"operator of {owner} is not finite at {bad.sum()} of {bad.size} observations"
        what = what if bad.any() else f"derivative of the operator of {owner} is not finite, though its values are"
        raise ValueError(f"The {what}. Check the operator and its observations, or estimate at another `theta`.")


def lagged_means(sums: np.ndarray, mean: np.ndarray, noise: np.ndarray) -> np.ndarray:
    r"""Returns $\frac1{n-k} \sum_{t \ge k} (A(o_t) - \bar A)\, \epsilon_{t-k}$ from sums of $A(o_t)\, \epsilon_{t-k}$.

    The arguments are `sums` `(repeats, K + 1, d)`, `mean` $\bar A$ `(d, d)` and `noise` `(repeats, n, d)`. Lags are not
    tapered, since the bias of an algorithm requires each of them.
    """
    pairs = noise.shape[1] - np.arange(sums.shape[1])
    earlier = np.cumsum(noise, axis=1)[:, pairs - 1]
    return (sums - earlier @ mean.T) / pairs[:, None]


def sample_roots(average: Callable, thetas: np.ndarray) -> np.ndarray:
    """Finds the roots `(repeats, d)` of `average`, which returns values and Jacobians, by Newton's method.

    Each repetition has its own root and starts from `thetas`. Steps that do not reduce the residual are halved.
    """
    G, J = average(thetas)
    size = np.ones((len(thetas), 1))
    for _ in range(NEWTON_STEPS):
        step = -(np.linalg.pinv(J) @ G[..., None])[..., 0]
        solved = abs(G + (J @ step[..., None])[..., 0]).max() <= 1e-6 * abs(G).max()  # false if J is singular
        if solved and (abs(step) <= NEWTON_TOLERANCE * (1 + abs(thetas))).all():
            return thetas + step
        trial = thetas + size * step
        G_trial, J_trial = average(trial)
        better = np.linalg.norm(G_trial, axis=-1, keepdims=True) <= np.linalg.norm(G, axis=-1, keepdims=True)
        size = np.where(better, 1.0, size / 2)  # also halved if the trial is not finite
        thetas, G = np.where(better, trial, thetas), np.where(better, G_trial, G)
        J = np.where(better[..., None], J_trial, J)
    raise ValueError(
        f"Newton's method found no root of the sample average in {NEWTON_STEPS} steps from `theta`: the residual is "
        f"{abs(G).max():.3g}. Start closer to the root, or use more `samples`."
    )


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval."""

    estimate: Any
    low: Any
    high: Any


def jackknife(whole: Any, others: Sequence[Any], level: float) -> Interval:
    """Computes Student's interval for `whole` from the values without each of the repetitions."""
    _check.number("level", level, above=0.0, most=1 - 1e-9)
    R, whole = len(others), np.asarray(whole)
    reach = scipy.special.stdtrit(R - 1, (1 + level) / 2) * np.sqrt((R - 1) * np.var(np.stack(others), axis=0))
    return Interval(whole[()], (whole - reach)[()], (whole + reach)[()])


def _as_series(series: Any) -> np.ndarray:
    x = _check.array("series", series, ("repeats", "time", "d") if np.ndim(series) == 3 else ("time", "d"))
    repeats = math.prod(x.shape[:-2])
    if repeats * (x.shape[-2] + 1) - 1 < LEAST_SAMPLES:  # pieces of a record may have left out a remainder
        raise ValueError(f"`series` must have at least {LEAST_SAMPLES} steps, got shape {x.shape}. Record more.")
    return x


def _autocorrelation(x: np.ndarray, lags: int) -> np.ndarray:
    """Returns the correlations of every component at lags 0 to `lags`, `(lags + 1, d)`; zero for constants."""
    n, d = x.shape[-2:]
    scale = abs(x).reshape(-1, d).max(0)
    x = x - x.mean(-2, keepdims=True)
    size = _fast_length(n + lags)
    transform = np.fft.rfft(x, size, axis=-2)
    power = (transform.real**2 + transform.imag**2).reshape(-1, *transform.shape[-2:]).mean(0)
    covariance = np.fft.irfft(power, size, axis=0)[: lags + 1] / n
    # A constant minus its mean is rounding, whose correlations are meaningless.
    varies = covariance[0] > (1e-12 * scale) ** 2
    correlation = np.where(varies, covariance, 0.0) / np.where(varies, covariance[0], 1.0)
    correlation[0] = 1
    return correlation


def _plug_in(rho: np.ndarray, n: int, kernel: str) -> float:
    """Returns Andrews' bandwidth for components with these lag-one correlations."""
    rho = rho.clip(-1 + 1 / n, 1 - 1 / n)
    weight = ((1 + rho) / (1 - rho)) ** 2
    if kernel == "bartlett":
        alpha = np.sum(4 * rho**2 / (1 - rho) ** 4) / weight.sum()
        return float(1.1447 * (alpha * n) ** (1 / 3))
    alpha = np.sum(weight * 4 * rho**2 / (1 - rho) ** 4) / weight.sum()
    return float(1.3221 * (alpha * n) ** (1 / 5))


def _last_lag(correlation: np.ndarray, n: int) -> int:
    """Returns the last lag before `QUIET_LAGS` successive lags without visible correlation."""
    # Bartlett's formula: correlations of a correlated series have a larger standard error.
    variance = (2 * np.cumsum(correlation**2, axis=0) - 1) / n
    threshold = 2 * np.sqrt(math.log10(n) * np.concatenate([variance[:1], variance[:-1]]))
    loud = np.any(abs(correlation) > threshold, axis=-1).tolist()
    last = 0
    for lag in range(1, len(loud)):
        if loud[lag]:
            last = lag
        elif lag - last >= QUIET_LAGS:
            break
    return last


def _weights(kernel: str, x: np.ndarray) -> np.ndarray:
    """Returns $w(x)$, which is 1 at 0."""
    if kernel == "bartlett":
        return (1 - x).clip(min=0)
    z = np.where(x > 0, 6 * np.pi / 5 * x, 1.0)
    # 3 (sin z / z - cos z) / z^2, by the spherical Bessel function since the difference cancels at small z
    return np.where(x > 0, 3 * scipy.special.spherical_jn(1, z) / z, 1.0)


def _fast_length(least: int) -> int:
    length = scipy.fft.next_fast_len(least, real=True)
    assert length is not None
    return length

"""Confidence regions for the root from the iterates of one run, by batch means."""

import dataclasses
from typing import Any

import numpy as np
import scipy

from .. import _check


@dataclasses.dataclass(frozen=True, eq=False)
class Confidence:
    """A confidence region for the mean of the iterates. With several seeds, arrays have a leading axis of seeds."""

    centre: np.ndarray
    """The mean of the iterates after the burn-in, `(d,)`."""
    covariance: np.ndarray
    """The estimated covariance of the centre, `(d, d)`."""
    lower: np.ndarray
    """The lower end of each coordinate's interval, `(d,)`. The level holds for each interval, not for all jointly."""
    upper: np.ndarray
    """The upper end of each coordinate's interval, `(d,)`."""
    radius: float
    """The region's radius in units of the covariance: all $x$ with $(x - c)^T C^{-1} (x - c) \\le$ `radius`²."""
    level: float
    """The probability that the region covers the mean, in the limit of long batches."""
    batches: int
    """The number of batches that the iterates were divided into."""

    def contains(self, theta: Any) -> np.ndarray:
        """Returns whether the region contains `theta`, for each seed."""
        away = _check.array("theta", theta, (self.centre.shape[-1],)) - self.centre
        distance = np.sum(away * np.linalg.solve(self.covariance, away[..., None])[..., 0], axis=-1)
        return distance <= self.radius**2


def confidence(iterates: Any, *, burn_in: int = 0, batches: int | None = None, level: float = 0.95) -> Confidence:
    r"""Computes a confidence region for the mean of the iterates from one run, separately for each seed.

    The iterates after the burn-in are divided into $B$ batches of equal length. If the batches are long relative to
    the method's correlation time, their means are almost independent and normal. With the covariance $S$ of the batch
    means, the centre then has covariance $S/B$, each coordinate follows Student's distribution with $B - 1$ degrees of
    freedom, and

    $$(c - \mu)^T (S/B)^{-1} (c - \mu) \sim \frac{d (B - 1)}{B - d} F_{d, B-d}.$$

    The region is for the mean $\mu$ of the iterates. It is a region for $\theta^\star$ only if the method is unbiased:
    the region of Local SA with heterogeneous agents shrinks around the wrong point. Batches that are too short make
    the region too small.

    **Arguments:**

    - `iterates`: a result with `record=("theta",)`, or an array `(records, d)` or `(seeds, records, d)`.
    - `burn_in`: the number of initial records to discard.
    - `batches`: $B$, which must exceed $d$. Default: $20 + 2d$.
    - `level`: the probability of covering $\mu$.

    Raises `ValueError` if the result has no recorded iterates, if a seed diverged, or if there are too few records for
    the batches.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> method = fedhsa.FedHSA(0.05, local_steps=5)
        >>> result = fedhsa.simulate(problem, method, rounds=3000, seeds=20, record=("theta",))
        >>> region = confidence(result, burn_in=500)
        >>> int(region.contains(problem.theta_star).sum())       # 19 of the 20 seeds are expected
        19

    !!! cite "Huo, Chen, Xie (2023), batch means for constant steps; Hotelling (1931)"
    """
    thetas = _thetas(iterates)
    records, d = thetas.shape[-2:]
    B = 20 + 2 * d if batches is None else _check.count("batches", batches)
    _check.count("burn_in", burn_in, least=0)
    _check.number("level", level, above=0.0)
    if level >= 1:
        raise ValueError(f"`level` must be a probability below 1, got {level}.")
    if d >= B:
        raise ValueError(f"`batches` must exceed the dimension {d}, got {B}.")
    length = (records - burn_in) // B
    if length < 1:
        raise ValueError(
            f"`burn_in={burn_in}` leaves {records - burn_in} records for {B} `batches`. Run for more rounds."
        )
    kept = thetas[..., records - B * length :, :]  # the remainder joins the burn-in
    means = kept.reshape(*thetas.shape[:-2], B, length, d).mean(axis=-2)
    centre = means.mean(axis=-2)
    away = means - centre[..., None, :]
    covariance = np.swapaxes(away, -1, -2) @ away / (B - 1) / B
    half = scipy.special.stdtrit(B - 1, (1 + level) / 2) * np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
    radius = np.sqrt(d * (B - 1) / (B - d) * scipy.special.fdtri(d, B - d, level))
    return Confidence(centre, covariance, centre - half, centre + half, float(radius), level, B)


def _thetas(iterates: Any) -> np.ndarray:
    if hasattr(iterates, "records"):
        if "theta" not in iterates.records:
            raise ValueError('The result has no iterates. Simulate with `record=("theta",)`.')
        failed = np.flatnonzero(iterates.failed_round >= 0)
        if len(failed):
            raise ValueError(f"Seed {failed[0]} diverged, so its iterates have no mean. Use a smaller step size.")
        iterates = iterates.records["theta"]
    axes = ("seeds", "records", "d")[-max(2, min(3, np.ndim(iterates))) :]
    return _check.array("iterates", iterates, axes)

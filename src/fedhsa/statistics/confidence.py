"""Where the root may be, from the iterates of one run: confidence regions by batch means."""

import dataclasses
from typing import Any

import numpy as np
import scipy

from .. import _check


@dataclasses.dataclass(frozen=True, eq=False)
class Confidence:
    """A confidence region for the mean of the iterates; with a leading axis of seeds where there are several."""

    centre: np.ndarray
    """The mean of the iterates that count, `(d,)`."""
    covariance: np.ndarray
    """The estimated covariance of the centre, `(d, d)`."""
    lower: np.ndarray
    """Where the interval of each coordinate begins, `(d,)`. Each is of the given level by itself, not all together."""
    upper: np.ndarray
    """Where it ends, `(d,)`."""
    radius: float
    """The region's radius in units of the covariance: all $x$ with $(x - c)^T C^{-1} (x - c) \\le$ `radius`²."""
    level: float
    """The probability with which the region covers the mean, once batches are long."""
    batches: int
    """Into how many batches the iterates were cut."""

    def contains(self, theta: Any) -> np.ndarray:
        """Whether the region contains `theta`, for each seed."""
        away = _check.array("theta", theta, (self.centre.shape[-1],)) - self.centre
        distance = np.sum(away * np.linalg.solve(self.covariance, away[..., None])[..., 0], axis=-1)
        return distance <= self.radius**2


def confidence(iterates: Any, *, burn_in: int = 0, batches: int | None = None, level: float = 0.95) -> Confidence:
    r"""A confidence region for the mean of the iterates, from one run (of each seed by itself).

    The iterates after the burn-in are cut into $B$ batches of equal length. If these are long against the time in
    which the method forgets, their means are almost independent and normal; then with their covariance $S$, the centre
    has covariance $S/B$, each coordinate Student's distribution with $B - 1$ degrees of freedom, and

    $$(c - \mu)^T (S/B)^{-1} (c - \mu) \sim \frac{d (B - 1)}{B - d} F_{d, B-d}.$$

    The region is for the mean $\mu$ of the iterates. It is one for $\theta^\star$ only as far as the method is
    unbiased: that of Local SA with heterogeneous agents closes around the wrong point. Batches that are too short make
    it too small.

    **Arguments:**

    - `iterates`: a result with `record=("theta",)`, or an array `(records, d)` or `(seeds, records, d)`.
    - `burn_in`: how many of the first records do not count.
    - `batches`: $B$, more than $d$. Default: $20 + 2d$.
    - `level`: the probability of covering $\mu$.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> method = fedhsa.FedHSA(0.05, local_steps=5)
        >>> result = fedhsa.simulate(problem, method, rounds=3000, seeds=20, record=("theta",))
        >>> region = confidence(result, burn_in=500)
        >>> int(region.contains(problem.theta_star).sum())       # of 20, of which 19 are expected
        19

    !!! cite "Huo, Chen, Xie (2023), batch means for constant steps; Hotelling (1931)"
    """
    thetas = _thetas(iterates)
    records, d = thetas.shape[-2:]
    B = 20 + 2 * d if batches is None else _check.count("batches", batches)
    _check.count("burn_in", burn_in, least=0)
    _check.number("level", level, above=0.0)
    if level >= 1:
        raise ValueError(f"`level` is a probability below 1, got {level}.")
    if d >= B:
        raise ValueError(f"`batches` must be more than the dimension {d}, got {B}.")
    length = (records - burn_in) // B
    if length < 1:
        raise ValueError(
            f"`burn_in={burn_in}` leaves {records - burn_in} records for {B} `batches`. Run for more rounds."
        )
    kept = thetas[..., records - B * length :, :]  # what is left over joins the burn-in
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
            raise ValueError(f"Seed {failed[0]} has diverged: there is no mean. Use a smaller step.")
        iterates = iterates.records["theta"]
    axes = ("seeds", "records", "d")[-max(2, min(3, np.ndim(iterates))) :]
    return _check.array("iterates", iterates, axes)

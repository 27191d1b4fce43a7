"""What an exact law gives: mean and covariance of the error, round by round and in the long run."""

import abc
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class TooLargeError(TypeError):
    """There is such a law, but this problem is too large for it."""


class Moments(NamedTuple):
    """Mean `(d,)` and covariance `(d, d)` of the error."""

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def square(self) -> float:
        """The mean-square error, $|E e|^2 + \\mathrm{tr}\\,\\mathrm{cov}(e)$."""
        return float(self.mean @ self.mean + np.trace(self.covariance))


class Radius(NamedTuple):
    """The factor of the mean-square error per round in the long run."""

    value: float
    kind: str
    """`"exact"`, `"estimate"` or `"bound"`."""


class AbstractLaw(abc.ABC):
    """The law of the error of one algorithm on one problem."""

    basis: str = "exact"
    """What the numbers rest on: `"exact"`, `"one site"`, `"pairs"`, `"many agents"` and the like."""
    left_out: float = 0.0
    """The estimated relative error of the floor, the size of what the law leaves out: 0 where it is exact, nan where
    it is unknown."""

    @abc.abstractmethod
    def path(self, start: np.ndarray, rounds: int) -> Iterator[Moments]:
        """The moments before the first round and after each of `rounds`, from the error `start`."""

    @abc.abstractmethod
    def stationary(self) -> Moments:
        """The moments in the long run, by solving for them; raises ValueError where there are none."""

    def mean_square_radius(self) -> Radius | None:
        """The factor of the mean-square error per round in the long run; None where only the mean is known."""
        return None

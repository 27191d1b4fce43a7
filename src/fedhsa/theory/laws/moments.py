"""What a law gives: mean and covariance of the error, round by round and in the long run."""

import abc
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator

from ..maps.rounds import require_stable
from .solve import Part, fixed_point, radius

DENSE, CHUNK = 700, 64
"""Up to how many moments a round is a matrix, and how many of its columns are made at a time."""


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

    @property
    def second(self) -> np.ndarray:
        """$E[e e^T]$."""
        return self.covariance + np.outer(self.mean, self.mean)


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


class MomentLaw(AbstractLaw):
    """A law whose state is a stack of second moments of $x = (e, 1)$, `(blocks, d + 1, d + 1)`, mapped linearly.

    Its path, its stationary moments and its radii follow from that map: from its matrix where that is small.
    """

    name: str = "The method"
    """What the method is called in messages."""

    @abc.abstractmethod
    def begin(self, start: np.ndarray, *, stationary: bool = False) -> np.ndarray:
        """The state of a run from $x$ = `start`, with the chains' own start laws or with their stationary ones."""

    @abc.abstractmethod
    def round(self, blocks: np.ndarray) -> np.ndarray:
        """The state one round later."""

    @abc.abstractmethod
    def total(self, blocks: np.ndarray) -> np.ndarray:
        """The second moment of $x$."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """$d$."""

    def path(self, start, rounds):
        blocks = self.begin(np.append(start, 1.0))
        yield self._moments(blocks)
        for _ in range(rounds):
            blocks = self._after(blocks)
            yield self._moments(blocks)

    def stationary(self):
        require_stable(self.mean_square_radius().value, self.name, mean_square=True)
        base = self.begin(np.eye(self.dim + 1)[-1], stationary=True)
        found, unknown = base.copy(), _entries(base, lambda i, j: (i < self.dim) | (j < self.dim))
        found[unknown] = fixed_point(self._part(unknown), self._after(base)[unknown])
        return self._moments(found)

    @functools.cached_property
    def _square_radius(self) -> float:
        base = self.begin(np.zeros(self.dim + 1))
        return radius(self._part(_entries(base, lambda i, j: (i < self.dim) & (j < self.dim))))

    def mean_square_radius(self) -> Radius:
        return Radius(self._square_radius, "exact")

    @functools.cached_property
    def mean_radius(self) -> float:
        """The factor of the mean error per round in the long run."""
        base = self.begin(np.zeros(self.dim + 1))
        return radius(self._part(_entries(base, lambda i, j: (i < self.dim) ^ (j < self.dim))))

    @functools.cached_property
    def _matrix(self) -> np.ndarray | None:
        """The matrix of a round on flattened states; None where it is large."""
        shape = self.begin(np.zeros(self.dim + 1)).shape
        size = int(np.prod(shape))
        if size > DENSE:
            return None
        units = np.eye(size).reshape(size, *shape)
        units = (units + units.swapaxes(-1, -2)) / 2
        return np.concatenate([self.round(part).reshape(-1, size) for part in np.split(units, range(CHUNK, size, CHUNK))]).T

    def _after(self, blocks: np.ndarray) -> np.ndarray:
        return self.round(blocks) if self._matrix is None else (self._matrix @ blocks.ravel()).reshape(blocks.shape)

    def _part(self, entries: np.ndarray) -> Part:
        """The map of some entries by those entries."""
        if self._matrix is not None:
            places = np.flatnonzero(entries)
            return self._matrix[np.ix_(places, places)]

        def after(values: np.ndarray) -> np.ndarray:
            blocks = np.zeros(entries.shape)
            blocks[entries] = values
            return self.round((blocks + blocks.swapaxes(-1, -2)) / 2)[entries]

        return LinearOperator((entries.sum(),) * 2, matvec=lambda x: after(np.ravel(x)), dtype=np.float64)  # pyright: ignore[reportCallIssue]

    def _moments(self, blocks: np.ndarray) -> Moments:
        total = self.total(blocks)
        mean = total[:-1, -1]
        return Moments(mean, total[:-1, :-1] - np.outer(mean, mean))


def _entries(blocks: np.ndarray, which: Callable) -> np.ndarray:
    """Where in the blocks the entries `(i, j)` stand for which something holds."""
    return np.broadcast_to(which(*np.ogrid[: blocks.shape[-2], : blocks.shape[-1]]), blocks.shape)

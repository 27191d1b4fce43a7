"""What a law gives: mean and covariance of the error, round by round and in the long run."""

import abc
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator

from ..maps.rounds import require_stable
from .solve import Part, arnoldi, fixed_point, radius

DENSE, CHUNK = 300, 64
"""Up to how many moments a round is a matrix, and how many of its columns are made at a time."""
KRYLOV, FOLLOWED = 60, 3000
"""How many rounds are followed one by one before the rest is extrapolated from them, without a matrix and with one."""


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

    additive: bool = False
    """Whether the noise leaves the operators' matrices alone: the mean square then contracts as the mean does."""

    @property
    def quick(self) -> bool:
        """Whether the laws of many other settings can be asked for."""
        return True

    @abc.abstractmethod
    def path(self, start: np.ndarray, rounds: int) -> Iterator[Moments]:
        """The moments before the first round and after each of `rounds`, from the error `start`."""

    @abc.abstractmethod
    def stationary(self) -> Moments:
        """The moments in the long run, by solving for them; raises ValueError where there are none."""

    def errors(self, start: np.ndarray, rounds: int) -> np.ndarray:
        """The mean-square error before the first round and after each of `rounds`."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array([moments.square for moments in self.path(start, rounds)])

    def mean_square_radius(self) -> Radius | None:
        """The factor of the mean-square error per round in the long run; None where only the mean is known."""
        return None

    def mean_radius(self) -> float | None:
        """The factor of the mean error per round in the long run; None where it is that of a round without noise."""
        return None

    def persistent_bias(self) -> np.ndarray | None:
        """The mean error that stays at any number of agents like these; None where it is that without noise."""
        return None


class AbstractSteppedLaw(AbstractLaw):
    """A law that goes from state to state, so that a run can go on from a state with the law of another step."""

    @abc.abstractmethod
    def enter(self, start: np.ndarray) -> Any:
        """All that later rounds of a run from the error `start` depend on, also with other steps."""

    @abc.abstractmethod
    def step(self, state: Any) -> Any:
        """The state one round later."""

    @abc.abstractmethod
    def seen(self, state: Any) -> Moments:
        """The moments of the error in a state."""

    def path(self, start, rounds):
        state = self.enter(start)
        yield self.seen(state)
        for _ in range(rounds):
            state = self.step(state)
            yield self.seen(state)


class RelaxationLaw(AbstractSteppedLaw):
    r"""A law of which only the mean map $\Phi$ and the moments in the long run are known.

    $E e_t = m + \Phi^t (e_0 - m)$ and $\mathrm{cov}(e_t) = \Sigma - \Phi^t \Sigma (\Phi^t)^T$: it leaves out that noise
    in the operators' matrices is larger far from the root, and how correlated noise builds up in the first rounds.
    """

    def __init__(self, transition: np.ndarray, moments: Moments, *, basis: str, left_out: float = math.nan):
        self.transition, self.moments, self.basis, self.left_out = transition, moments, basis, left_out

    def enter(self, start):
        return Moments(start, np.zeros((len(start),) * 2))

    def step(self, state):
        (mean, covariance), Phi = self.moments, self.transition
        return Moments(mean + Phi @ (state.mean - mean), covariance + Phi @ (state.covariance - covariance) @ Phi.T)

    def seen(self, state):
        return state

    @property
    def quick(self):
        return False

    def stationary(self):
        return self.moments


class MomentLaw(AbstractSteppedLaw):
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

    def enter(self, start):
        return self.begin(np.append(start, 1.0))

    def step(self, state):
        return self._after(state)

    def seen(self, state):
        return self._moments(state)

    @property
    def quick(self):
        return self._matrix is not None

    def errors(self, start, rounds):
        if rounds <= (FOLLOWED if self._matrix is not None else KRYLOV) or not self.mean_square_radius().value < 1:
            return super().errors(start, rounds)
        # The way to the stationary state, in the space that the first rounds span: all that they show of slow modes.
        still = self._still
        away = self.begin(np.append(start, 1.0)) - still
        basis, reduced, size = arnoldi(lambda x: self._after(x.reshape(still.shape)).ravel(), away.ravel(), KRYLOV)
        shown = np.array([self._trace(vector.reshape(still.shape)) for vector in basis])
        left, errors = size * np.eye(len(reduced))[0], []
        for _ in range(rounds + 1):
            errors.append(self._trace(still) + shown @ left)
            left = reduced @ left
        return np.array(errors)

    def _trace(self, blocks: np.ndarray) -> float:
        return float(np.trace(self.total(blocks)[:-1, :-1]))

    def stationary(self):
        require_stable(self.mean_square_radius().value, self.name, mean_square=True)
        return self.settled()

    def settled(self) -> Moments:
        """The moments that a round does not change: those of the long run, unless the mean square grows."""
        found = self._moments(self._still)
        if found.square < 0:  # no law has such moments
            require_stable(self.mean_square_radius().value, self.name, mean_square=True)
        return found

    @functools.cached_property
    def _still(self) -> np.ndarray:
        """The state that a round does not change."""
        base = self.begin(np.eye(self.dim + 1)[-1], stationary=True)
        found, unknown = base.copy(), _entries(base, lambda i, j: (i < self.dim) | (j < self.dim))
        found[unknown] = fixed_point(self._part(unknown), self._after(base)[unknown])
        return found

    @functools.cached_property
    def _square_radius(self) -> float:
        base = self.begin(np.zeros(self.dim + 1))
        return radius(self._part(_entries(base, lambda i, j: (i < self.dim) & (j < self.dim))))

    def mean_square_radius(self) -> Radius:
        return Radius(self._square_radius, "exact")

    def mean_radius(self):
        base = self.begin(np.zeros(self.dim + 1))
        return radius(self._part(_entries(base, lambda i, j: (i < self.dim) ^ (j < self.dim))))

    @functools.cached_property
    def _matrix(self) -> np.ndarray | None:
        """The matrix of a round on flattened states; None where it is large."""
        shape = self.begin(np.zeros(self.dim + 1)).shape
        size = int(np.prod(shape))
        if size > DENSE:
            return None
        above = np.triu(np.ones(shape, bool))  # what lies below is the same, moments being symmetric
        units = np.eye(size)[above.ravel()].reshape(-1, *shape)
        units = (units + units.swapaxes(-1, -2)) / 2
        parts = np.split(units, range(CHUNK, len(units), CHUNK))
        found = np.empty((size, size))
        found[above.ravel()] = np.concatenate([self.round(part).reshape(-1, size) for part in parts])
        mirror = np.arange(size).reshape(shape).swapaxes(-1, -2).ravel()
        found[~above.ravel()] = found[mirror][~above.ravel()]
        return found.T

    def _after(self, blocks: np.ndarray) -> np.ndarray:
        if self._matrix is not None:
            return (self._matrix @ blocks.ravel()).reshape(blocks.shape)
        return self.round((blocks + blocks.swapaxes(-1, -2)) / 2)  # where they differ by rounding, that may grow

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

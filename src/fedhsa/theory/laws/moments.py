"""The interface of laws: mean and covariance of the error, round by round and in the long run."""

import abc
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator

from ...algorithms import AbstractAlgorithm
from ..maps.rounds import require_stable
from .solve import TOLERANCE, Part, arnoldi, fixed_point, radius, slowest_square

DENSE, CHUNK = 300, 64
"""The number of moments up to which a round is a matrix, and the number of columns computed at a time."""
KRYLOV, FOLLOWED = 60, 3000
"""The number of rounds followed one by one before the rest is extrapolated, without and with a matrix."""
MUCH = 0.03
"""The estimated relative error of a floor above which a prediction warns."""
TOO_MUCH, TOO_MUCH_OF_TRIPLES = 0.2, 0.06
"""The parts of a floor that pairs of agents, and larger sets, may add before it is unknown whether there is a floor at
all: such sets may make the mean square diverge where smaller ones do not."""
NEGLIGIBLE, HUGE, DOUBLINGS = 1e-3, 1e100, 40
"""The size below which a power of the mean map is neglected, that at which it diverges, and the most times that its
exponent is doubled."""


class Steps(NamedTuple):
    """The step sizes of a round and of the previous one, which methods with memory may use."""

    now: float
    before: float


class NotDerivedError(TypeError):
    """Raised if a method has no pieces; the message says why."""


class TooLargeError(TypeError):
    """Raised if a problem is too large for a law."""


class Moments(NamedTuple):
    """The mean and covariance of the error.

    !!! example
        >>> Moments(np.array([1.0, 0.0]), np.eye(2)).square
        3.0
    """

    mean: np.ndarray
    """The mean, `(d,)`."""
    covariance: np.ndarray
    """The covariance, `(d, d)`."""

    @property
    def square(self) -> float:
        """The mean-square error, $|E e|^2 + \\mathrm{tr}\\,\\mathrm{cov}(e)$."""
        return float(self.mean @ self.mean + np.trace(self.covariance))

    @property
    def second(self) -> np.ndarray:
        """The second moment $E[e e^T]$, `(d, d)`."""
        return self.covariance + np.outer(self.mean, self.mean)


class Radius(NamedTuple):
    """The factor of the mean-square error per round in the long run."""

    value: float
    """The factor."""
    kind: str
    """`"exact"`, `"estimate"` or `"bound"`."""
    field: float | None = None
    """A second estimate, from the noise of all agents as a Gaussian field; None if the first one needs no other."""

    @property
    def highest(self) -> float:
        """The larger of the estimates."""
        return self.value if self.field is None else max(self.value, self.field)

    @property
    def doubt(self) -> float:
        """The relative error of the floor if the larger estimate is right; floors go as 1 / (1 - radius)."""
        return (1 - self.value) / (1 - self.highest) - 1 if self.highest < 1 else math.inf

    @property
    def stable(self) -> bool | None:
        """Whether the mean-square error stays bounded; None if the estimates disagree."""
        return None if self.value < 1 <= self.highest else self.value < 1


class AbstractLaw(abc.ABC):
    """The law of the error of one algorithm on one problem."""

    basis: str = "exact"
    """The kind of law: `"exact"`, `"one site"`, `"pairs"`, `"many agents"` and others."""
    left_out: float = 0.0
    """The estimated relative error of the floor due to neglected terms: 0 if the law is exact, NaN if unknown."""

    bend: float = 0.0
    """The part of it that is due to an affine approximation of nonlinear operators."""

    def stable(self) -> bool | None:
        """Returns whether the mean-square error stays bounded; None if that is unknown."""
        radius = self.mean_square_radius()
        return None if radius is None else radius.stable

    @property
    def affine(self) -> "AbstractLaw":
        """The law of that approximation; for affine operators the law itself."""
        return self

    additive: bool = False
    """Whether the noise is additive, so that the mean square contracts at the rate of the mean."""

    @property
    def quick(self) -> bool:
        """Whether the law is fast enough to be evaluated for many settings."""
        return True

    @abc.abstractmethod
    def path(self, start: np.ndarray, rounds: int) -> Iterator[Moments]:
        """Yields the moments before the first round and after each of `rounds`, from the error `start`."""

    @abc.abstractmethod
    def stationary(self) -> Moments:
        """Returns the moments in the long run; raises `ValueError` if the method diverges."""

    def errors(self, start: np.ndarray, rounds: int) -> np.ndarray:
        """Returns the mean-square error before the first round and after each of `rounds`."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array([moments.square for moments in self.path(start, rounds)])

    def mean_square_radius(self) -> Radius | None:
        """Returns the factor of the mean-square error per round in the long run; None if only the mean is known."""
        return None

    def mean_radius(self) -> float | None:
        """Returns the factor of the mean error per round in the long run; None if it is that of a noiseless round."""
        return None

    limit_of_many: Callable[[], np.ndarray] | None = None
    """A function that returns the mean error of infinitely many similar agents, if it is known from elsewhere."""

    def persistent_bias(self) -> np.ndarray | None:
        """Returns the mean error that remains with any number of similar agents; None if it is that without noise."""
        return None if self.limit_of_many is None else self.limit_of_many()


class AbstractSteppedLaw(AbstractLaw):
    """A law that advances a state round by round, so that the law of another step size can continue from a state."""

    @property
    def steps(self) -> bool:
        """Whether it does so in problems of this size."""
        return True

    @abc.abstractmethod
    def enter(self, start: np.ndarray) -> Any:
        """Returns the initial state of a run from the error `start`."""

    @abc.abstractmethod
    def step(self, state: Any) -> Any:
        """Returns the state one round later."""

    @abc.abstractmethod
    def seen(self, state: Any) -> Moments:
        """Returns the moments of the error in a state."""

    def family(self, algorithm: AbstractAlgorithm, steps: Sequence[Steps]) -> "Sequence[AbstractSteppedLaw] | None":
        """Returns the laws of rounds with other step sizes, such that each can continue from the others.

        None if rounds depend on the current step size alone, and states have the same meaning in all laws of this kind.
        """
        return None

    def path(self, start, rounds):
        state = self.enter(start)
        yield self.seen(state)
        for _ in range(rounds):
            state = self.step(state)
            yield self.seen(state)


class RelaxationLaw(AbstractSteppedLaw):
    r"""A law for which only the mean map $\Phi$ and the long-run moments are known.

    $E e_t = m + \Phi^t (e_0 - m)$ and $\mathrm{cov}(e_t) = \Sigma - \Phi^t \Sigma (\Phi^t)^T$. It neglects that
    multiplicative noise is larger far from the root, and that correlated noise builds up over the first rounds.
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
    """A law whose state is a stack of second moments of $x = (e, 1)$, `(blocks, d + 1, d + 1)`, with a linear map.

    Its path, its stationary moments and its radii follow from that map, or from its matrix if that is small.
    """

    name: str = "The method"
    """The name of the method in messages."""

    @abc.abstractmethod
    def begin(self, start: np.ndarray, *, stationary: bool = False) -> np.ndarray:
        """Returns the state of a run from $x$ = `start`, with the chains' initial or stationary distributions."""

    @abc.abstractmethod
    def round(self, blocks: np.ndarray) -> np.ndarray:
        """Returns the state one round later."""

    @abc.abstractmethod
    def total(self, blocks: np.ndarray) -> np.ndarray:
        """Returns the second moment of $x$."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """$d$."""

    @property
    def free(self) -> int:
        """The number of the first entries of the state that can grow; what drives them cannot."""
        return self.dim

    def enter(self, start) -> Any:
        return self.begin(np.append(start, 1.0))

    def step(self, state) -> Any:
        return self._after(state)

    def seen(self, state):
        return self._moments(state)

    @property
    def quick(self):
        return self._matrix is not None

    def errors(self, start, rounds):
        if rounds <= (FOLLOWED if self._matrix is not None else KRYLOV) or not self.mean_square_radius().value < 1:
            return super().errors(start, rounds)
        # The path to the stationary state in the space spanned by the first rounds, which contains the slow modes.
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
        """Returns the moments that a round does not change: those of the long run, unless the mean square grows."""
        found = self._moments(self._still)
        if found.square < 0:  # impossible for moments
            require_stable(self.mean_square_radius().value, self.name, mean_square=True)
        return found

    @functools.cached_property
    def _still(self) -> np.ndarray:
        """Returns the state that a round does not change."""
        base = self.begin(np.eye(self.dim + 1)[-1], stationary=True)
        return base + self.added_up(self._after(base) - base)

    def added_up(self, blocks: np.ndarray, tolerance: float = TOLERANCE) -> np.ndarray:
        """Returns what blocks that are added in every round add up to; that of the constant does not count."""
        base = self.begin(np.eye(self.dim + 1)[-1], stationary=True)
        found, unknown = np.zeros(base.shape), _entries(base, lambda i, j: i < self.dim)
        found[unknown] = fixed_point(self._part(unknown), blocks[unknown], self._nearly(base, unknown), tolerance)
        return _mirrored(found)

    def _nearly(self, base: np.ndarray, entries: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        r"""Returns the sum of all later rounds as if chains were stationary and the mean map $A$ acted alone.

        Total moments become $\sum_k A^k Y (A^k)^T = \prod_j (1 + A^{2^j} \otimes A^{2^j})\, Y$. What is missing, noise
        and correlations, is small in one round and large over all of them, so that solving for the rest takes few
        iterations where the step size is small.
        """
        if self._matrix is not None:
            return lambda values: values
        weights, A, powers = base[:, -1:, -1:], self._mean_map, []
        while NEGLIGIBLE < np.abs(A).max() < HUGE and len(powers) < DOUBLINGS:
            powers.append(_bordered(A))
            A = A @ A
        if not np.abs(A).max() <= NEGLIGIBLE:  # the mean does not settle, or not in a foreseeable number of rounds
            return lambda values: values

        def summed(values: np.ndarray) -> np.ndarray:
            blocks = np.zeros(entries.shape)
            blocks[entries] = values
            blocks = _mirrored(blocks)
            Y = total = self.total(blocks)
            for power in powers:
                Y = Y + power @ Y @ power.T
            return (blocks + weights * (Y - total))[entries]

        return summed

    @functools.cached_property
    def _mean_map(self) -> np.ndarray:
        """The map of the mean over a round of chains that are stationary before it."""
        N = self.dim + 1
        weights = self.begin(np.eye(N)[-1], stationary=True)[:, -1:, -1:]
        means = [np.outer(unit, np.eye(N)[-1]) for unit in np.eye(N)[:-1]]
        return np.stack([self.total(self.round(weights * (Y + Y.T)))[:-1, -1] for Y in means], axis=1)

    @functools.cached_property
    def _square_radius(self) -> float:
        base = self.begin(np.eye(self.dim + 1)[-1], stationary=True)
        entries, near = _entries(base, lambda i, j: j < self.free), None
        if self._matrix is None:
            near = (base[:, -1:, -1:] * np.pad(slowest_square(self._mean_map), (0, 1)))[entries]
        return radius(self._part(entries), near)

    def mean_square_radius(self) -> Radius:
        return Radius(self._square_radius, "exact")

    def mean_radius(self):
        base = self.begin(np.zeros(self.dim + 1))
        return radius(self._part(_entries(base, lambda i, j: (i < self.dim) & (j == self.dim))))

    @functools.cached_property
    def _matrix(self) -> np.ndarray | None:
        """Returns the matrix of a round on flattened states; None if it is large."""
        shape = self.begin(np.zeros(self.dim + 1)).shape
        size = int(np.prod(shape))
        if size > DENSE:
            return None
        above = np.triu(np.ones(shape, bool))  # moments are symmetric
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
        return self.round((blocks + blocks.swapaxes(-1, -2)) / 2)  # asymmetry due to rounding could grow

    def _part(self, entries: np.ndarray) -> Part:
        """Returns the map restricted to some entries on or above the diagonal, which have equal ones below."""
        if self._matrix is not None:
            places, twice = np.flatnonzero(entries), 2 - np.broadcast_to(np.eye(entries.shape[-1]), entries.shape)
            return self._matrix[np.ix_(places, places)] * twice[entries]

        def after(values: np.ndarray) -> np.ndarray:
            blocks = np.zeros(entries.shape)
            blocks[entries] = values
            return self.round(_mirrored(blocks))[entries]

        return LinearOperator((entries.sum(),) * 2, matvec=lambda x: after(np.ravel(x)), dtype=np.float64)  # pyright: ignore[reportCallIssue]

    def _moments(self, blocks: np.ndarray) -> Moments:
        total = self.total(blocks)
        mean = total[:-1, -1]
        return Moments(mean, total[:-1, :-1] - np.outer(mean, mean))


def _bordered(A: np.ndarray) -> np.ndarray:
    """Returns the map of $(e, 1)$ that is `A` on $e$."""
    return np.pad(A, ((0, 1), (0, 1))) + np.diag(np.eye(len(A) + 1)[-1])


def _entries(blocks: np.ndarray, which: Callable) -> np.ndarray:
    """Returns the positions in the blocks of the entries `(i, j)` on or above the diagonal for which `which` holds."""
    i, j = np.ogrid[: blocks.shape[-2], : blocks.shape[-1]]
    return np.broadcast_to((i <= j) & which(i, j), blocks.shape)


def _mirrored(blocks: np.ndarray) -> np.ndarray:
    """Returns symmetric blocks, from those that are zero below the diagonal."""
    return blocks + np.tril(blocks.swapaxes(-1, -2), -1)

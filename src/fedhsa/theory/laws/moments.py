"""The interface of laws: mean and covariance of the error, round by round and in the long run."""

import abc
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse.linalg import LinearOperator

from ...algorithms import AbstractAlgorithm
from ..rule import require_stable
from .solve import DIGITS, TOLERANCE, Part, arnoldi, fixed_point, growth, largest, radius

DENSE = 150
"""The number of moments up to which a round is a matrix."""
KRYLOV, FOLLOWED = 60, 3000
"""The most rounds from which others are extrapolated, and that are followed one by one if there is a matrix."""
AT_ONCE = 64
"""The number of rounds that are extrapolated together."""
ALIKE = 0.1
"""How well the errors of two spaces must agree, relative to the root of the accuracy of the long run."""
WORTHWHILE = 10
"""The largest number of corrections in the search for a radius, before it is found without them."""
MUCH = 0.03
"""The estimated relative error of a floor above which a prediction warns."""
TOO_MUCH, TOO_MUCH_OF_TRIPLES = 0.2, 0.06
"""The parts of a floor that pairs of agents, and larger sets, may add before it is unknown whether there is a floor at
all: such sets may make the mean square diverge where smaller ones do not."""

State: TypeAlias = tuple[np.ndarray, ...]
"""Moments of a law, each with two last axes."""


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
        return self.covariance + self.mean[..., :, None] * self.mean[..., None, :]


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


class LongRun(NamedTuple):
    """The parts of the error in the long run, of a method that does not diverge; NaN where they are unknown."""

    heterogeneity: np.ndarray
    """The limit without noise, `(d,)`."""
    markov: np.ndarray
    """What the correlation of observations in time adds to the mean, `(d,)`."""
    curvature: np.ndarray
    """What noise adds to the mean because operators are nonlinear, `(d,)`."""
    covariance: np.ndarray
    """The covariance, `(d, d)`."""

    @staticmethod
    def of_mean(mean: np.ndarray, unknown: float) -> "LongRun":
        """Returns the long run of a mean; everything else is this number."""
        other = np.full(len(mean), unknown)
        return LongRun(mean, other, other, np.diag(other))


class AbstractLaw(abc.ABC):
    """The law of the error of one algorithm on one problem."""

    basis: str = "exact"
    """The kind of law: `"exact"`, `"one site"`, `"pairs"`, `"many agents"` and others."""
    left_out: float = 0.0
    """The estimated relative error of the floor due to neglected terms: 0 if the law is exact, NaN if unknown."""
    bend: float = 0.0
    """The part of it that is due to an affine approximation of nonlinear operators."""
    jacobians: np.ndarray | None = None
    """The Jacobians of the agents' mean operators, `(M, d, d)`, if they are estimated from samples."""
    interval: tuple[float, float] | None = None
    """A 95 % confidence interval of the floor, if it is estimated from samples."""
    additive: bool = False
    """Whether the noise is additive, so that the mean square contracts at the rate of the mean."""

    def leaves_out_more_than(self, share: float) -> bool:
        """Returns whether `left_out` exceeds a number, which may be quicker to say than what it is."""
        return self.left_out > share

    def stable(self) -> bool | None:
        """Returns whether the mean-square error stays bounded; None if that is unknown."""
        radius = self.mean_square_radius()
        return None if radius is None else radius.stable

    @property
    def affine(self) -> "AbstractLaw":
        """The law of the affine approximation; for affine operators the law itself."""
        return self

    def radius_at(self, algorithm: AbstractAlgorithm) -> Radius | None:
        """Returns the mean-square radius of the algorithm with another step size; None if it would take long."""
        return None

    @abc.abstractmethod
    def long_run(self) -> LongRun:
        """Returns the parts of the error in the long run; raises `ValueError` if the method diverges."""

    @abc.abstractmethod
    def persistent_bias(self) -> np.ndarray:
        """Returns the part of the mean that remains with any number of similar agents, `(d,)`; NaN if it is unknown."""

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

    @abc.abstractmethod
    def mean_radius(self) -> float:
        """Returns the factor of the mean error per round in the long run; NaN if it is unknown."""


class AbstractSteppedLaw(AbstractLaw):
    """A law that advances a state round by round, so that the law of another step size can continue from a state."""

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


class MomentLaw(AbstractSteppedLaw):
    """A law whose state are stacks of second moments of $(x, 1)$, the constant last, with a linear map.

    Its path, its stationary moments and its radii follow from that map, or from its matrix if that is small.
    """

    name: str = "The method"
    """The name of the method in messages."""

    @abc.abstractmethod
    def begin(self, start: np.ndarray, *, stationary: bool = False) -> State:
        """Returns the state of a run from the error `start`, from the chains' initial or stationary distributions."""

    @abc.abstractmethod
    def round(self, state: State) -> State:
        """Returns the state one round later; its arrays may have leading axes."""

    @abc.abstractmethod
    def total(self, state: State) -> np.ndarray:
        """Returns the second moment of $(x, 1)$."""

    @abc.abstractmethod
    def shown(self, total: np.ndarray) -> Moments:
        """Returns the moments of the error."""

    @property
    @abc.abstractmethod
    def growing(self) -> int:
        """The number of the first coordinates that may grow; noise cannot."""

    def summed(self, state: State) -> State:
        """Returns about what a state adds up to over all later rounds, as if the mean map acted alone."""
        return state

    def enter(self, start) -> Any:
        return self.begin(start)

    def step(self, state) -> Any:
        return self._after(state)

    def seen(self, state):
        return self.shown(self.total(self.moments(state)))

    vectors: int = KRYLOV
    """The number of rounds that a long path is extrapolated from."""

    def errors(self, start, rounds):
        followed = FOLLOWED if self._matrix is not None else self.vectors
        if rounds <= followed or not self.mean_square_radius().value < 1:
            return super().errors(start, rounds)
        if self._later is None or not np.array_equal(self._later[0], start):
            self._later = np.array(start), KrylovPath(self, self.moments(self.step(self.enter(start))))
        return np.append(super().errors(start, 0), self._later[1].errors(rounds - 1))

    _later: "tuple[np.ndarray, KrylovPath] | None" = None
    """The last start of a long path, and how it goes on after the first round."""

    def moments(self, state: Any) -> State:
        """Returns the moments in a state of a run."""
        return state

    def square(self, state: State) -> float:
        """Returns the mean-square error."""
        return float(np.trace(self.shown(self.total(state)).second))

    def stationary(self):
        if not (value := self.mean_square_radius().value) < 1:
            require_stable(self.mean_radius(), self.name)
            require_stable(value, self.name, mean_square=True)
        return self.settled()

    def settled(self) -> Moments:
        """Returns the moments that a round does not change: those of the long run, unless the mean square grows."""
        found = self.shown(self.total(self.still))
        if found.square < 0:  # impossible for moments
            require_stable(self.mean_square_radius().value, self.name, mean_square=True)
        return found

    @functools.cached_property
    def still(self) -> State:
        """The state that a round does not change."""
        base = self.base
        change = tuple(after - before for after, before in zip(self._after(base), base, strict=True))
        return tuple(x + y for x, y in zip(base, self.added_up(change), strict=True))

    @functools.cached_property
    def base(self) -> State:
        """A state at the root, with stationary chains."""
        return self.begin(np.zeros(self.dim), stationary=True)

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The number of parameters."""

    accuracy: tuple[float, float] = TOLERANCE, DIGITS
    """The relative accuracies of the long run and of radii."""

    def added_up(self, state: State, tolerance: float | None = None) -> State:
        """Returns what a state that is added in every round, without a constant, adds up to."""
        unknown = self._entries(lambda i, j, n: i < n - 1)
        added = self._flat(state, unknown)
        if self._matrix is not None:
            return self._whole(fixed_point(self._part(unknown), added), unknown)

        def nearly(values: np.ndarray) -> np.ndarray:
            return self._flat(self.summed(self._whole(values, unknown)), unknown)

        def size(values: np.ndarray) -> float:
            return abs(self.square(self._whole(values, unknown)))

        tolerance = tolerance or self.accuracy[0]
        measure = largest if tolerance == TOLERANCE else size
        return self._whole(fixed_point(self._map(unknown), added, nearly, tolerance, measure), unknown)

    @functools.cached_property
    def square_radius(self) -> float:
        """The factor of second moments per round."""
        entries = self._entries(lambda i, j, n: j < min(self.growing, n - 1))
        if self._matrix is not None:
            return radius(self._part(entries))

        def nearly(values: np.ndarray) -> np.ndarray:
            return self._flat(self.summed(self._whole(values[0], entries)), entries)[None]

        map, starts = self._map(entries), [self._flat(state, entries)[None] for state in self.starts()]
        least, found = 4 if self.accuracy[1] == DIGITS else 0, None
        if self.slow:
            found = growth(lambda values: (map @ values[0])[None], starts, nearly, self.accuracy[1], least, WORTHWHILE)
        return radius(map, starts[-1][0], self.accuracy[1]) if found is None else float(found[0])

    slow: bool = True
    """Whether the mean decays slowly, so that it is worthwhile to sum over later rounds."""

    @abc.abstractmethod
    def starts(self) -> list[State]:
        """Returns positive states in which the mode that grows fastest has a part."""

    def mean_square_radius(self) -> Radius:
        return Radius(self.square_radius, "exact")

    def mean_radius(self):
        entries = self._entries(lambda i, j, n: (i < min(self.growing, n - 1)) & (j == n - 1))
        return radius(self._map(entries) if self._matrix is None else self._part(entries))

    def _map(self, entries: np.ndarray) -> LinearOperator:
        """Returns a round as a map of some entries, which form a closed system."""

        def after(values: np.ndarray) -> np.ndarray:
            return self._flat(self.round(self._whole(values, entries)), entries)

        return LinearOperator((int(entries.sum()),) * 2, matvec=after, dtype=np.float64)  # pyright: ignore[reportCallIssue]

    def _whole(self, values: np.ndarray, entries: np.ndarray) -> State:
        """Returns the symmetric state with these entries on and above the diagonal."""
        found = np.zeros(len(entries))
        found[entries] = np.ravel(values)
        return self._mirrored(_unpacked(found, [x.shape for x in self.base]))

    def _flat(self, state: State, entries: np.ndarray) -> np.ndarray:
        return _packed(state)[entries]

    def _entries(self, which: Callable) -> np.ndarray:
        """Returns the positions in a packed state of the entries `(i, j)` with $i \\le j$ for which `which` holds."""
        found = []
        for x in self.base:
            i, j = np.ogrid[: x.shape[-2], : x.shape[-1]]
            found.append(np.broadcast_to((i <= j) & which(i, j, x.shape[-1]), x.shape).ravel())
        return np.concatenate(found)

    def _mirrored(self, state: State) -> State:
        """Returns symmetric moments, from those that are zero below the diagonal."""
        return tuple(x + np.tril(x.swapaxes(-1, -2), -1) for x in state)

    @functools.cached_property
    def _matrix(self) -> np.ndarray | None:
        """The matrix of a round on packed states, which are zero below the diagonal; None if it is large."""
        shapes = [x.shape for x in self.base]
        above = self._entries(lambda i, j, n: i <= j)
        count = int(above.sum())
        if count > DENSE:
            return None
        units = np.zeros((count, len(above)))
        units[:, above] = np.eye(count)
        after = self.round(self._mirrored(_unpacked(units, shapes)))
        found = np.zeros((len(above), len(above)))
        found[:, above] = _packed(after, 1).T
        return found

    def _after(self, state: State) -> State:
        state = _symmetric(state)  # asymmetry due to rounding could grow
        if self._matrix is None:
            return self.round(state)
        shapes = [x.shape for x in state]
        values = _packed(state) * self._above
        return _unpacked(self._matrix @ values, shapes)

    @functools.cached_property
    def _above(self) -> np.ndarray:
        return self._entries(lambda i, j, n: i <= j).astype(float)

    def _part(self, entries: np.ndarray) -> Part:
        """Returns the matrix restricted to some entries on or above the diagonal."""
        assert self._matrix is not None
        return self._matrix[np.ix_(entries, entries)]


def _symmetric(state: State) -> State:
    return tuple((x + x.swapaxes(-1, -2)) / 2 for x in state)


def _packed(state: State, lead: int = 0) -> np.ndarray:
    """Returns all entries of a state in one row, after some leading axes."""
    return np.concatenate([x.reshape(*x.shape[:lead], -1) for x in state], axis=-1)


def _unpacked(values: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> State:
    sizes = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
    parts = np.split(values, sizes, axis=-1)
    return tuple(x.reshape(*values.shape[:-1], *shape) for x, shape in zip(parts, shapes, strict=True))


class KrylovPath:
    """The errors of a path to the stationary state, in the space spanned by its first rounds, which contains the slow
    modes."""

    def __init__(self, law: MomentLaw, state: State):
        shapes, still = [x.shape for x in law.still], _packed(law.still)
        self.away, self.floor = _packed(state) - still, law.square(law.still)
        self.tolerance = ALIKE * math.sqrt(law.accuracy[0])
        self.square = lambda vector: law.square(_unpacked(vector, shapes))
        self.spaces = arnoldi(lambda x: _packed(law._after(_unpacked(x, shapes))), self.away, law.vectors)
        self.shown: list[float] = []
        self.maps: list[np.ndarray] = []

    def errors(self, rounds: int) -> np.ndarray:
        """Returns the errors of the first state and after each of `rounds`, in a space so large that a smaller one has
        nearly the same."""
        found = [self._within(reduced, rounds) for reduced in self.maps[-2:]]
        while len(found) < 2 or not np.allclose(*found, rtol=self.tolerance, atol=0.0):
            if (space := next(self.spaces, None)) is None:
                break
            basis, reduced = space
            self.shown += [self.square(vector) for vector in basis[len(self.shown) :]]
            self.maps.append(reduced)
            found = [*found[-1:], self._within(reduced, rounds)]
        return found[-1]

    def _within(self, reduced: np.ndarray, rounds: int) -> np.ndarray:
        """Returns the errors in one space, several rounds at a time."""
        n = len(reduced)
        rows, left, found = [np.array(self.shown[:n])], np.linalg.norm(self.away) * np.eye(n)[0], []
        for _ in range(AT_ONCE - 1):
            rows.append(rows[-1] @ reduced)
        several, leap = np.stack(rows), np.linalg.matrix_power(reduced, AT_ONCE)
        for _ in range(0, rounds + 1, AT_ONCE):
            found.append(self.floor + several @ left)
            left = leap @ left
        return np.concatenate(found)[: rounds + 1]

"""Limits of stability: the largest stable step size, and the largest stable number of local steps."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from .._linear import spectral_radius, transpose
from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from .exact import check_affine, quiet
from .laws.levels import LinearLaw
from .laws.moments import Radius
from .rule import LocalRule, local_rule
from .steps import check_schedule, with_step

PER_DECADE, EVERY = 60, 1000
"""The number of step sizes tried per decade, and the number up to which every number of local steps is tried."""
FEWEST, ONE_BY_ONE = 6, 16
"""These two numbers for problems so large that the search would take long."""
WORK = 2**32
"""The number of multiplications that a search may take before it tries fewer settings."""
START, SMALLEST, LARGEST = 5e-3, 1e-12, 1e8
"""The ends of the search for the first unstable step size, in units of `1 / (H max |A_i|)`."""
MOST_LOCAL_STEPS = 2**29
MOST_CARRIED = 256
"""The largest size of a carried state for which the largest step size is searched."""
EACH = 2.0**26
"""The time of the pieces for another step size, in multiplications."""
NOTHING = 1e-12
"""The largest entry of a power of `I + step A` that has vanished."""
ROUNDING, TRUSTED = 1e-14, 1e4
"""The relative asymmetry that is rounding, and the condition number up to which powers come from eigenvalues."""
COARSE, BELOW, ABOVE = 3, 0.05, 10.0
"""The number of step sizes per decade in the search for the largest mean-square-stable one, and its ends relative to
the largest mean-stable one. It is coarse because each step size requires another law."""
KINDS = {"exact": "mean square, exact", "estimate": "mean square, estimated", "bound": "mean square, bounded"}
"""The `kind` of a limit by the `kind` of the radius behind it, from the most to the least certain."""


class Limit(float):
    """A largest stable value: a `float` with the attributes `kind` and `scanned`.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> largest = max_step_size(problem, fedhsa.FedHSA(0.1, local_steps=5))
        >>> largest.kind
        'mean'
        >>> largest > 0.1, largest.scanned.startswith("60 steps a decade from")
        (True, True)
    """

    kind: str
    """The quantity that stays bounded below the limit: `"mean"`, or `"mean square"` and the accuracy of its radius."""
    scanned: str
    """A description of the values that were tried. A narrow band of instability between them can be missed."""

    def __new__(cls, value: float, kind: str, scanned: str):
        self = float.__new__(cls, value)
        self.kind, self.scanned = kind, scanned
        return self

    def __getnewargs__(self):  # so that it can be copied  # pyright: ignore[reportIncompatibleMethodOverride]
        return float(self), self.kind, self.scanned


def max_step_size(problem: Problem, algorithm: AbstractAlgorithm) -> Limit:
    """Returns the smallest step size at which the spectral radius of the round map reaches 1.

    At this step size the mean without noise stops converging. The mean-square error may already grow at smaller step
    sizes, which `predict(...).max_step_size` takes into account.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: the algorithm; all its settings except the step size are kept.

    **Returns:** a `Limit`. It is 0 if no step size is stable, and NaN for methods that have no `step_size` or carry so
    many numbers from round to round that the search would take long. About sixty step sizes per decade are tried, and
    the algorithm's own; the attribute `scanned` describes them.

    Raises `TypeError` if the problem or the rounds of the algorithm are not affine.

    !!! example
        >>> A = np.array([0.5, 2.0]).reshape(2, 1, 1)          # G_i = -a_i theta: with H = 1, stable up to 2 / mean(a)
        >>> problem = fedhsa.problems.quadratic.from_arrays(A, b=np.zeros((2, 1)))
        >>> round(max_step_size(problem, fedhsa.FedHSA(0.1, local_steps=1)), 6)
        1.6
    """
    check_affine(problem)
    check_schedule(algorithm)
    (A, _), rule = problem.affine_parts(), local_rule(algorithm)
    return largest_step(A, rule) if rule is not None else largest_mean_step(quiet(problem, algorithm), algorithm, A)


def max_local_steps(problem: Problem, algorithm: AbstractAlgorithm) -> Limit | None:
    r"""Returns the largest number of local steps before the spectral radius of the round map reaches 1.

    **Arguments:**

    - `problem`: an affine problem.
    - `algorithm`: the algorithm; all its settings except the number of local steps are kept.

    **Returns:** a `Limit`. It is infinite if every number is stable, and 0 if not even one local step is. It is None
    for methods without local steps or with a local rule other than those of FedHSA and Local SA. Every number up to
    1000 is tried, then about sixty per decade until the map no longer changes; the attribute `scanned` describes them.

    Raises `TypeError` if the problem is not affine.

    !!! example
        >>> A = np.array([0.1, 1.0]).reshape(2, 1, 1)
        >>> problem = fedhsa.problems.quadratic.from_arrays(A, b=np.zeros((2, 1)))
        >>> [max_local_steps(problem, method(0.5, local_steps=5)) for method in (fedhsa.FedHSA, fedhsa.LocalSA)]
        [19.0, inf]
    """
    check_affine(problem)
    check_schedule(algorithm)
    rule, (A, _) = local_rule(algorithm), problem.affine_parts()
    return None if rule is None or not hasattr(algorithm, "local_steps") else largest_local_steps(A, rule)


def largest_step(A: np.ndarray, rule: LocalRule) -> Limit:
    """Computes `max_step_size` of a local rule on operators with the Jacobians `A`."""
    maps, H = ManyRoundMaps(A, rule), rule.local_steps
    return first_crossing(lambda steps: excess(maps(steps, H)), A, H, own=rule.step_size, each=maps.work)


def largest_mean_step(law: LinearLaw, algorithm: AbstractAlgorithm, A: np.ndarray) -> Limit:
    """Computes `max_step_size` from the law without noise; NaN if that would take long."""
    if len(law.A) > MOST_CARRIED or with_step(algorithm, 1.0) is None:
        return Limit(math.nan, "mean", "no step at all")

    def growth(step: float) -> float:
        return min(spectral_radius(law.federation.at(with_step(algorithm, step)).mean_round()[:-1, :-1]), 1e100) - 1

    own = getattr(algorithm.layers[-1], "step_size", None)
    each = EACH * len(law.federation.pieces.rounds) * max(algorithm.block_length / 8, 1.0)
    return first_crossing(lambda steps: np.array([growth(s) for s in steps]), A, algorithm.block_length, own, each)


def largest_mean_square_step(
    algorithm: AbstractAlgorithm, radius: Callable[[AbstractAlgorithm], Radius | None], mean: Limit
) -> Limit:
    """Returns the smallest step size at which the mean-square error no longer contracts.

    `radius` returns the mean-square radius of an algorithm with another step size. If it is unknown, the result is
    `mean`, the limit for the mean.
    """
    kinds = list(KINDS)
    known = radius(algorithm)
    own = float(getattr(algorithm, "step_size", math.nan))
    base = float(mean) if 0 < mean < math.inf else own
    if known is None or mean == 0 or not base > 0:
        return mean
    worst = known.kind

    def growth(step: float) -> float:
        nonlocal worst
        found = known if step == own else radius(with_step(algorithm, step))
        if found is None:
            return math.nan
        worst = max(worst, found.kind, key=kinds.index)
        return min(found.highest, 1e100) - 1

    low = BELOW * base
    while not growth(low) < 0:
        low /= 10
        if low < SMALLEST * base:
            tried = f"one step a decade from {low:.3g} to {BELOW * base:.3g}, none of them stable"
            return Limit(0.0, KINDS[worst], tried)
    first, points = low, low * 10 ** (np.arange(1, math.log10(ABOVE * base / low) * COARSE + 1) / COARSE)
    for step in np.unique([*points, *([own] if low < own < points[-1] else [])]):
        if not (now := growth(step)) < 0:
            if math.isnan(now):
                return mean
            scanned = f"{COARSE} steps a decade from {first:.3g} to {step:.3g}"
            found = scipy.optimize.brentq(growth, low, step, rtol=1e-3)
            return Limit(found, KINDS[worst], scanned)  # pyright: ignore[reportArgumentType]
        low = step
    return Limit(math.inf, KINDS[worst], f"{COARSE} steps a decade from {first:.3g} to {low:.3g}, all of them stable")


def first_crossing(
    excess: Callable[[np.ndarray], np.ndarray], A: np.ndarray, H: int, own: float | None = None, each: float = 0.0
) -> Limit:
    """Returns the smallest step size at which a spectral radius reaches 1, for `H` local steps on the Jacobians `A`.

    `excess` maps many step sizes to the excess of their spectral radii over 1; `own` is an additional step size to try,
    and `each` is the number of multiplications for one.
    """
    size = H * np.linalg.norm(A, 2, axis=(1, 2)).max()
    per_decade = _per_decade(each)
    if not size > 0:
        return Limit(0.0, "mean", "no step at all: the operators do not depend on the parameter")

    def unstable(steps: np.ndarray) -> np.ndarray:
        return excess(steps) >= 0

    low = START / size
    if own is not None and own < low and unstable(np.array([own]))[0]:
        low = own
    while unstable(np.array([low]))[0]:
        low /= 10
        if low < SMALLEST / size:
            return Limit(0.0, "mean", f"one step a decade from {low:.3g} to {START / size:.3g}, none of them stable")
    first, ladder = low, 10 ** (np.arange(1, per_decade + 1) / per_decade)
    while low < LARGEST / size:
        steps = low * ladder
        if own is not None and low < own < steps[-1]:
            steps = np.unique([*steps, own])
        if (bad := unstable(steps)).any():
            k = int(np.argmax(bad))
            bracket = steps[k - 1] if k else low, steps[k]
            found = scipy.optimize.brentq(
                lambda step: float(excess(np.array([step]))[0]), *bracket, xtol=1e-14 * low, rtol=1e-10
            )
            return Limit(float(found), "mean", f"{per_decade} steps a decade from {first:.3g} to {bracket[1]:.3g}")  # pyright: ignore[reportArgumentType]
        low = steps[-1]
    return Limit(math.inf, "mean", f"{per_decade} steps a decade from {first:.3g} to {low:.3g}, all of them stable")


def largest_local_steps(A: np.ndarray, rule: LocalRule) -> Limit:
    """Computes `max_local_steps` of a local rule on operators with the Jacobians `A`."""
    maps, before, scanned = ManyRoundMaps(A, rule), 0, "no number at all"
    every, per_decade = int(np.clip(WORK / maps.work, ONE_BY_ONE, EVERY)), _per_decade(maps.work)
    for numbers in _numbers(every, per_decade, rule.local_steps):
        scanned = f"every number up to {min(every, numbers[-1]):,}"
        if numbers[-1] > every:
            scanned += f", then {per_decade} a decade up to {numbers[-1]:,}"
        bad = excess(maps(rule.step_size, numbers)) >= 0
        if bad.any():
            k = int(np.argmax(bad))
            low, high = int(numbers[k - 1]) if k else before, int(numbers[k])
            while high - low > 1:
                middle = (low + high) // 2
                stable = excess(maps(rule.step_size, np.array([middle])))[0] < 0
                low, high = (middle, high) if stable else (low, middle)
            return Limit(low, "mean", scanned)
        before = int(numbers[-1])
        if maps.vanish(before):
            return Limit(math.inf, "mean", f"{scanned}; more change nothing")
    return Limit(math.inf, "mean", scanned)


def _per_decade(each: float) -> int:
    """Returns how many settings are tried per decade if each takes this number of multiplications."""
    return int(np.clip(WORK / (4 * max(each, 1.0)), FEWEST, PER_DECADE))


def _numbers(every: int, per_decade: int, own: int) -> Iterator[np.ndarray]:
    """Yields numbers of local steps in batches: first every number, then a fixed number per decade."""
    further = every * 10 ** (np.arange(1, math.log10(MOST_LOCAL_STEPS / every) * per_decade) / per_decade)
    numbers = np.unique([*range(1, every + 1), *further.astype(int), own])
    at = 0
    while at < len(numbers):  # small batches first, since an unstable method is usually unstable with few local steps
        size = min(max(ONE_BY_ONE, at), 2 * ONE_BY_ONE)
        yield numbers[at : at + size]
        at += size


class Eigenmodes(NamedTuple):
    """The eigenvalues and eigenvectors of all agents' Jacobians; those of conjugate pairs are there once, and last."""

    values: np.ndarray
    """`(k,)`."""
    left: tuple[np.ndarray, np.ndarray]
    """The real parts, `(d, k)`, and the imaginary parts of those that are complex."""
    right: tuple[np.ndarray, np.ndarray]
    """The same, `(k, d)`, twice as large for conjugate pairs."""

    def sum(self, functions: np.ndarray) -> np.ndarray:
        """Returns the sum over agents of functions of their Jacobians, given by values at the eigenvalues, `(n, k)`."""
        (re, im), (right, turned) = self.left, self.right
        (d, k), real = re.shape, re.shape[1] - im.shape[1]
        found, room = np.empty((len(functions), d, d)), np.empty((d, k))  # allocating it again would take longer
        for at, f in enumerate(functions):
            np.multiply(re, f.real, out=room)
            room[:, real:] -= im * f.imag[real:]
            found[at] = room @ right
            if real < k:
                found[at] -= (re[:, real:] * f.imag[real:] + im * f.real[real:]) @ turned
        return found


@functools.lru_cache(maxsize=1)
def _eigenmodes(numbers: bytes, shape: tuple[int, int, int]) -> Eigenmodes | None:
    """Returns the modes of the Jacobians in `numbers`, once for all limits; None if they are ill-conditioned."""
    A = np.frombuffer(numbers).reshape(shape)
    symmetric = np.abs(A - transpose(A)).max(initial=0.0) <= ROUNDING * np.abs(A).max(initial=0.0)
    values, V = np.linalg.eigh(A) if symmetric else np.linalg.eig(A)
    if not (symmetric or np.linalg.cond(V).max() < TRUSTED):
        return None
    inverse = transpose(V) if symmetric else np.linalg.inv(V)
    values, left, right = values.ravel(), np.moveaxis(V, 0, 1).reshape(shape[1], -1), inverse.reshape(-1, shape[2])
    turning = np.imag(values)
    pairs = np.flatnonzero(turning > 0)
    kept = np.concatenate([np.flatnonzero(turning == 0), pairs])
    right = right[kept] * (1 + (turning[kept] > 0))[:, None]
    ours = np.ascontiguousarray(np.real(left[:, kept])), np.imag(left[:, pairs]).copy()
    theirs = np.real(right).copy(), np.imag(right[len(kept) - len(pairs) :]).copy()
    return Eigenmodes(values[kept], ours, theirs)


class ManyRoundMaps:
    """The round maps of a local rule for many step sizes and numbers of local steps simultaneously.

    Powers are computed from the eigenvalues of the Jacobians, unless their eigenvectors are ill-conditioned.
    """

    def __init__(self, A: np.ndarray, rule: LocalRule):
        self.A, self.rule, self.A_bar = A, rule, A.mean(0)
        M, d, _ = A.shape
        self.work = M * d**3 + 20 * d**3
        self.modes = _eigenmodes(np.ascontiguousarray(A, float).tobytes(), A.shape)

    def __call__(self, steps: Any, numbers: Any) -> np.ndarray:
        """Returns the round maps `(n, d, d)` for `n` step sizes, numbers of local steps, or both."""
        steps, numbers = np.broadcast_arrays(np.asarray(steps, dtype=float), numbers)
        if self.modes is None:
            rules = [self.rule._replace(step_size=s, local_steps=int(H)) for s, H in zip(steps, numbers, strict=True)]
            return np.stack([rule.transition(self.A) for rule in rules])
        eta, H, modes, moved = steps[:, None], numbers[:, None], self.modes, 0.0
        kappa, identity = self.rule.correction, np.eye(len(self.A_bar))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            z = eta * modes.values
            powers = (1 + z) ** H
            if kappa > 0:
                near = np.abs(H * z) < 1e-4  # where the quotient would cancel
                series = H * (1 + (H - 1) / 2 * z * (1 + (H - 2) / 3 * z))
                sums = np.where(near, series, (powers - 1) / np.where(near, 1.0, z))
                moved = kappa / len(self.A) * modes.sum(eta * sums) @ self.A_bar
            if kappa < 1:
                moved = moved + (1 - kappa) * (modes.sum(powers) / len(self.A) - identity)
            return identity + self.rule.server_step * moved

    def vanish(self, number: int) -> bool:
        """Returns whether this number of local steps leaves nothing of the start, so that more change nothing."""
        least = (NOTHING * len(self.A_bar)) ** (
            1 / number
        )  # some entry of a matrix is at least its spectral radius / d
        if self.modes is not None and np.abs(1 + self.rule.step_size * self.modes.values).max() > least:
            return False
        return bool(np.abs(self.rule._replace(local_steps=number).powers(self.A)).max() < NOTHING)


def excess(maps: np.ndarray) -> np.ndarray:
    """Returns the spectral radius of each map minus 1. Maps that overflowed count as unstable."""
    finite = np.abs(maps).max((-1, -2)) < 1e100
    return np.where(finite, spectral_radius(np.where(finite[:, None, None], maps, 0.0)) - 1, 1e100)

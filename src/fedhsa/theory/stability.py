"""Where a method stops converging: the largest stable step, and the largest stable number of local steps."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.optimize import brentq

from .._linear import spectral_radius, transpose
from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from .maps.joint import Joint
from .maps.modes import reduced, visible_radius
from .maps.rounds import LocalRule, check_reach, local_rule

GROWTH = 1.4
"""The ratio of neighbouring steps in the search for the first unstable one."""
SMALLEST = 1e-12
ONE_BY_ONE = 32
"""Up to here every number of local steps is tried, from here on every doubling."""
MOST_DOUBLINGS = 24
MOST_CARRIED = 256
"""Up to so many numbers carried from round to round the largest step is searched for, some thirty maps."""


def max_step_size(problem: Problem, algorithm: AbstractAlgorithm) -> float:
    """The first step at which the spectral radius of the round map reaches 1, all else as in `algorithm`.

    0 where no step is stable, and NaN for methods that carry so much from round to round that it would take long, or
    that have no `step_size`. The map is examined at steps a factor 1.4 apart, so that a narrower band of instability
    would be passed over.

    !!! example
        >>> A = np.array([0.5, 2.0]).reshape(2, 1, 1)          # G_i = -a_i theta: with H = 1, stable up to 2 / mean(a)
        >>> problem = fedhsa.problems.quadratic.from_arrays(A, b=np.zeros((2, 1)))
        >>> round(max_step_size(problem, fedhsa.FedHSA(0.1, local_steps=1)), 6)
        1.6
    """
    check_reach(problem, algorithm)
    (A, _), rule = problem.affine_parts(), local_rule(algorithm)
    if rule is not None:
        return largest_step(A, rule)

    return largest_carried_step(Joint(problem, algorithm), algorithm, A)


def largest_carried_step(joint: Joint, algorithm: AbstractAlgorithm, A: np.ndarray) -> float:
    """`max_step_size` by the joint map of an algorithm, itself or inside wrappers; NaN where that would take long."""
    joint.check()
    if joint.size > MOST_CARRIED or _with_step(algorithm, 1.0) is None:
        return math.nan

    def excess(step: float) -> float:
        map = joint.at(_with_step(algorithm, step)).map()
        if not np.abs(map.transition).max() < 1e100:
            return 1e100
        modes = reduced(map)
        every = spectral_radius(modes.transition)  # quicker, and enough where even hidden modes are stable
        return (every if every < 1 else visible_radius(modes)) - 1

    return first_crossing(excess, A, algorithm.block_length)


def _with_step(algorithm: Any, step: float) -> Any:
    """The algorithm with another step, which may belong to the one it wraps; None where there is none."""
    if hasattr(algorithm, "step_size"):
        return dataclasses.replace(algorithm, step_size=step)
    inner = _with_step(algorithm.algorithm, step) if hasattr(algorithm, "algorithm") else None
    return None if inner is None else dataclasses.replace(algorithm, algorithm=inner)


def max_local_steps(problem: Problem, algorithm: AbstractAlgorithm) -> float | None:
    r"""The number of local steps before the first at which the spectral radius reaches 1; infinite where none does.

    0 where not even one is stable, and None for methods without local steps or with another rule than FedHSA's and
    Local SA's. Every number up to 32 is tried, then every doubling up to 5e8.

    !!! example
        >>> A = np.array([0.1, 1.0]).reshape(2, 1, 1)
        >>> problem = fedhsa.problems.quadratic.from_arrays(A, b=np.zeros((2, 1)))
        >>> [max_local_steps(problem, method(0.5, local_steps=5)) for method in (fedhsa.FedHSA, fedhsa.LocalSA)]
        [19.0, inf]
    """
    check_reach(problem, algorithm)
    rule, (A, _) = local_rule(algorithm), problem.affine_parts()
    return None if rule is None or not hasattr(algorithm, "local_steps") else largest_local_steps(A, rule)


def largest_step(A: np.ndarray, rule: LocalRule) -> float:
    """`max_step_size` of a local rule on operators with the Jacobians `A`."""
    transition = _transitions(A)
    return first_crossing(lambda step: _excess(transition(rule._replace(step_size=step))), A, rule.local_steps)


def largest_local_steps(A: np.ndarray, rule: LocalRule) -> float:
    """`max_local_steps` of a local rule on operators with the Jacobians `A`."""
    low, before, transition = 0, -1.0, _transitions(A)
    for H, Phi in _growing(A, rule, transition):
        if (now := _excess(Phi)) >= 0:
            return float(_last_stable(lambda H: _excess(transition(rule._replace(local_steps=H))), low, H, before, now))
        low, before = H, now
    return math.inf


def _growing(
    A: np.ndarray, rule: LocalRule, transition: Callable[[LocalRule], np.ndarray]
) -> Iterator[tuple[int, np.ndarray]]:
    """Numbers of local steps and their round maps: one by one, then by doubling, until more of them change nothing."""
    numbers = [*range(1, ONE_BY_ONE + 1), *(ONE_BY_ONE * 2**k for k in range(1, MOST_DOUBLINGS + 1))]
    if _symmetric(A):
        slowest = np.abs(1 + rule.step_size * np.linalg.eigvalsh(A)).max()
        for H in numbers:
            yield H, transition(rule._replace(local_steps=H))
            if slowest**H < 1e-12:
                break
        return
    identity = np.broadcast_to(np.eye(A.shape[-1]), A.shape)
    F, powers, sums = identity + rule.step_size * A, identity, np.zeros_like(A)
    for H in numbers:
        with np.errstate(over="ignore", invalid="ignore"):
            if H <= ONE_BY_ONE:
                powers, sums = F @ powers, identity + F @ sums
            else:
                powers, sums = powers @ powers, sums + powers @ sums
        yield H, rule.assemble(A, powers, sums)
        if np.abs(powers).max() < 1e-12:
            return


def first_crossing(excess: Callable[[float], float], A: np.ndarray, H: int) -> float:
    """The first step at which the excess of a spectral radius over 1 is zero, of `H` steps on Jacobians `A`."""
    step = 0.5 / (H * np.linalg.norm(A, 2, axis=(1, 2)).max())
    smallest = SMALLEST * step
    while excess(step) >= 0:
        step /= 2
        if step < smallest:
            return 0.0
    while excess(step * GROWTH) < 0:
        step *= GROWTH
        if step > 1 / smallest:
            return math.inf
    return float(brentq(excess, step, step * GROWTH, xtol=1e-14 * step, rtol=1e-10))  # pyright: ignore[reportArgumentType]


def _transitions(A: np.ndarray) -> Callable[[LocalRule], np.ndarray]:
    """Round maps of many rules on the same operators; for symmetric ones the powers share an eigenbasis."""
    if not _symmetric(A):
        return lambda rule: rule.transition(A)
    values, vectors = np.linalg.eigh(A)
    M, d = values.shape
    left = np.moveaxis(vectors, 0, 1).reshape(d, M * d)
    A_bar, identity = A.mean(0), np.eye(d)

    def average(functions: np.ndarray) -> np.ndarray:
        return (left * functions.ravel()) @ left.T / M

    def transition(rule: LocalRule) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            z = rule.step_size * values
            powers = (1 + z) ** rule.local_steps
            sums = np.where(z == 0, rule.local_steps, (powers - 1) / np.where(z == 0, 1, z))
            corrected = rule.step_size * average(sums) @ A_bar
            moved = rule.correction * corrected + (1 - rule.correction) * (average(powers) - identity)
            return identity + rule.server_step * moved

    return transition


def _symmetric(A: np.ndarray) -> bool:
    return np.array_equal(A, transpose(A))


def _excess(Phi: np.ndarray) -> float:
    """By how much the spectral radius exceeds 1; powers that overflowed are simply unstable."""
    return spectral_radius(Phi) - 1 if np.abs(Phi).max() < 1e100 else 1e100


def _last_stable(excess: Callable[[int], float], low: int, high: int, below: float, above: float) -> int:
    """The last stable number of local steps from `low`, where the excess is `below`, to `high`, where it is `above`.

    By turns where a line between them crosses zero, and in the middle.
    """
    by_line = True
    while high - low > 1:
        share = -below / (above - below) if by_line else 0.5
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        now = excess(middle)
        low, high = (middle, high) if now < 0 else (low, middle)
        below, above = (now, above) if now < 0 else (below, now)
        by_line = not by_line
    return low

"""Tuning on equal terms: every method tries as many step sizes, found by the same rule, from the same start."""

import bisect
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..problems import Problem

RATIO = 4.0
"""Of neighbouring steps, until the best is between two of them."""


class Trial(NamedTuple):
    """A step and what came of it, on average over the seeds that tune."""

    step: float
    error: float
    """At the end of the run; of returns, of which more is better, the negative."""
    cost: float = 0.0
    """What it took to reach the target; infinite where it was not reached, 0 where there is none."""

    @property
    def order(self) -> tuple[float, float, float]:
        """By which trials are compared: the cost, then the error, then the step, the smaller the better."""
        return self.cost, self.error, self.step


class Tuning(NamedTuple):
    """All that was tried, in order, and the best of it."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial that won."""
        return min(self.trials, key=lambda trial: trial.order)

    @property
    def at_edge(self) -> bool:
        """Whether the best step is the smallest or the largest tried, so that a better one may lie beyond."""
        steps = [trial.step for trial in self.trials]
        return self.best.step in (min(steps), max(steps))


def search(attempt: Callable[[float], Trial], centre: float, trials: int) -> Tuning:
    """Tries exactly `trials` steps, as many for every method.

    Half of them (at least three) are a factor of four apart around `centre`. The others go, one by one, where the best
    so far asks for them: a factor of four beyond it while it is the smallest or the largest step tried, else half-way
    (on a logarithmic axis) into the wider of the two gaps beside it, the one with the better end if they are equal.

    !!! example
        >>> found = search(lambda step: Trial(step, error=np.log(step / 0.02) ** 2), centre=1.0, trials=9)
        >>> [float(f"{trial.step:.2g}") for trial in found.trials]
        [0.062, 0.25, 1.0, 4.0, 16.0, 0.016, 0.0039, 0.031, 0.0078]
        >>> found.best.step
        0.015625
    """
    coarse = min(trials, max(3, (trials + 1) // 2))
    done: dict[float, Trial] = {}

    def at(exponent: float) -> None:
        done[exponent] = attempt(centre * RATIO**exponent)

    for i in range(coarse):
        at(float(i - coarse // 2))
    while len(done) < trials:
        at(_next(done))
    return Tuning(tuple(done.values()))


def _next(done: dict[float, Trial]) -> float:
    """Where to try next, as an exponent of `RATIO`."""
    tried = sorted(done)
    best = min(tried, key=lambda exponent: done[exponent].order)
    place = bisect.bisect_left(tried, best)
    if place == 0:
        return best - 1
    if place == len(tried) - 1:
        return best + 1
    sides = tried[place - 1], tried[place + 1]
    wider = min(sides, key=lambda side: (-abs(side - best), done[side].order))
    return (best + wider) / 2


def starting_step(problem: Problem, samples: int) -> float:
    r"""Where to begin: between $1/L$, about the largest stable step, and $1/(\mu N)$, too small for $N$ observations.

    $L$ and $\mu$ are those of the average operator at the root; the geometric mean of the two, to one digit.

    !!! example
        >>> problem = fedhsa.problems.quadratic.from_arrays(2.0 * np.eye(2)[None], b=np.zeros((1, 2)))
        >>> starting_step(problem, samples=10_000)
        0.005
    """
    A = problem.jacobians(problem.root).mean(0)
    largest = 1 / np.linalg.norm(A, 2)
    mu = -np.linalg.eigvalsh((A + A.T) / 2).max()
    smallest = min(1 / (mu * samples), largest) if mu > 0 else largest / samples
    return float(f"{np.sqrt(largest * smallest):.0e}")

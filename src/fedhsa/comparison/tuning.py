"""Tuning on equal terms: every method tries the same number of step sizes, chosen by the same rule."""

import bisect
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..problems import Problem

RATIO = 4.0
"""The ratio of neighbouring step sizes until the best is between two others."""


class Trial(NamedTuple):
    """One step size and its outcome, averaged over the tuning seeds."""

    step: float
    """The step size."""
    error: float
    """The mean error over the end of the run; for returns, minus the mean return."""
    cost: float = 0.0
    """The cost of reaching the target: infinite if it was not reached, 0 if there is no target."""

    @property
    def order(self) -> tuple[float, float, float]:
        """The sort key of trials: the cost, then the error, then the step size; smaller is better."""
        return self.cost, self.error, self.step


class Tuning(NamedTuple):
    """The trials of one method."""

    trials: tuple[Trial, ...]
    """All trials, in the order in which they were run."""

    @property
    def best(self) -> Trial:
        """The best trial."""
        return min(self.trials, key=lambda trial: trial.order)

    @property
    def at_edge(self) -> bool:
        """Whether the best step size is the smallest or the largest one tried, so that a better one may be outside."""
        steps = [trial.step for trial in self.trials]
        return self.best.step in (min(steps), max(steps))


def search(attempt: Callable[[float], Trial], centre: float, trials: int) -> Tuning:
    """Tries exactly `trials` step sizes.

    Half of them (at least three) are a factor of four apart around `centre`. The others are chosen one by one from the
    best so far. If it is the smallest or the largest one tried, the next is a factor of four beyond it. Otherwise the
    next is halfway, on a logarithmic axis, into the wider of the two gaps next to it, or into the gap with the better
    end if they are equal.

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
    """Returns the next step size to try, as an exponent of `RATIO`."""
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
    r"""Returns the step size around which tuning begins, to one digit.

    It is the geometric mean of $1/L$, about the largest stable step size, and $1/(\mu N)$, which is too small for $N$
    observations. $L$ and $\mu$ are those of the average operator at the root.

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

"""Predictions for step sizes that change from round to round, from the laws of constant step sizes."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import BarycentricInterpolator

from .._types import precision
from ..algorithms import AbstractAlgorithm
from ..algorithms.schedules import AbstractSchedule, PerBlock
from .laws.moments import AbstractLaw, AbstractSteppedLaw, Steps
from .maps.rounds import local_rule
from .prediction import LONGEST, Prediction, undecided
from .stability import with_step

NODES, WIDEST, MOST = (8, 16, 32), 4.0, 64
"""The numbers of intervals between step sizes whose laws are computed, for each part of the range; the largest ratio of
the ends of a part; and the largest number of laws if they cannot be interpolated."""
PROBED = (0, 1, 8)
"""The numbers of rounds after which interpolated moments are compared with those of the law itself."""
SAME = 1e-9
"""The largest relative difference between them."""
FAR, CONSTANT = 10**6, 1e-9
"""The round whose step size is that of the long run, and the relative change from there to twice as far above which
there is no long run."""


class ChangingLaw(AbstractLaw):
    """A law for each round, whose state is the initial state of the next round's law, so that nothing is lost.

    The moments after a round are an analytic function of its step size. If there are many step sizes, laws are computed
    for some of them, and interpolated in between: the range is divided into parts, each with nodes close to Chebyshev
    points in the logarithm of the step size, whose number is doubled until every second one suffices for the others.

    **Arguments:**

    - `schedule`: the step size of every round.
    - `laws_at`: returns the laws of rounds with given step sizes, such that each can continue from the others.
    - `last`: the law in the long run.
    - `left_out`: the relative error of the laws.
    """

    def __init__(
        self,
        schedule: AbstractSchedule,
        laws_at: Callable[[Sequence[Steps]], Sequence[AbstractSteppedLaw]],
        last: AbstractLaw,
        *,
        left_out: float,
        name: str = "The method",
    ):
        self.schedule, self.laws_at, self.last, self.name = schedule, laws_at, last, name
        self.basis, self.left_out = last.basis, left_out

    def path(self, start, rounds):
        now = step_sizes(self.schedule, max(rounds, 1))
        both = np.stack([now, np.append(now[0], now[:-1])], axis=1)
        steps, which = np.unique(both, axis=0, return_inverse=True)
        parts = self._parts(start, [Steps(*row) for row in steps.tolist()])
        blends = [(part.laws, row) for part in parts for row in part.weights]
        law = parts[0].laws[0]
        state = law.enter(start)
        yield law.seen(state)
        for k in which.ravel()[:rounds]:
            state = _blended(*blends[k], state)
            yield law.seen(state)

    def _parts(self, start: np.ndarray, steps: "list[Steps]") -> "list[_Part]":
        """Returns laws between which moments can be interpolated, for parts of the increasing step sizes."""
        logs = np.log([step.now for step in steps])
        if len(steps) <= NODES[0] + 1:
            return [_Part(self.laws_at(steps), np.eye(len(steps)))]
        cuts = np.linspace(logs[0], logs[-1], math.ceil((logs[-1] - logs[0]) / math.log(WIDEST)) + 1)
        ends = [0, *np.searchsorted(logs, cuts[1:-1]), len(steps)]
        ranges = [range(*pair) for pair in itertools.pairwise(ends) if pair[0] < pair[1]]
        for count in NODES:
            nodes = [_near_chebyshev(logs, members, count) for members in ranges]
            laws = iter(self.laws_at([steps[k] for chosen in nodes for k in chosen]))
            groups = [list(itertools.islice(laws, len(chosen))) for chosen in nodes]
            every = zip(ranges, nodes, groups, strict=True)
            if all(_suffices(logs, chosen, own, start, len(members)) for members, chosen, own in every):
                every = zip(ranges, nodes, groups, strict=True)
                return [_Part(own, _weights(logs[chosen], logs[members])) for members, chosen, own in every]
        if len(steps) <= MOST:
            return [_Part(self.laws_at(steps), np.eye(len(steps)))]
        raise TypeError(
            f"The law of {self.name} cannot be interpolated between the step sizes {steps[0].now:.3g} and "
            f"{steps[-1].now:.3g}, and there are more than {MOST}. Predict fewer rounds, or use a smoother schedule."
        )

    def stationary(self):
        return self.last.stationary()

    def mean_square_radius(self):
        return self.last.mean_square_radius()

    def mean_radius(self):
        return self.last.mean_radius()

    def persistent_bias(self):
        return self.last.persistent_bias()


class _Part(NamedTuple):
    """Laws, and their weights at each of some increasing step sizes."""

    laws: Sequence[AbstractSteppedLaw]
    weights: np.ndarray


def _near_chebyshev(logs: np.ndarray, members: range, count: int) -> np.ndarray:
    """Returns the numbers of the step sizes closest to Chebyshev points; all of them if they are few."""
    if len(members) <= count + 1:
        return np.array(members)
    low, high = logs[members[0]], logs[members[-1]]
    points = low + (high - low) * (1 - np.cos(np.pi * np.arange(count + 1) / count)) / 2
    return np.unique(members[0] + np.abs(logs[members.start : members.stop, None] - points).argmin(0))


def _weights(nodes: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Returns the weights of nodes at other step sizes, all by their logarithms.

    Moments may contain inverse powers of the step size, which are entire functions of its logarithm.
    """
    return BarycentricInterpolator(nodes, np.eye(len(nodes)))(logs)


def _suffices(
    logs: np.ndarray, nodes: np.ndarray, laws: Sequence[AbstractSteppedLaw], start: np.ndarray, needed: int
) -> bool:
    """Returns whether every second law suffices for the others, or these are all laws that are needed."""
    if len(nodes) == needed:
        return True
    weights, state = _weights(logs[nodes[::2]], logs[nodes[1::2]]), laws[0].enter(start)
    for turn in range(PROBED[-1] + 1):
        for row, law in zip(weights, laws[1::2], strict=True) if turn in PROBED else ():
            found, expected = _numbers(_blended(laws[::2], row, state)), _numbers(law.step(state))
            if not np.abs(found - expected).max() <= SAME * max(np.abs(expected).max(), np.abs(start).max()):
                return False
        state = laws[-1].step(state)
    return True


def _blended(laws: Sequence[AbstractSteppedLaw], weights: np.ndarray, state: Any) -> Any:
    """Returns the weighted sum of the states after a round; whole numbers in a state count rounds."""
    used = np.flatnonzero(weights)
    after = [laws[k].step(state) for k in used]

    def blend(*parts: Any) -> Any:
        if not isinstance(parts[0], np.ndarray):
            return parts[0]
        return sum((weight * part for weight, part in zip(weights[used], parts, strict=True)), 0 * parts[0])

    return jax.tree.map(blend, after[0], *after[1:])


def _numbers(state: Any) -> np.ndarray:
    return np.concatenate([x.ravel() for x in jax.tree.leaves(state) if isinstance(x, np.ndarray)])


def step_sizes(schedule: AbstractSchedule, rounds: int, first: int = 0) -> np.ndarray:
    """Returns the step sizes of some rounds."""
    with precision():
        return np.asarray(jax.vmap(schedule)(first + jnp.arange(rounds)), float)


@dataclasses.dataclass(frozen=True, repr=False)
class ChangingPrediction(Prediction):
    """A prediction for step sizes that change: error curves cover all rounds, the long run is that of the last step.

    If the step size changes for ever there is no floor, and `stable` refers to the step size after a million rounds.
    """

    last: Prediction = dataclasses.field(repr=False)
    settles: bool = True
    """Whether the step size is constant in the long run."""

    @property
    def max_step_size(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """The largest stable constant step size."""
        return self.last.max_step_size

    @property
    def max_local_steps(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """The limit at the last step size."""
        return self.last.max_local_steps

    def rounds_to(self, target, theta=None):
        if self.settles:
            return super().rounds_to(target, theta)
        below = self.error(LONGEST, theta) <= target
        return int(np.argmax(below)) if below.any() else math.nan

    def _rate_in_words(self):
        return super()._rate_in_words() if self.settles else "decreases with the step size"

    def _floor_in_words(self):
        return super()._floor_in_words() if self.settles else "none: the step size keeps changing; see `error(rounds)`"


def predict_changing(
    algorithm: AbstractAlgorithm,
    schedule: AbstractSchedule,
    predict: Callable[[AbstractAlgorithm], Prediction],
    direct: Callable[[AbstractAlgorithm], AbstractLaw] | None,
) -> ChangingPrediction:
    """Predicts an algorithm whose step size follows a schedule.

    `predict` does so for constant step sizes, and `direct` returns their laws for methods with a local rule.
    """
    name = type(algorithm).__name__
    if isinstance(schedule, PerBlock):
        raise TypeError(
            f"Laws require one step size for all coordinates, got {schedule!r}. Multiply the operators of each block "
            "by its step size instead, and use one step size for all."
        )
    near, far = (float(step_sizes(schedule, 1, first)[0]) for first in (FAR, 2 * FAR))
    first, settles = float(step_sizes(schedule, 1)[0]), abs(far - near) <= CONSTANT * near
    every = {step: predict(with_step(algorithm, step)) for step in (first, near)}
    last = every[near]

    def laws_at(steps: Sequence[Steps]) -> Sequence[AbstractSteppedLaw]:
        family = last.law.family(algorithm, steps) if isinstance(last.law, AbstractSteppedLaw) else None
        laws = [law_of(with_step(algorithm, step.now)) for step in steps] if family is None else family
        stepped = [law for law in laws if isinstance(law, AbstractSteppedLaw)]
        if len(stepped) < len(laws) or len({type(law) for law in laws}) > 1:
            raise TypeError(
                f"The law of {name} on this problem does not support step sizes that change. Predict the first and the "
                "last step size separately."
            )
        return stepped

    def law_of(other: AbstractAlgorithm) -> AbstractLaw:
        return predict(other).law if direct is None or local_rule(other) is None else direct(other)

    laws_at([Steps(first, first), Steps(near, near)])  # raises if there is no curve
    left_out = max(prediction.law.left_out for prediction in every.values())
    law = ChangingLaw(schedule, laws_at, last.law, left_out=left_out, name=name)
    fields = {field.name: getattr(last, field.name) for field in dataclasses.fields(Prediction)}
    fields |= {} if settles else undecided(last.problem.dim) | {"stable": last.stable}
    fields |= {"algorithm": algorithm, "law": law, "left_out": law.left_out}
    return ChangingPrediction(**fields, last=last, settles=settles)

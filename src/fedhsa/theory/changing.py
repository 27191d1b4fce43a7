"""Predictions for step sizes that change from round to round or from block to block, from laws of constant ones."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import BarycentricInterpolator

from .._types import precision
from ..algorithms import AbstractAlgorithm
from ..algorithms.schedules import AbstractSchedule, PerBlock
from ..problems import AbstractAgent, Problem
from ..sources import AbstractSource
from .laws.moments import AbstractLaw, AbstractSteppedLaw, Steps
from .prediction import Prediction
from .rule import local_rule
from .steps import with_step

NODES, WIDEST, MOST = (12, 24), 1.5, 64
"""The numbers of intervals between step sizes whose laws are computed, for each part of the range; the largest ratio of
the ends of a part; and the largest number of laws if they cannot be interpolated."""
PROBED = (0, 1, 8)
"""The numbers of rounds after which interpolated moments are compared with those of the law itself."""
SAME, ALIKE = 1e-9, 1e-6
"""The largest relative difference between them, and between errors of methods that do the same."""
FEWEST = 64
"""The smallest number of rounds whose step sizes are computed together."""
FAR, CONSTANT, SMALL, SMALLEST = 20, 1e-9, 1e-4, 1e-9
"""The power of 2 of the round whose step size is that of the long run; the relative change from there to twice as far
above which there is no long run; the step size, relative to the first, at which stability is then judged; and the
smallest step size that is followed."""


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
        now = step_sizes(self.schedule, max(rounds, 1)).tolist()
        if not min(now) > SMALLEST * max(now):
            raise TypeError(
                f"The step sizes of {self.name} go from {max(now):.3g} to {min(now):.3g} in {rounds} rounds, and their "
                f"ratio must be above {SMALLEST:g}. Predict fewer rounds."
            )
        steps = [Steps(*pair) for pair in zip(now, [now[0], *now[:-1]], strict=True)]
        blends = self._blends(start, sorted(set(steps)))
        law = blends[steps[0]].laws[0]
        state = law.enter(start)
        yield law.seen(state)
        for step in steps[:rounds]:
            state = blends[step].after(state)
            yield law.seen(state)

    def _blends(self, start: np.ndarray, steps: list[Steps]) -> "dict[Steps, _Blend]":
        """Returns what gives the state after a round, for each of some increasing step sizes."""
        if len(steps) <= NODES[0] + 1:
            return self._without_interpolation(steps)
        # In the first round the step size before is the same, so that its law is not close to those of similar rounds.
        alone = [step for step in steps if step.now == step.before]
        ranges = _divided([step for step in steps if step.now != step.before])
        for count in NODES if len(alone) <= NODES[0] + 1 else ():
            nodes = [_near_chebyshev(members, count) for members in ranges]
            every = iter(self.laws_at([*alone, *(step for chosen in nodes for step in chosen)]))
            found = {step: _Blend([next(every)], np.ones(1)) for step in alone}
            groups = [list(itertools.islice(every, len(chosen))) for chosen in nodes]
            for members, chosen, laws in zip(ranges, nodes, groups, strict=True):
                if len(chosen) < len(members) and not _suffices(chosen, laws, start):
                    break
                found |= {step: _Blend(laws, row) for step, row in zip(members, _weights(chosen, members), strict=True)}
            else:
                return found
        if len(steps) <= MOST:
            return self._without_interpolation(steps)
        raise TypeError(
            f"The law of {self.name} cannot be interpolated between the step sizes {steps[0].now:.3g} and "
            f"{steps[-1].now:.3g}, and there are more than {MOST}. Predict fewer rounds, or use a smoother schedule."
        )

    def _without_interpolation(self, steps: list[Steps]) -> "dict[Steps, _Blend]":
        return {step: _Blend([law], np.ones(1)) for step, law in zip(steps, self.laws_at(steps), strict=True)}

    @property
    def interval(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.last.interval

    def stable(self):
        return self.last.stable()

    def long_run(self):
        return self.last.long_run()

    def stationary(self):
        return self.last.stationary()

    def persistent_bias(self):
        return self.last.persistent_bias()

    def mean_square_radius(self):
        return self.last.mean_square_radius()

    def mean_radius(self):
        return self.last.mean_radius()


class _Blend(NamedTuple):
    """A weighted sum of laws."""

    laws: Sequence[AbstractSteppedLaw]
    weights: np.ndarray

    def after(self, state: Any) -> Any:
        """Returns the weighted sum of the states after a round; whole numbers in a state count rounds."""
        used = np.flatnonzero(self.weights)
        after = [self.laws[int(k)].step(state) for k in used]

        def blend(*parts: Any) -> Any:
            if not isinstance(parts[0], np.ndarray):
                return parts[0]
            return sum((weight * part for weight, part in zip(self.weights[used], parts, strict=True)), 0 * parts[0])

        return jax.tree.map(blend, after[0], *after[1:])


def _divided(steps: list[Steps]) -> list[list[Steps]]:
    """Returns parts of increasing step sizes whose ends are not far from each other."""
    low, high = math.log(steps[0].now), math.log(steps[-1].now)
    count = max(math.ceil((high - low) / math.log(WIDEST)), 1)
    numbers = [min(int(count * (math.log(step.now) - low) / max(high - low, SAME)), count - 1) for step in steps]
    return [[steps[k] for k in group] for _, group in itertools.groupby(range(len(steps)), numbers.__getitem__)]


def _near_chebyshev(steps: list[Steps], count: int) -> list[Steps]:
    """Returns the step sizes closest to Chebyshev points in their logarithm; all of them if they are few."""
    if len(steps) <= count + 1:
        return steps
    logs = np.log([step.now for step in steps])
    points = logs[0] + (logs[-1] - logs[0]) * (1 - np.cos(np.pi * np.arange(count + 1) / count)) / 2
    return [steps[k] for k in np.unique(np.abs(logs[:, None] - points).argmin(0))]


def _weights(nodes: list[Steps], steps: list[Steps]) -> np.ndarray:
    """Returns the weights of nodes at other step sizes, by interpolation in their logarithm.

    Moments may contain inverse powers of the step size, which are entire functions of its logarithm.
    """
    if nodes == steps:
        return np.eye(len(nodes))
    known, logs = (np.log([step.now for step in x]) for x in (nodes, steps))
    return BarycentricInterpolator(known, np.eye(len(nodes)))(logs)


def _suffices(nodes: list[Steps], laws: Sequence[AbstractSteppedLaw], start: np.ndarray) -> bool:
    """Returns whether every second law suffices for the others."""
    weights, state = _weights(nodes[::2], nodes[1::2]), laws[0].enter(start)
    for turn in range(PROBED[-1] + 1):
        for row, law in zip(weights, laws[1::2], strict=True) if turn in PROBED else ():
            found, expected = _numbers(_Blend(laws[::2], row).after(state)), _numbers(law.step(state))
            if not np.abs(found - expected).max() <= SAME * max(np.abs(expected).max(), np.abs(start).max()):
                return False
        state = laws[-1].step(state)
    return True


def _numbers(state: Any) -> np.ndarray:
    return np.concatenate([x.ravel() for x in jax.tree.leaves(state) if isinstance(x, np.ndarray)])


def step_sizes(schedule: AbstractSchedule, rounds: int, first: int = 0) -> np.ndarray:
    """Returns the step sizes of some rounds."""
    size = max(FEWEST, 2 ** (rounds - 1).bit_length())  # every other size would be compiled again
    with precision():
        return np.asarray(jax.vmap(schedule)(first + jnp.arange(size)), float)[:rounds]


class ScaledAgent(AbstractAgent):
    """An affine agent whose operator is multiplied by a factor for each coordinate."""

    source: AbstractSource
    agent: AbstractAgent
    factors: np.ndarray

    affine: ClassVar[bool] = True

    def operator(self, theta, o, /):
        return self.factors * self.agent.operator(theta, o)

    def mean_operator(self, theta, /):
        return self.factors * self.agent.mean_operator(theta)


def scaled(problem: Problem, factors: np.ndarray) -> Problem:
    """Returns an affine problem whose operators are multiplied by a factor for each coordinate, with the same root."""
    every = np.tile(factors, (problem.num_agents, 1))
    agents = ScaledAgent(problem.agents.source, problem.flat_agents, every)
    return Problem(agents, like=np.zeros(problem.dim), theta_star=problem.root, start=problem.start)


def predict_per_block(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    schedule: PerBlock,
    predict: Callable[[Problem, AbstractAlgorithm], Prediction],
) -> Prediction:
    r"""Predicts an algorithm with a constant step size for each block.

    Steps of sizes $\eta D$ with operators $G_i$ are steps of size $\eta$ with $D G_i$, if the method multiplies nothing
    else by its step size. That is tested with $D = 2$.
    """
    name, steps = type(algorithm).__name__, step_sizes(schedule, 1)[0]
    if any(isinstance(step, AbstractSchedule) for step in schedule.step_sizes) or not problem.affine:
        raise TypeError(
            "Step sizes for each block are predicted if they are constant and the operators are affine, got "
            f"{schedule} and {type(problem.agents).__name__}."
        )
    largest, start = float(steps.max()), np.zeros(problem.dim)
    found = predict(scaled(problem, steps / largest), with_step(algorithm, largest))
    if local_rule(with_step(algorithm, largest)) is None:
        ways = ((problem, largest), (scaled(problem, np.full(problem.dim, 2.0)), largest / 2))
        one, other = (predict(given, with_step(algorithm, step)).error(PROBED[-1], start) for given, step in ways)
        if not np.allclose(one, other, rtol=ALIKE, atol=0.0):
            raise TypeError(
                f"A round of {name} with half the step size and twice the operators is another one, so there is no law "
                "of a step size for each block."
            )
    return dataclasses.replace(found, algorithm=algorithm, problem=problem, inner=found)


def predict_changing(
    algorithm: AbstractAlgorithm,
    schedule: AbstractSchedule,
    predict: Callable[[AbstractAlgorithm], Prediction],
) -> Prediction:
    """Predicts an algorithm whose step size follows a schedule; `predict` does so for constant step sizes."""
    name = type(algorithm).__name__
    rounds = [0, *(2**k for k in range(FAR + 2))]
    first, *later, near, far = (float(step_sizes(schedule, 1, number)[0]) for number in rounds)
    settles = near > 0 and abs(far - near) <= CONSTANT * near
    near = near if settles else next(step for step in (near, *later[::-1], first) if step >= SMALL * first)
    every = {first: predict(with_step(algorithm, first))}
    _check_stepped(name, [every[first].law])
    last = every[near] = every.get(near) or predict(with_step(algorithm, near))

    def laws_at(steps: Sequence[Steps]) -> Sequence[AbstractSteppedLaw]:
        family = last.law.family(algorithm, steps) if isinstance(last.law, AbstractSteppedLaw) else None
        return _check_stepped(name, [law_of(step.now) for step in steps] if family is None else family)

    @functools.cache
    def law_of(step: float) -> AbstractLaw:
        return (every.get(step) or predict(with_step(algorithm, step))).law

    laws_at([Steps(first, first), Steps(near, near)])  # raises if there is no curve
    left_out = max(prediction.law.left_out for prediction in every.values())
    law = ChangingLaw(schedule, laws_at, last.law, left_out=left_out, name=name)
    course = "geometric" if settles else "changing"
    return dataclasses.replace(last, algorithm=algorithm, law=law, inner=last, course=course)


def _check_stepped(name: str, laws: Sequence[AbstractLaw]) -> list[AbstractSteppedLaw]:
    """Returns laws that can continue from each other; raises if they cannot."""
    stepped = [law for law in laws if isinstance(law, AbstractSteppedLaw)]
    if len(stepped) < len(laws) or len({type(law) for law in laws}) > 1:
        raise TypeError(
            f"The law of {name} on this problem does not support step sizes that change. Predict the first and the "
            "last step size separately."
        )
    return stepped

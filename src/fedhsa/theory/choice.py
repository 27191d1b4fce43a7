"""Which method, which step, how many local steps: the cheapest way to a target error, by prediction."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _check
from .._json import plain
from ..algorithms import ALGORITHMS, AbstractAlgorithm, Cost, cost
from ..problems import Problem
from .entry import predict
from .laws.first_order import noise_is_known
from .maps.linearise import linearised
from .maps.rounds import start_error
from .prediction import Prediction, Reach, total_cost
from .stability import max_step_size

OBJECTIVES = Reach._fields
METHODS = ("FedHSA", "LocalSA", "SynchronisedSA")
LOCAL_STEPS = (1, 2, 5, 10, 20, 50, 100)
SMALLEST = 1e-6
"""The smallest step that is tried, as a part of the largest stable one."""
RESOLUTION = 0.05
"""How well the logarithm of the best step is found."""


class Candidate(NamedTuple):
    """One method and number of local steps, with the best step."""

    algorithm: AbstractAlgorithm
    prediction: Prediction
    reach: Reach
    """What it takes."""
    error: float
    """The mean-square error it ends at."""


class Choice(NamedTuple):
    """The best candidate, and those it was chosen from."""

    best: Candidate
    frontier: tuple[Candidate, ...]
    """Every candidate that no other beats in rounds, samples, bytes and, for a budget, error; fewest rounds first."""
    objective: str

    @property
    def algorithm(self) -> AbstractAlgorithm:
        """The algorithm with its settings, ready to run."""
        return self.best.algorithm

    @property
    def prediction(self) -> Prediction:
        """What it will do."""
        return self.best.prediction

    @property
    def reach(self) -> Reach:
        """What it takes."""
        return self.best.reach

    def to_dict(self) -> dict[str, Any]:
        """The choice as JSON values."""
        return {
            "objective": self.objective,
            "best": _as_dict(self.best),
            "frontier": [_as_dict(candidate) for candidate in self.frontier],
        }


def choose(
    problem: Problem,
    *,
    target: float | None = None,
    budget: float | None = None,
    objective: str = "rounds",
    algorithms: Sequence[str] = METHODS,
    local_steps: Sequence[int] = LOCAL_STEPS,
    theta: Any = None,
    margin: float = 0.1,
) -> Choice:
    r"""The method, step and local steps that reach a target error at the least cost, or the least error for a budget.

    For every method and number of local steps the step is optimised: a larger one is faster but has a higher floor.

    **Arguments:**

    - `target`: the mean-square error to reach.
    - `budget`: how much of the objective may be spent. Without a `target`, the least error it buys.
    - `objective`: what counts, `"rounds"`, `"samples"` or `"bytes"`, of all agents together.
    - `algorithms`, `local_steps`: what to choose from.
    - `theta`: where the run starts. Default: zeros.
    - `margin`: plan for an error smaller than the target by this part, since predictions are not exact.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=10, dim=3)
        >>> choice = choose(problem, target=1e-3, local_steps=(1, 5, 10))
        >>> runs = fedhsa.simulate(problem, choice.algorithm, rounds=int(choice.reach.rounds), seeds=200)
        >>> bool(runs.error[:, -1].mean() < 1e-3)
        True
    """
    if not noise_is_known(problem):
        raise TypeError(
            f"`choose` tries many settings and needs noise that is known, got {type(problem.agents).__name__} "
            f"observing {type(problem.agents.source).__name__}. `predict` estimates it, one setting at a time."
        )
    if isinstance(algorithms, str) or not algorithms:
        raise ValueError(f"`algorithms` must be a list of names such as {METHODS}, got {algorithms!r}.")
    if not local_steps:
        raise ValueError("`local_steps` must be a list of numbers to choose from, got none.")
    if target is None and budget is None:
        raise ValueError("Give `target`, the error to reach, or `budget`, what may be spent, or both.")
    for name, value in (("target", target), ("budget", budget)):
        if value is not None:
            _check.number(name, value, above=0.0)
    _check.choice("objective", objective, OBJECTIVES)
    _check.number("margin", margin, least=0.0)
    start = start_error(problem, theta)
    if target is not None and start @ start <= target:
        raise ValueError(f"The start is within `target` {target:g} already: its squared error is {start @ start:.4g}.")
    goal = _Goal(None if target is None else target / (1 + margin), budget, objective, theta)
    candidates = [_best_step(problem, make, goal) for make in _methods(algorithms, local_steps)]
    return _chosen(candidates, goal._replace(target=target))


class _Goal(NamedTuple):
    target: float | None
    budget: float | None
    objective: str
    theta: Any


def _methods(algorithms: Sequence[str], local_steps: Sequence[int]) -> Iterator[Callable[..., AbstractAlgorithm]]:
    """Every method with every number of local steps, waiting for a step size."""
    for name in algorithms:
        _check.choice("algorithms", name, tuple(ALGORITHMS))
        method = cast(Callable[..., AbstractAlgorithm], ALGORITHMS[name])
        if "local_steps" not in inspect.signature(method).parameters:
            yield method
        else:
            for H in local_steps:
                yield functools.partial(method, local_steps=_check.count("local_steps", H))


def _best_step(problem: Problem, make: Callable[..., AbstractAlgorithm], goal: _Goal) -> Candidate:
    """Golden-section search on the logarithm of the step, below the largest step whose floor is low enough."""
    any_step = make(0.1)
    largest, each = max_step_size(linearised(problem), any_step), cost(problem, any_step)
    if not largest > 0:
        raise ValueError("No step is stable on this problem: its root is unstable. Check the sign of the operator.")
    tried: dict[float, Candidate] = {}

    def evaluated(log_step: float) -> Candidate:
        if log_step not in tried:
            tried[log_step] = _evaluate(predict(problem, make(math.exp(log_step))), each, goal)
        return tried[log_step]

    def reaches(log_step: float) -> bool:
        return evaluated(log_step).prediction.floor < (goal.target or math.inf)

    low, high = math.log(SMALLEST * largest), math.log(0.99 * largest)
    high = _last_true(reaches, low, high)
    low = max(low, high - math.log(1000))
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    while high - low > RESOLUTION:
        if _value(evaluated(left), goal) < _value(evaluated(right), goal):
            high, right = right, left
            left = high - golden * (high - low)
        else:
            low, left = left, right
            right = low + golden * (high - low)
    return min(tried.values(), key=lambda candidate: _value(candidate, goal))


def _last_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Up to where something holds that holds at `low`."""
    if holds(high) or not holds(low):
        return high
    while high - low > RESOLUTION:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _evaluate(prediction: Prediction, each: Cost, goal: _Goal) -> Candidate:
    M = prediction.problem.num_agents
    if not prediction.stable:
        rounds = math.inf
    elif goal.target is not None:
        rounds = prediction.rounds_to(goal.target, goal.theta)
    else:
        assert goal.budget is not None
        rounds = goal.budget // getattr(total_cost(1, each, M), goal.objective)
    if not rounds:  # the budget does not buy a single one
        rounds = math.inf
    error = prediction.error_after(int(rounds), goal.theta) if math.isfinite(rounds) else math.inf
    return Candidate(prediction.algorithm, prediction, total_cost(rounds, each, M), error)


def _value(candidate: Candidate, goal: _Goal) -> tuple[float, ...]:
    """What is to be made small, first things first.

    Where the target is out of reach that is the floor, so that the search gets closer to it.
    """
    if goal.target is None:
        return (candidate.error,)
    return (getattr(candidate.reach, goal.objective), candidate.reach.samples, candidate.reach.bytes, candidate.error)


def _chosen(candidates: list[Candidate], goal: _Goal) -> Choice:
    best = min(candidates, key=lambda candidate: _value(candidate, goal))
    spent = getattr(best.reach, goal.objective)
    if goal.target is not None and not math.isfinite(spent):
        least = min(candidates, key=lambda candidate: candidate.prediction.floor)
        raise ValueError(
            f"No step brings the error down to `target` {goal.target:g} with its `margin`: the lowest floor found is "
            f"{least.prediction.floor:.3g}, of {least.algorithm}. Use more agents, or a larger target."
        )
    if goal.target is None and not math.isfinite(best.error):
        raise ValueError(f"`budget` {goal.budget:g} does not buy one round of any candidate, in {goal.objective}.")
    if goal.target is not None and goal.budget is not None and spent > goal.budget:
        raise ValueError(
            f"`target` {goal.target:g} takes at least {spent:.0f} {goal.objective}, more than the `budget` of "
            f"{goal.budget:.0f}. Without a target, `choose` finds the least error for a budget."
        )
    frontier = [candidate for candidate in candidates if np.isfinite(candidate.reach.rounds)]
    frontier = [c for c in frontier if not any(_beats(other, c, goal) for other in frontier)]
    return Choice(best, tuple(sorted(frontier, key=lambda c: c.reach.rounds)), goal.objective)


def _beats(one: Candidate, other: Candidate, goal: _Goal) -> bool:
    """Whether `one` is no worse in any respect and better in some; without a target the error is one of them."""
    errors = ((one.error,), (other.error,)) if goal.target is None else ((), ())
    a, b = (*one.reach, *errors[0]), (*other.reach, *errors[1])
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def _as_dict(candidate: Candidate) -> dict[str, Any]:
    name, found = type(candidate.algorithm).__name__, candidate.prediction
    costs = candidate.reach._asdict() | {"error": candidate.error, "floor": found.floor}
    return plain({"algorithm": name, **vars(candidate.algorithm), **costs})

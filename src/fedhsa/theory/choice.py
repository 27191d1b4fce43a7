"""Which method, which step, how many local steps: the cheapest way to a target error, by prediction."""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _check, statistics
from .._json import plain
from .._types import SeedLike
from ..algorithms import ALGORITHMS, AbstractAlgorithm, Cost, cost
from ..problems import Problem
from ..statistics import Estimate
from .entry import predict
from .laws.first_order import noise_is_known
from .maps.linearise import linearised
from .maps.rounds import local_rule, start_error
from .prediction import Prediction, Reach, total_cost
from .samples.estimate import estimate
from .stability import largest_step, max_step_size

OBJECTIVES = Reach._fields
METHODS = ("FedHSA", "LocalSA", "SynchronisedSA")
LOCAL_STEPS = (1, 2, 5, 10, 20, 50, 100)
SERVER_STEPS = (1.0, 0.5, 2.0, 4.0)
SMALLEST = 1e-6
"""The smallest step that is tried, as a part of the largest stable one."""
RESOLUTION = 0.06
"""How well the logarithms of steps are found."""
REFINED = 2
"""For how many of the best methods and local steps other server steps are tried."""
UNSURE = 0.25
"""The margin where it is not known how good a prediction is."""
SEEDS = 200
"""Of the simulation that verifies a choice."""


class Candidate(NamedTuple):
    """One method and number of local steps, with the best step."""

    algorithm: AbstractAlgorithm
    prediction: Prediction
    reach: Reach
    """What it takes."""
    error: float
    """The mean-square error it ends at."""


class Unknown(NamedTuple):
    """A method that was not compared with the others, because too little is known of it."""

    algorithm: str
    reason: str


class Choice(NamedTuple):
    """The best candidate, and those it was chosen from."""

    best: Candidate
    frontier: tuple[Candidate, ...]
    """Every candidate that no other beats in rounds, samples, bytes and, for a budget, error; fewest rounds first."""
    objective: str
    unknown: tuple[Unknown, ...] = ()
    """The methods of which no error could be predicted, and why."""
    verified: Estimate | None = None
    """The mean-square error of the best candidate in a simulation, with its 95 % interval, if that was asked for."""

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
            "unknown": [unknown._asdict() for unknown in self.unknown],
            "verified": None if self.verified is None else plain(self.verified._asdict()),
        }


def choose(
    problem: Problem,
    *,
    target: float | None = None,
    budget: float | None = None,
    objective: str = "rounds",
    algorithms: Sequence[str] = METHODS,
    local_steps: Sequence[int] = LOCAL_STEPS,
    server_steps: Sequence[float] = SERVER_STEPS,
    theta: Any = None,
    margin: float = 0.1,
    samples: int | None = None,
    key: SeedLike = 0,
    verify: bool = False,
) -> Choice:
    r"""The method, step and local steps that reach a target error at the least cost, or the least error for a budget.

    For every method and number of local steps the step is optimised: a larger one is faster but has a higher floor.
    Methods of which too little is known, such as only their mean, are not compared with the others: they are listed in
    `unknown`, with the reason.

    **Arguments:**

    - `target`: the mean-square error to reach.
    - `budget`: how much of the objective may be spent. Without a `target`, the least error it buys.
    - `objective`: what counts, `"rounds"`, `"samples"` or `"bytes"`, of all agents together.
    - `algorithms`, `local_steps`: what to choose from.
    - `server_steps`: the first is that of all candidates; the others are tried with the best of them.
    - `theta`: where the run starts. Default: zeros.
    - `margin`: plan for an error smaller than the target by this part, since predictions are not exact; by more where
      a prediction says that it may be further off.
    - `samples`, `key`: how many observations, and which, where sources can only be sampled. They are drawn once.
    - `verify`: simulate the choice, 200 seeds, and give its error at the end with the interval; a warning says if it
      missed the target.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=10, dim=3)
        >>> choice = choose(problem, target=1e-3, local_steps=(1, 5, 10), verify=True)
        >>> choice.verified.value < 1e-3
        True
    """
    if isinstance(algorithms, str) or not algorithms:
        raise ValueError(f"`algorithms` must be a list of names such as {METHODS}, got {algorithms!r}.")
    for name, values in (("local_steps", local_steps), ("server_steps", server_steps)):
        if not values:
            raise ValueError(f"`{name}` must be a list of numbers to choose from, got none.")
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
    search = _Search(problem, _Goal(target, budget, objective, theta, margin), samples, key)
    choice = search.choice(_methods(algorithms, local_steps, server_steps[0]), server_steps[1:])
    return _verified(problem, choice, target, theta, key) if verify else choice


class _Goal(NamedTuple):
    target: float | None
    budget: float | None
    objective: str
    theta: Any
    margin: float


class _Method(NamedTuple):
    """A method with everything but its step."""

    name: str
    settings: dict[str, Any]

    def make(self, step: float, **others: Any) -> AbstractAlgorithm:
        """The algorithm with a step; the TypeError of a method that needs more says what."""
        method, given = cast(Callable[..., AbstractAlgorithm], ALGORITHMS[self.name]), self.settings | others
        needed = [p.name for p in inspect.signature(method).parameters.values() if p.default is p.empty]
        missing = [name for name in needed if name not in (*given, "step_size")]
        if missing:
            raise TypeError(f"{self.name} needs `{missing[0]}`, which is not searched for.")
        return method(step_size=step, **given)

    @property
    def corrects(self) -> bool:
        """Whether a server step would make a difference that the step does not."""
        return "server_step" in _parameters(self.name) and self.make(0.1).block_length > 1


def _parameters(name: str) -> Mapping[str, Any]:
    return inspect.signature(ALGORITHMS[name]).parameters


def _methods(algorithms: Sequence[str], local_steps: Sequence[int], server_step: float) -> Iterator[_Method]:
    """Every method with every number of local steps, or a coin that has as many on average, waiting for a step."""
    for name in algorithms:
        _check.choice("algorithms", name, tuple(ALGORITHMS))
        known = _parameters(name)
        for H in local_steps if "local_steps" in known or "probability" in known else (1,):
            settings = {"local_steps": _check.count("local_steps", H), "probability": 1 / H, "server_step": server_step}
            yield _Method(name, {setting: value for setting, value in settings.items() if setting in known})


class _UnknownError(Exception):
    """Theory does not say what noise adds for a method."""


class _Search:
    """The search for settings on one problem."""

    def __init__(self, problem: Problem, goal: _Goal, samples: int | None, key: SeedLike):
        self.problem, self.goal, self.model, self.samples = problem, goal, None, None
        if noise_is_known(problem):
            self.model = linearised(problem)
            self.jacobians = self.model.affine_parts()[0]
        else:  # all settings are compared on the same observations, so that these do not choose between them
            self.samples = estimate(problem, samples=samples, key=key)
            self.jacobians = self.samples.jacobians

    def choice(self, methods: Iterator[_Method], other_server_steps: Sequence[float]) -> Choice:
        """The best of all methods; of the first few with other server steps too."""
        found: list[tuple[Candidate, _Method]] = []
        unknown: dict[str, Unknown] = {}
        guesses: dict[str, float] = {}
        for method in methods:
            if method.name in unknown:
                continue
            try:
                best = self.best_step(method.make, guesses.get(method.name))
            except (_UnknownError, TypeError) as reason:
                unknown[method.name] = Unknown(method.name, str(reason))
                continue
            found.append((best, method))
            guesses[method.name] = _step(best)
        if not found:
            reasons = " ".join(entry.reason for entry in unknown.values())
            raise ValueError(f"There is nothing to choose from: of no method the error is known here. {reasons}")
        leading = [entry for entry in found if entry[1].corrects and math.isfinite(entry[0].error)]
        for best, method in sorted(leading, key=lambda entry: self.value(entry[0]))[:REFINED]:
            for server_step in other_server_steps:
                make = functools.partial(method.make, server_step=server_step)
                guess = _step(best) * cast(Any, best.algorithm).server_step / server_step
                found.append((self.best_step(make, guess), method))
        return _chosen([best for best, _ in found], tuple(unknown.values()), self.goal, self.value)

    def best_step(self, make: Callable[..., AbstractAlgorithm], guess: float | None = None) -> Candidate:
        """The candidate with the best step, from a guess of it.

        Below the largest step whose floor is low enough, cost is a smooth function of the logarithm of the step with
        one valley, most often close to that step: we walk down from there until cost rises.
        """
        largest, each = self._largest(make(0.1)), cost(self.problem, make(0.1))
        predicted = functools.cache(lambda log_step: self.predict(make(math.exp(log_step))))
        tried: dict[float, Candidate] = {}

        def value(log_step: float) -> float:
            if log_step not in tried:
                tried[log_step] = self.evaluate(predicted(log_step), each)
            return self.value(tried[log_step])[0]

        high = math.log(0.98 * min(largest, 1e6))
        low = math.log(SMALLEST) + high
        top = high
        if self.goal.target is not None:
            first = high - math.log(3) if guess is None else math.log(guess)
            top = _last_low_enough(lambda x: self.short_of(predicted(x)), min(max(first, low), high), low, high)
        if top > low:
            _walk_down(value, top, low)
        value(top)
        return min(tried.values(), key=self.value)

    def _largest(self, algorithm: AbstractAlgorithm) -> float:
        """The largest step at which the mean is stable."""
        rule, name = local_rule(algorithm), type(algorithm).__name__
        if rule is not None:
            largest = largest_step(self.jacobians, rule)
        elif self.model is not None:
            largest = max_step_size(self.model, algorithm)
        else:
            raise _UnknownError(f"What noise does to {name} is not known from samples alone.")
        if largest == 0:
            raise ValueError("No step is stable on this problem: its root is unstable. Check the sign of the operator.")
        if math.isnan(largest):
            raise _UnknownError(f"How large a step {name} bears would take long to find on this problem.")
        return float(largest)

    def predict(self, algorithm: AbstractAlgorithm) -> Prediction:
        """What an algorithm will do, if that is known."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the margin covers what predictions warn of
            prediction = predict(self.problem, algorithm, samples=self.samples)
        if prediction.basis == "mean" or math.isnan(prediction.floor):
            raise _UnknownError(
                f"How much noise remains around the mean of {type(algorithm).__name__} is not known on this problem."
            )
        return prediction

    def evaluate(self, prediction: Prediction, each: Cost) -> Candidate:
        """What it takes to reach the target, or the error when the budget is spent; `each` is the cost of a round."""
        goal, M, rounds = self.goal, self.problem.num_agents, math.inf
        if goal.target is None:
            assert goal.budget is not None
            rounds = goal.budget // getattr(total_cost(1, each, M), goal.objective)
        elif self.short_of(prediction) < 0:
            rounds = prediction.rounds_to(goal.target / (1 + self.margin(prediction)), goal.theta)
        if not rounds or not prediction.stable:  # the budget does not buy a single one, or it makes things worse
            rounds = math.inf
        error = prediction.error_after(int(rounds), goal.theta) if math.isfinite(rounds) else math.inf
        return Candidate(prediction.algorithm, prediction, total_cost(rounds, each, M), error)

    def margin(self, prediction: Prediction) -> float:
        """By which part an error is planned to be below the target: what was asked for, or what may be wrong."""
        left_out = prediction.left_out
        if prediction.interval is not None and prediction.floor > 0:
            left_out = prediction.interval[1] / prediction.floor - 1
        return max(self.goal.margin, UNSURE if math.isnan(left_out) else left_out)

    def short_of(self, prediction: Prediction) -> float:
        """The logarithm of the floor by what is planned for."""
        target = self.goal.target
        assert target is not None
        if not prediction.stable:
            return math.inf
        floor = prediction.floor * (1 + self.margin(prediction)) / target
        return math.log(floor) if floor > 0 else -math.inf

    def value(self, candidate: Candidate) -> tuple[float, ...]:
        """What is to be made small, first things first; where the target is out of reach, the floor."""
        if self.goal.target is None:
            return (candidate.error,)
        spent = getattr(candidate.reach, self.goal.objective), candidate.reach.samples, candidate.reach.bytes
        return (*spent, 0.0 if math.isfinite(spent[0]) else candidate.prediction.floor)


def _last_low_enough(excess: Callable[[float], float], x: float, low: float, high: float) -> float:
    """The largest step whose floor is low enough; `excess` is the logarithm of floor by target.

    The floor is nearly proportional to the step, so that it says itself where to look next.
    """
    inside, outside = None, None
    while True:
        now = excess(x)
        inside, outside = ((x, now), outside) if now < 0 else (inside, (x, now))
        if inside is not None and (x == high or (outside is not None and outside[0] - inside[0] <= RESOLUTION)):
            return inside[0]
        if outside is not None and outside[0] <= low:
            return low
        if inside is None:
            by = -now - RESOLUTION / 2 if math.isfinite(now) else -math.log(3)
            x = max(x + min(max(by, -math.log(30)), -RESOLUTION), low)
        elif outside is None:
            by = -now + RESOLUTION / 2 if math.isfinite(now) else math.log(30)
            x = min(x + max(min(by, math.log(30)), RESOLUTION), high)
        else:
            share = -inside[1] / (outside[1] - inside[1]) if math.isfinite(outside[1] - inside[1]) else 0.5
            x = inside[0] + min(max(share, 0.1), 0.9) * (outside[0] - inside[0])


def _walk_down(cost: Callable[[float], float], top: float, low: float) -> None:
    """Tries values below `top` until cost rises, and then between those around the least."""
    points, costs, by = [top], [cost(top)], 2 * RESOLUTION
    while points[-1] > low:
        points.append(max(points[-1] - by, low))
        costs.append(cost(points[-1]))
        by *= 1.6
        if costs[-1] > costs[-2] and math.isfinite(costs[-2]):
            break
    k = int(np.argmin(costs))
    left, right = points[min(k + 1, len(points) - 1)], points[max(k - 1, 0)]
    golden = (math.sqrt(5) - 1) / 2
    while right - left > 4 * RESOLUTION:
        a, b = right - golden * (right - left), left + golden * (right - left)
        left, right = (left, b) if cost(a) <= cost(b) else (a, right)


def _step(candidate: Candidate) -> float:
    return float(cast(Any, candidate.algorithm).step_size)


def _chosen(
    candidates: list[Candidate],
    unknown: tuple[Unknown, ...],
    goal: _Goal,
    value: Callable[[Candidate], tuple[float, ...]],
) -> Choice:
    best = min(candidates, key=value)  # of equals the first, so that other server steps than 1 must be better
    spent = getattr(best.reach, goal.objective)
    if goal.target is not None and not math.isfinite(spent):
        lowest = min(candidates, key=lambda candidate: candidate.prediction.floor)
        raise ValueError(
            f"No step brings the error down to `target` {goal.target:g} with its `margin`: the lowest floor found is "
            f"{lowest.prediction.floor:.3g}, of {lowest.algorithm}. Use more agents, or a larger target."
        )
    if goal.target is None and not math.isfinite(best.error):
        raise ValueError(f"`budget` {goal.budget:g} does not buy one round of any candidate, in {goal.objective}.")
    if goal.target is not None and goal.budget is not None and spent > goal.budget:
        raise ValueError(
            f"`target` {goal.target:g} takes at least {spent:.0f} {goal.objective}, more than the `budget` of "
            f"{goal.budget:.0f}. Without a target, `choose` finds the least error for a budget."
        )
    finite = [candidate for candidate in candidates if np.isfinite(candidate.reach.rounds)]
    frontier: list[Candidate] = []
    for c in finite:
        if not any(_beats(other, c, goal) for other in finite) and not any(f.reach == c.reach for f in frontier):
            frontier.append(c)
    return Choice(best, tuple(sorted(frontier, key=lambda c: c.reach.rounds)), goal.objective, unknown)


def _beats(one: Candidate, other: Candidate, goal: _Goal) -> bool:
    """Whether `one` is no worse in any respect and better in some; without a target the error is one of them."""
    errors = ((one.error,), (other.error,)) if goal.target is None else ((), ())
    a, b = (*one.reach, *errors[0]), (*other.reach, *errors[1])
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def _verified(problem: Problem, choice: Choice, target: float | None, theta: Any, key: SeedLike) -> Choice:
    """The choice with its simulated error."""
    from ..engine import simulate

    rounds = int(choice.reach.rounds)
    run = simulate(problem, choice.algorithm, rounds=rounds, seeds=SEEDS, theta=theta, key=key, every=rounds)
    found = statistics.mean(run.error[:, -1], level=0.95)
    if target is not None and found.low > target:
        warnings.warn(
            f"{choice.algorithm} has the error {found:.3g} after {rounds:,} rounds of a simulation, above `target` "
            f"{target:g}, where {choice.best.error:.3g} was predicted. Use a larger `margin`.",
            stacklevel=3,
        )
    return choice._replace(verified=found)


def _as_dict(candidate: Candidate) -> dict[str, Any]:
    name, found = type(candidate.algorithm).__name__, candidate.prediction
    costs = candidate.reach._asdict() | {"error": candidate.error, "floor": found.floor, "basis": found.basis}
    return plain({"algorithm": name, **vars(candidate.algorithm), **costs})

"""`choose`: finds the method, step size and local steps that reach a target error at the least predicted cost."""

import contextlib
import dataclasses
import functools
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _check, _own, statistics
from .._json import plain
from .._numbers import traffic
from .._table import FIXED, Table
from .._types import SeedLike
from ..algorithms import ALGORITHMS, AbstractAlgorithm, AbstractSchedule, Cost, Stages, cost
from ..algorithms.parse import algorithm_class
from ..problems import Problem
from ..statistics import Estimate
from .entry import PredictionWarning, predict
from .exact import start_error
from .laws.agents import noise_is_known
from .laws.moments import AbstractSteppedLaw, Moments
from .prediction import Prediction, Reach, total_cost
from .rule import LocalRule, local_rule
from .samples.estimate import estimate
from .sketch import Outline, Sketch
from .stability import largest_step

OBJECTIVES = Reach._fields
METHODS = ("FedHSA", "LocalSA", "SynchronisedSA")
LOCAL_STEPS = (1, 2, 5, 10, 20, 50, 100)
SERVER_STEPS = (1.0, 0.5, 2.0, 4.0)
SMALLEST = 1e-6
"""The smallest step size tried, relative to the largest stable one."""
RESOLUTION = 0.06
"""The tolerance of the logarithms of step sizes."""
SETTLED = 0.1
"""The distance, of logarithms of step sizes, within which a known evaluation of the law is used."""
MOST_PREDICTIONS = 6
"""The largest number of evaluations of the law for a method and number of local steps."""
ROUGHLY, ALIKE, BETTER = 1.5, 0.9, 1.03
"""The factor by which approximate costs may be wrong, the factor below which they count as equal, and the factor by
which another server step must be better."""
NOTCH = 1.2
"""The best step size is compared with its neighbours at this factor."""
LARGER, SMALLER, TIMES = (1.5, 2.0, 3.0, 4.5, 7.0, 10.0), (1.0, 0.85, 0.7, 0.5, 0.35), 24
"""The first and the second step size of a schedule relative to the best constant one, and the number of rounds at which
it may change."""
STAGES_PAY = 1.1
"""The factor by which the approximate cost of a schedule must be lower before the law is evaluated for it."""
UNSURE = 0.25
"""The margin if the accuracy of a prediction is unknown."""
SEEDS = 200
"""The number of seeds of the simulation that verifies a choice."""


class Candidate(NamedTuple):
    """A method and a number of local steps, with the best step size."""

    algorithm: AbstractAlgorithm
    """The algorithm with its settings."""
    prediction: Prediction
    """The prediction for this algorithm."""
    reach: Reach
    """The rounds, samples and bytes that it takes."""
    error: float
    """The predicted mean-square error at the end."""


def _brief(algorithm: AbstractAlgorithm) -> str:
    """Returns the expression that creates the algorithm on one line, with three digits of each optimised number."""
    line = re.sub(r"(?<=[(\[]) | (?=[)\]])", "", " ".join(repr(algorithm).split()))
    return re.sub(r"\d+\.\d{4,}(e[-+]?\d+)?", lambda number: f"{float(number[0]):.3g}", line)


class Unknown(NamedTuple):
    """A method that was not compared with the others because its error cannot be predicted."""

    algorithm: str
    """The name of the method."""
    reason: str
    """The reason, as a sentence."""


class Choice(NamedTuple):
    """The best candidate and the alternatives, as returned by `choose`."""

    best: Candidate
    """The best candidate."""
    frontier: tuple[Candidate, ...]
    """The Pareto-optimal candidates in rounds, samples, bytes and, for a budget, error; fewest rounds first."""
    objective: str
    """The minimised cost: `"rounds"`, `"samples"` or `"bytes"`."""
    unknown: tuple[Unknown, ...] = ()
    """The methods whose error could not be predicted, with the reasons."""
    verified: Estimate | None = None
    """With `verify=True`, the simulated mean-square error of the best candidate with its 95 % interval."""

    @property
    def algorithm(self) -> AbstractAlgorithm:
        """The algorithm with its settings, ready to run."""
        return self.best.algorithm

    @property
    def prediction(self) -> Prediction:
        """The prediction for the best candidate."""
        return self.best.prediction

    @property
    def reach(self) -> Reach:
        """The rounds, samples and bytes that the best candidate takes."""
        return self.best.reach

    def _table(self) -> Table:
        rows = []
        for candidate in self.frontier:
            reach = candidate.reach
            spent = f"{reach.rounds:,.0f}", f"{reach.samples:,.0f}", traffic(reach.bytes).replace(" ", FIXED)
            mark = "best" if candidate is self.best else ""
            rows.append((mark, _brief(candidate.algorithm), *spent, f"{candidate.error:.2e}"))
        if not any(row[0] for row in rows):
            rows.insert(0, self._replace(frontier=(self.best,))._table().rows[0])
        sentences = ["No candidate is better than one of these in rounds, samples and traffic simultaneously."]
        sentences += [f"Not compared: {unknown.algorithm}. {unknown.reason}" for unknown in self.unknown]
        if self.verified is not None:
            value, low, high = self.verified
            sentences.append(f"In a simulation the best one ends at {value:.2e} [{low:.2e},{FIXED}{high:.2e}].")
        heads = ("", "algorithm", "rounds", "samples, all agents", "traffic, all agents", "error at the end")
        return Table(heads, rows, right=(2, 3, 4, 5), caption=" ".join(sentences), apart=1)

    def __repr__(self):
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()

    def to_dict(self) -> dict[str, Any]:
        """Returns the choice as JSON values."""
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
    schedules: bool = True,
    theta: Any = None,
    margin: float = 0.1,
    samples: int | None = None,
    key: SeedLike = 0,
    verify: bool = False,
) -> Choice:
    r"""Chooses the method, step size and local steps that reach a target error at the least predicted cost.

    With a `budget` and no `target`, it minimises the error instead. For every method and number of local steps the step
    size is optimised: a larger one is faster but has a higher floor. Methods whose error cannot be predicted, for
    example because only their mean is known, are listed in `unknown` with the reason.

    **Arguments:**

    - `problem`: the problem.
    - `target`: the mean-square error to reach.
    - `budget`: the largest amount of the objective that may be spent.
    - `objective`: the cost to minimise, `"rounds"`, `"samples"` or `"bytes"`, of all agents together.
    - `algorithms`, `local_steps`: the candidates. Your own method is named by its file, as in `mine.py:HalfHSA`.
    - `server_steps`: the server steps; the first is used unless another is clearly better.
    - `schedules`: whether the step size of the best candidate may change once, to a smaller one (`Stages`).
    - `theta`: the initial parameter. Default: zeros.
    - `margin`: the fraction by which the planned error is below the target, since predictions are not exact. It is
      larger for predictions with a larger estimated error.
    - `samples`, `key`: the number and the key of the observations if sources can only be sampled. They are drawn once.
    - `verify`: whether to simulate the choice with 200 seeds; a warning says if it misses the target.

    **Returns:** a `Choice`, which prints as a table.

    Raises `ValueError` if neither `target` nor `budget` is given, if the target cannot be reached (within the budget),
    if no step size is stable, or if the error of no method can be predicted.

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
            raise ValueError(f"`{name}` must be a list of at least one number, got an empty one.")
    if target is None and budget is None:
        raise ValueError("Pass `target`, the error to reach, or `budget`, the cost that may be spent, or both.")
    for name, value in (("target", target), ("budget", budget)):
        if value is not None:
            _check.number(name, value, above=0.0)
    _check.choice("objective", objective, OBJECTIVES)
    _check.number("margin", margin, least=0.0)
    start = start_error(problem, theta)
    if target is not None and start @ start <= target:
        raise ValueError(f"The initial squared error, {start @ start:.4g}, is already below `target` {target:g}.")
    search = _Search(problem, _Goal(target, budget, objective, theta, margin), samples, key, local_steps)
    choice = search.choice(_methods(algorithms, local_steps, server_steps[0]), server_steps[1:], schedules)
    return _verified(problem, choice, target, theta, key) if verify else choice


class _Goal(NamedTuple):
    target: float | None
    budget: float | None
    objective: str
    theta: Any
    margin: float


class _Method(NamedTuple):
    """A method with all its settings except the step size."""

    name: str
    settings: dict[str, Any]

    def make(self, step: float) -> AbstractAlgorithm:
        """Returns the algorithm with a step size; raises `TypeError` if it requires another argument."""
        method, given = _class(self.name), self.settings
        needed = [p.name for p in inspect.signature(method).parameters.values() if p.default is p.empty]
        missing = [name for name in needed if name not in (*given, "step_size")]
        if missing:
            raise TypeError(f"{self.name} requires `{missing[0]}`, which `choose` does not search for.")
        return method(step_size=step, **given)

    def rule(self, step: float) -> LocalRule:
        """Returns the local rule, or FedHSA's for other methods, which most of them approximate."""
        algorithm = self.make(step)
        return local_rule(algorithm) or LocalRule(step, algorithm.block_length, 1.0, 1.0)

    @property
    def has_server_step(self) -> bool:
        """Whether a server step has another effect than the step size."""
        return "server_step" in self.settings and self.settings.get("local_steps") != 1


def _class(name: str) -> Callable[..., AbstractAlgorithm]:
    return cast(Callable[..., AbstractAlgorithm], ALGORITHMS[name]) if name in ALGORITHMS else algorithm_class(name)


def _methods(algorithms: Sequence[str], local_steps: Sequence[int], server_step: float) -> Iterator[_Method]:
    """Yields every method with every number of local steps, or with a coin that has this number on average."""
    for name in algorithms:
        if _own.reference(name) is None and name not in _own.entry_points("algorithm"):
            _check.choice("algorithms", name, tuple(ALGORITHMS))
        known = inspect.signature(_class(name)).parameters
        for H in local_steps if "local_steps" in known or "probability" in known else (1,):
            settings = {"local_steps": _check.count("local_steps", H), "probability": 1 / H, "server_step": server_step}
            yield _Method(name, {setting: value for setting, value in settings.items() if setting in known})


class _UnknownError(Exception):
    """Raised if the effect of noise on a method is unknown."""


class _Plan(NamedTuple):
    """A method with the step size and the cost that the outline proposes."""

    method: _Method
    log_step: float
    each: Cost
    reach: Reach
    error: float


class _Seen(NamedTuple):
    """Evaluations of a method's law at other step sizes, which correct its outline."""

    log_steps: list[float]
    floors: list[float]
    """Logarithms of the ratio of the floor to that of the outline."""
    values: list[float]
    """Logarithms of the ratio of the rounds (for a budget, of the error) to those of the corrected outline."""
    margin: float
    largest: float
    """The logarithm of the largest step size that may be stable."""

    def at(self, log_step: float, which: list[float]) -> float:
        """Interpolates a correction between the known ones."""
        order = np.argsort(self.log_steps)
        known = np.array(self.log_steps)[order], np.array(which)[order]
        return math.exp(float(np.interp(log_step, *known))) if which else 1.0


class _Search:
    """The search for settings on one problem.

    Laws may take seconds. So all settings are first compared by an outline, the law is evaluated for the most promising
    ones, the outline is corrected by the result, and the comparison is repeated.
    """

    def __init__(self, problem: Problem, goal: _Goal, samples: int | None, key: SeedLike, local_steps: Sequence[int]):
        # All settings are compared on the same observations, so that chance does not decide between them.
        known = noise_is_known(problem)
        self.problem, self.goal = problem, goal
        self.samples = None if known else estimate(problem, samples=samples, key=key)
        self.sketch = Sketch(problem, self.samples, max(local_steps))
        start = start_error(problem, goal.theta)
        self.start = Moments(start, np.zeros((len(start),) * 2))

    def choice(self, methods: Iterator[_Method], other_server_steps: Sequence[float], schedules: bool) -> Choice:
        unknown: dict[str, Unknown] = {}

        @contextlib.contextmanager
        def noting(name: str) -> Iterator[None]:
            try:
                yield
            except (_UnknownError, TypeError) as reason:
                unknown[name] = Unknown(name, str(reason))

        plans: list[_Plan] = []
        for method in methods:
            if method.name not in unknown:
                with noting(method.name):
                    plans.append(self.plan(method, other_server_steps))
        if self.goal.target is None and plans and not any(math.isfinite(plan.error) for plan in plans):
            budget, objective = self.goal.budget, self.goal.objective
            raise ValueError(f"`budget` {budget:g} is too small for one round of any candidate, in {objective}.")
        found: list[tuple[Candidate, _Seen, _Plan]] = []
        for plan in sorted(plans, key=self.value):
            if plan.method.name not in unknown and not any(self.hopeless(plan, candidate) for candidate, *_ in found):
                with noting(plan.method.name):
                    found.append((*self.refined(plan), plan))
        if not found:
            reasons = " ".join(entry.reason for entry in unknown.values())
            raise ValueError(f"There is nothing to choose from: no method's error can be predicted here. {reasons}")
        best, seen, plan = min(found, key=lambda entry: self.value(entry[0]))
        best = self.polished(best, plan.each)
        staged = self.staged(best, plan, seen) if schedules else []
        return self.chosen([*(candidate for candidate, *_ in found), best, *staged], tuple(unknown.values()))

    def chosen(self, candidates: list[Candidate], unknown: tuple[Unknown, ...]) -> Choice:
        """Returns the best candidate and the frontier; raises if the target is not reached within the budget."""
        goal = self.goal
        best = min(candidates, key=self.value)  # the first of equals, so that server steps other than 1 must be better
        spent = getattr(best.reach, goal.objective)
        if goal.target is not None and not math.isfinite(spent):
            lowest = min(candidates, key=lambda candidate: candidate.prediction.floor)
            raise ValueError(
                f"No step size reduces the error to `target` {goal.target:g} with its `margin`: the lowest floor found "
                f"is {lowest.prediction.floor:.3g}, of {lowest.algorithm}. Use more agents or a larger target."
            )
        if goal.target is not None and goal.budget is not None and spent > goal.budget:
            raise ValueError(
                f"`target` {goal.target:g} takes at least {spent:.0f} {goal.objective}, more than the `budget` of "
                f"{goal.budget:.0f}. Without a target, `choose` minimises the error for a budget."
            )
        finite = [candidate for candidate in candidates if np.isfinite(candidate.reach.rounds)]
        frontier: list[Candidate] = []
        for c in finite:
            if not any(self.better(other, c) for other in finite) and not any(f.reach == c.reach for f in frontier):
                frontier.append(c)
        return Choice(best, tuple(sorted(frontier, key=lambda c: c.reach.rounds)), goal.objective, unknown)

    def better(self, one: Candidate, other: Candidate) -> bool:
        """Whether `one` is no worse in all respects and better in some; without a target, the error is included."""
        errors = ((one.error,), (other.error,)) if self.goal.target is None else ((), ())
        a, b = (*one.reach, *errors[0]), (*other.reach, *errors[1])
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    def hopeless(self, plan: _Plan, candidate: Candidate) -> bool:
        """Whether a candidate is better than a plan by more than the error of outlines, and no worse otherwise."""
        if not math.isfinite(candidate.error):
            return False
        ours, theirs = candidate.reach._asdict(), plan.reach._asdict()
        if self.goal.target is None:
            ours, theirs = ours | {"error": candidate.error}, theirs | {"error": plan.error}
        counts = "error" if self.goal.target is None else self.goal.objective
        return ROUGHLY * ours[counts] <= theirs[counts] and all(ALIKE * ours[name] <= theirs[name] for name in ours)

    def plan(self, method: _Method, other_server_steps: Sequence[float]) -> _Plan:
        """Returns the best step size by the outline, with another server step if that is clearly better."""
        algorithm = method.make(0.1)
        if local_rule(algorithm) is None:
            if self.samples is not None:
                raise _UnknownError(f"The effect of noise on {method.name} is unknown from samples alone.")
            size = algorithm.block_length * float(np.linalg.norm(self.sketch.A, 2, axis=(1, 2)).max())
            self.predict(method.make(0.1 / size))  # raises if it is unknown
        each = cost(self.problem, algorithm)
        best = self.outlined(method, each)
        for server_step in other_server_steps if method.has_server_step else ():
            settings = method.settings | {"server_step": server_step}
            other = self.outlined(method._replace(settings=settings), each)
            if BETTER * self.value(other)[0] < self.value(best)[0]:
                best = other
        return best

    def outlined(self, method: _Method, each: Cost, seen: _Seen | None = None) -> _Plan:
        """Returns the best step size of a method by its outline, with the corrections known so far.

        Below the largest step size whose floor is low enough, the cost is a smooth function of the logarithm of the
        step size with one minimum, usually close to that step size. So we search downwards from there until the cost
        rises.
        """
        if seen is None:
            largest = float(largest_step(self.sketch.A, method.rule(0.1)))
            if not largest > 0:
                raise ValueError(
                    "No step size is stable on this problem: its root is unstable. Check the sign of the operator."
                )
            seen = _Seen([], [], [], self.goal.margin, math.log(min(largest, 1e6)))

        @functools.cache
        def outline(x: float) -> Outline:
            return self.sketch.outline(method.rule(math.exp(x))).scaled(seen.at(x, seen.floors))

        def short(x: float) -> float:
            assert self.goal.target is not None
            off = outline(x).floor * (1 + seen.margin) / self.goal.target
            return math.log(off) if off > 0 else -math.inf

        tried: dict[float, _Plan] = {}

        def value(x: float) -> float:
            if x not in tried:
                tried[x] = self._outlined(method, x, outline(x), each, seen)
            return self.value(tried[x])[0]

        high = seen.largest + math.log(0.98)
        top, low = high, high + math.log(SMALLEST)
        if self.goal.target is not None:
            top = _last_low_enough(short, high - math.log(3), low, high)
        if top > low:
            _walk_down(value, top, low)
        value(top)
        return min(tried.values(), key=self.value)

    def _outlined(self, method: _Method, x: float, outline: Outline, each: Cost, seen: _Seen) -> _Plan:
        goal, M, correction = self.goal, self.problem.num_agents, seen.at(x, seen.values)
        if goal.target is None:
            rounds, error = self.affordable(each), math.inf
            if math.isfinite(rounds) and outline.stable:
                error = outline.after(int(rounds), self.start).square
            return _Plan(method, x, each, total_cost(rounds, each, M), correction * error)
        target = goal.target / (1 + seen.margin)
        rounds = correction * outline.rounds_to(target, self.start)
        return _Plan(method, x, each, total_cost(rounds, each, M), target if math.isfinite(rounds) else outline.floor)

    def affordable(self, each: Cost) -> float:
        """Returns the number of rounds that the budget allows; infinity if it does not allow one."""
        assert self.goal.budget is not None
        one = getattr(total_cost(1, each, self.problem.num_agents), self.goal.objective)
        return self.goal.budget // one or math.inf

    def refined(self, plan: _Plan) -> tuple[Candidate, _Seen]:
        """Returns the candidate with the best step size by the law, and all evaluations of the law."""
        method, found = plan.method, list[Candidate]()
        seen = _Seen([], [], [], self.goal.margin, plan.log_step + math.log(1e3))
        while len(found) < MOST_PREDICTIONS:
            x = plan.log_step
            prediction = self.predict(method.make(math.exp(x)))
            found.append(self.evaluate(prediction, plan.each))
            if not prediction.stable:
                seen = seen._replace(largest=x)
                halved = plan._replace(log_step=x - math.log(2))
                plan = self.outlined(method, plan.each, seen) if seen.floors else halved
                continue
            outline = self.sketch.outline(method.rule(math.exp(x)))
            by = prediction.floor / outline.floor if 0 < outline.floor < math.inf and prediction.floor > 0 else 1.0
            seen = seen._replace(
                log_steps=[*seen.log_steps, x], floors=[*seen.floors, math.log(by)], margin=self.margin(prediction)
            )
            bare = self._outlined(method, x, outline.scaled(by), plan.each, seen._replace(log_steps=[], values=[]))
            ours, theirs = self.value(found[-1])[0], self.value(bare)[0]
            known = 0 < ours < math.inf and 0 < theirs < math.inf
            seen = seen._replace(values=[*seen.values, math.log(ours / theirs) if known else 0.0])
            plan = self.outlined(method, plan.each, seen)
            near = min(abs(plan.log_step - other) for other in seen.log_steps)
            if near < SETTLED and any(math.isfinite(self.value(candidate)[0]) for candidate in found):
                break
        return min(found, key=self.value), seen

    def polished(self, best: Candidate, each: Cost) -> Candidate:
        """Returns the candidate with step sizes that are better by the law than their neighbours on both sides."""
        for notch in (NOTCH, 1 / NOTCH):
            while math.isfinite(best.error):
                algorithm = cast(Any, best.algorithm)
                other = dataclasses.replace(algorithm, step_size=_times(notch, algorithm.step_size))
                candidate = self.evaluate(self.predict(other), each)
                if not self.value(candidate)[0] < self.value(best)[0]:
                    break
                best = candidate
        return best

    def staged(self, best: Candidate, plan: _Plan, seen: _Seen) -> list[Candidate]:
        """Returns the best candidate with two step sizes, the larger first, if the outline and the law favour it."""
        method, own, found = plan.method, getattr(best.algorithm, "step_size", None), list[Candidate]()
        if own is None or not (isinstance(best.prediction.law, AbstractSteppedLaw) and math.isfinite(best.error)):
            return found
        now, goal = self.value(best)[0], self.goal
        target = None if goal.target is None else goal.target / (1 + seen.margin)
        budget = self.affordable(plan.each) if target is None else math.inf

        def outline(step: float) -> Outline:
            x = math.log(step)
            return self.sketch.outline(method.rule(step)).scaled(seen.at(x, seen.floors))

        def value(first: Outline, second: Outline, begin: int) -> float:
            between = first.after(begin, self.start)
            if target is None:
                return second.after(int(budget) - begin, between).square
            return begin + second.rounds_to(target, between)

        most = best.reach.rounds
        begins = np.unique(np.geomspace(1, max(most - 1, 1), TIMES).astype(int))
        large = [outline(own * part) for part in LARGER]
        ways = [
            (value(first, second, int(begin)), own * part, own * smaller, int(begin))
            for smaller in SMALLER
            for second in [outline(own * smaller)]
            for part, first in zip(LARGER, large, strict=True)
            if first.stable and math.log(own * part) < seen.largest + math.log(0.9)
            for begin in begins
        ]
        alone = value(outline(own), outline(own), 0)
        if not ways or STAGES_PAY * min(ways)[0] > alone:
            return found
        _, first, second, begin = min(ways)
        algorithm = dataclasses.replace(cast(Any, best.algorithm), step_size=Stages((first, second), (begin,)))
        candidate = self.evaluate(self.predict(algorithm), plan.each)
        return [self.polished(candidate, plan.each)] if self.value(candidate)[0] < now else found

    def predict(self, algorithm: AbstractAlgorithm) -> Prediction:
        """Returns the prediction for an algorithm; raises if its noise is unknown."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PredictionWarning)  # the margin covers this error
            prediction = predict(self.problem, algorithm, samples=self.samples)
        if prediction.stable is not None and (prediction.basis == "mean" or math.isnan(prediction.floor)):
            raise _UnknownError(f"The noise around the mean of {type(algorithm).__name__} is unknown on this problem.")
        return prediction

    def evaluate(self, prediction: Prediction, each: Cost) -> Candidate:
        """Returns the candidate with its cost of reaching the target, or its error when the budget is spent.

        `each` is the cost of a round.
        """
        goal, rounds = self.goal, math.inf
        if not prediction.stable:
            pass
        elif goal.target is None:
            rounds = self.affordable(each)
        elif (target := goal.target / (1 + self.margin(prediction))) > prediction.floor:
            rounds = prediction.rounds_to(target, goal.theta)
        error = prediction.error_after(int(rounds), goal.theta) if math.isfinite(rounds) else math.inf
        return Candidate(prediction.algorithm, prediction, total_cost(rounds, each, self.problem.num_agents), error)

    def margin(self, prediction: Prediction) -> float:
        """Returns the fraction by which the planned error is below the target: requested, or the prediction's error."""
        left_out = prediction.left_out
        if prediction.interval is not None and prediction.floor > 0:
            left_out = prediction.interval[1] / prediction.floor - 1
        return max(self.goal.margin, UNSURE if math.isnan(left_out) else left_out)

    def value(self, way: Candidate | _Plan) -> tuple[float, ...]:
        """Returns the values to minimise, in order of priority; if the target is out of reach, the remaining error."""
        if self.goal.target is None:
            return (way.error,)
        spent = getattr(way.reach, self.goal.objective), way.reach.samples, way.reach.bytes
        if math.isfinite(spent[0]):
            return (*spent, 0.0)
        left = way.prediction.floor if isinstance(way, Candidate) else way.error
        return (*spent, math.inf if math.isnan(left) else left)


def _last_low_enough(excess: Callable[[float], float], x: float, low: float, high: float) -> float:
    """Returns the largest step size whose floor is low enough; `excess` is the logarithm of the floor over the target.

    The floor is nearly proportional to the step size, which gives the next step size to try.
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
    """Tries values below `top` until the cost rises, and then between the neighbours of the minimum."""
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


def _times(factor: float, step: float | AbstractSchedule) -> float | Stages:
    if isinstance(step, Stages):
        return dataclasses.replace(step, step_sizes=tuple(factor * one for one in step.step_sizes))
    return factor * float(cast(float, step))


def _verified(problem: Problem, choice: Choice, target: float | None, theta: Any, key: SeedLike) -> Choice:
    from ..engine import simulate

    rounds = int(choice.reach.rounds)
    run = simulate(problem, choice.algorithm, rounds=rounds, seeds=SEEDS, theta=theta, key=key, every=rounds)
    found = statistics.mean(run.error[:, -1], level=0.95)
    if target is not None and found.low > target:
        warnings.warn(
            f"The simulated error of {_brief(choice.algorithm)} after {rounds:,} rounds is {found:.3g}, above `target` "
            f"{target:g}; the predicted error is {choice.best.error:.3g}. Use a larger `margin`.",
            stacklevel=3,
        )
    return choice._replace(verified=found)


def _as_dict(candidate: Candidate) -> dict[str, Any]:
    name, found = type(candidate.algorithm).__name__, candidate.prediction
    costs = candidate.reach._asdict() | {"error": candidate.error, "floor": found.floor, "basis": found.basis}
    settings = {
        setting: vars(value) if isinstance(value, AbstractSchedule) else value
        for setting, value in vars(candidate.algorithm).items()
    }
    return plain({"algorithm": name, **settings, **costs})

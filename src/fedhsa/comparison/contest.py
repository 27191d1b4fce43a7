"""Methods on equal terms: tuned with the same effort, then run on the same fresh observations, and ranked."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

from .. import _check, plots
from .._random import Stream, as_key, fold_in
from .._types import Key
from ..algorithms import AbstractAlgorithm, Cost, LocalSA, RichardsonRomberg
from ..engine import Result, simulate
from ..engine.placement import parallel_chunks
from ..engine.result import SIGNED, optional_package
from ..engine.simulate import POSITIONS
from ..engine.sweep import with_settings
from ..engine.tasks import outcomes, sentence
from ..problems import Problem
from .ranking import Ranking, rank
from .tuning import Trial, Tuning, search, starting_step

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

POINTS = 200
"""How many points a curve is recorded at, about."""
TAIL = 0.1
"""The part of a run, at its end, over which errors are averaged to one score."""
FLOAT = 8
"""Bytes of a number."""
NUDGE = 1.0
"""How far the first step tried should move the parameter where no root says how far it is."""
NOTHING = 1e-24
"""A squared error, by one plus that of the root, that is nothing but rounding."""

Method: TypeAlias = AbstractAlgorithm | Callable[[float], AbstractAlgorithm]
"""An algorithm as it is, or one for each step size, to be tuned."""
Progress: TypeAlias = Callable[[str, float], None]
"""Called with what is being done and how much is done."""
Done: TypeAlias = Callable[[Mapping[str, "Entry"], Mapping[str, str]], None]
"""Called with the methods that are done, and those that failed, when one more is."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """What is the same for all methods."""

    samples: int = 10_000
    """Observations per agent."""
    seeds: int = 16
    """Independent runs that count."""
    grid: int = 8
    """Steps that each method may try."""
    tuning_seeds: int = 4
    """Independent runs of each step tried, none of them among those that count."""
    target: float | None = None
    """An error, or a return, to reach. Without one, the mean over the last tenth of the run counts."""
    objective: str = "samples"
    """With a target, what to spend least of: `exchanges`, `samples` or `bytes`."""
    key: int = 0
    """Which random observations."""

    def __post_init__(self):
        for name, least in (("samples", 1), ("seeds", 2), ("tuning_seeds", 1)):
            _check.count(name, getattr(self, name), least=least)
        _check.grid(self.grid)
        _check.choice("objective", self.objective, ("exchanges", "samples", "bytes"))
        if self.target is not None:
            _check.number("target", self.target)


class Entry(NamedTuple):
    """One method with its step, and how it did; arrays have one entry per record."""

    algorithm: AbstractAlgorithm | None
    """None for one that was read from a file."""
    tuning: Tuning | None
    """None for a method that came with its step."""
    result: Result
    exchanges: np.ndarray
    """Round trips of the server, whoever takes part; on average, where a coin that everyone sees decides."""
    samples: np.ndarray
    """Observations per agent."""
    bytes: np.ndarray
    """Sent by and to all agents."""
    reached: dict[str, np.ndarray]
    """What it took each seed to reach the target, in exchanges, samples and bytes; empty without a target."""
    score: np.ndarray
    """Per seed what counts: the mean over the end of the run, or what it took to reach the target."""

    @property
    def quantity(self) -> str:
        """What methods are judged by: `"error"`; where there is no root, `"mean_return"` or `"operator_norm"`."""
        return self.result.quantity

    @property
    def values(self) -> np.ndarray:
        """What methods are judged by, `(seeds, records)`."""
        return self.result.records[self.quantity]

    @property
    def error(self) -> np.ndarray:
        """`(seeds, records)`."""
        return self.result.error


class Contest(NamedTuple):
    """What came out, method by method."""

    entries: dict[str, Entry]
    ranking: Ranking
    complete: bool
    """False when methods are missing: it was interrupted, or some failed."""
    failures: Mapping[str, str] = {}
    """With an executor: the methods that failed, and why."""
    terms: Terms | None = None
    """What was the same for all methods."""

    def plot(self, *, title: str | None = None, target: float | None = None, **options: Any) -> "Figure":
        """The mean error or return of each method against exchanges, observations and bytes; `options` as for
        `plots.compare`."""
        traces = {name: plots.Trace(e.values, e.exchanges, e.samples, e.bytes) for name, e in self.entries.items()}
        return plots.compare(traces, title=title, target=target, quantity=self.quantity, **options)

    @property
    def quantity(self) -> str:
        """What methods are judged by."""
        return next((entry.quantity for entry in self.entries.values()), "error")

    def table(self, format: str = "text", *, labels: Mapping[str, str] | None = None, width: int | None = None) -> str:
        r"""The ranking as a table: scores with intervals, times the best, costs, and ties.

        **Arguments:**

        - `format`: `"text"`, `"html"`, or `"latex"`, which needs the package `booktabs`.
        - `labels`: what to call methods, by their names.
        - `width`: of text, in characters. Default: that of the terminal. Nothing is cut: lines become more.

        !!! example
            >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
            >>> methods = [fedhsa.FedHSA(0.1, local_steps=5), fedhsa.LocalSA(0.1, local_steps=5)]
            >>> found = fedhsa.compare(problem, methods, samples=500, seeds=4, grid=4, tuning_seeds=2)
            >>> r"FedHSA\_2" in found.table("latex", labels={"FedHSA": "FedHSA_2"})
            True
        """
        from .table import of_contest

        _check.choice("format", format, ("text", "html", "latex"))
        made = of_contest(self, labels)
        return made.text(width) if format == "text" else made.html() if format == "html" else made.latex()

    def to_pandas(self) -> "pandas.DataFrame":
        """The ranking as a table of pandas: rank, method, step, score with its interval, and costs, as numbers."""
        rows = [
            {
                "rank": place.rank,
                "method": place.name,
                "step": None if entry.tuning is None else entry.tuning.best.step,
                **place.score._asdict(),
                "failed": place.failed,
                "exchanges": float(entry.exchanges[-1]),
                "samples": int(entry.samples[-1]),
                "bytes": float(entry.bytes[-1]),
                "ties": ", ".join(place.ties),
            }
            for place in self.ranking.places
            for entry in [self.entries[place.name]]
        ]
        return optional_package("pandas").DataFrame(rows)

    def __repr__(self):
        return self.table() if self.entries else "a comparison of which no method is done"

    def _repr_html_(self) -> str:
        return self.table("html") if self.entries else f"<p>{self!r}</p>"


def compare(
    problem: Problem,
    methods: Mapping[str, Method] | Sequence[AbstractAlgorithm],
    terms: Terms | None = None,
    progress: Progress = lambda what, part: None,
    *,
    executor: Executor | None = None,
    so_far: Callable[["Contest"], None] = lambda contest: None,
    **changes: Any,
) -> Contest:
    """Tunes each method, runs it on fresh seeds, and ranks them all; Ctrl-C leaves the methods that are done.

    Every method gets the same number of observations of each agent, whatever it makes a round of.

    **Arguments:**

    - `problem`: the problem. Without a root, methods are judged by their returns, of which more is better, or by the
      norm of the average operator.
    - `methods`: a list of algorithms, whose step sizes are tuned; or by name, an algorithm that is taken as it is, or a
      function from a step size to an algorithm.
    - `terms`: what is the same for all; single fields of it may also be given by name (`samples=500`).
    - `progress`: called with what is being done and the part of the whole that is done.
    - `executor`: who computes, a method each, like `concurrent.futures.ThreadPoolExecutor()`, or a cluster's
      `fedhsa.deploy.ray_executor()`. The numbers are the same; a method that fails is told by a warning, and the others
      are finished.
    - `so_far`: called with what there is whenever a method is done, for those who want to keep it.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=3, dim=2)
        >>> methods = [fedhsa.FedHSA(0.1, local_steps=5), fedhsa.LocalSA(0.1, local_steps=5)]
        >>> found = fedhsa.compare(problem, methods, samples=500, seeds=4, grid=4, tuning_seeds=2)
        >>> sorted(place.name for place in found.ranking.places), found.entries["FedHSA"].samples[-1].item()
        (['FedHSA', 'LocalSA'], 500)
    """
    terms = dataclasses.replace(terms or Terms(), **changes)
    methods = methods if isinstance(methods, Mapping) else _tuned(methods)
    if not methods:
        raise ValueError("`methods` is empty. Name at least one, like `[FedHSA(0.1, local_steps=10)]`.")
    if terms.samples >= POSITIONS:
        raise ValueError(f"`samples` must be below {POSITIONS}, where random numbers begin again, got {terms.samples}.")
    judged_by = _judged_by(problem, terms)
    rooted = judged_by == "error"
    tuned = not all(isinstance(method, AbstractAlgorithm) for method in methods.values())
    centre = starting_step(problem, terms.samples) if rooted else rootless_step(problem, terms) if tuned else NUDGE
    for name, method in methods.items():
        algorithm = method if isinstance(method, AbstractAlgorithm) else method(centre)
        if (length := algorithm.block_length) > terms.samples:
            raise ValueError(f"`samples` must be at least {length}, what a round of {name} uses, got {terms.samples}.")
    start = float(problem.root @ problem.root) if rooted else math.inf
    if terms.target is not None and terms.target >= start:
        raise ValueError(f"`target` must be below the error at the start, {start:.3g}, got {terms.target:g}.")
    take = _one_by_one if executor is None else functools.partial(_share_out, executor)
    signed = terms.target is None and judged_by in SIGNED

    def contest(entries: Mapping[str, Entry], failures: Mapping[str, str]) -> Contest:
        ordered = {name: entries[name] for name in methods if name in entries}
        ranking = rank({name: entry.score for name, entry in ordered.items()}, signed=signed)
        return Contest(ordered, ranking, len(entries) == len(methods), failures, terms)

    entries, failures = take(problem, methods, terms, centre, progress, lambda *done: so_far(contest(*done)))
    for name, reason in failures.items():
        warnings.warn(f"{name}: {reason}", stacklevel=2)
    return contest(entries, failures)


def _judged_by(problem: Problem, terms: Terms) -> str:
    """What methods are judged by on this problem; raises if that is nothing, or the target does not fit it."""
    if not isinstance(problem, Problem):
        raise TypeError(
            f"`problem` must be a `Problem`, got {type(problem).__name__}. Make one: `Problem(agents, ...)`."
        )
    judged_by = problem.judged_by if problem.theta_star is None else "error"
    if judged_by is None:
        raise ValueError(
            "Nothing is known by which methods could be compared on this problem: neither its root, nor its mean "
            "operator, nor returns. Pass `theta_star` to `Problem` where you know it."
        )
    if terms.target is not None and judged_by not in SIGNED:
        _check.number("target", terms.target, above=0.0)
    return judged_by


def rootless_step(problem: Problem, terms: Terms) -> float:
    """Where to begin where no root is known: at the step with which one observation of each agent moves the parameter
    by a distance of 1, to one digit."""
    key, tiny = fold_in(as_key(terms.key), Stream.TUNING), 1e-3
    first = simulate(problem, LocalSA(tiny, local_steps=1), rounds=1, seeds=terms.tuning_seeds, key=key, record="theta")
    moves = np.diff(first.records["theta"], axis=1)[:, 0] / tiny
    length = float(np.sqrt((moves**2).sum(-1).mean()))
    return float(f"{NUDGE / length:.0e}") if 0 < length < math.inf else NUDGE


def _one_by_one(
    problem: Problem, methods: Mapping[str, Method], terms: Terms, centre: float, progress: Progress, done: Done
) -> tuple[dict[str, Entry], dict[str, str]]:
    """All methods in their order, until Ctrl-C."""
    total, behind = sum(_work(method, terms) for method in methods.values()), 0
    entries: dict[str, Entry] = {}
    try:
        for name, method in methods.items():

            def of_all(what: str, part: float, name=name, behind=behind) -> None:
                progress(f"{name}: {what}", (behind + part) / total)

            entries[name] = enter(problem, method, terms, centre, of_all)
            behind += _work(method, terms)
            if len(entries) < len(methods):
                done(entries, {})
    except KeyboardInterrupt:
        pass
    return entries, {}


def _share_out(
    executor: Executor,
    problem: Problem,
    methods: Mapping[str, Method],
    terms: Terms,
    centre: float,
    progress: Progress,
    done: Done,
) -> tuple[dict[str, Entry], dict[str, str]]:
    """The same by an executor: what is done until Ctrl-C, and what failed."""
    work = {name: _work(method, terms) for name, method in methods.items()}
    entries: dict[str, Entry] = {}
    failures: dict[str, str] = {}

    def show(running: list[str]) -> None:
        behind = sum(work[name] for name in (*entries, *failures))
        progress(", ".join(running), behind / sum(work.values()))

    calls = {name: functools.partial(enter, problem, method, terms, centre) for name, method in methods.items()}
    try:
        for name, future in outcomes(executor, calls, show):
            error = future.exception()
            if error is None:
                entries[name] = future.result()
                if len(entries) < len(methods):
                    done(entries, failures)
            elif isinstance(error, Exception):
                failures[name] = sentence(error)
            else:
                raise error
    except KeyboardInterrupt:
        pass
    return entries, failures


def _tuned(algorithms: Sequence[AbstractAlgorithm]) -> dict[str, Method]:
    """By name, a function from a step size to the algorithm with that step; one without a step stays as it is."""
    methods: dict[str, Method] = {}
    for algorithm in [algorithms] if isinstance(algorithms, AbstractAlgorithm) else algorithms:
        if not isinstance(algorithm, AbstractAlgorithm):
            raise TypeError(f"`methods` must be algorithms, like `FedHSA(0.1, local_steps=10)`, got {algorithm!r}.")
        names = [type(layer).__name__ for layer in algorithm.layers]
        plain, number = "(".join(names) + ")" * (len(names) - 1), 2
        name = plain
        while name in methods:
            name, number = f"{plain} {number}", number + 1
        has_step = any(hasattr(layer, "step_size") for layer in algorithm.layers)
        methods[name] = functools.partial(_at_step, algorithm) if has_step else algorithm
    return methods


def _at_step(algorithm: AbstractAlgorithm, step: float) -> AbstractAlgorithm:
    return with_settings(algorithm, {"step_size": step})


def _work(method: Method, terms: Terms) -> int:
    """How many runs of one seed a method takes."""
    return terms.seeds + (0 if isinstance(method, AbstractAlgorithm) else terms.grid * terms.tuning_seeds)


def enter(
    problem: Problem, method: Method, terms: Terms, centre: float, progress: Progress = lambda what, done: None
) -> Entry:
    """Tunes one method, where there is something to tune, and runs it; reports how many runs of one seed are done."""
    done = 0

    def run(algorithm: AbstractAlgorithm, seeds: int, key: int | Key, what: str) -> Entry:
        nonlocal done
        entry = _run(problem, algorithm, terms, seeds, key, lambda part: progress(what, done + part * seeds))
        done += seeds
        return entry

    if isinstance(method, AbstractAlgorithm):
        return run(method, terms.seeds, terms.key, f"{terms.seeds} seeds")
    make, tuning_key = method, fold_in(as_key(terms.key), Stream.TUNING)

    def attempt(step: float) -> Trial:
        what = f"step {step:.2g}, {done // terms.tuning_seeds + 1} of {terms.grid}"
        entry = run(make(step), terms.tuning_seeds, tuning_key, what)
        error = float(tail(problem, entry.values, entry.samples).mean())
        if entry.quantity in SIGNED and math.isfinite(error):
            error = -error  # the more the better
        return Trial(step, error, 0.0 if terms.target is None else float(entry.score.mean()))

    sample = make(centre)  # a step of a whole round is that of all its observations
    tuning = search(attempt, centre * sample.block_length if sample.step_is_per_round else centre, terms.grid)
    best = run(make(tuning.best.step), terms.seeds, terms.key, f"{terms.seeds} fresh seeds")
    return best._replace(tuning=tuning)


def _run(
    problem: Problem,
    algorithm: AbstractAlgorithm,
    terms: Terms,
    seeds: int,
    key: int | Key,
    progress: Callable[[float], None],
) -> Entry:
    """One method at one step, on as many observations as all others."""
    length = algorithm.block_length
    rounds = terms.samples // length
    every = -(-rounds // POINTS)
    rounds -= rounds % every
    # On a CPU the seeds that count go in chunks as large as those that tune: one compiled program serves both.
    devices = jax.devices()
    chunk = -(-terms.tuning_seeds // parallel_chunks(devices)) if devices[0].platform == "cpu" else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Interrupted after")
        result = simulate(
            problem,
            algorithm,
            rounds=rounds,
            seeds=seeds,
            key=key,
            every=every,
            chunk=chunk,
            progress=lambda done: progress(done / rounds),
        )
    if not result.complete:
        raise KeyboardInterrupt
    spent = {
        "exchanges": _exchanges(algorithm, result),
        "samples": result.rounds * length,
        "bytes": _bytes(problem, algorithm, result),
    }
    values = result.records[result.quantity]
    if terms.target is None:
        reached, score = {}, tail(problem, values, spent["samples"])
    else:
        there = values >= terms.target if result.quantity in SIGNED else values <= terms.target
        reached = {name: _reached(there & np.isfinite(values), at) for name, at in spent.items()}
        score = reached[terms.objective]
    return Entry(algorithm, None, result, **spent, reached=reached, score=score)


def tail(problem: Problem, values: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Per seed the mean over the last tenth of the run; of errors at least what rounding makes of nothing."""
    last = values[:, samples > (1 - TAIL) * samples[-1]]
    if problem.theta_star is None:
        return last.mean(1)
    return np.maximum(last.mean(1), NOTHING * (1 + float(problem.root @ problem.root)))


def _exchanges(algorithm: AbstractAlgorithm, result: Result) -> np.ndarray:
    """The exchanges held so far, also those of a few agents; just one, the last, where rounds have none."""
    inner = algorithm.layers[-1]
    full = len(inner.exchanges)
    share = inner.average_cost(Cost(full, 0, 0, 0, 0)).exchanges / full  # that of a coin, not of the agents present
    return _spent(result, len(algorithm.exchanges) * share, once=1)


def _bytes(problem: Problem, algorithm: AbstractAlgorithm, result: Result) -> np.ndarray:
    """What all agents have sent and received; a parameter of each copy, where they are sent once, at the end."""
    floats = result.cost.floats_up + result.cost.floats_down
    copies = math.prod(len(layer.factors) for layer in algorithm.layers if isinstance(layer, RichardsonRomberg))
    return _spent(result, FLOAT * problem.num_agents * floats, once=FLOAT * problem.num_agents * problem.dim * copies)


def _spent(result: Result, per_round: float, once: float) -> np.ndarray:
    return result.rounds * per_round if per_round else np.full(len(result.rounds), once)


def _reached(there: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Per seed the first of `at` where it is there, or infinity."""
    return np.where(there.any(1), at[there.argmax(1)].astype(float), np.inf)

"""Comparison of methods that are tuned with the same effort, run on the same fresh observations, and ranked."""

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
"""The approximate number of records of a curve."""
TAIL = 0.1
"""The fraction of a run, at its end, over which errors are averaged to one score."""
FLOAT = 8
"""The number of bytes of one number."""
NUDGE = 1.0
"""The distance that the first step size tried should move the parameter if the root is not known."""
NOTHING = 1e-24
"""The squared error, relative to one plus the squared norm of the root, that counts as rounding."""

Method: TypeAlias = AbstractAlgorithm | Callable[[float], AbstractAlgorithm]
"""An algorithm with its step size, or a function from a step size to an algorithm, which is then tuned."""
Progress: TypeAlias = Callable[[str, float], None]
"""Called with a description of the current work and the fraction that is done."""
Done: TypeAlias = Callable[[Mapping[str, "Entry"], Mapping[str, str]], None]
"""Called with the finished methods and the failed ones whenever a method finishes."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """The terms of a comparison, which are the same for all methods.

    Raises `ValueError` if a number is too small (`seeds` must be at least 2) or `objective` is not one of the three.

    !!! example
        >>> terms = Terms(samples=500, seeds=4, target=1e-2, objective="exchanges")
        >>> terms.grid, terms.tuning_seeds
        (8, 4)
    """

    samples: int = 10_000
    """The number of observations per agent."""
    seeds: int = 16
    """The number of independent runs that are scored."""
    grid: int = 8
    """The number of step sizes that each method may try."""
    tuning_seeds: int = 4
    """The number of independent runs for each step size tried. They are not among the scored runs."""
    target: float | None = None
    """The error, or the return, to reach. Without a target, the score is the mean over the last tenth of the run."""
    objective: str = "samples"
    """With a target, the cost of reaching it that is scored: `exchanges`, `samples` or `bytes`."""
    key: int = 0
    """The key of the random observations."""

    def __post_init__(self):
        for name, least in (("samples", 1), ("seeds", 2), ("tuning_seeds", 1)):
            _check.count(name, getattr(self, name), least=least)
        _check.grid(self.grid)
        _check.choice("objective", self.objective, ("exchanges", "samples", "bytes"))
        if self.target is not None:
            _check.number("target", self.target)


class Entry(NamedTuple):
    """The outcome of one method."""

    algorithm: AbstractAlgorithm | None
    """The algorithm with its step size; None if the comparison was read from a file."""
    tuning: Tuning | None
    """The trials; None if the method was given with its step size."""
    result: Result
    """The result of the scored runs."""
    exchanges: np.ndarray
    """The number of exchanges at each record, whether all agents or a few participate. It is an average where a shared
    coin decides whether there is an exchange."""
    samples: np.ndarray
    """The number of observations per agent at each record."""
    bytes: np.ndarray
    """The number of bytes sent by and to all agents at each record."""
    reached: dict[str, np.ndarray]
    """The exchanges, samples and bytes that each seed needed to reach the target; empty without a target."""
    score: np.ndarray
    """One score per seed: the mean over the end of the run, or the cost of reaching the target."""

    @property
    def quantity(self) -> str:
        """The recorded quantity that is scored: `"error"`, or without a root `"mean_return"` or `"operator_norm"`."""
        return self.result.quantity

    @property
    def values(self) -> np.ndarray:
        """The records of the scored quantity, `(seeds, records)`."""
        return self.result.records[self.quantity]

    @property
    def error(self) -> np.ndarray:
        """The squared error, `(seeds, records)`."""
        return self.result.error


class Contest(NamedTuple):
    """The outcome of a comparison, as returned by `compare`."""

    entries: dict[str, Entry]
    """The outcome of each method, by name."""
    ranking: Ranking
    """The methods from best to worst, with paired tests."""
    complete: bool
    """False if methods are missing because the comparison was interrupted or a method failed."""
    failures: Mapping[str, str] = {}
    """With an executor, the methods that failed and the reasons."""
    terms: Terms | None = None
    """The terms of the comparison; None if it was read from a file."""

    def plot(self, *, title: str | None = None, target: float | None = None, **options: Any) -> "Figure":
        """Draws the mean error or return of each method against exchanges, observations and bytes.

        `options` are those of `plots.compare`.
        """
        traces = {name: plots.Trace(e.values, e.exchanges, e.samples, e.bytes) for name, e in self.entries.items()}
        return plots.compare(traces, title=title, target=target, quantity=self.quantity, **options)

    @property
    def quantity(self) -> str:
        """The recorded quantity that is scored."""
        return next((entry.quantity for entry in self.entries.values()), "error")

    def table(self, format: str = "text", *, labels: Mapping[str, str] | None = None, width: int | None = None) -> str:
        r"""Returns the ranking as a table: scores with intervals, scores relative to the best, costs, and ties.

        **Arguments:**

        - `format`: `"text"`, `"html"`, or `"latex"`, which requires the LaTeX package `booktabs`.
        - `labels`: other names to show for methods, by their names.
        - `width`: the width of the text in characters; longer lines are wrapped. Default: that of the terminal.

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
        """Returns the ranking as a pandas data frame: rank, method, step size, score with its interval, and costs."""
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
        return self.table() if self.entries else "a comparison without a finished method"

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
    """Tunes each method, runs it on fresh seeds, and ranks all methods.

    Every method receives the same number of observations of each agent, however many of them form one of its rounds.
    After Ctrl-C the result contains the methods that are finished.

    **Arguments:**

    - `problem`: the problem. If its root is not known, methods are scored by their returns (larger is better) or by the
      norm of the average operator.
    - `methods`: a list of algorithms, whose step sizes are tuned; or a dictionary from names to algorithms, which are
      used as given, or to functions from a step size to an algorithm, which are tuned.
    - `terms`, `changes`: the terms of the comparison. Single fields may also be given by name (`samples=500`).
    - `progress`: called with a description of the current work and the fraction of the whole that is done.
    - `executor`: runs one task per method, for example `concurrent.futures.ThreadPoolExecutor()`, or
      `fedhsa.deploy.ray_executor()` on a cluster. The numbers are the same. A method that fails causes a warning, and
      the others continue.
    - `so_far`: called with the comparison so far whenever a method finishes.

    **Returns:** a `Contest`, which prints as a table.

    Raises `ValueError` if `methods` is empty, `samples` is too small for one round, `target` is already reached at the
    start, or the problem offers nothing to score methods by.

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
        raise ValueError("`methods` is empty. Pass at least one, such as `[FedHSA(0.1, local_steps=10)]`.")
    if terms.samples >= POSITIONS:
        raise ValueError(f"`samples` must be below {POSITIONS}, where random numbers repeat, got {terms.samples}.")
    judged_by = _judged_by(problem, terms)
    rooted = judged_by == "error"
    tuned = not all(isinstance(method, AbstractAlgorithm) for method in methods.values())
    centre = starting_step(problem, terms.samples) if rooted else rootless_step(problem, terms) if tuned else NUDGE
    for name, method in methods.items():
        algorithm = method if isinstance(method, AbstractAlgorithm) else method(centre)
        if (length := algorithm.block_length) > terms.samples:
            raise ValueError(f"`samples` must be at least {length}, one round of {name}, got {terms.samples}.")
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
    """Returns the quantity that is scored on this problem; raises if there is none or the target does not fit it."""
    if not isinstance(problem, Problem):
        raise TypeError(
            f"`problem` must be a `Problem`, got {type(problem).__name__}. Make one: `Problem(agents, ...)`."
        )
    judged_by = problem.judged_by if problem.theta_star is None else "error"
    if judged_by is None:
        raise ValueError(
            "Methods cannot be compared on this problem: neither its root, nor its mean operator, nor its returns are "
            "known. Pass `theta_star` to `Problem` if you know the root."
        )
    if terms.target is not None and judged_by not in SIGNED:
        _check.number("target", terms.target, above=0.0)
    return judged_by


def rootless_step(problem: Problem, terms: Terms) -> float:
    """Returns the step size around which tuning begins if the root is not known, to one digit.

    With it, one observation of each agent moves the parameter by a distance of 1.
    """
    key, tiny = fold_in(as_key(terms.key), Stream.TUNING), 1e-3
    first = simulate(problem, LocalSA(tiny, local_steps=1), rounds=1, seeds=terms.tuning_seeds, key=key, record="theta")
    moves = np.diff(first.records["theta"], axis=1)[:, 0] / tiny
    length = float(np.sqrt((moves**2).sum(-1).mean()))
    return float(f"{NUDGE / length:.0e}") if 0 < length < math.inf else NUDGE


def _one_by_one(
    problem: Problem, methods: Mapping[str, Method], terms: Terms, centre: float, progress: Progress, done: Done
) -> tuple[dict[str, Entry], dict[str, str]]:
    """Runs all methods in order, until Ctrl-C."""
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
    """Runs all methods on an executor, until Ctrl-C; returns the finished and the failed ones."""
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
    """Returns for each name a function from a step size to the algorithm; an algorithm without one stays as it is."""
    methods: dict[str, Method] = {}
    for algorithm in [algorithms] if isinstance(algorithms, AbstractAlgorithm) else algorithms:
        if not isinstance(algorithm, AbstractAlgorithm):
            raise TypeError(f"`methods` must be algorithms such as `FedHSA(0.1, local_steps=10)`, got {algorithm!r}.")
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
    """Returns the number of single-seed runs that a method takes."""
    return terms.seeds + (0 if isinstance(method, AbstractAlgorithm) else terms.grid * terms.tuning_seeds)


def enter(
    problem: Problem, method: Method, terms: Terms, centre: float, progress: Progress = lambda what, done: None
) -> Entry:
    """Tunes one method if it has a step size to tune, and runs it; reports the number of finished single-seed runs."""
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
            error = -error  # larger is better
        return Trial(step, error, 0.0 if terms.target is None else float(entry.score.mean()))

    sample = make(centre)  # the step size of a whole round covers all its observations
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
    """Runs one method with one step size on the common number of observations."""
    length = algorithm.block_length
    rounds = terms.samples // length
    every = -(-rounds // POINTS)
    rounds -= rounds % every
    # On a CPU the scored seeds run in chunks as large as the tuning seeds, so that one compiled program serves both.
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
    """Returns each seed's mean over the last tenth of the run; for errors, at least the level of rounding."""
    last = values[:, samples > (1 - TAIL) * samples[-1]]
    if problem.theta_star is None:
        return last.mean(1)
    return np.maximum(last.mean(1), NOTHING * (1 + float(problem.root @ problem.root)))


def _exchanges(algorithm: AbstractAlgorithm, result: Result) -> np.ndarray:
    """Returns the exchanges so far, including those of a few agents; one, at the end, if rounds have none."""
    inner = algorithm.layers[-1]
    full = len(inner.exchanges)
    share = inner.average_cost(Cost(full, 0, 0, 0, 0)).exchanges / full  # the probability of a shared coin
    return _spent(result, len(algorithm.exchanges) * share, once=1)


def _bytes(problem: Problem, algorithm: AbstractAlgorithm, result: Result) -> np.ndarray:
    """Returns the bytes sent and received by all agents; one parameter per copy if they are sent once, at the end."""
    floats = result.cost.floats_up + result.cost.floats_down
    copies = math.prod(len(layer.factors) for layer in algorithm.layers if isinstance(layer, RichardsonRomberg))
    return _spent(result, FLOAT * problem.num_agents * floats, once=FLOAT * problem.num_agents * problem.dim * copies)


def _spent(result: Result, per_round: float, once: float) -> np.ndarray:
    return result.rounds * per_round if per_round else np.full(len(result.rounds), once)


def _reached(there: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Returns for each seed the first value of `at` where the target is reached, or infinity."""
    return np.where(there.any(1), at[there.argmax(1)].astype(float), np.inf)

"""Runs one algorithm at many settings on the same observations, and tabulates the results."""

import dataclasses
import functools
import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._check import nearest
from .._table import Table
from ..algorithms import AbstractAlgorithm
from ..problems import Problem
from .progress import ShowProgress, progress_bar
from .result import SIGNED, Result, optional_package
from .simulate import simulate
from .tasks import outcomes, parts, sentence, workers

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

LARGEST = 4
"""The most combinations that an executor gets at once. Those in progress are lost if it stops."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """The result of `sweep`: the settings and their results."""

    settings: tuple[dict[str, Any], ...]
    """The values of the varied settings, one dictionary per combination."""
    results: tuple[Result, ...]
    complete: bool = True
    """False if combinations are missing because the sweep was interrupted or some failed."""
    failures: tuple[tuple[dict[str, Any], str], ...] = ()
    """The combinations that failed in an executor, with the reasons."""
    theory: tuple[float, ...] | None = None
    """The predicted last record of each combination, if requested; NaN if there is no prediction."""

    def rows(self) -> list[dict[str, Any]]:
        """One row per combination: its settings, the mean over seeds of the last record with its 95 % interval, the
        number of diverged seeds, and the predicted mean, if requested."""
        found = []
        for number, (settings, result) in enumerate(zip(self.settings, self.results, strict=True)):
            predicted = {} if self.theory is None else {"theory": self.theory[number]}
            low, high = result.interval()
            last = {result.quantity: float(result.mean()[-1]), "low": float(low[-1]), "high": float(high[-1])}
            found.append({**settings, **last, **predicted, "diverged": int((result.failed_round >= 0).sum())})
        return found

    @property
    def best(self) -> dict[str, Any] | None:
        """The settings with the lowest final mean (for returns, the highest), or None if no mean is finite."""
        last = [float(result.mean()[-1]) for result in self.results]
        finite = [value for value in last if math.isfinite(value)]
        choose = max if self.results and self.results[0].quantity in SIGNED else min
        return self.settings[last.index(choose(finite))] if finite else None

    def to_pandas(self) -> "pandas.DataFrame":
        """`rows` as a pandas table."""
        return optional_package("pandas").DataFrame(self.rows())

    def plot(self, **options: Any) -> "Figure":
        """Draws the final mean against the setting with the most values, one line per combination of the others."""
        from .. import plots

        first = self.results[0]
        known: dict[str, Any] = {"algorithm": first.algorithm, "seeds": len(first.error)}
        return plots.sweep(self.rows(), list(self.settings[0]), first.quantity, **known | options)

    def _table(self) -> Table:
        rows = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in self.rows()]
        names = list(self.rows()[0])
        return Table(names, rows, right=range(len(names)))

    def __repr__(self):
        return self._table().text() if self.results else "a sweep without a finished combination"

    def _repr_html_(self):
        return self._table().html() if self.results else repr(self)


def sweep(
    problem: Problem | Callable[..., Problem],
    algorithm: AbstractAlgorithm | Callable[[Problem], AbstractAlgorithm],
    over: Mapping[str, Sequence[Any]],
    *,
    rounds: int,
    seeds: int = 1,
    progress: ShowProgress = None,
    executor: Executor | None = None,
    so_far: Callable[[Sweep], None] = lambda sweep: None,
    **options: Any,
) -> Sweep:
    """Simulates an algorithm at every combination of some of its settings, on the same observations.

    If `problem` is a function that builds a problem, the sweep can also vary the arguments of that function.

    Numerical settings, such as step sizes, share one compiled program. Settings that change the program, such as
    `local_steps`, compile one program for each value. Ctrl-C keeps the finished combinations.

    **Arguments:**

    - `problem`: the problem, or a function that builds it, such as `problems.quadratic.random`.
    - `algorithm`: the method, with values for the fixed settings; or a function from the problem to the method.
    - `over`: the values to try for each setting. In a wrapped method, the outermost layer with the setting gets it. A
      setting that no layer has is an argument of the function that builds the problem.
    - `rounds`, `seeds`, `progress`, `options`: as for `simulate`.
    - `executor`: an executor that computes the combinations, such as `concurrent.futures.ThreadPoolExecutor()` or a
      cluster's `fedhsa.deploy.ray_executor()`. Combinations that share a program stay together if there are enough
      workers for the rest. The numbers are the same. A combination that fails causes a warning, and the others finish.
    - `so_far`: a function that is called with the unfinished `Sweep` whenever combinations are done.

    Raises `ValueError` if neither the algorithm nor the problem has a setting of `over`.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> found = fedhsa.sweep(problem, fedhsa.FedHSA(0.01, local_steps=5), rounds=20, seeds=4,
        ...                      over={"step_size": [0.01, 0.02], "local_steps": [1, 5]})
        >>> [row["step_size"] for row in found.rows()], found.best
        ([0.01, 0.01, 0.02, 0.02], {'step_size': 0.02, 'local_steps': 5})
        >>> found = fedhsa.sweep(fedhsa.problems.quadratic.random, fedhsa.FedHSA(0.01, local_steps=5), rounds=20,
        ...                      over={"num_agents": [1, 4], "dim": [3]})
        >>> [row["num_agents"] for row in found.rows()]
        [1, 4]
    """
    lists = isinstance(over, Mapping) and all(np.ndim(v) > 0 or isinstance(v, list | tuple) for v in over.values())
    if not (lists and over and all(len(values) for values in over.values())):
        raise ValueError(f"`over` must map settings to lists of values, like {{'step_size': [0.1]}}, got {over!r}.")
    if "checkpoint" in options:
        raise ValueError("`checkpoint` is not supported by sweeps, which have many runs. Use `simulate` for each run.")
    values = {name: [_plain(value) for value in values] for name, values in over.items()}
    combinations = [dict(zip(over, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    both = pairs(problem, algorithm, combinations)  # before anything runs
    if executor is not None:
        simulation = {"rounds": rounds, "seeds": seeds, **options}
        return _share_out(executor, both, combinations, simulation, progress, so_far)
    results: list[Result] = []
    with progress_bar("sweep", rounds * len(combinations), progress) as update:
        for number, (one, method) in enumerate(both):

            def show(done: int, before: int = number * rounds) -> None:
                update(before + done)

            result = simulate(one, method, rounds=rounds, seeds=seeds, progress=show, **options)
            if not result.complete:
                break
            results.append(result)
            if len(results) < len(combinations):
                so_far(Sweep(tuple(combinations[: len(results)]), tuple(results), complete=False))
    return Sweep(tuple(combinations[: len(results)]), tuple(results), len(results) == len(combinations))


def pairs(
    problem: Problem | Callable[..., Problem],
    algorithm: AbstractAlgorithm | Callable[[Problem], AbstractAlgorithm],
    combinations: Sequence[Mapping[str, Any]],
) -> list[tuple[Problem, AbstractAlgorithm]]:
    """The problem and the algorithm of each combination. Problems are shared if only the algorithm differs."""

    def method(problem: Problem) -> AbstractAlgorithm:
        return algorithm if isinstance(algorithm, AbstractAlgorithm) else algorithm(problem)

    if isinstance(problem, Problem):
        return [(problem, with_settings(method(problem), settings)) for settings in combinations]
    arguments = inspect.signature(problem).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    made: dict[str, Problem] = {}
    found = []
    known = settings_of(algorithm if isinstance(algorithm, AbstractAlgorithm) else algorithm(problem()))
    for settings in combinations:
        of_problem = {n: v for n, v in settings.items() if n not in known and (n in arguments or takes_any)}
        if repr(of_problem) not in made:
            made[repr(of_problem)] = problem(**of_problem)
        one = made[repr(of_problem)]
        rest = {name: value for name, value in settings.items() if name not in of_problem}
        found.append((one, with_settings(method(one), rest, (*arguments,))))
    return found


def _share_out(
    executor: Executor,
    both: Sequence[tuple[Problem, AbstractAlgorithm]],
    combinations: Sequence[dict[str, Any]],
    simulation: dict[str, Any],
    progress: ShowProgress,
    so_far: Callable[[Sweep], None],
) -> Sweep:
    """Runs the sweep on an executor."""
    calls: dict[tuple[int, ...], Callable[[], Any]] = {
        tuple(part): functools.partial(simulate_each, both[part[0]][0], [both[i][1] for i in part], simulation)
        for part in parts(_programs(both), workers(executor), LARGEST)
    }
    found: dict[int, Result | str] = {}
    rounds = simulation["rounds"]

    def gathered() -> Sweep:
        ordered = [(combinations[i], found[i]) for i in sorted(found)]
        done = [(settings, result) for settings, result in ordered if isinstance(result, Result)]
        failures = tuple((settings, reason) for settings, reason in ordered if isinstance(reason, str))
        results = tuple(result for _, result in done)
        return Sweep(tuple(s for s, _ in done), results, len(done) == len(combinations), failures)

    with progress_bar("sweep", rounds * len(combinations), progress) as update:

        def show(running: Any) -> None:
            update(rounds * len(found))

        try:
            for part, future in outcomes(executor, calls, show):
                error = future.exception()
                if error is not None and not isinstance(error, Exception):
                    raise error
                came = future.result() if error is None else [sentence(error)] * len(part)
                found.update(zip(part, came, strict=True))
                if len(found) < len(combinations):
                    so_far(gathered())
        except KeyboardInterrupt:
            warnings.warn(f"Interrupted after {len(found)} of {len(combinations)} combinations.", stacklevel=3)
    outcome = gathered()
    for settings, reason in outcome.failures:
        warnings.warn(f"{', '.join(f'{name} {value}' for name, value in settings.items())}: {reason}", stacklevel=3)
    return outcome


def simulate_each(
    problem: Problem, algorithms: Sequence[AbstractAlgorithm], simulation: Mapping[str, Any]
) -> list[Result | str]:
    """Simulates algorithms one after another. A failure is returned as its reason."""
    found: list[Result | str] = []
    for algorithm in algorithms:
        try:
            found.append(simulate(problem, algorithm, progress=False, **simulation))
        except Exception as error:
            found.append(sentence(error))
    return found


def _programs(both: Sequence[tuple[Problem, AbstractAlgorithm]]) -> list[list[int]]:
    """Groups the indices that share one compiled program: algorithms that differ only in numbers, on one problem."""
    kinds: list[Any] = []
    groups: list[list[int]] = []
    for i, (problem, algorithm) in enumerate(both):
        leaves, structure = jax.tree.flatten(algorithm)
        kind = id(problem), structure, [(np.shape(leaf), np.result_type(leaf)) for leaf in leaves]
        if kind not in kinds:
            kinds.append(kind)
            groups.append([])
        groups[kinds.index(kind)].append(i)
    return groups


def _plain(value: Any) -> Any:
    """Converts a value to the form that algorithms expect: Python numbers, or a tuple of them."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic | jax.Array) else value
    return tuple(value) if isinstance(value, list) else value


def with_settings(
    algorithm: AbstractAlgorithm, settings: Mapping[str, Any], others: Sequence[str] = ()
) -> AbstractAlgorithm:
    """Replaces settings of an algorithm, each in the outermost layer that has it.

    `others` are further valid names, which the error message lists.
    """
    for name, value in settings.items():
        algorithm = _with_setting(algorithm, name, value, algorithm, others)
    return algorithm


def settings_of(algorithm: AbstractAlgorithm) -> list[str]:
    """The names of the settings of all layers."""
    names = [field.name for layer in algorithm.layers for field in dataclasses.fields(layer) if field.init]
    return list(dict.fromkeys(names))


def _with_setting(
    algorithm: AbstractAlgorithm, name: str, value: Any, whole: AbstractAlgorithm, others: Sequence[str]
) -> AbstractAlgorithm:
    names = [field.name for field in dataclasses.fields(algorithm) if field.init]
    if name in names:
        return dataclasses.replace(algorithm, **{name: value})
    if "algorithm" not in names:
        known = settings_of(whole)
        problems = f", and the problem {', '.join(others)}" if others else ""
        raise ValueError(
            f"`over`: {type(whole).__name__} has no setting {name!r}.{nearest(name, [*known, *others])} "
            f"It has {', '.join(known)}{problems}."
        )
    inner: Any = algorithm
    return dataclasses.replace(inner, algorithm=_with_setting(inner.algorithm, name, value, whole, others))

"""From settings to a problem and algorithms: arguments are checked against the signatures they go to."""

import inspect
from typing import Any

from ..algorithms import AbstractAlgorithm, parse
from ..problems import PROBLEMS, Problem
from .settings import AbstractSettings
from .usage import UsageError, nearest

FLAGS = {"num_agents": "num_agents", "dim": "dim", "heterogeneity": "heterogeneity", "key": "problem_key"}
"""The arguments of a problem that have a flag of their own, and its name."""


def make_problem(settings: AbstractSettings) -> Problem:
    """The random problem, with its noise, chain or neither."""
    random = PROBLEMS[settings.problem]
    parameters = inspect.signature(random).parameters
    for name in settings.option:
        if name in FLAGS:
            flag = FLAGS[name].replace("_", "-")
            raise UsageError(f"`option` {name} has a flag of its own, `--{flag}` ({FLAGS[name]} in TOML).")
    given = {name: getattr(settings, flag) for name, flag in FLAGS.items()}
    arguments = {name: value for name, value in given.items() if value is not None}
    if "key" not in parameters and not settings.problem_key:
        del arguments["key"]
    arguments |= settings.option
    for name, value in arguments.items():
        if name not in parameters:
            known = [p for p in parameters if p not in FLAGS]
            raise UsageError(
                f"The problem {settings.problem} has no argument `{name}`.{nearest(name, known)} "
                f"Its options are {', '.join(known) or 'none'}."
            )
        _check_kind(name, value, parameters[name].default)
    problem = random(**arguments)
    if settings.iid:
        problem = problem.iid()
    return problem.noiseless() if settings.noiseless else problem


def make_algorithms(settings: AbstractSettings, problem: Problem) -> dict[str, AbstractAlgorithm]:
    """The algorithms by the text they were asked for with, each with those of the settings that it has."""
    sizes = settings.step_size * (len(settings.algorithm) if len(settings.step_size) == 1 else 1)
    return {
        text: make_algorithm(settings, problem, text, size)
        for text, size in zip(settings.algorithm, sizes, strict=True)
    }


def make_algorithm(settings: AbstractSettings, problem: Problem, text: str, step_size: float) -> AbstractAlgorithm:
    """The algorithm of this text, with the step size given where the text has none."""
    shared = {"local_steps": settings.local_steps, "server_step": settings.server_step}
    try:
        algorithm = parse(text, problem, step_size=step_size, **shared)
        algorithm.check(problem)
    except (TypeError, ValueError) as error:  # a wrapper that does not fit, an argument that is missing
        raise UsageError(str(error)) from error
    return algorithm


def title(settings: AbstractSettings, problem: Problem) -> str:
    """The problem and its sizes, for figures."""
    sizes: dict[str, Any] = {"M": problem.num_agents, "d": problem.dim, "H": settings.local_steps}
    if settings.step_size:
        sizes[r"\eta"] = ", ".join(f"{step:g}" for step in settings.step_size)
    return f"{settings.problem}: " + ", ".join(f"${symbol} = {value}$" for symbol, value in sizes.items())


def _check_kind(name: str, value: Any, default: Any) -> None:
    """Refuses a value of another kind than the default, which generators would stumble over later."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    kinds = [
        (bool, "true or false", isinstance(value, bool)),
        (int, "a whole number", number and isinstance(value, int)),
        (float, "a number", number),
        (str, "a word", isinstance(value, str)),
    ]
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise UsageError(f"`{name}` must be a list of {len(default)}, like {list(default)}, got {value!r}.")
        for part, example in zip(value, default, strict=True):
            _check_kind(name, part, example)
        return
    for kind, wanted, fits in kinds:
        if isinstance(default, kind):
            if not fits:
                raise UsageError(f"`{name}` must be {wanted}, got {value!r}. The default is {default}.")
            return

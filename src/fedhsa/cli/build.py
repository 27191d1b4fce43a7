"""Builds a problem and algorithms from settings, and checks the arguments against their signatures."""

import inspect
from typing import Any

from .. import _own
from ..algorithms import AbstractAlgorithm, adapt, parse
from ..problems import Problem, make
from ..problems.make import makers
from . import memory
from .errors import UsageError
from .output import fits_in_memory
from .settings import AbstractSettings

FLAGS = {"num_agents": "num_agents", "dim": "dim", "heterogeneity": "heterogeneity", "key": "problem_key"}
"""The arguments of a problem that have a separate flag, and the name of this flag."""


def make_problem(settings: AbstractSettings) -> Problem:
    """Returns the named problem, with its Markov chain, with independent observations or without noise."""
    for name in settings.option:
        if name in FLAGS:
            flag = FLAGS[name].replace("_", "-")
            raise UsageError(f"`option` {name} has a flag of its own, `--{flag}` ({FLAGS[name]} in TOML).")
    given = {name: getattr(settings, flag) for name, flag in FLAGS.items()}
    if not settings.problem_key:
        del given["key"]  # not every problem is random
    given = {name: value for name, value in given.items() if value is not None}
    try:
        _check_flags(settings.problem, given)
        arguments = given | settings.option
        memory.check_problem(settings.problem, arguments)
        with fits_in_memory("The problem"):
            return make(settings.problem, arguments, noiseless=settings.noiseless, iid=settings.iid)
    except TypeError as error:  # for example, a user's function that returns something else
        raise UsageError(str(error)) from error


def _check_flags(problem: str, given: dict[str, Any]) -> None:
    """Raises `UsageError` if the problem lacks an argument that a flag sets; the flag may have another name."""
    if _own.reference(problem) is None:
        return
    parameters = inspect.signature(makers(problem)[problem]).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            flag = FLAGS[name].replace("_", "-")
            raise UsageError(
                f"`--{flag}` cannot be used with {problem}, which has no argument `{name}`. "
                f"Its arguments are {', '.join(parameters) or 'none'}."
            )


def make_algorithms(settings: AbstractSettings, problem: Problem) -> dict[str, AbstractAlgorithm]:
    """Returns the algorithms by name, each with the settings that it takes."""
    sizes = settings.step_size * (len(settings.algorithm) if len(settings.step_size) == 1 else 1)
    return {
        label: make_algorithm(settings, problem, text, size)
        for label, text, size in zip(settings.labels, settings.algorithm, sizes, strict=True)
    }


def make_algorithm(settings: AbstractSettings, problem: Problem, text: str, step_size: float) -> AbstractAlgorithm:
    """Returns the algorithm that the text describes, with `step_size` if the text has none."""
    shared = {"local_steps": settings.local_steps, "server_step": settings.server_step}
    try:
        algorithm = parse(text, problem, step_size=step_size, **shared)
        adapt(algorithm, problem)  # raises if it does not fit
    except (TypeError, ValueError) as error:  # an incompatible wrapper, or a missing argument
        raise UsageError(str(error)) from error
    return algorithm


def title(settings: AbstractSettings, problem: Problem) -> str:
    """Returns the name of the problem and its sizes, for figures."""
    sizes: dict[str, Any] = {"M": problem.num_agents, "d": problem.dim, "H": settings.local_steps}
    if settings.step_size:
        sizes[r"\eta"] = ", ".join(f"{step:g}" for step in settings.step_size)
    return f"{_own.title(settings.problem)}: " + ", ".join(f"${symbol} = {value}$" for symbol, value in sizes.items())

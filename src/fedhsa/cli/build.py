"""From settings to a problem and algorithms: arguments are checked against the signatures they go to."""

from typing import Any

from ..algorithms import AbstractAlgorithm, adapt, parse
from ..problems import Problem, make
from .errors import UsageError
from .settings import AbstractSettings

FLAGS = {"num_agents": "num_agents", "dim": "dim", "heterogeneity": "heterogeneity", "key": "problem_key"}
"""The arguments of a problem that have a flag of their own, and its name."""


def make_problem(settings: AbstractSettings) -> Problem:
    """The random problem, with its noise, chain or neither."""
    for name in settings.option:
        if name in FLAGS:
            flag = FLAGS[name].replace("_", "-")
            raise UsageError(f"`option` {name} has a flag of its own, `--{flag}` ({FLAGS[name]} in TOML).")
    given = {name: getattr(settings, flag) for name, flag in FLAGS.items()}
    if not settings.problem_key:
        del given["key"]  # not every problem is random
    arguments = {name: value for name, value in given.items() if value is not None} | settings.option
    return make(settings.problem, arguments, noiseless=settings.noiseless, iid=settings.iid)


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
        adapt(algorithm, problem)  # raises if it does not fit
    except (TypeError, ValueError) as error:  # a wrapper that does not fit, an argument that is missing
        raise UsageError(str(error)) from error
    return algorithm


def title(settings: AbstractSettings, problem: Problem) -> str:
    """The problem and its sizes, for figures."""
    sizes: dict[str, Any] = {"M": problem.num_agents, "d": problem.dim, "H": settings.local_steps}
    if settings.step_size:
        sizes[r"\eta"] = ", ".join(f"{step:g}" for step in settings.step_size)
    return f"{settings.problem}: " + ", ".join(f"${symbol} = {value}$" for symbol, value in sizes.items())

"""Problems by name, with arguments that are checked against the generator they go to."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .. import _check
from . import finite_sum, garnet, logistic, quadratic, td
from .base import Problem

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "quadratic": quadratic.random,
    "td": td.random,
    "garnet": garnet.random,
    "finite-sum": finite_sum.random,
    "logistic": logistic.random,
}
"""The random problem of each family, by the name the command line uses."""
COMMON = ("num_agents", "dim", "heterogeneity", "key")
"""The arguments that most problems share."""


def make(name: str, arguments: Mapping[str, Any], *, noiseless: bool = False, iid: bool = False) -> Problem:
    """The random problem of a family, with its noise, with independent observations, or without noise.

    !!! example
        >>> make("td", {"num_agents": 3, "dim": 2, "num_states": 5}, iid=True).num_agents
        3
        >>> make("td", {"num_state": 5})
        Traceback (most recent call last):
        ValueError: The problem td has no argument `num_state`. Did you mean 'num_states'? ...
    """
    if name not in PROBLEMS:
        raise ValueError(
            f"`problem` must be one of {', '.join(PROBLEMS)}, got {name!r}.{_check.nearest(name, PROBLEMS)}"
        )
    parameters = inspect.signature(PROBLEMS[name]).parameters
    for argument, value in arguments.items():
        if argument not in parameters:
            known = [p for p in parameters if p not in COMMON]
            raise ValueError(
                f"The problem {name} has no argument `{argument}`.{_check.nearest(argument, known)} "
                f"Its options are {', '.join(known) or 'none'}."
            )
        _check_kind(argument, value, parameters[argument].default)
    problem = PROBLEMS[name](**arguments)
    if iid:
        problem = problem.iid()
    return problem.noiseless() if noiseless else problem


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
            raise ValueError(f"`{name}` must be a list of {len(default)}, like {list(default)}, got {value!r}.")
        for part, example in zip(value, default, strict=True):
            _check_kind(name, part, example)
        return
    for kind, wanted, fits in kinds:
        if isinstance(default, kind):
            if not fits:
                raise ValueError(f"`{name}` must be {wanted}, got {value!r}. The default is {default}.")
            return

"""Problems by name, with arguments that are checked against the signature of their generator."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .. import _check, _own
from . import (
    actor_critic,
    average_reward_td,
    evaluation,
    finite_sum,
    games,
    garnet,
    gradient_td,
    logistic,
    lqr,
    n_step_td,
    off_policy_td,
    policy_gradient,
    q_learning,
    quadratic,
    sarsa,
    td,
    td_lambda,
)
from .base import Problem

PROBLEMS: dict[str, Callable[..., Problem]] = {
    "quadratic": quadratic.random,
    "td": td.random,
    "garnet": garnet.random,
    "finite-sum": finite_sum.random,
    "logistic": logistic.random,
    "n-step-td": n_step_td.random,
    "td-lambda": td_lambda.random,
    "average-reward-td": average_reward_td.random,
    "evaluation": evaluation.random,
    "off-policy-td": off_policy_td.random,
    "gradient-td": gradient_td.random,
    "q-learning": q_learning.random,
    "sarsa": sarsa.random,
    "actor-critic": actor_critic.random,
    "policy-gradient": policy_gradient.random,
    "lqr": lqr.random,
    "game": games.random,
    "saddle": games.random_saddle,
}
"""The random problem of each family, by the name the command line uses."""
COMMON = ("num_agents", "dim", "heterogeneity", "key")
"""The arguments that most problems share."""


def make(name: str, arguments: Mapping[str, Any], *, noiseless: bool = False, iid: bool = False) -> Problem:
    """Make the random problem of a family, with Markovian noise, with independent observations, or without noise.

    **Arguments:**

    - `name`: a family from `PROBLEMS`, or a reference to your own problem or to a function that returns one:
      `mine.py:build`, `package.module:build`, or an entry point in the group `fedhsa.problems`.
    - `arguments`: the arguments of the family's `random(...)`, or of your function.
    - `noiseless`, `iid`: apply `Problem.noiseless` or `Problem.iid`.

    Raises `ValueError` if the name or an argument is unknown, or if a required argument is missing.

    !!! example
        >>> make("td", {"num_agents": 3, "dim": 2, "num_states": 5}, iid=True).num_agents
        3
        >>> make("td", {"num_state": 5})
        Traceback (most recent call last):
        ValueError: The problem td has no argument `num_state`. Did you mean 'num_states'? ...
        >>> make("fedhsa.problems.td:random", {"num_agents": 3}).num_agents
        3
    """
    known = makers(name)
    _check.arguments("problem", name, known, arguments, common=COMMON)
    for argument, parameter in inspect.signature(known[name]).parameters.items():
        variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is parameter.empty and not variable and argument not in arguments:
            raise ValueError(f"The problem {name} needs a value for its argument `{argument}`.")
    problem = known[name](**arguments)
    if iid:
        problem = problem.iid()
    return problem.noiseless() if noiseless else problem


def makers(name: str) -> Mapping[str, Any]:
    """The functions that make problems, by name: those of the families and, if needed, the one that `name` refers to.

    !!! example
        >>> makers("td")["td"] is td.random
        True
    """
    if name in PROBLEMS:
        return PROBLEMS
    if (found := _own.reference(name)) is not None:
        return {name: _own_maker(_own.load("problem", found), name)}
    offered = _own.entry_points("problem")
    loaded = {name: _own_maker(_own.load_entry_point("problem", name), name)} if name in offered else {}
    return {**PROBLEMS, **offered, **loaded}


def _own_maker(made: Any, name: str) -> Callable[..., Problem]:
    """A user's function or problem as a function whose errors become one clear message."""
    if isinstance(made, Problem):
        return lambda: made
    if isinstance(made, type) or not callable(made):
        what = "must be a function that returns a `Problem`, or a `Problem`"
        raise TypeError(f"`problem`: {name} {what}, got {_own.in_words(made)}.")

    @functools.wraps(made)
    def checked(**arguments: Any) -> Problem:
        with _own.told(f"`problem`: {name} raised an error"):
            problem = made(**arguments)
        if not isinstance(problem, Problem):
            raise TypeError(
                f"`problem`: {name} must return a `Problem`, got {_own.in_words(problem)}. "
                "End it with `return Problem(agents, like=...)`."
            )
        return problem

    return checked

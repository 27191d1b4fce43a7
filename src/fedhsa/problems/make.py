"""Problems by name, with arguments that are checked against the generator they go to."""

from collections.abc import Callable, Mapping
from typing import Any

from .. import _check
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
    """The random problem of a family, with its noise, with independent observations, or without noise.

    !!! example
        >>> make("td", {"num_agents": 3, "dim": 2, "num_states": 5}, iid=True).num_agents
        3
        >>> make("td", {"num_state": 5})
        Traceback (most recent call last):
        ValueError: The problem td has no argument `num_state`. Did you mean 'num_states'? ...
    """
    _check.arguments("problem", name, PROBLEMS, arguments, common=COMMON)
    problem = PROBLEMS[name](**arguments)
    if iid:
        problem = problem.iid()
    return problem.noiseless() if noiseless else problem

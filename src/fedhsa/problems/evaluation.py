"""Policy evaluation in an environment, by TD(0), n-step TD or TD(lambda)."""

from typing import Any

from .. import _check
from .._types import SeedLike
from . import n_step_td, td, td_lambda
from ._worlds import random_features, world
from .base import Problem

__all__ = ["random"]


def random(
    num_agents: int = 10,
    dim: int | None = None,
    *,
    environment: str = "windy-cliff",
    steps: int = 1,
    trace_decay: float = 0.0,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
    **options: Any,
) -> Problem:
    r"""Make the problem of evaluating the uniform policy in the agents' versions of an environment.

    **Arguments:**

    - `num_agents`: $M$.
    - `dim`: the number of random features. Default: a coordinate for each state.
    - `environment`: a name from `fedhsa list environments`; further arguments are passed to the environment.
    - `steps`, `trace_decay`: $n$ of n-step TD, or $\lambda$ of TD($\lambda$), not both.
    - `heterogeneity`: from 0, equal agents, to 1.
    - `key`: a seed.

    Raises `ValueError` if both `steps` and `trace_decay` differ from their defaults.

    !!! example
        >>> problem = random(num_agents=3, environment="random-walk", spread=0.1, trace_decay=0.5)
        >>> problem.dim, problem.num_agents
        (5, 3)
    """
    _check.count("steps", steps)
    _check.number("trace_decay", trace_decay, least=0.0, most=1.0)
    if steps > 1 and trace_decay > 0:
        raise ValueError(
            f"`steps` and `trace_decay` exclude each other, got {steps} and {trace_decay}. Leave one at its default."
        )
    model = world(environment, num_agents, heterogeneity, key, options)
    features = random_features((model.num_states,), dim, key)
    if steps > 1:
        return n_step_td.from_model(model, None, features, steps=steps)
    if trace_decay > 0:
        return td_lambda.from_model(model, None, features, trace_decay=trace_decay)
    return td.from_model(model, None, features)

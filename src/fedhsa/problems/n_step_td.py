"""Policy evaluation by n-step TD with linear features: more rewards, less bootstrapping."""

from typing import Any

import numpy as np

from .._types import SeedLike
from ..environments import Model
from . import _processes, td
from .base import Problem
from .off_policy_td import n_step

__all__ = ["from_arrays", "from_model", "random"]


def from_arrays(P: Any, R: Any, features: Any, discount: Any, *, steps: int = 4, start: Any = None) -> Problem:
    r"""Make the problem of n-step TD in `M` Markov reward processes that share a parameter; `steps=1` is TD(0).

    An observation is a window of $n + 1$ states; consecutive windows overlap.

    **Arguments:**

    - `P`, `R`, `features`, `discount`, `start`: as for `td.from_arrays`.
    - `steps`: $n$.

    !!! example
        >>> P = [[[0.5, 0.5], [0.5, 0.5]]]
        >>> from_arrays(P, R=[[0.0, 1.0]], features=[np.eye(2)], discount=0.5, steps=3).theta_star
        array([0.5, 1.5])

    !!! cite "Sutton and Barto (2018), section 7.1; Khodadadian et al. (2022), arXiv:2206.10185, for the federated form"
    """
    process = _processes.from_arrays(P, R, features, discount, start)
    return n_step(process, np.ones_like(process.chain.stationary), steps)


def from_model(
    model: Model, policy: Any = None, features: Any = None, *, steps: int = 4, start: str = "stationary"
) -> Problem:
    """Make the problem of evaluating a policy by n-step TD in the agents' models.

    The arguments are those of `td.from_model`, and `steps`: $n$.

    !!! example
        >>> model = fedhsa.environments.make("garnet", {"num_agents": 2, "num_states": 4, "num_actions": 2})
        >>> one, two = (from_model(model.take([0]), steps=n).theta_star for n in (1, 2))
        >>> bool(np.allclose(one, two))  # with a table, one agent's root does not depend on n
        True
    """
    process = _processes.from_model(model, policy, features, start=start)
    return n_step(process, np.ones_like(process.chain.stationary), steps)


def random(
    num_agents: int = 20,
    num_states: int = 20,
    dim: int = 8,
    *,
    steps: int = 4,
    heterogeneity: float = 1.0,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    """Make the problem of n-step TD in the processes of `td.random`.

    The arguments are those of `td.random`, and `steps`: $n$.

    !!! example
        >>> problem = random(num_agents=2, num_states=4, dim=2, steps=3)
        >>> problem.num_agents, problem.dim
        (2, 2)
    """
    process = td.random_process(num_agents, num_states, dim, heterogeneity, laziness, key)
    return n_step(process, np.ones_like(process.chain.stationary), steps)

"""Policy evaluation by TD(lambda) with linear features; the eligibility trace is part of the observation."""

from typing import Any

import numpy as np

from .. import _check
from .._types import SeedLike
from ..environments import Model
from ..sources import Traces
from . import _processes, td
from ._evaluation import AbstractEvaluator, evaluation_problem, projected
from ._processes import Process
from .base import Problem

__all__ = ["TDLambdaAgent", "from_arrays", "from_model", "random"]


class TDLambdaAgent(AbstractEvaluator):
    r"""$G_i(\theta, (s, s', z)) = (R_i(s, s') + \gamma_i \phi_i(s')^T \theta - \phi_i(s)^T \theta)\, z$."""

    def operator(self, theta, o, /):
        return self.error(theta, o.state, o.next_state) * o.trace


def from_arrays(
    P: Any, R: Any, features: Any, discount: Any, *, trace_decay: float = 0.5, start: Any = None
) -> Problem:
    r"""Make the problem of TD($\lambda$) in `M` Markov reward processes that share a parameter.

    $\lambda = 0$ is TD(0); $\lambda = 1$ has the root of Monte Carlo evaluation, the values nearest to the true ones.

    **Arguments:**

    - `P`, `R`, `features`, `discount`, `start`: as for `td.from_arrays`.
    - `trace_decay`: $\lambda$ in [0, 1].

    !!! example
        >>> P = [[[0.5, 0.5], [0.5, 0.5]]]
        >>> from_arrays(P, R=[[0.0, 1.0]], features=[np.ones((2, 1))], discount=0.5, trace_decay=1.0).theta_star
        array([1.])

    !!! cite "Tsitsiklis and Van Roy (1997); Tian, Olshevsky et al. (2024), arXiv:2403.08896, for one-shot averaging"
    """
    return _problem(_processes.from_arrays(P, R, features, discount, start), trace_decay)


def from_model(
    model: Model, policy: Any = None, features: Any = None, *, trace_decay: float = 0.5, start: str = "stationary"
) -> Problem:
    r"""Make the problem of evaluating a policy by TD($\lambda$) in the agents' models.

    The arguments are those of `td.from_model`, and `trace_decay`: $\lambda$ in [0, 1].

    !!! example
        >>> model = fedhsa.environments.make("garnet", {"num_agents": 1, "num_states": 4, "num_actions": 2})
        >>> bool(np.allclose(from_model(model, trace_decay=0.9).theta_star, model.values()[0]))
        True
    """
    return _problem(_processes.from_model(model, policy, features, start=start), trace_decay)


def random(
    num_agents: int = 20,
    num_states: int = 20,
    dim: int = 8,
    *,
    trace_decay: float = 0.5,
    heterogeneity: float = 1.0,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    r"""Make the problem of TD($\lambda$) in the processes of `td.random`.

    The arguments are those of `td.random`, and `trace_decay`: $\lambda$ in [0, 1].

    !!! example
        >>> problem = random(num_agents=2, num_states=4, dim=2, trace_decay=0.9)
        >>> problem.num_agents, problem.dim
        (2, 2)
    """
    return _problem(td.random_process(num_agents, num_states, dim, heterogeneity, laziness, key), trace_decay)


def _problem(process: Process, trace_decay: float) -> Problem:
    r"""The mean in each state is $(I - \lambda P \Gamma)^{-1} (E \theta + e)$, the errors that follow a visit."""
    _check.number("trace_decay", trace_decay, least=0.0, most=1.0)
    E, e = process.errors()
    ahead = np.eye(E.shape[1]) - trace_decay * process.discounted_transitions
    A, b = projected(process, np.linalg.solve(ahead, E), np.linalg.solve(ahead, e[..., None])[..., 0])
    by_state = np.broadcast_to(process.discount.reshape(len(E), -1), E.shape[:2])
    source = Traces(process.chain, process.features, trace_decay * by_state)
    return evaluation_problem(TDLambdaAgent, source, process, A, b)

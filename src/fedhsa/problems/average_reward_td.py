"""Policy evaluation without a discount: the average reward, and the relative value of each state."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from .. import _check
from .._types import SeedLike
from ..environments import Model
from ..sources import Transitions
from . import _processes, td
from ._evaluation import AbstractEvaluator, evaluation_problem, projected
from ._processes import Process
from .base import Problem

__all__ = ["AverageRewardTDAgent", "from_arrays", "from_model", "random"]


class AverageRewardTDAgent(AbstractEvaluator):
    r"""The average reward $\bar r$ and $\theta$ in one vector, with step sizes that differ by the factor $\kappa$:

    $$\bar r: \kappa\,(R(s, s') - \bar r), \qquad
      \theta: (R(s, s') - \bar r + \phi(s')^T \theta - \phi(s)^T \theta)\, \phi(s)$$
    """

    step_ratio: np.ndarray

    should_be_monotone: ClassVar[bool] = False  # the rate does not depend on theta, so the two are stable in turn

    def operator(self, theta, o, /):
        rate, theta, phi = theta[0], theta[1:], self.features[o.state]
        excess = self.reward(o.state, o.next_state) - rate
        error = excess + jnp.sum((self.features[o.next_state] - phi) * theta)
        return jnp.append(self.step_ratio * excess, error * phi)

    def recorders(self):
        return {}  # values are defined only up to a constant


def from_arrays(P: Any, R: Any, features: Any, *, step_ratio: float = 1.0, start: Any = None) -> Problem:
    r"""Make the problem of average-reward TD in `M` Markov reward processes that share $(\bar r, \theta)$, `(1 + d,)`.

    **Arguments:**

    - `P`, `R`, `features`, `start`: as for `td.from_arrays`. No combination of the features may be constant over all
      states, because values are defined only up to a constant.
    - `step_ratio`: $\kappa$, the step size of $\bar r$ relative to that of $\theta$.

    Raises `ValueError` if an array is invalid or the root is not unique.

    !!! example
        >>> P = [[[0.5, 0.5], [0.5, 0.5]]]
        >>> from_arrays(P, R=[[0.0, 1.0]], features=[[[0.0], [1.0]]]).theta_star    # half a reward per step
        array([0.5, 1. ])

    !!! cite "Tsitsiklis and Van Roy (1999), average cost temporal-difference learning"
    """
    return _problem(_processes.from_arrays(P, R, features, 0.0, start), step_ratio)


def from_model(model: Model, policy: Any = None, features: Any = None, *, step_ratio: float = 1.0) -> Problem:
    """Make the problem of evaluating a policy by average-reward TD in the agents' models.

    The arguments are those of `td.from_model`, and `step_ratio` as for `from_arrays`. By default there is a coordinate
    for each state except the first, whose value is 0. Raises `ValueError` if episodes end and can start in several
    states.

    !!! example
        >>> model = fedhsa.environments.make("garnet", {"num_agents": 2, "num_states": 4, "num_actions": 2})
        >>> from_model(model).dim  # the average reward, and the values of three states relative to the first
        4
    """
    if (model.continuing().states < 0).any():
        raise ValueError(
            "`start` of the model must be a single state if episodes end: otherwise there is an idle step between two "
            "episodes, which would count in the average reward."
        )
    features = np.eye(model.num_states)[:, model.decision_states[1:]] if features is None else features
    return _problem(_processes.from_model(model, policy, features), step_ratio)


def random(
    num_agents: int = 20,
    num_states: int = 20,
    dim: int = 8,
    *,
    step_ratio: float = 1.0,
    heterogeneity: float = 1.0,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    """Make the problem of average-reward TD in the processes of `td.random`.

    The arguments are those of `td.random`, and `step_ratio` as for `from_arrays`.

    !!! example
        >>> random(num_agents=2, num_states=4, dim=2).dim  # the average reward, and two more
        3
    """
    return _problem(td.random_process(num_agents, num_states, dim, heterogeneity, laziness, key), step_ratio)


def _problem(process: Process, step_ratio: float) -> Problem:
    r"""$A_i = \begin{pmatrix} -\kappa & 0 \\ -\Phi^T D 1 & \Phi^T D (P - I) \Phi \end{pmatrix}$, and $b_i$ likewise."""
    _check.number("step_ratio", step_ratio, above=0.0)
    M, _, d = process.features.shape
    moves = process.chain.transition @ process.features - process.features
    A_theta, b_theta = projected(process, moves, process.mean_rewards)
    A, b = np.zeros((M, 1 + d, 1 + d)), np.empty((M, 1 + d))
    A[:, 0, 0], A[:, 1:, 0], A[:, 1:, 1:] = -step_ratio, -process.weighted_features().sum(-1), A_theta
    b[:, 0], b[:, 1:] = -step_ratio * (process.chain.stationary * process.mean_rewards).sum(-1), b_theta
    ratio = {"step_ratio": np.full(M, float(step_ratio))}
    return evaluation_problem(AverageRewardTDAgent, Transitions(process.chain), process, A, b, **ratio)

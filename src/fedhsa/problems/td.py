"""Policy evaluation by TD(0) with linear features (section 6.2 of the paper)."""

from typing import Any

import jax.numpy as jnp

from .. import _check
from .._arrays import freeze
from .._generate import blend, dense_kernel, lazy
from .._types import SeedLike
from ..environments import Model
from ..kernels import RankOne
from ..sources import Transitions
from . import _processes
from ._evaluation import AbstractEvaluator, evaluation_problem, projected
from ._processes import Process
from .base import Problem

__all__ = ["TDAgent", "from_arrays", "from_model", "random"]


class TDAgent(AbstractEvaluator):
    r"""$G_i(\theta, (s, s')) = (R_i(s, s') + \gamma_i \phi_i(s')^T \theta - \phi_i(s)^T \theta) \, \phi_i(s)$."""

    def operator(self, theta, o, /):
        phi, next_phi = self.features[o.state], self.features[o.next_state]
        reward, discount = self.reward(o.state, o.next_state), self.discounts(o.next_state)
        return (reward + jnp.sum((discount * next_phi - phi) * theta)) * phi  # one sum, which is faster than two

    def form(self, block, /):
        s, next_s = block
        weights = (-jnp.ones_like(self.features[0, 0]), self.discounts(next_s))
        return RankOne(self.features, (s, next_s), weights, self.reward(s, next_s))

    def lipschitz(self, o, /):
        # The Jacobian phi (gamma phi' - phi)^T has rank one.
        phi, next_phi = self.features[o.state], self.features[o.next_state]
        return jnp.linalg.norm(phi) * jnp.linalg.norm(self.discounts(o.next_state) * next_phi - phi)


def from_arrays(P: Any, R: Any, features: Any, discount: Any, *, start: Any = None) -> Problem:
    r"""Make the problem of TD(0) in `M` Markov reward processes that share a parameter.

    **Arguments:**

    - `P`: transition kernels, `(M, S, S)`.
    - `R`: rewards, `(M, S)` on leaving a state, or `(M, S, S)` on a transition.
    - `features`: $\Phi_i$, `(M, S, d)`, with full column rank on the states that some agent visits.
    - `discount`: $\gamma_i$ in [0, 1), `(M,)` or one number; or `(M, S)`, by the state entered: 0 ends an episode.
    - `start`: the distribution of the first state, `(S,)` or `(M, S)`, or a state. Default: stationary.

    In addition to the error, a run can record `value_error` and `mean_value_error`: the weighted root-mean-square
    distance from each agent's own values, and from their average.

    Raises `ValueError` if shapes, kernels or discounts are invalid, or if the features do not have full rank.

    !!! example
        >>> P = [[[0.5, 0.5], [0.5, 0.5]]]
        >>> from_arrays(P, R=[[0.0, 1.0]], features=[np.eye(2)], discount=0.5).theta_star   # V = (I - P/2)^-1 R
        array([0.5, 1.5])
    """
    return _problem(_processes.from_arrays(P, R, features, discount, start))


def from_model(model: Model, policy: Any = None, features: Any = None, *, start: str = "stationary") -> Problem:
    r"""Make the problem of evaluating a policy by TD(0) in the agents' models; episodes follow each other.

    **Arguments:**

    - `model`: the agents' decision processes.
    - `policy`: probabilities of actions, `(S, A)` or `(M, S, A)`, or an action for each state. Default: uniform.
    - `features`: features of the states, `(S, d)` or `(M, S, d)`. Default: a coordinate for each state with actions.
    - `start`: the distribution of the first state, `"stationary"` or that of an `"episode"`.

    !!! example
        >>> model = fedhsa.environments.Model([[[0, 1]], [[0, 0]]], [[1.0], [0.0]], 0.9, start=0, ends=[False, True])
        >>> from_model(model).theta_star        # one step, one reward
        array([1.])
    """
    return _problem(_processes.from_model(model, policy, features, start=start))


def _problem(process: Process) -> Problem:
    r"""$A_i = \Phi_i^T D_i (P_i \Gamma_i - I) \Phi_i$ and $b_i = -\Phi_i^T D_i R_i$ with the stationary $D_i$."""
    A, b = process.by_parts(lambda part: projected(part, *part.errors()))
    return evaluation_problem(TDAgent, Transitions(process.chain), process, A, b)


def random(
    num_agents: int = 200,
    num_states: int = 100,
    dim: int = 50,
    *,
    heterogeneity: float = 1.0,
    laziness: float = 0.0,
    key: SeedLike = 0,
) -> Problem:
    r"""Make the paper's random TD problem.

    Rows of $P_i$ are normalised uniform numbers, $R_i \sim U[0, 2]$, $\Phi_i \sim U[0, 1]$ and
    $\gamma_i \sim U[0.5, 0.99]$.

    **Arguments:**

    - `num_agents`, `num_states`, `dim`: $M$, $S$ and $d$. More agents with the same key extend the problem.
    - `heterogeneity`: 0 makes all agents equal (kernel, rewards, features, discount), 1 makes them independent draws.
    - `laziness`: the probability of staying in place. The paper's kernels mix almost immediately; 0.9 makes the
      correlation visible.

    !!! example
        >>> random(num_agents=3, num_states=8, dim=4).theta_star.shape
        (4,)
    """
    return _problem(random_process(num_agents, num_states, dim, heterogeneity, laziness, key))


def random_process(
    num_agents: int, num_states: int, dim: int, heterogeneity: float, laziness: float, key: SeedLike
) -> Process:
    """The processes of `random`."""
    S = _check.count("num_states", num_states)
    _check.count("dim", dim)
    if dim > S:
        raise ValueError(f"`dim` must be at most `num_states`, got {dim} > {S}: features could not have full rank.")
    P = blend(dense_kernel(S), "P", num_agents, heterogeneity, key)
    R = blend(lambda rng, count: 2 * rng.random((count, S)), "R", num_agents, heterogeneity, key)
    features = blend(lambda rng, count: rng.random((count, S, dim)), "features", num_agents, heterogeneity, key)
    discount = blend(lambda rng, count: rng.uniform(0.5, 0.99, count), "discount", num_agents, heterogeneity, key)
    return _processes.from_arrays(freeze(lazy(P, laziness)), freeze(R), freeze(features), freeze(discount))

"""Off-policy evaluation: agents follow their own behaviours and learn the values of another policy."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import _check
from .._types import SeedLike
from ..environments import Model
from ..environments.model import at_states
from ..kernels import RankOne
from ..sources import Transitions, Windows
from . import _processes
from ._evaluation import AbstractEvaluator, evaluation_problem, projected
from ._processes import Process
from ._worlds import off_policy_world
from .base import Problem

__all__ = ["NStepTDAgent", "OffPolicyTDAgent", "from_model", "random"]


class OffPolicyTDAgent(AbstractEvaluator):
    r"""$G_i(\theta, (x, x')) = \rho_i(x)\,(R + \gamma \phi(x')^T \theta - \phi(x)^T \theta)\,\phi(x)$, $x = (s, a)$.

    The ratio $\rho_i = \pi(a \mid s) / b_i(a \mid s)$ weights actions by importance.
    """

    ratios: np.ndarray

    def operator(self, theta, o, /):
        return self.ratios[o.state] * self.error(theta, o.state, o.next_state) * self.features[o.state]

    def form(self, block, /):
        s, next_s = block
        ratio = self.ratios[s]
        weights = (-ratio, ratio * self.discounts(next_s))
        return RankOne(self.features, (s, next_s), weights, ratio * self.reward(s, next_s))


class NStepTDAgent(AbstractEvaluator):
    r"""$G_i(\theta, (x_0, \dots, x_n)) = \sum_{l<n} \bigl[\prod_{j<l} \rho(x_j) \gamma(x_{j+1})\bigr] \rho(x_l)\,
    \delta_l\, \phi(x_0)$, with $\delta_l$ the TD error from $x_l$ to $x_{l+1}$.
    """

    ratios: np.ndarray

    def operator(self, theta, o, /):
        states, next_states = o[:-1], o[1:]
        errors = self.ratios[states] * self.error(theta, states, next_states)
        continuation = self.ratios[states] * self.discounts(next_states)
        total = errors[-1]
        for step in reversed(range(len(states) - 1)):  # Horner's rule
            total = errors[step] + continuation[step] * total
        return total * self.features[o[0]]

    def form(self, block, /):
        states, next_states = block[:, :-1], block[:, 1:]
        ratios = self.ratios[states]
        reach = jnp.cumprod(ratios * self.discounts(next_states), axis=1)  # the weight of the value of each next state
        before = jnp.concatenate([jnp.ones_like(reach[:, :1]), reach[:, :-1]], axis=1)
        weights = jnp.concatenate([-ratios[:, :1], (before * (1 - ratios))[:, 1:], reach[:, -1:]], axis=1)
        constant = jnp.sum(before * ratios * self.reward(states, next_states), axis=1)
        return RankOne(self.features, tuple(block.T), tuple(weights.T), constant)


def from_model(
    model: Model,
    policy: Any = None,
    behaviour: Any = None,
    features: Any = None,
    *,
    steps: int = 1,
    start: str = "stationary",
) -> Problem:
    r"""Make the problem of off-policy TD with importance ratios.

    With function approximation the average operator need not be stable. The problem warns if it is not; then use
    `gradient_td`.

    **Arguments:**

    - `model`: the agents' decision processes.
    - `policy`: the target: probabilities of actions, `(S, A)` or `(M, S, A)`, or an action for each state.
    - `behaviour`: the policies of the agents, in the same form; positive where the target is. Default: uniform.
    - `features`: features of the states, `(S, d)` or `(M, S, d)`. Default: a coordinate for each state with actions.
    - `steps`: $n$ of n-step TD, the number of rewards before bootstrapping.
    - `start`: the distribution of the first state, `"stationary"` or that of an `"episode"`.

    Raises `ValueError` if the behaviour never takes an action of the policy.

    !!! example
        >>> model = fedhsa.environments.Model([[[0, 1], [0, 1]], [[0, 0], [0, 0]]], [[1.0, 3.0], [0.0, 0.0]], 0.9,
        ...                                   start=0, ends=[False, True])
        >>> from_model(model, policy=[1, 0]).theta_star       # the value of the second action; agents take both
        array([3.])

    !!! cite "Precup, Sutton, Singh (2000); Khodadadian et al. (2022), arXiv:2206.10185, for the federated form"
    """
    _check.count("steps", steps)
    process, ratios = off_policy_process(model, policy, behaviour, features, start)
    if steps > 1:
        return n_step(process, ratios, steps)
    E, e = process.errors()
    A, b = projected(process, ratios[..., None] * E, ratios * e)
    return evaluation_problem(OffPolicyTDAgent, Transitions(process.chain), process, A, b, ratios=ratios)


def n_step(process: Process, ratios: np.ndarray, steps: int) -> Problem:
    r"""The problem of windows, with the mean in each state $\sum_{l<n} (\rho P \Gamma)^l \rho\,(E \theta + e)$."""
    _check.count("steps", steps)
    E, e = process.errors()
    E, e, L = ratios[..., None] * E, ratios * e, ratios[..., None] * process.discounted_transitions
    mean, constant = E, e
    for _ in range(steps - 1):
        mean, constant = E + L @ mean, e + (L @ constant[..., None])[..., 0]
    A, b = projected(process, mean, constant)
    return evaluation_problem(NStepTDAgent, Windows(process.chain, steps), process, A, b, ratios=ratios)


def off_policy_process(
    model: Model, policy: Any, behaviour: Any, features: Any, start: str
) -> tuple[Process, np.ndarray]:
    """The processes under the behaviours, over pairs of state and action, and the ratio of each pair, `(M, S A)`."""
    target, behaviour = model.policy(policy), model.policy(behaviour)
    missing = np.argwhere((target > 0) & (behaviour == 0) & ~model.ends[..., None])
    if len(missing):
        agent, state, action = missing[0]
        raise ValueError(
            f"`behaviour` must take every action that `policy` takes, but agent {agent} never takes action {action} "
            f"in state {state}."
        )
    process = _processes.from_model(model, behaviour, features, pairs=True, start=start)
    ratios = target / np.where(behaviour == 0, 1, behaviour)
    states = model.continuing().states
    own = np.take_along_axis(ratios, np.where(states < 0, 0, states)[..., None], axis=1)
    target_values = at_states(model.values(target), model.chain(behaviour, pairs=True).states, 0.0)
    return process._replace(target_values=target_values), own.reshape(model.num_agents, -1)


def random(
    num_agents: int = 10,
    dim: int | None = None,
    *,
    environment: str = "random",
    steps: int = 1,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
    **options: Any,
) -> Problem:
    r"""Make the problem of evaluating a random policy from other random behaviours, in the agents' environments.

    **Arguments:**

    - `dim`: the number of random features. Default: a coordinate for each state.
    - `environment`: a name from `fedhsa list environments`; further arguments are passed to the environment.
    - `steps`: $n$ of n-step TD.

    !!! example
        >>> random(num_agents=3, num_states=5).dim
        5
    """
    drawn = off_policy_world(environment, num_agents, dim, heterogeneity, key, options)
    return from_model(*drawn, steps=steps)

"""Control by SARSA with linear features and softmax policies: the chain depends on the parameter."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _check
from .._random import fold_in
from .._types import SeedLike
from ..environments import Model
from ..environments.policies import softmax
from ..sources import Decisions, Transition
from ..sources.finite import stationary_law
from ._control import AbstractPairAgent, action_features, one_hot_coordinates, stationary
from ._worlds import random_features, world
from .base import AbstractControlledAgent, Problem

__all__ = ["SARSAAgent", "from_model", "random"]

TURNS = 100
"""The number of policy improvements before the search for the root."""


class SARSAAgent(AbstractPairAgent, AbstractControlledAgent):
    r"""$G_i(\theta, (x, x')) = (R + \gamma \phi(x')^T \theta - \phi(x)^T \theta)\,\phi(x)$, $x = (s, a)$.

    The next action is drawn under the current parameter: $a' \sim \pi_\theta(\cdot \mid s') \propto
    e^{\beta \phi(s', \cdot)^T \theta}$.
    """

    def react(self, theta, state, bits, /):
        assert isinstance(self.source, Decisions)
        state, action = state
        following = self.source.follow(bits, state, action)
        chances = softmax(self.values(theta, following), self.inverse_temperature)
        # The bits have been used for the state; folding makes fresh ones.
        key = fold_in(jax.random.wrap_key_data(bits, impl="threefry2x32"), 1)
        point = jax.random.uniform(key, dtype=chances.dtype)
        next_action = jnp.sum(jnp.cumsum(chances)[:-1] <= point).astype(jnp.int32)
        A = self.features.shape[-2]
        return (following, next_action), Transition(state * A + action, following * A + next_action)

    def log_ratio(self, old, new, o, /):
        """The log ratio of the next action; its state has the same probability under both, given the previous one."""
        state, action = jnp.divmod(o.next_state, self.features.shape[-2])
        chances = (jax.nn.log_softmax(self.inverse_temperature * self.values(at, state)) for at in (old, new))
        before, now = (chance[action] for chance in chances)
        return before - now

    def operator(self, theta, o, /):
        A = self.features.shape[-2]
        (state, action), (next_state, next_action) = jnp.divmod(o.state, A), jnp.divmod(o.next_state, A)
        reward = self.rewards[state, action, next_state]
        ahead = self.discount[next_state] * self.values(theta, next_state, next_action)
        error = reward + ahead - self.values(theta, state, action)
        return self.times_features(theta, error, state, action)

    def mean_operator(self, theta, /):
        """The operator's mean under the stationary distribution of the policy of this parameter."""
        values = self.values(theta)
        policy = softmax(values, self.inverse_temperature)
        visits = stationary(jnp.einsum("sa,sat->st", policy, self.transitions))
        errors = self.mean_errors(values, jnp.sum(policy * values, axis=-1))
        return self.times_features(theta, visits[:, None] * policy * errors)


def from_model(model: Model, features: Any = None, *, inverse_temperature: float = 1.0) -> Problem:
    r"""Make the problem of SARSA in the agents' models: each follows and improves the softmax policy of its parameter.

    At the root, on average over the agents, the values are those of their own softmax policy. It is computed by
    Newton's method with the exact stationary distributions.

    **Arguments:**

    - `model`: the agents' decision processes.
    - `features`: features of pairs, `(S, A, d)` or `(M, S, A, d)`. Default: a table, with a coordinate for each pair.
    - `inverse_temperature`: $\beta$ of the softmax policies. 0 is the uniform policy; large values nearly always take
      the best action. There is no convergence if the policy changes faster than values can be learned.

    A run can record the `returns` of the softmax policy in each agent's environment, and `mean_return`. Raises
    `ValueError` if no root is found.

    !!! example
        >>> rng = np.random.default_rng(0)
        >>> model = fedhsa.environments.Model(rng.dirichlet(np.ones(4), size=(4, 2)), rng.random((4, 2)), 0.5)
        >>> problem = from_model(model, inverse_temperature=2.0)
        >>> result = fedhsa.simulate(problem, fedhsa.SA(0.1), rounds=1000, record=["mean_return"], every=1000)
        >>> bool(result.records["mean_return"][0, -1] > result.records["mean_return"][0, 0])
        True

    !!! cite "Zou, Xu, Liang (2019); Zhang et al. (2024), arXiv:2401.15273, for FedSARSA, which is this with LocalSA"
    """
    _check.number("inverse_temperature", inverse_temperature, least=0.0)
    phi = action_features(model, features)
    P, R, discount, _ = model.continuing()
    options = {"coordinates": one_hot_coordinates(phi)}
    options["inverse_temperature"] = np.full(model.num_agents, float(inverse_temperature))
    agents = SARSAAgent(Decisions(P, model.start), P, R, phi, discount, model.start, **options)
    try:
        return Problem(agents, like=_near_root(agents, float(inverse_temperature)))
    except ValueError as error:
        raise ValueError(
            f"No values were found that are those of their own policies ({error}) Lower `inverse_temperature`, got "
            f"{inverse_temperature}: if policies change abruptly with the values, no fixed point can be found."
        ) from error


def random(
    num_agents: int = 10,
    dim: int | None = None,
    *,
    environment: str = "random",
    inverse_temperature: float = 1.0,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
    **options: Any,
) -> Problem:
    r"""Make the problem of SARSA in the agents' versions of an environment.

    **Arguments:**

    - `dim`: the number of random features. Default: a table.
    - `environment`: a name from `fedhsa list environments`; further arguments are passed to the environment.
    - `inverse_temperature`: $\beta$ of the softmax policies.

    !!! example
        >>> random(num_agents=2, environment="random", num_states=4, num_actions=2).dim
        8
    """
    model = world(environment, num_agents, heterogeneity, key, options)
    return from_model(
        model, random_features((model.num_states, model.num_actions), dim, key), inverse_temperature=inverse_temperature
    )


def _near_root(agents: SARSAAgent, inverse_temperature: float) -> np.ndarray:
    """The start of the search for the root: values of a policy that is evaluated and improved in turn.

    From other starts Newton's method may end where an action is never taken and its value has no weight.
    """
    P, discount, features = agents.transitions, agents.discount[:, None, None, :], agents.features
    rewards, theta = (P * agents.rewards).sum(-1), np.zeros(features.shape[-1])
    for turn in range(TURNS):
        policy = softmax(features @ theta, inverse_temperature)
        visits = stationary_law(np.einsum("msa,msat->mst", policy, P))
        weighted = (visits[..., None] * policy)[..., None] * features
        ahead = np.einsum("msat,mtb,mtbd->msad", P * discount, policy, features, optimize=True)
        A = np.einsum("msad,msae->de", weighted, ahead - features)
        found = np.linalg.lstsq(A, -np.einsum("msad,msa->d", weighted, rewards))[0]
        theta = theta + (found - theta) / (1 if turn < TURNS // 2 else 2)  # damped if it oscillates
        if abs(found - theta).max() < 1e-8 * (1 + abs(found).max()):
            break
    return theta

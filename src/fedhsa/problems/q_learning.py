"""Control by Q-learning with linear features, or with a table, from fixed behaviours."""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from .. import _check
from .._random import host_generator
from .._types import SeedLike
from ..environments import Model
from ..sources import FiniteChain, Generative, Transitions
from ._control import AbstractPairAgent, action_features, one_hot_coordinates
from ._worlds import random_features, world
from .base import AbstractAgent, Problem

__all__ = ["Conditions", "QLearningAgent", "SynchronousQAgent", "conditions", "from_model", "random"]

NEVER = 1e-14
"""Stationary probabilities below this are rounding errors."""


class QLearningAgent(AbstractPairAgent):
    r"""$G_i(\theta, (x, x')) = (R + \gamma \max_b \phi(s', b)^T \theta - \phi(x)^T \theta)\,\phi(x)$, $x = (s, a)$."""

    visits: np.ndarray
    """`(S, A)`, the stationary probability of each pair."""

    should_be_monotone: ClassVar[bool] = False  # the Bellman operator contracts in the maximum norm

    def operator(self, theta, o, /):
        A = self.features.shape[-2]
        (state, action), next_state = jnp.divmod(o.state, A), o.next_state // A
        best = jnp.max(self.values(theta, next_state), axis=-1)
        target = self.rewards[state, action, next_state] + self.discount[next_state] * best
        return self.times_features(theta, target - self.values(theta, state, action), state, action)

    def mean_operator(self, theta, /):
        values = self.values(theta)
        return self.times_features(theta, self.visits * self.mean_errors(values, jnp.max(values, axis=-1)))

    def visited(self, o, /):
        """The coordinates that an observation updates; for a table, the coordinate of its pair."""
        state, action = jnp.divmod(o.state, self.features.shape[-2])
        return self.features[state, action]


class SynchronousQAgent(AbstractPairAgent):
    r"""Every step updates all pairs: $G_i(\theta, (s'_x)_x) = \sum_x (R + \gamma \max_{a'} \phi(s'_x, a')^T \theta -
    \phi(x)^T \theta)\,\phi(x)$.
    """

    should_be_monotone: ClassVar[bool] = False

    def operator(self, theta, o, /):
        S, A = self.features.shape[:2]
        following = o.reshape(S, A)
        rewards = jnp.take_along_axis(self.rewards, following[..., None], axis=-1)[..., 0]
        values = self.values(theta)
        ahead = (self.discount * jnp.max(values, axis=-1))[following]
        return self.times_features(theta, rewards + ahead - values)

    def mean_operator(self, theta, /):
        values = self.values(theta)
        return self.times_features(theta, self.mean_errors(values, jnp.max(values, axis=-1)))


def from_model(
    model: Model, behaviour: Any = None, features: Any = None, *, synchronous: bool = False, start: str = "stationary"
) -> Problem:
    r"""Make the problem of Q-learning in the agents' models under fixed behaviours.

    The operator is not affine; its root is computed by Newton's method. With a table, one coordinate changes per step,
    and the root is the fixed point of the Bellman operators, averaged with the agents' visits of each pair; for one
    agent it is the table of optimal action values. With other features there may be no root or an unstable one;
    `conditions` checks this.

    **Arguments:**

    - `model`: the agents' decision processes.
    - `behaviour`: probabilities of actions, `(S, A)` or `(M, S, A)`. Some agent must take each action in
      each state. Default: uniform.
    - `features`: features of pairs, `(S, A, d)` or `(M, S, A, d)`. Default: a table, with a coordinate for each pair.
    - `synchronous`: whether an agent observes a transition of every pair in every step, from a simulator, instead of a
      trajectory. All pairs then have equal weight, and there is no behaviour. Without noise this is QAvg.
    - `start`: the distribution of the first state, `"stationary"` or that of an `"episode"`.

    A run can record the `returns` of the greedy policy in each agent's environment, and `mean_return`. Raises
    `ValueError` if no agent visits some pair or no root is found.

    !!! example
        >>> stay, move = np.eye(2), np.eye(2)[::-1]
        >>> model = fedhsa.environments.Model(np.stack([stay, move], axis=1), [[0.0, 0.0], [1.0, 0.0]], 0.9)
        >>> from_model(model).theta_star.round(6)        # the table of values, state by state
        array([ 8.1,  9. , 10. ,  8.1])

    !!! cite "Watkins and Dayan (1992); Khodadadian et al. (2022), Woo et al. (2023), Jin et al. (2022), federated"
    """
    _check.choice("start", start, ("stationary", "episode"))
    phi = action_features(model, features)
    P, R, discount, _ = model.continuing()
    M, S, A = phi.shape[:3]
    arrays, coordinates = (P, R, phi, discount, model.start), one_hot_coordinates(phi)
    if synchronous:
        # Every pair has equal weight. An end, which represents the next start on a trajectory, has no weight here.
        phi = np.where(model.ends[..., None, None], 0.0, phi)
        source, arrays = Generative(P.reshape(M, S * A, S)), (P, R, phi, discount, model.start)
        agents: AbstractAgent = SynchronousQAgent(source, *arrays, coordinates=one_hot_coordinates(phi))
    else:
        chain = model.chain(behaviour, pairs=True)
        finite = FiniteChain(chain.transition, chain.start if start == "episode" else None)
        visits = finite.stationary.reshape(M, S, A)
        _check_visits(visits, phi)
        agents = QLearningAgent(Transitions(finite), *arrays, visits, coordinates=coordinates)
    try:
        return Problem(agents, like=_nearest_table(model, phi))
    except ValueError as error:
        raise ValueError(
            f"No root of Q-learning was found with these features ({error}) Use other features, or a table."
        ) from error


class Conditions(NamedTuple):
    """Whether a Q-learning problem is known to be stable."""

    root: float
    """The largest real part of an eigenvalue of the average operator's Jacobian at the root: below 0, it is stable."""
    margin: float
    r"""The smallest eigenvalue of $\Sigma - \gamma^2 \Sigma^\star(\theta)$ at the root and at all parameters tried,
    with $\Sigma$ the covariance of the features under the behaviours and $\Sigma^\star(\theta)$ that of the best
    actions' features. If it is above 0 for all parameters, Q-learning converges (Melo, Meyn and Ribeiro, 2008)."""
    tried: int
    """The number of parameters tried."""

    @property
    def holds(self) -> bool:
        """Whether the condition held at all parameters tried."""
        return self.margin > 0 > self.root


def conditions(problem: Problem, tries: int = 200, key: int = 0) -> Conditions:
    """Checks whether Q-learning is stable at the root, and whether a sufficient condition for convergence holds.

    The condition concerns all parameters; it is checked at the root and in random directions from zero.

    **Arguments:**

    - `problem`: a problem of `from_model` with `synchronous=False`; otherwise raises `TypeError`.
    - `tries`: the number of random directions.
    - `key`: their seed.

    !!! example
        >>> stay, move = np.eye(2), np.eye(2)[::-1]
        >>> model = fedhsa.environments.Model(np.stack([stay, move], axis=1), [[0.0, 0.0], [1.0, 0.0]], 0.9)
        >>> conditions(from_model(model)).root < 0
        True
    """
    agents = problem.agents
    if not isinstance(agents, QLearningAgent):
        raise TypeError(
            "`problem` must be Q-learning from trajectories, `q_learning.from_model(..., synchronous=False)`, got "
            f"agents of {type(agents).__name__}."
        )
    root = float(np.linalg.eigvals(problem.jacobians(problem.theta_star).mean(0)).real.max())
    rng = host_generator(key, "conditions")
    parameters = np.concatenate([problem.theta_star[None], rng.normal(size=(tries, problem.dim))])
    by_state = agents.visits.sum(-1)
    own = np.einsum("msa,msad,msae->de", agents.visits, agents.features, agents.features)
    margin = np.inf
    for theta in parameters:
        chosen = (agents.features @ theta).argmax(-1)[..., None, None]
        best = np.take_along_axis(agents.features, chosen, axis=2)[:, :, 0]
        weights = by_state * agents.discount**2
        margin = min(margin, np.linalg.eigvalsh(own - np.einsum("ms,msd,mse->de", weights, best, best))[0])
    return Conditions(root, float(margin) / problem.num_agents, len(parameters))


def random(
    num_agents: int = 10,
    dim: int | None = None,
    *,
    environment: str = "random",
    synchronous: bool = False,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
    **options: Any,
) -> Problem:
    """Make the problem of Q-learning in the agents' versions of an environment, under the uniform policy.

    **Arguments:**

    - `dim`: the number of random features. Default: a table.
    - `environment`: a name from `fedhsa list environments`; further arguments are passed to the environment.
    - `synchronous`: whether every step updates all pairs of state and action.

    !!! example
        >>> random(num_agents=3, environment="windy-cliff").dim
        64
    """
    model = world(environment, num_agents, heterogeneity, key, options)
    features = random_features((model.num_states, model.num_actions), dim, key)
    return from_model(model, None, features, synchronous=synchronous)


def _check_visits(visits: np.ndarray, features: np.ndarray) -> None:
    """Raises if no agent's trajectory ever updates some coordinate."""
    seen = np.einsum("msa,msad->d", visits, features**2) > NEVER
    if not seen.all():
        _, state, action, _ = np.argwhere(features[..., [int(np.argmin(seen))]] != 0)[0]
        raise ValueError(
            f"`behaviour` must lead some agent to every pair that has a value, but no agent ever takes action {action} "
            f"in state {state}. Change `behaviour`, or give features without that pair."
        )


def _nearest_table(model: Model, features: np.ndarray) -> np.ndarray:
    """The start of the search for the root: the parameter nearest to the average of the optimal values."""
    values = model.optimal().mean(0).reshape(-1)
    return np.linalg.lstsq(features.mean(0).reshape(len(values), -1), values)[0]

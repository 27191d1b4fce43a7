"""Agents that learn from the experience of an environment: TD evaluation, Q-learning and SARSA with linear features."""

import abc
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check, tree
from .._random import as_key, fold_in
from .._types import SeedLike, precision
from ..environments.experience import Experience as Experience
from ..environments.jax_env import JaxEnvironment
from ..sources import AbstractSource, Replay, Silent
from .base import AbstractAgent, Problem

__all__ = ["AbstractActionAgent", "QAgent", "Reference", "SARSAAgent", "TDAgent", "from_environment", "record"]


class TDAgent(AbstractAgent):
    r"""Policy evaluation by TD(0) with linear features.

    $$G(\theta, o) = \text{mean}\,(r + \gamma \phi(s')^T\theta - \phi(s)^T\theta)\,\phi(s) - \lambda\theta$$

    The mean is over the copies of the environment that step together; $\gamma = 0$ if an episode has ended.

    **Arguments:**

    - `source`: the source of `Experience`. Default: none, for agents that are `Live`.
    - `regularisation`: $\lambda$; needed for a unique root if features are linearly dependent, as with tile coding.

    !!! example
        >>> o = Experience(np.array([[1.0, 0.0]]), np.array([0]), np.array([3.0]), np.array([0.5]),
        ...                np.array([[0.0, 1.0]]), np.array([0]))
        >>> print(TDAgent().operator(np.array([1.0, 4.0]), o))                     # (3 + 0.5 * 4 - 1) * (1, 0)
        [4. 0.]
    """

    regularisation: Any

    affine: ClassVar[bool] = True

    def __init__(self, source: AbstractSource | None = None, regularisation: Any = 0.0):
        self.source = Silent() if source is None else source
        self.regularisation = _strength(regularisation)

    def operator(self, theta, o, /):
        error = o.reward + o.discount * (o.next_features @ theta) - o.features @ theta
        return error @ o.features / len(o.reward) - self.regularisation * theta


class AbstractActionAgent(AbstractAgent):
    r"""An agent with action values $q(s, a) = \phi(s)^T \theta_a$; the blocks $\theta_a$ are one vector."""

    num_actions: int = eqx.field(static=True)
    regularisation: Any

    def __init__(self, num_actions: int, source: AbstractSource | None = None, regularisation: Any = 0.0):
        self.num_actions, self.source = _check.count("num_actions", num_actions), Silent() if source is None else source
        self.regularisation = _strength(regularisation)

    @abc.abstractmethod
    def next_value(self, values: Any, o: Experience, /) -> Any:
        """The values of the next states, `(copies,)`, given the values of their actions, `(copies, actions)`."""

    def operator(self, theta, o, /):
        blocks = theta.reshape(self.num_actions, -1)
        values, taken = o.features @ blocks.T, jax.nn.one_hot(o.action, self.num_actions, dtype=theta.dtype)
        ahead = o.discount * self.next_value(o.next_features @ blocks.T, o)
        error = o.reward + ahead - jnp.sum(values * taken, axis=1)
        move = (error[:, None] * taken).T @ o.features / len(o.reward)
        return move.reshape(-1) - self.regularisation * theta


class SARSAAgent(AbstractActionAgent):
    r"""SARSA: like `TDAgent`, for action values $q(s, a) = \phi(s)^T \theta_a$.

    The error $r + \gamma q(s', a') - q(s, a)$ moves $\theta_a$ along $\phi(s)$. The parameter is one vector, with the
    blocks $\theta_a$ one after another. The operator is affine for given observations; if the behaviour depends on the
    parameter, so does their distribution.

    **Arguments:**

    - `num_actions`: the number of actions.
    - `source`, `regularisation`: as for `TDAgent`.
    """

    affine: ClassVar[bool] = True

    def next_value(self, values, o, /):
        return jnp.sum(values * jax.nn.one_hot(o.next_action, self.num_actions, dtype=values.dtype), axis=1)


class QAgent(AbstractActionAgent):
    r"""Q-learning: like `SARSAAgent`, with the target $r + \gamma \max_{a'} q(s', a')$. Not affine.

    **Arguments:**

    - `num_actions`: the number of actions.
    - `source`, `regularisation`: as for `TDAgent`.
    """

    def next_value(self, values, o, /):
        return jnp.max(values, axis=1)


def _strength(regularisation):
    _check.number("regularisation", regularisation, least=0.0)
    return np.asarray(regularisation, dtype=np.float64)


class Reference(NamedTuple):
    """A root that was computed from one record, and its residual on another."""

    theta: np.ndarray
    residual: float
    """$|mean_i G_i|$ at the root over $|mean_i G_i|$ at zero, both on the second record."""


def from_environment(
    environment: Any,
    params: Sequence[Any],
    *,
    features: Any,
    policy: Any = None,
    discount: float = 0.99,
    num_envs: int = 1,
    actions: Any = None,
    regularisation: float = 0.0,
    reference_steps: int = 50_000,
    key: SeedLike = 0,
) -> Problem:
    r"""Make the problem of evaluating one policy in JAX environments whose physical constants differ.

    The root is computed by least-squares TD on a record of every agent and certified on a second record: there, the
    norm of the operator must be below 5 % of its norm at zero. Its accuracy depends on the length of the records:
    errors below the squared residual are not meaningful.

    **Arguments:**

    - `environment`, `features`, `policy`, `discount`, `num_envs`, `actions`: as for `JaxEnvironment`.
    - `params`: the constants of each agent's environment, in a list; see `perturbed`.
    - `regularisation`: as for `TDAgent`.
    - `reference_steps`: the number of steps of each environment in a record.
    - `key`: the seed of the records.

    Raises `ValueError` if `params` is empty or the residual is too large.

    !!! example
        >>> import gymnax
        >>> cart_pole, constants = gymnax.make("CartPole-v1")
        >>> settings = {"discount": 0.5, "num_envs": 8, "reference_steps": 2000}
        >>> problem = from_environment(cart_pole, [constants], features=lambda seen: jnp.ones(1), **settings)
        >>> bool(1.8 < problem.theta_star[0] < 2)  # a reward of 1 in every step, until the pole falls
        True
    """
    given = {"features": features, "policy": policy, "discount": discount, "actions": actions}

    def agents(copies: int) -> TDAgent:
        sources = [JaxEnvironment(environment, p, **given, num_envs=copies) for p in params]
        return tree.stack([TDAgent(source, regularisation) for source in sources])

    if not len(params):
        raise ValueError("`params` must list the constants of at least one agent's environment.")
    like = np.zeros(_feature_size(agents(1)))
    # The stationary distribution does not depend on the number of copies; each copy must forget its start.
    copies = min(64, max(1, _check.count("reference_steps", reference_steps) // 500))
    reference = least_squares(agents(copies), reference_steps // copies, key)
    if not reference.residual <= 0.05:
        raise ValueError(
            f"`reference_steps`: on a second record, {reference.residual:.1%} of the operator remains at the root that "
            f"was computed from {reference_steps} steps. Use more steps, or fewer features."
        )
    return Problem(agents(num_envs), like=like, theta_star=reference.theta)


def least_squares(agents: AbstractAgent, steps: int, key: SeedLike = 0) -> Reference:
    """The root of the average operator on a record of `steps` observations of each agent, checked on a second record.

    For TD this is least-squares TD (LSTD). The first tenth of the first record is omitted, so that chains forget their
    start. The first half of the second record is omitted, so that it shows whether a tenth was too short.
    """
    _check.count("steps", steps)
    records = (record(agents, steps, fold_in(as_key(key), i)) for i in range(2))
    first, second = (_replayed(agents, r, skip) for r, skip in zip(records, (steps // 10, steps // 2), strict=True))
    dim = _feature_size(agents) * getattr(agents, "num_actions", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the residual on the second record shows if the first is too short
        theta = Problem(first, like=np.zeros(dim)).theta_star
    tried = Problem(second, like=np.zeros(dim), theta_star=theta)
    left, whole = (np.linalg.norm(tried.mean_operator(at)) for at in (theta, np.zeros(dim)))
    return Reference(theta, float(left / whole))


def record(agents: AbstractAgent, steps: int, key: SeedLike) -> Experience:
    """Record the first `steps` observations of each agent, as arrays `(agents, steps, copies, ...)`.

    !!! example
        >>> import gymnax
        >>> from fedhsa import tree
        >>> cart_pole, constants = gymnax.make("CartPole-v1")
        >>> source = JaxEnvironment(cart_pole, constants, features=lambda seen: seen, num_envs=2)
        >>> record(tree.stack([TDAgent(source=source)]), 5, key=0).reward.shape
        (1, 5, 2)
    """
    with precision():
        keys = fold_in(as_key(key), jnp.arange(tree.leading_axis(agents)))
        return tree.to_host(_record(tree.to_device(agents, "float64"), keys, steps))


@eqx.filter_jit
def _record(agents, keys, steps):
    def of_agent(agent, key):
        positions = fold_in(key, jnp.arange(steps + 1))
        return agent.source.draw(positions[1:], agent.source.init(positions[0]))[1]

    return jax.vmap(of_agent)(agents, keys)


def _replayed(agents: AbstractAgent, recorded: Experience, skip: int) -> AbstractAgent:
    """The agents with their records as sources: all steps and copies are one observation."""

    def merge(x: np.ndarray) -> np.ndarray:
        kept = x[:, skip:]
        return kept.reshape(len(x), 1, -1, *x.shape[3:])

    return eqx.tree_at(lambda a: a.source, agents, Replay(jax.tree.map(merge, recorded)))


def _feature_size(agents: AbstractAgent) -> int:
    with precision():
        one = tree.to_device(tree.take(agents, 0), "float64")
        seen = jax.eval_shape(lambda key: one.source.step(key, one.source.init(key))[1], jax.random.key(0))
    return seen.features.shape[-1]

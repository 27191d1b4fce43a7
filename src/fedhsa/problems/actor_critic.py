"""Actor-critic with a softmax policy and a linear critic: one parameter with two parts, on a chain that restarts."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check
from .._linear import solve
from .._random import fold_in
from .._types import SeedLike
from ..environments import Model
from ..environments.policies import softmax
from ..sources import Decision, Restarts
from ..sources.finite import key_bits
from ._control import AbstractModelAgent, policy_return, stationary
from ._processes import state_features
from ._worlds import random_features, world
from .base import AbstractControlledAgent, Problem

__all__ = ["ActorCritic", "ActorCriticAgent", "from_model", "random"]

TARGETS = ("next", "restart")
SAMPLINGS = ("markov", "iid")


class ActorCritic(NamedTuple):
    """The parameter, or its update."""

    policy: Any
    r"""$\theta$, `(S, A)`: the policy is the softmax of each row."""
    critic: Any
    r"""$\omega$, `(d,)`: the value of a state is $\phi(s)^T \omega$."""


class ActorCriticAgent(AbstractModelAgent, AbstractControlledAgent):
    r"""$G_i((\theta, \omega), (s, a, s')) = (\delta\, \nabla_\theta \log \pi_\theta(a \mid s),\; \delta\, \phi(s))$.

    $\delta = R + \gamma \phi(s')^T \omega - \phi(s)^T \omega$ and $a \sim \pi_\theta(\cdot \mid s)$. The chain restarts
    with probability $1 - \gamma$ after each step, and where an episode ends, so that its stationary distribution is the
    discounted visitation distribution.
    """

    target: str = eqx.field(static=True)
    sampling: str = eqx.field(static=True)

    @property
    def judged_by(self):
        return "mean_return"

    def react(self, theta, state, bits, /):
        assert isinstance(self.source, Restarts)
        key = jax.random.wrap_key_data(bits, impl="threefry2x32")
        if self.sampling == "iid":
            state = self._visited(theta.policy, fold_in(key, 3))
        (act, stay), restart = _uniforms(fold_in(key, 1), self.discount.dtype), key_bits(fold_in(key, 2))
        action, following = self._act(theta.policy, state, act, bits)
        onward = jnp.where(stay < self.discount[following], following, self.source.begin(restart))
        return onward, Decision(state, action, following if self.target == "next" else onward)

    def log_ratio(self, old, new, o, /):
        """The log ratio of the probabilities of the action, given the state."""
        before, now = (jax.nn.log_softmax(at.policy[o.state])[o.action] for at in (old, new))
        return before - now

    def operator(self, theta, o, /):
        phi, following = self.features[o.state], self.features[o.next_state]
        reward, discount = self.rewards[o.state, o.action, o.next_state], self.discount[o.next_state]
        error = reward + discount * (following @ theta.critic) - phi @ theta.critic
        score = (-softmax(theta.policy[o.state])).at[o.action].add(1.0)
        return ActorCritic(jnp.zeros_like(theta.policy).at[o.state].set(error * score), error * phi)

    def mean_operator(self, theta, /):
        """The operator's mean under the stationary distribution of this policy, with restarts."""
        policy, values = softmax(theta.policy), self.features @ theta.critic
        restarting = self.restarting()
        visits = stationary(jnp.einsum("sa,sat->st", policy, restarting))[:, None] * policy
        kernel = self.transitions if self.target == "next" else restarting
        ahead = self.rewards + (self.discount * values)[None, None, :]
        errors = jnp.sum(kernel * ahead, axis=-1) - values[:, None]
        surplus = errors - jnp.sum(policy * errors, axis=-1, keepdims=True)
        return ActorCritic(visits * surplus, jnp.einsum("sa,sd->d", visits * errors, self.features))

    def restarting(self):
        r"""The kernel of the chain, `(S, A, S)`: $\gamma P(s' \mid s, a) + (1 - \gamma) \rho_0(s')$ except at ends."""
        going_on = self.transitions * self.discount[None, None, :]
        return going_on + (1 - jnp.sum(going_on, axis=-1, keepdims=True)) * self.start[None, None, :]

    def recorders(self):
        def make(average: bool) -> _Returns:
            return _Returns(*self.return_arrays(), average)

        return {
            "returns": lambda: make(False),
            "mean_return": lambda: make(True),
            "gradient_norm": lambda: _GradientNorm(make(True)),
            "critic_gap": lambda: _critic_gap,
        }

    def _act(self, policy, state, point, bits):
        """The action that a uniform number selects, and the next state."""
        assert isinstance(self.source, Restarts)
        action = jnp.sum(jnp.cumsum(softmax(policy[state]))[:-1] <= point).astype(jnp.int32)
        return action, self.source.follow(bits, state, action)

    def _visited(self, policy, key):
        r"""A state from the discounted visitation distribution.

        It is the state at which an episode is stopped, with probability $1 - \gamma$ before each step; an episode that
        ends before is discarded.
        """
        assert isinstance(self.source, Restarts)
        begin, discount = self.source.begin, jnp.max(self.discount)

        def go_on(turn):
            count, state, _ = turn
            stop, act = _uniforms(fold_in(key, 3 * count), self.discount.dtype)
            stopped, moves = stop >= discount, key_bits(fold_in(key, 3 * count + 1))
            _, following = self._act(policy, state, act, moves)
            again = begin(key_bits(fold_in(key, 3 * count + 2)))
            following = jnp.where(self.discount[following] == 0, again, following)
            return count + 1, jnp.where(stopped, state, following), stopped

        first = jnp.ones((), jnp.uint32), begin(key_bits(fold_in(key, 0))), jnp.zeros((), bool)
        return jax.lax.while_loop(lambda turn: ~turn[2], go_on, first)[1]


class _Returns(eqx.Module):
    """The expected return of an episode under the softmax policy, in each agent's environment or on average."""

    discounted_transitions: np.ndarray
    """`(M, S, A, S)`."""
    rewards: np.ndarray
    """Mean rewards, `(M, S, A)`."""
    start: np.ndarray
    average: bool = eqx.field(static=True)

    def __call__(self, snapshot: Any) -> Any:
        return self.of(snapshot.theta.policy)

    def of(self, logits: Any) -> Any:
        """The returns of a table of logits `(S, A)`."""
        each = jax.vmap(policy_return, (None, 0, 0, 0))(
            softmax(logits), self.discounted_transitions, self.rewards, self.start
        )
        return jnp.mean(each) if self.average else each


class _GradientNorm(eqx.Module):
    r"""$|\nabla_\theta J|$ for the return $J$ averaged over the agents."""

    returns: _Returns

    def __call__(self, snapshot: Any) -> Any:
        return jnp.linalg.norm(jax.grad(self.returns.of)(snapshot.theta.policy))


def _critic_gap(snapshot: Any) -> Any:
    r"""$|\omega - \omega^\star_\theta|$: the critic's distance from the root of its mean operator at this policy."""
    policy, critic = snapshot.theta

    def operator(critic):
        each = jax.vmap(lambda agent: agent.mean_operator(ActorCritic(policy, critic)).critic)(snapshot.agents)
        return jnp.mean(each, axis=0)

    # The critic's operator is affine in the critic: one step of Newton's method leads to its root.
    return jnp.linalg.norm(solve(jax.jacfwd(operator)(critic), operator(critic)))


def from_model(model: Model, features: Any = None, *, target: str = "next", sampling: str = "markov") -> Problem:
    r"""Make the problem of actor-critic in the agents' models: a table of logits and a linear critic.

    The same TD error updates both. There is no root. A run can record `returns` (of the policy in each agent's
    environment), `mean_return`, `gradient_norm` (of the average return) and `critic_gap` (the distance of the critic
    from the right critic of the policy), all exact. The parameter is an `ActorCritic`, whose two parts may have
    separate step sizes: `PerBlock((slow, fast), sizes=(S * A, d))`. A3C is

        Delayed(Projected(SynchronisedSA(PerBlock(...)), radius=R, part=(S * A, S * A + d)), max_delay)

    with the difference that the server adds the mean of the replies of a round instead of one reply after the other;
    `Partial(..., UniformSampling(1))` adds one reply at a time.

    **Arguments:**

    - `model`: the agents' decision processes.
    - `features`: features of the states, `(S, d)` or `(M, S, d)`. Default: a table, with a coordinate for each state.
    - `target`: the state whose value enters the TD error. `next` is the environment's next state; with a table as
      critic, the mean direction of the policy is $(1 - \gamma) \nabla J$ once the critic is right. `restart` is the
      state with which the chain continues, possibly after a restart, as printed in the paper; that direction is biased,
      less so the closer $\gamma$ is to 1.
    - `sampling`: `markov` for one long chain with restarts, or `iid` for independent states from its stationary
      distribution at the current parameter.

    Raises `ValueError` if the features do not have full rank, or for `iid` with a discount of 1.

    !!! example
        >>> rng = np.random.default_rng(0)
        >>> model = fedhsa.environments.Model(rng.dirichlet(np.ones(4), size=(4, 2)), rng.random((4, 2)), 0.8)
        >>> problem = from_model(model)
        >>> two_scales = fedhsa.SA(fedhsa.PerBlock((0.1, 0.5), sizes=(8, 4)))
        >>> result = fedhsa.simulate(problem, two_scales, rounds=1000, record=["mean_return"], every=1000)
        >>> bool(result.records["mean_return"][0, -1] > result.records["mean_return"][0, 0])
        True

    !!! cite "Shen, Zhang, Hong, Chen (2023), arXiv:2012.15511, A3C-TD(0), from the text of its ICLR 2021 submission"
    """
    _check.choice("target", target, TARGETS)
    _check.choice("sampling", sampling, SAMPLINGS)
    phi = state_features(model, features)
    P, R, discount, _ = model.continuing()
    if sampling == "iid" and (discount.max(-1) == 1).any():
        raise ValueError(
            "`sampling='iid'` stops episodes with probability 1 - discount, got a discount of 1. Use a smaller one, or "
            "`sampling='markov'`."
        )
    _check_rank(model, phi)
    agents = ActorCriticAgent(Restarts(P, model.start), P, R, phi, discount, model.start, target, sampling)
    zero = ActorCritic(np.zeros((model.num_states, model.num_actions)), np.zeros(phi.shape[-1]))
    return Problem(agents, like=zero, theta_star=None)


def random(
    num_agents: int = 10,
    dim: int | None = None,
    *,
    environment: str = "random",
    target: str = "next",
    sampling: str = "markov",
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
    **options: Any,
) -> Problem:
    r"""Make the problem of actor-critic in the agents' versions of an environment.

    **Arguments:**

    - `dim`: the number of random features of the critic. Default: a table.
    - `environment`: a name from `fedhsa list environments`; further arguments are passed to the environment.
    - `target`, `sampling`: as for `from_model`.

    !!! example
        >>> random(num_agents=2, dim=3, environment="random", num_states=4, num_actions=2).dim
        11
    """
    model = world(environment, num_agents, heterogeneity, key, options)
    features = random_features((model.num_states,), dim, key)
    return from_model(model, features, target=target, sampling=sampling)


def _uniforms(key: Any, dtype: Any) -> tuple[Any, Any]:
    """Two uniform numbers below 1, of 24 bits each."""
    words = (key_bits(key) >> 8).astype(dtype) * 2.0**-24
    return words[0], words[1]


def _check_rank(model: Model, features: np.ndarray) -> None:
    d, seen = features.shape[-1], features[:, model.decision_states].reshape(-1, features.shape[-1])
    rank = np.linalg.matrix_rank(seen)
    if rank < d:
        raise ValueError(
            f"`features` must have full column rank {d} on the states in which agents act, got {rank}. Drop dependent "
            "columns."
        )

"""Policy gradients: agents in heterogeneous environments improve one policy by gradient ascent on their returns."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check, tree
from .._extras import install
from .._random import as_key, host_generator
from .._types import SeedLike
from ..environments import Model, perturbed
from ..environments.gym import GymEpisodes
from ..environments.make import ENVIRONMENTS
from ..environments.parametric import (
    AbstractCategorical,
    AbstractParametricPolicy,
    Categorical,
    DirectTable,
    Gaussian,
    SoftmaxTable,
    mlp,
)
from ..environments.rollouts import AbstractWorld, Episodes, JaxWorld, ModelWorld, play
from ..sources import AbstractControlled, Silent
from ._live import Live
from ._returns import ExactReturns, PlayedReturns, exact_recorders
from ._worlds import random_features, world
from .base import AbstractAgent, AbstractPolicyAgent, FlatAgent, Problem, identity

if TYPE_CHECKING:
    import gymnasium

__all__ = [
    "ExactPolicyAgent",
    "LivePolicyAgent",
    "PolicyGradientAgent",
    "default_policy",
    "from_environment",
    "from_gymnasium",
    "from_model",
    "live_agent",
    "random",
]

ESTIMATORS = ("gpomdp", "reinforce", "exact", "natural")
BASELINES = ("none", "mean", "whiten")


class _FreshEpisodes(AbstractControlled):
    """The source of agents that observe whole episodes: each episode starts afresh, so there is no state."""

    def init(self, key, /):
        return jnp.zeros(())


class ExactPolicyAgent(AbstractAgent):
    r"""An agent with a known model: its operator is the exact gradient of its return, or the natural gradient.

    The natural gradient of a softmax table is $A^\pi(s, a) / (1 - \gamma)$.
    """

    policy: Any
    exact: ExactReturns
    entropy: np.ndarray
    natural: bool = eqx.field(static=True)

    should_be_monotone: ClassVar[bool] = False

    @property
    def judged_by(self):
        return "mean_return"

    def operator(self, theta, o, /):
        return self.mean_operator(theta)

    def mean_operator(self, theta, /):
        if self.natural:
            return self.exact.advantages(self.policy, theta, self.entropy) / (1 - self.exact.discount)
        return jax.grad(lambda theta: self.objective(theta))(theta)

    def objective(self, theta):
        r"""$J_i(\theta)$, whose gradient is the operator."""
        return self.exact.returns(self.policy, theta, self.entropy)

    def project(self, theta, /):
        return self.policy.project(theta)

    def recorders(self):
        return exact_recorders(self.policy, self.exact, self.entropy)


class PolicyGradientAgent(AbstractPolicyAgent):
    r"""An agent that plays episodes and estimates the gradient of its return from them.

    An observation is a batch of episodes of at most $T$ steps, played under the parameter. With the scores
    $\psi_t = \nabla \log \pi_\theta(a_t \mid s_t)$ the operator is the mean over the episodes of

    $$\sum_t \psi_t \sum_{h \ge t} \gamma^h r_h \quad \text{(GPOMDP)}, \qquad
      \sum_t \psi_t \sum_h \gamma^h r_h \quad \text{(REINFORCE)}$$

    minus a baseline.
    """

    policy: Any
    world: AbstractWorld | None
    """None if episodes come from a stream."""
    exact: ExactReturns | None
    """Exact returns, if there is a model."""
    discount: np.ndarray
    entropy: np.ndarray
    number: np.ndarray
    """The index of the agent."""
    horizon: int = eqx.field(static=True)
    batch: int = eqx.field(static=True)
    estimator: str = eqx.field(static=True)
    baseline: str = eqx.field(static=True)
    evaluation_episodes: int = eqx.field(static=True)

    should_be_monotone: ClassVar[bool] = False

    @property
    def judged_by(self):
        return "mean_return"

    def react(self, theta, state, bits, /):
        assert self.world is not None
        key = jax.random.wrap_key_data(bits, impl="threefry2x32")
        return state, play(self.world, self.policy, theta, key, self.batch, self.horizon)

    def operator(self, theta, o, /):
        return self.weighted_operator(theta, o, jnp.ones(self.batch, o.reward.dtype))

    def weighted_operator(self, theta, o, weights, /):
        advantages = jax.lax.stop_gradient(self.advantages(theta, o))

        def score(theta):
            return jnp.mean(weights * jnp.sum(self.log_probs(theta, o) * advantages, axis=1))

        return jax.grad(score)(theta)

    def mean_operator(self, theta, /):
        if self.exact is None or self.baseline == "whiten":  # it divides by a random spread
            return self.source.expect(lambda o: self.operator(theta, o))
        returns = self.exact.returns
        return jax.grad(lambda theta: returns(self.policy, theta, self.entropy, self.horizon))(theta)

    def log_ratio(self, old, new, o, /):
        """The log ratio of each episode, `(batch,)`."""
        return jnp.sum(self.log_probs(old, o) - self.log_probs(new, o), axis=1)

    def fisher_product(self, theta, o, vector, /):
        weights = o.alive / jnp.sum(o.alive)
        along = jax.jvp(lambda theta: self.log_probs(theta, o), (theta,), (vector,))[1]
        return jax.vjp(lambda theta: self.log_probs(theta, o), theta)[1](weights * along)[0]

    def kl(self, old, new, o, /, of=identity):
        apart = jax.vmap(jax.vmap(self.policy.kl, (None, None, 0)), (None, None, 0))(old, new, o.seen)
        return jnp.sum(o.alive * of(apart)) / jnp.sum(o.alive)

    def surrogate(self, theta, old, o, /, of=identity):
        ratio = jnp.exp(self.log_probs(theta, o) - jax.lax.stop_gradient(self.log_probs(old, o)))
        return jnp.sum(of(ratio) * o.alive * jax.lax.stop_gradient(self.advantages(old, o))) / jnp.sum(o.alive)

    def project(self, theta, /):
        return self.policy.project(theta)

    def log_probs(self, theta, o: Episodes):
        r"""$\log \pi_\theta(a_t \mid s_t)$, `(batch, horizon)`; 0 after the end of an episode."""
        each = jax.vmap(jax.vmap(self.policy.log_prob, (None, 0, 0)), (None, 0, 0))(theta, o.seen, o.action)
        return jnp.where(o.alive > 0, each, 0.0)

    def advantages(self, theta, o: Episodes):
        """The weight of each action, `(batch, horizon)`: the return from there on, minus the baseline."""
        discounts = self.discount ** jnp.arange(self.horizon, dtype=o.reward.dtype)
        earned = discounts[None, :] * (o.reward - self.entropy * self.log_probs(theta, o)) * o.alive
        ahead = jnp.cumsum(earned[:, ::-1], axis=1)[:, ::-1]
        if self.estimator == "reinforce":
            ahead = jnp.broadcast_to(ahead[:, :1], ahead.shape)
        if self.baseline == "mean":
            # The mean of the other episodes keeps the estimate unbiased.
            others = (jnp.sum(ahead, axis=0, keepdims=True) - ahead) / (self.batch - 1)
            ahead = ahead - others
        elif self.baseline == "whiten":
            count = jnp.sum(o.alive)
            mean = jnp.sum(ahead * o.alive) / count
            spread = jnp.sqrt(jnp.sum((ahead - mean) ** 2 * o.alive) / count)
            ahead = (ahead - mean) / (spread + 1e-8)
        return ahead * o.alive

    def recorders(self):
        if self.exact is not None:
            return exact_recorders(self.policy, self.exact, self.entropy)
        if self.world is None:
            return {}
        return {"returns": lambda: PlayedReturns(self, False), "mean_return": lambda: PlayedReturns(self, True)}


class LivePolicyAgent(PolicyGradientAgent):
    r"""A `PolicyGradientAgent` with episodes from a stream, played under the parameter at the start of the round.

    Later local steps have other parameters; importance weights $\pi_\theta / \pi_\text{then}$ of each episode correct
    for this, clipped at `max_weight`. They are 1 at the start of the round.
    """

    max_weight: float = eqx.field(static=True, default=2.0)

    def operator(self, theta, o, /):
        weights = jnp.exp(jnp.sum(self.log_probs(theta, o) - o.log_prob * o.alive, axis=1))
        return self.weighted_operator(theta, o, jnp.minimum(weights, self.max_weight))


def live_agent(
    policy: AbstractParametricPolicy,
    *,
    estimator: str = "gpomdp",
    horizon: int = 200,
    batch: int = 8,
    discount: float = 0.99,
    baseline: str = "mean",
    entropy: float = 0.0,
    max_weight: float = 2.0,
) -> FlatAgent:
    """Make one agent that learns a policy from a stream of episodes, like `deploy.GymEpisodes`, on flat vectors.

    **Arguments:**

    - `policy`, `horizon`, `batch`: the same as for the stream.
    - `estimator`, `discount`, `baseline`, `entropy`: as for `from_environment`.
    - `max_weight`: the largest importance weight of an episode.

    Raises `TypeError` if `policy` is not a policy, and `ValueError` if another argument is invalid.

    !!! example
        >>> import equinox as eqx
        >>> from fedhsa.environments import Categorical
        >>> linear = Categorical(eqx.nn.Linear(4, 2, key=jax.random.key(0)))
        >>> agent = live_agent(linear, horizon=100, batch=4)
        >>> fedhsa.tree.size(linear.start)          # the value of `fedhsa deploy --dim`
        10
    """
    _check_policy(policy, AbstractParametricPolicy)
    _check.choice("estimator", estimator, ESTIMATORS[:2])
    _check.number("discount", discount, least=0.0, most=1.0)
    settings = _settings(horizon, batch, estimator, baseline, 1)
    numbers = np.asarray(discount, dtype=np.float64), _entropy(entropy, 1)[0], np.zeros((), int)
    agent = LivePolicyAgent(Silent(), policy, None, None, *numbers, **settings, max_weight=float(max_weight))
    return FlatAgent(Silent(), agent, tree.unravel_like(policy.start))


def from_model(
    model: Model,
    policy: AbstractParametricPolicy | None = None,
    *,
    features: Any = None,
    estimator: str = "gpomdp",
    horizon: int = 100,
    batch: int = 8,
    baseline: str = "none",
    entropy: float = 0.0,
) -> Problem:
    r"""Make the problem of policy gradients in the agents' models: ascent on $J = \frac1M \sum_i J_i(\theta)$.

    There is no root: many parameters give the same policy, and optimal ones may be infinitely far away. Runs record
    `returns` (the expected discounted return of each agent), `mean_return`, `gradient_norm` ($|\nabla J|$) and `gap`
    (the distance of $J$ from its maximum, if the agents differ only in their rewards). All are exact, for episodes
    without a time limit.

    **Arguments:**

    - `model`: the agents' decision processes.
    - `policy`: a policy from `fedhsa.environments`. Default: `SoftmaxTable`.
    - `features`: the policy's inputs for the states, `(S, k)`. Default: their indices.
    - `estimator`: `"gpomdp"` or `"reinforce"`, from episodes; `"exact"`, the gradient itself; `"natural"`, the exact
      natural gradient of a softmax table, $A^\pi / (1 - \gamma)$.
    - `horizon`: the largest number of steps of an episode; the estimate omits later rewards.
    - `batch`: the number of episodes in one observation.
    - `baseline`: `"none"`; `"mean"`, the mean of the other episodes of the batch, which keeps the estimate unbiased; or
      `"whiten"`, which also divides by the spread.
    - `entropy`: $\tau$, the weight of the policy's entropy in the objective.

    Raises `TypeError` if `policy` is not a policy, and `ValueError` if another argument is invalid.

    !!! example
        >>> rng = np.random.default_rng(0)
        >>> P, R = rng.dirichlet(np.ones(4), size=(1, 4, 2)), rng.random((3, 4, 2))
        >>> model = fedhsa.environments.Model(np.repeat(P, 3, axis=0), R, 0.8)     # one kernel, three rewards
        >>> problem = from_model(model, estimator="exact")
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.5, local_steps=5), rounds=200, record=["gap"])
        >>> bool(result.records["gap"][0, -1] < 0.05 * result.records["gap"][0, 0])
        True

    !!! cite "Williams (1992); Baxter and Bartlett (2001) for GPOMDP; Agarwal et al. (2021) for exact gradients"
    """
    policy = SoftmaxTable(model.num_states, model.num_actions) if policy is None else policy
    _check_policy(policy, AbstractCategorical)
    _check.choice("estimator", estimator, ESTIMATORS)
    if estimator == "natural" and not isinstance(policy, SoftmaxTable):
        raise ValueError(f"`estimator='natural'` requires a `SoftmaxTable`, got {type(policy).__name__}.")
    if estimator == "natural" and (model.discount >= 1).any():
        raise ValueError("`estimator='natural'` divides by 1 - discount: use a discount below 1.")
    M, S = model.num_agents, model.num_states
    if features is not None:
        features = np.broadcast_to(_check.array("features", features, (S, "k")), (M, S, np.shape(features)[1]))
    policies, strength = tree.stack([policy] * M), _entropy(entropy, M)
    seen = np.broadcast_to(np.arange(S), (M, S)) if features is None else features
    rewards = np.where(model.ends[..., None], 0.0, model.action_rewards())
    exact = ExactReturns(model.going_on(), rewards, model.start, seen, ~model.ends, model.discount)
    if estimator in ("exact", "natural"):
        agents = ExactPolicyAgent(Silent(), policies, exact, strength, estimator == "natural")
        return Problem(agents, like=policy.start, theta_star=None, start=policy.start)
    settings = _settings(horizon, batch, estimator, baseline, 1)
    played = ModelWorld(model, features)
    agents = PolicyGradientAgent(
        _FreshEpisodes(), policies, played, exact, model.discount, strength, np.arange(M), **settings
    )
    return Problem(agents, like=policy.start, theta_star=None, start=policy.start)


def from_environment(
    environment: Any,
    params: Sequence[Any],
    policy: AbstractParametricPolicy,
    *,
    estimator: str = "gpomdp",
    horizon: int = 200,
    batch: int = 8,
    discount: float = 0.99,
    baseline: str = "mean",
    entropy: float = 0.0,
    shifts: Any = None,
    evaluation_episodes: int = 16,
) -> Problem:
    r"""Make the problem of policy gradients in JAX environments (gymnax) whose physical constants differ.

    Gradients are estimated from episodes. Runs can record the undiscounted `returns` of each agent and `mean_return`,
    which are estimated from separate episodes.

    **Arguments:**

    - `environment`: an environment with gymnax's interface, as for `JaxEnvironment`.
    - `params`: the constants of each agent's environment, in a list; see `perturbed`.
    - `policy`: `Categorical` or `Gaussian`, from `fedhsa.environments`.
    - `estimator`: `"gpomdp"` or `"reinforce"`.
    - `horizon`, `batch`, `baseline`, `entropy`: as for `from_model`.
    - `discount`: $\gamma$.
    - `shifts`: vectors that are added to the actions of each agent, `(M, size)`. Default: none.
    - `evaluation_episodes`: the number of episodes of each agent for a record of `returns`.

    Raises `TypeError` if `policy` is not a policy, and `ValueError` if another argument is invalid.

    !!! example
        >>> import gymnax
        >>> from fedhsa.environments import Categorical, mlp
        >>> cart_pole, constants = gymnax.make("CartPole-v1")
        >>> problem = from_environment(cart_pole, [constants], Categorical(mlp(4, 2, width=8)), horizon=50)
        >>> problem.dim
        130
    """
    _check_policy(policy, AbstractParametricPolicy)
    _check.choice("estimator", estimator, ESTIMATORS[:2])
    _check.number("discount", discount, least=0.0, most=1.0)
    if not len(params):
        raise ValueError("`params` must list the constants of at least one agent's environment.")
    M = len(params)
    if shifts is not None:
        shifts = _check.array("shifts", shifts, ("M", "size"), {"M": M})
    rows = [JaxWorld(environment, p, None if shifts is None else shifts[i]) for i, p in enumerate(params)]
    settings = _settings(horizon, batch, estimator, baseline, evaluation_episodes)
    policies, strength = tree.stack([policy] * M), _entropy(entropy, M)
    discounts = np.full(M, float(discount))
    agents = PolicyGradientAgent(
        _FreshEpisodes(), policies, tree.stack(rows), None, discounts, strength, np.arange(M), **settings
    )
    return Problem(agents, like=policy.start, theta_star=None, start=policy.start)


def from_gymnasium(
    environments: "Sequence[str | Callable[[], gymnasium.Env]]",
    policy: AbstractParametricPolicy | None = None,
    *,
    physics: Sequence[Mapping[str, float]] | None = None,
    estimator: str = "gpomdp",
    horizon: int = 200,
    batch: int = 8,
    discount: float = 0.99,
    baseline: str = "mean",
    entropy: float = 0.0,
    max_weight: float = 2.0,
    evaluation_episodes: int = 16,
    width: int = 16,
    key: SeedLike = 0,
) -> Problem:
    r"""Make the problem of policy gradients in Gymnasium environments, registered or your own, stepped during the run.

    Every seed of a run has separate copies of each agent's environment. All episodes of a round are played under the
    parameter at its start; importance weights correct for the parameters of later local steps. Runs record
    `mean_return` and, on request, the `returns` of each agent: undiscounted, from separate episodes.

    **Arguments:**

    - `environments`: for each agent, the name of a registered environment or a function that makes one. Actions are
      numbers or vectors.
    - `policy`: `Categorical`, `Gaussian`, or a table if observations are numbers. Default: a softmax table if
      observations are numbers, otherwise a network with two hidden layers of `width` units, drawn with `key`.
    - `physics`: for each agent, constants of its environment by name, as for `GymStream`. Default: unchanged.
    - `estimator`, `horizon`, `batch`, `discount`, `baseline`, `entropy`: as for `from_environment`.
    - `max_weight`: the largest importance weight of an episode.
    - `evaluation_episodes`: the number of episodes of each agent for a record of returns.

    Raises `ValueError` if `environments` is empty or `physics` has another length.

    !!! example
        >>> planets = [{"gravity": 5.0}, {"gravity": 15.0}]
        >>> problem = from_gymnasium(["CartPole-v1"] * 2, physics=planets, horizon=20, batch=2, width=4)
        >>> result = fedhsa.simulate(problem, fedhsa.FedHSA(0.01, local_steps=2), rounds=2, seeds=2)
        >>> result.quantity, result.records["mean_return"].shape
        ('mean_return', (2, 3))
    """
    if isinstance(environments, str) or not isinstance(environments, Sequence) or not environments:
        raise ValueError(
            f"`environments` must be a list with a name or a function for each agent, got {environments!r}."
        )
    own = [{}] * len(environments) if physics is None else list(physics)
    if len(own) != len(environments):
        raise ValueError(f"`physics` must have an entry for each of {len(environments)} environments, got {len(own)}.")
    if policy is None:
        spaces = GymEpisodes(environments[0], SoftmaxTable(1, 1), horizon=1, batch=1).copies.envs
        policy = _fitting_policy(spaces.single_observation_space, spaces.single_action_space, width, key)
    _check_policy(policy, AbstractParametricPolicy)
    shared: dict[str, Any] = {"horizon": horizon, "batch": batch, "evaluation_episodes": evaluation_episodes}
    streams = [GymEpisodes(made, policy, physics=p, **shared) for made, p in zip(environments, own, strict=True)]
    how: dict[str, Any] = {"estimator": estimator, "discount": discount, "baseline": baseline, "entropy": entropy}
    agent = live_agent(policy, horizon=horizon, batch=batch, max_weight=max_weight, **how).agent
    return Problem([Live(agent, stream) for stream in streams], like=policy.start, start=policy.start)


def _fitting_policy(seen: Any, actions: Any, width: int, key: SeedLike) -> AbstractParametricPolicy:
    """A policy for the observations and actions of an environment."""
    if hasattr(seen, "n"):
        if not hasattr(actions, "n"):
            raise ValueError(
                f"`policy` is required if observations are numbers and actions are not, got the actions {actions}."
            )
        return SoftmaxTable(int(seen.n), int(actions.n))
    if len(seen.shape or ()) != 1:
        raise ValueError(f"`policy` is required if observations are not vectors, got {seen}.")
    return _network_policy(seen.shape[0], actions, width, key)


def _network_policy(inputs: int, actions: Any, width: int, key: SeedLike) -> AbstractParametricPolicy:
    if hasattr(actions, "n"):
        return Categorical(mlp(inputs, int(actions.n), width=width, key=key))
    size = int(np.prod(actions.shape))
    return Gaussian(mlp(inputs, size, width=width, key=key), size)


PHYSICS: dict[str, tuple[str, Mapping[str, float]]] = {
    "cart-pole": ("CartPole-v1", {"gravity": 0.3, "length": 0.5, "masspole": 0.5}),
    "acrobot": ("Acrobot-v1", {"link_length_1": 0.3, "link_mass_1": 0.3}),
    "pendulum": ("Pendulum-v1", {"g": 0.3, "l": 0.3}),
    "mountain-car": ("MountainCarContinuous-v0", {"gravity": 0.2, "power": 0.2}),
}
"""Environments of gymnax by name, and the largest relative difference of each constant between agents."""

TABLES = {"softmax": SoftmaxTable, "direct": DirectTable}
"""The policies of finite environments, by name."""


def random(
    num_agents: int = 10,
    dim: int | None = None,
    *,
    environment: str = "random",
    table: str = "softmax",
    estimator: str = "gpomdp",
    horizon: int | None = None,
    batch: int = 8,
    baseline: str = "mean",
    entropy: float = 0.0,
    heterogeneity: float = 1.0,
    key: SeedLike = 0,
    **options: Any,
) -> Problem:
    r"""Make the problem of policy gradients in the agents' versions of an environment.

    **Arguments:**

    - `dim`: in a finite environment, the number of random features of the states, in which the logits are linear;
      default: a table. Otherwise the width of the network's two hidden layers; default: 16.
    - `environment`: a finite environment from `fedhsa list environments`, with a table as policy; or "cart-pole",
      "acrobot", "pendulum" or "mountain-car" in JAX, with a network as policy. Further arguments are passed to the
      environment.
    - `table`: the entries of a table: `"softmax"` for logits, or `"direct"` for the probabilities themselves, to which
      agents are projected after each local step.
    - `estimator`, `batch`, `baseline`, `entropy`: as for `from_model`.
    - `horizon`: the largest number of steps of an episode. Default: 100 in finite environments, otherwise 200.
    - `heterogeneity`: 0 for equal agents; 1 for physical constants that differ by up to a half.

    !!! example
        >>> random(num_agents=2, environment="random", num_states=4, num_actions=2).dim
        8
    """
    settings: dict[str, Any] = {"estimator": estimator, "batch": batch, "baseline": baseline, "entropy": entropy}
    if environment in ENVIRONMENTS:
        model = world(environment, num_agents, heterogeneity, key, options)
        settings["horizon"] = 100 if horizon is None else horizon
        _check.choice("table", table, tuple(TABLES))
        if dim is None:
            return from_model(model, TABLES[table](model.num_states, model.num_actions), **settings)
        _check.count("dim", dim)
        linear = eqx.nn.Linear(dim, model.num_actions, use_bias=False, key=as_key(key))
        linear = eqx.tree_at(lambda part: part.weight, linear, np.zeros((model.num_actions, dim)))  # the uniform policy
        return from_model(
            model, Categorical(linear), features=random_features((model.num_states,), dim, key), **settings
        )
    _check.choice("environment", environment, (*ENVIRONMENTS, *PHYSICS))
    try:
        import gymnax  # here, since it is optional
    except ImportError as error:
        raise ImportError(f"`environment={environment!r}` needs gymnax: {install('gymnax')}.") from error
    name, spreads = PHYSICS[environment]
    made, constants = gymnax.make(name)
    params = []
    for agent in range(_check.count("num_agents", num_agents)):
        draws = host_generator(key, "physics", agent).uniform(-1, 1, size=len(spreads))
        own = {
            constant: getattr(constants, constant) * (1 + heterogeneity * spread * draw)
            for (constant, spread), draw in zip(spreads.items(), draws, strict=True)
        }
        params.append(perturbed(constants, **(own | options)))
    policy = default_policy(made, constants, 16 if dim is None else dim, key)
    return from_environment(made, params, policy, horizon=200 if horizon is None else horizon, **settings)


def default_policy(environment: Any, constants: Any, width: int = 16, key: SeedLike = 0) -> AbstractParametricPolicy:
    """Make a network with two hidden layers as the policy for an environment with gymnax's interface.

    !!! example
        >>> import gymnax
        >>> type(default_policy(*gymnax.make("Pendulum-v1"))).__name__
        'Gaussian'
    """
    inputs = int(np.prod(environment.observation_space(constants).shape))
    return _network_policy(inputs, environment.action_space(constants), width, key)


def _settings(horizon: int, batch: int, estimator: str, baseline: str, episodes: int) -> dict[str, Any]:
    _check.choice("baseline", baseline, BASELINES)
    sizes = {"horizon": horizon, "batch": batch, "evaluation_episodes": episodes}
    for name, size in sizes.items():
        _check.count(name, size)
    if baseline == "mean" and batch == 1:
        raise ValueError("`baseline='mean'` averages over the other episodes: `batch` must be at least 2, got 1.")
    return {**sizes, "estimator": estimator, "baseline": baseline}


def _entropy(entropy: float, num_agents: int) -> np.ndarray:
    _check.number("entropy", entropy, least=0.0)
    return np.full(num_agents, float(entropy))


def _check_policy(policy: Any, kind: type) -> None:
    if not isinstance(policy, kind):
        raise TypeError(f"`policy` must be an `{kind.__name__}` from `fedhsa.environments`, got {policy!r}.")

"""FedPG-BR: a robust average of large batches, which corrects the small batches of one agent's steps."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import _check, tree
from .._random import Stream, fold_in
from .._types import Theta
from .base import Exchange, Round
from .demands import Demand
from .fed_hsa import Server, average_operator, send_operator
from .local import AbstractMethod, check_max_weight, mean_operator, operator_elsewhere, operators
from .robust import replace_mean
from .rules import AbstractRule
from .schedules import step_at


class Memory(NamedTuple):
    """An agent's memory: the parameter at the start of the round."""

    theta: Theta


class FedPGBR(AbstractMethod):
    r"""Variance-reduced steps of one agent around a robust average of all agents.

    From $\theta_0$ every agent sends the mean of its operators over $m$ observations, and the server aggregates them to
    $\mu$ by a robust rule. Then agent 0, which acts as the server, takes $N$ steps,

    $$\theta_{n+1} = \theta_n + \eta\,\bigl(G_0(\theta_n, o) - w\, G_0(\theta_0, o) + \mu\bigr), \qquad
      w = \frac{p(o \mid \theta_0)}{p(o \mid \theta_n)},$$

    with a new observation $o$ for each step and geometric $N$, $P(N > n) = (m / (m + 1))^n$. The next round begins
    where these steps end. If $\mu$ is zero, as it is when a filter accepts no reply, steps follow $G_0(\theta_n, o)$
    alone. FedPG-BR uses the rule `ConcentrationFilter`; without a rule the method is federated SVRPG with random $N$.

    An observation of a policy is a batch of $b$ episodes, so $B = m b$ in the paper's notation. In the paper $B$ varies
    from round to round, and the authors' code uses Adam, weights single actions instead of episodes, and ends a round
    early when the mean of these weights leaves $1 \pm 0.005$. Here $B$ is fixed, steps are plain, and episodes are
    weighted, with two optional bounds on the weights.

    All agents make as many observations as agent 0, although only agent 0 takes steps. Agent 0 must be honest and is
    required in every round. The cost is that of agent 0.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `batches`: $m$, the number of observations in an agent's reply.
    - `max_inner`: the largest $N$.
    - `rule`: one of `fedhsa.rules`. Default: the mean.
    - `max_weight`: the bound on $w$. Default: none.
    - `max_log_weight`: a round's steps end when the mean of $|\log w|$ over an observation exceeds it. Default: none.

    Raises `ValueError` if an argument is out of range or `rule` is not a rule.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3, heterogeneity=0.0)
        >>> method = FedPGBR(0.05, batches=4, rule=fedhsa.rules.ConcentrationFilter(sigma=0.5, batch=4))
        >>> attacked = fedhsa.Byzantine(method, 0.25, fedhsa.attacks.SignFlip(2.5))
        >>> bool(fedhsa.simulate(problem, attacked, rounds=100).error[0, -1] < 0.01)
        True

    !!! cite "Fan, Ma, Dai, Jing, Tan, Low (2021), arXiv:2110.14074; checked against the authors' public code"
    """

    batches: int = eqx.field(static=True, default=4)
    max_inner: int = eqx.field(static=True, default=10)
    rule: AbstractRule | None = None
    max_weight: float | None = None
    max_log_weight: float | None = None

    demands = Demand.ONE_AGENT_LEADS

    def __check_init__(self):
        _check.count("batches", self.batches)
        _check.count("max_inner", self.max_inner)
        check_max_weight(self.max_weight)
        if self.max_log_weight is not None:
            _check.scalar("max_log_weight", self.max_log_weight, above=0.0)
        if self.rule is not None and not isinstance(self.rule, AbstractRule):
            raise ValueError(
                f"`rule` must be one of `fedhsa.rules`, like `ConcentrationFilter(0.1)`, got {self.rule!r}."
            )

    @property
    def block_length(self):
        return self.batches + self.max_inner

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), Memory(theta)

    @property
    def exchanges(self):
        first = operators(self._mean_operator, average_operator)
        return (
            first if self.rule is None else replace_mean(first, self.rule),
            Exchange("delta", send_operator, self._inner_steps, self._follow),
        )

    def steps(self, round: Round) -> Any:
        """The number of steps $N$, which all agents and the server derive from the round's key."""
        uniform = jax.random.uniform(fold_in(round.key, Stream.INNER), dtype=jnp.result_type(float))
        drawn = 1 + jnp.floor(jnp.log1p(-uniform) / jnp.log(self.batches / (self.batches + 1)))
        return jnp.minimum(drawn, self.max_inner)

    def _mean_operator(self, theta, memory, agent, block, round):
        return mean_operator(agent, theta, block, self.batches), Memory(theta)

    def _inner_steps(self, mu, memory, agent, block, round):
        theta_0, eta, N = memory.theta, step_at(self.step_size, round.index), self.steps(round)
        trusted = jnp.any(mu != 0).astype(mu.dtype)

        def step(state, at):
            (theta, going), (n, o) = state, at
            o = agent.observe(theta, o)
            going &= (n < N) & self._near(agent.log_ratio(theta_0, theta, o))
            before = operator_elsewhere(agent, theta_0, o, theta, self.max_weight)
            v = agent.operator(theta, o) - trusted * (before - mu)
            return (jnp.where(going, agent.project(theta + eta * v), theta), going), None

        rest = tree.take(block, slice(self.batches, None))
        numbered = jnp.arange(self.max_inner, dtype=mu.dtype), rest
        (theta, _), _ = jax.lax.scan(step, (theta_0, jnp.array(True)), numbered, length=self.max_inner)
        return jnp.where(round.agent == 0, theta - theta_0, jnp.zeros_like(theta)), memory

    def _near(self, log_weights: Any) -> Any:
        return True if self.max_log_weight is None else jnp.mean(jnp.abs(log_weights)) <= self.max_log_weight

    def _follow(self, server, replies, round):
        return server._replace(theta=server.theta + replies.values[0])

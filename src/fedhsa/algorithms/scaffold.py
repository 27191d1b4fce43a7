"""SCAFFOLD with both of its control variates, and FedHSA with the anchor of the round before."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from .._types import Block, Theta
from ..problems import AbstractAgent
from .base import Exchange
from .demands import Demand
from .fed_hsa import Server as AnchorServer
from .local import AbstractServerStep, first_operator, local_steps
from .schedules import step_at


class Server(NamedTuple):
    """The parameter, and the average of all agents' control variates."""

    theta: Theta
    variate: Theta


class SCAFFOLD(AbstractServerStep):
    r"""Local steps corrected by control variates $c_i$ of the agents and $c = \frac1M \sum_i c_i$ of the server.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + c - c_i\bigr), \quad \ell = 0, \dots, H-1$$

    after which $c_i$ becomes (option 1) the operator at the round's start, $G_i(\bar\theta, o_{i,0})$, or (option 2)
    the round's mean operator, $(\theta_{i,H} - \bar\theta) / (\eta H) - (c - c_i)$. The server adds $\alpha_g$ times
    the mean displacement, and $\frac1M$ times the sum of the changes of $c_i$ that arrived to $c$. One exchange,
    $2 d$ numbers each way. Without noise the limit is $\theta^\star$, where it is stable.

    Option 2 with everyone taking part and $\alpha_g = 1$ is SCAFFLSA. Option 1 is FedHSA one round late, and diverges
    like it where $\eta H$ is large and the agents differ much. The signs are those of operators: the paper's
    gradients, and with them its control variates, have the opposite sign.

    An agent that is absent keeps its $c_i$, and $c$ stays the average. A reply that is lost after the agent has
    changed $c_i$ breaks this for good, and the limit is then another point.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the observations each agent uses per round.
    - `server_step`: $\alpha_g$.
    - `option`: 1 or 2, which control variate.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), SCAFFOLD(0.02, local_steps=5), rounds=500)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "Karimireddy et al. (2020), arXiv:1910.06378, Algorithm 1"
    """

    option: int = eqx.field(static=True, default=2)

    demands = Demand.REPLIES_ACCUMULATE | Demand.SERVER_LEARNS_FROM_THE_AVERAGE

    def __check_init__(self):
        if self.option not in (1, 2):
            raise ValueError(f"`option` must be 1 (operator at the start) or 2 (mean operator), got {self.option!r}.")

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), jnp.zeros_like(theta)

    @property
    def exchanges(self):
        return (Exchange("delta", self._send, self._local_steps, self._move, mean_suffices=True),)

    def _send(self, server, round):
        return server

    def _local_steps(self, message, variate, agent, block, round):
        theta_bar, c = message
        eta, correction = step_at(self.step_size, round.index), c - variate
        if self.option == 1:
            theta, renewed = steps_from_anchor(agent, theta_bar, block, eta, self.local_steps, correction)
            delta = theta - theta_bar
        else:
            delta = local_steps(agent, theta_bar, block, eta, self.local_steps, correction) - theta_bar
            renewed = delta / (eta * self.local_steps) - correction
        return (delta, renewed - variate), renewed

    def _move(self, server, replies, round):
        delta, change = replies.mean()
        return Server(server.theta + self.server_step * delta, server.variate + replies.share * change)


class OneExchangeFedHSA(AbstractServerStep):
    r"""FedHSA whose correction is that of the round before, which saves the exchange of operators.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + \bar g^- - g_i^-\bigr), \qquad
      g_i = G_i(\bar\theta, o_{i,0}), \quad \bar g = \tfrac1M \sum_i g_i$$

    for $\ell = 0, \dots, H-1$, where the minus marks the values of the round before; the first round has no
    correction. The agents reply with displacement and $g_i$, which is the operator of step 0 and costs no evaluation.
    One exchange, $2 d$ numbers each way. With everyone taking part it is SCAFFOLD's option 1.

    Without noise the limit is $\theta^\star$, and the price of the late correction is stability: the error follows
    $e_{t+1} = F e_t + B e_{t-1}$ (for $\alpha_g = 1$), with $F = \frac1M \sum_i F_i^H$ and
    $B = \frac{\eta}{M} \sum_i S_i (\bar A - A_i)$ in the notation of `theory.exact.round_map`, where FedHSA has
    $e_{t+1} = (F + B) e_t$. For one parameter with $F > 0$, FedHSA is stable while $F + B > -1$, this only while
    $B > -1$.

    If not all agents answer, $\bar g$ is the average of those that did, and the corrections of others do not add
    to zero with it: use SCAFFOLD there.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the observations each agent uses per round.
    - `server_step`: $\alpha_g$.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), OneExchangeFedHSA(0.02, local_steps=5), rounds=500)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "This package's variant of Zhu, Heath, Mitra (2025), arXiv:2504.11645, Algorithm 1"
    """

    demands = Demand.SERVER_LEARNS_FROM_THE_AVERAGE

    def init(self, theta):
        return AnchorServer(theta, jnp.zeros_like(theta)), jnp.zeros_like(theta)

    @property
    def exchanges(self):
        return (Exchange("delta", self._send, self._local_steps, self._move, mean_suffices=True),)

    def _send(self, server, round):
        return server

    def _local_steps(self, message, g_before, agent, block, round):
        theta_bar, g_bar_before = message
        eta, correction = step_at(self.step_size, round.index), g_bar_before - g_before
        theta, g = steps_from_anchor(agent, theta_bar, block, eta, self.local_steps, correction)
        return (theta - theta_bar, g), g

    def _move(self, server, replies, round):
        delta, g_bar = replies.mean_or((jnp.zeros_like(server.theta), server.g_bar))
        return AnchorServer(server.theta + self.server_step * delta, g_bar)


def steps_from_anchor(
    agent: AbstractAgent, theta_bar: Theta, block: Block, eta: Any, length: int, shift: Theta
) -> tuple[Theta, Theta]:
    """`local_steps`, and the operator of the first of them."""
    g = first_operator(agent, theta_bar, block)
    theta = agent.project(theta_bar + eta * (g + shift))
    return local_steps(agent, theta, block, eta, length - 1, shift, start=1), g

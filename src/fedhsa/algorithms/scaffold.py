"""SCAFFOLD with both of its control variates, and FedHSA with the anchor of the previous round."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from .._types import Block, Theta
from ..problems import AbstractAgent
from .demands import Demand
from .fed_hsa import Server as AnchorServer
from .local import AbstractServerStep, first_operator, local_steps
from .schedules import step_at


class Server(NamedTuple):
    """The server's state: the parameter, and the average of all agents' control variates."""

    theta: Theta
    variate: Theta


class SCAFFOLD(AbstractServerStep):
    r"""Local steps corrected by control variates $c_i$ of the agents and $c = \frac1M \sum_i c_i$ of the server.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + c - c_i\bigr), \quad \ell = 0, \dots, H-1$$

    Afterwards $c_i$ becomes (option 1) the operator at the start of the round, $G_i(\bar\theta, o_{i,0})$, or (option
    2) the round's mean operator, $(\theta_{i,H} - \bar\theta) / (\eta H) - (c - c_i)$. The server adds $\alpha_g$ times
    the mean displacement to the parameter, and $\frac1M$ times the sum of the received changes of $c_i$ to $c$. A round
    has one exchange with $2 d$ numbers each way. Without noise the method converges to $\theta^\star$ where it is
    stable.

    Option 2 with full participation and $\alpha_g = 1$ is SCAFFLSA. Option 1 is FedHSA with a delay of one round, and
    like FedHSA it diverges where $\eta H$ is large and the agents are very heterogeneous. The signs are those of
    operators: the paper's gradients, and with them its control variates, have the opposite sign.

    An absent agent keeps its $c_i$, and $c$ remains the average. A reply that is lost after the agent has changed $c_i$
    breaks this permanently, and the limit is then a different point.

    **Arguments:**

    - `step_size`, `local_steps`, `server_step`: as for `FedHSA`.
    - `option`: 1 or 2, the choice of the control variate.

    Raises `ValueError` if a step size is not positive, `local_steps` is less than 1, or `option` is neither 1 nor 2.

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
    r"""FedHSA with the correction of the previous round, which saves the exchange of operators.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + \bar g^- - g_i^-\bigr), \qquad
      g_i = G_i(\bar\theta, o_{i,0}), \quad \bar g = \tfrac1M \sum_i g_i$$

    for $\ell = 0, \dots, H-1$, where the minus marks the values of the previous round; the first round has no
    correction. The agents reply with the displacement and $g_i$, which is the operator of step 0 and costs no extra
    evaluation. A round has one exchange with $2 d$ numbers each way. With full participation the method is SCAFFOLD's
    option 1.

    Without noise it converges to $\theta^\star$, but the late correction reduces stability: the error follows
    $e_{t+1} = F e_t + B e_{t-1}$ (for $\alpha_g = 1$), with $F = \frac1M \sum_i F_i^H$ and
    $B = \frac{\eta}{M} \sum_i S_i (\bar A - A_i)$ in the notation of `theory.exact.round_map`, whereas FedHSA has
    $e_{t+1} = (F + B) e_t$. For one parameter with $F > 0$, FedHSA is stable while $F + B > -1$, and this method only
    while $B > -1$.

    If some agents are absent, $\bar g$ is the average over the participating agents, and the corrections of the others
    do not add to zero with it: use SCAFFOLD then.

    **Arguments:**

    - `step_size`, `local_steps`, `server_step`: as for `FedHSA`.

    Raises `ValueError` if a step size is not positive or `local_steps` is less than 1.

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
    """Returns the result of `local_steps`, and the operator of the first step."""
    g = first_operator(agent, theta_bar, block)
    theta = agent.project(theta_bar + eta * (g + shift))
    return local_steps(agent, theta, block, eta, length - 1, shift, start=1), g

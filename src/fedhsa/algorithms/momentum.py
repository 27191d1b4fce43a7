"""Local SA with variance-reducing momentum."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .. import _check
from .._types import Theta
from .base import Exchange, check_probability
from .demands import Demand
from .local import AbstractLocalSteps
from .schedules import step_at


class Server(NamedTuple):
    """The parameter, and the mean direction of the last round."""

    theta: Theta
    u: Theta


class MomentumSA(AbstractLocalSteps):
    r"""Local steps along the last round's mean direction, corrected by what the same observation says now and then.

    $$\theta \leftarrow \theta + \eta\,\bigl(\beta\, G_i(\theta, o_{i,\ell})
      + (1-\beta)\,[u_t + G_i(\theta, o_{i,\ell}) - G_i(\bar\theta_{t-1}, o_{i,\ell})]\bigr), \qquad
      u_{t+1} = \frac{1}{M \eta H} \sum_i \Delta_i$$

    with $\Delta_i$ the displacements; the server adds $\alpha_g$ times their mean, which is $\lambda u_{t+1}$ with the
    step $\lambda = \alpha_g \eta H$. The first round, which has no past, is one of Local SA. It reduces variance but
    not drift: at a constant step $u = 0$ in the limit, which without noise leaves Local SA's biased point for every
    $\beta$. The exact convergence claimed for the original must come from steps tied to the horizon.

    The rule is FedSVRPG-M, a policy gradient method, for chains that do not depend on the parameter, where importance
    weights are 1.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the observations each agent uses per round.
    - `beta`: $\beta$ in (0, 1]; 1 is Local SA.
    - `server_step`: $\alpha_g$; the paper's $\lambda$ divided by $\eta H$.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> cost = fedhsa.cost(problem, MomentumSA(0.02, local_steps=5, beta=0.2))
        >>> cost.floats_down, cost.floats_up, cost.evaluations
        (6, 3, 10)

    !!! cite "After Wang, He, Zhang, Miao, Anderson (2024), arXiv:2405.19499, FedSVRPG-M"
    """

    beta: float
    server_step: float = 1.0

    demands = Demand.SERVER_LEARNS_FROM_THE_AVERAGE

    def __check_init__(self):
        check_probability("beta", self.beta)
        _check.scalar("server_step", self.server_step, above=0.0)

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), theta

    @property
    def exchanges(self):
        return (Exchange("delta", self._send_both, self._local_steps, self._move),)

    def _send_both(self, server, round):
        return server.theta, server.u

    def _local_steps(self, message, theta_before, agent, block, round):
        theta_bar, u = message
        eta = step_at(self.step_size, round.index)
        past = jnp.where(round.index == 0, 0.0, 1 - self.beta)

        def step(theta, o):
            direction = agent.operator(theta, o) + past * (u - agent.operator(theta_before, o))
            return theta + eta * direction, None

        theta, _ = jax.lax.scan(step, theta_bar, block, length=self.local_steps)
        return theta - theta_bar, theta_bar

    def _move(self, server, replies, round):
        delta = replies.mean()
        u = delta / (step_at(self.step_size, round.index) * self.local_steps)
        return Server(server.theta + self.server_step * delta, jnp.where(replies.share > 0, u, server.u))

"""Local SA with variance-reducing momentum."""

from typing import NamedTuple

import jax.numpy as jnp

from .. import _check
from .._types import Theta
from .base import check_probability
from .demands import Demand
from .local import AbstractLocalSteps, check_max_weight, operator_elsewhere, steps_along
from .schedules import step_at


class Server(NamedTuple):
    """The server's state: the parameter, and the mean direction of the last round."""

    theta: Theta
    u: Theta


class MomentumSA(AbstractLocalSteps):
    r"""Local steps along the last round's mean direction plus the change of the operator on each observation.

    $$\theta \leftarrow \theta + \eta\,\bigl(\beta\, G_i(\theta, o_{i,\ell})
      + (1-\beta)\,[u_t + G_i(\theta, o_{i,\ell}) - w\, G_i(\bar\theta_{t-1}, o_{i,\ell})]\bigr), \qquad
      u_{t+1} = \frac{1}{M \eta H} \sum_i \Delta_i$$

    where $\Delta_i$ are the displacements. The server adds $\alpha_g$ times their mean, which is $\lambda u_{t+1}$ with
    the step size $\lambda = \alpha_g \eta H$. The first round, which has no past, is a round of Local SA. The method
    reduces variance but not drift: at a constant step size $u = 0$ in the limit, which without noise leaves Local SA's
    biased point for every $\beta$, to first order in $\eta$. The exact convergence claimed for the original must come
    from step sizes tied to the horizon: a small $\eta$ with a large $\alpha_g$ has little drift, with or without
    momentum.

    The observation was made under $\theta$, and $w = p(o \mid \bar\theta_{t-1}) / p(o \mid \theta)$ corrects for it;
    $w = 1$ if observations do not depend on the parameter. On `problems.policy_gradient` this is FedSVRPG-M, with a
    weight for each episode. These weights are unbiased but can be huge; `max_weight` bounds them, which causes a bias.

    **Arguments:**

    - `step_size`, `local_steps`: as for `LocalSA`.
    - `beta`: $\beta$ in (0, 1]; 1 is Local SA.
    - `server_step`: $\alpha_g$, the paper's $\lambda$ divided by $\eta H$.
    - `max_weight`: the bound on importance weights, at least 1. Default: none.

    Raises `ValueError` if an argument is out of range.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> cost = fedhsa.cost(problem, MomentumSA(0.02, local_steps=5, beta=0.2))
        >>> cost.floats_down, cost.floats_up, cost.evaluations
        (6, 3, 10)

    !!! cite "After Wang, He, Zhang, Miao, Anderson (2024), arXiv:2405.19499, FedSVRPG-M"
    """

    beta: float
    server_step: float = 1.0
    max_weight: float | None = None

    demands = Demand.SERVER_LEARNS_FROM_THE_AVERAGE

    def __check_init__(self):
        check_probability("beta", self.beta)
        _check.scalar("server_step", self.server_step, above=0.0)
        check_max_weight(self.max_weight)

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), theta

    def _send(self, server, round):
        return server.theta, server.u

    def _local_steps(self, message, theta_before, agent, block, round):
        theta_bar, u = message
        eta = step_at(self.step_size, round.index)
        past = jnp.where(round.index == 0, 0.0, 1 - self.beta)

        def direction(theta, o):
            before = operator_elsewhere(agent, theta_before, o, theta, self.max_weight)
            return agent.operator(theta, o) + past * (u - before)

        theta = steps_along(direction, agent, theta_bar, block, eta, self.local_steps)
        return theta - theta_bar, theta_bar

    def _move(self, server, replies, round):
        delta = replies.mean()
        u = delta / (step_at(self.step_size, round.index) * self.local_steps)
        return Server(server.theta + self.server_step * delta, jnp.where(replies.share > 0, u, server.u))

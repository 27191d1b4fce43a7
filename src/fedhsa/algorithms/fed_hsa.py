"""FedHSA, the paper's Algorithm 1."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from .._types import Theta
from .base import Exchange
from .demands import Demand
from .local import AbstractServerStep, first_operator, local_steps, move, operators
from .schedules import step_at


class Server(NamedTuple):
    """The server's state: the parameter, and the operator averaged over the agents."""

    theta: Theta
    g_bar: Theta


class Memory(NamedTuple):
    """An agent's memory between the exchanges of a round: the round's initial parameter, and the operator there."""

    theta: Theta
    g: Theta


class FedHSA(AbstractServerStep):
    r"""Local steps steered by the averaged operator.

    From a common $\bar\theta$, agent $i$ repeats for $\ell = 0, \dots, H-1$

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + \bar g - G_i(\bar\theta, o_{i,0})\bigr), \qquad
      \bar g = \tfrac1M \sum_i G_i(\bar\theta, o_{i,0})$$

    The server then adds $\alpha_g$ times the mean displacement. A round has two exchanges: operators, then
    displacements. On `problems.policy_gradient` this is Fast-FedPG.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the number of observations that each agent uses per round.
    - `server_step`: $\alpha_g$, the step size of the server.

    Raises `ValueError` if a step size is not positive or `local_steps` is less than 1.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), FedHSA(0.02, local_steps=5), rounds=500)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "Zhu, Heath, Mitra (2025), arXiv:2504.11645, Algorithm 1; (2024), arXiv:2409.05291, for Fast-FedPG"
    """

    demands = Demand.NOTHING
    first_exchange_is_one_evaluation = True
    memory_lasts = False

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), Memory(theta, jnp.zeros_like(theta))

    @property
    def exchanges(self):
        return operators(anchor, average_operator), corrected_steps(self._local_steps, self._move)

    def _local_steps(self, g_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)
        # The anchor uses the observation of step 0, so the operator and the anchor cancel there.
        theta = agent.project(memory.theta + eta * g_bar)
        theta = local_steps(agent, theta, block, eta, self.local_steps - 1, g_bar, minus=memory.g, start=1)
        return theta - memory.theta, memory


def anchor(theta_bar, memory, agent, block, round):
    """The agent's operator at the start of the round, on its first observation."""
    g = first_operator(agent, theta_bar, block)
    return g, Memory(theta_bar, g)


def average_operator(server, replies, round):
    """Returns the server with the average of the agents' operators."""
    return server._replace(g_bar=replies.mean_or(server.g_bar))


def send_operator(server, round):
    """The averaged operator."""
    return server.g_bar


def corrected_steps(local: Callable, aggregate: Callable = move) -> Exchange:
    """The exchange in which agents receive the averaged operator and reply with their displacements."""
    return Exchange("delta", send_operator, local, aggregate, mean_suffices=True)

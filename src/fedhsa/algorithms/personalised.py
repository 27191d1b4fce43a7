"""Personalised federated SA: every agent has its own parameter, and they learn from each other."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _check, tree
from .._types import Theta
from ..problems import Problem
from .base import Exchange, PerAgent, check_probability
from .demands import Demand
from .local import AbstractMethod
from .schedules import step_at


class PersonalServer(NamedTuple):
    """The average of the agents' parameters, and the parameter of each agent."""

    theta: Theta
    own: Float[Array, "agents d"]


class PersonalisedSA(AbstractMethod):
    r"""Every agent converges to its own root $\theta_i^\star$, mostly along the average of all operators (PF-LSA).

    $$\theta_i \leftarrow \theta_i + \eta\,\Bigl(\beta\, G_i(\theta_i, o_i)
      + (1 - \beta)\,\frac1M \sum_j G_j(\theta_j, o_j)\Bigr)$$

    For every $\beta > 0$ each agent converges to its own root without noise. The mean of the agents' errors evolves
    with the step size $\eta$ and the noise of the average; the differences between their errors evolve with the step
    size $\beta \eta$ and the agent's own noise. With $\beta = 1/M$ the noise floor falls as $1/M$, and very
    heterogeneous agents take $M$ times as long to separate. With $\beta = 1$ every agent learns alone. The paper states
    the method for linear operators and independent observations.

    Each observation has one exchange with $d$ numbers each way. Here the server stores all parameters and sends each
    agent its own; the cost is the same if an agent stores its own and receives the average operator. `theta` is the
    average of all, and `own_error` records the distance of the agents from their own roots.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `beta`: $\beta$ in (0, 1].
    - `num_agents`: $M$, the number of the problem's agents.

    Raises `ValueError` if `step_size` is not positive, `beta` is not in (0, 1], or `num_agents` differs from the
    problem.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> method = PersonalisedSA(0.2, beta=0.25, num_agents=4)
        >>> recorders = {"own_error": PersonalisedSA.own_error(problem)}
        >>> result = fedhsa.simulate(problem.noiseless(), method, rounds=500, record=recorders)
        >>> bool(result.records["own_error"][0, -1] < 1e-15)
        True

    !!! cite "Labbi, Mangold, Moulines (2026), Best of both worlds in federated LSA, Algorithm 1"
    """

    beta: float
    num_agents: int = eqx.field(static=True)

    demands = Demand.PARAMETERS_OF_THEIR_OWN

    def __check_init__(self):
        check_probability("beta", self.beta)
        _check.count("num_agents", self.num_agents)

    @property
    def block_length(self):
        return 1

    def init(self, theta):
        return PersonalServer(theta, jnp.broadcast_to(theta, (self.num_agents, *theta.shape))), ()

    @property
    def exchanges(self):
        return (Exchange("operator", self._send_own, self._operator, self._step),)

    def check(self, problem):
        if problem.num_agents != self.num_agents:
            raise ValueError(f"`num_agents` must be {problem.num_agents}, as in the problem, got {self.num_agents}.")

    def _send_own(self, server, round):
        return PerAgent(server.own)

    def _operator(self, theta, memory, agent, block, round):
        return agent.operator(theta, agent.observe(theta, tree.take(block, 0))), memory

    def _step(self, server, replies, round):
        eta = step_at(self.step_size, round.index)
        mixed = self.beta * replies.values + (1 - self.beta) * replies.mean()[None]
        own = server.own + eta * mixed
        return PersonalServer(jnp.mean(own, axis=0), own)

    @staticmethod
    def own_error(problem: Problem) -> "OwnError":
        r"""Returns a recorder of $\frac1M \sum_i |\theta_i - \theta_i^\star|^2$."""
        return OwnError(problem.local_roots)


class OwnError(eqx.Module):
    r"""A recorder of the mean squared distance between the agents' parameters and their own roots.

    **Arguments:**

    - `roots`: $\theta_i^\star$, of shape `(M, d)`.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=2, dim=1).noiseless()
        >>> record = {"own": OwnError(problem.local_roots)}
        >>> fedhsa.simulate(problem, PersonalisedSA(0.1, 0.5, 2), rounds=3, record=record).records["own"].shape
        (1, 4)
    """

    roots: np.ndarray

    def __call__(self, snapshot: Any) -> Any:
        return jnp.mean(jnp.sum((snapshot.server.own - self.roots) ** 2, axis=1))

"""Averaging with weights per coordinate, by the number of visits."""

import jax
import jax.numpy as jnp

from .. import _check
from .base import Exchange
from .demands import Demand
from .local import AbstractLocalSteps, Server, local_steps
from .schedules import step_at


class ImportanceAveraging(AbstractLocalSteps):
    r"""Local steps, then an average that weights each coordinate of an agent by its number of visits.

    With $N_i(x)$ the number of visits to coordinate $x$ in the round, the server adds

    $$\sum_i \alpha_i(x)\, \delta_i(x), \qquad \alpha_i(x) = \frac{(1 - \eta)^{-N_i(x)}}{\sum_j (1 - \eta)^{-N_j(x)}}$$

    An agent that has not visited a pair of state and action thus has little influence on its value. The method is for
    tables of values, where each observation moves one coordinate (`problems.q_learning`). A round has one exchange,
    with $2 d$ numbers up. `LocalSA` is the same method with equal weights.

    **Arguments:**

    - `step_size`: $\eta$ in (0, 1).
    - `local_steps`: $H$, the number of observations that each agent uses per round.

    Raises `ValueError` if `step_size` is not in (0, 1) or `local_steps` is less than 1, and `TypeError` if the
    problem's agents do not report visits.

    !!! example
        >>> model = fedhsa.environments.Model(np.full((3, 2, 3), 1 / 3), np.arange(6.0).reshape(3, 2), 0.5)
        >>> problem = fedhsa.problems.q_learning.from_model(model)
        >>> result = fedhsa.simulate(problem, ImportanceAveraging(0.1, local_steps=10), rounds=200)
        >>> bool(result.error[0, -1] < 0.1 * result.error[0, 0])
        True

    !!! cite "Woo, Joshi, Chi (2023), arXiv:2305.10697, FedAsynQ-ImAvg"
    """

    demands = Demand.REPLIES_CARRY_WEIGHTS

    def __check_init__(self):
        _check.scalar("step_size", self.step_size, above=0.0, below=1.0, remedy="Weights are powers of 1 - step_size.")

    @property
    def exchanges(self):
        return (Exchange("delta", self._send, self._local_steps, self._move),)

    def check(self, problem):
        agents = problem.agents
        if not hasattr(agents, "visited") or getattr(agents, "coordinates", ()) is None:
            raise TypeError(
                f"ImportanceAveraging counts visits to coordinates, which {type(agents).__name__} does not report "
                "here. Use it on `problems.q_learning` with a table, or give the agent a method `visited(o)`."
            )

    def _local_steps(self, theta_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)
        theta = local_steps(agent, theta_bar, block, eta, self.local_steps)
        visits = jnp.sum(jax.vmap(agent.visited)(block), axis=0)
        return (theta - theta_bar, visits), memory

    def _move(self, server, replies, round):
        delta, visits = replies.values
        logits = -visits * jnp.log1p(-step_at(self.step_size, round.index))
        return Server(server.theta + jnp.sum(jax.nn.softmax(logits, axis=0) * delta, axis=0))

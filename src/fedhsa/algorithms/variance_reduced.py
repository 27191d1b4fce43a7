"""Variance reduction for streams: a batch at the start of the round, and local steps that differ little from it."""

import equinox as eqx
import jax.numpy as jnp

from .. import _check, tree
from .demands import Demand
from .fed_hsa import Server, average_operator, corrected_steps
from .local import AbstractLocalSteps, mean_operator, operator_elsewhere, operators, steps_along
from .schedules import step_at


class VarianceReducedSA(AbstractLocalSteps):
    r"""Local steps along the mean operator of a batch at the round's start, plus the change on each observation.

    $$\theta \leftarrow \theta
      + \eta\,\bigl(G_i(\theta, o_{i,\ell}) - G_i(\bar\theta, o_{i,\ell}) + \bar g\bigr), \qquad
      \bar g = \frac1M \sum_i \frac1B \sum_{k<B} G_i(\bar\theta, o'_{i,k})$$

    All agents start at $\bar\theta$; the $B$ observations of the batch come first, those of the $H$ steps after them.
    The server then averages. A round has two exchanges, of operators and of displacements. The noise of a step is
    proportional to its distance from $\bar\theta$, so the remaining noise is that of the batch, which falls with $B$
    and with $M$. Without noise the method converges to $\theta^\star$, also for heterogeneous agents.

    For one agent this is variance-reduced TD with batches of equal length (the paper's grow from epoch to epoch). With
    exact batches it is FSVRG, which `LocalSVRG` provides for finite sums. FedHSA has $B = 1$ and the same
    difference in all steps of a round. If observations depend on the parameter, those at $\bar\theta$ carry
    importance weights.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the number of steps of each agent per round.
    - `batch`: $B$, the number of observations in the batch.

    Raises `ValueError` if `step_size` is not positive, or `local_steps` or `batch` is less than 1.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=4, num_states=6, dim=3)
        >>> fedhsa.cost(problem, VarianceReducedSA(0.1, local_steps=5, batch=20))
        Cost(exchanges=2, floats_down=6, floats_up=6, samples=25, evaluations=30)

    !!! cite "Khamaru et al. (2020), arXiv:2003.07337, for one agent; only its abstract was available"
    """

    batch: int = eqx.field(static=True)

    demands = Demand.NOTHING

    def __check_init__(self):
        _check.count("batch", self.batch)

    @property
    def block_length(self):
        return self.batch + self.local_steps

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), theta

    @property
    def exchanges(self):
        return operators(self._batch, average_operator), corrected_steps(self._local_steps)

    def _batch(self, theta_bar, memory, agent, block, round):
        return mean_operator(agent, theta_bar, block, self.batch), theta_bar

    def _local_steps(self, g_bar, theta_bar, agent, block, round):
        eta = step_at(self.step_size, round.index)

        def direction(theta, o):
            return agent.operator(theta, o) - operator_elsewhere(agent, theta_bar, o, theta) + g_bar

        rest = tree.take(block, slice(self.batch, None))
        theta = steps_along(direction, agent, theta_bar, rest, eta, self.local_steps)
        return theta - theta_bar, theta_bar

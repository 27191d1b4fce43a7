"""SCAFFLSA: local steps with shifts that each agent learns from its own drift."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .._types import Theta
from .base import Exchange
from .demands import Demand
from .local import AbstractLocalSteps, local_steps, move, send_theta
from .local_sa import Server
from .schedules import AbstractSchedule, step_at


class Memory(NamedTuple):
    """Where the agent ended its last round, and its shift."""

    last: Theta
    shift: Theta


class SCAFFLSA(AbstractLocalSteps):
    r"""Local steps with a shift per agent, which adds up how far the agent drifted from the average.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + \xi_i\bigr), \quad \ell = 0, \dots, H-1, \qquad
      \xi_i \leftarrow \xi_i + \frac{\bar\theta^+ - \theta_{i,H}}{\eta H}$$

    where $\bar\theta^+$ is the new average, which the agent learns with the next round's message. One exchange, $d$
    numbers each way, $d$ kept by each agent. Without noise it converges to $\theta^\star$, with
    $\xi_i \to -\bar G_i(\theta^\star)$, also for many local steps with which FedHSA diverges: it corrects by the drift
    of a whole round, not by operators at its start. It is SCAFFOLD's option 2 with all agents taking part, with half
    the traffic.

    The plus in the update of $\xi_i$ matters (a minus is in circulation): an agent that went too far is pulled back.
    With a schedule, the drift is divided by the step of the round in which it arose. $\sum_i \xi_i = 0$ must hold at
    all times, so all replies must arrive. The paper states it for linear operators; nothing in it needs them.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the observations each agent uses per round.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), SCAFFLSA(0.02, local_steps=5), rounds=500)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "Mangold et al. (2024), arXiv:2402.04114"
    """

    demands = Demand.SHIFTS_SUM_TO_ZERO

    def init(self, theta):
        return Server(theta), Memory(theta, jnp.zeros_like(theta))

    @property
    def exchanges(self):
        return (Exchange("delta", send_theta, self._local_steps, move, mean_suffices=True),)

    def _local_steps(self, theta_bar, memory, agent, block, round):
        # Before the first round the agent stands where the server does: no drift.
        drift_time = previous_step(self.step_size, round.index) * self.local_steps
        shift = memory.shift + (theta_bar - memory.last) / drift_time
        eta = step_at(self.step_size, round.index)
        theta = local_steps(agent, theta_bar, block, eta, self.local_steps, shift)
        return theta - theta_bar, Memory(theta, shift)


def previous_step(step_size: float | AbstractSchedule, round_index: Any) -> Any:
    """The step size of the round before; in the first round, where nothing has moved yet, its own."""
    return step_at(step_size, jnp.maximum(round_index - 1, 0))

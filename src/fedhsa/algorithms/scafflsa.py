"""SCAFFLSA: local steps with shifts that each agent learns from its own drift."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .._types import Theta
from .demands import Demand
from .local import AbstractLocalSteps, Server, local_steps
from .schedules import AbstractSchedule, step_at


class Memory(NamedTuple):
    """An agent's memory: its parameter at the end of its last round, and its shift."""

    last: Theta
    shift: Theta


class SCAFFLSA(AbstractLocalSteps):
    r"""Local steps with a shift per agent that accumulates the agent's drift from the average.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + \xi_i\bigr), \quad \ell = 0, \dots, H-1, \qquad
      \xi_i \leftarrow \xi_i + \frac{\bar\theta^+ - \theta_{i,H}}{\eta H}$$

    Here $\bar\theta^+$ is the new average, which the agent receives with the next round's message. A round has one
    exchange with $d$ numbers each way, and each agent stores $d$ numbers. Without noise the method converges to
    $\theta^\star$, with $\xi_i \to -\bar G_i(\theta^\star)$, even for numbers of local steps at which FedHSA diverges:
    it corrects by the drift of a whole round, not by operators at its start. It is SCAFFOLD's option 2 with full
    participation and half the traffic.

    The plus sign in the update of $\xi_i$ matters (a version with a minus is in circulation): an agent that went too
    far is pulled back. With a schedule, the drift is divided by the step size of the round in which it arose.
    $\sum_i \xi_i = 0$ must hold at all times, so every reply must arrive. The paper states the method for linear
    operators, but it does not depend on linearity.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the number of observations that each agent uses per round.

    Raises `ValueError` if `step_size` is not positive or `local_steps` is less than 1.

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

    def _local_steps(self, theta_bar, memory, agent, block, round):
        # Before the first round the agent is at the server's parameter: no drift.
        drift_time = previous_step(self.step_size, round.index) * self.local_steps
        shift = memory.shift + (theta_bar - memory.last) / drift_time
        eta = step_at(self.step_size, round.index)
        theta = local_steps(agent, theta_bar, block, eta, self.local_steps, shift)
        return theta - theta_bar, Memory(theta, shift)


def previous_step(step_size: float | AbstractSchedule, round_index: Any) -> Any:
    """The step size of the previous round; in the first round, where nothing has moved yet, that of the first round."""
    return step_at(step_size, jnp.maximum(round_index - 1, 0))

"""Local steps with constant shifts, which each agent learns from its own drift (SCAFFLSA) or an oracle provides."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .. import _check, tree
from .._types import Theta, precision
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

    - `step_size`, `local_steps`: as for `LocalSA`.

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


class OracleShift(AbstractLocalSteps):
    r"""Local steps with the ideal constant correction, which only an oracle can provide (S*-Local-SGD).

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) - \bar G_i(\theta^\star)\bigr),
      \quad \ell = 0, \dots, H-1$$

    The server then averages. Every agent's corrected mean operator vanishes at $\theta^\star$, so the method converges
    there without noise, for every $H$ at which the agents' own steps contract on average. It is a reference: SCAFFLSA,
    SCAFFOLD and Scaffnew learn this shift during the run. A round has one exchange with $d$ numbers each way.

    The shift removes only the drift of the means: noise acts as it does in Local SA.

    **Arguments:**

    - `step_size`, `local_steps`: as for `LocalSA`.
    - `theta_star`: $\theta^\star$, flat; another point $\theta$ leads to a different limit, unless
      $\sum_i \bar G_i(\theta) = 0$.

    Raises `ValueError` if `step_size` is not positive, `local_steps` is less than 1, or `theta_star` has the wrong
    shape, and `TypeError` if the problem's agents have no mean operator.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> oracle = OracleShift(0.02, local_steps=5, theta_star=problem.theta_star)
        >>> bool(fedhsa.simulate(problem.noiseless(), oracle, rounds=500).error[0, -1] < 1e-20)
        True

    !!! cite "Gorbunov, Hanzely, Richtarik (2021), arXiv:2011.02828, the shift of S*-Local-SGD; here with fixed rounds"
    """

    theta_star: np.ndarray

    demands = Demand.NOTHING

    def __check_init__(self):
        _check.array("theta_star", self.theta_star, ("d",))

    def relative_to(self, origin):
        return eqx.tree_at(lambda a: a.theta_star, self, self.theta_star - origin)

    def check(self, problem):
        _check.array("theta_star", self.theta_star, (problem.dim,))
        with precision():
            agent, root = tree.to_device((tree.take(problem.flat_agents, 0), np.asarray(self.theta_star)), "float64")
            try:
                jax.eval_shape(lambda agent, theta: agent.mean_operator(theta), agent, root)
            except TypeError as error:
                raise TypeError(
                    f"OracleShift needs the mean operator of each agent, and {type(problem.agents).__name__} has none: "
                    f"{error} SCAFFLSA learns the shift instead."
                ) from error

    def _local_steps(self, theta_bar, memory, agent, block, round):
        eta, shift = step_at(self.step_size, round.index), -agent.mean_operator(jnp.asarray(self.theta_star))
        return local_steps(agent, theta_bar, block, eta, self.local_steps, shift) - theta_bar, memory


def previous_step(step_size: float | AbstractSchedule, round_index: Any) -> Any:
    """The step size of the previous round; in the first round, where nothing has moved yet, that of the first round."""
    return step_at(step_size, jnp.maximum(round_index - 1, 0))

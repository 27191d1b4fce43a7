"""Local steps with the ideal constant shift, which only an oracle can provide."""

import jax
import jax.numpy as jnp
import numpy as np

from .. import _check, tree
from .._types import precision
from .demands import Demand
from .local import AbstractLocalSteps, local_steps
from .schedules import step_at


class OracleShift(AbstractLocalSteps):
    r"""Local steps with the ideal constant correction, which only an oracle can provide (S*-Local-SGD).

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) - \bar G_i(\theta^\star)\bigr),
      \quad \ell = 0, \dots, H-1$$

    The server then averages. Every agent's corrected mean operator vanishes at $\theta^\star$, so the method converges
    there without noise, for every $H$ at which the agents' own steps contract on average. It is a reference: SCAFFLSA,
    SCAFFOLD and Scaffnew learn this shift during the run. A round has one exchange with $d$ numbers each way.

    The shift removes only the drift of the means: noise acts as it does in Local SA.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the number of observations that each agent uses per round.
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

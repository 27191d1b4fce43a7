"""One-shot averaging, at the end of the run."""

from .demands import Demand
from .local import AbstractLocalSteps, Server, local_steps
from .schedules import step_at


class OneShotAveraging(AbstractLocalSteps):
    r"""Agents learn alone and average once, at the end of the run.

    Each agent iterates $\theta_i \leftarrow \theta_i + \eta\, G_i(\theta_i, o_i)$.
    After each round a run reports the average that the agents would form if they stopped there. Without noise it
    converges to the mean of the local roots, $\frac1M \sum_i \theta_i^\star$, which is $\theta^\star$ for equal agents.
    A round has no communication; the whole run costs one message of $d$ numbers from every agent.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the number of steps of a round, which only determines how often the average is reported.

    Raises `ValueError` if `step_size` is not positive or `local_steps` is less than 1.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), OneShotAveraging(0.1, local_steps=5), rounds=500)
        >>> bool(abs(result.theta[0] - problem.local_roots.mean(0)).max() < 1e-10)
        True

    !!! cite "Liu, Olshevsky (2023), distributed TD(0) with almost no communication"
    """

    demands = Demand.COMMUNICATES_AT_THE_END

    def init(self, theta):
        return Server(theta), theta

    def average_cost(self, cost):
        return cost._replace(exchanges=0, floats_down=0, floats_up=0)

    def _send(self, server, round):
        return ()

    def _local_steps(self, message, theta, agent, block, round):
        moved = local_steps(agent, theta, block, step_at(self.step_size, round.index), self.local_steps)
        return moved - theta, moved

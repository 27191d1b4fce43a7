"""Local SA and its two limiting cases: synchronisation at every step, and a single agent."""

from .. import tree
from .demands import Demand
from .local import AbstractMethod, AbstractServerStep, Server, local_steps, operators
from .schedules import step_at


class LocalSA(AbstractServerStep):
    r"""Local steps along each agent's own operator, then averaging (FedAvg, FedTD, FedLSA, local SGD).

    $$\theta \leftarrow \theta + \eta\, G_i(\theta, o_{i,\ell}), \quad \ell = 0, \dots, H-1$$

    The server then adds $\alpha_g$ times the mean displacement. With heterogeneous agents and $H > 1$, the method does
    not converge to $\theta^\star$ at a constant step size (the paper's Proposition 1).

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the number of observations that each agent uses per round.
    - `server_step`: $\alpha_g$, the step size of the server.

    Raises `ValueError` if a step size is not positive or `local_steps` is less than 1.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), LocalSA(0.02, local_steps=5), rounds=500)
        >>> bool(result.error[0, -1] > 1e-6)
        True

    !!! cite "McMahan et al. (2017); Zhu, Heath, Mitra (2025), eq. (9)"
    """

    demands = Demand.NOTHING

    def _local_steps(self, theta_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)
        return local_steps(agent, theta_bar, block, eta, self.local_steps) - theta_bar, memory


class AbstractOneStep(AbstractMethod):
    """One observation and one exchange per round: agents send their operators, and the server steps along the mean."""

    demands = Demand.NOTHING

    @property
    def block_length(self):
        return 1

    @property
    def exchanges(self):
        return (operators(self._operator, self._step),)

    def _operator(self, theta, memory, agent, block, round):
        return agent.operator(theta, agent.observe(theta, tree.take(block, 0))), memory

    def _step(self, server, replies, round):
        return Server(server.theta + step_at(self.step_size, round.index) * replies.mean())


class SynchronisedSA(AbstractOneStep):
    r"""Every agent sends its operator at every step: $\theta \leftarrow \theta + \eta \frac1M \sum_i G_i(\theta, o_i)$.

    FedHSA and Local SA reduce to this method for $H = 1$. It has no drift and needs one exchange per observation.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.

    Raises `ValueError` if `step_size` is not positive.

    !!! example
        >>> SynchronisedSA(step_size=0.1).block_length
        1

    !!! cite "Robbins and Monro (1951), on the average of M agents"
    """


class SA(AbstractOneStep):
    r"""Stochastic approximation by one agent: $\theta \leftarrow \theta + \eta\, G(\theta, o)$.

    It is the baseline without collaboration and runs on a problem with one agent, `problem.take([i])`.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.

    Raises `ValueError` if `step_size` is not positive, and when run on a problem with several agents.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> alone = problem.take([2], theta_star=problem.theta_star)   # how far does agent 2 get by itself?
        >>> fedhsa.simulate(alone, SA(0.05), rounds=100).error.shape
        (1, 101)

    !!! cite "Robbins and Monro (1951)"
    """

    def check(self, problem):
        if problem.num_agents != 1:
            raise ValueError(
                f"SA runs a single agent, got a problem with {problem.num_agents} agents. Select one with "
                "`problem.take([0])`, or use LocalSA, SynchronisedSA or FedHSA for all of them."
            )

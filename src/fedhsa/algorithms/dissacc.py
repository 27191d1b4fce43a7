"""DisSACC: one move per batch of observations."""

from .demands import Demand
from .local import AbstractLocalSteps, Server, mean_operator, operators
from .schedules import step_at


class DisSACC(AbstractLocalSteps):
    r"""A batch of observations at one parameter, then one move: no local drift and no bias from heterogeneity.

    $$\bar\theta \leftarrow \bar\theta + \alpha\, \frac1M \sum_i \frac1H \sum_{\ell<H} G_i(\bar\theta, o_{i,\ell})$$

    The step size $\alpha$ belongs to a whole round and is not divided by $H$. According to the paper, with $R$
    independent observations per agent, $T = O(\log MR)$ rounds of $H = R / T$ observations suffice.

    **Arguments:**

    - `step_size`: $\alpha$, a number or a schedule.
    - `local_steps`: $H$, the number of observations that each agent averages over per round.

    Raises `ValueError` if `step_size` is not positive or `local_steps` is less than 1.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), DisSACC(0.1, local_steps=5), rounds=500)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "Zhu, Mitra, Heath (2025), DisSACC"
    """

    demands = Demand.NOTHING
    step_is_per_round = True

    @property
    def exchanges(self):
        return (operators(self._local_steps, self._move),)

    def _local_steps(self, theta, memory, agent, block, round):
        return mean_operator(agent, theta, block, self.local_steps), memory

    def _move(self, server, replies, round):
        return Server(server.theta + step_at(self.step_size, round.index) * replies.mean())

"""Local SA and its relatives: other times of averaging, one move per step or per batch, and a single agent."""

import itertools

import equinox as eqx

from .. import _check, tree
from .base import Exchange
from .demands import Demand
from .local import (
    AbstractLocalSteps,
    AbstractMethod,
    AbstractServerStep,
    Server,
    local_steps,
    mean_operator,
    move,
    operators,
    send_theta,
)
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


class GappedSA(AbstractMethod):
    r"""Local SA that averages after irregular gaps, which repeat.

    The gaps have $g_1$ steps, then $g_2$ steps, and so on.
    With the local fixed-point operators $T_i$ and $G_i = T_i - I$, the method is
    $x_i \leftarrow (1-\eta) x_i + \eta\, T_i(x_i)$ at every step, and $x_i \leftarrow \frac1M \sum_j x_j$ at the times
    $t_n$. One round is one pass through the gaps, with an exchange at the end of each gap. Equal gaps are `LocalSA`,
    whose bias it shares.

    **Arguments:**

    - `step_size`: $\eta$, the paper's relaxation $\lambda$; a number or a schedule.
    - `gaps`: $t_1 - t_0, t_2 - t_1, \dots$, the number of local steps before each averaging.

    Raises `ValueError` if `step_size` is not positive or `gaps` is not a tuple of positive whole numbers.

    !!! example
        >>> algorithm = GappedSA(0.02, gaps=(2, 5, 3))
        >>> fedhsa.cost(fedhsa.problems.quadratic.random(num_agents=4, dim=3), algorithm)
        Cost(exchanges=3, floats_down=9, floats_up=9, samples=10, evaluations=10)

    !!! cite "Malinovsky, Kovalev, Gasanov, Condat, Richtárik (2020), arXiv:2004.01442, Algorithm 1"
    """

    gaps: tuple[int, ...] = eqx.field(static=True, converter=_check.counts)

    demands = Demand.NOTHING

    def __check_init__(self):
        if not isinstance(self.gaps, tuple) or not self.gaps:
            raise ValueError(f"`gaps` must be a tuple of whole numbers, got {self.gaps!r}. Use for instance (2, 5, 3).")
        for gap in self.gaps:
            _check.count("gaps", gap, remedy="Each gap is a number of local steps.")

    @property
    def block_length(self):
        return sum(self.gaps)

    @property
    def exchanges(self):
        starts = itertools.accumulate(self.gaps[:-1], initial=0)
        return tuple(self._exchange(start, gap) for start, gap in zip(starts, self.gaps, strict=True))

    def _exchange(self, start, gap):
        def local(theta_bar, memory, agent, block, round):
            part = tree.take(block, slice(start, start + gap))
            theta = local_steps(agent, theta_bar, part, step_at(self.step_size, round.index), gap)
            return theta - theta_bar, memory

        return Exchange(f"delta {start}", send_theta, local, move, mean_suffices=True)


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

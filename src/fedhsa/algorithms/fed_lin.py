"""Methods related to FedHSA with two exchanges: unequal local steps, and anchors that are renewed at random."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import _check, tree
from .._types import Theta
from .base import Round, check_local_steps, check_probability
from .demands import Demand
from .fed_hsa import Memory, Server, anchor, average_operator, corrected_steps
from .local import AbstractLocalSteps, AbstractMethod, first_operator, local_steps, operators
from .schedules import step_at


class FedLin(AbstractMethod):
    r"""FedHSA with a separate number of local steps $\tau_i$ for each agent, and step sizes that compensate for it.

    From a common $\bar\theta$, agent $i$ repeats for $\ell = 0, \dots, \tau_i-1$

    $$\theta \leftarrow \theta + \frac{\bar\eta}{\tau_i}\,
      \bigl(G_i(\theta, o_{i,\ell}) + \bar g - G_i(\bar\theta, o_{i,0})\bigr), \qquad
      \bar g = \tfrac1M \sum_i G_i(\bar\theta, o_{i,0})$$

    The server then averages. A round has two exchanges with $d$ numbers each way in each of them. `step_size` belongs
    to a whole round: with equal $\tau_i = H$ the method is FedHSA with the step size $\bar\eta / H$, and diverges where
    that does. Without noise it converges to $\theta^\star$ for all $\tau_i$, because all corrected operators vanish
    there.

    The chains of all agents advance by $\max_i \tau_i$ observations per round; an agent with fewer steps skips the
    rest. On average an agent evaluates its operator $\frac1M \sum_i \tau_i$ times. The paper uses exact gradients;
    replacing them by observations is FedHSA's generalisation.

    **Arguments:**

    - `step_size`: $\bar\eta$, a number or a schedule.
    - `local_steps`: $\tau_i$, a tuple with a number for each agent, or one number for all.

    Raises `ValueError` if `step_size` is not positive, an entry of `local_steps` is less than 1, or their number
    differs from that of the problem's agents.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), FedLin(0.1, local_steps=(1, 2, 5, 10)), rounds=500)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "Mitra, Jaafar, Pappas, Hassani (2021), arXiv:2102.07053, without compression"
    """

    local_steps: int | tuple[int, ...] = eqx.field(static=True, converter=_check.counts)

    demands = Demand.NOTHING
    step_is_per_round = True
    first_exchange_is_one_evaluation = True
    memory_lasts = False

    def __check_init__(self):
        if self.local_steps == ():
            raise ValueError("`local_steps` must have a number for each agent, got an empty tuple.")
        for steps in self.local_steps if isinstance(self.local_steps, tuple) else (self.local_steps,):
            check_local_steps(steps)

    @property
    def block_length(self):
        return max(self.local_steps) if isinstance(self.local_steps, tuple) else self.local_steps

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), Memory(theta, jnp.zeros_like(theta))

    @property
    def exchanges(self):
        return operators(anchor, average_operator), corrected_steps(self._local_steps)

    def check(self, problem):
        if isinstance(self.local_steps, tuple) and len(self.local_steps) != problem.num_agents:
            raise ValueError(
                f"`local_steps` must have a number for each of the {problem.num_agents} agents, got "
                f"{len(self.local_steps)}. Use one number for all agents, or one for each."
            )

    def average_cost(self, cost):
        if not isinstance(self.local_steps, tuple):
            return cost
        return cost._replace(evaluations=sum(self.local_steps) / len(self.local_steps))

    def _local_steps(self, g_bar, memory, agent, block, round):
        steps, correction = jnp.asarray(self.local_steps), g_bar - memory.g
        tau = steps[round.agent] if steps.ndim else steps
        eta = step_at(self.step_size, round.index) / tau.astype(g_bar.dtype)

        def step(theta, numbered):
            number, o = numbered
            direction = agent.operator(theta, agent.observe(theta, o)) + correction
            return jnp.where(number < tau, agent.project(theta + eta * direction), theta), None

        # The anchor uses the observation of step 0, so the operator and the anchor cancel there.
        theta = agent.project(memory.theta + eta * g_bar)
        if self.block_length > 1:
            rest = jnp.arange(1, self.block_length), tree.take(block, slice(1, None))
            theta, _ = jax.lax.scan(step, theta, rest)
        return theta - memory.theta, memory


class RefreshMemory(NamedTuple):
    """The round's initial parameter, the operator there, and the anchor, which is the operator at the last refresh."""

    theta: Theta
    g: Theta
    anchor: Theta


class AbstractRefreshing(AbstractLocalSteps):
    """A method with two exchanges, the first of which takes place in the first round and afterwards at random."""

    probability: float

    demands = Demand.SKIPS_EXCHANGES

    def __check_init__(self):
        check_probability("probability", self.probability)

    def average_cost(self, cost):
        # A round without a refresh has one of the two exchanges: theta down, displacements up.
        return cost.communicating((1 + self.probability) / 2)

    def _refreshes(self, round: Round) -> Any:
        return (round.index == 0) | round.happens(self.probability)

    def _average_operator(self, server, replies, round):
        renewed = replies.mean_or(server.g_bar)
        return Server(server.theta, jnp.where(self._refreshes(round), renewed, server.g_bar))


class SSLocalSGD(AbstractRefreshing):
    r"""FedHSA whose anchors are renewed at random rather than in every round.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + \bar g - g_i\bigr), \quad
      \ell = 0, \dots, H-1, \qquad g_i \leftarrow G_i(\bar\theta, o_{i,0}) \text{ with probability } q$$

    The anchors $g_i$ are renewed before the local steps, for all agents simultaneously, and always in the first round;
    $\bar g$ is the average of the $g_i$, and the server averages the displacements. A round without a refresh has no
    first exchange, so a round has $1 + q$ exchanges on average, with $(1 + q) d$ numbers each way. $q = 1$ is FedHSA.
    Without noise the method converges to $\theta^\star$ where it is stable; old anchors reduce the stability compared
    with FedHSA.

    An agent that was absent at the last refresh has an older $g_i$ than the others, and the corrections do not add
    to zero until the next refresh: use FedHSA or SCAFFOLD with partial participation. The paper's method averages and
    renews at random after single steps; here rounds have a fixed length, and only the refresh is random.

    **Arguments:**

    - `step_size`, `local_steps`: as for `LocalSA`.
    - `probability`: $q$, the probability of renewing the anchors.

    Raises `ValueError` if `step_size` is not positive, `local_steps` is less than 1, or `probability` is not in (0, 1].

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> algorithm = SSLocalSGD(0.02, local_steps=5, probability=0.5)
        >>> bool(fedhsa.simulate(problem.noiseless(), algorithm, rounds=500).error[0, -1] < 1e-20)
        True

    !!! cite "Gorbunov, Hanzely, Richtarik (2021), arXiv:2011.02828, SS-Local-SGD"
    """

    def init(self, theta):
        nothing = jnp.zeros_like(theta)
        return Server(theta, nothing), RefreshMemory(theta, nothing, nothing)

    @property
    def exchanges(self):
        return operators(self._anchor, self._average_operator), corrected_steps(self._local_steps)

    def _anchor(self, theta_bar, memory, agent, block, round):
        g = first_operator(agent, theta_bar, block)
        return g, RefreshMemory(theta_bar, g, jnp.where(self._refreshes(round), g, memory.anchor))

    def _local_steps(self, g_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)
        theta = agent.project(memory.theta + eta * (memory.g + (g_bar - memory.anchor)))
        theta = local_steps(agent, theta, block, eta, self.local_steps - 1, g_bar, minus=memory.anchor, start=1)
        return theta - memory.theta, memory

"""FedHSA's relatives with two exchanges: unequal local steps, and anchors that are renewed now and then."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import _check, tree
from .._types import Theta
from .base import AbstractAlgorithm, Exchange, Round, check_local_steps, check_probability, check_step_size
from .demands import Demand
from .fed_hsa import Memory, Server, anchor, average_operator, send_operator
from .local import AbstractLocalSteps, first_operator, local_steps, move, send_theta
from .schedules import AbstractSchedule, step_at


class FedLin(AbstractAlgorithm):
    r"""FedHSA with a number of local steps $\tau_i$ for each agent, and steps that make up for it.

    From a common $\bar\theta$, agent $i$ repeats for $\ell = 0, \dots, \tau_i-1$

    $$\theta \leftarrow \theta + \frac{\bar\eta}{\tau_i}\,
      \bigl(G_i(\theta, o_{i,\ell}) + \bar g - G_i(\bar\theta, o_{i,0})\bigr), \qquad
      \bar g = \tfrac1M \sum_i G_i(\bar\theta, o_{i,0})$$

    and the server averages. Two exchanges, $2 d$ numbers each way. `step_size` is that of a whole round: with equal
    $\tau_i = H$ this is FedHSA with the step $\bar\eta / H$, and diverges where that does. Without noise the limit is
    $\theta^\star$, whatever the $\tau_i$: all corrected operators vanish there.

    All agents' observations run on by $\max_i \tau_i$ per round; an agent with fewer steps lets the rest pass. On
    average an agent evaluates its operator $\frac1M \sum_i \tau_i$ times. The paper has exact gradients; observations
    in their place are FedHSA's generalisation.

    **Arguments:**

    - `step_size`: $\bar\eta$, a number or a schedule.
    - `local_steps`: $\tau_i$, a tuple with a number for each agent, or one number for all.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), FedLin(0.1, local_steps=(1, 2, 5, 10)), rounds=500)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "Mitra, Jaafar, Pappas, Hassani (2021), arXiv:2102.07053, without compression"
    """

    step_size: float | AbstractSchedule
    local_steps: int | tuple[int, ...] = eqx.field(static=True, converter=_check.counts)

    demands = Demand.NOTHING
    first_exchange_is_one_evaluation = True
    memory_lasts = False

    def __check_init__(self):
        check_step_size("step_size", self.step_size)
        if self.local_steps == ():
            raise ValueError("`local_steps` must have a number for each agent, got an empty tuple.")
        for steps in self.local_steps if isinstance(self.local_steps, tuple) else (self.local_steps,):
            check_local_steps(steps)

    @property
    def block_length(self):
        return max(self.local_steps) if isinstance(self.local_steps, tuple) else self.local_steps

    @property
    def step_is_per_round(self):
        return True

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), Memory(theta, jnp.zeros_like(theta))

    @property
    def exchanges(self):
        return (
            Exchange("operator", send_theta, anchor, average_operator, replies_are_operators=True, mean_suffices=True),
            Exchange("delta", send_operator, self._local_steps, move, mean_suffices=True),
        )

    def check(self, problem):
        if isinstance(self.local_steps, tuple) and len(self.local_steps) != problem.num_agents:
            raise ValueError(
                f"`local_steps` must have a number for each of the {problem.num_agents} agents, got "
                f"{len(self.local_steps)}. Use one number for all, or as many as there are agents."
            )

    def average_cost(self, cost):
        if not isinstance(self.local_steps, tuple):
            return cost
        return cost._replace(evaluations=sum(self.local_steps) / len(self.local_steps))

    def _local_steps(self, g_bar, memory, agent, block, round):
        tau, correction = self._own_steps(round), g_bar - memory.g
        eta = step_at(self.step_size, round.index) / tau.astype(g_bar.dtype)

        def step(theta, numbered):
            number, o = numbered
            direction = agent.operator(theta, agent.observe(theta, o)) + correction
            return jnp.where(number < tau, agent.project(theta + eta * direction), theta), None

        # The anchor's observation is that of step 0, where the operator and the anchor cancel.
        theta = agent.project(memory.theta + eta * g_bar)
        if self.block_length > 1:
            rest = jnp.arange(1, self.block_length), tree.take(block, slice(1, None))
            theta, _ = jax.lax.scan(step, theta, rest)
        return theta - memory.theta, memory

    def _own_steps(self, round: Round) -> Any:
        steps = jnp.asarray(self.local_steps)
        return steps[round.agent] if steps.ndim else steps


class RefreshMemory(NamedTuple):
    """Where the round starts, the agent's operator there, and its anchor: the operator at the last refresh."""

    theta: Theta
    g: Theta
    anchor: Theta


class AbstractRefreshing(AbstractLocalSteps):
    """A method of two exchanges, the first of which takes place in the first round and then by a coin."""

    probability: float

    demands = Demand.SKIPS_EXCHANGES

    def __check_init__(self):
        check_probability("probability", self.probability)

    def average_cost(self, cost):
        # Of two exchanges, a round without a refresh has one: theta down, displacements up.
        made = (1 + self.probability) / 2
        return cost._replace(
            exchanges=made * cost.exchanges, floats_down=made * cost.floats_down, floats_up=made * cost.floats_up
        )

    def _refreshes(self, round: Round) -> Any:
        return (round.index == 0) | round.happens(self.probability)

    def _average_operator(self, server, replies, round):
        renewed = replies.mean_or(server.g_bar)
        return Server(server.theta, jnp.where(self._refreshes(round), renewed, server.g_bar))


class SSLocalSGD(AbstractRefreshing):
    r"""FedHSA whose anchors are renewed only now and then, by chance.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) + \bar g - g_i\bigr), \quad
      \ell = 0, \dots, H-1, \qquad g_i \leftarrow G_i(\bar\theta, o_{i,0}) \text{ with probability } q$$

    before the local steps, for all agents at once, and in the first round always; $\bar g$ is the average of the
    $g_i$, and the server averages the displacements. Without a refresh there is no first exchange, so a round has
    $1 + q$ of them on average, with $(1 + q) d$ numbers each way. $q = 1$ is FedHSA. Without noise the limit is
    $\theta^\star$, where it is stable; old anchors make that harder than for FedHSA.

    An agent that was absent at the last refresh has an older $g_i$ than the others, and the corrections do not add
    to zero until the next: with partial participation use FedHSA or SCAFFOLD. The paper's method averages and renews
    by coins after single steps; here rounds have a fixed length, with a coin for the anchors.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $H$, the observations each agent uses per round.
    - `probability`: $q$, of renewing the anchors.

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
        return (
            Exchange(
                "operator",
                send_theta,
                self._anchor,
                self._average_operator,
                replies_are_operators=True,
                mean_suffices=True,
            ),
            Exchange("delta", send_operator, self._local_steps, move, mean_suffices=True),
        )

    def _anchor(self, theta_bar, memory, agent, block, round):
        g = first_operator(agent, theta_bar, block)
        return g, RefreshMemory(theta_bar, g, jnp.where(self._refreshes(round), g, memory.anchor))

    def _local_steps(self, g_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)
        theta = agent.project(memory.theta + eta * (memory.g + (g_bar - memory.anchor)))
        theta = local_steps(agent, theta, block, eta, self.local_steps - 1, g_bar, minus=memory.anchor, start=1)
        return theta - memory.theta, memory

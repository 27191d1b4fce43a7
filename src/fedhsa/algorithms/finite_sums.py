"""Variance reduction for finite sums: S-Local-SVRG and MC-SAG."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _check
from .._types import Theta
from ..sources import IID, FiniteChain
from .base import Exchange, check_local_steps
from .demands import Demand
from .fed_hsa import Server as AnchorServer
from .fed_hsa import corrected_steps
from .fed_lin import AbstractRefreshing
from .local import AbstractMethod, Server, move, send_theta, steps_along
from .schedules import step_at


class SVRGMemory(NamedTuple):
    """An agent's memory: the parameter at the start of the round, and the reference."""

    theta: Theta
    reference: Theta


class LocalSVRG(AbstractRefreshing):
    r"""Local steps whose noise is proportional to the distance from a reference $y$ with a known mean operator.

    $$\theta \leftarrow \theta + \eta\,\bigl(G_i(\theta, o_{i,\ell}) - G_i(y, o_{i,\ell}) + \bar G(y)\bigr), \qquad
      \bar G(y) = \tfrac1M \sum_i \bar G_i(y)$$

    With the given probability (and always in the first round) $y$ moves to the current parameter; the agents then send
    their exact mean operators there, in an exchange before that of the displacements. Noise and drift both vanish at
    $\theta^\star$, so the method converges to the root itself, at a constant step size and with correlated
    observations.

    The paper's S-Local-SVRG also averages at random times (with probability $p$ after every step); here it averages
    after every `local_steps` steps, and $y$ can change only at those times. The direction is the paper's shifted
    estimator with the shifts written out.

    The agents must have mean operators, as finite sums do. An exact mean operator does not count as an evaluation;
    for a sum of $N$ components it costs $N$ evaluations at each refresh.

    **Arguments:**

    - `step_size`, `local_steps`: as for `LocalSA`.
    - `probability`: the probability that a round refreshes the reference.

    Raises `ValueError` if `step_size` is not positive, `local_steps` is less than 1, or `probability` is not in (0, 1].

    !!! example
        >>> problem = fedhsa.problems.finite_sum.random(num_agents=4, num_components=3, dim=2)
        >>> result = fedhsa.simulate(problem, LocalSVRG(0.02, local_steps=5, probability=0.5), rounds=500)
        >>> bool(result.error[0, -1] < 1e-18)   # despite the noise
        True

    !!! cite "Gorbunov, Hanzely, Richtárik (2021), arXiv:2011.02828, S-Local-SVRG"
    """

    def init(self, theta):
        return AnchorServer(theta, jnp.zeros_like(theta)), SVRGMemory(theta, theta)

    @property
    def exchanges(self):
        first = Exchange("reference", send_theta, self._mean_operator, self._average_operator, mean_suffices=True)
        return first, corrected_steps(self._local_steps)

    def _mean_operator(self, theta_bar, memory, agent, block, round):
        refreshes = self._refreshes(round)
        g = jnp.where(refreshes, agent.mean_operator(theta_bar), jnp.zeros_like(theta_bar))
        return g, SVRGMemory(theta_bar, jnp.where(refreshes, theta_bar, memory.reference))

    def _local_steps(self, g_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)

        def direction(theta, o):
            return agent.operator(theta, o) - agent.operator(memory.reference, o) + g_bar

        theta = steps_along(direction, agent, memory.theta, block, eta, self.local_steps)
        return theta - memory.theta, memory


class SAGMemory(NamedTuple):
    """The operator of each component at the chain's last visit, and their average."""

    table: Float[Array, "N d"]
    mean: Theta


class MCSAG(AbstractMethod):
    r"""Steps along the average of the latest operators of all components; each step renews one of them.

    At component $v$ of $N$, with $h$ initially zero,

    $$\bar h \leftarrow \bar h + \tfrac1N \bigl(G_i(\theta, v) - h_v\bigr), \qquad
      \theta \leftarrow \theta + \eta\, \bar h, \qquad h_v \leftarrow G_i(\theta, v)$$

    (the operator at $\theta$ before the move), so components that have not been visited count as zero. The average is
    uniform over the components, however often the chain visits each: if its stationary distribution is not uniform, the
    root differs from `theta_star`. The method removes the noise of sampling but not the drift: heterogeneous agents
    with $H > 1$ keep a bias like Local SA's.

    The paper's method has one agent. Here each agent stores a table and the server averages the parameters after every
    `local_steps` steps. The user chooses the step size, whereas the paper's
    $1 / 2L(\tau_{hit} + \max_v (t - d_v))$ adapts to the time since the components were last visited.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `num_components`: $N$, the number of states of the chain that selects the component.
    - `local_steps`: $H$, the number of observations that each agent uses per round.

    Raises `ValueError` if `step_size` is not positive, `local_steps` is less than 1, or `num_components` does not match
    the problem's finite chain.

    !!! example
        >>> problem = fedhsa.problems.finite_sum.random(num_agents=1, num_components=3, dim=2)
        >>> result = fedhsa.simulate(problem, MCSAG(0.02, num_components=3, local_steps=5), rounds=500)
        >>> bool(result.error[0, -1] < 1e-18)   # despite the noise
        True

    !!! cite "Even (2023), Stochastic Gradient Descent under Markovian Sampling Schemes, MC-SAG"
    """

    num_components: int = eqx.field(static=True)
    local_steps: int = eqx.field(static=True)

    demands = Demand.NOTHING

    def __check_init__(self):
        _check.count("num_components", self.num_components)
        check_local_steps(self.local_steps)

    @property
    def block_length(self):
        return self.local_steps

    def init(self, theta):
        table = jnp.zeros((self.num_components, *theta.shape), theta.dtype)
        return Server(theta), SAGMemory(table, jnp.zeros_like(theta))

    @property
    def exchanges(self):
        return (Exchange("delta", send_theta, self._local_steps, move, mean_suffices=True),)

    def check(self, problem):
        source = problem.agents.source
        chain = source.source if isinstance(source, IID) else source
        if not isinstance(chain, FiniteChain):
            raise ValueError(
                "MCSAG requires observations that are numbers of components, from a FiniteChain, got those of "
                f"{type(chain).__name__}. Use a finite sum, `fedhsa.problems.finite_sum`."
            )
        if (N := chain.transition.shape[-1]) != self.num_components:
            raise ValueError(
                f"`num_components` must be {N}, the number of components of the problem, got {self.num_components}."
            )

    def _local_steps(self, theta_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)

        def step(carry, v):
            theta, (table, mean) = carry
            g = agent.operator(theta, v)
            mean = mean + (g - table[v]) / self.num_components
            return (agent.project(theta + eta * mean), SAGMemory(table.at[v].set(g), mean)), None

        (theta, memory), _ = jax.lax.scan(step, (theta_bar, memory), block, length=self.local_steps)
        return theta - theta_bar, memory

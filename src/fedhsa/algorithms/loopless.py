"""Methods without rounds of fixed length: after every step a shared coin decides whether the agents average."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import tree
from .._types import Theta
from .base import Exchange, PerAgent, check_probability
from .demands import Demand
from .graphs import AbstractGraph, check_graph
from .local import AbstractMethod, Server, move, send_theta
from .personalised import PersonalServer
from .scafflsa import previous_step
from .schedules import step_at


class Memory(NamedTuple):
    """An agent's memory: its parameter and its shift."""

    theta: Theta
    shift: Theta


class AbstractLoopless(AbstractMethod):
    """One round is one step of every agent; the coin at its start decides whether they take the average first.

    The server's parameter is always the average of the agents' parameters, whether or not they receive it. It follows
    their displacements, which a deployment sends as a sum when the coin says so.
    """

    probability: float

    def __check_init__(self):
        check_probability("probability", self.probability)

    @property
    def block_length(self):
        return 1

    def init(self, theta) -> tuple[Any, Memory]:
        return Server(theta), Memory(theta, jnp.zeros_like(theta))

    @property
    def exchanges(self):
        return (Exchange("step", send_theta, self._step, move, mean_suffices=True),)

    def average_cost(self, cost):
        return cost.communicating(self.probability)

    def _step(self, theta_bar, memory, agent, block, round):
        theta = jnp.where(round.happens(self.probability), theta_bar, memory.theta)
        shift = self._learn(memory.shift, theta - memory.theta, round.index)
        g = agent.operator(theta, agent.observe(theta, tree.take(block, 0)))
        step = step_at(self.step_size, round.index) * (g + shift)
        moved = theta + step
        projected = agent.project(moved)
        # Relative to the average where it was taken: the agents' mean then equals the server's to the last digit.
        return step if projected is moved else projected - theta, Memory(projected, shift)

    def _learn(self, shift: Theta, jump: Theta, round_index: Any) -> Theta:
        """The shift after the averaging has moved the agent by `jump`, which is zero if there was no averaging."""
        return shift + self.probability / previous_step(self.step_size, round_index) * jump


class LooplessSA(AbstractLoopless):
    r"""Local SA that averages at random after each step, instead of after a fixed number of steps.

    $$\hat\theta_i = \theta_i + \eta\, G_i(\theta_i, o_i), \qquad
      \theta_i \leftarrow \tfrac1M \sum_j \hat\theta_j \text{ with probability } p, \text{ else } \hat\theta_i$$

    A round is one step. On average it has $p$ exchanges with $p d$ numbers each way; $1/p$ plays the role of $H$. Like
    Local SA the method is biased if agents are heterogeneous. Even without noise it does not converge, but keeps moving
    near a biased point because the gaps between averages vary. `theta` is the average of the agents at all times,
    including between exchanges.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule; $\lambda$ for operators $G_i = T_i - \mathrm{Id}$.
    - `probability`: $p$, the probability of averaging after a step.

    Raises `ValueError` if `step_size` is not positive or `probability` is not in (0, 1].

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> fedhsa.cost(problem, LooplessSA(0.02, probability=0.25))
        Cost(exchanges=0.25, floats_down=0.75, floats_up=0.75, samples=1, evaluations=1)

    !!! cite "Malinovsky et al. (2020), arXiv:2004.01442, Algorithm 2"
    """

    demands = Demand.COMMUNICATES_BY_CHANCE

    def _learn(self, shift, jump, round_index):
        return shift


class Scaffnew(AbstractLoopless):
    r"""Local steps with learned shifts and averaging at random after each step (ProxSkip).

    $$\hat\theta_i = \theta_i + \gamma\,\bigl(G_i(\theta_i, o_i) + h_i\bigr), \qquad
      \theta_i \leftarrow \tfrac1M \sum_j \hat\theta_j \text{ with probability } p, \text{ else } \hat\theta_i, \qquad
      h_i \leftarrow h_i + \tfrac p\gamma (\theta_i - \hat\theta_i)$$

    A round is one step. On average it has $p$ exchanges with $p d$ numbers each way, and each agent stores $d$ numbers.
    Without noise the method converges to $\theta^\star$, with $h_i \to -\bar G_i(\theta^\star)$. With an average after
    every $H$-th step instead of the coin, and $p = 1/H$, it is SCAFFLSA. For strongly convex functions $\gamma = 1/L$
    and $p = 1/\sqrt\kappa$ are optimal. The paper's $h_i$ refers to gradients, so it has the opposite sign.

    All agents must share the coin. $\sum_i h_i = 0$ must hold at all times, so every reply must arrive. With a
    schedule, the drift is divided by the step size before the average.

    **Arguments:**

    - `step_size`: $\gamma$, a number or a schedule.
    - `probability`: $p$, the probability of averaging after a step.

    Raises `ValueError` if `step_size` is not positive or `probability` is not in (0, 1].

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> result = fedhsa.simulate(problem.noiseless(), Scaffnew(0.02, probability=0.2), rounds=2500, every=100)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "Mishchenko et al. (2022), arXiv:2202.09357, Algorithm 2"
    """

    demands = Demand.SHIFTS_SUM_TO_ZERO | Demand.COMMUNICATES_BY_CHANCE


class DecentralisedScaffnew(AbstractLoopless):
    r"""Scaffnew without a server: at random steps, agents move towards their neighbours on a graph.

    $$\hat\theta_i = \theta_i + \gamma\,\bigl(G_i(\theta_i, o_i) + h_i\bigr), \qquad
      \theta_i \leftarrow (1 - \mu)\,\hat\theta_i + \mu \sum_j W_{ij} \hat\theta_j \text{ with probability } p,
      \text{ else } \hat\theta_i, \qquad h_i \leftarrow h_i + \tfrac p\gamma (\theta_i - \hat\theta_i)$$

    A round is one step. Without noise all agents converge to $\theta^\star$ at a constant step size. `Gossip` around
    other methods leaves a consensus bias instead, which the shifts remove here. On a complete graph with $\mu = 1$ the
    method is `Scaffnew`. On average an agent sends $p d$ numbers to each of its neighbours. `theta` is the average of
    the agents.

    **Arguments:**

    - `step_size`: $\gamma$, a number or a schedule.
    - `probability`: $p$, the probability of communicating with the neighbours after a step.
    - `graph`: `Ring`, `Grid`, `Complete`, `RandomGraph` or `Mixing`, which defines $W$.
    - `mixing`: $\mu$ in (0, 1], the paper's $\gamma \tau / p$.

    Raises `ValueError` if `step_size` is not positive, `probability` or `mixing` is not in (0, 1], or `graph` is not a
    graph with as many agents as the problem.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> method = DecentralisedScaffnew(0.02, probability=0.2, graph=fedhsa.graphs.Ring(4))
        >>> result = fedhsa.simulate(problem.noiseless(), method, rounds=4000, every=100)
        >>> bool(result.error[0, -1] < 1e-20)
        True

    !!! cite "Mishchenko et al. (2022), arXiv:2202.09357, the decentralised form"
    """

    graph: AbstractGraph
    mixing: float = 1.0

    demands = Demand.SHIFTS_SUM_TO_ZERO

    def __check_init__(self):
        check_graph(self.graph)
        check_probability("mixing", self.mixing)

    def init(self, theta):
        own = jnp.broadcast_to(theta, (self.graph.num_agents, *theta.shape))
        return PersonalServer(theta, own), Memory(theta, jnp.zeros_like(theta))

    @property
    def exchanges(self):
        return (Exchange("step", self._send_mixed, self._step, self._follow),)

    def check(self, problem):
        check_graph(self.graph, problem)

    def average_cost(self, cost):
        sent = cost._replace(floats_up=self.graph.degree * cost.floats_up)
        return sent.communicating(self.probability)._replace(floats_down=0)

    def _mixed(self, server, round):
        return (1 - self.mixing) * server.own + self.mixing * (self.graph.weights(round) @ server.own)

    def _send_mixed(self, server, round):
        return PerAgent(self._mixed(server, round))

    def _follow(self, server, replies, round):
        stood = jnp.where(round.happens(self.probability), self._mixed(server, round), server.own)
        own = stood + replies.values
        return PersonalServer(jnp.mean(own, axis=0), own)

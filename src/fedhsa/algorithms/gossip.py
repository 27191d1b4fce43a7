"""Graph mixing instead of a server: every agent is its own server and averages over its neighbours."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import _check, tree
from .._types import Theta
from .base import PerAgent, Replies, checked_init, split
from .demands import Effect
from .graphs import AbstractGraph, check_graph
from .wrapper import AbstractWrapper


class GossipServer(NamedTuple):
    """The average of the agents' parameters, and the state of each agent as its own server."""

    theta: Theta
    servers: Any
    """Arrays with a leading axis, one entry per agent."""


class _FromNeighbours(Replies):
    """The replies that one agent receives: all neighbours have answered, and the weights already add up to one."""

    def mean(self):
        weights: Any = self.weights
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), self.values)

    @property
    def share(self):
        return 1.0


class Gossip(AbstractWrapper):
    r"""No server: agents send to their neighbours on a graph, and each averages the replies with weights $W_{ij}$.

    Every agent acts as the method's server for itself. At the end of a round its parameter is

    $$\theta_i \leftarrow \sum_j W_{ij}\,(\theta_j + \Delta_j) \quad \text{(combine last)}, \qquad
      \theta_i \leftarrow \sum_j W_{ij}\,\theta_j + \Delta_i \quad \text{(combine first)},$$

    where $\Delta_j$ is agent $j$'s own reply, computed at its own $\theta_j$. Replies of earlier exchanges (FedHSA's
    operators) are averaged with $W$. The reported parameter is the average of all $\theta_i$. On a complete graph,
    "last" is the method itself.

    At a constant step size agents disagree in proportion to the step size, which moves the average away from the root,
    also for FedHSA: a consensus bias of the order of the step size, in addition to the method's own bias. A step size
    that decreases to zero removes it.

    The cost has no traffic from a server; the replies go to each of an agent's neighbours, on average `graph.degree` of
    them. (The parameter needs no separate message: it is added to the last reply.)

    The weights of neighbours apply to unchanged parameters. Lost or coded replies, inside or outside, and methods whose
    shifts must add to zero are therefore not supported. "First" uses each agent's own reply instead of the average, and
    does not support methods that use the average for more than the displacement (SCAFFOLD, OneExchangeFedHSA,
    MomentumSA).

    **Arguments:**

    - `algorithm`: the method; it may be wrapped in `Thinned`, `Projected` or `ServerMomentum`, which act on each agent.
    - `graph`: `Ring`, `Grid`, `Complete`, `RandomGraph` or `Mixing`.
    - `combine`: `"last"` (after the step) or `"first"` (before it).

    Raises `ValueError` if `graph` or `combine` is not valid or the graph's number of agents differs from the problem's,
    and `TypeError` if the method does not support it.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3).noiseless()
        >>> graph = fedhsa.graphs.Ring(4)
        >>> result = fedhsa.simulate(problem, Gossip(fedhsa.FedHSA(0.01, local_steps=5), graph), rounds=200)
        >>> result.cost.floats_up           # two exchanges of 3 floats, each to 2 neighbours
        12.0

    !!! cite "Doan, Maguluri, Romberg (2019) and Zeng, Doan, Romberg (2022), arXiv:2010.15088: one step, combine first"
        Doan et al. also project, let all agents see one state, and average over time: `Projected`, `Averaged`.
    """

    graph: AbstractGraph
    combine: str = eqx.field(static=True, default="last")

    def __check_init__(self):
        check_graph(self.graph)
        _check.choice("combine", self.combine, ("last", "first"))

    @property
    def effects(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        own = Effect.KEEPS_OWN_REPLIES if self.combine == "first" else Effect.NOTHING
        return Effect.MIXES_THETAS | Effect.REPORTS_ANOTHER_THETA | own

    def init(self, theta):
        server, memory = checked_init(self.algorithm, theta)
        M = self.graph.num_agents
        return GossipServer(theta, jax.tree.map(lambda x: jnp.broadcast_to(x, (M, *x.shape)), server)), memory

    def _around(self, exchange, number):
        last = number == len(self.algorithm.exchanges) - 1

        def to_itself(server, agent, round):
            own, deliver = split(exchange.send(server, round))
            return deliver(tree.take(own, agent))

        def send(server, round):
            everyone = jnp.arange(self.graph.num_agents)
            return PerAgent(jax.vmap(lambda s, i: to_itself(s, i, round))(server.servers, everyone))

        def aggregate(server, replies, round):
            weights, servers = self.graph.weights(round), server.servers
            if last:
                servers = jax.vmap(self.algorithm.with_theta)(servers, weights @ servers.theta)
                weights = weights if self.combine == "last" else jnp.eye(len(weights), dtype=weights.dtype)
            if replies.weights is not None:
                weights = weights * (replies.weights / jnp.mean(replies.weights))[None]
            servers = jax.vmap(lambda s, w: exchange.aggregate(s, _FromNeighbours(replies.values, w), round))(
                servers, weights
            )
            return GossipServer(jnp.mean(servers.theta, axis=0), servers)

        return exchange._replace(send=send, aggregate=aggregate, mean_suffices=False)

    def check(self, problem):
        self.algorithm.check(problem)
        check_graph(self.graph, problem)

    def average_cost(self, cost):
        cost = self.algorithm.average_cost(cost)
        return cost._replace(floats_down=0, floats_up=self.graph.degree * cost.floats_up)

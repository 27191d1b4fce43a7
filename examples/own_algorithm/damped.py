"""A new algorithm: `FedHSA` with a damped correction.

    fedhsa compare --problem td --algorithm FedHSA LocalSA "examples/own_algorithm/damped.py:DampedHSA(trust=0.5)"

The correction of `FedHSA` keeps agents from drifting apart, but it uses one observation, whose noise enters all local
steps. Here the correction is multiplied by a factor below 1.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

import fedhsa as fh


class Server(NamedTuple):
    """The server's state: the parameter, and the operator averaged over the agents."""

    theta: jax.Array
    mean: jax.Array


class Memory(NamedTuple):
    """An agent's memory from the first exchange of a round to the second: its starting point and its operator there."""

    theta: jax.Array
    own: jax.Array


class DampedHSA(fh.AbstractAlgorithm):
    r"""Steps $\theta \leftarrow \theta + \eta (G_i(\theta, o) + \beta (\bar g - g_i))$, then averaging.

    With trust $\beta = 1$ it is `FedHSA`, and with $\beta = 0$ `LocalSA`.
    """

    step_size: float
    local_steps: int = eqx.field(static=True)  # it changes the compiled program
    trust: float = 0.5

    demands = fh.Demand.NOTHING  # replies may be lost, coded or weighted

    @property
    def block_length(self):
        return self.local_steps

    def init(self, theta):
        nothing = jnp.zeros_like(theta)
        return Server(theta, nothing), Memory(theta, nothing)

    @property
    def exchanges(self):
        return (
            fh.Exchange("operator", self._send_theta, self._first_operator, self._average),
            fh.Exchange("delta", self._send_mean, self._local_steps, self._move),
        )

    def _send_theta(self, server, round):
        return server.theta

    def _first_operator(self, theta, memory, agent, block, round):
        first = jax.tree.map(lambda x: x[0], block)
        own = agent.operator(theta, agent.observe(theta, first))
        return own, Memory(theta, own)

    def _average(self, server, replies, round):
        return server._replace(mean=replies.mean())

    def _send_mean(self, server, round):
        return server.mean

    def _local_steps(self, mean, memory, agent, block, round):
        correction = self.trust * (mean - memory.own)

        def step(theta, o):
            g = agent.operator(theta, agent.observe(theta, o))
            return agent.project(theta + self.step_size * (g + correction)), None

        theta, _ = jax.lax.scan(step, memory.theta, block, length=self.local_steps)
        return theta - memory.theta, memory

    def _move(self, server, replies, round):
        return server._replace(theta=server.theta + replies.mean())

"""Batches of random length: the multilevel estimator as a local direction."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .. import _check
from .._types import Theta
from .base import Exchange
from .demands import Demand
from .local import AbstractMethod, move, send_theta
from .schedules import step_at


class Batch(NamedTuple):
    """An agent's current batch: the parameter, the weighted sum so far, and the observations made and required."""

    theta: Theta
    total: Theta
    seen: Int[Array, ""]
    size: Int[Array, ""]


class MultilevelSA(AbstractMethod):
    r"""Local SA with batches of random length: the bias of a long batch at about the cost of a short one.

    For each step an agent draws $J$ with $P(J = j) = 2^{-j}$ and takes its next $2^J B$ observations; with $g_j$ the
    mean operator over the first $2^j B$ of them,

    $$\theta \leftarrow \theta + \eta\, g, \qquad g = g_0 + 2^J (g_J - g_{J-1}),$$

    If $J$ is above `max_level`, or the round has too few observations left, it uses $B$ observations and $g = g_0$.
    The mean of $g$ over $J$ is then exactly the mean operator over $2^L B$ observations, where $L$ is the largest
    possible level, while a step uses about $L B$ observations on average. An agent takes as many steps as its
    `samples` observations allow, then the server averages the displacements; every observation is evaluated once.

    The paper has one agent and no rounds, so it never runs out of observations.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `samples`: the number of observations that each agent uses per round, a multiple of `batch`.
    - `batch`: $B$, at least 1.
    - `max_level`: the largest $J$ in use; $2^{max\_level}$ is the paper's $M$.

    Raises `ValueError` if an argument is out of range or `samples` is not a multiple of `batch`.

    !!! example
        >>> problem = fedhsa.problems.td.random(num_agents=4, num_states=6, dim=3, laziness=0.8)
        >>> result = fedhsa.simulate(problem, MultilevelSA(0.05, samples=32), rounds=100)
        >>> bool(result.error[0, -1] < result.error[0, 0])
        True

    !!! cite "Beznosikov, Samsonov, Sheshukova, Gasnikov, Naumov, Moulines (2023), arXiv:2305.15938"
    """

    samples: int = eqx.field(static=True)
    batch: int = eqx.field(static=True, default=1)
    max_level: int = eqx.field(static=True, default=5)

    demands = Demand.NOTHING

    def __check_init__(self):
        _check.count("samples", self.samples)
        _check.count("batch", self.batch)
        _check.count("max_level", self.max_level, least=0)
        if self.samples % self.batch:
            raise ValueError(
                f"`samples` must be a multiple of `batch`, got {self.samples} and {self.batch}: "
                "the last observations of a round would not fill a batch."
            )

    @property
    def block_length(self):
        return self.samples

    @property
    def exchanges(self):
        return (Exchange("delta", send_theta, self._local_steps, move, mean_suffices=True),)

    def _local_steps(self, theta_bar, memory, agent, block, round):
        eta = step_at(self.step_size, round.index)
        zero = jnp.zeros((), jnp.int32)

        def observe(state, inputs):
            o, due, left = inputs
            begins = state.seen == 0
            size = jnp.where(begins, jnp.where(due <= left, due, self.batch), state.size)
            seen = state.seen + 1
            weight = estimator_weight(seen, size, self.batch).astype(theta_bar.dtype)
            total = state.total + weight * agent.operator(state.theta, agent.observe(state.theta, o))
            complete = seen == size
            return Batch(
                theta=jnp.where(complete, agent.project(state.theta + eta * total / self.batch), state.theta),
                total=jnp.where(complete, jnp.zeros_like(total), total),
                seen=jnp.where(complete, zero, seen),
                size=size,
            ), None

        left = self.samples - jnp.arange(self.samples, dtype=jnp.int32)
        start = Batch(theta_bar, jnp.zeros_like(theta_bar), zero, zero)
        inputs = block, self._batch_sizes(round.agent_key), left
        state, _ = jax.lax.scan(observe, start, inputs, length=self.samples)
        return state.theta - theta_bar, memory

    def _batch_sizes(self, key) -> Int[Array, " samples"]:
        """The length of a batch, for each position in the block at which it may begin."""
        bits = jax.random.bits(key, (self.samples,), dtype=jnp.uint32)
        level = 1 + jax.lax.clz(bits).astype(jnp.int32)  # each further leading zero is half as likely
        highest = min(self.max_level, (self.samples // self.batch).bit_length() - 1)  # longer batches never fit
        return self.batch << jnp.where(level > highest, 0, level)


def estimator_weight(position: Int[Array, ""], size: Int[Array, ""], batch: int) -> Int[Array, ""]:
    r"""The weight of the operator at the `position`-th observation of a batch in $B g$, so that a running sum suffices.

    $B g = B g_0 + 2^J B g_J - 2 \cdot 2^{J-1} B g_{J-1}$: weight one in $g_0$, one in $g_J$, minus two in $g_{J-1}$.
    """
    first, half = position <= batch, 2 * position <= size
    return first.astype(jnp.int32) + jnp.where(size > batch, 1 - 2 * half.astype(jnp.int32), 0)

"""Delayed replies, which arrive rounds after they were computed."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import _check, tree
from .._random import Stream
from .._types import Theta
from .base import Coded
from .channel import zero_replies
from .demands import Effect
from .wrapper import AbstractWrapper


class Sent(NamedTuple):
    """A reply, with the parameter of its computation; the queue has a leading axis."""

    reply: PyTree
    theta: Theta | tuple[()]


class Memory(NamedTuple):
    """The inner algorithm's memory, and the replies on their way, the latest first."""

    inner: Any
    queue: Sent


class Delayed(AbstractWrapper):
    r"""Replies arrive late: the server receives a reply computed in an earlier round, at the parameter of that round.

    $$\theta_{t+1} = \theta_t + \tfrac1M \sum_i \Delta_i(\theta_{t-\tau_i}), \qquad
      \tau_i \sim U\{1, \dots, \tau_{\max}\}$$

    The delays are independent between agents and rounds, or always $\tau_{\max}$. If nothing was computed $\tau$ rounds
    ago, as in the first rounds, the reply is zero. The delay-adaptive rule uses a reply only if
    $|\theta_t - \theta_{t-\tau}|$ is at most `threshold` (in the paper, the step size); otherwise the reply is zero.

    The paper has one agent; here each agent has a queue. A round with two exchanges, like FedHSA's, cannot be delayed,
    because the second exchange needs the result of the first.

    **Arguments:**

    - `algorithm`: the algorithm whose replies are late; it must have one exchange.
    - `max_delay`: $\tau_{\max}$, at least 1.
    - `threshold`: the largest admissible distance that the parameter has moved, or None to use every reply.
    - `random`: whether delays are random.

    Raises `ValueError` if `max_delay` is less than 1 or `threshold` is not positive, and `TypeError` if the algorithm
    has several exchanges.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=1, dim=3).noiseless()
        >>> late = Delayed(fedhsa.SA(0.1), max_delay=2, random=False)
        >>> path = fedhsa.simulate(problem, late, rounds=3, record=("theta",)).records["theta"][0]
        >>> (np.diff(path, axis=0) != 0).any(axis=1).tolist()                # nothing arrives in rounds 0 and 1
        [False, False, True]

    !!! cite "Adibi et al. (2024), Stochastic approximation with delayed updates, AISTATS"
    """

    max_delay: int = eqx.field(static=True)
    threshold: float | None = None
    random: bool = eqx.field(static=True, default=True)

    effects = Effect.DELAYS_REPLIES
    stage = Stream.DELAY

    def __check_init__(self):
        _check.count("max_delay", self.max_delay)
        if self.threshold is not None:
            _check.scalar("threshold", self.threshold, above=0.0)

    def init(self, theta):
        server, inner = self.algorithm.init(theta)
        (reply,) = zero_replies(self.algorithm, theta)
        empty = Sent(reply, () if self.threshold is None else theta)
        queue = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.max_delay, *x.shape)), empty)
        return server, Memory(inner, queue)

    def _around(self, exchange, number):
        def send(server, round):
            # The parameter is part of the inner message and is not sent twice.
            theta = () if self.threshold is None else Coded(server.theta, 0.0)
            return theta, exchange.send(server, round)

        def local(message, memory, agent, block, round):
            theta, message = message
            reply, kept = exchange.local(message, memory.inner, agent, block, round)
            arriving = self._arriving(memory.queue, theta, round)
            now = Sent(reply, () if theta == () else theta.values)
            queue = jax.tree.map(lambda q, x: jnp.concatenate([x[None], q[:-1]]), memory.queue, now)
            return arriving, Memory(kept, queue)

        return exchange._replace(send=send, local=local)

    def _arriving(self, queue: Sent, theta: Any, round: Any) -> PyTree:
        """The reply computed some rounds ago; zero if that is too old, or was before the first round."""
        rounds = round.drawn_by_agent(self.max_delay, Stream.DELAY) if self.random else self.max_delay - 1
        sent = tree.take(queue, rounds)
        if self.threshold is None:
            return sent.reply
        counts = jnp.linalg.norm(theta.values - sent.theta) <= self.threshold
        return jax.tree.map(lambda x: jnp.where(counts, x, 0), sent.reply)

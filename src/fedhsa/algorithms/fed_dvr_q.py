"""Fed-DVR-Q: batches, a reference that is renewed in every epoch, and replies of a few bits."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from .. import _check
from .._random import Stream
from .._types import Theta
from .base import Coded, own_key
from .codecs import AbstractCodec
from .demands import Demand
from .local import AbstractLocalSteps, operator_elsewhere
from .schedules import step_at


class Server(NamedTuple):
    """The server's state: the parameter, and the average operator at the reference."""

    theta: Theta
    g_bar: Theta


class Memory(NamedTuple):
    """An agent's memory: the reference, and the sum of its operators there over the recentring rounds so far."""

    reference: Theta
    collected: Theta


class Place(NamedTuple):
    """The position of a round in the schedule of epochs."""

    epoch: Any
    begins: Bool[Array, ""]
    """Whether the epoch begins with this round."""
    recentres: Bool[Array, ""]
    """Whether the round collects operators at the reference; otherwise it refines."""
    sends: Bool[Array, ""]
    """Whether the agents communicate: at the end of recentring, and in every refinement."""
    recentring: Any
    """The number of recentring rounds in the epoch."""


class FedDVRQ(AbstractLocalSteps):
    r"""Epochs that first estimate the average operator at a reference and then move by the changes relative to it.

    Epoch $k$ begins at $y = \bar\theta$. For $n_k$ rounds agent $i$ averages its operator there over $B$ observations
    each, without communication, and sends the mean $g_i$. Then $I$ rounds of refinement follow, each with $B$ fresh
    observations at both parameters and one exchange:

    $$\tilde g = \tfrac1M \sum_i C_k(g_i), \qquad
      \bar\theta \leftarrow \bar\theta + \tfrac1M \sum_i C_k\Bigl(\eta\,\bigl(\tfrac1B \textstyle\sum_{\ell<B}
      [G_i(\bar\theta, o_{i,\ell}) - G_i(y, o_{i,\ell})] + \tilde g\bigr)\Bigr).$$

    For Q-learning from a simulator, `problems.q_learning` with `synchronous=True`, $G = \hat T_o Q - Q$ and this is
    the paper's rule $Q_m = (1-\eta) Q + \eta\,(\hat T_m Q - \hat T_m y + \tilde T y)$, written for operators;
    it does not require a table. If observations depend on the parameter, those at $y$ carry importance weights.
    $C_k$ is an unbiased codec whose range shrinks by the factor `shrink` from epoch to epoch, as the messages do. After
    the last entry of `recentring` the last epoch repeats.

    The paper has equal agents. It chooses $I = \lceil 2/(\eta(1-\gamma)) \rceil$, samples for recentring
    $M B n_k \propto 4^k$, a range $\propto 2^{-k}/(1-\gamma)$ and $B \propto 1/(M (1-\gamma)^2)$, up to logarithms, and
    about $\log_2 \frac{1}{(1-\gamma)\epsilon}$ epochs for an error of $\epsilon$. Its text was not available, so the
    rule and the orders are unchecked, and the constants are left to the user. With heterogeneous agents the limit is
    the root of the average operator: each batch moves the parameter only once, so there is no drift.

    **Arguments:**

    - `step_size`: $\eta$, a number or a schedule.
    - `local_steps`: $B$, the number of observations that each agent averages over per round.
    - `recentring`: $n_0, n_1, \dots$, the number of recentring rounds in each epoch.
    - `refinements`: $I$, the number of refinement rounds in each epoch.
    - `codec`: $C_0$, for instance `codecs.Uniform(range, num_bits)`. None sends uncoded numbers.
    - `shrink`: the ratio of the range of $C_{k+1}$ to that of $C_k$, in (0, 1].

    The cost is that of an average round over the epochs of `recentring`, most of which may have no communication. Both
    operators are evaluated in every round, although recentring uses only one.

    Raises `ValueError` if an argument is out of range or `codec` is not unbiased.

    !!! example
        >>> model = fedhsa.environments.worlds.random(4, 3, 2, discount=0.8, heterogeneity=0.0)
        >>> problem = fedhsa.problems.q_learning.from_model(model, synchronous=True)
        >>> codec = fedhsa.codecs.Uniform(5.0, num_bits=8)
        >>> algorithm = FedDVRQ(0.5, 8, recentring=(1, 4, 16, 64), refinements=20, codec=codec)
        >>> result = fedhsa.simulate(problem, algorithm, rounds=165)
        >>> bool(result.error[0, -1] < 1e-3 * result.error[0, 0])
        True

    !!! cite "Salgia, Chi (2024), arXiv:2408.16981, Fed-DVR-Q"
    """

    recentring: tuple[int, ...] = eqx.field(static=True, converter=_check.counts)
    refinements: int = eqx.field(static=True, converter=_check.counts)
    codec: AbstractCodec | None = None
    shrink: float = 0.5

    demands = Demand.COLLECTS_OVER_ROUNDS | Demand.SKIPS_EXCHANGES

    def __check_init__(self):
        if not isinstance(self.recentring, tuple) or not self.recentring:
            raise ValueError(
                f"`recentring` must be a list of rounds, one entry for each epoch, got {self.recentring!r}. "
                "For instance `(1, 4, 16)`."
            )
        for rounds in self.recentring:
            _check.count("recentring", rounds)
        _check.count("refinements", self.refinements)
        _check.scalar("shrink", self.shrink, above=0.0, most=1.0)
        if self.codec is not None and not (isinstance(self.codec, AbstractCodec) and self.codec.unbiased):
            raise ValueError(
                f"`codec` must be unbiased, got {self.codec!r}: the parts it leaves out are not sent later. "
                "For instance `codecs.Uniform(range, num_bits=8)`."
            )

    @property
    def rounds(self) -> int:
        """The number of rounds that the epochs of `recentring` take."""
        return sum(self.recentring) + len(self.recentring) * self.refinements

    def init(self, theta):
        return Server(theta, jnp.zeros_like(theta)), Memory(theta, jnp.zeros_like(theta))

    def average_cost(self, cost):
        return cost.communicating(len(self.recentring) * (1 + self.refinements) / self.rounds)

    def place(self, round_index: Any) -> Place:
        """The position of a round in the schedule."""
        lengths = np.array(self.recentring) + self.refinements
        starts = np.cumsum(lengths) - lengths
        epoch = jnp.sum(round_index >= starts) - 1
        # The remainder matters only in the last epoch, which repeats.
        within = (round_index - jnp.asarray(starts)[epoch]) % jnp.asarray(lengths)[epoch]
        recentring = jnp.asarray(self.recentring)[epoch]
        recentres = within < recentring
        return Place(epoch, within == 0, recentres, ~recentres | (within == recentring - 1), recentring)

    def _send(self, server, round):
        return server.theta, server.g_bar

    def _local_steps(self, message, memory, agent, block, round):
        theta, g_bar = message
        at = self.place(round.index)
        reference = jnp.where(at.begins, theta, memory.reference)

        def add(total, o):
            o = agent.observe(theta, o)
            here, there = agent.operator(theta, o), operator_elsewhere(agent, reference, o, theta)
            return (total[0] + here, total[1] + there), None

        zero = jnp.zeros_like(theta)
        (here, there), _ = jax.lax.scan(add, (zero, zero), block, length=self.local_steps)
        here, there = here / self.local_steps, there / self.local_steps
        collected = jnp.where(at.begins, zero, memory.collected) + here
        step = step_at(self.step_size, round.index) * (here - there + g_bar)
        reply = self._code(jnp.where(at.recentres, collected / at.recentring.astype(theta.dtype), step), at, round)
        return reply, Memory(reference, collected)

    def _code(self, x, at, round):
        if self.codec is None:
            return jnp.where(at.sends, x, 0)
        codec = self.codec.scaled(self.shrink ** at.epoch.astype(x.dtype))
        arrived = codec(own_key(round.agent_key, Stream.CODING, 0), x)
        return Coded(jnp.where(at.sends, arrived, 0), float(codec.bits(x.size)))

    def _move(self, server, replies, round):
        if self.codec is not None:
            replies = replies._replace(values=replies.values.values)
        at, mean = self.place(round.index), replies.mean()
        theta = jnp.where(at.recentres, server.theta, server.theta + mean)
        return Server(theta, jnp.where(at.recentres, mean, server.g_bar))

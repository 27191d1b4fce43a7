"""Replies as whole numbers, whose sum is exact in every order and can be computed without seeing the summands."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .. import _check
from .base import Replies
from .demands import Effect
from .wrapper import AbstractWrapper, with_replies

TOO_LARGE = -(2**63)
"""A marker for a number that is out of range or not finite; no sum of numbers within the range equals it."""


class FixedPoint(AbstractWrapper):
    r"""Every number that agents send is rounded to fixed-point precision, and the server uses only the sums.

    Numbers become multiples of $2^{-b}$: agent $i$ sends $q_i = \mathrm{round}(2^b x_i)$ as whole numbers of 64 bits,
    and the server uses $2^{-b} \frac1M \sum_i q_i$ as the mean of the $x_i$. Rounding causes an error of at most
    $2^{-b-1}$; the sum is exact. This is the arithmetic of secure aggregation (`fedhsa deploy --secure-aggregation`),
    which runs this algorithm; here it is simulated.

    Numbers must be at most $2^{62-b} / M$ in absolute value, so that the sum cannot overflow; nothing is clipped.
    Beyond that range the mean is NaN and the run counts as diverged; in a deployment the site reports an error instead
    of replying. With 48 bits and 50 agents the range is $\pm 327$, with 40 bits $\pm 83886$.

    The server of the wrapped method may use only the mean of the replies. `Weighted` goes inside:
    `FixedPoint(Weighted(...))`, where $x_i$ is $M w_i / \sum_j w_j$ times the reply. `dtype="float64"` is required.

    **Arguments:**

    - `algorithm`: the method.
    - `bits`: $b$, the number of bits after the binary point, from 1 to 60.

    Raises `ValueError` if `bits` is out of range, and `TypeError` if the method's server needs more than the mean.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> method = fedhsa.FedHSA(0.02, local_steps=5)
        >>> rounded, plain = (fedhsa.simulate(problem, a, rounds=50).theta for a in (FixedPoint(method), method))
        >>> bool(0 < abs(rounded - plain).max() < 1e-14)
        True

    !!! cite "Bonawitz et al. (2017), Practical secure aggregation, for sums modulo a number; this package"
    """

    bits: int = eqx.field(static=True, default=48)

    effects = Effect.SENDS_WHOLE_NUMBERS

    def __check_init__(self):
        _check.count("bits", self.bits)
        _check.number(
            "bits", self.bits, most=60, remedy="The numbers have 64 bits, some of which are before the binary point."
        )
        for exchange in self.algorithm.exchanges:
            if not exchange.mean_suffices:
                raise TypeError(
                    f"FixedPoint cannot wrap {type(self.algorithm).__name__}: in its exchange {exchange.name!r} the "
                    "server needs the agents' individual replies, not only their mean. Use FedHSA, LocalSA, "
                    "SCAFFOLD or another method that averages."
                )

    @property
    def memory_lasts(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.algorithm.memory_lasts

    def largest(self, num_agents: int) -> float:
        """The largest absolute value that each of `num_agents` agents may send."""
        return 2.0 ** (62 - self.bits) / num_agents

    def _around(self, exchange, number):
        def rounded(reply, round):
            weight = 1.0 if exchange.mean_weights is None else _shares(exchange.mean_weights)[round.agent]
            return jax.tree.map(lambda x: self._whole(x * weight, round.num_agents), reply)

        def aggregate(server, replies, round):
            there = jnp.ones(round.num_agents) if replies.weights is None else replies.weights
            counts = there if exchange.mean_weights is None else there * _shares(exchange.mean_weights)
            total = jnp.sum(counts)
            total = jnp.where(total == 0, 1.0, total)

            def mean(whole: Int[Array, "agents ..."]) -> Float[Array, "1 ..."]:
                sums = jnp.sum(whole, axis=0, keepdims=True)
                refused = jnp.any(whole == TOO_LARGE, axis=0, keepdims=True)
                return jnp.where(refused, jnp.nan, sums.astype(float) * 2.0**-self.bits / total)

            return exchange.aggregate(server, Replies(jax.tree.map(mean, replies.values), None, replies.share), round)

        return with_replies(exchange, rounded)._replace(aggregate=aggregate, sum_bits=self.bits)

    def _whole(self, x: Float[Array, "..."], num_agents: int) -> Int[Array, "..."]:
        if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(
                "`dtype` must be 'float64' with FixedPoint, whose whole numbers have 64 bits, got 'float32'."
            )
        scaled = jnp.round(x.astype(float) * 2.0**self.bits)
        fits = jnp.abs(scaled) <= self.largest(num_agents) * 2.0**self.bits
        return jnp.where(fits, jnp.where(fits, scaled, 0.0).astype(jnp.int64), TOO_LARGE)


def _shares(weights: Float[Array, " agents"]) -> Float[Array, " agents"]:
    """The weights, scaled to a mean of one."""
    return weights / jnp.mean(weights)

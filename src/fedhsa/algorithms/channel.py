"""Unreliable channels: replies are lost on their way to the server, or add up in the air."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .. import _check
from .._random import Stream
from .._types import Theta
from .base import AbstractAlgorithm
from .demands import Effect
from .trace import exchange_shapes
from .wrapper import AbstractWrapper, with_replies


def zero_replies(algorithm: AbstractAlgorithm, theta: Theta) -> tuple[PyTree, ...]:
    """Zeros with the shapes of an agent's reply in each exchange, for memories that begin empty."""
    replies = tuple(reply for _, reply in exchange_shapes(algorithm, theta))
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), replies)


class Lossy(AbstractWrapper):
    r"""Each reply is lost with probability `loss`, independently in every exchange; a lost reply counts as zero.

    $$\tfrac1M \sum_i \tfrac{b_i}{1 - \text{loss}}\, x_i, \qquad b_i \sim \text{Bernoulli}(1 - \text{loss}).$$

    This average is unbiased. The agent does not learn that its reply is lost, and its memory is updated as usual.
    FedHSA loses anchors and displacements, so without noise it only comes within a distance of the root that shrinks
    with the step size.

    **Arguments:**

    - `algorithm`: the algorithm whose replies are lost.
    - `loss`: the probability of a loss, at least 0 and below 1.
    - `rescale`: whether to divide by $1 - \text{loss}$. QFedTD does not, which shortens its steps by this factor:
      it is `Lossy(Compressed(SynchronisedSA(...), Quantised(...)), loss, rescale=False)`.

    Raises `ValueError` if `loss` is out of range, and `TypeError` if the algorithm requires that every reply arrives.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> algorithm = Lossy(fedhsa.LocalSA(0.02, local_steps=1), loss=0.5)
        >>> fedhsa.simulate(problem, algorithm, rounds=10).error.shape
        (1, 11)

    !!! cite "Dal Fabbro, Mitra, Pappas (2023), arXiv:2305.08104"
    """

    loss: float
    rescale: bool = eqx.field(static=True, default=True)

    effects = Effect.LOSES_REPLIES | Effect.COUNTS_LOST_AS_ZERO
    stage = Stream.LOSS

    def __check_init__(self):
        _check.scalar("loss", self.loss, least=0.0, below=1.0, remedy="At 1 no reply would arrive.")

    def _around(self, exchange, number):
        def lose(reply, round):
            lost = round.happens_to_agent(self.loss, Stream.LOSS, number)
            scale = 1 / (1 - self.loss) if self.rescale else 1.0
            return jax.tree.map(lambda x: x * jnp.where(lost, 0, scale).astype(x.dtype), reply)

        return with_replies(exchange, lose)


class OverTheAir(AbstractWrapper):
    r"""All agents send simultaneously on one frequency: their replies fade and add up, and the receiver adds noise.

    $$\tfrac1M \Bigl(\sum_i h_i\, x_i + w\Bigr), \qquad E\,h_i = 1, \quad w \sim N(0, \text{noise\_std}^2 I)$$

    Each agent has a positive (lognormal) gain $h_i$ in each exchange. The noise remains when the replies vanish, so
    there is a noise floor even if nothing else is random.

    OAC-FedTD has this form around `SynchronisedSA`; the distribution of the gain is this package's choice.

    **Arguments:**

    - `algorithm`: the algorithm whose replies fade.
    - `gain_std`: the standard deviation of the gain, at least 0; its mean is 1.
    - `noise_std`: the standard deviation of the receiver's noise in each entry of the sum, at least 0.

    Raises `ValueError` if a standard deviation is negative, and `TypeError` if the algorithm requires exact replies.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> algorithm = OverTheAir(fedhsa.SynchronisedSA(0.02), gain_std=0.3, noise_std=0.1)
        >>> fedhsa.simulate(problem, algorithm, rounds=10).error.shape
        (1, 11)

    !!! cite "Dal Fabbro, Mitra, Heath, Schenato, Pappas (2025), Over-the-air federated TD learning, IEEE TWC"
    """

    gain_std: float
    noise_std: float

    effects = Effect.ADDS_IN_THE_AIR
    stage = Stream.AIR

    def __check_init__(self):
        _check.scalar("gain_std", self.gain_std, least=0.0)
        _check.scalar("noise_std", self.noise_std, least=0.0)

    def _around(self, exchange, number):
        def fade(reply, round):
            gain = round.gain_of_agent(self.gain_std, Stream.AIR, number)
            return jax.tree.map(lambda x: x * gain.astype(x.dtype), reply)

        def aggregate(server, replies, round):
            leaves, structure = jax.tree.flatten(replies.values)
            # The same noise for every agent, so that it appears once in the average over those that sent.
            sending = jnp.maximum(replies.share * round.num_agents, 1)
            noisy = [
                x + self.noise_std / sending * round.noise((1, *x.shape[1:]), x.dtype, Stream.AIR, number, leaf)
                for leaf, x in enumerate(leaves)
            ]
            return exchange.aggregate(server, replies._replace(values=structure.unflatten(noisy)), round)

        return with_replies(exchange, fade)._replace(aggregate=aggregate)

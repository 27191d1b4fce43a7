"""Robust aggregation: the server replaces the mean of the replies by a robust rule."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._random import Stream
from .base import Exchange, Replies
from .demands import Effect
from .rules import AbstractRule
from .wrapper import AbstractWrapper, check_one_per_exchange


class Robust(AbstractWrapper):
    r"""The server uses a robust aggregation rule instead of the mean of the replies, in every exchange.

    The rule is applied to each array of a reply separately. Replies that are not finite, and those of absent agents, do
    not count. The method sees the rule's vector as if every agent had sent it. The wrapper is innermost, because it
    needs the replies as the method defines them: `Partial(Compressed(Robust(...), ...), ...)`.

    Robustness has a price if no agent is Byzantine. A rule estimates the mean with more noise than the mean itself, and
    with heterogeneous agents it estimates a different point: FedHSA then steps along a vector that does not vanish at
    $\theta^\star$. In its second exchange the displacements differ little between agents, and the loss is small.

    **Arguments:**

    - `algorithm`: the method.
    - `rule`: one of `fedhsa.rules`; or a tuple with one for each exchange, where None is the mean.

    Raises `ValueError` if `rule` is not valid, and `TypeError` if the method requires the mean.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=20, dim=3).noiseless()
        >>> defended = Robust(fedhsa.FedHSA(0.02, local_steps=5), fedhsa.rules.CoordinateMedian())
        >>> attacked = fedhsa.Byzantine(defended, 0.05, (fedhsa.attacks.SignFlip(30.0), None))
        >>> fedhsa.simulate(problem, attacked, rounds=100).status.tolist()
        ['ok']

    !!! cite "Rules as in Yin et al. (2018), Pillutla et al. (2022), Fan et al. (2021); around FedHSA: this package"
    """

    rule: Any = eqx.field(converter=lambda rule: tuple(rule) if isinstance(rule, list) else rule)

    effects = Effect.REPLACES_THE_MEAN
    stage = Stream.RULE

    def __check_init__(self):
        check_one_per_exchange("rule", self.rule, self.algorithm, AbstractRule, "`CoordinateMedian()`")

    def _around(self, exchange, number):
        rule = self.rule[number] if isinstance(self.rule, tuple) else self.rule
        return exchange if rule is None else replace_mean(exchange, rule)


def replace_mean(exchange: Exchange, rule: AbstractRule) -> Exchange:
    """Returns the exchange with every reply replaced by the rule's vector."""

    def aggregate(server, replies, round):
        leaves, structure = jax.tree.flatten(replies.values)
        counts = jnp.full(len(leaves[0]), True) if replies.weights is None else replies.weights > 0
        for x in leaves:
            counts &= jnp.all(jnp.isfinite(x.reshape(len(x), -1)), axis=1)

        def estimate(x):
            rows = jnp.where(counts[:, None], x.reshape(len(x), -1), 0)
            return jnp.broadcast_to(rule(rows, counts).reshape(x.shape[1:]), x.shape)

        values = structure.unflatten([estimate(x) for x in leaves])
        return exchange.aggregate(server, Replies(values, counts.astype(leaves[0].dtype)), round)

    # The norm of the plain average would be meaningless.
    return exchange._replace(
        aggregate=aggregate, replies_are_operators=False, bears_any_reply=True, mean_suffices=False
    )

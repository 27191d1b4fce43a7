"""What a wrapper is: an algorithm around an algorithm, which changes one thing and leaves the rest."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx

from . import demands
from .base import AbstractAlgorithm, Exchange
from .demands import Demand, Effect


class AbstractWrapper(AbstractAlgorithm):
    """An algorithm that is another one but for what it overrides.

    A wrapper that keeps a state of its own has the inner server's (or agent's) state in it as `inner`.
    """

    algorithm: eqx.AbstractVar[AbstractAlgorithm]

    demands: ClassVar[Demand] = Demand.NOTHING
    """Nothing more than what it wraps."""
    effects: ClassVar[Any] = Effect.UNDECLARED
    """What it does to replies, agents and server; a property where this depends on settings."""

    def __check_init__(self):
        if not isinstance(self.algorithm, AbstractAlgorithm):
            raise ValueError(
                f"`algorithm` must be an algorithm, got {self.algorithm!r}. "
                f"Wrap one: `{type(self).__name__}(FedHSA(0.1, local_steps=10), ...)`."
            )
        demands.check(self)

    @property
    def layers(self):
        return (self, *self.algorithm.layers)

    @property
    def step_is_per_round(self):
        return self.algorithm.step_is_per_round

    @property
    def block_length(self):
        return self.algorithm.block_length

    def init(self, theta):
        return self.algorithm.init(theta)

    @property
    def exchanges(self):
        return self.algorithm.exchanges

    def with_theta(self, server, theta):
        return self.algorithm.with_theta(server, theta)

    def check(self, problem):
        self.algorithm.check(problem)

    def average_cost(self, cost):
        return self.algorithm.average_cost(cost)


def one_per_exchange(name: str, given: Any, algorithm: AbstractAlgorithm, kind: type, example: str) -> tuple:
    """What is given for all exchanges, once for each; or what is given for each of them, some of which may be None."""
    exchanges = [exchange.name for exchange in algorithm.exchanges]
    each = given if isinstance(given, tuple) else (given,) * len(exchanges)
    if len(each) != len(exchanges):
        raise ValueError(
            f"`{name}` must have one entry for each exchange, {', '.join(exchanges)}, got {len(each)}. Use None where "
            "nothing changes."
        )
    for entry in each:
        if not isinstance(entry, kind) and (entry is not None or given is None):
            raise ValueError(f"`{name}` must be one of `fedhsa.{name}s`, like {example}, got {entry!r}.")
    return each


def on_inner_server(exchanges: tuple[Exchange, ...], finish: Callable) -> tuple[Exchange, ...]:
    """The exchanges of an algorithm whose server's state is the part `inner` of a wrapper's.

    `finish(server, inner, round)` makes the wrapper's state at the end of the round.
    """

    def lift(exchange: Exchange, finish: Callable) -> Exchange:
        def send(server, round):
            return exchange.send(server.inner, round)

        def aggregate(server, replies, round):
            return finish(server, exchange.aggregate(server.inner, replies, round), round)

        return exchange._replace(send=send, aggregate=aggregate)

    *early, last = exchanges
    return *(lift(e, lambda server, inner, _: server._replace(inner=inner)) for e in early), lift(last, finish)

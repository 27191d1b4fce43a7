"""The contract of a wrapper: an algorithm around another algorithm that changes one aspect of it."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import PyTree

from .._types import Block
from . import demands
from .base import AbstractAlgorithm, Exchange, Round
from .demands import Demand, Effect


class AbstractWrapper(AbstractAlgorithm):
    """The base class of wrappers: an algorithm that behaves like the wrapped one except where it overrides it.

    A wrapper with its own state holds the inner server's (or agent's) state in it as `inner`. Creating a wrapper raises
    `ValueError` if `algorithm` is not an algorithm, and `TypeError` if the combination is not supported.

    !!! example
        >>> class Plain(AbstractWrapper):  # overrides nothing
        ...     effects = Effect.NOTHING
        >>> Plain(fedhsa.LocalSA(0.1, local_steps=5)).block_length
        5
    """

    algorithm: AbstractAlgorithm
    """The wrapped algorithm."""

    demands: ClassVar[Demand] = Demand.NOTHING
    """No requirements in addition to those of the wrapped algorithm."""
    effects: ClassVar[Any] = Effect.UNDECLARED
    """The effects on replies, agents and server; a property if they depend on settings."""

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

    def relative_to(self, origin):
        return eqx.tree_at(lambda a: a.algorithm, self, self.algorithm.relative_to(origin))

    @property
    def step_is_per_round(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.algorithm.step_is_per_round

    @property
    def block_length(self):
        return self.algorithm.block_length

    def init(self, theta):
        return self.algorithm.init(theta)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(self._around(exchange, number) for number, exchange in enumerate(self.algorithm.exchanges))

    def _around(self, exchange: Exchange, number: int) -> Exchange:
        """The wrapped algorithm's exchange of this number, with what the wrapper changes about it."""
        return exchange

    def with_theta(self, server, theta):
        return self.algorithm.with_theta(server, theta)

    def check(self, problem):
        self.algorithm.check(problem)

    def average_cost(self, cost):
        return self.algorithm.average_cost(cost)


def check_one_per_exchange(name: str, given: Any, algorithm: AbstractAlgorithm, kind: type, example: str) -> None:
    """Raises `ValueError` unless there is one entry for all exchanges or one for each, some of which may be None."""
    exchanges = [exchange.name for exchange in algorithm.exchanges]
    each = given if isinstance(given, tuple) else (given,)
    if isinstance(given, tuple) and len(each) != len(exchanges):
        raise ValueError(
            f"`{name}` must have one entry for each exchange, {', '.join(exchanges)}, got {len(each)}. Use None for an "
            "exchange that does not change."
        )
    for entry in each:
        if not isinstance(entry, kind) and (entry is not None or given is None):
            raise ValueError(f"`{name}` must be one of `fedhsa.{name}s`, like {example}, got {entry!r}.")


def with_replies(exchange: Exchange, change: Callable[[PyTree, Round], PyTree]) -> Exchange:
    """The exchange in which an agent sends `change(reply, round)` instead of its reply."""

    def local(message, memory, agent, block, round):
        reply, memory = exchange.local(message, memory, agent, block, round)
        return change(reply, round), memory

    return exchange._replace(local=local)


def with_blocks(exchange: Exchange, choose: Callable[[Block, Round], Block]) -> Exchange:
    """The exchange in which an agent uses the observations `choose(block, round)`."""

    def local(message, memory, agent, block, round):
        return exchange.local(message, memory, agent, choose(block, round), round)

    return exchange._replace(local=local)


def on_inner_server(exchanges: tuple[Exchange, ...], finish: Callable) -> tuple[Exchange, ...]:
    """The exchanges of an algorithm whose server state is the field `inner` of a wrapper's state.

    `finish(server, inner, round)` computes the wrapper's state at the end of the round.
    """

    def lift(exchange: Exchange, finish: Callable) -> Exchange:
        def send(server, round):
            return exchange.send(server.inner, round)

        def aggregate(server, replies, round):
            return finish(server, exchange.aggregate(server.inner, replies, round), round)

        return exchange._replace(send=send, aggregate=aggregate)

    *early, last = exchanges
    return *(lift(e, lambda server, inner, _: server._replace(inner=inner)) for e in early), lift(last, finish)

"""What an algorithm is: settings, a start, and the exchanges between server and agents that make up a round."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from .. import _check, _own
from .._random import Stream, fold_in
from .._types import Block, Key, Theta
from ..problems import AbstractAgent, Problem
from .demands import Demand, Effect
from .schedules import check_step_size as check_step_size


class Round(NamedTuple):
    """What server and agents know about the round they are in, without a message.

    `key` is the same for all of them, for coins that everyone must see; `agent_key` and `agent`, its number, are the
    agent's own, and None on the server. Observations have keys of their own, so using these leaves the data as they
    were.
    """

    index: Any
    key: Key
    agent_key: Key | None = None
    agent: Any = None
    num_agents: int = 1
    coin: Any = None
    """How the coin of `happens` falls, where it is not left to chance."""

    def happens(self, probability: Any) -> Bool[Array, ""]:
        """The round's coin, which is the same for the server and for all agents."""
        if self.coin is not None:
            return self.coin
        return jax.random.uniform(fold_in(self.key, Stream.COIN), dtype=jnp.result_type(probability)) < probability


class Replies(NamedTuple):
    """What the agents sent back in one exchange: arrays with a leading axis, one entry per agent.

    `weights` is None where all agents count equally; an agent that has not answered has weight 0.
    """

    values: PyTree
    weights: Float[Array, " agents"] | None = None
    pooled: Any = None
    """Where only the mean is known, which is then the one entry of `values`: the part of the agents it is over."""

    def mean(self) -> PyTree:
        """The average over the agents that answered; zero where none did."""
        if self.weights is None:
            return jax.tree.map(lambda v: jnp.mean(v, axis=0), self.values)
        total = jnp.sum(self.weights)
        weights = self.weights / jnp.where(total == 0, 1, total)
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), self.values)

    def mean_or(self, old: PyTree) -> PyTree:
        """The average over the agents that answered; `old` where none did."""
        return jax.tree.map(lambda new, old: jnp.where(self.share > 0, new, old), self.mean(), old)

    @property
    def share(self) -> Any:
        """The part of the agents that answered."""
        if self.pooled is not None:
            return self.pooled
        return 1.0 if self.weights is None else jnp.mean((self.weights != 0).astype(self.weights.dtype))


class PerAgent(eqx.Module):
    """The part of a message that is another for each agent: arrays with a leading axis, one entry per agent.

    An agent receives its own entry instead.

    !!! example
        >>> message = PerAgent(np.array([[0.1], [0.2]]))  # 0.1 for agent 0, 0.2 for agent 1
        >>> message.values[1]
        array([0.2])
    """

    values: PyTree


class Coded(eqx.Module):
    """A message that travels in fewer (or more) bits than the numbers it stands for.

    !!! example
        >>> Coded(np.array([1.0, -1.0]), bits=2).bits  # the signs of two numbers
        2
    """

    values: PyTree
    bits: float = eqx.field(static=True)


class Arrival(NamedTuple):
    r"""What arrives of a reply $x$, if that is linear in it and random on its own for every agent, exchange and round.

    $E\,\hat x = m\,x$ and $E\,\hat x \hat x^T = s\, x x^T + t\, \mathrm{diag}(x x^T)$; beside that the server's sum of
    the replies may have noise of its own.
    """

    mean: float = 1.0
    """$m$."""
    square: float = 1.0
    """$s$."""
    entries: float = 0.0
    """$t$."""
    added: float = 0.0
    """The variance of the noise in each entry of the sum."""

    def then(self, later: "Arrival") -> "Arrival":
        """What arrives if another stage follows."""
        return Arrival(
            self.mean * later.mean,
            self.square * later.square,
            self.square * later.entries + self.entries * (later.square + later.entries),
            self.added + later.added,
        )


class Cost(NamedTuple):
    """Per round and agent; on average, where not every round or not every agent communicates."""

    exchanges: float
    floats_down: float
    """Server to agent, in numbers of 64 bits; a coded message counts by its bits."""
    floats_up: float
    """Agent to server."""
    samples: float
    evaluations: float
    """Operator evaluations."""


class Exchange(NamedTuple):
    """One trip server -> agents -> server.

    Three pure functions that know nothing of how messages travel; the engine maps `local` over agents and seeds, a
    network runs it on each node. Every exchange of a round sees the same block of observations. A reply says how far
    to move or which way, never where to, so that none counts as zero.
    """

    name: str
    send: Callable[[Any, Round], PyTree]
    """`(server, round) -> message`, the same for all agents but for what is in a `PerAgent`."""
    local: Callable[[PyTree, Any, AbstractAgent, Block, Round], tuple[PyTree, Any]]
    """`(message, memory, agent, block, round) -> (reply, memory)`, for one agent."""
    aggregate: Callable[[Any, Replies, Round], Any]
    """`(server, replies, round) -> server`."""
    replies_are_operators: bool = False
    """Whether a reply is the agent's operator at the parameter, whose average a server may record the norm of."""
    bears_any_reply: bool = False
    """Whether `aggregate` leaves out what is not finite, so that such replies need not end a run."""
    mean_suffices: bool = False
    """Whether `aggregate` uses no more of the replies than their mean, and how many agents it is over."""
    mean_weights: Any = None
    """The agents' weights in this mean; None where all count equally."""
    sum_bits: int | None = None
    """Where replies are whole numbers of which only the sum is used: in units of 2 to the minus this."""


class AbstractAlgorithm(eqx.Module):
    """Settings as fields, the method as pure functions: a start, and the exchanges of one round.

    The server state is any pytree of arrays with an attribute `theta`, the parameter the method stands at: a named
    tuple, or an `eqx.Module`. The memory is what one agent keeps.
    """

    demands: ClassVar[Demand] = Demand.UNDECLARED
    """What the method demands of wrappers; as long as it is undeclared, those that change a run cannot wrap it."""
    effects: ClassVar[Any] = Effect.NOTHING
    """What a wrapper does to replies, agents and the server."""
    stage: ClassVar[Stream | None] = None
    """Where a wrapper is on a reply's way from the agent to the server, in the order of nesting; None if elsewhere."""
    first_exchange_is_one_evaluation: ClassVar[bool] = False
    """Whether the first exchange takes one observation and one evaluation, and messages like those of the others.

    If so, agents that are absent from the rest of a round can answer it too.
    """
    memory_lasts: ClassVar[bool] = True
    """Whether an agent's memory matters beyond the round; a simulation of many agents carries it along only then."""

    @property
    def layers(self) -> "tuple[AbstractAlgorithm, ...]":
        """The algorithm, what it wraps, and so on; the last is the method."""
        return (self,)

    @property
    def step_is_per_round(self) -> bool:
        """Whether `step_size` is that of a whole round, and not that of one observation."""
        return False

    @property
    @abc.abstractmethod
    def block_length(self) -> int:
        """How many observations of each agent a round uses."""

    @abc.abstractmethod
    def init(self, theta: Theta) -> tuple[Any, Any]:
        """The server's state and one agent's memory before the first round."""

    @property
    @abc.abstractmethod
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of a round, in order."""

    def with_theta(self, server: Any, theta: Theta) -> Any:
        """The server's state, standing at another parameter; to be overridden where a state has it more than once."""
        return eqx.tree_at(lambda state: state.theta, server, theta)

    def check(self, problem: Problem) -> None:
        """Raises if the problem is not one that this algorithm is for."""

    def arrival(self, size: int) -> Arrival | None:
        """What a wrapper lets arrive of replies of this size, if an `Arrival` says it; else None."""
        return None

    def average_cost(self, cost: Cost) -> Cost:
        """The cost of a round on average, given that of a round in which everything happens."""
        return cost


def checked_init(algorithm: AbstractAlgorithm, theta: Theta) -> tuple[Any, Any]:
    """The algorithm's start; raises if its server state is not what drivers and wrappers need."""
    server, memory = algorithm.init(theta)
    found = getattr(getattr(server, "theta", None), "shape", None)
    if found != theta.shape:
        what = "nothing" if found is None else f"an array of shape {found}"
        raise TypeError(
            f"The server state that `init` of {_own.named(type(algorithm))} returns must have the parameter, of shape "
            f"{theta.shape}, as `theta`, got {what} in {type(server).__name__}. Return a named tuple or an "
            "`eqx.Module` with it."
        )
    return server, memory


def split(message: PyTree) -> tuple[list, Callable[[list], PyTree]]:
    """What in a message is each agent's own, with a leading axis, and how to put an agent's entries back in place."""
    leaves, structure = jax.tree.flatten(message, is_leaf=lambda x: isinstance(x, PerAgent))
    own = [leaf.values for leaf in leaves if isinstance(leaf, PerAgent)]

    def deliver(entries: list) -> PyTree:
        left = iter(entries)
        return structure.unflatten([next(left) if isinstance(leaf, PerAgent) else leaf for leaf in leaves])

    return own, deliver


def check_local_steps(value: Any) -> None:
    """Raises if there is less than one local step."""
    _check.count("local_steps", value, remedy="Use `local_steps=1` to synchronise every step.")


def check_probability(name: str, value: Any) -> None:
    """Raises if the probability is not above 0 and at most 1."""
    _check.scalar(name, value, above=0.0, most=1.0, remedy="It is a probability: use a number above 0 and at most 1.")

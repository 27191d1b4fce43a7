"""The contract of an algorithm: settings, an initial state, and the exchanges between server and agents in a round."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _check, _own
from .._random import Stream, fold_in
from .._types import Block, Key, Theta
from ..problems import AbstractAgent, Problem
from .demands import Demand, Effect
from .schedules import check_step_size as check_step_size


class Round(NamedTuple):
    """The data of a round that the server and the agents share without a message.

    Observations use separate keys, so random numbers drawn from these keys leave the data unchanged.

    !!! example
        >>> round = Round(index=0, key=jax.random.key(0))
        >>> bool(round.happens(1.0))
        True
    """

    index: Any
    """The number of the round, from 0."""
    key: Key
    """A key that is the same for the server and all agents, for coins that they must share."""
    agent_key: Key | None = None
    """The agent's own key; None on the server."""
    agent: Any = None
    """The agent's number, from 0; None on the server."""
    num_agents: int = 1
    """The number of agents."""
    coin: Any = None
    """The result of `happens` where it is prescribed instead of random."""

    def happens(self, probability: Any) -> Bool[Array, ""]:
        """Whether an event of this probability happens in the round; the server and all agents get the same answer."""
        if self.coin is not None:
            return self.coin
        return jax.random.uniform(fold_in(self.key, Stream.COIN), dtype=jnp.result_type(probability, 1.0)) < probability

    def happens_to_agent(self, probability: Any, stage: int, number: int = 0) -> Bool[Array, ""]:
        """Whether an event of this probability happens to this agent, independently of the other agents.

        `stage` and `number` identify the event: the answer is the same whenever it is asked for in the round.
        """
        draw = jax.random.uniform(own_key(self.agent_key, stage, number), dtype=jnp.result_type(probability, 1.0))
        return draw < probability

    def drawn_by_agent(self, count: int, stage: int, number: int = 0) -> Int[Array, ""]:
        """One of the numbers below `count`, which are equally likely, drawn independently by this agent."""
        return jax.random.randint(own_key(self.agent_key, stage, number), (), 0, count)

    def agent_is_drawn(self, count: Any, stage: int) -> Bool[Array, ""]:
        """Whether this agent is among `count` agents, drawn without replacement; all sets are equally likely."""
        ranks = jax.random.permutation(own_key(self.key, stage, 0), self.num_agents)
        return ranks[self.agent] < count

    def gain_of_agent(self, std: Any, stage: int, number: int = 0) -> Float[Array, ""]:
        """A positive (lognormal) factor with mean 1 and this standard deviation, drawn independently by this agent."""
        variance = jnp.log1p(jnp.square(std))  # of the logarithm
        normal = jax.random.normal(own_key(self.agent_key, stage, number), dtype=jnp.result_type(variance))
        return jnp.exp(jnp.sqrt(variance) * normal - variance / 2)

    def coded_by_agent(self, codec: Any, x: Float[Array, " d"], stage: int, number: int = 0, leaf: int = 0) -> Array:
        """What is decoded from an agent's code of a vector; `leaf` separates the arrays of one exchange."""
        return codec(fold_in(own_key(self.agent_key, stage, number), leaf), x)

    def lasts_for_agent(self, up: Any, down: Any, state: Any, stage: int) -> tuple[Bool[Array, ""], Any]:
        """Whether something that comes and goes is there for this agent, and its new state, which is the same.

        It comes with probability `up` and goes with probability `down` from one round to the next, independently of the
        other agents, and is at first there as often as in the long run.
        """
        draw = jax.random.uniform(own_key(self.agent_key, stage, 0))
        there = jnp.where(self.index == 0, draw < up / (up + down), jnp.where(state, draw >= down, draw < up))
        return there, there

    def noise(self, shape: tuple[int, ...], dtype: Any, stage: int, number: int = 0, leaf: int = 0) -> Array:
        """Standard normal noise of the server; `leaf` separates the arrays of one exchange."""
        return jax.random.normal(fold_in(own_key(self.key, stage, number), leaf), shape, dtype)


def own_key(key: Key | None, stage: int, number: int) -> Key:
    """The key for the draws of one stage in one exchange, derived from the round's or the agent's `key`."""
    assert key is not None  # agents have keys
    return fold_in(fold_in(key, stage), number)


class Replies(NamedTuple):
    """The agents' replies in one exchange: arrays with a leading axis, one entry per agent.

    !!! example
        >>> replies = Replies(jnp.array([[1.0], [3.0], [8.0]]), weights=jnp.array([1.0, 1.0, 0.0]))  # agent 2 is absent
        >>> replies.mean().tolist()
        [2.0]
    """

    values: PyTree
    """The replies."""
    weights: Float[Array, " agents"] | None = None
    """The agents' weights: None if all agents count equally, 0 for an agent that has not answered."""
    pooled: Any = None
    """The share of agents in the mean, if only the mean is available, as the single entry of `values`; else None."""

    def mean(self) -> PyTree:
        """The average over the agents that answered; zero if no agent did."""
        if self.weights is None:
            return jax.tree.map(lambda v: jnp.mean(v, axis=0), self.values)
        total = jnp.sum(self.weights)
        weights = self.weights / jnp.where(total == 0, 1, total)
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), self.values)

    def mean_or(self, old: PyTree) -> PyTree:
        """The average over the agents that answered; `old` if no agent did."""
        return jax.tree.map(lambda new, old: jnp.where(self.share > 0, new, old), self.mean(), old)

    @property
    def share(self) -> Any:
        """The share of agents that answered."""
        if self.pooled is not None:
            return self.pooled
        return 1.0 if self.weights is None else jnp.mean((self.weights != 0).astype(self.weights.dtype))


class PerAgent(eqx.Module):
    """The part of a message that differs between agents. Each agent receives only its own entry.

    **Arguments:**

    - `values`: arrays with a leading axis, one entry per agent.

    !!! example
        >>> message = PerAgent(np.array([[0.1], [0.2]]))  # 0.1 for agent 0, 0.2 for agent 1
        >>> message.values[1]
        array([0.2])
    """

    values: PyTree


class Coded(eqx.Module):
    """A message whose size in bits differs from that of the numbers it holds.

    **Arguments:**

    - `values`: the numbers.
    - `bits`: the size of the message in bits.

    !!! example
        >>> Coded(np.array([1.0, -1.0]), bits=2).bits  # the signs of two numbers
        2
    """

    values: PyTree
    bits: float = eqx.field(static=True)


class Cost(NamedTuple):
    """The cost of a round per agent; the average cost if some rounds or some agents do not communicate.

    !!! example
        >>> Cost(exchanges=2, floats_down=6, floats_up=6, samples=10, evaluations=10).floats_up
        6
    """

    exchanges: float
    """The number of exchanges."""
    floats_down: float
    """The traffic from the server to an agent, in numbers of 64 bits; a `Coded` message counts by its bits."""
    floats_up: float
    """The traffic from an agent to the server, in numbers of 64 bits."""
    samples: float
    """The number of observations."""
    evaluations: float
    """The number of operator evaluations."""

    def communicating(self, share: float) -> "Cost":
        """The average cost if only this share of the exchanges takes place."""
        return self._replace(
            exchanges=share * self.exchanges, floats_down=share * self.floats_down, floats_up=share * self.floats_up
        )


class Exchange(NamedTuple):
    """One message from the server to the agents and their replies, as three pure functions.

    The functions do not depend on how messages travel: the engine maps `local` over agents and seeds, and a network
    runs it on each node. Every exchange of a round uses the same block of observations. A reply must be a displacement
    or a direction, not a position, because an absent reply counts as zero.

    !!! example
        >>> exchange = fedhsa.LocalSA(0.1, local_steps=5).exchanges[0]
        >>> exchange.name, exchange.mean_suffices
        ('delta', True)
    """

    name: str
    """A name for messages and files, unique within the round."""
    send: Callable[[Any, Round], PyTree]
    """`(server, round) -> message`. All agents receive the same message, except for the parts in a `PerAgent`."""
    local: Callable[[PyTree, Any, AbstractAgent, Block, Round], tuple[PyTree, Any]]
    """`(message, memory, agent, block, round) -> (reply, memory)`, for one agent."""
    aggregate: Callable[[Any, Replies, Round], Any]
    """`(server, replies, round) -> server`."""
    replies_are_operators: bool = False
    """Whether a reply is the agent's operator at the parameter; the norm of the average can then be recorded."""
    bears_any_reply: bool = False
    """Whether `aggregate` leaves out replies that are not finite, so that the run can continue."""
    mean_suffices: bool = False
    """Whether `aggregate` uses only the mean of the replies and the number of agents in it."""
    mean_weights: Any = None
    """The agents' weights in this mean; None if all agents count equally."""
    sum_bits: int | None = None
    """For replies that are integers and are used only through their sum: the unit is 2 to the power of minus this."""


class AbstractAlgorithm(eqx.Module):
    """The base class of algorithms: settings as fields, and pure functions for the initial state and the exchanges.

    A subclass implements `block_length`, `init` and `exchanges`. The server's state is any pytree of arrays with an
    attribute `theta`, the current parameter: a named tuple or an `eqx.Module`. An agent's memory is any pytree of
    arrays.

    !!! example
        >>> class Halved(fedhsa.LocalSA):  # Local SA whose server moves half as far
        ...     def _move(self, server, replies, round):
        ...         return self.with_theta(server, server.theta + 0.5 * replies.mean())
        >>> Halved(0.1, local_steps=5).block_length
        5
    """

    demands: ClassVar[Demand] = Demand.UNDECLARED
    """The method's requirements on wrappers. While it is undeclared, wrappers that change a run are refused."""
    effects: ClassVar[Any] = Effect.NOTHING
    """The effects of a wrapper on replies, agents and the server."""
    stage: ClassVar[Stream | None] = None
    """The wrapper's position on a reply's path from the agent to the server, in the order of nesting; else None."""
    step_is_per_round: ClassVar[bool] = False
    """Whether `step_size` belongs to a whole round rather than to one observation."""
    first_exchange_is_one_evaluation: ClassVar[bool] = False
    """Whether the first exchange takes one observation and one evaluation, and has messages like the other exchanges.

    If so, agents that are absent from the rest of a round can also answer it.
    """
    memory_lasts: ClassVar[bool] = True
    """Whether an agent's memory is used after the round ends; a simulation of many agents carries it only then."""

    @property
    def layers(self) -> "tuple[AbstractAlgorithm, ...]":
        """The algorithm, the algorithm that it wraps, and so on; the last entry is the method."""
        return (self,)

    def relative_to(self, origin: Any) -> "AbstractAlgorithm":
        """Returns the method for parameters measured from another origin, which differs if a setting is a point."""
        return self

    @property
    @abc.abstractmethod
    def block_length(self) -> int:
        """The number of observations that a round uses from each agent."""

    @abc.abstractmethod
    def init(self, theta: Theta) -> tuple[Any, Any]:
        """Returns the server's state and one agent's memory before the first round."""

    @property
    @abc.abstractmethod
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of a round, in order."""

    def with_theta(self, server: Any, theta: Theta) -> Any:
        """Returns the server's state at another parameter. Override it if the state holds the parameter twice."""
        return eqx.tree_at(lambda state: state.theta, server, theta)

    def check(self, problem: Problem) -> None:
        """Raises an error if the algorithm cannot run on this problem."""

    def average_cost(self, cost: Cost) -> Cost:
        """The average cost of a round, given the cost of a round in which every agent takes part in every exchange."""
        return cost


def checked_init(algorithm: AbstractAlgorithm, theta: Theta) -> tuple[Any, Any]:
    """Returns the algorithm's initial state; raises `TypeError` if the server's state lacks the parameter."""
    server, memory = algorithm.init(theta)
    found = getattr(getattr(server, "theta", None), "shape", None)
    if found != theta.shape:
        what = "nothing" if found is None else f"an array of shape {found}"
        raise TypeError(
            f"`init` of {_own.named(type(algorithm))} must return a server state with the parameter, of shape "
            f"{theta.shape}, as `theta`, got {what} in {type(server).__name__}. Return a named tuple or an "
            "`eqx.Module` that has it."
        )
    return server, memory


def split(message: PyTree) -> tuple[list, Callable[[list], PyTree]]:
    """Returns the per-agent parts of a message, with a leading axis, and a function that inserts an agent's entries."""
    leaves, structure = jax.tree.flatten(message, is_leaf=lambda x: isinstance(x, PerAgent))
    own = [leaf.values for leaf in leaves if isinstance(leaf, PerAgent)]

    def deliver(entries: list) -> PyTree:
        left = iter(entries)
        return structure.unflatten([next(left) if isinstance(leaf, PerAgent) else leaf for leaf in leaves])

    return own, deliver


def check_local_steps(value: Any) -> None:
    """Raises `ValueError` if `local_steps` is not a whole number of at least 1.

    **Arguments:**

    - `value`: the number of local steps.

    !!! example
        >>> check_local_steps(0)
        Traceback (most recent call last):
        ValueError: `local_steps` must be at least 1, got 0. Use `local_steps=1` to synchronise every step.
    """
    _check.count("local_steps", value, remedy="Use `local_steps=1` to synchronise every step.")


def check_probability(name: str, value: Any) -> None:
    """Raises `ValueError` if the probability is not above 0 and at most 1."""
    _check.scalar(name, value, above=0.0, most=1.0, remedy="It is a probability: use a number above 0 and at most 1.")

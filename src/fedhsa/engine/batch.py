"""The batched round: one agent's code mapped over all agents and seeds, and the loop over rounds around it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree

from .. import kernels, tree
from .._random import fold_in, fold_in_words
from .._types import Key, Theta
from ..algorithms import AbstractAlgorithm, Exchange, Replies, Round
from ..algorithms.base import checked_init, split
from ..algorithms.play import Driver, play
from ..problems import AbstractAgent
from .common import Common, common_once, for_each, is_common
from .record import is_float, take_snapshot

# Arrays of agents have axes (agents, seeds, ...), those of the server (seeds, ...), blocks (agents, steps, seeds, ...).


class Keys(NamedTuple):
    """Random keys: one per seed for everyone, and two per agent and seed, for its observations and decisions."""

    server: Key
    source: Key
    agent: Key


class Carry(NamedTuple):
    """The state between two rounds, from which a run continues bit for bit.

    It contains the memories of the agents if these are needed beyond a round.
    """

    server: PyTree
    memory: PyTree
    source: PyTree
    failed: Int[Array, " seeds"]
    """The round in which the seed diverged, or -1."""


KEYS_AXES = (("seeds",), ("agents", "seeds"), ("agents", "seeds"))
"""The leading axes of the arrays in each part of `Keys`."""
CARRY_AXES = (("seeds",), ("agents", "seeds"), ("agents", "seeds"), ("seeds",))
"""The same for `Carry`."""


class Setup(NamedTuple):
    """What does not change during a run."""

    agents: AbstractAgent
    """Their arrays may hold more than `num_agents` agents. The additional ones compute too, but nobody reads them."""
    algorithm: AbstractAlgorithm
    theta_star: Theta | None
    record: dict[str, Callable]
    num_agents: int
    group: int
    """The number of agents that go through the steps of a round together."""
    mesh: Mesh | None
    backend: str | None


def make_keys(key: Key, seeds: np.ndarray, agents: np.ndarray) -> Keys:
    """Derives keys that depend only on the key, the seed and the index of the agent."""
    of_seeds = fold_in_words(np.asarray(jax.random.key_data(key))[None], seeds)
    of_agents = fold_in_words(fold_in_words(of_seeds, 0), agents[:, None])
    words = fold_in_words(of_seeds, 1), fold_in_words(of_agents, 0), fold_in_words(of_agents, 1)
    return Keys(*(jax.random.wrap_key_data(jax.device_put(w), impl="threefry2x32") for w in words))


def keys_of_seed(key: Key, seed: Any, num_agents: int) -> Keys:
    """Derives the same keys for one seed, which may be traced. The keys of agents have a leading axis."""
    key = fold_in(key, seed)
    of_agents = fold_in(fold_in(key, 0), jnp.arange(num_agents))
    return Keys(fold_in(key, 1), fold_in(of_agents, 0), fold_in(of_agents, 1))


def positions(index: Any, length: int) -> Array:
    """The positions of the observations of a round in a trajectory. Position 0 is the initial state of the chain."""
    return index * length + 1 + jnp.arange(length)


def begin(setup: Setup, keys: Keys, theta: Theta) -> tuple[Carry, dict[str, Array]]:
    """The state before the first round, with every chain at position 0, and its first record."""
    algorithm, (M, K) = setup.algorithm, keys.source.shape
    server = jax.tree.map(lambda x: jnp.broadcast_to(x, (K, *x.shape)), checked_init(algorithm, theta)[0])
    carry = Carry(
        server=server,
        memory=fresh_memory(algorithm, theta, M, K) if algorithm.memory_lasts else (),
        source=start_sources(setup.agents, keys),
        failed=jnp.full(K, -1, dtype=jnp.int32),
    )
    first = observe(setup, carry, jnp.zeros((), int))
    return shard_carry(carry, setup.mesh), jax.tree.map(lambda v: v[None], first)


def fresh_memory(algorithm: AbstractAlgorithm, theta: Theta, num_agents: int, seeds: int) -> PyTree:
    """The memory of every agent before its first round."""
    memory = algorithm.init(theta)[1]
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_agents, seeds, *jnp.shape(x))), memory)


def start_sources(agents: AbstractAgent, keys: Keys) -> PyTree:
    """The initial states of all chains."""

    def init(agent, key):
        return agent.source.init(fold_in(key, 0))

    return tree.over_agents(jax.vmap(init, (None, 0)))(agents, keys.source)


def draw(
    agents: AbstractAgent, algorithm: AbstractAlgorithm, keys: Keys, source: PyTree, index: Any
) -> tuple[PyTree, PyTree]:
    """The chains after this round, and the blocks of observations that all of its exchanges use."""
    at = positions(index, algorithm.block_length)

    def of_agent(agent, keys, states):
        of_seed = jax.vmap(lambda key, state: agent.source.draw(fold_in(key, at), state), out_axes=(0, 1))
        return of_seed(keys, states)

    return tree.over_agents(of_agent)(agents, keys.source, source)


def send(exchange: Exchange, keys: Keys, server: PyTree, index: Any, num_agents: int) -> PyTree:
    """The server's message, once per seed."""
    return jax.vmap(lambda s, k: exchange.send(s, Round(index, k, num_agents=num_agents)))(
        server, fold_in(keys.server, index)
    )


def local(
    exchange: Exchange,
    agents: AbstractAgent,
    keys: Keys,
    message: PyTree,
    memory: PyTree,
    block: PyTree,
    index: Any,
    numbers: Array,
    num_agents: int,
    group: int,
) -> tuple[PyTree, PyTree]:
    """The replies and memories of some of the `num_agents` agents, computed for `group` agents at a time."""
    round_keys, agent_keys = fold_in(keys.server, index), fold_in(keys.agent, index)
    own = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), split(message)[0])
    if len(numbers) > num_agents:
        own = tree.take(own, numbers)

    def of_agent(agent, number, memory, block, agent_keys, own):
        def of_seed(message, memory, block, key, agent_key, own):
            mine = Round(index, key, agent_key, number, num_agents)
            return exchange.local(split(message)[1](own), memory, agent, block, mine)

        axes = (0, 0, 1, 0, 0, 0)
        return jax.vmap(of_seed, in_axes=axes)(message, memory, block, round_keys, agent_keys, own)

    others = (numbers, memory, block, agent_keys, own)
    if kernels.in_use():
        marked = jax.tree.map(lambda x: Common(x[0]) if len(x) == 1 < len(numbers) else x, agents)
        return common_once(of_agent, (marked, *others))
    # The seeds of an agent are mapped inside, so that they share what belongs to the agent alone, such as its features.
    return tree.over_agents(of_agent, group)(agents, *others)


def aggregate(exchange: Exchange, keys: Keys, server: PyTree, replies: Replies, index: Any, num_agents: int) -> PyTree:
    """The state of the server after the replies of all agents. Weights are the same for all seeds."""

    def of_seed(server, values, key):
        return exchange.aggregate(server, Replies(values, replies.weights), Round(index, key, num_agents=num_agents))

    return jax.vmap(of_seed, in_axes=(0, 1, 0))(server, replies.values, fold_in(keys.server, index))


def run_round(setup: Setup, keys: Keys, carry: Carry, index: Any, block: PyTree | None = None) -> Carry:
    """Runs one round for all agents and seeds. Sources that do not sample use a given block."""
    agents, algorithm, M, width = setup.agents, setup.algorithm, setup.num_agents, len(keys.source)
    # The chain advances once per round, so every exchange of a round uses the same block.
    source, block = draw(agents, algorithm, keys, carry.source, index) if block is None else (carry.source, block)
    numbers = jnp.minimum(jnp.arange(width), M - 1) if width > M else jnp.arange(M)
    driver = Driver(
        send=lambda e, server: send(e, keys, server, index, M),
        local=lambda e, message, memory: local(e, agents, keys, message, memory, block, index, numbers, M, setup.group),
        aggregate=lambda e, server, replies: aggregate(
            e, keys, server, Replies(tree.take(replies, slice(M))), index, M
        ),
    )
    if algorithm.memory_lasts:
        server, memory = play(algorithm, driver, carry.server, carry.memory)
        memory = jax.tree.map(lambda x: for_each(x, width), memory, is_leaf=is_common)
    else:
        start = fresh_memory(algorithm, carry.server.theta[0], width, len(carry.failed))
        server, memory = play(algorithm, driver, carry.server, start)[0], ()
    return Carry(server, memory, source, carry.failed)


def mark_diverged(carry: Carry, index: Any, bound: Any) -> Carry:
    """Marks the seeds whose parameter exceeded the bound in this round."""
    square = jnp.sum(carry.server.theta**2, axis=-1)
    diverged = ~(square <= bound**2) & (carry.failed < 0)
    return carry._replace(failed=jnp.where(diverged, (index + 1).astype(jnp.int32), carry.failed))


def advance(
    setup: Setup, keys: Keys, carry: Carry, first_round: Any, num_records: Any, bound: Any, every: int, capacity: int
) -> tuple[Carry, dict[str, Array]]:
    """Runs `num_records * every` rounds and returns the records, in buffers of size `capacity`."""

    def one_round(index, carry):
        with kernels.using(setup.backend):
            carry = run_round(setup, keys, carry, index)
        return shard_carry(mark_diverged(carry, index, bound), setup.mesh)

    def one_record(i, state):
        carry, buffers = state
        start = first_round + i * every
        if every == 1:
            carry = one_round(start, carry)
        else:
            carry = jax.lax.fori_loop(0, every, lambda j, c: one_round(start + j, c), carry)
        values = observe(setup, carry, start + every)
        return carry, jax.tree.map(lambda buffer, v: buffer.at[i].set(v), buffers, values)

    shapes = jax.eval_shape(lambda: observe(setup, carry, first_round))
    buffers = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), shapes)
    return jax.lax.fori_loop(0, num_records, one_record, (carry, buffers))


def observe(setup: Setup, carry: Carry, index: Any) -> dict[str, Array]:
    """The recorders' values after a round for every seed. They are infinite for seeds that have diverged."""
    agents = tree.for_each(tree.take(setup.agents, slice(setup.num_agents)), setup.num_agents)

    def of_seed(server, failed):
        values = take_snapshot(agents, server, index, setup.theta_star, setup.record)
        return {name: jnp.where(failed >= 0, jnp.inf, v) if is_float(v) else v for name, v in values.items()}

    return jax.vmap(of_seed)(carry.server, carry.failed)


def shard_carry(carry: Carry, mesh: Mesh | None) -> Carry:
    """Constrains agents and seeds to their places on `mesh`."""
    if mesh is None:
        return carry
    shardings = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in CARRY_AXES)
    return Carry(*map(jax.lax.with_sharding_constraint, carry, shardings))


def have_form(agents: AbstractAgent, algorithm: AbstractAlgorithm) -> bool:
    """Whether the operators of a block of observations have a form that the kernels support."""

    def of_one_agent(agents):
        agent, key = tree.take(agents, 0), jax.random.key(0)
        _, block = agent.source.draw(jnp.broadcast_to(key, algorithm.block_length), agent.source.init(key))
        return agent.form(block)

    return bool(jax.tree.leaves(jax.eval_shape(of_one_agent, agents)))


def bytes_per_seed(agents: AbstractAgent, algorithm: AbstractAlgorithm, theta: Theta, num_agents: int) -> int:
    """The memory that one seed needs during a round: its states, keys and block, and the temporaries of a step."""

    def of_one_agent(agents, theta):
        agent, key = tree.take(agents, 0), jax.random.key(0)
        state = agent.source.init(key)
        keys = jnp.broadcast_to(key, algorithm.block_length)
        temporaries = [theta] * 4
        return (state, agent.source.draw(keys, state), algorithm.init(theta), jax.random.key_data(keys), temporaries)

    shapes = jax.eval_shape(of_one_agent, agents, theta)
    return num_agents * sum(s.size * s.dtype.itemsize for s in jax.tree.leaves(shapes))

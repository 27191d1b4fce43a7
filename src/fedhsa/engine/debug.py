"""The slow, clear engine: no compilation, one agent at a time, errors that say where they happened."""

import contextlib
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .. import tree
from .._random import fold_in
from .._types import Key, Theta
from ..algorithms import AbstractAlgorithm, Replies, Round
from ..algorithms.base import split
from ..problems import AbstractAgent
from .record import Snapshot


def run_one_by_one(
    agents: AbstractAgent,
    algorithm: AbstractAlgorithm,
    key: Key,
    seed: int,
    theta: Theta,
    theta_star: Theta,
    rounds: int,
    every: int,
    bound: float,
    record: dict[str, Callable],
) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
    """One seed, written as the paper's loops are; gives the records, the last parameter and the round of failure."""
    num_agents = tree.leading_axis(agents)
    one = [tree.take(agents, i) for i in range(num_agents)]
    seed_key = fold_in(key, seed)
    server_key, agents_key = fold_in(seed_key, 1), fold_in(seed_key, 0)
    agent_keys = [fold_in(agents_key, i) for i in range(num_agents)]
    source_keys = [fold_in(k, 0) for k in agent_keys]
    own_keys = [fold_in(k, 1) for k in agent_keys]
    failed, history = -1, []

    def observe(index, server):
        snapshot = Snapshot(server.theta, theta_star, index, server, agents)
        history.append({name: np.asarray(function(snapshot)) for name, function in record.items()})

    with jax.disable_jit():
        server, memory = algorithm.init(theta)
        memories = [memory] * num_agents
        states = []
        for i, agent in enumerate(one):
            with _where(f"agent {i}, start of its source, seed {seed}"):
                states.append(agent.source.init(fold_in(source_keys[i], 0)))
        observe(0, server)
        for t in range(rounds):
            H = algorithm.block_length
            blocks = []
            for i, agent in enumerate(one):
                with _where(f"agent {i}, observations of round {t}, seed {seed}"):
                    keys = fold_in(source_keys[i], t * H + 1 + jnp.arange(H))
                    states[i], block = agent.source.draw(keys, states[i])
                    blocks.append(block)
            shared = Round(jnp.asarray(t), fold_in(server_key, t), num_agents=num_agents)
            for exchange in algorithm.exchanges:
                with _where(f"server, send of exchange {exchange.name!r}, round {t}, seed {seed}"):
                    own, deliver = split(exchange.send(server, shared))
                replies = []
                for i, agent in enumerate(one):
                    with _where(f"agent {i}, exchange {exchange.name!r}, round {t}, seed {seed}"):
                        mine = shared._replace(agent_key=fold_in(own_keys[i], t), agent=jnp.asarray(i))
                        message = deliver(tree.take(own, i))
                        reply, memories[i] = exchange.local(message, memories[i], agent, blocks[i], mine)
                        replies.append(reply)
                with _where(f"server, aggregate of exchange {exchange.name!r}, round {t}, seed {seed}"):
                    stacked = jax.tree.map(lambda *r: jnp.stack(r), *replies)
                    server = exchange.aggregate(server, Replies(stacked), shared)
            if failed < 0 and not float(jnp.sum(server.theta**2)) <= bound**2:
                failed = t + 1
            if (t + 1) % every == 0:
                observe(t + 1, server)
                if failed >= 0:
                    history[-1] = {name: np.full_like(v, np.inf) for name, v in history[-1].items()}
    return tree.stack(history), np.asarray(server.theta), failed


@contextlib.contextmanager
def _where(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{place}: {type(error).__name__}: {error}") from error

"""A slow and simple engine: no compilation, one agent at a time, and errors that name their location."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import tree
from .._random import fold_in
from .._types import Key, Theta
from ..algorithms import Round
from ..algorithms.play import Driver, one_seed, play, start
from .batch import Setup, keys_of_seed, positions
from .record import is_float, take_snapshot


def run_one_by_one(
    setup: Setup, key: Key, seed: int, theta: Theta, rounds: int, every: int, bound: float
) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
    """Runs one seed as plain loops. Returns the records, the last parameter and the round of failure."""
    agents, algorithm, num_agents, H = setup.agents, setup.algorithm, setup.num_agents, setup.algorithm.block_length
    server_key, source_keys, own_keys = keys_of_seed(key, seed, num_agents)
    failed, history = -1, []

    def observe(index, server):
        found = take_snapshot(agents, server, index, setup.theta_star, setup.record)
        values = {k: np.asarray(v) for k, v in found.items()}
        history.append({k: np.full_like(v, np.inf) if failed >= 0 and is_float(v) else v for k, v in values.items()})

    def init(agent, key):
        return agent.source.init(fold_in(key, 0))

    with jax.disable_jit():
        server, memory = start(algorithm, theta, num_agents)
        source = _one_by_one(init, f"initial state of its source, seed {seed}")(agents, source_keys)
        observe(0, server)
        for t in range(rounds):
            at = positions(t, H)

            def draw(agent, key, state, at=at):
                return agent.source.draw(fold_in(key, at), state)

            place = f"round {t}, seed {seed}"
            source, block = _one_by_one(draw, f"observations of {place}")(agents, source_keys, source)
            shared = Round(jnp.asarray(t), fold_in(server_key, t), num_agents=num_agents)
            driver = _with_locations(agents, block, shared, fold_in(own_keys, t), place)
            server, memory = play(algorithm, driver, server, memory)
            if failed < 0 and not float(jnp.sum(server.theta**2)) <= bound**2:
                failed = t + 1
            if (t + 1) % every == 0:
                observe(t + 1, server)
    return tree.stack(history), np.asarray(server.theta), failed


def _with_locations(agents: Any, block: Any, shared: Round, keys: Key, place: str) -> Driver:
    """The driver of one seed, with errors that name the part of the round in which they occurred."""

    def send(exchange, server):
        with _where(f"server, send of exchange {exchange.name!r}, {place}"):
            return one_seed(agents, block, shared, keys).send(exchange, server)

    def local(exchange, message, memory):
        def over_agents(function):
            return _one_by_one(function, f"exchange {exchange.name!r}, {place}")

        return one_seed(agents, block, shared, keys, over_agents).local(exchange, message, memory)

    def aggregate(exchange, server, replies):
        with _where(f"server, aggregate of exchange {exchange.name!r}, {place}"):
            return one_seed(agents, block, shared, keys).aggregate(exchange, server, replies)

    return Driver(send, local, aggregate)


def _one_by_one(function: Callable, place: str) -> Callable:
    """`jax.vmap(function)` as a loop over the agents."""

    def of_all(*arguments):
        found = []
        for i in range(tree.leading_axis(arguments[0])):
            with _where(f"agent {i}, {place}"):
                found.append(function(*tree.take(arguments, i)))
        return jax.tree.map(lambda *values: jnp.stack(values), *found)

    return of_all


@contextlib.contextmanager
def _where(place: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{place}: {type(error).__name__}: {error}") from error

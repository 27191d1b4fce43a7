"""What leaves a site: all bytes of a run are captured and searched for what is private.

Private are the observations, the states of the chains, and every array an agent is made of. A float64 is looked for by
its eight bytes, in both orders and rounded to float32; chains of small whole numbers by their bytes as every type that
travels. The same search must find what is meant to leave, and what an agent leaks.
"""

import equinox as eqx
import jax
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa import tree
from fedhsa.deploy import AbstractStream, MemoryTransport, Server, Site, Store, Task
from fedhsa.deploy.wire import unpack
from fedhsa.engine import batch

ROUNDS, LENGTH = 4, 5
PUBLIC = {0.0, 1.0, -1.0, 0.5}
"""Numbers that say nothing."""


class Wire(MemoryTransport):
    """Keeps every byte that passes."""

    def __init__(self, start, num_sites):
        super().__init__(start, num_sites)
        self.down, self.up = [], []

    def exchange(self, messages, seconds):
        self.down += messages.values()
        for reply in super().exchange(messages, seconds):
            self.up.append(reply)
            yield reply


def run(folder, agents, algorithm, dim, streams=None):
    """A run of three sites; gives the transport with what passed, and the sites."""
    task = Task(algorithm, 3, np.linspace(-1, 1, dim), key=3)

    def start(site):
        one = tree.take(agents, np.array([site]))
        own = None if streams is None else [streams[site]]
        return Site(task, one, [site], Store(folder / f"{site}.state", sync=False), "test", own)

    server = Server(task, wire := Wire(start, 3), [[0], [1], [2]], run="test")
    server.run(ROUNDS)
    return wire


def traces(values):
    """How private numbers would look in a message."""
    patterns = set()
    for leaf in values:
        array = np.asarray(leaf)
        if array.dtype.kind == "f":
            telling = np.array([x for x in array.ravel().tolist() if x not in PUBLIC])
            for kind in ("<f8", ">f8"):
                text = telling.astype(kind).tobytes()
                patterns |= {text[i : i + 8] for i in range(0, len(text), 8)}
            # Four bytes can meet by chance; a pair of neighbours cannot.
            pairs = telling.astype("<f4")
            patterns |= {pairs[i : i + 2].tobytes() for i in range(len(pairs) - 1)}
        elif array.size >= 8:  # a row of states
            for kind in ("<i4", "<i8", "u1"):
                patterns |= {row.astype(kind).tobytes() for row in array.reshape(-1, array.shape[-1]) if len(row) >= 8}
    return {pattern for pattern in patterns if len(set(pattern)) > 2}


def found_in(patterns, messages):
    text = b"".join(messages)
    return {pattern for pattern in patterns if pattern in text}


def observations(problem):
    """All states and blocks the run's chains went through, made again."""
    with jax.enable_x64(True):
        agents = tree.to_device(problem.flat_agents, "float64")
        keys = batch.make_keys(jax.random.key(3), np.arange(1), np.arange(3))
        state, seen = batch.start_sources(agents, keys), []
        algorithm, draw = fh.FedHSA(0.05, LENGTH), eqx.filter_jit(batch.draw)
        for t in range(ROUNDS):
            seen.append(tree.to_host(state))
            state, block = draw(agents, algorithm, keys, state, jax.numpy.asarray(t))
            seen.append(tree.to_host(block))
        return jax.tree.leaves(seen)


METHODS = {"FedHSA": fh.FedHSA(0.05, LENGTH), "SCAFFLSA": fh.SCAFFLSA(0.05, LENGTH)}


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("td", "FedHSA"),
        pytest.param("td", "SCAFFLSA", marks=pytest.mark.slow),
        pytest.param("quadratic", "FedHSA", marks=pytest.mark.slow),
        pytest.param("quadratic", "SCAFFLSA", marks=pytest.mark.slow),
    ],
)
def test_no_observation_state_or_private_array_is_in_any_message(case, name, tmp_path):
    """TD: features, rewards, discounts, transition matrices, states. Quadratic: matrices, vectors, observed noise."""
    problem = CASES[case]().problem
    wire = run(tmp_path, problem.flat_agents, METHODS[name], problem.dim)
    private = traces([*jax.tree.leaves(problem.flat_agents), *observations(problem)])
    assert len(private) > 100
    assert not found_in(private, wire.down + wire.up)
    exchanges = len(METHODS[name].exchanges)
    assert len(wire.up) == len(wire.down) == 3 * ROUNDS * exchanges
    for reply in wire.up:  # one vector as long as theta, and nothing else
        assert [array.shape for array in unpack(reply).arrays.values()] == [(1, problem.dim)]


def test_no_recorded_observation_is_in_any_message(tmp_path):
    problem = CASES["quadratic"]().problem
    data = np.random.default_rng(0).normal(size=(3, ROUNDS * LENGTH, problem.dim))
    wire = run(tmp_path, problem.replay(data).flat_agents, METHODS["FedHSA"], problem.dim)
    private = traces([data])
    assert len(private) == 3 * data.size - 1
    assert not found_in(private, wire.down + wire.up)
    states = [(tmp_path / f"{site}.state").read_bytes() for site in range(3)]
    assert not found_in(private, states)  # of a record, not even the state has more than a place


class Noise(AbstractStream):
    """Random numbers, all of which are remembered."""

    def __init__(self):
        self.shown = []

    @property
    def like(self):
        return np.zeros(4)

    def draw(self, generator, length):
        self.shown.append(generator.normal(size=(length, 4)))
        return self.shown[-1]


def test_no_observation_of_a_stream_is_in_any_message(tmp_path):
    problem, streams = CASES["quadratic"]().problem, [Noise(), Noise(), Noise()]
    wire = run(tmp_path, problem.flat_agents, METHODS["FedHSA"], problem.dim, streams)
    private = traces([block for stream in streams for block in stream.shown])
    assert len(private) > 500
    assert not found_in(private, wire.down + wire.up)
    # The site itself keeps its last block, to answer again: its file is as private as the data.
    assert found_in(private, [(tmp_path / f"{site}.state").read_bytes() for site in range(3)])


class Leaky(fh.AbstractAgent):
    """An agent whose operator is what it has just observed, or a number of its own."""

    source: fh.AbstractSource
    secret: np.ndarray

    def operator(self, theta, o, /):
        return o


def test_the_search_finds_what_is_sent_and_what_an_agent_leaks(tmp_path):
    data = np.random.default_rng(1).normal(size=(3, ROUNDS * LENGTH, 4))
    agents = Leaky(fh.sources.Replay(data), np.random.default_rng(2).normal(size=(3, 4)))
    wire = run(tmp_path, agents, METHODS["FedHSA"], 4)
    assert found_in(traces([data]), wire.up)
    assert not found_in(traces([data]), wire.down)  # the server sends only averages
    assert not found_in(traces([agents.secret]), wire.up)
    start = np.linspace(-1, 1, 4)
    assert found_in(traces([start]), wire.down)
    assert found_in(traces([unpack(wire.up[0]).arrays["value"]]), wire.up[:1])


def test_rows_of_states_would_be_found():
    states = np.random.default_rng(3).integers(0, 6, (3, 20))
    assert found_in(traces([states]), [b"before" + states[1].astype("<i4").tobytes() + b"after"])
    assert found_in(traces([states]), [states[2].astype("<i8").tobytes()])

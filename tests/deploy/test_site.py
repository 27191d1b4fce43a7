"""The agents' side: what a site answers, what it refuses, and what it keeps."""

import contextlib
import random

import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from federation import Federation, kill_at, requests, theta, word
from fedhsa.deploy import (
    AbstractStream,
    Faults,
    FederationError,
    Killed,
    MemoryTransport,
    Missing,
    Server,
    Site,
    Store,
    Task,
)
from fedhsa.deploy.server import hello
from fedhsa.deploy.wire import pack, unpack
from fedhsa.problems._live import Live, split_live
from fuzz import changed, mangle


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level("CRITICAL", "fedhsa.site")


@pytest.fixture
def asked(tmp_path):
    """A site that has not been asked anything yet, and what it will be asked in two rounds of FedHSA."""
    messages = requests(Federation(tmp_path / "elsewhere"), 2)
    return Federation(tmp_path).site(0, "test"), messages


WRONG = {
    "of another run": ("foreign", lambda m: changed(m, run="elsewhere")),
    "of another task": ("foreign", lambda m: changed(m, task="0" * 32)),
    "of another version": ("foreign", lambda m: b"fedhsa/2" + m[8:]),
    "to another site": ("foreign", lambda m: changed(m, first=1)),
    "to a larger site": ("foreign", lambda m: changed(m, agents=2)),
    "of another exchange's name": ("foreign", lambda m: changed(m, name="delta")),
    "of an exchange that is none": ("malformed", lambda m: changed(m, exchange=2)),
    "of a negative exchange": ("malformed", lambda m: changed(m, exchange=-1)),
    "of a round that counted before it was asked for": ("malformed", lambda m: changed(m, counted=0)),
    "of the last attempt of all": ("malformed", lambda m: changed(m, attempt=2**53 - 1)),
    "of a negative round": ("malformed", lambda m: changed(m, round=-1)),
    "of half a round": ("malformed", lambda m: changed(m, round=0.5)),
    "of no round": ("malformed", lambda m: changed(m, round=None)),
    "of a truth value for a round": ("malformed", lambda m: changed(m, round=False)),
    "of a huge round": ("malformed", lambda m: changed(m, round=10**400)),
    "of an endless round": ("malformed", lambda m: changed(m, round=12345).replace(b"12345", b"1e999")),
    "of another kind": ("malformed", lambda m: changed(m, kind="reply")),
    "of another shape": ("malformed", lambda m: changed(m, arrays=[["value", "float64", [2, 2]]])),
    "of another type": ("malformed", lambda m: changed(m, arrays=[["value", "uint64", [4]]])),
    "of another array": ("malformed", lambda m: changed(m, arrays=[["theta", "float64", [4]]])),
    "cut off": ("malformed", lambda m: m[:-1]),
    "too large": ("oversized", lambda m: pack(unpack(m).header, {"value": np.zeros(10_000)})),
    "not finite": ("non-finite", lambda m: pack(unpack(m).header, {"value": np.full(4, np.nan)})),
    "of a round that counted more than was answered": ("lost", lambda m: changed(m, counted=0, round=1)),
    "nothing": ("foreign", lambda m: b""),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_message_is_rejected_and_nothing_is_kept_of_it(wrong, asked, tmp_path, caplog):
    caplog.set_level("WARNING", "fedhsa.site")
    site, messages = asked
    code, spoil = WRONG[wrong]
    assert word(site.answer(spoil(messages[0]))) == code
    assert not (tmp_path / "sites" / "test" / "0.state").exists()
    assert code == "lost" or wrong == "of the last attempt of all" or not (tmp_path / "sites").exists()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"agent 0 rejected a message ({code})"]
    assert word(site.answer(messages[0])) == "reply"


def test_messages_out_of_order_are_rejected_and_repeated_ones_answered_as_before(asked):
    site, (first, second, third, fourth) = asked
    assert word(site.answer(second)) == "missed"
    replies = [site.answer(first), site.answer(second)]
    assert [site.answer(first), site.answer(second)] == replies
    other = changed(first, token="another")
    assert word(site.answer(other)) == "conflict"
    assert word(site.answer(fourth)) == "missed"
    later = site.answer(third)
    assert word(site.answer(second)) == "stale"
    assert site.answer(third) == later
    assert word(site.answer(fourth)) == "reply"


def test_a_new_attempt_has_the_same_observations_and_an_older_one_is_stale(asked):
    site, (first, second, *_) = asked
    replies = [unpack(site.answer(m)).arrays["value"].tobytes() for m in (first, second)]
    attempt = unpack(first).header["attempt"] + 1
    again = [unpack(site.answer(changed(m, attempt=attempt))).arrays["value"].tobytes() for m in (first, second)]
    assert again == replies
    assert word(site.answer(first)) == "stale"


@pytest.mark.parametrize("name", ["FedHSA", pytest.param("SCAFFOLD", marks=pytest.mark.slow)])
@pytest.mark.parametrize("lead", [0, 2**40], ids=["in a round", "in attempts too"])
def test_a_site_that_a_stranger_has_pushed_ahead_goes_on_with_the_honest_run(name, lead, tmp_path):
    """A request for round 2^52 in the run's name, before the server's own."""
    federation = Federation(tmp_path, name)
    server = federation.server()
    server.run(2)
    exchange, pushed = server.transport.exchange, []

    def push(messages, seconds):
        header, arrays = unpack(messages[1])
        if not pushed:
            ahead = header | {"round": 2**52, "attempt": header["attempt"] + lead - (lead == 0)}
            pushed.append(word(server.transport._ask(1, pack(ahead, arrays))))
        yield from exchange(messages, seconds)

    server.transport.exchange = push
    server.attempt += 1  # the stranger's number lies between the last one and the next
    progress = server.run(4)
    assert pushed == ["reply"]
    assert theta(progress).tobytes() == theta(Federation(tmp_path / "whole", name).server().run(4)).tobytes()
    assert len(federation.named("again")) == (lead > 0)


def test_a_site_whose_memory_a_stranger_has_thrown_away_says_so_and_does_not_go_on_with_another(tmp_path):
    """The request says that round 1, which counted, did not."""
    federation = Federation(tmp_path, "SCAFFOLD")
    server = federation.server(missing=Missing("wait", patience=0.2))
    server.run(2)
    header, arrays = unpack(requests(Federation(tmp_path / "elsewhere", "SCAFFOLD"), 3)[-1])
    assert word(server.transport._ask(0, pack(header | {"counted": 0}, arrays))) == "reply"
    with pytest.raises(FederationError, match="counted round 1, of which nothing is left here"):
        server.run(3)


def test_a_greeting_tells_who_is_there_and_how_far(asked):
    site, (first, *_) = asked
    greeting = hello(site.task, "test")
    assert unpack(site.answer(greeting)).header["round"] == -1
    assert not site.store.path.parent.exists()  # a name that somebody made up leaves nothing
    site.answer(first)
    header = unpack(site.answer(greeting)).header
    assert (header["kind"], header["first"], header["agents"], header["round"]) == ("present", 0, 1, 0)
    assert word(site.answer(hello(site.task, "other"))) == "foreign"


def test_what_belongs_to_another_run_or_other_agents_is_not_taken_up(asked, tmp_path):
    site, (first, *_) = asked
    site.answer(first)
    other = Federation(tmp_path).site(1, "test")
    other.store = Store(site.store.path, sync=False)
    assert unpack(other.answer(hello(site.task, "test"))).header["reason"].startswith("what is saved there belongs")


def test_a_damaged_state_is_not_taken_for_none(asked):
    site, (first, second, *_) = asked
    site.answer(first)
    site.store.path.write_bytes(site.store.path.read_bytes()[:-1])
    assert word(site.answer(second)) == "failed"
    assert word(site.answer(first)) == "failed"


@pytest.mark.parametrize(("numbers", "agents"), [([], 0), ([3], 1), ([-1], 1), ([0, 1], 1), ([0], 2)])
def test_agents_that_are_not_the_numbers_are_rejected(numbers, agents, tmp_path):
    federation = Federation(tmp_path)
    some = fh.tree.take(federation.problem.flat_agents, slice(0, max(agents, 1)))
    with pytest.raises(ValueError, match=r"`numbers` must say|`agents` must be as many"):
        Site(federation.task, some, numbers, Store(tmp_path / "a.state"), "test")


class Nowhere(Store):
    """A store that keeps nothing."""

    def save(self, header, arrays):
        pack(header, arrays)

    def load(self):
        return None

    @property
    def changed(self):
        return True

    @contextlib.contextmanager
    def alone(self, wait=True):
        yield


def check_site(folder, count, seed):
    messages = requests(Federation(folder))
    site = Federation(folder).site(0, "test")
    site.store = Nowhere(folder / "none")
    valid, chance, words = [*messages, site.answer(messages[0]), hello(site.task, "test")], random.Random(seed), {}
    for _ in range(count):
        reply = site.answer(mangle(valid, chance))
        found = word(reply)
        words[found] = words.get(found, 0) + 1
        assert len(reply) < 2000
    assert not words.keys() - {
        "foreign", "malformed", "oversized", "non-finite", "missed", "lost", "reply", "present", "diverged", "stale"
    }  # fmt: skip
    return words


def test_mangled_messages_are_answered_with_a_refusal_and_never_fail(tmp_path):
    """1,000 inputs made from all messages of a round."""
    words = check_site(tmp_path, 1_000, 0)
    assert words["malformed"] > 300
    assert words["foreign"] > 100


@pytest.mark.slow
def test_very_many_mangled_messages_are_answered(tmp_path):
    """100,000 inputs."""
    check_site(tmp_path, 100_000, 1)


# Observations from outside

LENGTH, ROUNDS = 3, 2


class Follower(fh.AbstractAgent):
    """Follows what it observes."""

    source: fh.AbstractSource
    speed: np.ndarray

    def operator(self, theta, o, /):
        return self.speed * (o - theta)


class Walk(AbstractStream):
    """A random walk in plain Python, which can be continued from where it was saved."""

    def __init__(self):
        self.place = [0.0, 0.0]

    @property
    def like(self):
        return np.zeros(2)

    def draw(self, generator, length):
        block = []
        for _ in range(length):
            self.place = [x + float(generator.normal()) for x in self.place]
            block.append(self.place)
        return np.array(block)

    def save(self):
        return {"place": np.array(self.place)}

    def restore(self, saved):
        self.place = saved["place"].tolist()


class Sensor(AbstractStream):
    """Something in the world: what it has shown it never shows again, whoever asks."""

    def __init__(self, world, number):
        self.world, self.number = world, number

    @property
    def like(self):
        return np.zeros(2)

    def draw(self, generator, length):
        start = len(self.world[self.number])
        block = np.array([[start + i, self.number + np.sin(start + i)] for i in range(length)])
        self.world[self.number].extend(block.tolist())
        return block


FOLLOWERS = Task(fh.SCAFFLSA(0.1, LENGTH), 2, np.zeros(2), key=5)


def live(folder, faults, kills=(), sensors=None):
    """A run of two agents with streams, the server killed on its way; gives theta."""

    def start(site):
        agent = Follower(fh.sources.Silent(), np.array([0.5 + site]))
        stream = Walk() if sensors is None else Sensor(sensors, site)
        return Site(FOLLOWERS, agent, [site], Store(folder / f"{site}.state", sync=False), "test", [stream])

    def begin():
        server = Server(FOLLOWERS, MemoryTransport(start, 2, faults), [[0], [1]], folder=folder, run="test")
        if server.store is not None:
            server.store.sync = False
        return server

    server = begin()
    for place in kills:
        server.phase = kill_at(place)
        try:
            return theta(server.run(ROUNDS))
        except Killed:
            server = begin()
            server.resume()
    return theta(server.run(ROUNDS))


@pytest.mark.parametrize("kind", ["walk", "sensor"])
def test_a_live_run_is_the_same_wherever_its_processes_end(kind, tmp_path):
    def world():
        return None if kind == "walk" else {0: [], 1: []}

    expected = live(tmp_path / "whole", Faults(schedule=[]), sensors=world())
    assert abs(expected).max() > 0.01
    faults = ["kill received", "kill computed", "kill saved", "lose reply", "late repeat", "repeat request"]
    for place in range(2 * ROUNDS):
        for fault in faults[place % 2 :: 2]:
            sensors = world()
            found = live(tmp_path / f"{place} {fault}", Faults(schedule=[None] * place + [fault]), [place], sensors)
            assert found.tobytes() == expected.tobytes()
            if sensors is not None:
                assert [len(shown) for shown in sensors.values()] == [ROUNDS * LENGTH] * 2


class Flaky(Sensor):
    def draw(self, generator, length):
        if self.world.setdefault("calls", 0) < 2:
            self.world["calls"] += 1
            raise OSError("unplugged")
        return super().draw(generator, length)


def test_a_stream_that_fails_does_not_let_its_neighbour_observe_twice(tmp_path):
    world = {0: [], 1: []}
    agents = Follower(fh.sources.Silent(), np.array([0.5, 1.5]))
    streams = [Sensor(world, 0), Flaky(world, 1)]
    site = Site(FOLLOWERS, agents, [0, 1], Store(tmp_path / "a.state", sync=False), "test", streams)
    server = Server(FOLLOWERS, MemoryTransport(lambda _: site, 1), [[0, 1]], run="test")
    server.run(1)
    assert (len(world[0]), len(world[1]), world["calls"]) == (LENGTH, LENGTH, 2)


def test_a_block_of_the_wrong_shape_is_said_to_be_one(tmp_path, caplog):
    caplog.set_level("ERROR", "fedhsa.site")

    class Short(Walk):
        def draw(self, generator, length):
            return super().draw(generator, length - 1)

    site = Site(
        FOLLOWERS, Follower(fh.sources.Silent(), np.ones(1)), [0], Store(tmp_path / "a.state"), "test", [Short()]
    )
    missing = Missing("fail")
    server = Server(FOLLOWERS, MemoryTransport(lambda _: site, 2), [[0], [1]], run="test", missing=missing)
    with pytest.raises(FederationError, match="ValueError; see the log"):
        server.run(1)
    assert "`draw` must return 3 observations of shapes (3, 2), got (2, 2)" in caplog.text


def test_agents_of_a_site_are_all_live_or_none():
    agent = Follower(fh.sources.Silent(), jnp.ones(1))
    assert split_live([agent]) == ([agent], None)
    walk = Walk()
    assert split_live([Live(agent, walk)]) == ([agent], [walk])
    with pytest.raises(ValueError, match="all be `Live`, or none"):
        split_live([agent, Live(agent, walk)])


def test_a_record_that_is_used_up_stops_the_run_and_is_not_read_again(tmp_path):
    whole = Federation(tmp_path).problem
    states = fh.sources.Transition(*np.random.default_rng(0).integers(0, 6, (2, 3, 7)))
    federation = Federation(tmp_path, problem=whole.replay(states))
    server = federation.server()
    with pytest.raises(FederationError, match=r"Round 3 .*the recorded observations are used up"):
        server.run(3)
    assert server.progress.round == 2

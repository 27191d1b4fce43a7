"""The server's side: who takes part, what is rejected, and how a run ends, stops and goes on."""

import functools
import itertools
import random

import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from federation import ALGORITHMS, Federation, kill_at, scripted, theta
from fedhsa import tree
from fedhsa.deploy import Faults, FederationError, Killed, MemoryTransport, Missing, RejectedError, Store, Task
from fedhsa.deploy import journal as journals
from fedhsa.deploy import server as deploy_server
from fedhsa.deploy.server import BOOT, _DivergedError, _RestartRoundError
from fedhsa.deploy.store import BusyError
from fedhsa.deploy.wire import pack, unpack, words
from fuzz import changed, mangle

H, STEP, ROUNDS = 3, 0.05, 5
SKIP = Missing("skip", patience=0.05)


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level("CRITICAL", "fedhsa.site")


# Who takes part


@functools.cache
def recorded(name):
    """A task on recorded observations, and the observations for a loop."""
    problem, G, record = CASES["quadratic"](3)
    replayed, listed = record(ROUNDS * H, np.random.default_rng(4))
    problem = problem.replay(replayed)
    start, example = np.linspace(-1, 1, problem.dim), tree.take(problem.flat_agents, 0)
    return Task(ALGORITHMS[name], 3, start, key=3, example=example), problem, G, listed


def fed_hsa(G, observations, x, begun, counted):
    """Algorithm 1 among those who take part; `begun[t]` have used a block of theirs, `counted[t]` are averaged."""
    position = [0] * len(observations)
    for t in range(len(counted)):
        blocks = {}
        for i in begun[t]:
            blocks[i] = observations[i][position[i] : position[i] + H]
            position[i] += H
        anchors = {i: G(i, x, blocks[i][0]) for i in counted[t]}
        g_bar = sum(anchors.values()) / len(anchors)
        deltas = []
        for i in counted[t]:
            y = x
            for o in blocks[i]:
                y = y + STEP * (G(i, y, o) + g_bar - anchors[i])
            deltas.append(y - x)
        x = x + sum(deltas) / len(deltas)
    return x


def scaffold(G, observations, x, begun, counted):
    """Option 2 with the paper's partial participation: control variates of the absent stay, c is divided by all."""
    M, position = len(observations), [0] * len(observations)
    c, c_i = np.zeros_like(x), [np.zeros_like(x) for _ in range(M)]
    for t in range(len(counted)):
        moves, changes = [], []
        for i in begun[t]:
            block = observations[i][position[i] : position[i] + H]
            position[i] += H
            if i not in counted[t]:
                continue
            y = x
            for o in block:
                y = y - STEP * (-G(i, y, o) - c_i[i] + c)
            new = c_i[i] - c + (x - y) / (H * STEP)
            moves.append(y - x)
            changes.append(new - c_i[i])
            c_i[i] = new
        x, c = x + sum(moves) / len(moves), c + sum(changes) / M
    return x


LOOPS = {"FedHSA": fed_hsa, "SCAFFOLD": scaffold}


@pytest.mark.parametrize("name", LOOPS)
def test_rounds_without_some_agents_are_those_of_a_loop_over_the_others(name, tmp_path):
    task, problem, G, listed = recorded(name)
    there = [{0, 1, 2}, {0, 2}, {1}, {0, 1, 2}, {1, 2}]
    server = scripted(
        federation := Federation(tmp_path, task=task, problem=problem), SKIP, gone=lambda t, e: {0, 1, 2} - there[t]
    )
    progress = server.run(ROUNDS)
    np.testing.assert_allclose(theta(progress), LOOPS[name](G, listed, task.theta, there, there), rtol=1e-12)
    assert [record.agents for record in progress.records] == [0, 3, 2, 1, 3, 2]
    assert [record.attempts for record in progress.records] == [0, 1, 1, 1, 1, 1]
    assert [event["absent"] for event in federation.named("round")] == [[], [1], [0, 2], [], [0]]
    # An absent agent is not asked for either exchange, and its chain waits.
    assert {(t, site) for t, _, site in server.transport.asked} == {(t, i) for t in range(ROUNDS) for i in there[t]}
    assert [header["blocks"] for header, _ in federation.saved()] == [3, 4, 4]


@pytest.mark.parametrize("name", LOOPS)
def test_an_agent_that_vanishes_within_a_round_has_no_part_in_it(name, tmp_path):
    """In round 1 agent 0 has answered everything, but its last reply is not heard; it has a memory to take back."""
    task, problem, G, listed = recorded(name)
    last = len(task.algorithm.exchanges) - 1
    counted = [{0, 1, 2}, {1, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}]
    federation = Federation(tmp_path, task=task, problem=problem)
    server = scripted(federation, SKIP, mute=lambda t, exchange: {0} if (t, exchange) == (1, last) else set())
    progress = server.run(ROUNDS)
    expected = LOOPS[name](G, listed, task.theta, [{0, 1, 2}] * ROUNDS, counted)
    np.testing.assert_allclose(theta(progress), expected, rtol=1e-12)
    assert [record.agents for record in progress.records] == [0, 3, 2, 3, 3, 3]
    assert [record.attempts for record in progress.records] == [0, 1, 2, 1, 1, 1]
    (missed,) = federation.named("missing")
    assert (missed["round"], missed["agents"], missed["why"]) == (2, [0], {"0": "nobody is there"})


def test_an_agent_that_is_gone_before_the_second_exchange_leaves_the_first_too(tmp_path):
    task, problem, G, listed = recorded("FedHSA")
    counted = [{0, 1, 2}, {0, 2}, {0, 2}, {0, 1, 2}, {0, 1, 2}]
    begun = [{0, 1, 2}, {0, 1, 2}, {0, 2}, {0, 1, 2}, {0, 1, 2}]
    federation = Federation(tmp_path, task=task, problem=problem)
    server = scripted(federation, SKIP, gone=lambda t, e: {1} if (t, e) == (1, 1) or t == 2 else set())
    progress = server.run(ROUNDS)
    np.testing.assert_allclose(theta(progress), fed_hsa(G, listed, task.theta, begun, counted), rtol=1e-12)
    first = [site for t, exchange, site in server.transport.asked if (t, exchange) == (1, 0)]
    assert first == [0, 1, 2, 0, 2]  # the round began again without it


def test_the_loops_notice_a_memory_that_was_not_taken_back():
    task, _, G, listed = recorded("SCAFFOLD")
    everyone, counted = [{0, 1, 2}] * 3, [{0, 1, 2}, {1, 2}, {0, 1, 2}]
    right = scaffold(G, listed, task.theta, everyone, counted)
    assert abs(right - scaffold(G, listed, task.theta, everyone, everyone)).max() > 1e-3
    assert abs(right - scaffold(G, listed, task.theta, counted, counted)).max() > 1e-3  # nor a chain that did not move


def test_a_method_that_needs_everyone_is_rejected_with_its_reason(tmp_path):
    with pytest.raises(ValueError, match=r"'skip' with SCAFFLSA, whose rounds need all agents.*add to zero.*'wait'"):
        Federation(tmp_path, "SCAFFLSA").server(missing=SKIP)


def test_too_few_agents_are_waited_for_and_then_the_run_stops(tmp_path):
    missing = Missing("skip", patience=0.2, at_least=2)
    federation = Federation(tmp_path)
    server = scripted(federation, missing, gone=lambda t, e: {0, 1} if t == 1 else set())
    with pytest.raises(FederationError, match=r"1 agents can be reached, the round needs 2 \(`at_least`\)"):
        server.run(3)
    assert server.progress.round == 1
    assert [event["round"] for event in federation.named("waiting")] == [2]
    seen = []
    server = scripted(federation, missing, gone=lambda t, e: seen.append(t) or ({0, 1} if len(seen) < 4 else {0}))
    server.resume()
    assert [record.agents for record in server.run(3).records] == [0, 3, 2, 2]
    with pytest.raises(ValueError, match="`at_least` must be at most 3"):
        federation.server(missing=Missing("skip", at_least=4))
    pair = Federation(tmp_path / "pair", sites=((0, 1), (2,)))
    assert pair.server(missing=Missing("skip", patience=0.1, at_least=3))._cohort() == {0, 1}  # three agents


def test_an_agent_that_is_said_to_be_there_but_never_answers_does_not_hold_up_too_small_a_round_for_ever(tmp_path):
    missing = Missing("skip", patience=0.1, at_least=3)
    server = scripted(Federation(tmp_path), missing, mute=lambda t, exchange: {2})
    with pytest.raises(FederationError, match="needs 3"):
        server.run(1)


@pytest.mark.slow
def test_waiting_ends_with_the_patience_and_the_run_can_go_on(tmp_path):
    federation = Federation(tmp_path)
    server = scripted(federation, Missing("wait", patience=0.1), gone=lambda t, e: {1} if (t, e) == (1, 1) else set())
    with pytest.raises(FederationError, match=r"Round 2 .* agent 1 did not answer within 0.1 s \(nobody is there\)"):
        server.run(3)
    assert federation.named("failed")[0]["round"] == 1
    again = federation.server()
    again.resume()
    whole = Federation(tmp_path / "whole").server().run(3)
    assert theta(again.run(3)).tobytes() == theta(whole).tobytes()


def test_waiting_does_not_keep_asking_without_a_pause(tmp_path):
    federation = Federation(tmp_path)
    server = scripted(federation, Missing("wait", patience=0.5), gone=lambda t, exchange: {1})
    with pytest.raises(FederationError):
        server.run(1)
    assert 5 < sum(site == 1 for _, _, site in server.transport.asked) < 20


class Broken(fh.AbstractAgent):
    """An agent whose code fails with words that nobody else should read."""

    source: fh.AbstractSource
    private: np.ndarray

    def operator(self, theta, o, /):
        raise RuntimeError("the patient is called Smith")


def broken(folder, action, patience):
    problem = CASES["quadratic"](3).problem.noiseless()
    task = Task(ALGORITHMS["LocalSA"], 3, np.zeros(problem.dim))
    federation = Federation(folder, task=task, problem=problem)
    whole = federation.site

    def site(number, run):
        if number != 1:
            return whole(number, run)
        agents = Broken(fh.sources.Silent(), np.zeros((1, 2)))
        return fh.deploy.Site(task, agents, [1], federation.store(1, run), run)

    federation.site = site
    return federation, federation.server(missing=Missing(action, patience=patience))


def test_fail_stops_at_once_when_an_agent_cannot_answer(tmp_path):
    _, server = broken(tmp_path, "fail", 1e6)
    with pytest.raises(FederationError, match=r"agent 1 cannot answer \(RuntimeError; see the log of the site\)"):
        server.run(2)


def test_the_words_of_an_error_stay_at_the_site(tmp_path, caplog):
    caplog.set_level("WARNING", "fedhsa.site")
    federation, server = broken(tmp_path, "wait", 0.05)
    with pytest.raises(FederationError, match="RuntimeError; see the log of the site") as stopped:
        server.run(1)
    assert "Smith" in caplog.text
    assert "Smith" not in str(stopped.value)
    assert "Smith" not in repr(federation.events)
    assert all(b"Smith" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("reason", ["as before", ""])
def test_a_site_that_refuses_twice_is_not_waited_for_whatever_it_says(reason, tmp_path, monkeypatch):
    monkeypatch.setattr(deploy_server, "words", lambda said: reason if "see the log" in str(said) else words(said))
    federation, server = broken(tmp_path, "wait", 2)
    with pytest.raises(FederationError, match="agent 1 cannot answer"):
        server.run(1)
    assert [event["event"] for event in federation.events].count("rejected") == 2


def test_skip_goes_on_without_an_agent_that_cannot_answer(tmp_path):
    _, server = broken(tmp_path, "skip", 1e6)
    assert [record.agents for record in server.run(2).records] == [0, 2, 2]


def test_a_site_that_has_lost_its_state_is_waited_for_since_the_right_one_may_come_back(tmp_path):
    federation = Federation(tmp_path)
    server = federation.server(missing=Missing("wait", patience=0.3))
    server.run(1)
    server.transport.sites.clear()
    path = federation.store(2, "test").path
    path.rename(path.with_suffix(".away"))
    with pytest.raises(FederationError, match=r"agent 2 .*counted round 0, but what is saved here ends at -1"):
        server.run(2)
    server.missing, asked = Missing("wait", patience=60), []

    def come_back(messages, seconds):
        asked.append(messages.keys())
        if len(asked) == 3:
            path.with_suffix(".away").rename(path)
        return MemoryTransport.exchange(server.transport, messages, seconds)

    server.transport.exchange = come_back
    assert theta(server.run(2)).tobytes() == theta(Federation(tmp_path / "whole").server().run(2)).tobytes()
    for action in ("skip", "fail"):
        server = federation.server(missing=Missing(action, patience=60))
        server.resume()
        path.unlink(missing_ok=True)
        if action == "skip":
            assert [record.agents for record in server.run(6).records][3:] == [2, 2, 2, 2]
        else:
            with pytest.raises(FederationError, match="agent 2 cannot answer"):
                server.run(7)


def test_a_site_that_lost_its_last_write_begins_the_round_again(tmp_path):
    """As after a loss of power where states are not synced: FedHSA's second exchange misses the first."""
    federation = Federation(tmp_path)
    server = federation.server()
    server.run(1)
    store = federation.store(0, "test")
    old, points = store.path.read_bytes(), iter(range(10))

    def phase(name):
        if name == "collected" and next(points) == 0:
            store.path.write_bytes(old)

    server.phase = phase
    progress = server.run(3)
    whole = Federation(tmp_path / "whole").server().run(3)
    assert theta(progress).tobytes() == theta(whole).tobytes()
    assert len(federation.named("again")) == 1
    assert progress.records[2].attempts == 2


def test_a_site_that_never_keeps_anything_does_not_hold_up_the_run_for_ever(tmp_path):
    federation = Federation(tmp_path)
    server = federation.server(missing=Missing("wait", patience=0.3))
    server.phase = lambda name: federation.store(0, "test").path.unlink(missing_ok=True)
    with pytest.raises(FederationError, match=r"agent 0 .*follows one that was not answered here"):
        server.run(1)


def test_a_site_with_other_settings_is_told_apart_from_one_that_is_absent(tmp_path):
    federation = Federation(tmp_path)
    other = Federation(tmp_path / "other", "LocalSA")
    server = federation.server(missing=Missing("wait", patience=0.05))
    server.transport.start = lambda site: (other if site == 2 else federation).site(site, "test")
    with pytest.raises(FederationError, match="agent 2 did not answer"):
        server.run(1)
    assert "its settings differ from the server's" in federation.named("rejected")[0]["why"]


# What is rejected


def first_replies(server):
    """What the sites say in the first exchange, and the server as it waits for it."""
    heard = {}
    exchange = server.transport.exchange

    def listen(messages, seconds):
        for site, message in messages.items():
            heard[site] = message, *exchange({site: message}, seconds)
        raise Killed
        yield

    server.transport.exchange = listen
    with pytest.raises(Killed):
        server.run(1)
    server.transport.exchange = exchange
    return {site: reply for site, (_, reply) in heard.items()}, {site: sent for site, (sent, _) in heard.items()}


WRONG = {
    "of another run": ("foreign", lambda reply: changed(reply, run="elsewhere")),
    "of another task": ("foreign", lambda reply: changed(reply, task="0" * 32)),
    "of another version": ("foreign", lambda reply: b"fedhsa/9" + reply[8:]),
    "of another round": ("stale", lambda reply: changed(reply, round=1)),
    "of another attempt": ("stale", lambda reply: changed(reply, attempt=1)),
    "of another exchange": ("stale", lambda reply: changed(reply, exchange=1)),
    "of a truth value for a round": ("stale", lambda reply: changed(reply, round=False)),
    "of a site that is none": ("foreign", lambda reply: changed(reply, first=7)),
    "of a site of another size": ("foreign", lambda reply: changed(reply, agents=2)),
    "in another site's name": ("foreign", lambda reply: changed(reply, first=1)),
    "of another kind": ("malformed", lambda reply: changed(reply, kind="greeting")),
    "cut off": ("malformed", lambda reply: reply[:-1]),
    "of another name": ("malformed", lambda reply: changed(reply, arrays=[["other", "float64", [1, 4]]])),
    "of another shape": ("malformed", lambda reply: changed(reply, arrays=[["value", "float64", [4]]])),
    "of another type": ("malformed", lambda reply: changed(reply, arrays=[["value", "int64", [1, 4]]])),
    "not finite": ("non-finite", lambda reply: again(reply, {"value": np.full((1, 4), np.inf)})),
    "not a number": ("non-finite", lambda reply: again(reply, {"value": np.full((1, 4), np.nan)})),
    "too large": ("oversized", lambda reply: again(reply, {"value": np.zeros((1, 500))})),
}


def again(reply, arrays):
    return pack(unpack(reply).header, arrays)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_reply_is_rejected_and_the_run_goes_on(wrong, tmp_path):
    code, spoil = WRONG[wrong]
    federation = Federation(tmp_path, "LocalSA")
    server = federation.server()
    exchange, spoilt = server.transport.exchange, []

    def meddle(messages, seconds):
        for reply in exchange(messages, seconds):
            if not spoilt:
                spoilt.append(reply)
                yield spoil(reply)
            else:
                yield reply

    server.transport.exchange = meddle
    progress = server.run(2)
    (rejected,) = federation.named("rejected")
    assert (rejected["code"], rejected["round"]) == (code, 1)
    assert rejected["why"]
    assert theta(progress).tobytes() == theta(Federation(tmp_path / "whole", "LocalSA").server().run(2)).tobytes()


def test_a_second_reply_of_the_same_site_does_not_count(tmp_path):
    federation = Federation(tmp_path, "LocalSA")
    server = federation.server()
    exchange = server.transport.exchange

    def twice(messages, seconds):
        for reply in exchange(messages, seconds):
            yield from (reply, again(reply, {"value": np.ones((1, 4))}), reply)

    server.transport.exchange = twice
    assert theta(server.run(2)).tobytes() == theta(Federation(tmp_path / "a", "LocalSA").server().run(2)).tobytes()


def check_replies(folder, count, seed):
    server = Federation(folder).server(folder=None)
    replies, requests = first_replies(server)
    valid, chance, taken = [*replies.values(), *requests.values()], random.Random(seed), 0
    for _ in range(count):
        data = mangle(valid, chance)
        try:
            site, values = server._read_reply(data, 0, 0)
        except (
            RejectedError,
            _RestartRoundError,
            _DivergedError,
            FederationError,
        ):  # the last three are said by who was asked
            continue
        taken += 1
        assert np.isfinite(values).all()
        assert site in (0, 1, 2)
    return taken


def test_mangled_replies_are_rejected_and_never_fail(tmp_path):
    """1,000 inputs made from all messages of an exchange."""
    check_replies(tmp_path, 1_000, 0)


@pytest.mark.slow
def test_very_many_mangled_replies_are_rejected(tmp_path):
    """100,000 inputs."""
    check_replies(tmp_path, 100_000, 1)


# How a run ends

BOTH = ("LocalSA", "SCAFFLSA"), ("float64", "float32")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("FedHSA", "float64"), *(pytest.param(*p, marks=pytest.mark.slow) for p in itertools.product(*BOTH))],
)
def test_a_step_that_is_too_large_ends_the_run_as_it_does_in_the_engine(name, dtype):
    problem = CASES["td"]().problem
    algorithm = getattr(fh, name)(1e30, 3)
    found = fh.deploy.federate(problem, algorithm, rounds=30, dtype=dtype)
    expected = fh.simulate(problem, algorithm, rounds=30, dtype=dtype)
    assert found.status.tolist() == ["diverged"]
    assert found.failed_round.tolist() == expected.failed_round.tolist()
    assert found.error.shape == expected.error.shape
    assert np.isfinite(found.error).tolist() == np.isfinite(expected.error).tolist()


def test_a_run_that_diverges_slowly_ends_in_the_round_in_which_it_does_in_the_engine(tmp_path):
    problem = CASES["quadratic"](3).problem
    algorithm = fh.LocalSA(10.0, 3)
    found = fh.deploy.federate(problem, algorithm, rounds=20, folder=tmp_path)
    expected = fh.simulate(problem, algorithm, rounds=20)
    assert 3 < found.failed_round[0] == expected.failed_round[0] < 20
    until = int(found.failed_round[0])
    np.testing.assert_allclose(found.error[0, :until], expected.error[0, :until], rtol=1e-9)
    assert list(journals.read(tmp_path))[-1]["event"] == "diverged"
    resumed = fh.deploy.federate(problem, algorithm, rounds=30, folder=tmp_path, resume=True)
    assert resumed.failed_round[0] == until
    assert resumed.error.shape == (1, 31)


def test_a_mean_that_overflows_ends_the_run_and_is_not_sent(tmp_path):
    class Huge(fh.AbstractAgent):
        source: fh.AbstractSource
        sign: np.ndarray

        def operator(self, theta, o, /):
            return jnp.full_like(theta, 1e308)

    problem = fh.Problem(Huge(fh.sources.Silent(), np.ones(3)), like=np.zeros(2), theta_star=np.zeros(2))
    result = fh.deploy.federate(problem, fh.FedHSA(0.1, 2), rounds=3, missing=Missing("wait", patience=30))
    assert result.failed_round.tolist() == [1]


def test_a_finished_run_can_be_resumed_as_it_is_and_for_more_rounds(tmp_path):
    federation = Federation(tmp_path)
    first = federation.server().run(2)
    server = federation.server()
    server.resume()
    assert repr(server.run(2).records) == repr(first.records)  # before the first round there is no norm
    assert not [event for event in federation.events[5:] if event["event"] == "round"]
    longer = federation.server()
    longer.resume()
    assert theta(longer.run(4)).tobytes() == theta(Federation(tmp_path / "whole").server().run(4)).tobytes()
    with pytest.raises(ValueError, match="`rounds` must be at least 4, the round of the checkpoint, got 3"):
        longer.run(3)


def test_the_same_server_can_be_asked_for_more_rounds(tmp_path):
    server = Federation(tmp_path).server()
    server.run(1)
    assert theta(server.run(3)).tobytes() == theta(Federation(tmp_path / "whole").server().run(3)).tobytes()


def test_a_checkpoint_of_another_run_is_rejected(tmp_path):
    Federation(tmp_path).server().run(1)
    other = Federation(tmp_path, "LocalSA").server()
    with pytest.raises(ValueError, match="belongs to another run: its algorithm"):
        other.resume()
    divided = Federation(tmp_path, sites=((0, 1), (2,))).server()
    with pytest.raises(ValueError, match=r"sites of \[1, 1, 1\] agents, got \[2, 1\]"):
        divided.resume()
    with pytest.raises(FileNotFoundError, match="no checkpoint to resume from"):
        Federation(tmp_path / "empty").server().resume()


def test_a_new_run_in_the_same_folder_sets_the_old_one_aside(tmp_path):
    federation = Federation(tmp_path)
    federation.server(run="first").run(1)
    old = (tmp_path / "server.state").read_bytes(), (tmp_path / "log.jsonl").read_bytes()
    federation.server(run="second").run(1)
    assert ((tmp_path / "server-1.state").read_bytes(), (tmp_path / "log-1.jsonl").read_bytes()) == old
    assert [event["run"] for event in journals.read(tmp_path) if "run" in event] == ["second"]


def test_a_second_server_in_the_same_folder_is_rejected(tmp_path):
    federation = Federation(tmp_path)
    server, rejections = federation.server(), []

    def start_another(name):
        second = federation.server()
        second.resume()
        with pytest.raises(BusyError, match="Another process is working in"):
            second.run(2)
        rejections.append(name)

    server.phase = start_another
    assert server.run(1).round == 1
    assert len(rejections) == 6
    assert not [event for event in federation.events if event["event"] == "resumed"]


def test_a_server_that_was_overtaken_takes_up_what_the_other_did(tmp_path):
    federation = Federation(tmp_path)
    first = federation.server()
    first.run(1)
    second, third = federation.server(), federation.server()
    second.resume()
    third.resume()
    second.run(2)
    progress = third.run(3)
    assert third.boots == 3
    assert [record.attempts for record in progress.records] == [0, 1, 1, 1]
    assert theta(progress).tobytes() == theta(Federation(tmp_path / "whole").server().run(3)).tobytes()


def test_an_old_checkpoint_that_was_restored_is_noticed(tmp_path):
    federation = Federation(tmp_path)
    federation.server().run(1)
    old = (tmp_path / "server.state").read_bytes()
    again = federation.server()
    again.resume()
    again.run(3)
    (tmp_path / "server.state").write_bytes(old)
    third = federation.server()
    third.resume()
    with pytest.raises(FederationError, match="is ahead of this server's checkpoint"):
        third.run(3)


def test_the_journal_tells_what_happened_and_survives_half_a_line(tmp_path):
    federation = Federation(tmp_path)
    server = federation.server()
    server.phase = kill_at(7)
    with pytest.raises(Killed):
        server.run(2)
    with open(tmp_path / "log.jsonl", "ab") as file:
        file.write(b'{"time": "2030-01-01", "event": "rou')
    assert [event["event"] for event in journals.read(tmp_path)] == ["started", "round"]
    again = federation.server()
    again.resume()
    again.run(2)
    events = list(journals.read(tmp_path))
    assert [event["event"] for event in events] == ["started", "round", "resumed", "round", "finished"]
    assert [event["round"] for event in events] == [0, 1, 1, 2, 2]
    assert events == federation.events


def test_an_error_of_a_transport_is_in_the_journal(tmp_path):
    federation = Federation(tmp_path)
    server = federation.server()

    def fall_over(messages, seconds):
        raise OSError("the cable was cut")

    server.transport.exchange = fall_over
    with pytest.raises(OSError, match="cable"):
        server.run(1)
    assert federation.named("failed")[0]["why"] == "OSError: the cable was cut"


@pytest.mark.parametrize("run", ["../up", "", "a/b", ".", "a" * 65, "a\n"])
def test_the_name_of_a_run_leads_out_of_no_folder(run, tmp_path):
    if run != "":  # which means: any name
        with pytest.raises(ValueError, match="`run` must be"):
            Federation(tmp_path).server(run=run)
    with pytest.raises(ValueError, match="`run` must be"):
        Federation(tmp_path).site(0, run)


@pytest.mark.parametrize("sites", [[[0], [1]], [[0, 2], [1]], [[0, 1, 2], []], [[0, 1, 2, 3]]])
def test_sites_that_are_not_all_agents_in_order_are_rejected(sites, tmp_path):
    with pytest.raises(ValueError, match="`sites` must list the agents 0 to 2 in order"):
        Federation(tmp_path, sites=sites).server()


def test_the_policy_is_in_the_result(tmp_path):
    problem = CASES["td"]().problem
    result = fh.deploy.federate(problem, ALGORITHMS["FedHSA"], rounds=1, missing=Missing("skip", 5.0, 2))
    assert result.settings["deploy"]["missing"] == {"action": "skip", "patience": 5.0, "at_least": 2}


@pytest.fixture
def short_tails(monkeypatch):
    """Checkpoints that hold two records themselves."""
    monkeypatch.setattr("fedhsa.deploy.server.TAIL", 2)


def measured(folder, rounds, resume=False, kill=None):
    """A run whose agents measure something, which is killed before the checkpoint of round `kill` is saved."""
    problem = CASES["td"]().problem
    measures = [lambda theta, i=i: {"size": float(theta @ theta) + i} for i in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        if kill is not None:
            save = Store.save

            def die(store, header, arrays):
                if header["kind"] == "server" and header["round"] == kill:
                    raise Killed
                save(store, header, arrays)

            patch.setattr(Store, "save", die)
        return fh.deploy.federate(
            problem, fh.LocalSA(0.05, 3), rounds=rounds, folder=folder, resume=resume, measures=measures
        )


def test_records_that_are_added_to_a_file_are_those_that_a_checkpoint_would_hold(short_tails, tmp_path):
    """The server is killed after it has added them, and before its checkpoint says so."""
    whole = measured(tmp_path / "whole", 6)
    assert (tmp_path / "whole" / "server.records").stat().st_size == 6 * 8 * 8  # of records 0 to 5
    assert (tmp_path / "whole" / "server.records").stat().st_mode & 0o777 == 0o600
    for kill in (2, 5):
        with pytest.raises(Killed):
            measured(tmp_path / "killed", 6, kill > 2, kill)
    found = measured(tmp_path / "killed", 6, resume=True)
    for name in ("error", "movement", "operator_norm", "agents", "size", "size_by_agent"):
        np.testing.assert_array_equal(found.records[name], whole.records[name])


def test_records_that_do_not_belong_to_the_checkpoint_are_noticed_and_an_older_checkpoint_finds_its_own(
    short_tails, tmp_path
):
    federation = Federation(tmp_path)
    federation.server().run(4)
    old = (tmp_path / "server.state").read_bytes()
    server = federation.server()
    server.resume()
    errors = [record.error for record in server.run(9).records]
    new, rows = (tmp_path / "server.state").read_bytes(), (tmp_path / "server.records").read_bytes()
    (tmp_path / "server.state").write_bytes(old)
    older = federation.server()
    older.resume()
    assert [record.error for record in older.progress.records] == errors[:5]
    (tmp_path / "server.state").write_bytes(new)
    for spoilt in (rows[:-1], b"x" + rows[1:]):
        (tmp_path / "server.records").write_bytes(spoilt)
        with pytest.raises(ValueError, match=r"server.records' is not the one that belongs to .*Restore both"):
            federation.server().resume()


def test_a_checkpoint_after_very_many_rounds_costs_what_the_first_costs(tmp_path):
    """In bytes, which do not depend on how busy the machine is."""
    server, sizes = Federation(tmp_path).server(), []
    record = server.progress.records[0]
    for rounds in (300, 10_300):
        server.progress = server.progress._replace(round=rounds, records=[record] * (rounds + 1))
        server._checkpoint()
        server.progress.records.append(record)
        server._checkpoint()
        sizes.append((tmp_path / "server.state").stat().st_size)
    assert abs(sizes[0] - sizes[1]) < 50
    for starts in (2, 3):  # what a server resumed and saved, the next one resumes
        again = Federation(tmp_path).server()
        again.resume()
        assert (len(again.progress.records), again.attempt) == (10_302, starts * BOOT)  # no number occurs twice
        again._checkpoint()


def test_faults_know_their_names():
    with pytest.raises(ValueError, match=r"`kinds` must be among lose request, .* got 'fire'"):
        Faults(schedule=["fire"])

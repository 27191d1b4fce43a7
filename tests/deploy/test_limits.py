"""What a node agrees to whatever a server asks for, and its own log of what has left it."""

import json

import numpy as np
import pytest

import fedhsa as fh
from federation import Federation, requests, word
from fedhsa import tree
from fedhsa.cli import main
from fedhsa.deploy import Audit, FederationError, Limits, Missing, Plan, Site, Store, in_memory, journal
from fedhsa.deploy.limits import AUDIT
from fedhsa.deploy.server import hello
from fedhsa.deploy.wire import unpack
from fuzz import changed


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level("CRITICAL", "fedhsa.site")


def limited(folder, run="test", **limits):
    """A site of agent 0 with these limits and an audit log, as a node has it."""
    federation = Federation(folder)
    agents = tree.take(federation.problem.flat_agents, np.array([0]))
    store, audit = Store(folder / run / "0.state", sync=False), Audit(folder)
    return Site(federation.task, agents, [0], store, run, limits=Limits(**limits), audit=audit)


def audit(folder):
    return list(journal.read(folder, AUDIT))


def test_a_server_that_asks_for_more_rounds_than_agreed_is_refused_in_all_runs_together(tmp_path):
    messages = requests(Federation(tmp_path / "elsewhere"), 3)
    site = limited(tmp_path, rounds=2)
    assert [word(site.answer(m)) for m in messages] == ["reply"] * 4 + ["limit"] * 2
    again = limited(tmp_path, rounds=2)  # another process of the node
    assert [word(again.answer(m)) for m in messages[2:]] == ["reply", "reply", "limit", "limit"]
    other = limited(tmp_path, "other", rounds=2)
    reply = other.answer(changed(messages[0], run="other"))
    assert word(reply) == "limit"
    assert (
        unpack(reply).header["reason"] == "this site has taken part in all rounds that it agreed to, 2 (`max_rounds`)"
    )
    more = limited(tmp_path, "other", rounds=3)
    assert word(more.answer(changed(messages[0], run="other"))) == "reply"


def test_rounds_are_counted_for_each_agent_and_do_not_become_fewer_when_a_state_is_removed(tmp_path):
    log = Audit(tmp_path)
    for run, agent, block in (("a", 0, 1), ("a", 0, 2), ("a", 0, 1), ("b", 0, 4), ("a", 1, 8)):
        log.sent(kind="reply", run=run, agent=agent, block=block)
    assert (log.rounds(0), log.rounds(0, other_than="a"), log.rounds(1)) == (2 + 4, 4, 8)


def test_a_round_is_begun_again_only_so_often(tmp_path):
    first, second, *_ = requests(Federation(tmp_path / "elsewhere"), 1)
    site, attempt = limited(tmp_path, restarts=2), unpack(first).header["attempt"]
    asked = [changed(message, attempt=attempt + i) for i in range(4) for message in (first, second)]
    assert [word(site.answer(m)) for m in asked] == ["reply"] * 6 + ["limit", "limit"]
    assert word(limited(tmp_path, restarts=2).answer(asked[-2])) == "limit"  # also in another process


def test_only_the_exchanges_that_were_agreed_on_are_answered(tmp_path):
    first, *_ = requests(Federation(tmp_path / "elsewhere"), 1)
    site = limited(tmp_path, exchanges=("delta",))
    reply = site.answer(first)
    assert "this site answers delta (`exchanges`), and was asked for operator" in unpack(reply).header["reason"]
    assert not (tmp_path / "test" / "0.state").exists()
    assert [entry["event"] for entry in audit(tmp_path)] == ["refused"]


def test_the_audit_log_has_a_line_for_all_that_left_and_all_that_was_refused(tmp_path):
    messages = requests(Federation(tmp_path / "elsewhere"), 2)
    site = limited(tmp_path)
    others = [hello(site.task, "test"), changed(messages[0], kind="measure")]
    refused = [changed(messages[0], task="x"), b"noise"]
    replies = [site.answer(m) for m in (*messages, messages[-1], *others, *refused)]
    found = audit(tmp_path)
    assert [entry["event"] for entry in found] == ["sent"] * 7 + ["refused"] * 2
    assert [entry["kind"] for entry in found[5:7]] == ["present", "measured"]
    assert [entry["bytes"] for entry in found] == [len(reply) for reply in replies]
    assert [(e["round"], e["exchange"]) for e in found[:5]] == [
        (1, "operator"),
        (1, "delta"),
        (2, "operator"),
        (2, "delta"),
        (2, "delta"),
    ]
    assert {(e["run"], e["agent"], e["kind"], e["epsilon"]) for e in found[:5]} == {("test", 0, "reply", None)}
    assert [entry["code"] for entry in found[7:]] == ["foreign", "foreign"]
    assert all(entry["time"] for entry in found)
    assert (tmp_path / AUDIT).stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_down_does_not_leave(tmp_path):
    (first, *_) = requests(Federation(tmp_path / "elsewhere"), 1)
    site = limited(tmp_path)
    (tmp_path / AUDIT).mkdir()  # stands for a disk that is full
    assert word(site.answer(first)) == "unavailable"
    (tmp_path / AUDIT).rmdir()
    assert word(site.answer(first)) == "reply"
    assert [entry["event"] for entry in audit(tmp_path)] == ["sent"]


def test_strangers_do_not_fill_the_disk_with_refusals(tmp_path, monkeypatch):
    monkeypatch.setattr("fedhsa.deploy.limits.REFUSALS", 5)
    site = limited(tmp_path)
    for _ in range(20):
        site.answer(b"noise")
    found = audit(tmp_path)
    assert len(found) == 5
    assert found[-1]["more"] == "further refusals are not written down"


@pytest.mark.slow
def test_a_run_of_nodes_that_have_given_all_they_agreed_to_stops_and_names_them(tmp_path):
    plan = Plan(problem="td", num_agents=2, dim=2, option={"num_states": 4}, step_size=0.1, local_steps=2)
    with pytest.raises(FederationError, match=r"Round 3 stopped: agents 0, 1 cannot answer \(this site has taken part"):
        in_memory(plan, tmp_path, config={"max_rounds": 2}, missing=Missing("wait", patience=60)).run(5)


@pytest.mark.slow
def test_privacy_that_is_spent_is_in_the_log(tmp_path):
    pytest.importorskip("dp_accounting")
    plan = Plan(problem="quadratic", num_agents=1, dim=2, step_size=0.1, local_steps=2, algorithm="LocalSA")
    config = {"clip": "1", "noise": "20"}

    def begin(site):
        store = Store(tmp_path / server.run_id / "0.state", sync=False)
        return plan.site([0], store, server.run_id, config, Audit(tmp_path))

    server = fh.deploy.Server(plan.task, fh.deploy.MemoryTransport(begin, 1), [[0]])
    server.run(3)
    spent = [entry["epsilon"] for entry in audit(tmp_path)]
    expected = [fh.deploy.Privacy(1.0, 20.0).spent(n) for n in (1, 2, 3)]
    np.testing.assert_allclose(spent, expected)


@pytest.mark.parametrize(
    ("config", "words"),
    [({"max_rounds": "many"}, "`max_rounds` must be a whole number"), ({"max_rounds": 0}, "`max_rounds` must be at")],
)
def test_limits_that_are_none_are_refused_with_their_name(config, words):
    with pytest.raises(ValueError, match=words):
        Limits.from_config(config)
    assert Limits.from_config({"max_rounds": "", "exchanges": "delta, measure"}).measures
    assert json.dumps(Limits.from_config({}).exchanges) == "null"


def test_status_tells_on_a_nodes_machine_what_has_left_it(tmp_path, capsys):
    messages = requests(Federation(tmp_path / "elsewhere"), 2)
    site = limited(tmp_path)
    sizes = [len(site.answer(message)) for message in messages]
    site.answer(b"noise")
    assert main(["deploy", "status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    facts = {"state": "stopped", "agent": 0, "rounds_answered": 2, "bytes_sent": sum(sizes), "refused": "1 x foreign"}
    assert facts.items() <= found.items()
    assert found["runs"]["test"]["replies"] == 4
    assert main(["deploy", "status", str(tmp_path)]) == 0
    assert "Sent by this node:" in capsys.readouterr().out
    with open(tmp_path / AUDIT, "a") as file:
        file.write('{"event": "sent"}\n')
    assert main(["deploy", "status", str(tmp_path)]) == 1
    assert "is damaged: an entry lacks a field that every node writes" in capsys.readouterr().err

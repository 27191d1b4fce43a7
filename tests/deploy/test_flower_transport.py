"""Messages by way of Flower's grid: with a grid that can lose, forge and answer for others."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from fedhsa.deploy import Missing, Node, Plan, Server, in_memory, keys
from fedhsa.deploy.fit import MismatchError
from fedhsa.deploy.flower import transport
from fedhsa.deploy.flower.client import unwrap, wrap
from fedhsa.deploy.flower.transport import FlowerTransport
from fedhsa.deploy.server import hello
from fedhsa.deploy.signing import Identity, signed
from fedhsa.deploy.site import failure_reply

PLAN = Plan(num_agents=2, dim=2, local_steps=3, step_size=0.05)


class FakeGrid:
    """Flower's grid, with nodes in this process: what `answers` gives for a node is its reply, or an error."""

    def __init__(self, answers):
        self.answers, self.sent, self.count = answers, {}, 0
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def get_node_ids(self):
        return list(self.answers)

    def push_messages(self, messages):
        names = []
        for message in messages:
            self.count += 1
            names.append(f"message-{self.count}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self.sent[names[-1]] = message
        return names

    def pull_messages(self, names):
        for name in [name for name in names if name in self.sent]:
            message = self.sent.pop(name)
            answer = self.answers.get(message.metadata.dst_node_id)
            said = Error(5, "node unavailable") if answer is None else answer(unwrap(message.content))
            if said is not None:  # or it was lost on its way
                yield Message(said if isinstance(said, Error) else wrap(said), reply_to=message)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return keys.make_keys(tmp_path_factory.mktemp("keys") / "federation", 2)


@pytest.fixture
def answers(folder, tmp_path):
    """What two nodes of ours say, by Flower's ids of them."""
    with Node(tmp_path / "0", 0) as zero, Node(tmp_path / "1", 1) as one:
        yield {70 + n.number: signed(n.answer, folder / f"node-{n.number}") for n in (zero, one)}


def run(answers, folder, rounds=2, patience=20.0):
    """The parameter after some rounds, and the server."""
    grid = FakeGrid(answers)
    carried = FlowerTransport(grid, lambda: hello(PLAN.task, "run", PLAN), 2, folder / "server")  # pyright: ignore[reportArgumentType]
    server = Server(PLAN.task, carried, [[0], [1]], run="run", missing=Missing("wait", patience))
    return np.asarray(server.run(rounds).server.theta), server


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return np.asarray(in_memory(PLAN, tmp_path_factory.mktemp("memory")).run(2).server.theta)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """No test waits for what takes long between machines."""
    for name in ("AGAIN", "GREETING", "STRANGE"):
        monkeypatch.setattr(transport, name, 0.05)
    monkeypatch.setattr(FlowerTransport, "pause", 0.01)


def test_signed_messages_over_flower_give_the_numbers_of_messages_in_memory(answers, folder, expected):
    np.testing.assert_array_equal(run(answers, folder)[0], expected)


def test_what_is_lost_or_comes_from_a_node_that_is_away_is_asked_again(answers, folder, expected):
    honest, calls = answers[70], []

    def lossy(data):
        calls.append(data)
        if len(calls) == 4:
            return Error(5, "node unavailable")
        return None if len(calls) % 3 == 2 else honest(data)

    np.testing.assert_array_equal(run({**answers, 70: lossy}, folder)[0], expected)
    assert len(calls) > 5


def test_a_slow_first_round_does_not_make_later_lost_messages_wait(answers, folder):
    _, server = run(answers, folder)
    carried = server.transport
    carried._slowest = 20.0  # as if the first answers had waited for the compiler
    assert carried._patience({0: b"before"}) > 100
    server.run(8)
    assert carried._patience({0: b"after"}) < 10


def test_a_reply_that_the_right_node_has_not_signed_is_refused_and_the_run_unharmed(answers, folder, expected, capsys):
    honest, stranger, calls = answers[70], Identity.load(folder / "node-1"), []

    def forging(data):
        calls.append(data)
        said = honest(data)
        if len(calls) == 2:
            return stranger.sign(said[-200:])
        if len(calls) == 3:
            return said[:-1] + bytes([said[-1] ^ 1])
        return said

    np.testing.assert_array_equal(run({**answers, 70: forging}, folder)[0], expected)
    said = capsys.readouterr().out
    assert "A reply in the name of agent 0 was refused: signed by node-1, not by node-0" in said
    assert "A reply in the name of agent 0 was refused: the signature is not one of node-0" in said


@pytest.mark.parametrize("how", ["unsigned", "other key", "other number"])
def test_a_node_that_claims_to_be_another_does_not_take_part(answers, folder, expected, capsys, tmp_path, how):
    with Node(tmp_path / "stranger", 0) as node:
        claims = {
            "unsigned": node.answer,
            "other key": signed(node.answer, folder / "node-1"),
            "other number": lambda data: Identity.load(folder / "node-1").sign(b""),
        }
        np.testing.assert_array_equal(run({69: claims[how], **answers}, folder)[0], expected)
    assert "Node 69 does not take part" in capsys.readouterr().out


def test_a_node_answers_nobody_but_the_server(answers, folder):
    asked = hello(PLAN.task, "run", PLAN)
    for forged in (asked, Identity.load(folder / "node-1").sign(asked)):
        assert b"forged" in answers[70](forged)
    assert b"present" in answers[70](Identity.load(folder / "server").sign(asked))


def test_a_node_that_does_not_fit_is_given_up_at_once_and_one_that_fails_alike_after_two_attempts(capsys):
    found = FlowerTransport(None, lambda: b"", 2)  # pyright: ignore[reportArgumentType]
    found._introduce(7, failure_reply(b"", 0, MismatchError("`dim` is 5, use 4.")))
    assert found.hopeless(0) == "`dim` is 5, use 4."
    for _ in range(2):
        assert found.hopeless(1) is None
        found._introduce(8, failure_reply(b"", 1, KeyError("secret")))
    assert found.hopeless(1) == "KeyError; see the log of the site"
    said = capsys.readouterr().out
    assert said.count("Node 8 does not take part") == 1
    assert "secret" not in said

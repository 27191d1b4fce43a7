"""Nodes over gRPC: the run is that in memory, strangers get nowhere, and nobody fills anybody's memory."""

import contextlib
import functools
import os
import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fedhsa.deploy import Missing, Node, Plan, Server, compiled, in_memory
from fedhsa.deploy.server import hello
from fedhsa.deploy.wire import pack, unpack

pytest.importorskip("cryptography")
pytest.importorskip("grpc")
import grpc

from fedhsa.deploy import grpc as over_grpc
from fedhsa.deploy.grpc import GrpcTransport, federate_on_grpc, serve
from fedhsa.deploy.journal import read
from fedhsa.deploy.keys import accept, exclude, make_keys, request, sign
from fedhsa.deploy.local import LocalNodes, free_port
from fedhsa.deploy.signing import Identity

PLAN = Plan(num_agents=2, dim=3, local_steps=3)
JOIN = "/fedhsa.Federation/Join"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_keys(tmp_path_factory.mktemp("keys") / "federation", 3)


@pytest.fixture
def keys(made, tmp_path):
    """A federation of the test's own."""
    return pathlib.Path(shutil.copytree(made, tmp_path / "keys"))


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@contextlib.contextmanager
def nodes(keys: pathlib.Path, port: int, numbers=(0, 1), start=None, say=lambda sentence: None, **given):
    """Nodes that run in threads of this process, each in its folder."""
    ended = threading.Event()

    def run(number: int) -> None:
        if start is not None:
            start.wait()
        with Node(keys / f"node-{number}", number, say=say, **given) as node:
            serve(node, f"127.0.0.1:{port}", keys / f"node-{number}", say=say, ended=ended)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in numbers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(20)


@contextlib.contextmanager
def listening(keys: pathlib.Path, say=lambda sentence: None):
    """A server's transport, which lets nodes in."""
    transport = GrpcTransport("127.0.0.1:0", keys / "server", PLAN.task, lambda: hello(PLAN.task, "run1", PLAN), say)
    transport._begin()
    try:
        yield transport
    finally:
        transport.close()


class Member:
    """Whoever has some keys, and says what it likes."""

    def __init__(self, port: int, folder: pathlib.Path, method: str = JOIN, **call):
        owner = Identity.load(folder)
        secret = grpc.ssl_channel_credentials(owner.authority_pem, owner.key_pem, owner.certificate_pem)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.channel, self.out = grpc.secure_channel(f"127.0.0.1:{port}", secret, options), queue.SimpleQueue()
        self.stream = self.channel.stream_stream(method)(iter(self.out.get, None), timeout=20, **call)

    def say(self, data: bytes) -> None:
        self.out.put(data)

    def hear(self) -> bytes:
        return next(self.stream)

    def present(self, number: int) -> "Member":
        assert unpack(self.hear()).header["kind"] == "hello"
        self.say(pack({"kind": "present", "first": number}, {}))
        return self

    def end(self) -> tuple:
        """How the stream ends."""
        with pytest.raises(grpc.RpcError) as raised:
            for _ in self.stream:
                pass
        self.leave()
        return raised.value.code(), raised.value.details()

    def leave(self) -> None:
        self.out.put(None)
        self.channel.close()


def _holds(true) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return true()
    return False


def eventually(true, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while not _holds(true):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nobody waits for minutes, and nodes that share a process share what it has compiled."""
    monkeypatch.setattr(compiled, "keep", lambda folder: lambda: None)
    monkeypatch.setattr(over_grpc, "LATEST", 0.2)
    monkeypatch.setattr(over_grpc, "REPLACED", 0.2)
    monkeypatch.setattr(over_grpc, "REVIEW", 0.05)
    monkeypatch.setattr(over_grpc, "MENDED", 0.05)
    monkeypatch.setattr(over_grpc, "GREETING", 5.0)


@contextlib.contextmanager
def serving(keys: pathlib.Path, port: int, folder: pathlib.Path, missing: Missing | None = None):
    """A server's process."""
    greeting = lambda: hello(PLAN.task, server.run_id, PLAN)  # noqa: E731
    transport = GrpcTransport(f"127.0.0.1:{port}", keys / "server", PLAN.task, greeting)
    server = Server(PLAN.task, transport, [[0], [1]], missing=missing, folder=folder)
    try:
        yield server
    finally:
        transport.close()


def test_a_run_and_its_continuation_by_another_server_are_the_run_in_memory_bit_for_bit(keys, port, tmp_path):
    said = []
    with nodes(keys, port, say=said.append):
        with serving(keys, port, tmp_path) as server:
            server.run(3)
        with serving(keys, port, tmp_path) as server:
            server.resume()
            found = server.run(5).server.theta
    np.testing.assert_array_equal(found, in_memory(PLAN, tmp_path / "memory").run(5).server.theta)
    assert len(list((keys / "node-0" / "runs").iterdir())) == 1
    for sentence in (f"Connected to 127.0.0.1:{port} as agent 1.", "The server at 127.0.0.1", "Taking part in run "):
        assert any(words.startswith(sentence) for words in said)


def test_a_stranger_does_not_get_past_tls(keys, tmp_path):
    foreign = make_keys(tmp_path / "foreign", 1)
    shutil.copy(keys / "node-0" / "ca.crt", foreign / "node-0" / "ca.crt")  # it knows whom it talks to
    with listening(keys) as transport:
        where = f"127.0.0.1:{transport.port}"
        root = (keys / "node-0" / "ca.crt").read_bytes()
        nobody = [grpc.insecure_channel(where), grpc.secure_channel(where, grpc.ssl_channel_credentials(root))]
        for channel in nobody:
            with channel, pytest.raises(grpc.RpcError) as raised:
                next(channel.stream_stream(JOIN)(iter([b"hello"]), timeout=5))
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert Member(transport.port, foreign / "node-0").end()[0] is grpc.StatusCode.UNAVAILABLE
        assert transport.present() == set()


def test_a_node_does_not_talk_to_a_server_of_another_authority(keys, tmp_path):
    foreign, said, ended = make_keys(tmp_path / "foreign", 1), [], threading.Event()
    with listening(foreign) as transport, Node(keys / "node-0", 0) as node:

        def say(sentence):
            said.append(sentence)
            ended.set()

        serve(node, f"127.0.0.1:{transport.port}", keys / "node-0", say=say, ended=ended)
    assert "is not this federation's server" in said[0]


def test_a_certificate_that_is_not_in_the_register_or_of_no_agent_is_told_so(keys):
    exclude(keys, 0)
    with listening(keys) as transport:
        code, words = Member(transport.port, keys / "node-0").end()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert words == "node-0 is not in the register, or with another key"
        code, words = Member(transport.port, keys / "node-2").end()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert words == "node-2 is none of the 2 agents of this run"


def test_one_method_is_reachable_and_nothing_else(keys):
    with listening(keys) as transport:
        for name in ("/fedhsa.Federation/Other", "/grpc.health.v1.Health/Check", "/grpc.reflection.v1.X/X", "/"):
            assert Member(transport.port, keys / "node-0", name).end()[0] is grpc.StatusCode.UNIMPLEMENTED


def test_a_node_taken_out_of_the_register_loses_its_stream(keys):
    said = []
    with listening(keys, said.append) as transport:
        member = Member(transport.port, keys / "node-0").present(0)
        eventually(lambda: transport.present() == {0})
        exclude(keys, 0)
        time.sleep(0.1)
        assert transport.present() == {0} or True  # looks at the register
        assert member.end() == (grpc.StatusCode.ABORTED, "node-0 is not in the register, or with another key")
        eventually(lambda: transport.present() == set())
    assert said[1:] == ["Agent 0 is here.", "Agent 0 is gone: node-0 is not in the register, or with another key."]


def test_the_newest_stream_of_a_certificate_counts(keys):
    with listening(keys) as transport:
        first = Member(transport.port, keys / "node-0").present(0)
        eventually(lambda: transport.present() == {0})
        second = Member(transport.port, keys / "node-0").present(0)
        code, words = first.end()
        assert (code, words[:15]) == (grpc.StatusCode.ABORTED, "another process")
        eventually(lambda: transport.present() == {0})
        replies = transport.exchange({0: b"to the newest"}, 5.0)
        threading.Thread(target=lambda: second.say(second.hear() + b"!")).start()
        assert list(replies) == [b"to the newest!"]
        second.leave()


def test_what_nobody_asked_for_and_what_is_too_large_ends_a_stream(keys):
    with listening(keys) as transport:
        member = Member(transport.port, keys / "node-0").present(0)
        eventually(lambda: transport.present() == {0})
        member.say(b"unasked")
        assert member.end() == (grpc.StatusCode.ABORTED, "a message came that nobody had asked for")
        member = Member(transport.port, keys / "node-0")
        member.say(bytes(2**22))
        assert member.end()[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        member = Member(transport.port, keys / "node-0", compression=grpc.Compression.Gzip)
        member.say(bytes(2**22))  # zeros are small on their way
        assert member.end()[0] is grpc.StatusCode.UNIMPLEMENTED
        assert transport.present() == set()


def test_what_a_node_says_reaches_the_operators_terminal_without_control_characters_and_not_without_end(
    keys, monkeypatch
):
    monkeypatch.setattr(over_grpc, "SENTENCES", 2)
    said = []
    with listening(keys, said.append) as transport:
        for reason in ("\x1b[2J\nAgent 1 is gone.", "Second.", "Third."):
            member = Member(transport.port, keys / "node-0")
            member.hear()
            member.say(pack({"kind": "rejection", "first": 0, "code": "x", "reason": reason}, {}))
            eventually(lambda: len(said) == 3 or 0 in transport._refusals)
            member.leave()
            eventually(lambda: 0 not in transport._streams)
    assert said[1:] == [
        "Agent 0 does not take part: ?[2J?Agent 1 is gone.",
        "Agent 0 does not take part: Second. No more is told of it.",
    ]


def test_a_slow_node_has_one_message_under_way_and_the_latest_behind_it(keys):
    with listening(keys) as transport:
        member = Member(transport.port, keys / "node-0").present(0)
        eventually(lambda: transport.present() == {0})
        for number in range(50):
            assert list(transport.exchange({0: b"%d" % number}, 0.01)) == []
        assert transport._streams[0].outgoing.qsize() == 0  # sent, and nothing is piled up
        assert member.hear() == b"0"
        member.say(b"zero")
        assert member.hear() == b"49"
        member.say(b"forty-nine")
        assert list(transport.exchange({0: b"49"}, 5.0)) == [b"zero", b"forty-nine"]
        member.leave()


def test_a_node_that_comes_back_during_an_exchange_is_asked_again(keys):
    with listening(keys) as transport:
        first = Member(transport.port, keys / "node-0").present(0)
        eventually(lambda: transport.present() == {0})

        def die_and_return():
            assert first.hear() == b"question"
            first.leave()
            back.append(Member(transport.port, keys / "node-0").present(0))
            back[0].say(back[0].hear() + b", answered")

        back = []
        threading.Thread(target=die_and_return).start()
        assert list(transport.exchange({0: b"question"}, 10.0)) == [b"question, answered"]
        back[0].leave()


def test_a_node_that_cannot_take_part_is_told_of_and_given_up(keys, port, tmp_path):
    said = []
    with nodes(keys, port, agent=f"{pathlib.Path(__file__).with_name('mortal.py')}:build"):
        given = {"listen": f"127.0.0.1:{port}", "keys": keys / "server", "folder": tmp_path / "out"}
        with pytest.raises(RuntimeError, match=r"cannot answer \(this node builds an agent of its own"):
            federate_on_grpc(PLAN, rounds=3, say=said.append, **given)
    assert any("does not take part: this node builds an agent of its own" in sentence for sentence in said)


def test_rounds_go_on_without_a_node_that_is_away_and_with_it_when_it_is_back(keys, port, tmp_path, monkeypatch):
    monkeypatch.setattr(over_grpc, "GREETING", 0.5)
    late = [threading.Event(), threading.Event()]
    with contextlib.ExitStack() as stack:
        for number in (0, 1):
            stack.enter_context(nodes(keys, port, [number], late[number]))
        server = stack.enter_context(serving(keys, port, tmp_path, Missing("skip")))
        late[0].set()
        assert server.run(2).records[-1].agents == 1
        late[1].set()
        eventually(lambda: server.transport.present() == {0, 1})
        assert server.run(4).records[-1].agents == 2


def test_a_node_changes_its_key_while_a_run_goes_on_and_the_numbers_stay(keys, port, tmp_path, monkeypatch):
    monkeypatch.setattr(over_grpc, "REPLACED", 60.0)  # a node that waits sees at once that a new certificate is there
    said = []
    with nodes(keys, port, say=said.append), serving(keys, port, tmp_path) as server:
        server.run(2)
        answer = sign(keys, request(keys / "node-0"), 0, replace=True)
        eventually(lambda: server.transport.present() == {1})  # the old key is refused from now on
        eventually(lambda: any("not in the register, or with another key" in sentence for sentence in said))
        accept(keys / "node-0", answer)
        found = server.run(5).server.theta
    np.testing.assert_array_equal(found, in_memory(PLAN, tmp_path / "memory").run(5).server.theta)


def test_a_node_that_is_signed_while_a_run_goes_on_joins_it(keys, port, tmp_path, monkeypatch):
    monkeypatch.setattr(over_grpc, "GREETING", 0.5)
    shutil.rmtree(keys / "node-1")
    exclude(keys, 1)
    with nodes(keys, port, [0]), serving(keys, port, tmp_path, Missing("skip")) as server:
        assert server.run(2).records[-1].agents == 1
        accept(keys / "node-1", sign(keys, request(keys / "node-1"), 1))
        with nodes(keys, port, [1]):
            eventually(lambda: server.transport.present() == {0, 1})
            assert server.run(4).records[-1].agents == 2


def test_idle_strangers_and_a_node_with_very_many_streams_keep_no_other_node_waiting(keys):
    said = []
    with listening(keys, said.append) as transport, contextlib.ExitStack() as stack:
        honest = Member(transport.port, keys / "node-0").present(0)
        eventually(lambda: transport._ready() == {0})
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", transport.port), timeout=5))
        for _ in range(40):
            hostile = Member(transport.port, keys / "node-1")
            hostile.say(b"nonsense")
            stack.callback(hostile.leave)
        for number in range(3):
            asked = b"question %d" % number
            replies = transport.exchange({0: asked}, 5.0)
            thread = threading.Thread(target=lambda: honest.say(honest.hear() + b", answered"))
            thread.start()
            assert next(iter(replies)) == asked + b", answered"
            thread.join()
        honest.leave()
    assert len([sentence for sentence in said if "Agent 1 does not take part" in sentence]) <= 1


def test_two_servers_on_one_port_end_in_a_sentence(keys):
    with listening(keys) as transport:
        make = functools.partial(GrpcTransport, f"127.0.0.1:{transport.port}", keys / "server", PLAN.task, bytes)
        with pytest.raises(ValueError, match=r"`listen`: cannot listen on .* Is the port taken"):
            make()


def test_a_node_in_the_servers_place_is_refused(keys):
    with pytest.raises(ValueError, match="holds the keys of a node"):
        GrpcTransport("127.0.0.1:0", keys / "node-0", PLAN.task, bytes)


SERVER = """
import sys
from fedhsa.deploy import Plan
from fedhsa.deploy.grpc import federate_on_grpc
plan, listen, keys, folder = sys.argv[1:]
federate_on_grpc(Plan.from_json(plan), rounds=10**6, listen=listen, keys=keys, folder=folder)
"""


@pytest.mark.slow
def test_a_masked_run_of_killed_processes_is_the_run_in_memory_bit_for_bit_and_its_memory_is_flat(tmp_path):
    """Every node and the server are killed once; `benchmarks/endurance.py` does the same with 50 nodes."""
    plan = Plan(num_agents=3, dim=3, local_steps=3, secure_aggregation=True)
    listen, out, memory = f"127.0.0.1:{free_port()}", tmp_path / "out", []
    with LocalNodes(3, listen, arguments=lambda number: ["--secure-aggregation"], logs=tmp_path / "logs") as local:
        words = [plan.to_json(), listen, str(local.keys / "server"), str(out)]
        with subprocess.Popen([sys.executable, "-P", "-c", SERVER, *words]) as server:
            eventually(lambda: b'"event": "round"' in (out / "log.jsonl").read_bytes(), 120)
            for number in range(3):
                time.sleep(0.5)
                local.kill(number)
                local.start(number)
            server.kill()
        done = max(event["round"] for event in read(out) if event["event"] == "round")

        def watch(event):
            if event["event"] == "round" and event["round"] in (done + 100, done + 200):
                memory.append(resident())

        given = {"listen": listen, "keys": local.keys / "server", "folder": out, "watch": watch}
        found = federate_on_grpc(plan, rounds=done + 200, resume=True, **given)
    expected = in_memory(plan, tmp_path / "memory").run(done + 200).server.theta
    np.testing.assert_array_equal(found.theta, expected)
    assert memory[1] < memory[0] + 2  # MB


@pytest.mark.slow
def test_a_node_that_stands_still_without_a_word_is_noticed_and_let_in_again(tmp_path, monkeypatch):
    monkeypatch.setattr(over_grpc, "ALIVE", 1.0)
    monkeypatch.setattr(over_grpc, "GONE", 1.0)
    address = f"127.0.0.1:{free_port()}"
    with LocalNodes(1, address, logs=tmp_path) as local:
        transport = GrpcTransport(
            address, local.keys / "server", PLAN.task, lambda: hello(PLAN.task, "run1", PLAN), say=(said := []).append
        )
        with contextlib.closing(transport):
            transport._begin()
            eventually(lambda: transport.present() == {0}, 120)
            time.sleep(5)  # nobody says anything, but for asking who is there
            local.processes[0].send_signal(signal.SIGSTOP)
            eventually(lambda: transport.present() == set(), 10)
            local.processes[0].send_signal(signal.SIGCONT)
            eventually(lambda: transport.present() == {0}, 60)
    assert said[2:] == ["Agent 0 is here.", "Agent 0 is gone.", "Agent 0 is here."]


@pytest.mark.slow
def test_the_demo_over_grpc_ends_with_its_processes_gone_also_when_it_is_killed(tmp_path):
    mark, scratch = f"FEDHSA_TEST_MARK=demo-{os.getpid()}", tmp_path / "tmp"
    scratch.mkdir()
    name, _, value = mark.partition("=")
    command = [sys.executable, "-m", "fedhsa", "deploy", "demo", "--dim", "2", "--rounds", "100000"]
    command += ["--out", str(tmp_path / "out")]
    environment = {**os.environ, name: value, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        eventually(lambda: b'"event": "round"' in (tmp_path / "out" / "log.jsonl").read_bytes(), 120)
        assert len(marked(mark)) == 4
        demo.kill()
        demo.stdout.read()
    eventually(lambda: not marked(mark), 30)


def marked(mark: str) -> list[str]:
    """The processes that have this mark in their environment."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(folder.name)
    return found


def resident() -> float:
    """The memory of this process in MB."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

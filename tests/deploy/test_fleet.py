"""Our node on Flower's Fleet interface and the gate before a SuperLink, both against Flower's own SuperLink."""

import asyncio
import base64
import contextlib
import datetime
import inspect
import pathlib
import shutil
import socket
import ssl
import threading
import time

import numpy as np
import pytest

pytest.importorskip("flwr")

import flwr
import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import fedhsa
from fedhsa.deploy import Plan, Server, Store, keys
from fedhsa.deploy.flower import fleet
from fedhsa.deploy.flower.fleet import Fleet, public_bytes, serve
from fedhsa.deploy.flower.gate import Gate, GateLimits
from fedhsa.deploy.flower.transport import FlowerTransport
from fedhsa.deploy.server import hello
from superlink import SuperLink, superlink

PLAN = Plan(num_agents=2, dim=2, algorithm="LocalSA", step_size=0.05, local_steps=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """The keys of two nodes that are registered, and of a third that is not."""
    made = keys.make_keys(tmp_path_factory.mktemp("keys") / "federation", 3)
    (made / "server" / "nodes" / "node-2.crt").unlink()
    return made


@pytest.fixture(scope="module")
def link(folder):
    with superlink(folder / "server") as found:
        publics = [public_bytes(private(folder, i).public_key()) for i in range(2)]
        for _ in range(2):  # what is known already is no error
            fleet.register(found.port, folder / "server" / "ca.crt", publics)
        yield found


@contextlib.contextmanager
def gated(folder: pathlib.Path, link: SuperLink, limits: GateLimits | None = None):
    """A gate before the SuperLink, and its port."""
    gate, ready, ports = Gate(folder / "server", link.port, limits), threading.Event(), []
    loop = asyncio.new_event_loop()

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(gate.serve("127.0.0.1", 0, lambda port: (ports.append(port), ready.set())))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield gate, ports[0]
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        thread.join(10)


@pytest.fixture(scope="module")
def gate(folder, link):
    with gated(folder, link) as (_, port):
        yield port


def private(folder: pathlib.Path, node: int) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_ssh_private_key((folder / f"node-{node}" / "key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def signed(key: ec.EllipticCurvePrivateKey, ahead: float = 0.0) -> dict[str, str]:
    """The headers by which a node shows its key."""
    said = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead)).isoformat()
    signature = key.sign(said.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        fleet.KEY_HEADER: base64.b64encode(public_bytes(key.public_key())).decode(),
        fleet.TIME_HEADER: said,
        fleet.SIGNATURE_HEADER: base64.b64encode(signature).decode(),
    }


def client(folder: pathlib.Path, port: int) -> httpx.Client:
    trust = ssl.create_default_context(cafile=str(folder / "node-0" / "ca.crt"))
    return httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trust, trust_env=False)


def connect(folder: pathlib.Path, port: int) -> ssl.SSLSocket:
    trust = ssl.create_default_context(cafile=str(folder / "node-0" / "ca.crt"))
    return trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 10), server_hostname="127.0.0.1")


def say(folder: pathlib.Path, port: int, data: bytes) -> bytes:
    """What comes back for these bytes, until the gate hangs up."""
    with connect(folder, port) as connection:
        connection.sendall(data)
        received = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                received += part
    return received


@pytest.fixture
def seen(link, monkeypatch) -> list[str]:
    """The paths that reach the SuperLink."""
    paths: list[str] = []
    build = link.app.middleware_stack

    async def spy(scope, receive, send):
        paths.append(scope["path"])
        await build(scope, receive, send)

    monkeypatch.setattr(link.app, "middleware_stack", spy)
    return paths


def test_a_stranger_reaches_no_interface_of_the_superlink(folder, link, gate, seen):
    paths = link.paths | {"/", "/docs", "/openapi.json"}
    assert any("control" in path for path in paths)
    assert any("runtime" in path for path in paths)
    with client(folder, gate) as stranger:
        for path in paths:
            assert stranger.post(path).status_code == 403, path
        assert stranger.get("/health").status_code == 403
    assert seen == []


def test_not_even_a_node_reaches_more_than_the_paths_of_nodes(folder, link, gate, seen):
    paths = {path for path in link.paths - fleet.PATHS if "fleet" in path or path.endswith(("-run", "-task"))}
    assert {"/v1/fleet/register-node", "/v1/fleet/unregister-node"} < paths
    with client(folder, gate) as node:
        headers = signed(private(folder, 0))
        for path in paths:
            assert node.post(path, content=b"", headers=headers).status_code == 403, path
    assert seen == []


CONTROL = "/v1/control/list-runs"


@pytest.mark.parametrize(
    "line",
    [
        f"POST /v1/fleet/..{CONTROL} HTTP/1.1",
        "POST /v1/fleet/../control/list-runs HTTP/1.1",
        "POST /v1/fleet/%2e%2e/control/list-runs HTTP/1.1",
        "POST /v1/fleet/..%2fcontrol/list-runs HTTP/1.1",
        "POST /v1/fleet/pull-messages/../../control/list-runs HTTP/1.1",
        "POST //v1/control/list-runs HTTP/1.1",
        "POST /v1/fleet//pull-messages HTTP/1.1",
        "POST /v1/fleet/pull-messages?x=/v1/control/list-runs HTTP/1.1",
        "POST /V1/FLEET/pull-messages HTTP/1.1",
        "POST https://127.0.0.1/v1/control/list-runs HTTP/1.1",
        "POST http://127.0.0.1:1/v1/fleet/pull-messages HTTP/1.1",
        "PRI * HTTP/2.0",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
        "get /v1/control/list-runs HTTP/1.1",
        "POST /v1/fleet/pull-messages HTTP/1.1 HTTP/1.1",
        "\x00\x01\x02",
    ],
)
def test_no_spelling_of_a_path_passes_the_gate(folder, gate, seen, line):
    headers = "".join(f"{name}: {value}\r\n" for name, value in signed(private(folder, 0)).items())
    said = say(folder, gate, f"{line}\r\nhost: x\r\n{headers}content-length: 0\r\n\r\n".encode())
    assert said == b"" or said.split()[1] in (b"403", b"400"), said[:100]
    assert seen == []


def test_a_request_hidden_in_another_is_not_passed_on(folder, gate, seen):
    headers = "".join(f"{name}: {value}\r\n" for name, value in signed(private(folder, 0)).items())
    hidden = f"POST {CONTROL} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    start = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n{headers}"
    for framing in (
        f"content-length: {len(hidden) + 5}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
        f"content-length: 0\r\ncontent-length: {len(hidden)}\r\n\r\n{hidden}",
        f"content-length: 0\r\n\r\n{hidden}",
        f"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n{hidden}",
    ):
        say(folder, gate, (start + framing).encode())
    assert set(seen) <= {"/v1/fleet/pull-messages"}


def test_who_does_not_sign_with_a_registered_key_is_refused_before_the_body_is_read(folder, gate, seen):
    headers = signed(private(folder, 0))
    with client(folder, gate) as asks:
        path = "/v1/fleet/pull-messages"
        assert asks.post(path, headers=signed(private(folder, 2))).status_code == 403
        assert (
            asks.post(
                path, headers={**signed(private(folder, 2)), fleet.KEY_HEADER: headers[fleet.KEY_HEADER]}
            ).status_code
            == 403
        )
        assert asks.post(path, headers={**headers, fleet.SIGNATURE_HEADER: "?"}).status_code == 403
        ahead, behind = (
            asks.post(path, headers=signed(private(folder, 0), 60)),
            asks.post(path, headers=signed(private(folder, 0), -400)),
        )
        assert ahead.status_code == behind.status_code == 401
        assert "60 s ahead of the server's" in ahead.text
        assert "400 s behind the server's" in behind.text
    begun = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n"
    assert say(folder, gate, begun.encode()).split()[1] == b"403"  # although not a byte of the body has come
    assert seen == []


def test_a_node_is_held_to_its_limits(folder, link, seen):
    with (
        gated(folder, link, GateLimits(body=1000, rate=3, connections=2)) as (gate, port),
        client(folder, port) as node,
    ):
        headers, path = signed(private(folder, 0)), "/v1/fleet/pull-messages"
        assert node.post(path, content=b"x" * 1001, headers=headers).status_code == 413
        assert seen == []
        answers = [node.post(path, content=b"x", headers=headers).status_code for _ in range(8)]
        assert 429 in answers
        assert len(seen) <= 6
        time.sleep(1.0)
        open_ones = []
        for _ in range(3):
            connection = connect(folder, port)
            lines = [f"POST {path} HTTP/1.1", "host: x", *(f"{n}: {v}" for n, v in headers.items())]
            connection.sendall("\r\n".join([*lines, "content-length: 1", "", "x"]).encode())
            open_ones.append((connection, connection.recv(100)))
        codes = [said.split()[1] for _, said in open_ones]
        for connection, _ in open_ones:
            connection.close()
        assert codes[2] == b"429"
        assert gate.refused >= 3


def test_idle_strangers_are_let_go_and_do_not_keep_a_node_waiting(folder, link):
    limits = GateLimits(strangers=8, introduction=0.5)
    with gated(folder, link, limits) as (gate, port), client(folder, port) as node:
        ask = ("/v1/fleet/pull-messages", signed(private(folder, 0)))
        node.post(ask[0], headers=ask[1])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        began = time.monotonic()
        assert node.post(ask[0], headers=ask[1]).status_code != 403
        assert time.monotonic() - began < 5
        for connection in idle:
            connection.settimeout(10)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
            connection.close()
        assert gate.refused >= 12


def test_a_key_taken_out_of_the_register_is_refused_at_once(folder, link, tmp_path):
    shutil.copytree(folder, tmp_path / "k")
    with gated(tmp_path / "k", link) as (gate, port), client(folder, port) as node:
        path = "/v1/fleet/pull-messages"
        assert node.post(path, headers=signed(private(folder, 1))).status_code != 403
        (tmp_path / "k" / "server" / "nodes" / "node-1.crt").unlink()
        gate.register._looked = float("-inf")  # the next look, which is at most a second away
        assert node.post(path, headers=signed(private(folder, 1))).status_code == 403


@contextlib.contextmanager
def nodes(folder: pathlib.Path, port: int, answers):
    """Our nodes, each in a thread; gives what they tell."""
    ended, told, threads = threading.Event(), [], []
    for i, answer in enumerate(answers):
        joined = Fleet(f"127.0.0.1:{port}", folder / f"node-{i}")
        options = {"tell": told.append, "ended": ended}
        threads.append(threading.Thread(target=serve, args=(joined, answer), kwargs=options, daemon=True))
        threads[-1].start()
    try:
        yield told
    finally:
        ended.set()
        for thread in threads:
            thread.join(10)


def test_a_run_over_flower_behind_the_gate_is_that_of_the_engine(folder, link, gate, tmp_path, capsys):
    def answer(i):
        return PLAN.site([i], Store(tmp_path / f"{i}.state"), "run").answer

    with nodes(folder, gate, [answer(0), answer(1)]) as told:
        transport = FlowerTransport(link.grid, lambda: hello(PLAN.task, "run"), 2)
        server = Server(PLAN.task, transport, [[0], [1]], run="run")
        progress = server.run(3)
        assert len(transport.mail.ours) == 2  # both have said that they are ours
    expected = fedhsa.simulate(PLAN.built_problem, PLAN.method, rounds=3).theta
    np.testing.assert_allclose(progress.server.theta, expected, rtol=0, atol=1e-12)
    assert len(told) == 2
    assert all(words.startswith("Connected to 127.0.0.1:") for words in told)


def test_short_and_long_messages_arrive_whole_in_both_directions(folder, link, gate, monkeypatch):
    monkeypatch.setattr(fleet, "SHORT", 100)
    mail = fleet.Mailbox(link.grid)
    with nodes(folder, gate, [lambda data: data[::-1] * (50 if data.startswith(b"grow") else 1)]):
        while not (online := mail.nodes()):
            time.sleep(0.02)
        (node,) = online
        for asked in (b"first", b"short", b"grow", bytes(range(256)), b"\x00" * 100):
            (name,) = mail.push({node: asked})
            while not (replies := mail.pull([name])):
                time.sleep(0.02)
            (reply,) = replies
            assert (reply.to, reply.error) == (name, "")
            assert reply.data == asked[::-1] * (50 if asked == b"grow" else 1)
    assert mail.ours == {node}


def test_a_node_that_was_killed_is_let_in_again_at_once(folder, link, gate):
    def join() -> int:
        """Joins, and is killed: nobody says that it has left."""
        node = Fleet(f"127.0.0.1:{gate}", folder / "node-0")
        try:
            return node.join()
        finally:
            node.close()

    assert join() == join()
    (folder / "node-0" / "flower.json").unlink()
    with pytest.raises(httpx.HTTPStatusError):  # which is what happens to one that does not remember who it was
        join()


def test_a_node_whose_key_is_replaced_joins_with_the_new_one(folder, link, tmp_path):
    own = pathlib.Path(shutil.copytree(folder, tmp_path / "k"))
    with gated(own, link) as (gate, port):
        node = Fleet(f"127.0.0.1:{port}", own / "node-1")
        before = node.join()
        answer = keys.sign(own, keys.request(own / "node-1"), 1, replace=True)
        gate.register._looked = float("-inf")
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            node.beat()
        keys.accept(own / "node-1", answer)
        fleet.register(link.port, own / "server" / "ca.crt", gate.register.keys())
        assert node.join() != before
        node.leave()


class Broken:
    """A connection that fails in these ways, one after the other."""

    def __init__(self, errors, ended):
        self.address, self.errors, self.ended = "192.0.2.7:8000", list(errors), ended

    def join(self) -> int:
        if not self.errors:
            self.ended.set()
            return 7
        raise self.errors.pop(0)

    def leave(self) -> None:
        pass


def test_a_node_says_in_one_sentence_each_why_it_is_not_connected(monkeypatch):
    def status(code, text=""):
        request = httpx.Request("POST", "https://x")
        return httpx.HTTPStatusError("", request=request, response=httpx.Response(code, text=text, request=request))

    ended, told = threading.Event(), []
    monkeypatch.setattr(ended, "wait", lambda seconds: ended.is_set())
    clock = "the clock of node-0 is 60 s ahead of the server's; set both by NTP"
    errors = [
        httpx.ConnectError("refused"),
        httpx.ConnectError("refused"),
        status(403),
        status(401, clock),
        status(503),
    ]
    serve(Broken(errors, ended), lambda data: data, tell=told.append, ended=ended)  # pyright: ignore
    assert told == [
        "192.0.2.7:8000 does not answer (refused). Trying again.",
        "192.0.2.7:8000 refuses this node: its key is not registered there, or no longer. Ask the server's operator.",
        f"192.0.2.7:8000 refuses this node (401: {clock}). Trying again.",
        "192.0.2.7:8000 answers, but its SuperLink does not. Trying again.",
        "Connected to 192.0.2.7:8000 as Flower's node 7.",
    ]


def test_flower_has_what_our_node_leans_on():
    """If this fails, Flower has changed: mend `deploy/flower/fleet.py`, which is the only file that minds."""
    from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
    from flwr.superlink.routers.fleet import router
    from flwr.supernode.fleet_http_client import FleetHttpClient

    version = flwr.__version__
    asked = {
        "ActivateNode": "ActivateNodeRequest",
        "DeactivateNode": "DeactivateNodeRequest",
        "SendNodeHeartbeat": "SendNodeHeartbeatRequest",
        "PullMessages": "PullMessagesRequest",
        "PushMessages": "PushMessagesRequest",
        "PullObject": "PullObjectRequest",
        "PushObject": "PushObjectRequest",
        "ConfirmMessageReceived": "ConfirmMessageReceivedRequest",
    }
    for method, request in asked.items():
        found = getattr(FleetHttpClient, method, None)
        assert found is not None, f"Flower {version}: FleetHttpClient has no method {method}"
        kind = inspect.signature(found).parameters["request"].annotation
        assert request in str(kind), f"Flower {version}: {method} takes {kind}, not {request}"
    fields = {
        fleet_pb2.ActivateNodeRequest: {"public_key", "heartbeat_interval"},
        fleet_pb2.DeactivateNodeRequest: {"node_id"},
        heartbeat_pb2.SendNodeHeartbeatRequest: {"node", "heartbeat_interval"},
        fleet_pb2.PullMessagesRequest: {"node"},
        fleet_pb2.PushMessagesRequest: {"node", "messages_list", "message_object_trees", "clientapp_runtime_list"},
        message_pb2.ConfirmMessageReceivedRequest: {"node", "run_id", "message_object_id"},
    }
    for kind, names in fields.items():
        there = {field.name for field in kind.DESCRIPTOR.fields}
        assert names <= there, f"Flower {version}: {kind.__name__} has no {sorted(names - there)}"
    routes = {route.path for route in router.router.routes}  # pyright: ignore
    assert routes >= fleet.PATHS, f"Flower {version} has no {sorted(fleet.PATHS - routes)}"
    new = routes - fleet.PATHS - {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert not new, f"Flower {version}: should the gate pass {sorted(new)}?"
    assert (fleet.AHEAD, fleet.BEHIND) == (5, 305), (
        f"Flower {version} allows other clocks: say so in docs/deploy/transports.md"
    )
    assert version.startswith(("1.41.", "1.42.")), f"Flower {version} has not been tried"

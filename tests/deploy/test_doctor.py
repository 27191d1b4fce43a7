"""What `fedhsa deploy doctor` finds on a machine where something is wrong, and what it says to do."""

import contextlib
import email.utils
import json
import shutil
import socket
import ssl
import threading
import time

import pytest

pytest.importorskip("cryptography")

from fedhsa.cli import main
from fedhsa.deploy import doctor, keys


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return keys.make_keys(tmp_path_factory.mktemp("keys") / "federation", 1, ["127.0.0.1"])


@pytest.fixture
def federation(made, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(made, tmp_path / "federation")


def states(findings):
    return {finding.what: finding.state for finding in findings}


def wrong(findings):
    return " ".join(f"{finding.words} {finding.remedy}" for finding in findings if finding.state != "ok")


@contextlib.contextmanager
def listening(folder, answer=b"", host="127.0.0.1"):
    """A TLS server with the keys of this folder, which says `answer` to whatever it is sent; gives its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.create_server((host, 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = server.accept()
                    with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as tls:
                        if tls.recv(4096):
                            tls.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"{host}:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_fresh_node_and_a_fresh_server_are_well(made, capsys):
    for machine in ("node-0", "server"):
        assert main(["deploy", "doctor", str(made / machine), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {finding["state"] for finding in found} <= {"ok", "warning"}  # nothing may set this machine's clock
        assert {"files", "certificate", "authority", "packages", "disk"} <= {finding["what"] for finding in found}


def test_files_that_others_may_open_or_that_are_missing_are_failures(federation, capsys):
    node = federation / "node-0"
    (node / "key").chmod(0o644)
    assert "chmod 600" in wrong(doctor.examine(node))
    node.chmod(0o755)
    assert main(["deploy", "doctor", str(node)]) == 1
    said = capsys.readouterr().out
    assert "FAILURE files" in said
    assert f"chmod 700 {node}" in said
    assert "1 failure" in said.splitlines()[-1]
    keys.request(federation / "new")
    assert "The operator has yet to sign request.pem" in wrong(doctor.examine(federation / "new"))
    assert main(["deploy", "doctor", str(federation / "nowhere")]) == 1
    assert "There is no folder" in capsys.readouterr().err


def test_a_certificate_is_renewed_before_it_ends(federation):
    keys.accept(federation / "node-0", keys.renew(federation, 0, days=10))
    keys.renew(federation, days=10)
    node, server = doctor.examine(federation / "node-0"), doctor.examine(federation / "server")
    assert states(node)["certificate"] == states(server)["certificate"] == states(server)["register"] == "warning"
    assert "fedhsa deploy keys renew FEDERATION 0" in wrong(node)
    assert "fedhsa deploy keys renew FEDERATION server" in wrong(server)
    shutil.copy(federation / "node-0" / "key", federation / "server" / "server.key")
    assert "do not belong together" in wrong(doctor.examine(federation / "server"))
    keys.exclude(federation, 0)
    keys.renew(federation, new_key=True)
    assert states(doctor.examine(federation / "server"))["register"] == "failure"


def test_the_way_to_the_server_is_tried_step_by_step(made, federation, tmp_path):
    node = made / "node-0"
    with socket.socket() as reserved:  # bound, and deaf
        reserved.bind(("127.0.0.1", 0))
        deaf = f"127.0.0.1:{reserved.getsockname()[1]}"
        assert "A gRPC server listens only while a run goes on" in wrong(doctor.examine(node, server=deaf))
        assert "may be running there" in wrong(doctor.examine(made / "server", listen=deaf))
    other = keys.make_keys(tmp_path / "other", 1)
    with listening(other / "server") as address:
        assert "not the server of this federation" in wrong(doctor.examine(node, superlink=address))
    with listening(made / "server", host="127.0.0.2") as address:
        said = wrong(doctor.examine(node, superlink=address))
    assert "fedhsa deploy keys renew FEDERATION server --host 127.0.0.2" in said
    for text in ("nowhere", "https://a.b:80", "::1:80", "a:99999"):
        with pytest.raises(ValueError, match="`server`"):
            doctor.examine(node, server=text)


@pytest.mark.parametrize(
    ("ahead", "status", "clock", "gate"),
    [(0, 403, "ok", "ok"), (60, 403, "failure", "ok"), (-60, 403, "warning", "ok"), (-400, 200, "failure", "warning")],
)
def test_the_clock_is_compared_with_that_of_a_flower_server(made, ahead, status, clock, gate):
    date = email.utils.formatdate(time.time() - ahead, usegmt=True)
    answer = f"HTTP/1.1 {status} X\r\ndate: {date}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
    with listening(made / "server", answer) as address:
        found = states(doctor.examine(made / "node-0", superlink=address))
    assert (found["port"], found["server"], found["gate"], found["clock"]) == ("ok", "ok", gate, clock)


def test_a_grpc_server_tells_its_time_or_why_it_refuses_a_node_and_no_stream_is_disturbed(federation, monkeypatch):
    pytest.importorskip("grpc")
    from fedhsa.deploy import Plan, grpc
    from fedhsa.deploy.server import hello

    plan, node = Plan(num_agents=1, dim=2), federation / "node-0"
    transport = grpc.GrpcTransport(
        "127.0.0.1:0", federation / "server", plan.task, lambda: hello(plan.task, "run1", plan)
    )
    transport._begin()
    try:
        address = f"127.0.0.1:{transport.port}"
        found = doctor.examine(node, server=address)
        assert {finding.state for finding in found if finding.what in ("port", "server", "admission")} == {"ok"}
        assert found[-1].what == "clock"
        assert found[-1].state == "ok"
        assert not transport._streams  # it was not taken for a node that takes part
        monkeypatch.setattr(doctor, "__version__", "0.0.1")
        assert "the server has fedhsa" in wrong(doctor.examine(node, server=address))
        keys.exclude(federation, 0)
        assert "the server says: node-0 is not in the register" in wrong(doctor.examine(node, server=address))
    finally:
        transport.close()

"""The processes of a Flower federation on this machine: they work, and they are gone afterwards."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr")

from fedhsa.deploy import keys
from fedhsa.deploy.flower import network
from fedhsa.deploy.flower._keeper import descendants
from fedhsa.deploy.flower.processes import toml
from fedhsa.deploy.local import free_port

# The smallest app: every node answers with its number and the settings it was started with.
PYPROJECT = """
[project]
name = "echo"
version = "1.0.0"
description = "A test"
license = "MIT"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "fedhsa"
[tool.flwr.app.components]
serverapp = "echo.apps:server"
clientapp = "echo.apps:client"
[tool.flwr.app.config]
rounds = 1
nodes = 1
text = ""
"""
APPS = """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query("ask")
def ask(message, context):
    settings = {name: str(value) for name, value in context.node_config.items()}
    return Message(RecordDict({"settings": ConfigRecord(settings)}), reply_to=message)

@server.main()
def main(grid, context):
    if context.run_config["text"] == "fail":
        raise RuntimeError("asked to fail")
    print("text:", context.run_config["text"], flush=True)
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.1)
    for turn in range(context.run_config["rounds"]):
        asked = [Message(RecordDict(), node, "query.ask", group_id=str(turn)) for node in nodes]
        print("asked", flush=True)
        for reply in grid.send_and_receive(asked):
            print("reply:", sorted(reply.content.config_records["settings"].items()), flush=True)
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("app")
    (folder / "echo").mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "echo" / "__init__.py").write_text("")
    (folder / "echo" / "apps.py").write_text(APPS)
    return folder


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def below(process: int) -> dict[int, str]:
    """The start times of all processes below one: an id may be used again, a start time is not."""
    found = {}
    for child in descendants(process):
        try:
            found[child] = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19]
        except OSError:
            continue
    return found


def remaining(processes: dict[int, str]) -> list[int]:
    """Those of the processes that still exist."""
    left = []
    for child, started in processes.items():
        try:
            if pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19] == started:
                left.append(child)
        except OSError:
            continue
    return left


def test_settings_survive_flowers_reading(tmp_path):
    from flwr.common.config import parse_config_args

    settings = {"text": "a \"b' c=d é\n\\", "empty": "", "count": -3, "number": 1e-300, "yes": True, "no": False}
    (tmp_path / "settings.toml").write_text(toml(settings))
    assert parse_config_args([str(tmp_path / "settings.toml")]) == settings
    with pytest.raises(ValueError, match="`bad` must be a text, number or truth value"):
        toml({"bad": [1]})  # pyright: ignore[reportArgumentType]


KEEPER = pathlib.Path(network.__file__).with_name("_keeper.py")
# A process that leaves two others in sessions of their own, one of them an orphan, and ignores polite requests.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for depth in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        if depth:
            os._exit(0)
        time.sleep(600)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="adopting orphans is a feature of Linux")
@pytest.mark.parametrize("end", ["owner lets go", "keeper is terminated", "command is killed"])
def test_a_keeper_leaves_no_process_behind(end):
    reading, writing = os.pipe()
    keeper = subprocess.Popen(
        [sys.executable, "-I", str(KEEPER), "run", str(writing), sys.executable, "-c", STUBBORN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[writing],
    )
    os.close(writing)
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    with open(reading) as file:
        command = int(file.read())
    assert keeper.stdout.readline() == b"ready\n"
    wait_until(lambda: len(below(keeper.pid)) == 5)  # one has ended, but its parent did not take leave of it
    processes = below(keeper.pid)
    if end == "owner lets go":
        keeper.stdin.close()
    elif end == "keeper is terminated":
        keeper.terminate()
    else:
        os.kill(command, signal.SIGKILL)
    assert keeper.wait(timeout=30) == 128 + signal.SIGKILL
    assert remaining(processes) == []
    keeper.stdin.close()
    keeper.stdout.close()


def test_a_missing_flower_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedhsa\[flower\]'"):
        network.Network(1)


@pytest.mark.slow
def test_a_taken_port_is_named_with_the_log_and_leaves_nothing(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        before = below(os.getpid())
        unused = network.Network(1, port=port, logs=tmp_path)
        with pytest.raises(RuntimeError, match=rf"127.0.0.1:{port} cannot be listened on.*in use"):
            unused.__enter__()
    assert not unused.folder.exists()
    assert set(below(os.getpid())) <= set(before)


@pytest.mark.slow
def test_a_network_runs_an_app_and_leaves_nothing(app, tmp_path):
    lines: list[str] = []
    text = 'it\'s "quoted" é'
    with network.Network(2, stock=True, node_config=lambda i: {"text": text} if i == 0 else {}, logs=tmp_path) as net:
        folder, processes = net.folder, below(os.getpid())
        assert sorted(net.node_pids) == [0, 1]
        assert set(net.node_pids.values()) < set(processes)
        assert net.run(app, {"nodes": 2, "text": text}, lines.append) == 0
        assert f"text: {text}" in lines
        replies = sorted(line for line in lines if line.startswith("reply:"))
        assert len(replies) == 2
        assert f"('text', {text!r})" in replies[0]
        assert "('partition-id', '1')" in replies[1]

        net.stop_node(1)
        assert sorted(net.node_pids) == [0]
        known = net.node_ids[1]
        net.start_node(1)  # one that left politely may come back at once, and is known
        assert net.node_ids[1] == known

        lines.clear()
        assert net.run(app, {"text": "fail"}, lines.append) != 0
        assert any("asked to fail" in line for line in lines)
        processes |= below(os.getpid())
    assert remaining(processes) == []
    assert not folder.exists()
    assert "SuperNode ID" in (tmp_path / "node-0.log").read_text()


USER = """
import sys
from fedhsa.deploy.flower import network
with network.Network(1, stock=True) as net:
    print("folder", net.folder, flush=True)
    net.run(sys.argv[1], {"rounds": 1000}, lambda line: print(line, flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_network_ends_with_the_process_that_started_it(app, number):
    user = subprocess.Popen([sys.executable, "-c", USER, str(app)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert user.stdout is not None
    try:
        output = ""
        while "asked" not in output:
            line = user.stdout.readline().decode()
            assert line, output
            output += line
        folder = pathlib.Path(output.split("folder ")[1].split("\n")[0])
        assert folder.is_dir()
        # Wait for a process that Flower starts for one message, the furthest from us.
        wait_until(lambda: any(b"flwr-clientapp" in command(process) for process in below(user.pid)))
        processes = below(user.pid)
        assert len(processes) > 8
    finally:
        user.send_signal(number)
        user.stdout.read()
        user.stdout.close()
        code = user.wait(timeout=60)
    assert code == (143 if number == signal.SIGTERM else -number)
    if number == signal.SIGKILL:  # nobody could wait for them
        wait_until(lambda: not remaining(processes) and not folder.exists(), 30)
    assert remaining(processes) == []
    assert not folder.exists()


def command(process: int) -> bytes:
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_only_registered_encrypted_nodes_of_the_right_server_take_part(app, tmp_path):
    stranger = keys.make_keys(tmp_path / "stranger", 1)
    lines: list[str] = []
    with network.Network(1, stock=True) as net:
        own = net.keys / "node-0"
        authority, key = ["--root-certificates", str(own / "ca.crt")], ["--auth-supernode-private-key"]
        attempts = {
            "unregistered": [*authority, *key, str(stranger / "node-0" / "key")],
            "without-key": authority,
            "wrong-authority": ["--root-certificates", str(stranger / "node-0" / "ca.crt"), *key, str(own / "key")],
            "plaintext": ["--insecure"],
        }
        net.stop_node(0)  # its key is free for the one that distrusts the server
        started = {}
        for name, arguments in attempts.items():
            port = str(free_port())
            arguments = [
                "flower-supernode",
                "--superlink",
                net.address,
                "--port",
                port,
                *arguments,
                "--max-retries",
                "1",
            ]
            started[name] = net.start(f"node-{name}", arguments)
        # A SuperNode that gets a 403 fails with an exception, of which it says nothing useful, and lingers.
        refused = {"unregistered": "RunNotRunningException", "without-key": "RunNotRunningException"}
        refused |= {"wrong-authority": "CERTIFICATE_VERIFY_FAILED", "plaintext": "Failed to initialize"}
        for name, words in refused.items():
            wait_until(lambda name=name, words=words: words in started[name].output(), 120)
        for name, process in started.items():
            process.kill()
            assert not re.search("SuperNode ID", process.output()), name
        net.start_node(0)
        assert net.run(app, {"rounds": 1}, lines.append) == 0
    assert sum(line.startswith("reply:") for line in lines) == 1

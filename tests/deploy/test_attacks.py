"""What each party was seen to try and must not achieve; each test is a row of docs/deploy/threat-model.md."""

import json
import os
import pathlib
import re
import resource
import struct
import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pytest

from federation import Federation
from fedhsa.deploy import MemoryTransport, Missing, Node, Plan
from fedhsa.deploy import site as site_module
from fedhsa.deploy.measure import ALL, MOST, VALUES, Measurements, SiteReport
from fedhsa.deploy.node import MOST_OBSERVATIONS
from fedhsa.deploy.server import hello
from fedhsa.deploy.store import Store
from fedhsa.deploy.wire import HEADER_BYTES, RejectedError, pack, unpack

ROOT = pathlib.Path(__file__).parents[2]
NOBODY = 65534
PLAN = Plan(num_agents=3, dim=2)


class Lying(MemoryTransport):
    """The last site says what `lie` makes of its reply, in the round and exchange that it was asked for."""

    lie = staticmethod(lambda header, arrays: (header, arrays))

    def _ask(self, site, message):
        reply = super()._ask(site, message)
        if site < self.num_sites - 1:
            return reply
        return pack(*self.lie(*unpack(reply)))


def run(tmp_path, lie, rounds=2, missing=None):
    found = Federation(tmp_path)
    server = found.server(kind=Lying, missing=missing or Missing("skip", patience=0.2))
    server.transport.lie = lie
    server.run(rounds)
    return server, found.events


# A malicious site.


def test_the_words_of_a_site_cannot_command_the_operators_terminal(tmp_path):
    evil = "gone\x1b]0;owned\x07\x1b[2J\r\u202e[/bold]\n{'event': 'finished'}"

    def lie(header, arrays):
        return {**header, "kind": "rejection", "code": "unavailable\x1b[31m", "reason": evil}, {}

    server, events = run(tmp_path, lie)
    assert server.progress.round == 2  # the others went on
    log = (tmp_path / "log.jsonl").read_text()
    told = json.dumps(events, ensure_ascii=False) + log
    assert "owned" in told  # it was told what the site said
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]|\\u001b|\\r|\\u202e", told)
    assert all(json.loads(line)["event"] for line in log.splitlines())


def test_a_site_that_measures_something_new_in_every_round_does_not_fill_the_server(tmp_path):
    kept = Measurements(3)
    for t in range(100):
        names = [f"m{t}_{i}" for i in range(MOST)]
        kept.put(t, [2], SiteReport(names, np.ones((1, MOST + 1))))
    assert len(kept.names) == ALL
    assert len(pack({}, kept.arrays())) < HEADER_BYTES

    def lie(header, arrays):
        if header["kind"] == "reply" and header["exchange"] == 0:
            header["measures"] = [f"m{header['round']}_{i}" for i in range(MOST)]
            arrays[VALUES] = np.full((1, MOST + 1), 1e308)
        return header, arrays

    server, _ = run(tmp_path, lie, rounds=8)
    assert server.progress.round == 8
    assert len(server.measurements.names) == ALL


BOMBS = {
    "deep lists": b'{"arrays":[],"a":' + 200_000 * b"[" + 200_000 * b"]" + b"}",
    "a number of many digits": b'{"arrays":[],"a":' + 500_000 * b"9" + b"}",
    "very many arrays": b'{"arrays":[' + b",".join([b'["a","bool",[0]]'] * 50_000) + b"]}",
    "a shape beyond all memory": b'{"arrays":[["a","float64",[4294967296,4294967296]]]}',
    "many empty axes": b'{"arrays":[["a","float64",[' + b"0," * 30_000 + b"0]]]}",
    "two keys of the same name": b'{"arrays":[["a","float64",[9]]],"arrays":{}}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_message_does_not_become_a_large_one(name):
    head = BOMBS[name]
    data = b"fedhsa/1" + struct.pack("<II", zlib.crc32(head), len(head)) + head
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RejectedError):
        unpack(data, 10**6)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


# A malicious server.


def test_a_server_cannot_ask_a_node_for_more_observations_than_fit_into_its_memory(tmp_path):
    plan = Plan(num_agents=3, dim=2, local_steps=MOST_OBSERVATIONS + 1)
    said = unpack(Node(tmp_path / "node", 0).answer(hello(plan.task, "run1", plan))).header
    assert (said["kind"], said["code"]) == ("rejection", "mismatch")
    assert "observations in a round" in said["reason"]
    assert not (tmp_path / "node").exists()


PLANS = {
    "deep lists": 900_000 * "[",
    "a number of many digits": 900_000 * "9",
    "an algorithm of many layers": json.dumps(json.loads(PLAN.to_json()) | {"algorithm": 3000 * "Robust("}),
    "an algorithm that computes": json.dumps(json.loads(PLAN.to_json()) | {"algorithm": "FedHSA(9**9**9)"}),
    "an algorithm that is code": json.dumps(json.loads(PLAN.to_json()) | {"algorithm": "__import__('os').abort()"}),
    "a path": json.dumps(json.loads(PLAN.to_json()) | {"problem": "/etc/passwd"}),
    "an option that is code": json.dumps(json.loads(PLAN.to_json()) | {"option": {"heterogeneity": "os.abort()"}}),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_data_whatever_stands_in_it(name, tmp_path):
    asked = pack({"kind": "hello", "run": "run1", "task": PLAN.task.digest, "plan": PLANS[name]}, {})
    said = unpack(Node(tmp_path / "node", 0).answer(asked)).header
    assert said["kind"] == "rejection"
    assert not (tmp_path / "node").exists()


def test_what_a_server_says_does_not_command_the_terminal_of_a_node_nor_fill_its_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(site_module, "LOG_BYTES", 5000)
    said = []
    plan = json.dumps(json.loads(PLAN.to_json()) | {"agent": "x.py:make", "problem": "\x1b[2J"})
    evil = pack({"kind": "hello", "run": "\x1b]0;owned\x07" + 900_000 * "x", "task": ""}, {})
    with Node(tmp_path, 0, say=said.append) as node:
        answer = node.answer(evil)
        for _ in range(100):
            node.answer(evil)
            node.answer(pack({"kind": "hello", "run": "run1", "task": "", "plan": plan}, {}))
    assert len(answer) < 1000
    assert said
    assert all(sentence.isprintable() for sentence in said)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir() if path.is_file()}
    assert sizes["audit.jsonl"] < 100_000
    assert all((path.stat().st_mode & 0o077) == 0 for path in tmp_path.iterdir())
    assert sizes["site.log"] <= 5000
    assert sizes["site.log.1"] <= 5000


# Another user of the machine.


def as_nobody(code: str, *words: str) -> str:
    """What a program prints that another user runs; it has the standard library alone."""
    drop = f"import fcntl, os, socket, sys; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
    command = [sys.executable, "-I", "-S", "-c", drop + textwrap.dedent(code), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_nothing_of_a_node_and_cannot_hold_it_up(tmp_path):
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)  # pytest's own are closed; the way to the node is to be open
    before = os.umask(0o022)
    try:
        with Node(tmp_path / "node", 0) as node:
            assert unpack(node.answer(hello(PLAN.task, "run1", PLAN))).header["kind"] == "present"
            Store(tmp_path / "out" / "server.state").save({"kind": "server"}, {})
            places = [str(path) for path in (tmp_path / "node").rglob("*")] + [str(tmp_path / "out" / "server.state")]
            printed = as_nobody(
                """
                for name in sys.argv[1:]:
                    for what in (os.listdir, lambda n: open(n).close(), lambda n: open(n, "a").close(),
                                 lambda n: fcntl.flock(os.open(n, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB),
                                 lambda n: socket.socket(socket.AF_UNIX).connect(n),
                                 lambda n: os.open(n + ".planted", os.O_CREAT | os.O_WRONLY)):
                        try:
                            what(name)
                            print("could open", name)
                        except NotADirectoryError:
                            pass
                        except OSError as error:
                            assert isinstance(error, PermissionError), (name, error)
                print("done")
                """,
                *places,
            )
    finally:
        os.umask(before)
    assert len(places) > 3
    assert printed == "done\n"


def test_no_message_or_state_is_unpickled():
    """Pickle would let whoever writes a message or a file run code; `_own.py` runs the user's own files."""
    unsafe = r"^\s*(import|from) (pickle|marshal|shelve|dill|cloudpickle)\b|allow_pickle=True|(?<![.\w])(eval|exec)\("
    sources = (ROOT / "src" / "fedhsa").rglob("*.py")
    assert [path.name for path in sources if re.search(unsafe, path.read_text(), re.MULTILINE)] == ["_own.py"]


def test_every_row_of_the_threat_model_names_a_test_that_exists():
    rows = (ROOT / "docs" / "deploy" / "threat-model.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", rows))
    defined = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 40
    assert named <= defined, sorted(named - defined)

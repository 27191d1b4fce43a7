"""A node of ours: it takes the plan from the server, and code and data from nobody but its owner."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedhsa.deploy.node as node_module
from fedhsa.deploy import BusyError, MemoryTransport, Plan, Server, in_memory
from fedhsa.deploy.node import Node
from fedhsa.deploy.server import hello
from fedhsa.deploy.wire import pack, unpack

MORTAL = pathlib.Path(__file__).with_name("mortal.py")
PLAN = Plan(num_agents=2, dim=2, local_steps=3)
OWN = Plan(agent=f"{MORTAL}:build", num_agents=2, dim=3, local_steps=3)


def header(data: bytes) -> dict:
    return unpack(data).header


def greeted(node: Node, plan: Plan, run: str = "run1") -> dict:
    return header(node.answer(hello(plan.task, run, plan)))


def greeting(plan: str) -> bytes:
    """What a server says that need not be ours."""
    return pack({"kind": "hello", "run": "run1", "task": PLAN.task.digest, "plan": plan}, {})


def test_a_run_with_nodes_that_die_and_come_back_is_that_in_memory_bit_for_bit(tmp_path):
    expected = in_memory(OWN, tmp_path / "memory").run(4)
    greetings = []

    def start(number: int) -> Node:
        node = Node(tmp_path / f"node-{number}", number, agent=f"{MORTAL}:build")
        if number not in greetings:  # one that was greeted once needs no more after it was killed
            greetings.append(number)
            assert greeted(node, OWN, "test")["kind"] == "present"
        return node

    transport = MemoryTransport(start, 2)  # pyright: ignore[reportArgumentType]
    server = Server(OWN.task, transport, [[0], [1]], run="test")
    for rounds in range(1, 5):
        server.run(rounds)
        transport.sites.clear()
    np.testing.assert_array_equal(server.progress.server.theta, expected.server.theta)


def test_the_servers_path_to_a_file_is_not_told_and_the_nodes_own_file_is_used(tmp_path):
    elsewhere = OWN.replace(agent="/secret/place/mortal.py:build")
    assert b"secret" not in hello(elsewhere.task, "run1", elsewhere)
    assert greeted(Node(tmp_path, 1, agent=f"{MORTAL}:build"), elsewhere)["kind"] == "present"


def planted(folder: pathlib.Path) -> pathlib.Path:
    file = folder / "evil.py"
    file.write_text(
        f"import pathlib\npathlib.Path({str(folder / 'ran')!r}).touch()\nimport fedhsa\nf = fedhsa.FedHSA\n"
    )
    return file


CODE = {
    "a problem in a file": {"problem": "FILE:f"},
    "an algorithm in a file": {"algorithm": "Averaged(FILE:f)"},
    "an algorithm in a module": {"algorithm": "evil:f"},
    "an agent in a file": {"agent": "FILE:f", "dim": 2},
    "a module of Python": {"problem": "os:system"},
}


@pytest.mark.parametrize("name", CODE)
def test_code_that_the_servers_plan_names_is_neither_run_nor_looked_at(name, tmp_path, monkeypatch):
    file = planted(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    changes = {key: v.replace("FILE", str(file)) if isinstance(v, str) else v for key, v in CODE[name].items()}
    text = json.dumps(json.loads(PLAN.to_json()) | changes)
    said = header(
        Node(tmp_path / "node", 0).answer(
            pack({"kind": "hello", "run": "r", "task": PLAN.task.digest, "plan": text}, {})
        )
    )
    assert (said["kind"], said["code"], said["first"]) == ("rejection", "mismatch", 0)
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "node").exists()


def test_code_that_the_owner_allows_is_matched_by_its_name_and_taken_from_the_owners_file(tmp_path):
    file = planted(tmp_path)
    server = PLAN.replace(algorithm=f"Averaged({file}:f)")
    (mine := tmp_path / "mine").mkdir()
    own = mine / "evil.py"
    own.write_text("import fedhsa\nf = fedhsa.FedHSA\n")
    asked = hello(server.task, "run1", server)
    (tmp_path / "ran").unlink()
    assert header(Node(tmp_path / "node", 0, allow=[f"{own}:f"]).answer(asked))["kind"] == "present"
    assert not (tmp_path / "ran").exists()


MINE = {"agent": f"{MORTAL}:build"}
REFUSED = {
    "another number of agents": ({"num_agents": 1}, {}, "this node is agent 1, the plan is for 1 agents"),
    "a parameter beyond all messages": ({"dim": 2**30}, {}, "1073741824 parameters do not fit"),
    "another kind of value": ({"problem": ["td"]}, {}, "the plan cannot be read"),
    "an unknown name": ({"problm": "td"}, {}, "the plan cannot be read (TypeError)"),
    "a text without end": ({"algorithm": 2000 * "a"}, {}, "a text in it is too long"),
    "a plan without end": ({"option": {"x": 20_000 * [0]}}, {}, "the plan cannot be read: it has"),
    "more than memory holds": (
        {"agent": "x.py:build", "dim": 3, "algorithm": "FedHSA(local_steps=1000000000)"},
        MINE,
        "1000000000 observations in a round are too many",
    ),
    "a problem where the node has data": ({}, MINE, "this node builds an agent of its own"),
    "another function": ({"agent": "x.py:make", "dim": 3}, MINE, "`make`, this node's by `build`"),
    "another plan than the pinned one": ({"key": 5, "step_size": 1.0}, {"plan": PLAN}, "key, step_size differ"),
    "more agents than in the pinned plan": ({"num_agents": 3}, {"plan": PLAN}, "num_agents differ"),
    "other settings than the digest says": ({"key": 5}, {}, "differs from the server's"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_node_refuses_is_told_in_a_sentence_and_leaves_no_folder(name, tmp_path):
    changes, given, why = REFUSED[name]
    told = []
    plan = json.dumps(json.loads(PLAN.to_json()) | changes)
    said = header(Node(tmp_path / "node", 1, say=told.append, **given).answer(greeting(plan)))
    assert (said["kind"], said["code"]) == ("rejection", "mismatch")
    assert why in said["reason"]
    assert why in told[0]
    assert not (tmp_path / "node").exists()


def test_a_pinned_plan_is_taken_part_in_whatever_the_path_to_its_file(tmp_path):
    node = Node(tmp_path, 1, agent=f"{MORTAL}:build", plan=OWN.replace(agent="mortal.py:build"))
    assert greeted(node, OWN)["kind"] == "present"


def test_a_message_of_a_run_without_a_plan_or_that_is_none_is_rejected_and_leaves_no_folder(tmp_path):
    node = Node(tmp_path / "node", 0)
    assert header(node.answer(hello(PLAN.task, "run1")))["code"] == "unknown"
    for data in (b"", b"fedhsa/1", b"nonsense", hello(PLAN.task, "run1", PLAN).replace(b"run1", b"../x")):
        assert header(node.answer(data))["kind"] == "rejection"
    assert not (tmp_path / "node").exists()


def test_a_run_keeps_the_plan_that_it_began_with(tmp_path):
    node, other = Node(tmp_path, 0), dataclasses.replace(PLAN, key=1)
    assert greeted(node, PLAN)["kind"] == "present"
    assert greeted(node, other)["code"] == "foreign"
    assert greeted(node, PLAN)["kind"] == "present"


def test_a_node_has_few_runs_in_memory_and_not_many_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(node_module, "IN_MEMORY", 1)
    monkeypatch.setattr(node_module, "ON_DISK", 2)
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(1))
    node, cleared = Node(tmp_path, 0), []
    said = [greeted(node, PLAN, f"run{i}") for i in (0, 1, 0, 2, 1)]
    assert [answer["kind"] for answer in said] == ["present", "present", "present", "rejection", "present"]
    assert "keeps 2 runs" in said[3]["reason"]
    assert list(node._sites) == ["run1"]
    assert len(cleared) == 3
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["run0", "run1"]


def test_a_nodes_owner_is_told_what_keeps_it_from_answering(tmp_path):
    told = []
    with Node(tmp_path, 0, config={"max_rounds": 1}, say=told.append) as node:
        assert greeted(node, PLAN)["kind"] == "present"
        server = Server(PLAN.task, MemoryTransport(lambda site: node, 1), [range(PLAN.num_agents)], run="run1")
        request = server._request_header("request", 0, 0, 0) | {"agents": 1}
        zeros = {"value": np.zeros(len(PLAN.task.theta))}
        for t in (0, 1):
            node.answer(pack(request | {"round": t, "attempt": request["attempt"] + t, "counted": t - 1}, zeros))
    assert told[1:] == [
        "Could not answer in round 2: this site has taken part in all rounds that it agreed to, 1 (`max_rounds`)."
    ]


def test_a_node_started_twice_in_one_folder_ends_in_a_sentence(tmp_path):
    with Node(tmp_path, 0), pytest.raises(BusyError, match=r"A node is already running in .*\. Stop that one first"):
        Node(tmp_path, 0).__enter__()
    with Node(tmp_path, 0):
        pass
    assert (tmp_path / "compiled").stat().st_mode & 0o077 == 0


def test_an_error_of_the_owners_code_is_told_here_in_words_and_elsewhere_by_its_type_alone(tmp_path):
    source, told = tmp_path / "broken.py", []
    source.write_text("def build(place):\n    raise ValueError('SECRET-4711')\n")
    node = Node(tmp_path / "node", 0, agent=f"{source}:build", say=told.append)
    plan = OWN.replace(agent="broken.py:build")
    reply = node.answer(hello(plan.task, "run1", plan))
    assert node.answer(hello(plan.task, "run1", plan)) == reply
    assert header(reply)["reason"].startswith("ValueError")
    assert b"SECRET" not in reply
    assert len(told) == 1
    assert "SECRET-4711" in told[0]


@pytest.mark.slow
def test_a_node_carries_neither_figures_nor_theory_in_its_memory():
    """They made a tenth of it."""
    loaded = "import sys, fedhsa.deploy.node; print(*(name.split('.')[1] for name in sys.modules if 'fedhsa.' in name))"
    found = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "deploy" in found
    assert not {"theory", "plots", "outputs", "cli", "experiments", "comparison"} & {*found}

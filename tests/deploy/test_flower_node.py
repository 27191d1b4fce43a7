"""A stock SuperNode's agent: made from its own settings, silent about its errors, in a process that stays."""

import json
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from fedhsa.deploy import Plan, Store, keys
from fedhsa.deploy.server import hello
from fedhsa.deploy.signing import Identity, Trust
from fedhsa.deploy.wire import unpack

pytest.importorskip("flwr")
from fedhsa.deploy.flower import client
from fedhsa.deploy.flower.resident import answer_here

PLAN = Plan(num_agents=2, dim=2, local_steps=3)


def settings(tmp_path: pathlib.Path, plan: Plan = PLAN, **more) -> dict:
    given = {"plan": plan.to_json(), "state": str(tmp_path / "state"), "data": "", "partition-id": 1}
    return {**given, "num-partitions": 2, **more}


def test_a_node_says_which_agent_it_is(tmp_path):
    said = unpack(answer_here(hello(PLAN.task, "run1"), settings(tmp_path))).header
    assert (said["kind"], said["first"], said["agents"], said["round"]) == ("present", 1, 1, -1)


def test_an_error_in_the_users_code_is_told_by_its_type_alone(tmp_path):
    source = tmp_path / "broken.py"
    source.write_text("def build(place):\n    raise ValueError('SECRET-4711')\n")
    plan = Plan(agent=f"{source}:build", num_agents=2, dim=2)
    reply = answer_here(hello(plan.task, "run1"), settings(tmp_path, plan))
    said = unpack(reply).header
    assert (said["kind"], said["code"], said["first"]) == ("rejection", "failed", 1)
    assert said["reason"].startswith("ValueError")
    assert b"SECRET" not in reply


@pytest.mark.parametrize("data", [b"", b"fedhsa/1", b"nonsense", hello(PLAN.task, "run1").replace(b"run1", b"../x")])
def test_what_is_no_message_of_a_run_is_rejected_and_makes_no_folder(data, tmp_path):
    assert unpack(answer_here(data, settings(tmp_path))).header["kind"] == "rejection"
    assert not (tmp_path / "state").exists()


def test_a_node_of_another_number_of_nodes_does_not_take_part(tmp_path):
    said = unpack(answer_here(hello(PLAN.task, "run1"), settings(tmp_path, **{"num-partitions": 3}))).header
    assert (said["kind"], said["code"]) == ("rejection", "failed")


def test_the_users_file_does_not_take_the_place_of_a_module_of_the_same_name(tmp_path):
    site = sys.modules.get("site")
    source = tmp_path / "site.py"
    source.write_text(
        "import numpy as np\nimport fedhsa as fh\n\n"
        "class Mean(fh.AbstractAgent):\n    source: fh.AbstractSource\n"
        "    def operator(self, theta, o, /):\n        return o - theta\n\n"
        "def build(place):\n    return Mean(fh.sources.Replay(np.ones((5, 2)), wrap=True))\n"
    )
    plan = Plan(agent=f"{source}:build", num_agents=2, dim=2)
    assert unpack(answer_here(hello(plan.task, "run1"), settings(tmp_path, plan))).header["kind"] == "present"
    assert sys.modules.get("site") is site


# The outer process plays Flower's, and the inner ones those that it starts for messages.
OUTER = """
import json, subprocess, sys
for _ in range(2):
    subprocess.run([sys.executable, "-P", "-c", sys.argv[1], *sys.argv[2:]], check=True)
"""
INNER = """
import importlib.util, json, pathlib, sys
spec = importlib.util.spec_from_file_location("client", sys.argv[1])
client = importlib.util.module_from_spec(spec)
spec.loader.exec_module(client)
folder = pathlib.Path(sys.argv[2])
reply = client.reply((folder / "message").read_bytes(), json.loads((folder / "settings").read_text()))
assert "jax" not in sys.modules
with open(folder / "replies", "ab") as file:
    file.write(len(reply).to_bytes(8, "little") + reply)
"""


@pytest.mark.slow
def test_messages_are_answered_by_one_process_that_ends_with_the_one_that_had_it_started(tmp_path):
    message, given = hello(PLAN.task, "run1"), settings(tmp_path)
    (tmp_path / "message").write_bytes(message)
    (tmp_path / "settings").write_text(json.dumps(given))
    planted = tmp_path / "planted"
    (planted / "fedhsa").mkdir(parents=True)
    (planted / "fedhsa" / "__init__.py").write_text("open('ran', 'w')\n")
    command = [sys.executable, "-P", "-c", OUTER, INNER, client.__file__, str(tmp_path)]
    with subprocess.Popen(command, cwd=planted) as flower:
        assert flower.wait(timeout=300) == 0
    expected = answer_here(message, settings(tmp_path, state=str(tmp_path / "other")))
    replies = (tmp_path / "replies").read_bytes()
    assert replies == 2 * (len(expected).to_bytes(8, "little") + expected)
    assert not (planted / "ran").exists()
    (folder,) = (tmp_path / "state").glob("resident-*")
    assert folder.stat().st_mode & 0o077 == 0
    deadline = time.monotonic() + 60
    while listens(folder):  # until it has noticed that the other has ended
        assert time.monotonic() < deadline
        time.sleep(0.1)


def listens(folder: pathlib.Path) -> bool:
    with client.place(folder) as name, socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(name) == 0


def test_a_socket_where_others_can_enter_is_not_used(tmp_path):
    folder = tmp_path / "resident"
    folder.mkdir(mode=0o700)
    with client.place(folder) as name:
        assert name.endswith("socket")
    folder.chmod(0o755)
    with pytest.raises(PermissionError), client.place(folder):
        pass


def test_with_keys_a_node_answers_only_what_the_server_has_signed_and_signs_its_answer(tmp_path):
    made = keys.make_keys(tmp_path / "federation", 2)
    given = settings(tmp_path, keys=str(made / "node-1"))
    server, trust, asked = Identity.load(made / "server"), Trust.load(made / "server"), hello(PLAN.task, "run1")
    for forged in (asked, Identity.load(made / "node-0").sign(asked)):
        said = unpack(trust.open(answer_here(forged, given), "node-1")).header
        assert (said["kind"], said["code"]) == ("rejection", "forged")
    assert not (tmp_path / "state").exists()
    assert unpack(trust.open(answer_here(server.sign(asked), given), "node-1")).header["kind"] == "present"
    other = unpack(trust.open(answer_here(server.sign(asked), {**given, "partition-id": 0}), "node-1")).header
    assert other["code"] == "failed"  # it has the key of agent 1, and says that it is agent 0


def test_only_its_owner_can_read_what_a_site_saves(tmp_path):
    site = PLAN.site([0], Store(tmp_path / "0.state"), "run1")
    site.store.save({"kind": "site"}, {"x": np.zeros(2)})
    assert site.store.path.stat().st_mode & 0o077 == 0

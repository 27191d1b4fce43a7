"""A real Flower federation gives the engine's numbers, also when its processes are killed. All of this is slow."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedhsa
from fedhsa.deploy import Missing, Plan

pytest.importorskip("flwr")
network = pytest.importorskip("fedhsa.deploy.flower.network")
from fedhsa.deploy.flower.write import write_app  # noqa: E402

pytestmark = pytest.mark.slow

TD = Plan(problem="td", num_agents=3, dim=3, option={"num_states": 6}, step_size=0.05, local_steps=5)


def theta(folder: pathlib.Path, plan: Plan) -> np.ndarray:
    with np.load(folder / "curves.npz") as arrays:
        return arrays[f"{plan.algorithm}/theta"]


def events(folder: pathlib.Path, name: str) -> list[dict]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def close_to_engine(folder: pathlib.Path, plan: Plan, rounds: int) -> None:
    expected = fedhsa.simulate(plan.built_problem, plan.method, rounds=rounds).theta
    np.testing.assert_allclose(theta(folder, plan), expected, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A SuperLink behind its gate, and three nodes of ours."""
    with network.Network(3, logs=tmp_path_factory.mktemp("logs")) as found:
        yield found


def app_for(found, tmp_path: pathlib.Path, plan: Plan = TD, **options) -> pathlib.Path:
    settings = {"out": tmp_path / "out", "state": tmp_path / "state", "keys": found.keys / "server"}
    return write_app(tmp_path / "app", plan, **settings, **options)


def test_five_rounds_of_a_method_with_memories_on_three_nodes_are_those_of_the_engine(nodes, tmp_path):
    plan = TD.replace(algorithm="SCAFFLSA")
    assert nodes.run(app_for(nodes, tmp_path, plan, rounds=5)) == 0
    close_to_engine(tmp_path / "out", plan, 5)
    assert [event["agents"] for event in events(tmp_path / "out", "round")] == [3] * 5
    assert not events(tmp_path / "out", "rejected")


def test_a_node_killed_in_the_middle_changes_nothing(nodes, tmp_path):
    app, killed = app_for(nodes, tmp_path, rounds=60), []

    def watch(line: str) -> None:
        if "/60: " in line and len(killed) < 2:  # not every round is told
            nodes.kill_node(1)
            nodes.start_node(1)
            killed.append(1)

    assert nodes.run(app, on_line=watch) == 0
    assert len(killed) == 2
    close_to_engine(tmp_path / "out", TD, 60)


def test_a_node_that_stays_away_is_skipped_and_takes_part_again_after_it_returns(nodes, tmp_path):
    app = app_for(nodes, tmp_path, rounds=2, missing=Missing("skip", patience=15))
    assert nodes.run(app) == 0
    nodes.stop_node(2)
    assert nodes.run(app, {"resume": True, "rounds": 4}) == 0
    nodes.start_node(2)
    assert nodes.run(app, {"resume": True, "rounds": 9}) == 0
    absent = [event["absent"] for event in events(tmp_path / "out", "round")]
    assert absent[2:4] == [[2], [2]]
    assert absent[-1] == []


def test_a_run_whose_superlink_was_killed_goes_on_in_a_new_run_with_nodes_that_stayed(tmp_path):
    plan = TD.replace(num_agents=2)
    with network.Network(2, logs=tmp_path / "logs") as nodes:

        def watch(line: str) -> None:
            if "/60: " in line:
                nodes.kill_superlink()

        app, before = app_for(nodes, tmp_path, plan, rounds=60), nodes.node_pids
        assert nodes.run(app, on_line=watch) != 0
        done = len(events(tmp_path / "out", "round"))
        assert 2 <= done < 60
        nodes.start_superlink()
        assert nodes.run(app, {"resume": True}) == 0
        assert nodes.node_pids == before
    assert len(events(tmp_path / "out", "resumed")) == 1
    close_to_engine(tmp_path / "out", plan, 60)


def test_stock_supernodes_give_the_same_numbers_also_when_one_is_killed(tmp_path):
    plan = TD.replace(num_agents=2, algorithm="LocalSA")  # Flower starts a process for every message
    with network.Network(2, logs=tmp_path / "logs", stock=True) as nodes:

        def watch(line: str) -> None:
            if "Round 1/2" in line:
                time.sleep(2)  # the next exchange is under way
                nodes.kill_node(1)
                nodes.start_node(1)

        assert nodes.run(app_for(nodes, tmp_path, plan, rounds=2), on_line=watch) == 0
    close_to_engine(tmp_path / "out", plan, 2)


def test_the_demo_ends_with_its_processes_gone_also_after_ctrl_c(tmp_path):
    mark = f"demo-{os.getpid()}"
    environment = {**os.environ, "FEDHSA_TEST_MARK": mark, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    # In the background of a shell, where tests may run, Ctrl-C is ignored unless somebody asks for it.
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from fedhsa.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "deploy", "demo", "--transport", "flower"]
    command += ["--dim", "2", "--rounds", "9", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("Round"):
                break
        assert marked(mark)
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        assert demo.wait(timeout=120) == 130
    assert not marked(mark)
    assert not list((tmp_path / "tmp").iterdir())
    assert (tmp_path / "out" / "server.state").exists()


def marked(mark: str) -> list[str]:
    """The processes that have this mark in their environment."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found

"""`fedhsa run --hosts`: several processes as one command."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from fedhsa.cli import main
from fedhsa.cli.hosts import Place, place
from fedhsa.cli.settings import RunSettings

SMALL = ["--algorithm", "FedHSA", "--num-agents", "5", "--dim", "3", "--seeds", "3"]
COMMAND = [sys.executable, "-c", "import sys; from fedhsa.cli import main; sys.exit(main())", "run", *SMALL]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "0"], "fedhsa: `hosts` must be a text like '2', 'node0,node1' or 'auto', got '0'."),
        (["--hosts", "node0,,node1"], "got 'node0,,node1'."),
        (["--host-index", "1"], "`host_index` needs `hosts` with a name for every process"),
        (["--hosts", "2", "--host-index", "1"], "`host_index` needs `hosts` with a name for every process"),
        (["--hosts", "no-such-a,no-such-b"], "none of no-such-a, no-such-b is this machine. Give each its"),
        (["--hosts", "localhost,localhost"], "several of localhost, localhost is this machine. Give each its"),
        (["--hosts", "a,b", "--host-index", "2"], "`host_index` counts from 0 and must be below"),
        (["--hosts", "a,b", "--host-timeout", "0"], "`host_timeout` must be"),
    ],
)
def test_wrong_hosts_end_with_one_sentence_and_code_two(arguments, message, tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "out"), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_host_finds_its_own_name_and_how_many_there_are():
    assert place(RunSettings(hosts="node0,localhost,node2")) == Place("node0:7654", 3, 1)
    assert place(RunSettings(hosts="localhost:81,node1")) == Place("localhost:81", 2, 0)
    assert place(RunSettings(hosts=f"node0,{socket.gethostname()}.domain")) == Place("node0:7654", 2, 1)
    assert place(RunSettings(hosts="a,b,c", host_index=2)) == Place("a:7654", 3, 2)
    assert place(RunSettings(hosts="3")) == 3
    assert place(RunSettings(hosts="auto")) == Place(None, None, None)
    assert place(RunSettings()) is None


def test_one_of_several_tasks_of_a_job_is_told_how_to_share_the_work(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert place(RunSettings()) is None  # a batch script, which runs once
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[0-3]")
    with pytest.warns(UserWarning, match="one of 4 tasks of a job.*add `--hosts auto`"):
        assert place(RunSettings()) is None


def same(folder, other):
    with np.load(folder / "curves.npz") as found, np.load(other / "curves.npz") as expected:
        for name in expected.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_two_processes_stopped_by_ctrl_c_are_resumed_by_one(tmp_path, capfd):
    settings = ["--rounds", "50000", "--every", "1000", "--out", str(tmp_path / "two"), "--checkpoint"]
    process = subprocess.Popen([*COMMAND, *settings, "--hosts", "2"], stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "two" / "checkpoints" / "FedHSA.npz", process)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted: what is done was written. Continue with" in printed
    assert "Gloo" not in printed
    assert "2 processes" in json.dumps(json.loads((tmp_path / "two" / "manifest.json").read_text()))
    assert main(["run", *SMALL, *settings, "--resume"]) == 0
    assert main(["run", *SMALL, *settings[:-3], "--out", str(tmp_path / "one")]) == 0
    same(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
def test_a_lost_process_ends_the_others_with_a_sentence_and_a_checkpoint(tmp_path):
    settings = ["--rounds", "1000000", "--every", "1000", "--out", str(tmp_path), "--checkpoint", "--hosts", "2"]
    process = subprocess.Popen([*COMMAND, *settings], stderr=subprocess.PIPE, text=True)
    children = wait_for(tmp_path / "checkpoints" / "FedHSA.npz", process)
    os.kill(children[1], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "fedhsa: Another process of this run ended or cannot be reached" in said
    assert "--resume`, on any number of hosts." in said
    assert "fedhsa: process 1 of 2 was ended by SIGKILL." in said
    assert (tmp_path / "checkpoints" / "FedHSA.npz").exists()


def wait_for(path, process) -> list[int]:
    """Waits until a file is there; gives the processes that this one has started, oldest first."""
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return sorted(map(int, file.read().split()))

"""`fedhsa deploy`: what its commands write, print and refuse; the networks themselves are tested in tests/deploy."""

import json
import pathlib
import stat

import numpy as np
import pytest

import fedhsa
from fedhsa.cli import main
from fedhsa.cli.deploy_settings import FlowerSettings, MemorySettings
from fedhsa.cli.parsing import parse
from fedhsa.cli.screen import chart
from fedhsa.deploy import Plan
from fedhsa.outputs import FILES

pytestmark = pytest.mark.usefixtures("unrendered")

SMALL = ["--num-agents", "2", "--dim", "2", "--local-steps", "3", "--step-size", "0.05"]
PLAN = Plan(num_agents=2, dim=2, local_steps=3, step_size=0.05)


def memory(folder: pathlib.Path, *more: str) -> int:
    return main(["deploy", "memory", *SMALL, "--out", str(folder), *more])


def rejection(capsys, *arguments: str) -> str:
    """The one line that a wrong command prints."""
    assert main(["deploy", *arguments]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert len(captured.err.splitlines()) == 1
    return captured.err


def test_a_run_in_memory_leaves_the_numbers_of_the_engine_and_the_files_of_a_run(tmp_path, capsys):
    assert memory(tmp_path, "--rounds", "4", "--faults", "0.3") == 0
    said = capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} >= {*FILES, "log.jsonl", "server.state"}
    expected = fedhsa.simulate(PLAN.built_problem, PLAN.method, rounds=4)
    with np.load(tmp_path / "curves.npz") as arrays:
        np.testing.assert_allclose(arrays["FedHSA/theta"], expected.theta, rtol=1e-12)
        np.testing.assert_allclose(arrays["FedHSA/error"], expected.error, rtol=1e-9)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["command"].startswith("fedhsa deploy memory --num-agents 2")
    policy = manifest["algorithms"]["FedHSA"]["settings"]["deploy"]["missing"]
    assert policy == {"action": "wait", "patience": 600.0, "at_least": 1}
    assert "Round 4/4: error" in said
    assert "Survived:" in said


def test_a_run_goes_on_where_it_ended_and_status_tells_how_it_stands(tmp_path, capsys):
    assert memory(tmp_path, "--rounds", "2") == 0
    assert memory(tmp_path, "--rounds", "4", "--resume") == 0
    capsys.readouterr()
    assert main(["deploy", "status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["round"], found["rounds"], found["resumed"]) == ("finished", 4, 4, 1)
    assert found["transport"] == "memory"
    assert found["bytes_up"] > 0
    expected = fedhsa.simulate(PLAN.built_problem, PLAN.method, rounds=4)
    assert found["error"] == pytest.approx(expected.error[0, -1], rel=1e-9)
    assert main(["deploy", "status", str(tmp_path)]) == 0
    assert "finished" in capsys.readouterr().out


def test_a_run_does_not_go_on_with_another_problem(tmp_path, capsys):
    assert memory(tmp_path, "--rounds", "1") == 0
    assert memory(tmp_path, "--rounds", "2", "--resume", "--problem-key", "7") == 2
    assert "belongs to another run" in capsys.readouterr().err


def test_a_checkpoint_that_was_being_written_is_found(tmp_path, capsys):
    assert memory(tmp_path, "--rounds", "2") == 0
    (tmp_path / "server.state").rename(tmp_path / "server.state~")  # as a process killed in between leaves it
    assert memory(tmp_path, "--rounds", "3", "--resume") == 0
    assert "continues after round 2" in capsys.readouterr().out


def test_data_of_this_machine_are_found_from_everywhere_and_others_are_left_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.csv").touch()
    agent = ["--agent", "site.py:build", "--dim", "2"]
    here = parse(MemorySettings, [*agent, "--data", "{number}.csv"]).config_of_sites()
    there = parse(FlowerSettings, [*agent, "--data", "{number}.csv", "--write", "app"]).config_of_sites()
    assert here == {"data": str(tmp_path / "{number}.csv")}
    assert there == {"data": "{number}.csv"}


def test_status_finds_the_latest_run_and_says_where_there_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", "status"]) == 1
    assert "There is no run" in capsys.readouterr().err
    assert main(["deploy", "memory", *SMALL, "--rounds", "1"]) == 0
    capsys.readouterr()
    assert main(["deploy", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(pathlib.Path("runs", "deploy", "memory"))


def test_keys_are_made_with_one_command_and_never_overwritten(tmp_path, capsys):
    folder = tmp_path / "federation"
    command = ["deploy", "keys", str(folder), "--nodes", "2", "--host", "192.0.2.7"]
    assert main(command) == 0
    assert "COMMANDS.txt" in capsys.readouterr().out
    assert "192.0.2.7" in (folder / "COMMANDS.txt").read_text()
    assert stat.S_IMODE((folder / "node-1" / "key").stat().st_mode) == 0o600
    assert main(command) == 1
    assert "never overwritten" in capsys.readouterr().err


def test_a_flower_app_is_written_with_the_plan_and_the_users_own_file(tmp_path, capsys):
    source = tmp_path / "site.py"
    source.write_text("def build(place):\n    return None\n")
    app = tmp_path / "app"
    command = ["deploy", "flower", "--write", str(app), "--agent", f"{source}:build", "--dim", "2", "--rounds", "7"]
    assert main(command) == 0
    assert "flwr run" in capsys.readouterr().out
    text = (app / "pyproject.toml").read_text()
    assert '"rounds" = 7' in text
    assert "federation.site_agent:build" in text
    assert (app / "federation" / "site_agent.py").read_text() == source.read_text()
    assert main(command) == 0  # an app written before is replaced


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demoo"], "Did you mean 'demo'?"),
        (["memory", "--algorithm", "FedHSA", "LocalSA"], "one algorithm at a time"),
        (["memory", "--missing", "skp"], "'wait', 'skip', 'fail'"),
        (["memory", "--missing", "skip", "--algorithm", "Scaffnew"], "rounds need all agents"),
        (["memory", "--patience", "-1"], "`patience` must be greater than 0"),
        (["memory", "--agent", "build"], "FILE.py:FUNCTION"),
        (["memory", "--agent", "nowhere.py:build"], "`agent` needs `dim`"),
        (["memory", "--faults", "2"], "`faults` must be at most 0.95"),
        (["memory", "--round", "3"], "Did you mean '--rounds'?"),
        (["flower"], "one of `--write DIR`, `--simulate` and `--superlink HOST:PORT`"),
        (["flower", "--superlink", "127.0.0.1:1"], "`--root-certificates ca.crt`"),
        (["flower", "--write", "app", "--insecure"], "`insecure` does nothing with `--write`"),
        (["memory", "--at-least", "2"], "`at_least` goes with `--missing skip`"),
        (["ray", "--actors", "0"], "`actors` must be at least 1"),
    ],
)
def test_what_cannot_be_run_is_rejected_with_one_sentence(arguments, words, capsys):
    assert words in rejection(capsys, *arguments)


@pytest.mark.parametrize("command", [[], ["demo"], ["memory"], ["ray"], ["flower"], ["keys"], ["status"]])
def test_every_command_explains_itself(command, capsys):
    assert main(["deploy", *command, "--help"]) == 0
    assert "fedhsa deploy" in capsys.readouterr().out


def test_the_chart_has_the_longest_bar_where_the_error_is_largest():
    lines = chart(np.array([1.0, 0.1, 0.01]), "error").splitlines()[1:]
    lengths = [line.count("█") for line in lines]
    assert lengths == sorted(lengths, reverse=True)
    assert abs((lengths[0] - lengths[1]) - (lengths[1] - lengths[2])) <= 1  # equal ratios, equal differences

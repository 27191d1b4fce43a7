"""`fedhsa deploy`: what its commands write, print and refuse; the networks themselves are tested in tests/deploy."""

import csv
import importlib.util
import io
import json
import pathlib
import stat

import numpy as np
import pytest
from rich.console import Console

import fedhsa
from fedhsa.cli import main
from fedhsa.cli.deploy_settings import COMMANDS, FlowerSettings, MemorySettings
from fedhsa.cli.parsing import parse
from fedhsa.cli.screen import chart
from fedhsa.cli.watching import watching
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


@pytest.mark.parametrize(
    "log",
    ["", "garbage", "[1, 2]", '{"event": 3}', '{"event": "started"}', '{"event": "started", "run": 1, "rounds": "x"}'],
)
def test_a_broken_log_is_said_to_be_one(log, tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text(log)
    assert main(["deploy", "status", str(tmp_path)]) == 1
    assert "damaged" in capsys.readouterr().err


def test_status_finds_the_latest_run_and_says_where_there_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", "status"]) == 1
    assert "There is no run" in capsys.readouterr().err
    assert main(["deploy", "memory", *SMALL, "--rounds", "1"]) == 0
    capsys.readouterr()
    assert main(["deploy", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(pathlib.Path("runs", "deploy", "memory"))


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["demo"], "grpc", "grpc"),
        (["grpc"], "cryptography", "grpc"),
        (["demo", "--transport", "flower"], "flwr", "flower"),
        (["flower", "--write", "app"], "flwr", "flower"),
        (["keys"], "cryptography", "grpc"),
    ],
)
def test_a_command_without_what_it_needs_says_which_extra_to_install(command, package, extra, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more))
    assert main(["deploy", *command]) == 1
    assert f"pip install '.[{extra}]'` in a clone of fedhsa" in capsys.readouterr().err


SITE = """
import numpy as np, fedhsa as fh
from fedhsa.deploy import MeasuredAgent

class Mean(fh.AbstractAgent):
    source: fh.AbstractSource

    def operator(self, theta, o, /):
        return o - theta

def build(context):
    values = np.loadtxt(context.config["data"], ndmin=2)
    test = values[-2:]
    def measure(theta):
        return {"mae": float(np.abs(test - theta).mean()), "mae_naive": float(np.abs(test - values[0]).mean())}
    return MeasuredAgent(Mean(fh.sources.Replay(values[:-2], wrap=True)), measure, weight=2 + context.number)
"""


def test_what_sites_measure_is_shown_logged_tabulated_exported_and_told_by_status(tmp_path, capsys):
    """Two sites with series of constants: the errors on their held-out parts are known beforehand."""
    (tmp_path / "site.py").write_text(SITE)
    for number, values in enumerate(([1.0] * 6, [3.0] * 6)):
        np.savetxt(tmp_path / f"{number}.txt", values)
    own = ["--agent", f"{tmp_path}/site.py:build", "--dim", "1", "--num-agents", "2", "--step-size", "0.5"]
    own += ["--data", f"{tmp_path}/{{number}}.txt", "--algorithm", "LocalSA", "--local-steps", "1"]
    out, prom = tmp_path / "out", tmp_path / "run.prom"
    assert main(["deploy", "memory", *own, "--rounds", "20", "--out", str(out), "--metrics", str(prom)]) == 0
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if line.startswith("Round ")]) == 10  # one per tenth
    # From 0 a round goes half of the way to 2, the mean of both: to 1, with errors 0 and 2, whose weights are 2 and 3.
    assert "Round  2/20: mae 1.2 (naive 0) after round 1" in said
    assert "Measured after round 20: mae 1 (naive 0); 1 at agent 0, 1 at agent 1." in said
    with open(out / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    first, last = rows[:3], rows[-3:]
    assert [(row["agent"], float(row["mae"])) for row in first] == [("average", 2.2), ("0", 1.0), ("1", 3.0)]
    assert [round(float(row["mae"]), 4) for row in last] == [1.0, 1.0, 1.0]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["metrics"]["round"] == 20
    assert manifest["metrics"]["weights"] == [2.0, 3.0]
    assert (out / "metrics.png").exists()
    assert 'metric="mae",agent="1"} ' in prom.read_text()
    assert main(["deploy", "status", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["metrics"]["mae"]["mean"] == pytest.approx(1.0, abs=1e-4)
    assert main(["deploy", "status", str(out)]) == 0
    assert "Measured by the sites after round 20" in capsys.readouterr().out


def test_on_a_terminal_a_table_shows_who_is_missing_what_was_measured_and_when_a_site_was_last_seen():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    measured = {"round": 0, "weights": [1.0] * 30, "metrics": {"mae": {"mean": 0.5, "agents": [0.25, *[0.75] * 29]}}}
    times = {"seconds": 1.0, "bytes_down": 1, "bytes_up": 1, "attempts": 1, "error": None}
    with watching(console) as watch:
        watch({"event": "started", "run": "a1", "round": 0, "rounds": 9, "agents": 30, "error": None})
        watch({"event": "missing", "round": 1, "agents": [29], "why": {"29": "the node is not connected"}})
        watch({"event": "rejected", "code": "stale", "why": "late"})
        watch({"event": "round", "round": 1, "rounds": 9, "agents": 29, "absent": [29], "measured": measured, **times})
        watch({"event": "finished", "round": 1})
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert "Rejected a message (stale): late" in " ".join(lines)
    shown = lines[max(i for i, line in enumerate(lines) if "last seen" in line) :]
    assert shown[0].split() == ["agent", "state", "mae", "last", "seen"]
    assert shown[1].split() == ["0", "answers", "0.25", "round", "1"]
    assert shown[20].split() == ["29", "missing:", "the", "node", "is", "not", "connected", "0.75", "never"]
    assert shown[21].split() == ["average", "0.5"]
    assert shown[22].split() == ["...", "10", "more"]


def test_a_wrong_number_of_parameters_ends_every_kind_of_run_at_once_with_one_sentence(tmp_path, capsys):
    (tmp_path / "site.py").write_text(SITE)
    np.savetxt(tmp_path / "0.txt", np.ones((6, 2)))
    own = ["--agent", f"{tmp_path}/site.py:build", "--dim", "5", "--num-agents", "1", "--data", f"{tmp_path}/0.txt"]
    for command in ("memory", "ray", "demo"):
        assert main(["deploy", command, *own, "--out", str(tmp_path / command)]) == 1
        said = capsys.readouterr().err
        assert "`dim` is 5, but the agents of" in said
        assert len(said.splitlines()) == 1
    assert "Traceback" in (tmp_path / "memory" / "logs" / "sites.log").read_text()


def test_keys_are_made_with_one_command_and_never_overwritten(tmp_path, capsys):
    folder = tmp_path / "federation"
    command = ["deploy", "keys", str(folder), "--nodes", "2", "--host", "192.0.2.7"]
    assert main(command) == 0
    assert "COMMANDS.txt" in capsys.readouterr().out
    assert "192.0.2.7" in (folder / "COMMANDS.txt").read_text()
    assert stat.S_IMODE((folder / "node-1" / "key").stat().st_mode) == 0o600
    assert main(command) == 1
    assert "never overwritten" in capsys.readouterr().err


def test_a_node_joins_changes_its_key_and_leaves_by_commands(tmp_path, monkeypatch, capsys):
    def run(*words, code=0):
        assert main(["deploy", "keys", *words]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    def told(said):
        return said.partition("Fingerprint: ")[2].partition("\n")[0]

    monkeypatch.chdir(tmp_path)
    assert "COMMANDS.txt" in run("create", "fed", "--host", "fed.example.org")
    assert "request.pem" in (tmp_path / "fed" / "COMMANDS.txt").read_text()
    digits = told(run("request", "mine"))
    sign = ["sign", "fed", "mine/request.pem", "--number", "4"]
    assert "Do not sign it" in run(*sign, "--fingerprint", "ab-cd", code=2)
    assert f"if it is not {digits}, run `fedhsa deploy keys exclude fed 4`" in run(*sign)
    assert "Send it to the site" in run(*sign, "--fingerprint", digits)
    assert "This node is agent 4, until" in run("accept", "mine", "fed/server/nodes/node-4.crt")
    assert digits in run("list", "fed")
    new = told(run("request", "mine"))
    assert "in the register with another key" in run(*sign, code=2)
    run(*sign, "--replace", "--fingerprint", new)
    run("accept", "mine", "fed/server/nodes/node-4.crt")
    assert new != digits
    assert new in run("list", "fed/server")
    assert "The old certificate stays valid" in run("renew", "fed", "4")
    assert "restart it" in run("renew", "fed", "server", "--host", "new.example.org", "--new-key")
    assert "`host` and `new_key` require `server`" in run("renew", "fed", "4", "--new-key", code=2)
    assert "node-4 is no longer in the register" in run("exclude", "fed", "node-4")
    assert "node-4" not in run("list", "fed")
    assert "must be given by its number" in run("exclude", "fed", "four", code=2)
    assert "There is no certificate" in run("list", "nowhere", code=1)


def test_a_flower_app_is_written_with_the_plan_and_the_users_own_file(tmp_path, capsys):
    source = tmp_path / "site.py"
    source.write_text("def build(place):\n    return None\n")
    app = tmp_path / "app"
    command = ["deploy", "flower", "--write", str(app), "--agent", f"{source}:build", "--dim", "2", "--rounds", "7"]
    assert main(command) == 0
    assert "flwr run" in capsys.readouterr().out
    text = (app / "pyproject.toml").read_text()
    assert '"rounds" = 7' in text
    assert "federation.own.site:build" in text
    assert (app / "federation" / "own" / "site.py").read_text() == source.read_text()
    assert main(command) == 0  # an app written before is replaced


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demoo"], "Did you mean 'demo'?"),
        (["memory", "--algorithm", "FedHSA", "LocalSA"], "one algorithm at a time"),
        (["memory", "--missing", "skp"], "`missing` must be one of wait, skip, fail, got 'skp'. Did you mean 'skip'?"),
        (["memory", "--missing", "never"], "`missing` must be one of wait, skip, fail, got 'never'"),
        (["memory", "--noise", "nan"], "`noise` must be finite"),
        (["memory", "--epsilon", "1e9"], "protects nothing"),
        (["memory", "--data", "my.csv"], "`data` requires `--agent FILE.py:FUNCTION`"),
        (["memory", "--metrics", "70000"], "`metrics` must be a number from 1 to 65535"),
        (["memory", "--metrics", "999.1.1.1:80"], "999.1.1.1 is not an address"),
        (["memory", "--release-metrics"], "requires `--noise`, `--epsilon` or `--secure-aggregation`"),
        (["keys", "sgin"], "no form 'sgin'. Did you mean 'sign'? For a new folder of this name write `./sgin`"),
        (["keys", "fresh", "--days", "99999999"], "`days` must be at most 36525"),
        (["keys", "fresh", "--port", "70000"], "`port` must be a number from 1 to 65535, got 70000"),
        (["keys", "fresh", "--host", "999.1.1.1"], "`host`: 999.1.1.1 is not an address"),
        (["flower", "--superlink", "192.0.2.7", "--insecure"], "`superlink` must be HOST:PORT"),
        (["memory", "--missing", "skip", "--algorithm", "Scaffnew"], "rounds need all agents"),
        (["memory", "--patience", "-1"], "`patience` must be greater than 0"),
        (["memory", "--agent", "build"], "FILE.py:FUNCTION"),
        (["memory", "--agent", "nowhere.py:build"], "`agent` requires `dim`"),
        (["memory", "--faults", "2"], "`faults` must be at most 0.95"),
        (["memory", "--round", "3"], "Did you mean '--rounds'?"),
        (["flower"], "one of `--write DIR` and `--superlink HOST:PORT`"),
        (["flower", "--superlink", "127.0.0.1:1"], "`superlink` requires `--keys FOLDER`"),
        (
            ["flower", "--superlink", "127.0.0.1:1", "--keys", "k", "--epsilon", "9"],
            "`epsilon` is each node's own setting",
        ),
        (["node"], "needs either `--server HOST:PORT`"),
        (["demo", "--stock"], "`stock` requires `--transport flower`"),
        (["demo", "--transport", "gprc"], "Did you mean 'grpc'?"),
        (["grpc", "--listen", "8000"], "`listen` must be HOST:PORT"),
        (["grpc", "--noise", "20", "--clip", "1"], "`clip` is each node's own setting"),
        (["node", "--superlink", "127.0.0.1:1", "--data", "x"], "`data` requires `--agent"),
        (["superlink", "--listen", "8000"], "`listen` must be HOST:PORT"),
        (["flower", "--write", "app", "--insecure"], "`insecure` has no effect with `--write`"),
        (["memory", "--at-least", "2"], "`at_least` requires `--missing skip`"),
        (["memory", "--minimum-cohort", "2"], "`minimum_cohort` requires `--secure-aggregation`"),
        (["demo", "--transport", "flower", "--stock", "--secure-aggregation"], "hides nothing on stock SuperNodes"),
        (["flower", "--write", "app", "--secure-aggregation"], "hides nothing on stock SuperNodes"),
        (["ray", "--actors", "0"], "`actors` must be at least 1"),
    ],
)
def test_what_cannot_be_run_is_rejected_with_one_sentence(arguments, words, capsys):
    assert words in rejection(capsys, *arguments)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), ["keys", "sign"]])
def test_every_command_explains_itself(command, capsys):
    assert main(["deploy", *command, "--help"]) == 0
    assert "fedhsa deploy" in capsys.readouterr().out


def test_the_chart_has_the_longest_bar_where_the_error_is_largest():
    lines = chart(np.array([1.0, 0.1, 0.01]), "error").splitlines()[1:]
    lengths = [line.count("█") for line in lines]
    assert lengths == sorted(lengths, reverse=True)
    assert abs((lengths[0] - lengths[1]) - (lengths[1] - lengths[2])) <= 1  # equal ratios, equal differences

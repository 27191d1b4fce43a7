"""`fedhsa reproduce` as a user meets it: choosing, changing, continuing, failing honestly."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from fedhsa.cli import main
from fedhsa.experiments.paper.comparison import Comparison
from fedhsa.experiments.run import presets
from fedhsa.experiments.study import base

pytestmark = pytest.mark.usefixtures("unrendered")

NAMES = list(presets.studies())
TINY = ["--option", "num_agents=3", "dim=2", "step_size=0.02", "--rounds", "150"]
KEYS = {"name", "statement", "measured", "expected", "interval", "verdict"}


def reproduce(*args, out):
    """In this process, which is quicker to start and where the tests can change what runs."""
    return main(["reproduce", *args, "--workers", "1", "--out", str(out)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduce")
    assert reproduce("quadratic/noiseless", *TINY, out=out) == 0
    return out


def test_list_shows_every_experiment_with_its_settings(capsys):
    assert main(["reproduce", "--list"]) == 0
    shown = capsys.readouterr().out
    for name in NAMES:
        assert name in shown
    assert "Figure 2b" in shown
    assert "b_level=100.0" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["quadratic/markow"], "Did you mean 'quadratic/markov'?"),
        (["quadratic", "--option", "lazynes=0.5"], "None of these experiments has a setting `lazynes`"),
        (["td", "--option", "lazines=0.5"], "Did you mean 'laziness'?"),
        (["td", "--option", "laziness=soon"], "`laziness` must be a number"),
        (["--seeds", "1"], "`seeds` must be at least 2"),
        (["--preset", "papers"], "`preset` must be one of paper, scripts"),
        (["--device", "abacus"], "`device` must be one of"),
        (
            ["proposition", "--seeds", "3"],
            "`seeds`: proposition has no noise, and every seed would give the same",
        ),
        (["drift", "--rounds", "10"], "None of these experiments has a setting `rounds`"),
        (["--onyl", "td"], "Did you mean '--only'?"),
    ],
)
def test_what_cannot_be_understood_is_rejected_with_a_remedy(args, message, capsys, tmp_path):
    assert reproduce(*args, out=tmp_path) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_families_and_patterns_choose_experiments(capsys):
    assert main(["reproduce", "td", "--only", "quadratic/*", "--list"]) == 0
    shown = capsys.readouterr().out
    assert [name in shown for name in ("td/slow", "quadratic/agents", "nonconvex/agents", "drift")] == [1, 1, 0, 0]


def test_an_experiment_leaves_page_claims_figures_data_and_manifest(finished):
    folder = finished / "quadratic" / "noiseless"
    for name in ("figure.svg", "figure.png", "figure.pdf", "data.csv", "data.npz", "manifest.json"):
        assert (folder / name).stat().st_size > 100
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["timings"]["cpu"]) == {"build", "predict", "simulate", "draw", "other"}
    assert manifest["settings"]["problem.num_agents"] == 3
    assert manifest["command"].startswith("fedhsa reproduce quadratic/noiseless --rounds 150 --option num_agents=3")
    claims = json.loads((finished / "claims.json").read_text())
    assert all(set(claim) >= KEYS and claim["verdict"] in ("pass", "fail") for claim in claims)
    page = (finished / "report.html").read_text()
    assert "quadratic/noiseless" in page
    assert "not checked" in page


def test_what_is_finished_is_not_simulated_again(finished, monkeypatch, capsys):
    def never(*args, **kwargs):
        raise AssertionError("simulated again")

    monkeypatch.setattr(base, "simulate", never)
    drawn = (finished / "quadratic" / "noiseless" / "figure.png").stat().st_mtime_ns
    assert reproduce("quadratic/noiseless", *TINY, out=finished) == 0
    assert "reused" in capsys.readouterr().out
    assert (finished / "quadratic" / "noiseless" / "figure.png").stat().st_mtime_ns == drawn
    with pytest.raises(AssertionError, match="simulated again"):
        reproduce("quadratic/noiseless", *TINY, "--again", out=finished)
    with pytest.raises(AssertionError, match="simulated again"):
        reproduce("quadratic/noiseless", *TINY[:-1], "151", out=finished)


def test_a_broken_outcome_is_made_again(finished, tmp_path):
    (tmp_path / "quadratic" / "noiseless").mkdir(parents=True)
    data = (finished / "quadratic" / "noiseless" / "data.npz").read_bytes()
    (tmp_path / "quadratic" / "noiseless" / "data.npz").write_bytes(data[: len(data) // 2])
    assert reproduce("quadratic/noiseless", *TINY, out=tmp_path) == 0
    assert (tmp_path / "quadratic" / "noiseless" / "data.npz").read_bytes() == data


def test_a_run_that_is_too_short_decides_nothing_and_says_why(tmp_path, capsys):
    assert reproduce("quadratic/noiseless", *TINY[:-1], "20", out=tmp_path) == 0
    shown = capsys.readouterr().out
    assert "Not decided: quadratic/noiseless: root" in shown
    assert "the run is too short, since theory puts it at" in shown
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert {claim["verdict"] for claim in claims} == {"pass", "not decided"}
    assert "1 claim is not decided" in (tmp_path / "report.html").read_text()


def test_a_failed_claim_fails_the_command_and_is_named(finished, monkeypatch, capsys):
    monkeypatch.setattr("fedhsa.experiments.paper.comparison.DEEP", -1.0)  # which no squared error is below
    monkeypatch.setattr(Comparison, "_too_short", lambda self, end: None)
    assert reproduce("quadratic/noiseless", *TINY, out=finished) == 1
    assert "Failed: quadratic/noiseless: root" in capsys.readouterr().out


def test_settings_that_diverge_fail_with_the_reason_and_the_rest_goes_on(tmp_path, capsys):
    options = ["--option", "num_agents=3", "dim=2", "step_size=5.0"]
    assert reproduce("quadratic/noiseless", "nonconvex/noiseless", *options, out=tmp_path) == 1
    shown = capsys.readouterr()
    assert shown.err.count("Use a smaller `step_size`") == 2
    assert "quadratic/noiseless" in (tmp_path / "report.html").read_text()


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_continues(tmp_path, monkeypatch, capsys):
    original, first = Comparison.run, tmp_path / "quadratic" / "noiseless" / "data.npz"

    def interrupted(self, runner):
        if self.name == "nonconvex/noiseless":
            while not first.exists():
                time.sleep(0.01)
            raise KeyboardInterrupt
        return original(self, runner)

    monkeypatch.setattr(Comparison, "run", interrupted)
    names = ("quadratic/noiseless", "nonconvex/noiseless")
    assert reproduce(*names, *TINY, out=tmp_path) == 130
    assert "The same command continues" in capsys.readouterr().out
    monkeypatch.setattr(Comparison, "run", original)
    reproduce(*names, *TINY, out=tmp_path)
    shown = capsys.readouterr().out
    assert "quadratic/noiseless    reused" in shown
    assert "nonconvex/noiseless    reused" not in shown


@pytest.mark.slow
def test_kill_9_loses_at_most_the_experiment_under_way(tmp_path):
    program = "import sys; from fedhsa.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "reproduce", "quadratic", "--quick", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    folder, deadline = tmp_path / "quick", time.monotonic() + 120
    while not list(folder.glob("*/*/data.npz")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # its workers too, which would otherwise finish what they are doing
    process.wait()
    done = {f"{path.parent.parent.name}/{path.parent.name}" for path in folder.glob("*/*/data.npz")}
    assert 0 < len(done) < 3
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    reused = {line.split()[1] for line in again.stdout.splitlines() if line.endswith("reused")}
    assert reused == done


def test_the_quick_version_of_a_family_leaves_out_what_takes_long_unless_it_is_named(tmp_path, capsys):
    assert reproduce("rl", "rl/sarsa", "--quick", "--list", out=tmp_path) == 0
    shown = capsys.readouterr().out
    assert [name for name in presets.LONG if name in shown] == ["rl/sarsa"]
    assert "rl/pavg" in shown


@pytest.mark.slow
def test_the_quick_version_checks_all_ten_claims_says_what_it_is_and_is_not_run_twice(tmp_path, capsys):
    assert reproduce("--quick", out=tmp_path) == 0
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert {claim["claim"] for claim in claims} == set(range(1, 11))
    assert {claim["verdict"] for claim in claims} == {"pass"}
    assert "quick" in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    assert reproduce("--quick", out=tmp_path) == 0
    of_the_paper = [name for name in NAMES if not name.startswith(presets.BEYOND)]
    assert capsys.readouterr().out.count("reused") == len(of_the_paper) - len(presets.LEFT_OUT)

"""`fedhsa new`, and commands on what it wrote."""

import json
import re
import subprocess
import sys

import pytest

from fedhsa.cli import main
from fedhsa.cli.new import KINDS

NAMES = {"algorithm": "HalfHSA", "problem": "Waiting", "study": "question_one"}
FILES = {"algorithm": "half_hsa", "problem": "waiting", "study": "question_one"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_new_writes_a_file_and_its_test_says_what_to_type_next_and_overwrites_nothing(kind, here, capsys):
    assert main(["new", kind, NAMES[kind]]) == 0
    file = FILES[kind]
    written = {f"{file}.py", f"test_{file}.py"}
    assert {path.name for path in here.iterdir()} == written
    assert f"  python test_{file}.py\n" in capsys.readouterr().out
    for name in written:
        compile((here / name).read_text(), name, "exec")
        assert not re.search("@(NAME|FILE)@", (here / name).read_text())
    (here / f"{file}.py").write_text("mine")
    assert main(["new", kind, NAMES[kind]]) == 2
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert (here / f"{file}.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["algorthm", "X"], "Did you mean 'algorithm'?"),
        (["algorithm"], "needs one name, like `fedhsa new algorithm HalfHSA`, got none"),
        (["algorithm", "half-hsa"], "must be a name as Python has them"),
        (["problem", "random"], "a file random.py would hide the module random"),
        (["study", "numpy"], "a file numpy.py would hide the module numpy"),
    ],
)
def test_new_refuses_what_cannot_become_a_file(arguments, words, here, capsys):
    assert main(["new", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(here.iterdir())


@pytest.mark.slow
def test_what_new_writes_passes_its_tests_and_every_command_takes_it(here, capsys):
    for kind, name in NAMES.items():
        assert main(["new", kind, name]) == 0
    tests = [f"test_{file}.py" for file in FILES.values()]
    found = subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "4 passed" in found.stdout
    # A test that cannot fail proves nothing.
    source = (here / "half_hsa.py").read_text()
    (here / "half_hsa.py").write_text(source.replace("theta + eta *", "theta + 0.5 * eta *"))
    found = subprocess.run([sys.executable, "test_half_hsa.py"], capture_output=True, text=True, check=False)
    assert "Mismatched elements" in found.stderr
    (here / "half_hsa.py").write_text(source)

    subprocess.run([sys.executable, "question_one.py"], check=True, capture_output=True)
    assert (here / "question_one.png").exists()
    few = ["--num-agents", "3", "--option", "num_examples=5"]
    methods = ["--algorithm", "FedHSA", "half_hsa.py:HalfHSA(local_steps=5)", "Averaged(half_hsa.py:HalfHSA)"]
    capsys.readouterr()
    assert main(["run", "waiting.py:build", *few, *methods, "--rounds", "5", "--seeds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "HalfHSA(local_steps=5)" in shown
    assert "half_hsa.py" not in shown
    manifest = json.loads((here / "runs" / "waiting-build" / "manifest.json").read_text())
    assert set(manifest["files"]) == {"waiting.py", "half_hsa.py"}
    target = ["--target", "0.1", "--no-plot"]
    assert main(["analyze", "waiting.py:build", *few, "--algorithm", "half_hsa.py:HalfHSA", *target]) == 0
    assert re.search("--algorithm '?half_hsa.py:HalfHSA", capsys.readouterr().out.replace("\n", " "))
    short = ["--samples", "100", "--seeds", "2", "--grid", "2", "--tuning-seeds", "1"]
    assert main(["compare", "waiting.py:build", *few, "--algorithm", "half_hsa.py:HalfHSA", "FedHSA", *short]) == 0
    steps = ["--over", "step_size=[0.01,0.02]", "--rounds", "5", "--seeds", "2"]
    assert main(["sweep", "question_one.py:build", "--algorithm", "half_hsa.py:HalfHSA", *steps]) == 0
    deploy = ["deploy", "memory", "--problem", "waiting.py:build", "--rounds", "2"]
    assert main([*deploy, "--algorithm", "half_hsa.py:HalfHSA"]) == 0


@pytest.mark.slow
def test_a_file_of_settings_names_own_files_too_and_a_changed_file_is_another_run(here, capsys):
    assert main(["new", "algorithm", "HalfHSA"]) == 0
    (here / "mine.toml").write_text('problem = "quadratic"\nalgorithm = "half_hsa.py:HalfHSA"\nrounds = 4\nseeds = 2\n')
    run = ["run", "--config", "mine.toml", "--num-agents", "2", "--dim", "2"]
    assert main(run) == 0
    assert main([*run, "--resume"]) == 0
    assert "complete already" in capsys.readouterr().out
    path = here / "half_hsa.py"
    path.write_text(path.read_text() + "\n# changed\n")
    assert main([*run, "--resume"]) == 2
    assert "half_hsa.py has changed since the checkpoints" in capsys.readouterr().err
    assert main(["run", "--from", "runs/quadratic", "--out", "again"]) == 0
    assert "was made with another half_hsa.py: the numbers may differ" in capsys.readouterr().err
    assert main(run) == 0

"""`fedhsa run` and `fedhsa list`: what they write, what they print, and what they refuse."""

import csv
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pytest

import fedhsa
from fedhsa import statistics
from fedhsa.cli import index, main
from fedhsa.cli import run as run_module
from fedhsa.cli.deploy_settings import COMMANDS as DEPLOY
from fedhsa.cli.parsing import parse, read
from fedhsa.cli.settings import COMMANDS, RunSettings
from fedhsa.cli.usage import parse_option
from fedhsa.environments import ENVIRONMENTS

pytestmark = pytest.mark.usefixtures("unrendered")

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SMALL = [
    "--num-agents",
    "2",
    "--dim",
    "2",
    "--rounds",
    "20",
    "--every",
    "5",
    "--seeds",
    "3",
    "--local-steps",
    "4",
]
FILES = {"curves.png", "curves.pdf", "curves.csv", "curves.npz", "theta.csv", "manifest.json"}


def manifest(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def names(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def sentence(capsys) -> str:
    """The one line on stderr."""
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """The output of one small run."""
    out = tmp_path_factory.mktemp("run") / "deep" / "out"
    assert main(["run", *SMALL, "--out", str(out)]) == 0
    return out


def test_a_run_writes_figure_curves_parameter_manifest_and_states_and_nothing_else(folder):
    assert names(folder) == FILES | {"checkpoints"}
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "curves.pdf").read_bytes().startswith(b"%PDF")


def test_the_arrays_hold_every_seed(folder):
    with np.load(folder / "curves.npz", allow_pickle=False) as arrays:
        for name in ("FedHSA", "LocalSA"):
            assert arrays[f"{name}/error"].shape == (3, 5)
            assert arrays[f"{name}/theta"].shape == (3, 2)
            np.testing.assert_array_equal(arrays[f"{name}/rounds"], [0, 5, 10, 15, 20])


def test_the_table_of_curves_is_the_interval_of_the_arrays(folder):
    with (folder / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["algorithm", "round", "mean", "low", "high", "theory"]
    assert [row["algorithm"] for row in rows] == ["FedHSA"] * 5 + ["LocalSA"] * 5
    with np.load(folder / "curves.npz") as arrays:
        expected = statistics.interval(arrays["LocalSA/error"])
    for name, curve in zip(("mean", "low", "high"), expected, strict=True):
        np.testing.assert_array_equal([float(row[name]) for row in rows[5:]], curve)


def test_the_command_gives_the_numbers_of_the_library(folder):
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    result = fedhsa.simulate(problem, fedhsa.FedHSA(step_size=0.01, local_steps=4), rounds=20, seeds=3, every=5)
    with np.load(folder / "curves.npz") as arrays:
        np.testing.assert_array_equal(arrays["FedHSA/error"], result.error)
        np.testing.assert_array_equal(arrays["FedHSA/theta"], result.theta)


def test_the_manifest_says_how_the_numbers_were_made(folder):
    found = manifest(folder)
    assert found["complete"] is True
    assert found["command"].startswith("fedhsa run --num-agents 2")
    assert found["key"] == 0
    assert found["settings"]["rounds"] == 20
    assert found["versions"].keys() >= {"fedhsa", "python", "jax", "numpy", "matplotlib"}
    entry = found["algorithms"]["FedHSA"]
    assert entry["status"] == "ok"
    assert entry["seconds"].keys() >= {"compile", "run"}
    assert entry["final_error"]["low"] < entry["final_error"]["mean"] < entry["final_error"]["high"]


def test_the_screen_shows_a_line_per_algorithm_and_the_path_of_the_figure(tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert not captured.err
    assert any(line.startswith("FedHSA") and "4/4" in line and line.rstrip().endswith("ok") for line in lines)
    assert any(line.startswith("LocalSA") and "2/2" in line for line in lines)
    assert lines[-1] == f"Figure: {tmp_path / 'curves.png'}"
    assert any(line.startswith("The parameter (mean over 3 seeds") for line in lines)
    (first,) = (line.split() for line in lines if line.startswith("theta[0]"))
    with (tmp_path / "theta.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["algorithm"], row["parameter"]) for row in rows[:3]] == [
        ("FedHSA", "theta[0]"),
        ("FedHSA", "theta[1]"),
        ("LocalSA", "theta[0]"),
    ]
    assert float(first[1]) == pytest.approx(float(rows[0]["mean"]), abs=float(first[3]))


def test_the_default_folder_is_named_after_the_problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *SMALL, "--algorithm", "FedHSA"]) == 0
    assert names(tmp_path / "runs" / "quadratic") >= FILES


def test_a_file_gives_the_same_numbers_as_flags(folder, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text("num_agents = 2\ndim = 2\nrounds = 20\nevery = 5\nseeds = 3\nlocal-steps = 4\n")
    assert main(["run", "--config", str(config), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "curves.npz").read_bytes() == (folder / "curves.npz").read_bytes()


def test_flags_win_over_the_file_and_the_file_over_the_defaults(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('rounds = 30\nseeds = 5\nnoiseless = true\nalgorithm = "LocalSA"\nout = "there"\n')
    settings = parse(RunSettings, ["--config", str(config), "--seeds", "2", "--no-noiseless"])
    assert (settings.seeds, settings.noiseless) == (2, False)
    assert (settings.rounds, settings.algorithm, settings.folder) == (30, ("LocalSA",), pathlib.Path("there"))
    assert settings.every == RunSettings().every


def test_options_of_the_flags_are_added_to_those_of_the_file(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text("[option]\nnoise_std = 0.5\nconvex = false\n")
    settings = parse(RunSettings, ["--config", str(config), "--option", "noise_std=0.7", "b_level=2"])
    assert settings.option == {"noise_std": 0.7, "convex": False, "b_level": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("noise_std=0.2", ("noise_std", 0.2)),
        ("noise-std=.2", ("noise_std", 0.2)),
        ("n=3", ("n", 3)),
        ("convex=false", ("convex", False)),
        ("start=stationary", ("start", "stationary")),
        ('start="zero"', ("start", "zero")),
        ("eigenvalues=[1, 5.0]", ("eigenvalues", [1, 5.0])),
        ("a=b=c", ("a", "b=c")),
    ],
)
def test_option_values_are_read_as_literals(text, expected):
    assert parse_option(text) == expected


def test_results_of_other_settings_are_replaced_only_when_the_user_agrees(folder, monkeypatch, capsys):
    monkeypatch.setattr(run_module, "main", lambda *_: 0)
    before = (folder / "manifest.json").read_bytes()
    command = ["run", *SMALL, "--out", str(folder)]
    for same in ([], ["--target", "1.0"], ["--no-cache"], ["--resume", "--rounds", "40"]):
        assert main([*command, *same]) == 0
    refused = {
        ("--seeds", "4"): "holds the results of other settings, with `seeds` 3 instead of 4. Add `--force` to replace",
        ("--dim", "3", "--resume"): "with `dim` 2 instead of 3. Add `--force`",
        ("--rounds", "10", "--resume"): "with `rounds` 20 instead of 10",
        ("--option", "noise_std=1", "--iid", "--key", "1"): "with `option` {} instead of {'noise_std': 1}, `iid` False",
    }
    for other, words in refused.items():
        assert main([*command, *other]) == 2
        assert words in sentence(capsys)
        assert main([*command, *other, "--force"]) == 0
    assert main(["sweep", "--out", str(folder)]) == 2
    assert "holds the results of `fedhsa run`. Add `--force`" in sentence(capsys)
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    for answer, code in (("y\n", 0), ("n\n", 2), ("", 2)):
        monkeypatch.setattr("sys.stdin.readline", lambda answer=answer: answer, raising=False)
        assert main([*command, "--seeds", "4"]) == code
        assert "`seeds` 3 instead of 4. Replace them? [y/N]" in capsys.readouterr().err
    assert (folder / "manifest.json").read_bytes() == before


def test_options_reach_the_problem(tmp_path):
    quiet = ("--option", "noise_std=0", "start=stationary")
    assert main(["run", *SMALL, "--algorithm", "FedHSA", *quiet, "--out", str(tmp_path)]) == 0
    with np.load(tmp_path / "curves.npz") as arrays:
        np.testing.assert_array_equal(np.ptp(arrays["FedHSA/error"], axis=0), 0.0)


FAST = ("quadratic", "td", "gradient-td")
"""Problems that run here; the others are built by other tests of the command line, and take long to compile."""


@pytest.mark.parametrize(
    "problem",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in fedhsa.PROBLEMS],
)
def test_every_problem_runs(tmp_path, problem):
    arguments = ["--problem", problem, "--algorithm", "LocalSA", "--noiseless", "--out", str(tmp_path)]
    assert main(["run", *SMALL, *arguments]) == 0
    with np.load(tmp_path / "curves.npz") as arrays:
        names = ("error", "mean_return", "operator_norm")  # the others where there is no root
        reported = next(name for name in names if f"LocalSA/{name}" in arrays)
        np.testing.assert_allclose(np.ptp(arrays[f"LocalSA/{reported}"], axis=0), 0.0, atol=1e-14)


def test_a_method_that_a_controlled_chain_rejects_is_told_in_one_sentence(tmp_path, capsys):
    small = ["--num-agents", "2", "--option", "num_states=3", "num_actions=2", "--out", str(tmp_path)]
    for command in (["run"], ["deploy", "memory"]):
        assert main([*command, "--problem", "sarsa", "--algorithm", "Thinned(LocalSA, every=2)", *small]) == 2
        assert "must be taken exactly once, under its own parameter" in capsys.readouterr().err


@pytest.mark.slow
def test_independent_observations_are_those_of_the_library(tmp_path):
    arguments = ["--problem", "td", "--problem-key", "3", "--key", "4", "--algorithm", "LocalSA", "--iid"]
    options = ["--option", "num_states=4", "laziness=0.9"]
    assert main(["run", *SMALL, *arguments, *options, "--out", str(tmp_path)]) == 0
    problem = fedhsa.problems.td.random(2, 4, 2, laziness=0.9, key=3).iid()
    result = fedhsa.simulate(problem, fedhsa.LocalSA(step_size=0.01, local_steps=4), rounds=20, seeds=3, key=4, every=5)
    with np.load(tmp_path / "curves.npz") as arrays:
        np.testing.assert_array_equal(arrays["LocalSA/error"], result.error)


def test_algorithms_get_only_the_settings_they_have_and_their_own_step(tmp_path):
    steps = [
        "--algorithm",
        "SynchronisedSA",
        "LocalSA",
        "--step-size",
        "0.02",
        "0.03",
        "--server-step",
        "0.5",
    ]
    assert main(["run", *SMALL, *steps, "--out", str(tmp_path)]) == 0
    found = {name: entry["settings"]["algorithm"] for name, entry in manifest(tmp_path)["algorithms"].items()}
    assert found["SynchronisedSA"] == {"name": "SynchronisedSA", "step_size": 0.02}
    assert (found["LocalSA"]["step_size"], found["LocalSA"]["server_step"]) == (0.03, 0.5)


def test_one_agent_alone_runs(tmp_path):
    arguments = ["--algorithm", "SA", "--num-agents", "1", "--dim", "2", "--rounds", "5", "--seeds", "1"]
    assert main(["run", *arguments, "--out", str(tmp_path)]) == 0
    assert manifest(tmp_path)["algorithms"]["SA"]["final_error"]["low"] is None  # one seed, no interval


def test_a_run_that_diverges_is_a_result_and_says_so(tmp_path, capsys):
    assert main(["run", *SMALL, "--algorithm", "LocalSA", "--step-size", "100", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "infinite" in out
    assert "all diverged" in out
    assert "LocalSA diverged in every seed, first in round" in out
    entry = manifest(tmp_path)["algorithms"]["LocalSA"]
    assert entry["final_error"]["mean"] == "infinity"
    assert set(entry["failed_round"]) == {"0", "1", "2"}
    assert (tmp_path / "curves.csv").read_text().splitlines()[-1] == "LocalSA,20,inf,inf,inf,"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--problem", "quadratc"],
            "`problem` must be one of quadratic, .*'quadratc'. Did you mean 'quadratic'?",
        ),
        (["--algorithm", "fedhsa"], "`algorithm` must be one of FedHSA, .*Did you mean 'FedHSA'?"),
        (["--algorithm"], "`algorithm` must name at least one of FedHSA"),
        (["--algorithm", "FedHSA", "FedHSA"], "`algorithm` names FedHSA twice"),
        (["--rounds", "ten"], "`rounds` must be a whole number, got 'ten'"),
        (["--rounds", "0"], "`rounds` must be at least 1, got 0"),
        (["--rounds"], "Missing value for argument '--rounds'"),
        (["--every", "7"], "`rounds` must be a multiple of `every`, got 20 and 7"),
        (["--seeds", "1.5"], "`seeds` must be a whole number, got '1.5'"),
        (["--key", "-1"], "`key` must be at least 0, got -1"),
        (["--num-agents", "x"], "`num_agents` must be a whole number, got 'x'"),
        (["--heterogeneity", "2"], "`heterogeneity` must be at most 1"),
        (["--heterogeneity", "much"], "`heterogeneity` must be a number, got 'much'"),
        (["--step-size", "0.1", "fast"], "`step_size` must be a number, got 'fast'"),
        (["--step-size", "-0.1"], "`step_size` must be greater than 0.0, got -0.1"),
        (["--step-size", "0.1", "0.2", "0.3"], "`step_size` must be one number, or one for each of the 2"),
        (["--dtype", "float16"], "`dtype` must be one of float64, float32, got 'float16'"),
        (["--option", "noise"], "`option` must be NAME=VALUE"),
        (
            ["--option", "noise_sdt=1"],
            "no argument `noise_sdt`. Did you mean 'noise_std'? Its options are",
        ),
        (["--option", "noise_std=loud"], "`noise_std` must be a number, got 'loud'"),
        (["--option", "convex=1"], "`convex` must be true or false, got 1"),
        (["--option", "dim=3"], "`option` dim has a flag of its own, `--dim`"),
        (["--option", "noise_std=-1"], "`noise_std` must be at least 0"),
        (["--problem", "finite-sum", "--option", "eigenvalues=[1]"], "`eigenvalues` must be a list of 2"),
        (["--algorithm", "SA"], "SA runs a single agent, got a problem with 2"),
        (["--config", "nowhere.toml"], "`config`: cannot read 'nowhere.toml': No such file"),
        (["--roundz", "3"], "does not know the argument '--roundz'. Did you mean '--rounds'?"),
        (["spare"], "`problem` must be one of quadratic, .*got 'spare'"),
        (["--problem", "td", "--problem", "garnet"], "fedhsa run takes one problem, got 'td' and 'garnet'. Keep one."),
        (["--problem"], "`--problem` needs a name, like `--problem td`"),
        (["--algorithm", "FedHSA", "td"], "`algorithm`: td is a problem. Write it first: `fedhsa run td ...`"),
        (["--algorithm", "FedHSA", "--algorithm", "LocalSA"], "`--algorithm` was given twice"),
        (["--option=b_level=1", "--option=noise_std=1"], "`--option` was given twice"),
        (
            ["--num-agents", "1000000000"],
            "`num_agents` 1000000000 is too large: .*about .*of memory, and this machine has",
        ),
        (["--num-agents", "1" + "0" * 30], "`num_agents` must be at most 9007199254740992, got 1000"),
        (["--dim", "1000000"], "`dim` 1000000 is too large: .*Lower `dim`."),
        (["--seeds", "1000000000"], "The runs are too large: 1000000000 seeds of 2 agents, .*Use fewer of them."),
        (["--rounds", "1000000000000"], "The runs are too large: 3 seeds of 2 agents, with 200000000000 records"),
        (["--key", "1" + "0" * 24], "`key` must be at most 18446744073709551615, got 1000"),
        (["--problem-key", "1" + "0" * 24], "`problem_key` must be at most 18446744073709551615, got 1000"),
        (["--hosts", "1000000000"], "`hosts` must be at most 1024 processes on this machine, got 1000000000"),
        (["--noiseless", "--iid"], "`noiseless` and `iid` cannot be combined"),
        (["--option", "b_level=inf"], "`b_level` must be finite, got inf"),
        (["--option", "b_level=1e300"], "`b_level` must be at most 1e+100 in size, got 1e+300"),
        (["--option", "noise_radius=1.5"], "`noise_radius` must be below 1.0, got 1.5. Noise must forget."),
        (["--problem", "finite-sum", "--option", "min_eigenvalue=[]"], "`min_eigenvalue` must be one number"),
        (["--problem", "policy-gradient", "--dim", "-1"], "`dim` must be at least 1, got -1"),
    ],
)
def test_bad_input_is_rejected_in_one_sentence_and_leaves_nothing_behind(tmp_path, capsys, arguments, words):
    out = tmp_path / "out"
    assert main(["run", *SMALL, "--out", str(out), *arguments]) == 2
    message = sentence(capsys)
    for part in words.split(".*"):
        assert part in message
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = = 3", "is not a TOML file"),
        ("roundz = 3", "unknown key `roundz`. Did you mean 'rounds'?"),
        ('config = "x"', "unknown key `config`"),
        ('rounds = "3"', "`rounds` must be a whole number, got '3'"),
        ('step_size = "big"', "`step_size` must be a number, got 'big'"),
        ("step_size = true", "`step_size` must be a number, got True"),
        ("noiseless = 1", "`noiseless` must be true or false, got 1"),
        ("algorithm = 3", "`algorithm` must be one of"),
        ("problem = [1]", "`problem` must be one of"),
        ("option = 3", "`option` must be a table, got 3"),
        ("out = 3", "`out` must be the name of a folder, got 3"),
    ],
)
def test_a_bad_file_is_rejected_in_one_sentence(tmp_path, capsys, text, words):
    config = tmp_path / "run.toml"
    config.write_text(text)
    assert main(["run", "--config", str(config)]) == 2
    message = sentence(capsys)
    assert words in message
    assert "run.toml" in message


def test_a_file_that_is_not_text_is_rejected(tmp_path, capsys):
    config = tmp_path / "run.toml"
    config.write_bytes(b"\xff\xfe\x00")
    assert main(["run", "--config", str(config)]) == 2
    assert "is not a TOML file" in sentence(capsys)


def test_a_folder_that_cannot_be_written_is_noticed_before_the_computation(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_module, "simulate", lambda *_, **__: pytest.fail("it computed"))
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "deeper"):
        assert main(["run", *SMALL, "--out", str(out)]) == 1
        assert "`out`: cannot write to" in sentence(capsys)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 9 TiB"), OSError(28, "No space left")])
def test_a_failure_on_the_way_leaves_one_sentence_and_no_folder(tmp_path, capsys, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(run_module, "simulate", fail)
    assert main(["run", *SMALL, "--out", str(tmp_path / "deep" / "out")]) == 1
    assert str(error.args[-1]) in sentence(capsys)
    assert not (tmp_path / "deep").exists()


def test_warnings_are_one_clean_line(tmp_path, capsys, monkeypatch):
    def warn(*arguments, **options):
        warnings.warn("The root\nis unstable.", stacklevel=2)
        return fedhsa.simulate(*arguments, **options)

    monkeypatch.setattr(run_module, "simulate", warn)
    assert main(["run", *SMALL, "--algorithm", "FedHSA", "--out", str(tmp_path)]) == 0
    assert sentence(capsys) == "Warning: The root is unstable."


def interrupt_at(monkeypatch, name: str) -> list[str]:
    """Makes Ctrl-C arrive when this algorithm starts; gives the names of those that ran."""
    ran = []

    def simulate(problem, algorithm, **options):
        if type(algorithm).__name__ == name:
            raise KeyboardInterrupt
        ran.append(type(algorithm).__name__)
        return fedhsa.simulate(problem, algorithm, **options)

    monkeypatch.setattr(run_module, "simulate", simulate)
    return ran


def test_ctrl_c_keeps_what_was_computed(tmp_path, capsys, monkeypatch):
    interrupt_at(monkeypatch, "LocalSA")
    assert main(["run", *SMALL, "--out", str(tmp_path)]) == 130
    assert "Interrupted: what is done was written." in capsys.readouterr().out
    assert names(tmp_path) == FILES | {"checkpoints"}
    assert manifest(tmp_path)["complete"] is False
    assert list(manifest(tmp_path)["algorithms"]) == ["FedHSA"]


def test_ctrl_c_before_the_first_round_writes_nothing(tmp_path, capsys, monkeypatch):
    interrupt_at(monkeypatch, "FedHSA")
    assert main(["run", *SMALL, "--out", str(tmp_path / "out")]) == 130
    assert "nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_finished_algorithms_are_not_run_again(folder, tmp_path, capsys, monkeypatch):
    ran = interrupt_at(monkeypatch, "LocalSA")
    arguments = ["run", *SMALL, "--out", str(tmp_path)]
    assert main([*arguments, "--checkpoint"]) == 130
    assert f"--out {tmp_path} --checkpoint --resume" in capsys.readouterr().out
    assert ran == ["FedHSA"]
    ran = interrupt_at(monkeypatch, "nobody")
    assert main([*arguments, "--resume"]) == 0
    assert ran == ["LocalSA"]
    assert (tmp_path / "curves.npz").read_bytes() == (folder / "curves.npz").read_bytes()
    assert main([*arguments, "--resume"]) == 0
    assert ran == ["LocalSA"]
    assert "complete already" in capsys.readouterr().out
    for other in (["--label", "FedHSA=ours"], ["--label", "FedHSA=ours", "--format", "svg"]):
        assert main([*arguments, "--resume", *other]) == 0
        assert ran == ["LocalSA"]  # drawn again, from what is there
        assert "ours" in capsys.readouterr().out
    assert [path.name for path in tmp_path.glob("curves.??g")] == ["curves.svg"]


def test_without_a_checkpoint_resume_starts_at_the_beginning_and_says_so(tmp_path, capsys):
    assert main(["run", *SMALL, "--algorithm", "FedHSA", "--out", str(tmp_path), "--resume"]) == 0
    assert "there is no checkpoint: starting at round 0" in sentence(capsys)


@pytest.fixture
def stopped(tmp_path, monkeypatch, capsys) -> list[str]:
    """The arguments of a run that was stopped between two algorithms, with its checkpoints in the folder."""
    arguments = ["run", *SMALL, "--out", str(tmp_path), "--checkpoint"]
    with monkeypatch.context() as patch:
        interrupt_at(patch, "LocalSA")
        assert main(arguments) == 130
    capsys.readouterr()
    return arguments


def test_checkpoints_of_another_run_are_rejected(stopped, capsys):
    assert main([*stopped, "--resume", "--seeds", "4", "--force"]) == 2
    assert "belong to another run, with `seeds` 3 instead of 4" in sentence(capsys)
    assert main([*stopped, "--resume", "--rounds", "10", "--force"]) == 2  # fewer are not more of the same
    assert "belong to another run, with `rounds` 20 instead of 10" in sentence(capsys)


@pytest.mark.parametrize("name", ["LocalSA.npz", "FedHSA.npz", "settings.json"])
def test_a_broken_checkpoint_is_rejected_and_left_alone(stopped, tmp_path, capsys, name):
    broken = tmp_path / "checkpoints" / name
    broken.write_bytes(b"half a file")
    assert main([*stopped, "--resume"]) == 1
    said = sentence(capsys)
    assert name in said
    assert "pickle" not in said
    assert "no checkpoint" not in said
    assert said.endswith("Leave out `--resume` to start over.")
    assert broken.read_bytes() == b"half a file"


def test_starting_over_replaces_old_checkpoints_and_says_so(stopped, tmp_path, capsys):
    assert main([*stopped, "--seeds", "4", "--force"]) == 0
    assert "Starting over" in sentence(capsys)
    assert fedhsa.load(tmp_path / "checkpoints" / "FedHSA.npz").error.shape == (4, 5)


def test_list_names_every_problem_and_algorithm_with_its_arguments(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in (*fedhsa.PROBLEMS, *fedhsa.ALGORITHMS, *fedhsa.WRAPPERS, *ENVIRONMENTS):
        assert name in out
    assert "Local steps steered by the averaged operator." in out
    assert "step_size, local_steps, server_step=1" in out
    assert "noise_std=0.1" in out
    assert "$" not in out


KINDS = {"problems": "finite-sum", "algorithms": "SCAFFOLD", "wrappers": "Compressed", "environments": "frozen-lake"}


@pytest.mark.parametrize("kind", KINDS)
def test_list_shows_one_kind_when_asked_for_it(capsys, monkeypatch, kind):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list", kind]) == 0
    first_words = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert {name for name in KINDS.values() if name in first_words} == {KINDS[kind]}


def test_list_explains_environments_and_itself(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list", "environments"]) == 0
    out = capsys.readouterr().out
    assert "Gymnasium's FrozenLake: a walk over slippery ice to the goal, around the holes." in out
    assert "slipperiness=0.6667" in out
    assert "fedhsa[gym]" in out
    assert "$" not in out
    assert main(["list", "--help"]) == 0
    assert "problems|algorithms|wrappers|environments" in capsys.readouterr().out
    assert main(["list", "environment"]) == 2
    assert "Did you mean 'environments'?" in sentence(capsys)


def test_help_teaches(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        assert "fedhsa run --config examples/quadratic.toml" in capsys.readouterr().out
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    for field in dataclasses.fields(RunSettings):
        assert "--" + field.name.rstrip("_").replace("_", "-") in out
    assert "manifest.json" in out
    assert "fedhsa run td" in out


@pytest.mark.parametrize("command", [*COMMANDS, "reproduce", *(f"deploy {name}" for name in DEPLOY)])
def test_help_shows_no_default_that_is_nothing_and_no_type_that_is_pythons(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(default: )" not in out
    assert "None" not in out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_problem_is_named_first_or_after_a_flag(command):
    kind = COMMANDS[command]
    for words in (["td"], ["td", "--dim", "3"], ["--problem", "td"], ["--dim", "3", "--problem=td"]):
        assert parse(kind, words).problem == "td"
    assert parse(kind, []).problem == "quadratic"


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedhsa {fedhsa.__version__}\n"


@pytest.mark.parametrize("arguments", [["rnu"], ["list", "all"]])
def test_unknown_commands_are_rejected(capsys, arguments):
    assert main(arguments) == 2
    assert arguments[-1] in sentence(capsys)


def test_help_lists_and_mistakes_do_not_wait_for_jax():
    code = """
import sys
from fedhsa.cli import main
heavy = {"jax", "scipy", "matplotlib", "equinox", "jaxtyping"}
assert not heavy & sys.modules.keys()
helps = [[*command.split(), "--help"] for command in "run,analyze,compare,sweep,deploy,deploy memory".split(",")]
for words, code in (["--version"], 0), (["list"], 0), *((words, 0) for words in helps), (["run", "--rounds", "0"], 2):
    assert main(words) == code
    assert not heavy & sys.modules.keys(), (words, heavy & sys.modules.keys())
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_index_says_what_the_tables_say():
    assert index.read() == index.make(), "Run `make index`."


def test_a_problem_that_a_program_has_added_can_be_run_though_no_file_lists_it(monkeypatch):
    monkeypatch.setitem(fedhsa.PROBLEMS, "mine", fedhsa.PROBLEMS["quadratic"])
    assert parse(RunSettings, ["--problem", "mine"]).problem == "mine"


@pytest.mark.slow
def test_the_example_shows_the_floors_of_figure_2b(tmp_path):
    settings = read(RunSettings, EXAMPLES / "quadratic.toml")
    assert (settings.num_agents, settings.dim, settings.local_steps) == (20, 10, 10)
    assert settings.step_size == (0.001,)
    arguments = ["--config", str(EXAMPLES / "quadratic.toml"), "--seeds", "4", "--out", str(tmp_path)]
    assert main(["run", *arguments]) == 0
    with np.load(tmp_path / "curves.npz") as arrays:
        tails = {name: arrays[f"{name}/error"][:, -100:].mean(0) for name in ("FedHSA", "LocalSA")}
    assert tails["FedHSA"].max() < 1e-4
    assert tails["LocalSA"].min() > 1e-3
    for tail in tails.values():  # flat, as far as four seeds can tell
        assert abs(np.log(tail[:50].mean() / tail[50:].mean())) < np.log(2)


def start(*arguments: str) -> subprocess.Popen[str]:
    # A shell's background jobs, and so perhaps this test, ignore Ctrl-C: the child must not inherit that.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from fedhsa.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "run", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: pathlib.Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.05)


LONG = [
    "--num-agents",
    "2",
    "--dim",
    "2",
    "--seeds",
    "2",
    "--rounds",
    "80000",
    "--every",
    "800",
    "--no-progress",
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> bytes:
    """The curves of a run long enough to be stopped half-way."""
    out = tmp_path_factory.mktemp("whole")
    assert main(["run", *LONG, "--out", str(out)]) == 0
    return (out / "curves.npz").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path, uninterrupted, number):
    process = start(*LONG, "--out", str(tmp_path), "--checkpoint")
    wait_for(tmp_path / "checkpoints" / "FedHSA.npz", process)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Interrupted: what is done was written. Continue with `fedhsa run" in out
        assert err.startswith("Warning: Interrupted after round")
        assert names(tmp_path) == FILES | {"checkpoints"}
        assert manifest(tmp_path)["complete"] is False
        assert 0 < manifest(tmp_path)["algorithms"]["FedHSA"]["rounds"] < 80_000
    else:
        assert not names(tmp_path) & FILES
    assert main(["run", *LONG, "--out", str(tmp_path), "--resume"]) == 0
    assert (tmp_path / "curves.npz").read_bytes() == uninterrupted

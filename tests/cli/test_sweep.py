import csv
import json
import pathlib
import warnings

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.cli import main


def test_a_sweep_from_a_file_writes_table_figure_arrays_and_manifest(tmp_path, capsys):
    config, out = tmp_path / "sweep.toml", tmp_path / "out"
    config.write_text("num_agents = 2\ndim = 2\nrounds = 4\nseeds = 2\n[over]\nstep_size = [0.01, 0.02]\n")
    assert main(["sweep", "--config", str(config), "--local-steps", "2", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        *("manifest.json", "sweep.csv", "sweep.npz", "sweep.pdf", "sweep.png")
    ]
    problem = fh.problems.quadratic.random(2, 2)
    expected = [fh.simulate(problem, fh.FedHSA(step, 2), rounds=4, seeds=2).error for step in (0.01, 0.02)]
    with np.load(out / "sweep.npz") as arrays:
        np.testing.assert_array_equal(arrays["error"], expected)
    with open(out / "sweep.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["error"]) for row in rows] == [error[:, -1].mean() for error in expected]
    assert json.loads((out / "manifest.json").read_text())["complete"] is True
    printed = capsys.readouterr().out
    assert printed.startswith("step_size")
    assert "Best: step_size 0.0" in printed


def test_a_sweep_varies_the_problem_too_and_says_what_theory_expects(tmp_path, capsys):
    over = ["--over", "num_agents=[3]", "noise_std=[0.0,0.1]"]
    command = ["sweep", "--dim", "2", "--rounds", "6", "--seeds", "2", "--local-steps", "2", "--out", str(tmp_path)]
    assert main([*command, *over]) == 0
    with open(tmp_path / "sweep.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["num_agents"], row["noise_std"]) for row in rows] == [("3", "0.0"), ("3", "0.1")]
    problem, algorithm = fh.problems.quadratic.random(3, 2), fh.FedHSA(0.01, 2)
    assert float(rows[1]["theory"]) == fh.theory.predict(problem, algorithm).error_after(6)
    assert float(rows[1]["error"]) == fh.simulate(problem, algorithm, rounds=6, seeds=2).error[:, -1].mean()
    assert capsys.readouterr().out.splitlines()[0].split()[:2] == ["num_agents", "noise_std"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--over", "step_size=0.1"],
            "step_size must have a list of values, like step_size=[0.01,0.1], got 0.1",
        ),
        (["--over", "speed=[1]"], "`over`: FedHSA has no setting 'speed'"),
        (["--over", "step_size"], "`over` must be NAME=VALUE, like `step_size=[0.01,0.1]`, got 'step_size'"),
        (["--over", "step_size=[1]", "step_size=[2]"], "`over` has two values for step_size"),
        (["--algorithm", "FedHSA", "LocalSA"], "`algorithm` must be a single algorithm, got FedHSA, LocalSA"),
        (["--config", "examples/quadratic.toml"], "`algorithm` must be a single algorithm, got FedHSA, LocalSA"),
        (["--target", "1"], "fedhsa sweep does not know the argument '--target'"),
    ],
)
def test_a_sweep_that_cannot_be_is_told_in_a_sentence(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(pathlib.Path(__file__).parents[2])
    assert main(["sweep", "--num-agents", "2", "--dim", "2", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_sweep_takes_one_algorithm_of_a_file_several_local_steps_and_says_that_all_diverged(capsys, tmp_path):
    config = tmp_path / "two.toml"
    config.write_text('algorithm = ["FedHSA", "LocalSA"]\nnum_agents = 2\ndim = 2\nrounds = 60\nseeds = 1\n')
    common = ["sweep", "--config", str(config), "--algorithm", "FedLin(1000.0)", "--out", str(tmp_path / "out")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main([*common, "--over", "local_steps=[[1,2],[2,2]]"]) == 0
    assert "some seeds diverged: try smaller steps" in capsys.readouterr().out
    with np.load(tmp_path / "out" / "sweep.npz") as arrays:
        assert arrays["local_steps"].tolist() == ["(1, 2)", "(2, 2)"]

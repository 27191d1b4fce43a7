"""`fedhsa compare`: what it writes, what it prints, what it refuses, and what Ctrl-C leaves."""

import csv
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest

import fedhsa
from fedhsa import plots, statistics
from fedhsa.cli import main, pace
from fedhsa.cli.parsing import parse
from fedhsa.cli.settings import CompareSettings
from fedhsa.comparison import contest

pytestmark = pytest.mark.usefixtures("unrendered")

PROBLEM = ["--num-agents", "2", "--dim", "2", "--local-steps", "4"]
SMALL = [*PROBLEM, "--samples", "400", "--seeds", "3", "--grid", "5", "--tuning-seeds", "2"]
TWIN = "FedHSA(server_step=1.0)"
NAMES = ["FedHSA", TWIN, "LocalSA"]
CURVES = {"compare.png", "compare.pdf", "compare.csv", "compare.tex", "compare.npz", "manifest.json"}
FILES = CURVES | {"tuning.png", "tuning.pdf"}


def manifest(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def names(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """The output of one small comparison."""
    out = tmp_path_factory.mktemp("compare") / "deep" / "out"
    assert main(["compare", *SMALL, "--algorithm", *NAMES, "--out", str(out)]) == 0
    return out


def test_a_comparison_writes_figures_curves_and_manifest_and_nothing_else(folder):
    assert names(folder) == FILES
    for name in ("compare", "tuning"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_curves_are_those_of_the_library_at_the_step_that_won(folder):
    step = manifest(folder)["algorithms"]["LocalSA"]["tuning"]["step_size"]
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    result = fedhsa.simulate(problem, fedhsa.LocalSA(step, local_steps=4), rounds=100, seeds=3)
    with np.load(folder / "compare.npz", allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["LocalSA/error"], result.error, rtol=1e-12)
        np.testing.assert_allclose(arrays["LocalSA/theta"], result.theta, rtol=1e-12)
        np.testing.assert_array_equal(arrays["LocalSA/samples"], 4 * result.rounds)
        np.testing.assert_array_equal(arrays["LocalSA/bytes"], result.rounds * 8 * 2 * 4)


def test_the_table_of_curves_is_the_interval_of_the_arrays(folder):
    with (folder / "compare.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["algorithm"] == TWIN]
    assert list(rows[0]) == ["algorithm", "exchanges", "samples", "bytes", "mean", "low", "high"]
    with np.load(folder / "compare.npz") as arrays:
        expected = statistics.interval(arrays[f"{TWIN}/error"])
    for name, curve in zip(("mean", "low", "high"), expected, strict=True):
        np.testing.assert_array_equal([float(row[name]) for row in rows], curve)


def test_the_manifest_shows_every_step_tried_and_the_same_effort_for_all(folder):
    found = manifest(folder)
    assert found["complete"] is True
    assert found["command"].startswith("fedhsa compare --num-agents 2")
    assert found["settings"]["grid"] == 5
    assert found["versions"].keys() >= {"fedhsa", "python", "jax", "numpy", "matplotlib"}
    assert list(found["algorithms"]) == NAMES
    for entry in found["algorithms"].values():
        trials = entry["tuning"]["trials"]
        assert len({trial["step"] for trial in trials}) == 5
        best = min(trials, key=lambda trial: trial["error"])
        assert entry["tuning"]["step_size"] == best["step"]
        assert entry["algorithm"]["step_size"] == pytest.approx(best["step"])
        exchanges = 100 * entry["cost"]["exchanges"]
        assert (entry["samples"], entry["exchanges"], len(entry["score"])) == (400, exchanges, 3)


def test_one_method_under_two_names_is_not_called_different(folder):
    ranking = manifest(folder)["ranking"]
    (same,) = (pair for pair in ranking["pairs"] if {pair["better"], pair["worse"]} == {"FedHSA", TWIN})
    assert same["p"] == same["adjusted"] == 1
    assert same["different"] is False
    assert same["ratio"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert all(TWIN in place["ties"] for place in ranking["places"] if place["name"] == "FedHSA")


def test_the_screen_shows_ranks_steps_intervals_and_ties(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    arguments = ["--algorithm", "LocalSA", "LocalSA(server_step=1.0)", "LocalSA(1e3, 4)", "--step-size", "0.01"]
    (tmp_path / "tuning.png").write_text("of an earlier comparison")
    assert main(["compare", *SMALL, *arguments, "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert not captured.err
    assert [line for line in lines if line[:4].strip().isdigit()] == [
        "   1  LocalSA, step as given",
        "   2  LocalSA(server_step=1.0), step as given",
        "   3  LocalSA(1e3, 4), step as given",
    ]
    assert "every seed diverged" in captured.out
    assert "1 [1, 1]" in captured.out
    assert lines[-1] == f"Figures: compare.png in {tmp_path}"
    assert names(tmp_path) == CURVES  # nothing was tuned
    places = manifest(tmp_path)["ranking"]["places"]
    assert [place["ties"] for place in places] == [["LocalSA(server_step=1.0)"], ["LocalSA"], []]
    assert (places[-1]["failed"], places[-1]["score"]["value"]) == (3, "infinity")


def test_a_step_in_the_text_of_a_method_is_left_alone_while_others_are_tuned(tmp_path):
    arguments = ["--algorithm", "LocalSA(0.01, 4)", "LocalSA", "--grid", "2"]
    assert main(["compare", *SMALL, *arguments, "--out", str(tmp_path)]) == 0
    found = manifest(tmp_path)["algorithms"]
    assert found["LocalSA(0.01, 4)"]["tuning"] is None
    assert found["LocalSA(0.01, 4)"]["algorithm"]["step_size"] == 0.01
    assert len(found["LocalSA"]["tuning"]["trials"]) == 2


def test_a_best_step_at_the_edge_is_pointed_out(tmp_path, capsys):
    arguments = ["--algorithm", "LocalSA", "--grid", "1"]
    assert main(["compare", *SMALL, *arguments, "--out", str(tmp_path)]) == 0
    assert "LocalSA: its best step is the smallest tried" in capsys.readouterr().out


def test_with_a_target_methods_are_ranked_by_what_it_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    target = ["--target", "0.05", "--objective", "exchanges", "--algorithm", "LocalSA(0.01, 4)", "LocalSA(1e-6, 4)"]
    assert main(["compare", *SMALL, *target, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "exchanges to 0.05" in out
    assert "every seed did not reach it" not in out
    assert "no seed reached it" in out
    with np.load(tmp_path / "compare.npz") as arrays:
        error, score = arrays["LocalSA(0.01, 4)/error"], arrays["LocalSA(0.01, 4)/score"]
    np.testing.assert_array_equal(score, (error <= 0.05).argmax(1))
    assert manifest(tmp_path)["algorithms"]["LocalSA(1e-6, 4)"]["reached"]["bytes"] == ["infinity"] * 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algorithm", "FedHAS"], "`algorithm` must be one of FedHSA, .*Did you mean 'FedHSA'?"),
        (["--algorithm", "FedHSA(5"], "`algorithm` must read like"),
        (["--algorithm", "FedHAS(local_steps=5)"], "there is no 'FedHAS'. Did you mean 'FedHSA'?"),
        (["--algorithm", "FedHSA", "FedHSA"], "`algorithm` names FedHSA twice"),
        (["--algorithm", "SA"], "SA runs a single agent, got a problem with 2"),
        (["--problem", "quadratc"], "Did you mean 'quadratic'?"),
        (["--samples", "3"], "`samples` must be at least 4, one round of FedHSA, got 3"),
        (["--seeds", "1"], "`seeds` must be at least 2, got 1"),
        (["--grid", "0"], "`grid` must be at least 1, got 0"),
        (["--tuning-seeds", "few"], "`tuning_seeds` must be a whole number, got 'few'"),
        (["--objective", "time"], "`objective` must be one of exchanges, samples, bytes, got 'time'"),
        (["--objective", "bytes"], "`objective` bytes needs `target`, an error to reach. Add `--target`."),
        (
            ["--grid", "1000000000"],
            "`grid` must be at most 100, got 1000000000. Half of the step sizes are a factor of 4",
        ),
        (["--tuning-seeds", "1000000000"], "The runs are too large: 1000000000 seeds of 2 agents"),
        (["--samples", "1000000000000"], "`samples` must be below 4294967296, where random numbers repeat"),
        (["--target", "1e6"], "`target` must be below the error at the start"),
        (["--step-size", "0.1", "0.2"], "`step_size` must be one number, or one for each of the 3"),
        (["--rounds", "5"], "does not know the argument '--rounds'"),
    ],
)
def test_bad_input_is_rejected_in_one_sentence_and_leaves_nothing_behind(tmp_path, capsys, arguments, words):
    out = tmp_path / "out"
    assert main(["compare", *SMALL, "--out", str(out), *arguments]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    for part in words.split(".*"):
        assert part in message
    assert not out.exists()


def test_methods_that_are_done_are_written_before_the_next_so_that_a_kill_leaves_them(tmp_path, monkeypatch):
    simulate, calls = fedhsa.simulate, []

    def killed(*args, **kwargs):
        calls.append(args)
        if len(calls) > 1:
            raise SystemExit(137)  # as little happens then as after a kill
        return simulate(*args, **kwargs)

    monkeypatch.setattr(contest, "simulate", killed)
    monkeypatch.setattr(pace, "LONG", 0.0)
    arguments = ["--algorithm", "LocalSA", "FedHSA", "--step-size", "0.01", "--out", str(tmp_path)]
    assert main(["compare", *SMALL, *arguments]) == 137
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert (found["complete"], list(found["algorithms"])) == (False, ["LocalSA"])
    with np.load(tmp_path / "compare.npz") as arrays:
        assert "LocalSA/error" in arrays


@pytest.mark.parametrize("done", [0, 1])
def test_ctrl_c_keeps_the_methods_that_are_done(tmp_path, capsys, monkeypatch, done):
    simulate, calls = fedhsa.simulate, []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) > done:
            raise KeyboardInterrupt
        return simulate(*args, **kwargs)

    monkeypatch.setattr(contest, "simulate", interrupted)
    out = tmp_path / "out"
    arguments = ["--algorithm", "LocalSA", "FedHSA", "--step-size", "0.01", "--out", str(out)]
    assert main(["compare", *SMALL, *arguments]) == 130
    said = capsys.readouterr().out
    if not done:
        assert "Interrupted: nothing was written." in said
        assert not out.exists()
        return
    assert "Interrupted: 1 of 2 methods were done, and written." in said
    assert names(out) == CURVES
    assert manifest(out)["complete"] is False
    assert list(manifest(out)["algorithms"]) == ["LocalSA"]


def test_help_teaches(capsys):
    assert main(["compare", "--help"]) == 0
    out = capsys.readouterr().out
    for field in dataclasses.fields(CompareSettings):
        assert "--" + field.name.rstrip("_").replace("_", "-") in out
    assert "fedhsa compare td" in out
    assert "Holm" in out
    assert main([]) == 0
    assert "fedhsa compare" in capsys.readouterr().out


def test_a_file_for_run_serves_too_and_the_default_folder_is_not_that_of_run(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('problem = "td"\nrounds = 30\nseeds = 5\n')
    settings = parse(CompareSettings, ["--config", str(config)])
    assert (settings.problem, settings.seeds) == ("td", 5)
    assert settings.folder == pathlib.Path("runs", "td", "compare")


def test_labels_widths_and_formats_reach_figures_tables_and_latex(tmp_path, capsys, monkeypatch):
    widths, write = [], plots.save  # here one that renders nothing

    def save(figure, *where):
        widths.append(figure.get_figwidth())
        write(figure, *where)

    monkeypatch.setattr(plots, "save", save)
    text = "FedHSA(local_steps=2)"
    arguments = ["--algorithm", text, "LocalSA", "--step-size", "0.01", "--width", "3.25", "--format", "svg"]
    (tmp_path / "compare.png").write_text("of an earlier comparison")
    code = main(
        ["compare", *SMALL, *arguments, "--label", f"{text}=ours_2", "--latex", "--force", "--out", str(tmp_path)]
    )
    captured = capsys.readouterr()
    assert code == 0
    assert captured.out.splitlines()[-1] == r"\end{tabular}"  # nothing else on standard output
    assert r"ours\_2, step as given & $" in captured.out
    assert captured.out == (tmp_path / "compare.tex").read_text()
    assert "compare.svg" in captured.err
    drawn = {path.name for path in tmp_path.glob("compare.*")}
    assert drawn == {"compare.svg", "compare.csv", "compare.npz", "compare.tex"}
    assert widths == [3.25]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--label", "FedHSB=x"], "`label` must be one of FedHSA, LocalSA, SynchronisedSA, got 'FedHSB'."),
        (["--label", "FedHSA"], "`label` must be NAME=TEXT, like `FedHSA=ours`, got 'FedHSA'."),
        (["--label", "FedHSA=LocalSA"], "`label` leaves two algorithms with the name 'LocalSA'."),
        (["--width", "0.1"], "`width` must be between 1 and 40 inches, got 0.1."),
        (["--format", "bmp"], "`format` must be one of png, pdf, svg, eps, got 'bmp'."),
    ],
)
def test_figures_that_cannot_be_are_refused_at_once(flags, message, capsys):
    assert main(["compare", *flags]) == 2
    assert message in capsys.readouterr().err

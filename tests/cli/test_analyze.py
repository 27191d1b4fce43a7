"""`fedhsa analyze`: its numbers are those of the library, its page can be read, its JSON parsed, its figure seen."""

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

import fedhsa
from fedhsa import theory
from fedhsa.cli import analyze as analyze_module
from fedhsa.cli import effort, main
from fedhsa.cli import panels as sweep_module
from fedhsa.cli.parsing import parse, read
from fedhsa.cli.screen import status_line
from fedhsa.cli.settings import AnalyzeSettings, RunSettings

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SMALL = ["--num-agents", "3", "--dim", "2", "--local-steps", "4"]
QUIET = [*SMALL, "--no-plot"]


@pytest.fixture
def said(capsys, monkeypatch):
    """Runs the command; gives what it prints, unwrapped."""
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments: str, code: int = 0) -> str:
        assert main(["analyze", *arguments]) == code
        return capsys.readouterr().out

    return run


@pytest.fixture
def document(capsys):
    """Runs the command with `--json`; gives the document, refusing what only Python takes for JSON."""

    def run(*arguments: str) -> dict[str, Any]:
        assert main(["analyze", *arguments, "--json"]) == 0
        captured = capsys.readouterr()
        assert not captured.err
        return json.loads(captured.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    return run


def quadratic(**options) -> fedhsa.Problem:
    return fedhsa.problems.quadratic.random(num_agents=3, dim=2, **options)


def row(page: str, label: str) -> list[str]:
    """The entries of a row of the page."""
    line = next(line for line in page.splitlines() if line.strip().startswith(label))
    return line.strip().removeprefix(label).split()


def refuse(*_, **__):
    raise TypeError("There is no law for this.")


def test_the_json_holds_the_numbers_of_the_library(document, monkeypatch):
    monkeypatch.setattr(theory, "choose", refuse)  # the search is another test's
    found = document("quadratic", *QUIET, "--step-size", "0.03", "0.05", "--target", "1e-2")
    for name, step in (("FedHSA", 0.03), ("LocalSA", 0.05)):
        entry = found["algorithms"][name]
        expected = theory.predict(quadratic(), fedhsa.ALGORITHMS[name](step, local_steps=4))
        for part in ("floor", "spectral_radius", "max_step_size", "noise_variance", "rate"):
            assert entry[part] == pytest.approx(getattr(expected, part), rel=1e-12), part
        np.testing.assert_allclose(entry["heterogeneity_bias"], expected.heterogeneity_bias, atol=1e-15)
        assert entry["settings"] == {"step_size": step, "local_steps": 4, "server_step": 1.0}
        assert entry["reach"]["rounds"] == expected.reach(1e-2).rounds
        assert entry["reach"]["bytes"] == expected.reach(1e-2).bytes
    constants = theory.constants(quadratic())
    assert found["constants"]["mu"] == pytest.approx(constants.mu)
    assert found["problem"] == {"name": "quadratic", "num_agents": 3, "dim": 2, "num_states": None}
    verdicts = [(line.name, line.verdict) for line in theory.check(quadratic()).lines]
    assert [(line["name"], line["verdict"]) for line in found["assumptions"]] == verdicts
    assert found["choice"] == {"unavailable": "There is no law for this."}
    assert found["figure"] is None


def test_ten_rounds_of_the_stated_number_lose_ten_decades(document):
    entry = document("quadratic", *QUIET, "--algorithm", "FedHSA")["algorithms"]["FedHSA"]
    assert entry["rate"] ** (2 * 10 * entry["rounds_per_tenth"]) == pytest.approx(1e-10)


def test_the_proposal_is_that_of_the_library_and_can_be_typed(document, tmp_path):
    arguments = ["--algorithm", "LocalSA", "--objective", "bytes", "--target", "1e-4", "--option", "noise_std=0.05"]
    choice = document("quadratic", *QUIET, *arguments)["choice"]
    expected = theory.choose(quadratic(noise_std=0.05), target=1e-4, objective="bytes", algorithms=("LocalSA",))
    assert choice["objective"] == "bytes"
    assert choice["best"]["bytes"] == pytest.approx(expected.reach.bytes)
    assert len(choice["frontier"]) == len(expected.frontier)
    assert choice["command"][:2] == ["fedhsa", "run"]
    settings = parse(RunSettings, choice["command"][2:])
    assert settings.option == {"noise_std": 0.05}
    assert settings.local_steps == choice["best"]["local_steps"]
    typed = fedhsa.algorithms.parse(settings.algorithm[0], local_steps=settings.local_steps)
    assert typed.step_size.begins == expected.algorithm.step_size.begins
    assert typed.step_size.step_sizes == pytest.approx(expected.algorithm.step_size.step_sizes, rel=1e-3)


def test_a_target_nobody_reaches_is_a_sentence_and_not_an_error(said):
    page = said("quadratic", *QUIET, "--target", "1e-30", "--algorithm", "LocalSA")
    assert "LocalSA cannot reach 1e-30 with these settings: its error stops at" in page
    assert "No step size reduces the error to `target` 1e-30" in page
    assert row(page, "rounds to 1e-30") == ["never"]


def test_the_page_shows_the_numbers_and_says_what_they_mean(said):
    page = said("quadratic", *QUIET, "--option", "b_level=10.0", "--step-size", "0.05")
    assert page.startswith("quadratic: M = 3 agents, d = 2 parameters, Markov sampling\n")
    prediction = theory.predict(quadratic(b_level=10.0), fedhsa.LocalSA(0.05, local_steps=4))
    assert row(page, "floor: bias squared + variance")[1] == f"{prediction.floor:.2e}"
    assert row(page, "bias from heterogeneity")[0] == "0"
    assert row(page, "known by") == ["exact", "law"] * 2
    assert f"LocalSA: stable up to step {prediction.max_step_size:.3g} at H = 4" in page
    assert f"LocalSA will not get below {prediction.floor:.2g} with these settings:" in page
    assert "of that is heterogeneity bias" in page
    assert "FedHSA: every further agent helps" in page
    assert "Assumption 2             holds" in page
    assert "slowest agent" in page


def test_a_method_that_diverges_is_told_what_to_change(said, document, monkeypatch):
    monkeypatch.setattr(theory, "choose", refuse)
    arguments = ["quadratic", *QUIET, "--step-size", "2", "--algorithm", "FedHSA"]
    page = said(*arguments)
    largest = theory.max_step_size(quadratic(), fedhsa.FedHSA(2.0, local_steps=4))
    assert row(page, "stable") == ["NO"]
    assert row(page, "floor: bias squared + variance") == ["-"]
    assert "FedHSA will diverge at step 2 and 4 local steps: its spectral radius is" in page
    assert f"Use a step below {largest:.3g}" in page
    entry = document(*arguments, "--target", "0.001")["algorithms"]["FedHSA"]
    assert (entry["floor"], entry["reach"]["rounds"]) == ("infinity", "infinity")


def test_without_noise_fed_hsa_goes_to_the_root_and_local_sa_does_not(said):
    page = said("quadratic", *QUIET, "--noiseless")
    assert "FedHSA goes all the way to the root" in page
    assert row(page, "floor: bias squared + variance")[0] == "0"
    assert "LocalSA: there is no noise that more agents could average out." in page
    assert "100 % of that is heterogeneity bias" in page


def test_a_step_size_that_keeps_changing_has_no_floor_and_reaches_a_target_all_the_same(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    method = "LocalSA(Polynomial(0.2, offset=20.0))"
    page = said("quadratic", "--num-agents", "2", "--dim", "2", "--algorithm", method, "--target", "0.1")
    assert row(page, "step size") == ["from", "0.01"]
    assert row(page, "factor of the r.m.s. error per round") == ["changes"]
    assert f"{method} has no floor: its step size keeps changing." in page
    assert f"{method} reaches 0.1 after" in page


def test_td_is_predicted_with_its_states_and_slowest_agent(said):
    page = said("td", *QUIET, "--option", "num_states=3", "--algorithm", "FedHSA")
    assert "S = 3 states" in page
    assert row(page, "known by") == ["exact", "law"]
    assert row(page, "judged by the") == ["mean", "square,", "exact"]
    slowest = theory.constants(fedhsa.problems.td.random(3, 3, 2)).slowest_agent
    assert f"agent {slowest}" in page


def test_what_theory_rejects_is_a_sentence_in_its_place(said, document, monkeypatch):
    monkeypatch.setattr(theory, "predict", refuse)
    monkeypatch.setattr(theory, "constants", refuse)
    page = said("quadratic", *QUIET)
    assert page.count("There is no law for this.") == 3
    found = document("quadratic", *QUIET)
    assert found["constants"] == {"unavailable": "There is no law for this."}
    assert found["algorithms"]["FedHSA"]["unavailable"] == "There is no law for this."
    assert found["figure"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quadratc"], "`problem` must be one of quadratic, .*'quadratc'. Did you mean 'quadratic'?"),
        (["--target", "-1"], "`target` must be greater than 0.0, got -1.0"),
        (["--target", "small"], "`target` must be a number, got 'small'"),
        (
            ["--objective", "byte"],
            "`objective` must be one of rounds, samples, bytes, got 'byte'. Did you mean 'bytes'?",
        ),
        (["--objective", "bytes"], "`objective` bytes needs `target`, an error to reach. Add `--target`."),
        (["--samples", "0"], "`samples` must be at least 1, got 0"),
        (["--rounds", "3"], "fedhsa analyze does not know the argument '--rounds'"),
        (["--algorithm", "SA"], "SA runs a single agent, got a problem with 3"),
        (["--option", "dim=3"], "`option` dim has a flag of its own"),
    ],
)
def test_bad_input_is_rejected_in_one_sentence_and_leaves_nothing_behind(tmp_path, capsys, arguments, words):
    out = tmp_path / "out"
    assert main(["analyze", *arguments, *SMALL, "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert len(captured.err.splitlines()) == 1
    for part in words.split(".*"):
        assert part in captured.err
    assert not out.exists()


def test_the_file_of_a_run_serves_the_analysis_too(tmp_path):
    settings = parse(AnalyzeSettings, ["--config", str(EXAMPLES / "quadratic.toml"), "--num-agents", "5"])
    of_run = read(RunSettings, EXAMPLES / "quadratic.toml")
    assert (settings.step_size, settings.local_steps) == (of_run.step_size, of_run.local_steps)
    assert settings.num_agents == 5
    config = tmp_path / "both.toml"
    config.write_text('problem = "td"\nrounds = 7\nobjective = "bytes"\ntarget = 0.1\n')
    assert read(RunSettings, config).rounds == 7
    assert (read(AnalyzeSettings, config).problem, read(AnalyzeSettings, config).objective) == ("td", "bytes")
    assert parse(AnalyzeSettings, ["quadratic", "--config", str(config)]).problem == "quadratic"


@pytest.mark.slow
def test_the_figure_is_written_beside_the_curves_of_a_run(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = said("quadratic", *SMALL, "--algorithm", "FedHSA")
    folder = pathlib.Path("runs", "quadratic")
    assert page.splitlines()[-1] == f"Figure: {folder / 'analyze.png'}"
    assert {path.name for path in folder.iterdir()} == {"analyze.png", "analyze.pdf"}
    assert (folder / "analyze.png").read_bytes().startswith(b"\x89PNG")


def test_the_sweeps_reach_the_edge_of_stability_and_hold_the_settings_asked_for(tmp_path, monkeypatch):
    drawn = {}

    def keep(predictions, sweeps, **_):
        drawn.update(predictions=predictions, sweeps=sweeps)

    monkeypatch.setattr(analyze_module.plots, "analysis", keep)
    monkeypatch.setattr(analyze_module.plots, "save", lambda *_: None)
    assert main(["analyze", "quadratic", *SMALL, "--step-size", "0.3", "--out", str(tmp_path)]) == 0
    for name, prediction in drawn["predictions"].items():
        steps = [p.algorithm.step_size for p in drawn["sweeps"]["step_size"][name]]
        assert 0.3 in steps
        assert 0.9 * prediction.max_step_size < steps[-1] < prediction.max_step_size
        local = [p.algorithm.local_steps for p in drawn["sweeps"]["local_steps"][name]]
        assert {1, 4} <= set(local)
        assert local == sorted(local)
        assert local[-1] <= prediction.max_local_steps
        assert all(p.stable and math.isfinite(p.floor) for p in drawn["sweeps"]["local_steps"][name])


@pytest.mark.usefixtures("unrendered")
def test_panels_that_would_take_long_are_left_out_and_it_says_so(said, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_module.effort, "seconds", lambda *_: 100.0)
    monkeypatch.setattr(sweep_module.effort, "total", lambda *_: 100.0)
    page = said("quadratic", *SMALL, "--algorithm", "FedHSA", "--target", "1e-3", "--out", str(tmp_path))
    assert "The figure leaves out other values of local steps and step size" in page
    assert "The search for settings would take about" in page


def test_a_long_analysis_is_announced(capsys, monkeypatch):
    monkeypatch.setattr(analyze_module.effort, "stability", lambda *_: 300.0)
    assert main(["analyze", "quadratic", *QUIET, "--algorithm", "FedHSA"]) == 0
    assert capsys.readouterr().err.startswith("Warning: This problem is large: its analysis takes about 5 minutes.")


def test_the_estimate_grows_with_the_problem():
    algorithm, small = fedhsa.FedHSA(0.1, local_steps=4), fedhsa.problems.td.random(2, 3, 2)
    large = fedhsa.problems.td.random(20, 30, 10)
    for estimate in (effort.seconds, lambda problem, _: effort.stability(problem)):
        assert estimate(small, algorithm) < estimate(large, algorithm)
    assert effort.seconds(large.iid(), algorithm) > effort.seconds(small.iid(), algorithm)
    assert effort.total(small, [algorithm] * 2) == 2 * effort.seconds(small, algorithm)


def test_a_folder_that_cannot_be_written_is_noticed_before_the_computation(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(analyze_module, "analyse", lambda *_: pytest.fail("it computed"))
    (tmp_path / "file").write_text("mine")
    assert main(["analyze", *SMALL, "--out", str(tmp_path / "file")]) == 1
    assert "`out`: cannot write to" in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_leaves_no_folder(tmp_path, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(analyze_module, "analyse", interrupt)
    assert main(["analyze", *SMALL, "--out", str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert not (tmp_path / "out").exists()


def test_progress_is_shown_on_a_terminal_only(capsys, monkeypatch):
    with status_line(True) as progress:
        progress("something")
    assert not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with status_line(False) as progress:
        progress("something")
    assert not capsys.readouterr().err


def test_help_teaches(capsys):
    assert main(["analyze", "--help"]) == 0
    out = capsys.readouterr().out
    for word in ("PROBLEM", "--target ERROR", "--objective", "--json", "--plot, --no-plot", "--samples"):
        assert word in out
    assert "fedhsa analyze quadratic --target 1e-4 --objective bytes" in out
    assert main(["--help"]) == 0
    assert "analyze    predict stability, rate, bias and noise floor" in capsys.readouterr().out

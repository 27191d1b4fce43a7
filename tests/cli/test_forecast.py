"""What `fedhsa run` says before it runs, and the predictions it lays beside the simulation."""

import csv
import json
import threading

import numpy as np
import pytest

import fedhsa
from fedhsa import outputs, theory
from fedhsa.cli import forecast, main
from fedhsa.cli.settings import RunSettings

SMALL = ["--num-agents", "2", "--dim", "2", "--rounds", "20", "--every", "5", "--seeds", "3", "--local-steps", "4"]


@pytest.fixture
def nothing_drawn(monkeypatch):
    """Without the figure, which takes longer than all the rest."""
    drawn = {}
    monkeypatch.setattr(outputs.plots, "save", lambda *_: None)
    monkeypatch.setattr(outputs.plots, "rehearse", lambda: None)
    monkeypatch.setattr(outputs.plots, "curves", lambda *_, **options: drawn.update(options))
    return drawn


def theory_column(folder, name: str) -> list[str]:
    with (folder / "curves.csv").open() as file:
        return [line["theory"] for line in csv.DictReader(file) if line["algorithm"] == name]


@pytest.mark.slow
def test_the_exact_law_stands_in_the_table_beside_the_simulation(tmp_path, nothing_drawn):
    assert main(["run", *SMALL, "--out", str(tmp_path)]) == 0
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    for name in ("FedHSA", "LocalSA"):
        algorithm = fedhsa.ALGORITHMS[name](0.01, local_steps=4)
        law = theory.exact.mean_square_error(problem, algorithm, rounds=20)[::5]
        np.testing.assert_allclose([float(value) for value in theory_column(tmp_path, name)], law, rtol=1e-12)
        np.testing.assert_allclose(nothing_drawn["theory"][name], law, rtol=1e-12)
    assert nothing_drawn["theory_label"] == "exact"


def test_the_manifest_keeps_the_prediction(tmp_path, nothing_drawn):
    assert main(["run", *SMALL, "--algorithm", "FedHSA", "--out", str(tmp_path)]) == 0
    entry = json.loads((tmp_path / "manifest.json").read_text())["algorithms"]["FedHSA"]["prediction"]
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    assert entry["floor"] == pytest.approx(theory.predict(problem, fedhsa.FedHSA(0.01, local_steps=4)).floor)
    assert entry["basis"] == "exact"


@pytest.mark.slow
def test_markov_chains_get_a_predicted_curve_too(tmp_path, nothing_drawn):
    arguments = ["--problem", "td", *SMALL, "--option", "num_states=3", "--algorithm", "FedHSA"]
    assert main(["run", *arguments, "--step-size", "0.1", "--out", str(tmp_path)]) == 0
    prediction = theory.predict(fedhsa.problems.td.random(2, 3, 2), fedhsa.FedHSA(0.1, local_steps=4))
    np.testing.assert_allclose(nothing_drawn["theory"]["FedHSA"], prediction.error(20)[::5], rtol=1e-12)
    assert nothing_drawn["theory_label"] == "exact"


def test_a_method_that_will_diverge_is_announced_with_a_remedy(tmp_path, capsys, nothing_drawn):
    assert main(["run", *SMALL, "--step-size", "3", "0.01", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    largest = theory.max_step_size(problem, fedhsa.FedHSA(3.0, local_steps=4))
    assert len(lines) == 1
    assert lines[0].startswith("Warning: FedHSA will diverge at step 3 and 4 local steps: its spectral radius is")
    assert f"Use a step below {largest:.3g}" in lines[0]
    assert theory_column(tmp_path, "FedHSA") == [""] * 5
    assert "theory" not in theory_column(tmp_path, "LocalSA")


@pytest.mark.parametrize("name", ["td", "logistic"])
def test_divergence_is_announced_before_the_prediction_is_there(name, monkeypatch):
    waiting = threading.Event()
    monkeypatch.setattr(forecast, "_predict", lambda *_: waiting.wait(60) and None)
    monkeypatch.setattr(forecast, "PATIENCE", 1e-3)
    monkeypatch.setattr(forecast.effort, "total", lambda *_: 0.0)
    sizes = {"td": (2, 3, 2), "logistic": (2, 4, 2)}[name]
    problem, algorithm = fedhsa.PROBLEMS[name](*sizes), fedhsa.FedHSA(50.0, local_steps=4)
    with pytest.warns(UserWarning, match=r"FedHSA will diverge at step 50 and 4 local steps.*Use a step below"):
        assert forecast.Forecast(problem, {"FedHSA": algorithm}).announce(RunSettings()) == []
    waiting.set()


def test_the_remedy_for_too_many_local_steps_is_fewer_of_them():
    problem = fedhsa.problems.quadratic.from_arrays(np.array([0.1, 1.0]).reshape(2, 1, 1), b=np.zeros((2, 1)))
    prediction = theory.predict(problem, fedhsa.FedHSA(0.5, local_steps=25))
    with pytest.warns(UserWarning, match="or at most 19 local steps"):
        forecast.warn({"FedHSA": prediction}, RunSettings())


def test_noise_that_makes_only_the_mean_square_grow_is_named():
    problem = fedhsa.problems.finite_sum.from_arrays(
        A=[[[[3.0]], [[-1.0]]]], b=[[[1.0], [-1.0]]], P=[[[0.5, 0.5], [0.5, 0.5]]]
    ).iid()
    # G = -a theta + b with a = 3 or -1: (1 - eta a)^2 has the mean 1 - 2 eta + 5 eta^2, above 1 from eta = 0.4 on,
    # while the mean, 1 - eta, converges up to 2.
    prediction = theory.predict(problem, fedhsa.SynchronisedSA(0.5))
    with pytest.warns(
        UserWarning, match="its mean converges, but noise.*grow by 1.25 per round .exact.. Use a step below 0.4"
    ):
        forecast.warn({"SynchronisedSA": prediction}, RunSettings())


def test_a_target_is_answered_with_rounds_or_with_a_warning(tmp_path, capsys, nothing_drawn):
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    prediction = theory.predict(problem, fedhsa.FedHSA(0.01, local_steps=4))
    start = float(problem.theta_star @ problem.theta_star)
    easy, far, never = 0.5 * start, 1.5 * prediction.floor, 0.5 * prediction.floor
    arguments = ["run", *SMALL, "--algorithm", "FedHSA", "--out", str(tmp_path), "--target"]
    assert main([*arguments, str(easy)]) == 0
    captured = capsys.readouterr()
    assert f"FedHSA should reach {easy:g} after {prediction.reach(easy).rounds:,} rounds." in captured.out
    assert not captured.err
    assert main([*arguments, str(far)]) == 0
    rounds = prediction.reach(far).rounds
    assert rounds > 20
    assert f"Warning: FedHSA needs about {rounds:,} rounds to reach `target` {far:g}" in capsys.readouterr().err
    assert main([*arguments, str(never)]) == 0
    said = capsys.readouterr().err
    assert f"Warning: FedHSA cannot reach `target` {never:g} with these settings" in said
    assert "`fedhsa analyze --target" in said


def test_the_target_changes_no_numbers():
    assert RunSettings(target=0.1).numbers() == RunSettings().numbers()


def test_what_takes_long_to_predict_is_left_out_in_silence(tmp_path, capsys, monkeypatch, nothing_drawn):
    monkeypatch.setattr(forecast.effort, "total", lambda *_: 1e9)
    monkeypatch.setattr(forecast, "predicted", lambda *_: pytest.fail("it predicted"))
    assert main(["run", *SMALL, "--algorithm", "FedHSA", "--out", str(tmp_path)]) == 0
    assert not capsys.readouterr().err
    assert theory_column(tmp_path, "FedHSA") == [""] * 5
    assert main(["run", *SMALL, "--algorithm", "FedHSA", "--out", str(tmp_path), "--target", "1"]) == 0
    assert "Whether the target can be reached is not known, or takes long to predict" in capsys.readouterr().out


def test_what_could_only_be_sampled_is_not_predicted():
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    recorded = problem.replay(np.zeros((2, 40, 2)))
    assert forecast.Forecast(recorded, {"FedHSA": fedhsa.FedHSA(0.01, local_steps=4)}).predictions() == {}


def test_what_theory_rejects_does_not_stop_a_run():
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    blocks = fedhsa.FedHSA(fedhsa.PerBlock((0.1, fedhsa.Polynomial(0.1)), sizes=(1, 1)), local_steps=4)
    found = forecast.Forecast(problem, {"blocks": blocks, "one": fedhsa.FedHSA(0.1, local_steps=4)})
    assert list(found.predictions()) == ["one"]


def test_a_manifest_does_not_search_for_the_largest_stable_step(monkeypatch):
    monkeypatch.setattr(fedhsa.theory.Prediction, "max_step_size", property(lambda self: pytest.fail("a search")))
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    found = forecast.Forecast(problem, {"FedHSA": fedhsa.FedHSA(0.1, local_steps=4)}).predictions()
    words = forecast.for_manifest(found)["FedHSA"]
    assert words["stable"]
    assert not words.keys() & {"max_step_size", "max_local_steps"}


def test_a_run_that_is_done_does_not_wait_for_a_prediction_that_takes_too_long(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(forecast, "_predict", lambda problem, algorithm: never.wait())
    monkeypatch.setattr(forecast, "LATE", 0.01)
    problem = fedhsa.problems.quadratic.random(num_agents=2, dim=2)
    assert forecast.Forecast(problem, {"FedHSA": fedhsa.FedHSA(0.1, 2)}).predictions() == {}

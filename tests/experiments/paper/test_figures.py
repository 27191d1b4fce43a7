"""The figures' experiments on problems small enough for a test: numbers, verdicts and honesty."""

import dataclasses
import json

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.experiments.paper.comparison import Comparison
from fedhsa.experiments.paper.sweep import AgentSweep
from fedhsa.experiments.run import presets, store
from fedhsa.experiments.study import traces
from fedhsa.experiments.study.base import Outcome, Runner, StoppedError
from fedhsa.experiments.study.foresight import draw_stable
from fedhsa.experiments.study.instance import Instance

SMALL = Instance("quadratic", 4, {"dim": 3, "b_level": 20.0})
ALIKE = Instance("quadratic", 4, {"dim": 3, "b_level": 20.0, "heterogeneity": 0.1})
"""Agents that differ so little that more of them certainly lower the floor: others also change the mean slope."""


@pytest.fixture(scope="module")
def noisy():
    experiment = Comparison("small/markov", "Small", "Figure 0", instance=SMALL, step_size=0.02, rounds=200, seeds=16)
    return experiment, experiment.run(Runner())


@pytest.fixture(scope="module")
def quiet():
    experiment = Comparison("small/noiseless", "Small", "F", instance=SMALL, step_size=0.02, rounds=200, noiseless=True)
    return experiment, experiment.run(Runner())


@pytest.fixture(scope="module")
def sweep():
    experiment = AgentSweep(
        "small/agents", "Small", "F", instance=ALIKE, agents=(1, 4), step_size=0.02, rounds=800, seeds=64
    )
    return experiment, experiment.run(Runner())


def verdicts(experiment, outcome):
    return {check.name.split(": ")[1]: check.verdict for check in experiment.checks(outcome)}


@pytest.mark.slow
def test_every_check_passes_on_small_problems(noisy, quiet, sweep):
    for experiment, outcome in (noisy, quiet, sweep):
        assert set(verdicts(experiment, outcome).values()) == {"pass"}
        assert all(isinstance(sentence, str) for sentence in experiment.summary(outcome))
        assert len({len(column) for column in experiment.table(outcome).values()}) == 1


def test_finished_simulations_of_an_interrupted_experiment_are_taken_up_and_damaged_ones_replaced(quiet, tmp_path):
    experiment, outcome = quiet
    with pytest.raises(StoppedError):
        experiment.run(Runner(lambda: any(tmp_path.glob("*.npz")), folder=tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    kept = next(tmp_path.iterdir())
    again = experiment.run(Runner(folder=tmp_path))
    kept.write_bytes(kept.read_bytes()[:100])
    third = experiment.run(Runner(folder=tmp_path))
    for name, values in outcome.arrays.items():
        assert np.array_equal(again.arrays[name], values)
        assert np.array_equal(third.arrays[name], values)


def test_both_methods_see_the_same_noise(noisy):
    _, outcome = noisy
    alone = fh.simulate(SMALL.build(), fh.LocalSA(0.02, local_steps=10), rounds=200, seeds=16)
    assert np.array_equal(alone.error, outcome.arrays["LocalSA/error"])


def test_agents_of_a_sweep_are_the_first_ones_of_one_problem(sweep):
    _, outcome = sweep
    first = fh.simulate(ALIKE.build().take([0]), fh.FedHSA(0.02, local_steps=10), rounds=800, seeds=64)
    assert np.array_equal(first.error, outcome.arrays["M = 1/error"])


def test_a_bias_of_fedhsa_would_be_found(noisy, quiet):
    experiment, outcome = quiet
    stuck = outcome.arrays | {"FedHSA/error": outcome.arrays["FedHSA/error"] + 1e-15}
    found = verdicts(experiment, Outcome(stuck, outcome.facts))
    assert found["root"] == "fail"
    experiment, outcome = noisy
    swapped = outcome.arrays | {"FedHSA/error": outcome.arrays["LocalSA/error"] * 1.01}
    found = verdicts(experiment, Outcome(swapped, outcome.facts))
    assert found["order"] == found["floor of FedHSA"] == "fail"


def test_another_slope_than_the_predicted_one_would_be_found(sweep):
    experiment, outcome = sweep
    flatter = outcome.arrays | {"M = 4/error": outcome.arrays["M = 4/error"] * 2}
    assert verdicts(experiment, Outcome(flatter, outcome.facts))["slope"] == "fail"


def test_too_few_rounds_are_called_too_few(noisy):
    experiment, _ = noisy
    short = dataclasses.replace(experiment, rounds=20)
    outcome = short.run(Runner())
    assert not traces.is_flat(outcome, "FedHSA")
    assert "not to be trusted" in " ".join(short.summary(outcome))
    found = verdicts(short, outcome)
    assert found["order"] == found["floor of FedHSA"] == found["floor of LocalSA"] == "not decided"


@pytest.mark.slow
def test_an_unstable_instance_is_passed_over_and_a_hopeless_one_refused():
    instance, method = Instance("quadratic", 3, {"dim": 2}), fh.FedHSA(1.0, local_steps=10)
    problem, key = draw_stable(Instance("quadratic", 3, {"dim": 2, "min_eigenvalue": 1.0}), [fh.FedHSA(0.3, 10)])
    assert fh.theory.exact.spectral_radius(problem, fh.FedHSA(0.3, 10)) < 1
    assert key >= 0
    with pytest.raises(ValueError, match="smaller `step_size`"):
        draw_stable(instance, [dataclasses.replace(method, step_size=5.0)])


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_every_preset_covers_every_figure_of_the_paper_with_plain_settings(preset):
    found = presets.studies(preset)
    figures = {experiment.source for experiment in found.values()}
    assert {f"Figure {n}" for n in ("2a", "2b", "3", "4a", "4b", "5", "6a", "6b", "7", "8a", "8b", "9")} <= figures
    for experiment in found.values():
        assert json.loads(json.dumps(store.settings(experiment))) == store.settings(experiment)
        assert store.fingerprint(experiment) != store.fingerprint(presets.quick(experiment))
        assert 0 < presets.quick(experiment).seconds() <= 1.01 * experiment.seconds() < 600


def test_the_paper_preset_has_the_numbers_of_the_text():
    found = presets.studies()
    quadratic, td, finite = (found[f"{family}/markov"] for family in ("quadratic", "td", "finite-sum"))
    values = store.settings(quadratic)
    assert [values[n] for n in ("problem.num_agents", "problem.dim", "local_steps", "step_size")] == [20, 10, 10, 0.001]
    assert values["problem.noise_std"] ** 2 == pytest.approx(0.01)
    assert values["problem.start"] == "zero"
    values = store.settings(td)
    assert [values[f"problem.{n}"] for n in ("num_agents", "num_states", "dim")] == [200, 100, 50]
    values = store.settings(finite)
    assert [values[f"problem.{n}"] for n in ("num_agents", "num_components", "dim")] == [200, 2, 200]
    assert values["step_size"] == 0.01
    for family in ("quadratic", "nonconvex", "td", "finite-sum"):
        assert found[f"{family}/agents"].agents == (1, 5, 20, 100)
        assert found[f"{family}/agents"].seeds >= 16


def test_a_setting_that_does_not_exist_or_does_not_fit_is_refused():
    experiment = presets.studies()["td/markov"]
    with pytest.raises(ValueError, match="no setting `lazyness`"):
        presets.change(experiment, "lazyness", 0.5)
    with pytest.raises(ValueError, match="`rounds` must be a whole number"):
        presets.change(experiment, "rounds", 1.5)
    with pytest.raises(ValueError, match="`seeds` must be at least 2"):
        presets.change(experiment, "seeds", 1)
    with pytest.raises(ValueError, match="`noiseless` must be true or false"):
        presets.change(experiment, "noiseless", 1)
    assert presets.change(experiment, "step_size", 1).step_size == 1.0
    assert presets.change(experiment, "problem.key", 3).instance.key == 3
    price = presets.studies()["communication"]
    assert presets.change(price, "td.dim", 4).td.arguments["dim"] == 4
    with pytest.raises(ValueError, match="no setting `quadratic`"):
        presets.change(price, "quadratic", 4)

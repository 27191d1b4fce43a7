"""Markov against independent sampling."""

import json

import numpy as np
import pytest

import fedhsa
from fedhsa.experiments.paper.sampling import Sampling, _alike, _theorem_factor
from fedhsa.experiments.study.base import Outcome, Runner
from fedhsa.theory import first_order_covariance

TINY = Sampling(families=("finite-sum",), num_agents=3, dim=2, laziness=(0.0, 0.5), rounds=40, seeds=4)


def made(inflation: float, spread: float = 0.05) -> tuple[Sampling, Outcome]:
    """An outcome in which lazy chains raise the floor so many times, where 19 are expected."""
    study = Sampling(families=("finite-sum",), laziness=(0.0, 0.9))
    rng = np.random.default_rng(0)
    independent, noise = (1 + spread * rng.normal(size=(2, 32)) for _ in range(2))
    rows = [
        {"laziness": 0.0, "predicted": 1.0, "first_order": 1.0, "theorem": 20.0, "bias_share": 0.0},
        {"laziness": 0.9, "predicted": 18.5, "first_order": 19.0, "theorem": 3e3, "bias_share": 0.01},
    ]
    rows = [row | {"radius": 0.9, "basis": "one site", "doubt": 0.001} for row in rows]
    arrays = {
        "finite-sum/independent": independent,
        "finite-sum/markov": np.array([[1.0], [inflation]]) * noise,
    }
    return study, Outcome(arrays, {"finite-sum": {"one_problem": True, "rows": rows}})


def test_lazy_chains_leave_a_finite_sum_as_it_is_but_not_td():
    study = Sampling(num_agents=3, dim=2, num_states=5)
    same = [study.variant("finite-sum", laziness).build() for laziness in (0.0, 0.9)]
    other = [study.variant("td", laziness).build() for laziness in (0.0, 0.9)]
    assert _alike(*same)
    assert not _alike(*other)


def test_the_long_run_variance_of_a_lazy_finite_sum_is_linear_in_the_slowdown():
    # Gamma_l = (Gamma_0 + C_0) / (1 - l) - C_0, and the first-order floor is linear in Gamma
    algorithm = fedhsa.FedHSA(0.002, local_steps=3)
    drawn, lazy = (TINY.variant("finite-sum", laziness).build() for laziness in (0.0, 0.9))
    first, last = (np.trace(first_order_covariance(problem, algorithm)) for problem in (drawn, lazy))
    independent = np.trace(first_order_covariance(drawn.iid(), algorithm))
    np.testing.assert_allclose(last, 10 * (first + independent) - independent, rtol=1e-8)


@pytest.mark.parametrize("family", ["finite-sum", "td"])
def test_the_theorems_factor_is_that_of_the_problems_constants(family):
    problem = Sampling(num_agents=3, dim=2, num_states=5).variant(family, 0.5).build()
    constants = fedhsa.theory.constants(problem)
    expected = constants.tau(0.01) / (1 - constants.rho)
    np.testing.assert_allclose(_theorem_factor(problem, 0.1), expected, rtol=1e-12)


@pytest.mark.slow
def test_a_run_gives_what_the_rest_needs():
    outcome = TINY.run(Runner())
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts
    assert outcome.facts["finite-sum"]["one_problem"]
    assert outcome.arrays["finite-sum/markov"].shape == (2, 4)
    slow = outcome.facts["finite-sum"]["rows"][1]
    assert 2 < slow["predicted"] < slow["theorem"]
    assert len(TINY.checks(outcome)) == 4


def test_the_predicted_inflation_passes_and_another_fails():
    for inflation, verdicts in (
        (18.5, ["pass"] * 4),
        (13.0, ["pass", "pass", "fail", "fail"]),
        (25.0, ["pass", "pass", "fail", "fail"]),
    ):
        study, outcome = made(inflation)
        assert [check.verdict for check in study.checks(outcome)] == verdicts


def test_wide_intervals_fail():
    study, outcome = made(18.5, spread=0.4)
    assert study.checks(outcome)[-1].verdict != "pass"


def test_everything_measured_is_drawn_told_and_tabulated():
    study, outcome = made(18.5)
    above, below = study.draw(outcome).axes
    assert above.get_yscale() == "log"
    assert [tick.get_text() for tick in below.get_xticklabels()] == ["1", "10"]
    assert study.table(outcome)["laziness"] == [0.0, 0.9]
    assert "mix 10 times slower" in study.summary(outcome)[0]


def test_unknown_families_are_refused():
    with pytest.raises(ValueError, match="`families` must be one of"):
        Sampling(families=("logistic",))

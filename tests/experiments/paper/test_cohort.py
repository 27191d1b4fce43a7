"""The speed-up of a repeated cohort."""

import json

import numpy as np
import pytest

from fedhsa.experiments.paper.cohort import Cohort, variances
from fedhsa.experiments.study.base import Outcome, Runner

TINY = Cohort(families=("quadratic",), num_agents=2, dim=2, copies=(1, 3), rounds=40, seeds=4)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return TINY.run(Runner())


def made(power: float, spread: float = 0.05, doubt: float = 0.0) -> tuple[Cohort, Outcome]:
    """An outcome in which the variance falls with this power of the agents, by laws with such a doubt."""
    study, agents = Cohort(families=("quadratic",)), [5, 20, 100]
    noise = 1 + spread * np.random.default_rng(0).normal(size=(3, 32))
    predicted = [2.0 / M for M in agents]
    facts = {"agents": agents, "basis": ["exact" if doubt == 0 else "one site"] * 3, "settling": 44}
    facts |= {"predicted": predicted, "doubts": [doubt] * 3}
    samples = 2.0 / 5 * (np.array(agents) / 5.0)[:, None] ** power * noise
    return study, Outcome({"quadratic/variance": samples}, {"quadratic": facts})


def test_the_variance_is_unbiased_however_short_and_correlated_the_runs():
    # 4000 repetitions of 3 seeds of 4 rounds, AR(1) with correlation 0.9 and variance 1 in each of 2 dimensions,
    # around a mean that is not zero: the standard error of the mean is 0.02, and ignoring the correction gives 1.4.
    rng, repeats = np.random.default_rng(0), 4000
    x = [rng.normal(size=(repeats, 3, 2))]
    for _ in range(3):
        x.append(0.9 * x[-1] + np.sqrt(1 - 0.81) * rng.normal(size=(repeats, 3, 2)))
    theta = 5 + np.stack(x, axis=2)
    found = np.array([variances(one).mean() for one in theta])
    assert abs(found.mean() - 2) < 0.08
    plain = np.array([((one - one.mean((0, 1))) ** 2).sum(-1).mean() for one in theta])
    assert plain.mean() < 1.6


@pytest.mark.slow
def test_copies_keep_the_root_and_the_exact_law_falls_as_one_over_their_number(outcome):
    facts = outcome.facts["quadratic"]
    assert facts["agents"] == [2, 6]
    assert facts["basis"] == ["exact"] * 2
    assert facts["doubts"] == [0.0] * 2
    np.testing.assert_allclose(facts["predicted"][0] / facts["predicted"][1], 3, rtol=1e-9)
    assert outcome.arrays["quadratic/variance"].shape == (2, 4)
    # 4 seeds of 40 rounds: within a factor of two of the law
    ratio = outcome.arrays["quadratic/variance"].mean(1) / facts["predicted"]
    assert (ratio > 0.5).all()
    assert (ratio < 2).all()


@pytest.mark.slow
def test_facts_survive_the_disk(outcome):
    assert json.loads(json.dumps(outcome.facts, allow_nan=False)) == outcome.facts


def test_a_variance_that_falls_as_one_over_the_agents_passes():
    study, outcome = made(-1.0)
    assert [check.verdict for check in study.checks(outcome)] == ["pass"] * 4


@pytest.mark.parametrize("power", [-0.9, -1.1])
def test_a_variance_that_falls_otherwise_fails(power):
    study, outcome = made(power)
    assert [check.verdict for check in study.checks(outcome)] == ["fail", "pass", "fail", "fail"]
    study, outcome = made(power, doubt=0.05)
    assert study.checks(outcome)[0].verdict != "pass"


def test_laws_that_leave_something_out_are_given_as_much_and_no_more():
    # the interval of M times the variance is 3 % wide on either side, 18 % off at M = 100 and 13 % at M = 20
    for doubt, verdicts in ((0.0, ["fail"] * 2), (0.05, ["fail"] * 2), (0.15, ["pass", "fail"])):
        study, outcome = made(-1.1, doubt=doubt)
        assert [check.verdict for check in study.checks(outcome)[2:]] == verdicts


def test_wide_intervals_fail():
    study, outcome = made(-1.0, spread=0.5)
    assert study.checks(outcome)[0].verdict != "pass"


def test_everything_measured_is_drawn_told_and_tabulated(outcome):
    left, right = TINY.draw(outcome).axes
    assert left.get_yscale() == "log"
    assert "by prediction" in right.get_ylabel()
    assert TINY.table(outcome)["agents"] == [2, 6]
    assert "from 2 to 6" in TINY.summary(outcome)[0]


def test_unknown_families_are_refused():
    with pytest.raises(ValueError, match="`families` must be one of"):
        Cohort(families=("logistic",))


@pytest.mark.slow
def test_the_variance_of_a_repeated_cohort_falls_as_one_over_the_agents_in_every_family():
    study = Cohort()
    checks = study.checks(study.run(Runner()))
    assert [check.verdict for check in checks] == ["pass"] * 16

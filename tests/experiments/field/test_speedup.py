"""SCAFFLSA's speed-up."""

import numpy as np
import pytest

from fedhsa.experiments.field.speedup import METHODS, Speedup
from fedhsa.experiments.study.base import Outcome, Runner

STUDY = Speedup()


def made(slope: float = -1.0, spread: float = 0.05) -> Outcome:
    """Errors with this slope in the number of agents, and this spread between seeds."""
    noise = 1 + spread * np.random.default_rng(0).normal(size=16)
    arrays = {
        f"{setting}, H = {H}/{method}": (np.array(numbers, dtype=float) ** slope)[:, None] * noise
        for setting, numbers in STUDY.sweeps().items()
        for H in STUDY.local_steps
        for method in METHODS
    }
    return Outcome(arrays, {})


def verdicts(outcome: Outcome) -> set[str]:
    return {check.verdict for check in STUDY.checks(outcome)}


def test_slope_minus_one_passes():
    assert verdicts(made()) == {"pass"}


@pytest.mark.parametrize("slope", [-0.9, -1.1, 0.0])
def test_other_slopes_fail(slope):
    assert verdicts(made(slope)) == {"fail"}


def test_an_interval_that_is_wide_decides_nothing():
    outcome = made()
    noise = np.random.default_rng(0).lognormal(sigma=2.0, size=(4, 16))
    wide = {label: samples * noise[: len(samples)] for label, samples in outcome.arrays.items()}
    assert verdicts(Outcome(wide, {})) == {"not decided"}


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 2
    assert "equal, H = 10, SCAFFLSA -1.000 [-1.000, -1.000]" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1


def test_copies_share_the_root_of_the_cohort():
    cohort = STUDY.cohort("heterogeneous")
    assert cohort.num_agents == 10
    np.testing.assert_allclose(cohort.take([*range(10)] * 2).theta_star, cohort.theta_star, rtol=1e-10)


@pytest.mark.slow
def test_a_run_has_an_error_for_every_seed_and_number_of_agents():
    outcome = Speedup(equal_agents=(1, 2), heterogeneous_agents=(10,), local_steps=(3,), samples=30, seeds=2).run(
        Runner()
    )
    shapes = {label: samples.shape for label, samples in outcome.arrays.items()}
    assert shapes == {
        f"{s}, H = 3/{m}": (n, 2) for s, n in (("equal", 2), ("heterogeneous", 1)) for m in ("SCAFFLSA", "FedHSA")
    }

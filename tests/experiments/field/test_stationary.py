"""SCAFFOLD's stationary law."""

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.experiments.field.stationary import METHODS, Stationary, spread
from fedhsa.experiments.study.base import Outcome

STUDY = Stationary()


def made(bias: float = 1.0, square: float = 1.0, stays: float = 1.0) -> Outcome:
    """Moments as the formulas have them, times these factors, with a little spread between seeds."""
    law, arrays = STUDY.law(STUDY.cohort()), {}
    noise = 1 + 0.01 * np.random.default_rng(0).normal(size=STUDY.seeds)
    steps = np.array(STUDY.step_sizes)
    for N in STUDY.agents():
        for name in METHODS:
            later = stays * law.next_bias(N, spread(name, STUDY.local_steps))
            arrays[f"{name}, N = {N}/bias"] = (steps * bias * law.bias(N) + steps**2 * later)[:, None] * noise
            arrays[f"{name}, N = {N}/square"] = (steps * square * law.square(N))[:, None] * noise
    return Outcome(arrays, {"law": {field: value.tolist() for field, value in law._asdict().items()}})


def failed(outcome: Outcome) -> set[str]:
    found = STUDY.checks(outcome)
    return {c.name.rpartition(", ")[2].removeprefix("field/scaffold-law: ") for c in found if c.verdict != "pass"}


def test_the_formulas_pass_and_others_fail():
    assert failed(made()) == set()
    assert failed(made(square=1.2)) == {"variance"}
    assert failed(made(bias=0.8)) == {"bias"}
    assert failed(made(stays=0.1)) == {"next bias", "bias that stays"}


def test_curvature_noise_and_third_derivative_are_those_of_the_agents():
    cohort, law = STUDY.cohort(), STUDY.law(STUDY.cohort())
    np.testing.assert_allclose(-cohort.jacobians(cohort.theta_star)[:, 0, 0], law.curvature)
    at = [cohort.jacobians(cohort.theta_star + shift)[:, 0, 0] for shift in (-1e-4, 1e-4)]
    np.testing.assert_allclose((at[0] - at[1]) / 2e-4, law.third, rtol=1e-6)
    p, x = np.array(STUDY.shares), np.array(STUDY.inputs)
    np.testing.assert_allclose(law.noise, x**2 * p * (1 - p))  # of x times a coin


@pytest.mark.slow
def test_linearised_agents_share_minimum_slopes_and_observations():
    cohort = STUDY.cohort()
    linear = STUDY.linearised(cohort)
    np.testing.assert_allclose(linear.theta_star, cohort.theta_star, rtol=1e-9)
    np.testing.assert_allclose(linear.jacobians(np.zeros(1)), cohort.jacobians(cohort.theta_star), rtol=1e-12)
    theta, steps = cohort.theta_star + 1e-5, fh.SynchronisedSA(0.1)
    ends = [fh.simulate(problem, steps, rounds=1, theta=theta).theta[0] for problem in (cohort, linear)]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-9)


def test_figure_and_sentences_are_made_from_what_was_kept():
    assert len(STUDY.draw(made()).axes) == 2
    assert "(formula 0.0712)" in STUDY.summary(made())[0]
    assert len({len(column) for column in STUDY.table(made()).values()}) == 1

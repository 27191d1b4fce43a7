"""Step sizes that change from round to round: curves against sums over all trajectories, and what is said in words."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa.problems import td
from fedhsa.theory import changing
from theory.test_sites import scafflsa_by_paths, turns

DECREASING = fh.Polynomial(0.6, offset=4.0, power=0.7)


@pytest.mark.parametrize(
    ("schedule", "rounds", "tolerance"),
    [(fh.Stages((0.2, 0.05), (2,)), 4, 1e-11), (DECREASING, 20, 1e-8)],
    ids=["stages", "decreasing"],
)
def test_scafflsa_with_steps_that_change_is_the_sum_over_all_trajectories(schedule, rounds, tolerance):
    problem = turns(2)
    expected = scafflsa_by_paths(2, changing.step_sizes(schedule, rounds).tolist(), 2)
    found = fh.theory.predict(problem, fh.SCAFFLSA(schedule, 2)).error(rounds, problem.theta_star + 1)
    np.testing.assert_allclose(found, expected, rtol=tolerance)


@pytest.mark.parametrize(
    "problem",
    [td.random(2, 2, 2, laziness=0.8), td.random(3, 3, 2).iid(), fh.problems.quadratic.random(3, 2)],
    ids=["chains", "independent", "VAR(1)"],
)
def test_interpolated_laws_are_those_of_every_single_step_size(problem, monkeypatch):
    method = fh.FedHSA(fh.Polynomial(0.4, offset=3.0), 3)
    found = fh.theory.predict(problem, method).error(25)
    monkeypatch.setattr(changing, "NODES", (25,))
    np.testing.assert_allclose(found, fh.theory.predict(problem, method).error(25), rtol=1e-8)


def test_equal_stages_are_one_also_for_running_averages_and_absent_agents():
    problem = turns(2)
    for wrapped in (fh.Averaged, lambda method: fh.Partial(method, fh.sampling.Bernoulli(0.5))):
        one, two = (fh.theory.predict(problem, wrapped(fh.LocalSA(s, 1))) for s in (0.05, fh.Stages((0.05,) * 2, (3,))))
        np.testing.assert_allclose(one.error(6), two.error(6), rtol=1e-11)
        assert one.floor == two.floor


def test_a_step_size_that_decreases_for_ever_has_a_curve_and_no_floor(monkeypatch):
    monkeypatch.setattr(changing, "LONGEST", 100)
    problem = turns(2)
    prediction = fh.theory.predict(problem, fh.FedHSA(DECREASING, 2))
    assert np.isnan(prediction.floor)
    assert prediction.stable
    assert "none: the step size keeps changing; see `error(rounds)`" in repr(prediction)
    start = np.full(1, 3.0)  # the root is 0
    errors = prediction.error(prediction.rounds_to(2.0, start), start)
    assert errors[-1] <= 2.0 < errors[-2]
    assert np.isnan(prediction.rounds_to(1e-9, start))  # unknown: it is not reached in the rounds that are followed


def test_a_step_size_that_soon_vanishes_is_stable_and_followed_as_long_as_it_is_a_number():
    class Halving(fh.algorithms.AbstractSchedule):
        def __call__(self, round_index):
            return 0.1 * 0.5 ** jnp.asarray(round_index, float)

    for schedule in (Halving(), fh.Polynomial(0.1, power=2.0)):
        prediction = fh.theory.predict(turns(2), fh.SCAFFLSA(schedule, 2))
        assert prediction.stable
        assert np.isnan(prediction.floor)
        assert np.isfinite(prediction.error(12)).all()
    with pytest.raises(TypeError, match=r"go from 0\.1 to 7\.89e-32 in 101 rounds.*Predict fewer rounds"):
        fh.theory.predict(turns(2), fh.FedHSA(Halving(), 2)).error(101)


def test_a_step_size_that_becomes_constant_has_the_floor_of_that_constant():
    class Bounded(fh.algorithms.AbstractSchedule):
        def __call__(self, round_index):
            return 0.02 + 0.1 * 0.5 ** jnp.asarray(round_index, float)

    problem = turns(2)
    prediction = fh.theory.predict(problem, fh.LocalSA(Bounded(), 2))
    assert prediction.floor == pytest.approx(fh.theory.predict(problem, fh.LocalSA(0.02, 2)).floor, rel=1e-12)


def test_what_is_left_out_is_that_of_the_worst_step_size():
    problem = td.random(12, 4, 2, laziness=0.5)
    found = [fh.theory.predict(problem, fh.LocalSA(step, 3)) for step in (0.05, 0.005, fh.Stages((0.05, 0.005), (5,)))]
    assert found[2].left_out == found[0].left_out > found[1].left_out > 0


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (fh.FedHSA(fh.PerBlock((0.1, 0.2), (1, 1)), 2), "require one step size for all coordinates"),
        (fh.RichardsonRomberg(fh.FedHSA(DECREASING, 2)), "does not support step sizes that change"),
    ],
    ids=["blocks", "extrapolation"],
)
def test_what_has_no_law_of_changing_steps_is_refused(method, sentence):
    with pytest.raises(TypeError, match=sentence):
        fh.theory.predict(td.random(2, 2, 2), method)

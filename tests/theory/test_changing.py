"""Step sizes that change from round to round: curves against sums over all trajectories, and what is said in words."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from fedhsa.problems import td
from fedhsa.theory import changing
from fedhsa.theory.laws.agents import agents_of
from fedhsa.theory.laws.federation import Federation
from fedhsa.theory.laws.levels import EachSiteLaw
from fedhsa.theory.laws.pieces import pieces_of
from theory.test_sites import scafflsa_by_paths, turns

DECREASING = fh.Polynomial(3.5, offset=60.0, power=0.7)
"""Its first 40 step sizes are so close to each other that most of their laws are interpolated."""
BLOCKS = fh.PerBlock((0.02, 0.3), sizes=(1, 1))


@pytest.mark.parametrize(
    ("schedule", "rounds", "tolerance"),
    [(fh.Stages((0.2, 0.05), (2,)), 4, 1e-11), (DECREASING, 40, 1e-8)],
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
    method = fh.FedHSA(fh.Polynomial(8.0, offset=60.0), 3)
    found = fh.theory.predict(problem, method).error(40)
    monkeypatch.setattr(changing, "NODES", (40,))
    np.testing.assert_allclose(found, fh.theory.predict(problem, method).error(40), rtol=1e-8)


def test_equal_stages_are_one_also_for_running_averages_and_absent_agents():
    problem = turns(2)
    for wrapped in (fh.Averaged, lambda method: fh.Partial(method, fh.sampling.Bernoulli(0.5))):
        one, two = (fh.theory.predict(problem, wrapped(fh.LocalSA(s, 1))) for s in (0.05, fh.Stages((0.05,) * 2, (3,))))
        np.testing.assert_allclose(one.error(6), two.error(6), rtol=1e-11)
        assert one.floor == two.floor


def test_a_step_size_that_decreases_for_ever_has_a_curve_and_no_floor(monkeypatch):
    monkeypatch.setattr("fedhsa.theory.prediction.LONGEST", 100)
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


def test_a_step_size_for_each_block_multiplies_the_operators_of_that_block():
    """One agent with one step per round: the moments on its two states, in NumPy."""
    rng, P = np.random.default_rng(3), np.array([[0.8, 0.2], [0.2, 0.8]])
    A, b = -np.eye(2) - 0.3 * rng.standard_normal((2, 2, 2)), rng.standard_normal((2, 2))
    problem = fh.problems.finite_sum.from_arrays(-A[None], b[None], P[None])
    root, D, x = problem.theta_star, np.diag([0.02, 0.3]), np.ones(3)
    maps = [np.block([[np.eye(2) + D @ A[s], (D @ (A[s] @ root + b[s]))[:, None]], [np.eye(1, 3, 2)]]) for s in (0, 1)]
    Y, expected = [0.5 * np.outer(x, x)] * 2, []
    for _ in range(21):
        expected.append(np.trace(np.sum(Y, axis=0)[:2, :2]))
        after = [[P[s, t] * maps[s] @ Y[s] @ maps[s].T for s in (0, 1)] for t in (0, 1)]
        Y = [np.sum(every, axis=0) for every in after]
    for method in (fh.SA(BLOCKS), fh.SCAFFLSA(BLOCKS, 1)):  # which is the same for one agent
        prediction = fh.theory.predict(problem, method)
        np.testing.assert_allclose(prediction.error(20, root + 1), expected, rtol=1e-9)
        assert prediction.floor == pytest.approx(prediction.error_after(2000), rel=1e-9)
        largest = max(np.linalg.eigvals(np.eye(2) + D / 0.3 * prediction.max_step_size @ A.mean(0)), key=abs)
        assert prediction.max_step_size > 0.3
        assert abs(largest) < 1 + 1e-6  # the mean square diverges no later than the mean


def test_many_agents_follow_steps_that_change_as_each_of_them_alone_does():
    """Without a correction both laws are the same closure; here they change the step size after two rounds."""
    problem, start = td.random(8, 3, 2, laziness=0.5), np.array([1.0, -2.0])
    method = fh.LocalSA(fh.Stages((0.2, 0.1), begins=(2,)), 3)
    found = fh.theory.predict(problem, method).law
    laws = [EachSiteLaw(Federation(pieces_of(fh.LocalSA(x, 3), 8, 2), agents_of(problem), "")) for x in (0.2, 0.1)]
    state, expected = laws[0].enter(start), [start @ start]
    for law in (laws[0], laws[0], laws[1], laws[1]):
        state = law.step(state)
        expected.append(law.seen(state).square)
    assert found.last.basis == "one site"
    np.testing.assert_allclose(found.errors(start, 4), expected, rtol=1e-8)


def test_what_is_left_out_is_that_of_the_worst_step_size():
    problem = td.random(12, 4, 2, laziness=0.5)
    found = [fh.theory.predict(problem, fh.LocalSA(step, 3)) for step in (0.05, 0.005, fh.Stages((0.05, 0.005), (5,)))]
    assert found[2].left_out == found[0].left_out > found[1].left_out > 0


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (fh.FedHSA(fh.PerBlock((0.1, fh.Polynomial(0.2)), (1, 1)), 2), "predicted if they are constant"),
        (
            fh.OverTheAir(fh.FedHSA(BLOCKS, 2), gain_std=0.0, noise_std=0.1),
            "half the step size and twice",
        ),
    ],
    ids=["blocks that change", "noise beside operators"],
)
def test_what_has_no_law_of_changing_steps_is_refused(method, sentence):
    with pytest.raises(TypeError, match=sentence):
        fh.theory.predict(td.random(2, 2, 2), method)


@pytest.mark.slow
def test_extrapolation_follows_steps_that_change():
    problem, method = (
        fh.problems.quadratic.random(3, dim=2).noiseless(),
        fh.RichardsonRomberg(fh.LocalSA(DECREASING, 2)),
    )
    run = fh.simulate(problem, method, rounds=8)
    np.testing.assert_allclose(fh.theory.predict(problem, method).error(8), run.error[0], rtol=1e-9)

"""What is reported instead of the last iterate: averages and extrapolation."""

import numpy as np
import pytest

import fedhsa as fh
import naive
from cases import quadratic
from fedhsa.algorithms import scaled
from fedhsa.algorithms.codecs import RandK
from fedhsa.algorithms.compression import Compressed
from fedhsa.algorithms.participation import Partial
from fedhsa.algorithms.sampling import Bernoulli

LOCAL, CORRECTED = fh.LocalSA(0.03, 4), fh.FedHSA(0.03, 4)


def test_extrapolation_leaves_a_bias_of_second_order():
    """Two agents in one dimension whose roots are 12 apart; the two numbers come from an independent program."""
    r = 12 / 11  # the first agent's operator at the common root, 0
    problem = fh.problems.quadratic.from_arrays([[[0.1]], [[1.0]]], [[-r], [r]]).noiseless()
    A, b = problem.affine_parts()
    biases, left = [], []
    for eta in (0.05, 0.025, 0.0125):
        bias, twice = (naive.local_sa_bias(A, b, problem.theta_star, step, 5).item() for step in (eta, 2 * eta))
        algorithm = fh.RichardsonRomberg(fh.LocalSA(eta, local_steps=5))
        result = fh.simulate(problem, algorithm, rounds=2000, every=2000)
        assert result.theta.item() == pytest.approx(2 * bias - twice, abs=1e-11)
        biases.append(bias)
        left.append(result.theta.item())
    assert (biases[0], left[0]) == pytest.approx((-9.3e-2, 6.6e-3), rel=6e-3)
    np.testing.assert_allclose(np.divide(biases[:-1], biases[1:]), 2, atol=0.05)
    np.testing.assert_allclose(np.divide(left[:-1], left[1:]), 4, atol=0.05)


def test_the_average_is_the_mean_of_the_path_and_the_method_does_not_notice():
    problem = quadratic().problem
    record = {"theta": lambda s: s.theta, "inner": lambda s: s.server.inner.theta}
    result = fh.simulate(problem, fh.Averaged(CORRECTED, burn_in=10), rounds=50, seeds=2, record=record)
    path = result.records["inner"]
    np.testing.assert_allclose(result.theta, path[:, 11:].mean(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(result.records["theta"][:, :12], path[:, :12])
    alone = fh.simulate(problem, CORRECTED, rounds=50, seeds=2, record=("theta",))
    np.testing.assert_allclose(path, alone.records["theta"], rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_copies_share_observations_and_coins_inside_channels_too():
    problem = quadratic().problem
    channel = Partial(Compressed(LOCAL, RandK(0.5)), Bernoulli(0.6))
    options = {"rounds": 12, "seeds": 2, "record": ("theta",)}
    one, two = (fh.simulate(problem, scaled(channel, f), **options) for f in (1.0, 2.0))
    both = fh.simulate(problem, fh.RichardsonRomberg(channel), **options)
    expected = 2 * one.records["theta"] - two.records["theta"]
    np.testing.assert_allclose(both.records["theta"], expected, rtol=1e-11, atol=1e-13)
    assert both.cost == pytest.approx(
        (one.cost.exchanges, *(2 * np.array(one.cost[1:3])), *one.cost[3:4], 2 * one.cost[4])
    )


@pytest.mark.slow
def test_wrappers_in_wrappers_agree_with_the_slow_engine_and_run_in_single_precision():
    problem = quadratic().problem
    algorithm = fh.RichardsonRomberg(fh.Averaged(CORRECTED, burn_in=1))
    fast = fh.simulate(problem, algorithm, rounds=3, record=("theta",))
    slow = fh.simulate(problem, algorithm, rounds=3, record=("theta",), debug=True)
    single = fh.simulate(problem, algorithm, rounds=3, record=("theta",), dtype="float32")
    np.testing.assert_allclose(slow.records["theta"], fast.records["theta"], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(single.records["theta"], fast.records["theta"], atol=1e-5)
    assert single.theta.dtype == np.float32


def test_a_step_is_scaled_through_wrappers_and_schedules():
    schedule = fh.Polynomial(2.0, offset=4.0)
    assert scaled(fh.Averaged(fh.Thinned(LOCAL, 2)), 3.0).algorithm.algorithm.step_size == pytest.approx(0.09)
    assert float(scaled(fh.LocalSA(schedule, 4), 3.0).step_size(6)) == pytest.approx(0.6)
    assert scaled(CORRECTED, 3.0).server_step == 1.0


class Still(fh.AbstractAlgorithm):
    """A method without a step."""

    @property
    def block_length(self):
        return 1

    @property
    def exchanges(self):
        return ()

    def init(self, theta):
        return (), ()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: fh.RichardsonRomberg(Still()), TypeError, "Still has no `step_size`"),
        (lambda: fh.RichardsonRomberg(LOCAL, (2.0,)), ValueError, "at least two different numbers"),
        (lambda: fh.RichardsonRomberg(LOCAL, (1.0, 2.0, 1.0)), ValueError, "at least two different numbers"),
        (lambda: fh.RichardsonRomberg(LOCAL, (0.0, 1.0)), ValueError, "`factors` must be greater than 0"),
        (lambda: fh.Averaged(LOCAL, burn_in=-1), ValueError, "`burn_in` must be at least 0"),
        (lambda: fh.GeometricAverage(LOCAL, 1.0), ValueError, "`decay` must be below 1"),
        (lambda: fh.GeometricAverage(LOCAL, 0.0), ValueError, "`decay` must be greater than 0"),
        (lambda: fh.Thinned(LOCAL, 0), ValueError, "`every` must be at least 1"),
        (lambda: fh.Averaged(0.3), ValueError, "`algorithm` must be an algorithm"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(make, error, says):
    with pytest.raises(error, match=says):
        make()

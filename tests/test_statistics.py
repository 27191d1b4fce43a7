"""Estimates with intervals: against closed forms, textbook quantiles and repeated sampling."""

import numpy as np
import pytest

from fedhsa import statistics
from fedhsa.statistics import Estimate


def covers(make, truth, repetitions=400):
    rng = np.random.default_rng(0)
    return np.mean([make(rng).contains(truth) for _ in range(repetitions)])


def test_the_interval_of_a_mean_is_students_on_the_logarithm():
    samples = np.array([1.0, 2.0, 3.0, 2.0])
    found = statistics.mean(samples, level=0.95)
    quantile = 3.182446305284263  # Student, 3 degrees of freedom, from a table
    half = quantile * samples.std(ddof=1) / np.sqrt(4) / 2
    assert found.value == 2
    assert np.allclose(np.log([found.high / 2, 2 / found.low]), half)


def test_intervals_of_skewed_means_ratios_and_slopes_cover_at_their_level():
    # 400 repetitions at 95 %: the standard error of the coverage is 1.1 %; the tolerance is four of them, to which the
    # delta method adds a little at 16 skewed samples.
    def mean(rng):
        return statistics.mean(rng.chisquare(10, size=16), 0.95)

    def ratio(rng):
        shared = rng.chisquare(10, size=16)
        return statistics.ratio(3 * shared + rng.chisquare(10, size=16), shared + rng.chisquare(10, size=16), 0.95)

    def slope(rng):
        shared = rng.chisquare(10, size=16)
        rows = [(shared + rng.chisquare(10, size=16)) / M for M in (1, 5, 20, 100)]
        return statistics.slope([1, 5, 20, 100], rows, 0.95)

    for make, truth in ((mean, 10.0), (ratio, 2.0), (slope, -1.0)):
        assert 0.95 - 0.055 < covers(make, truth) < 0.95 + 0.045


def test_pairing_cancels_what_two_curves_have_in_common():
    noise = np.random.default_rng(1).chisquare(4, size=20)
    paired = statistics.ratio(2 * noise, noise)
    shuffled = statistics.ratio(2 * noise[::-1], noise)
    assert paired.high - paired.low < 1e-12
    assert shuffled.high - shuffled.low > 0.5


def test_the_autocorrelation_time_of_an_autoregression_is_its_closed_form():
    # x' = a x + noise has 1 + 2 sum a^k = (1 + a) / (1 - a); 200 runs of 2000 steps give it to a few per cent.
    rng, a = np.random.default_rng(2), 0.8
    x = np.zeros((200, 2100))
    for t in range(1, 2100):
        x[:, t] = a * x[:, t - 1] + rng.normal(size=200)
    assert statistics.autocorrelation_time(x[:, 100:]) == pytest.approx(9.0, rel=0.05)


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="at least two seeds"):
        statistics.mean([1.0])


def test_an_estimate_knows_its_interval():
    assert Estimate(2.0, 1.0, 3.0).interval == (1.0, 3.0)
    assert not Estimate(2.0, 1.0, 3.0).contains(3.5)

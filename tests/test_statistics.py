"""Estimates with intervals: against closed forms, textbook quantiles and repeated sampling."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedhsa import statistics
from fedhsa.statistics import Estimate

T2, T3 = 0.95 * np.sqrt(2 / (1 - 0.95**2)), 3.182446305284263
"""Student's two-sided 95 % quantiles with 2 degrees of freedom, in closed form, and with 3, from a table."""
CORNERS = np.array([[5.0, 4.0], [1.0, 4.0], [3.0, 5.0], [3.0, 3.0]])
"""Four seeds with mean (3, 4) and covariance diag(8/3, 2/3)."""


def widened(standard_error: float) -> float:
    return standard_error * (1 + 1.25 * standard_error**2)


def test_the_interval_of_a_mean_is_students_on_the_logarithm_a_little_widened():
    """The deviations -1, 0, 1, 0 from the mean 2 have variance 2/3; of four relative to the mean it is 1/24."""
    found = statistics.mean([1.0, 2.0, 3.0, 2.0], level=0.95)
    half = T3 * widened(np.sqrt(1 / 24))
    np.testing.assert_allclose(found, [2, 2 * np.exp(-half), 2 * np.exp(half)], rtol=1e-12)


def test_the_interval_of_a_ratio_is_that_of_the_difference_of_relative_deviations():
    """Relative to their means, (2, 4, 6) and (1, 3, 2) are (0.5, 1, 1.5) and (0.5, 1.5, 1): (0, -0.5, 0.5) apart."""
    found = statistics.ratio([2.0, 4.0, 6.0], [1.0, 3.0, 2.0], level=0.95)
    half = T2 * widened(np.sqrt(0.25 / 3))
    np.testing.assert_allclose(found, [2, 2 * np.exp(-half), 2 * np.exp(half)], rtol=1e-12)


def test_a_slope_is_that_of_a_fit_with_the_interval_of_its_derivatives_in_the_seeds():
    """A seed's influence is the derivative of the fitted slope in its weight. At 1, 2, 4 the slope of (a, b, c) is
    log(c / a) / log 4, so that log 4 times the slope is the logarithm of a ratio."""
    rng, x = np.random.default_rng(3), [1, 2, 4]
    samples = rng.chisquare(3, size=(3, 4))

    def fit(weights):
        return stats.linregress(np.log(x), np.log(samples @ weights)).slope

    even, step = np.full(4, 0.25), 1e-5
    influence = [(fit(even + step * (e - 0.25)) - fit(even - step * (e - 0.25))) / (2 * step) for e in np.eye(4)]
    half = T3 * widened(np.log(4) * stats.sem(influence)) / np.log(4)
    value = fit(even)
    np.testing.assert_allclose(statistics.slope(x, samples, 0.95), [value, value - half, value + half], rtol=1e-7)


def test_the_slope_between_two_points_is_their_ratio():
    rng = np.random.default_rng(4)
    low, high = rng.chisquare(3, size=(2, 5))
    between = np.log(statistics.ratio(high, low)) / np.log(10)
    np.testing.assert_allclose(statistics.slope([2, 20], [low, high]), between, rtol=1e-10)


@pytest.mark.parametrize("seeds", [8, 16, 32])
@pytest.mark.parametrize("d", [1, 2, 5, 10])
def test_intervals_of_squared_gaussian_errors_cover_in_95_per_cent_give_or_take_one(d, seeds):
    """20 000 repetitions have a standard error of 0.15 points, of which three are added to the one point promised."""
    error = np.random.default_rng(d).chisquare(d, size=(seeds, 20_000))
    _, low, high = statistics.interval(error)
    covered = np.mean((low <= d) & (d <= high))
    assert abs(covered - 0.95) < 0.01 + 3 * np.sqrt(0.05 * 0.95 / 20_000)


def test_intervals_of_skewed_ratios_and_slopes_cover_at_their_level():
    """1000 repetitions have a standard error of 0.7 points, of which three are added to the one point promised."""
    rng, x = np.random.default_rng(0), (1, 5, 20, 100)

    def ratio():
        shared, a, b = rng.chisquare(1, size=(3, 16))
        return statistics.ratio(3 * (shared + a), shared + b, 0.95).contains(3.0)

    def slope():
        return statistics.slope(x, rng.chisquare(1, size=(4, 16)) / np.array(x)[:, None], 0.95).contains(-1.0)

    for covers in (ratio, slope):
        assert abs(np.mean([covers() for _ in range(1000)]) - 0.95) < 0.01 + 3 * np.sqrt(0.05 * 0.95 / 1000)


def test_pairing_cancels_what_two_curves_have_in_common():
    noise = np.random.default_rng(1).chisquare(4, size=20)
    paired = statistics.ratio(2 * noise, noise)
    shuffled = statistics.ratio(2 * noise[::-1], noise)
    assert paired.high - paired.low < 1e-12
    assert shuffled.high - shuffled.low > 0.5


def test_the_level_of_verdicts_leaves_one_in_two_thousand_on_each_side():
    """Student's quantile of 99.9 % with 2 degrees of freedom, from a table, is 31.599."""
    low = statistics.mean([1.0, 2.0, 3.0]).low
    assert np.log(2 / low) == pytest.approx(31.599 * widened(np.sqrt(1 / 12)), rel=1e-4)


def test_a_power_is_the_slope_of_a_least_squares_fit():
    x = np.array([1.0, 3.0, 10.0, 40.0])
    assert statistics.power(x, 3 * x**1.7) == pytest.approx(1.7, rel=1e-12)
    values = np.array([2.0, 5.0, 4.0, 9.0])
    assert statistics.power(x, values) == pytest.approx(stats.linregress(np.log(x), np.log(values)).slope, rel=1e-12)


@pytest.mark.parametrize("K", [2, 3])
def test_the_squared_bias_is_right_on_average_over_all_samples(K):
    """All samples of K of three points, each equally likely, whose mean is (1, 2)."""
    points = np.array([[0.0, 1.0], [1.0, 5.0], [2.0, 0.0]])
    samples = [points[list(chosen)] for chosen in itertools.product(range(3), repeat=K)]
    assert np.mean([statistics.squared_bias(sample).value for sample in samples]) == pytest.approx(5, rel=1e-12)


def test_the_interval_of_a_squared_bias_has_the_variance_of_a_squared_normal_mean():
    """|m|^2 - tr S / K = 25 - 5/6; 4 m^T S m / K = 34 2/3 and 2 tr(S^2) / K^2 = 17/18."""
    found = statistics.squared_bias(CORNERS, level=0.95)
    half = T3 * np.sqrt(4 * (9 * 8 / 3 + 16 * 2 / 3) / 4 + 2 * (64 / 9 + 4 / 9) / 16)
    np.testing.assert_allclose(found, 25 - 5 / 6 + half * np.array([0, -1, 1]), rtol=1e-12)
    one = statistics.squared_bias(np.array([[1.0], [3.0]]), level=0.95)  # one dimension: m = 2, S = 2
    np.testing.assert_allclose(one.value, 4 - 1, rtol=1e-12)


def test_the_squared_bias_of_nothing_is_nothing_more_often_than_it_says():
    """Conservative without a bias, but not by much more than 5 %; 500 repetitions of 10 seeds in 3 dimensions."""
    rng = np.random.default_rng(5)
    hits = [statistics.squared_bias(rng.normal(size=(10, 3)), level=0.9).contains(0.0) for _ in range(500)]
    assert 0.9 - 3 * np.sqrt(0.09 / 500) < np.mean(hits) < 1


def test_samples_of_a_squared_bias_have_its_mean_and_its_first_order_spread():
    """The spread 4 m^T S m / K of the mean is 34 2/3, by hand."""
    samples = statistics.squared_bias_samples(CORNERS)
    assert samples.mean() == pytest.approx(25 - 5 / 6, rel=1e-12)
    assert stats.sem(samples) ** 2 == pytest.approx(104 / 3, rel=1e-12)
    np.testing.assert_allclose(samples - samples.mean(), [12, -12, 8, -8], rtol=1e-12)


def test_the_jackknife_of_a_geometric_mean_is_students_interval_of_the_logarithms():
    samples = np.array([1.0, 2.0, 4.0, 3.0])
    found = statistics.jackknife(lambda seeds: np.exp(np.log(samples[seeds]).mean()), np.arange(4), level=0.95)
    half = T3 * widened(stats.sem(np.log(samples)))
    expected = np.log(samples).mean() + half * np.array([0, -1, 1])
    np.testing.assert_allclose(np.log(found), expected, rtol=1e-12)


def test_the_autocorrelation_time_of_an_autoregression_is_its_closed_form():
    # x' = a x + noise has 1 + 2 sum a^k = (1 + a) / (1 - a); 200 runs of 2000 steps give it to a few per cent.
    rng, a = np.random.default_rng(2), 0.8
    x = np.zeros((200, 2100))
    for t in range(1, 2100):
        x[:, t] = a * x[:, t - 1] + rng.normal(size=200)
    assert statistics.autocorrelation_time(x[:, 100:]) == pytest.approx(9.0, rel=0.05)


@pytest.mark.parametrize(("length", "key"), [(60, 0), (200, 1), (200, 2)])
def test_the_autocorrelation_time_is_the_sum_up_to_five_times_itself(length, key):
    """Written out: products at each lag divided by their number, summed until the lag is at least 5 times the sum."""
    x = np.random.default_rng(key).normal(size=(3, length + 2))
    x = x[:, :-2] + x[:, 1:-1] + x[:, 2:]
    away = x - x.mean()
    covariance = [np.mean(away[:, k:] * away[:, : length - k]) for k in range(length)]
    sums = [1 + 2 * sum(covariance[1 : k + 1]) / covariance[0] for k in range(length)]
    expected = next(sums[k] for k in range(length) if k >= 5 * sums[k])
    assert statistics.autocorrelation_time(x) == pytest.approx(expected, rel=1e-10)
    assert expected > 1.5


def test_the_autocorrelation_time_is_at_least_one_and_that_of_a_constant_is_one():
    assert statistics.autocorrelation_time(np.ones((2, 50))) == 1
    assert statistics.autocorrelation_time(np.tile([1.0, -1.0], (2, 50))) == 1


def test_intervals_of_records_are_those_of_each_mean_and_students_where_values_are_negative():
    error = np.array([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [3.0, 9.0, 0.0], [2.0, 5.0, 0.0]])
    mean, low, high = statistics.interval(error, 0.99)
    for i in range(2):
        np.testing.assert_allclose([mean[i], low[i], high[i]], statistics.mean(error[:, i], 0.99), rtol=1e-12)
    assert (mean[2], low[2], high[2]) == (0, 0, 0)
    expected = stats.t.interval(0.95, 3, error.mean(0)[:2], stats.sem(error[:, :2]))
    np.testing.assert_allclose(statistics.interval(error[:, :2], positive=False)[1:], expected, rtol=1e-12)
    np.testing.assert_allclose(statistics.interval(-error[:, :2])[1:], -np.array(expected)[::-1], rtol=1e-12)


def test_a_record_at_which_a_seed_diverged_is_infinite_and_one_seed_has_no_ends():
    mean, low, high = statistics.interval([[1.0, np.nan, 1.0], [1.0, 2.0, np.inf]])
    assert [found.tolist() for found in (mean, low, high)] == [[1.0, np.inf, np.inf]] * 3
    mean, low, high = statistics.interval([[3.0]])
    assert mean == 3
    assert np.isnan([low, high]).all()
    with pytest.raises(ValueError, match=r"`error` must have shape \(seeds, records\), got \(2,\)"):
        statistics.interval([1.0, 2.0])


def test_growth_is_that_of_the_root_over_the_second_half_before_rounding_or_overflow():
    """Factors of 0.64 per round after 0.5; then a floor of rounding and an overflow, which must not enter."""
    slow = np.concatenate([0.5 ** np.arange(20), 0.5**19 * 0.64 ** np.arange(1, 21)])
    assert statistics.growth(slow) == pytest.approx(0.8, rel=1e-12)
    floor = np.maximum(0.25 ** np.arange(80.0), 1e-25)
    assert statistics.growth(floor) == pytest.approx(0.5, rel=1e-12)
    with np.errstate(over="ignore"):
        assert statistics.growth(16.0 ** np.arange(400)) == pytest.approx(4.0, rel=1e-12)
    swings = 0.25 ** np.arange(40) * np.where(np.arange(40) % 2, 2.0, 1.0)
    assert statistics.growth(swings) == pytest.approx(0.5, rel=0.01)
    assert (statistics.growth(np.array([1.0, 0.0])), statistics.growth(np.array([1.0, np.inf]))) == (0.0, 1e300)


def test_a_crossing_is_interpolated_between_two_rounds_on_the_logarithm():
    error = np.array([1.0, 0.5, 0.005, 0.1])
    assert statistics.crossing(error, 0.05) == pytest.approx(1.5, rel=1e-12)
    assert statistics.crossing(error, 0.5) == 1
    assert statistics.crossing(error, 1.0) == 0
    assert statistics.crossing(error, 0.001) == np.inf


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="at least two seeds"):
        statistics.mean([1.0])


def test_an_estimate_knows_its_interval():
    found = Estimate(2.0, 1.0, 3.0)
    assert found.interval == (1.0, 3.0)
    assert [found.contains(value) for value in (0.99, 1.0, 3.0, 3.5)] == [False, True, True, False]
    assert found / 2 == (1.0, 0.5, 1.5)
    assert f"{found:.1f}" == "2.0 [1.0, 3.0]"

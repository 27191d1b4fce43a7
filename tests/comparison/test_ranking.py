"""The ranking of methods: textbook statistics, which see differences where there are some, and no others."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedhsa.comparison.ranking import flip_signs, holm, least_seeds, rank

SEEDS = 16


def scores(*levels: float, key: int = 0, seeds: int = SEEDS) -> dict[str, np.ndarray]:
    """Skewed scores around the levels, most of whose noise the methods share."""
    rng = np.random.default_rng(key)
    shared = 0.5 * rng.normal(size=seeds)
    return {f"method {i}": level * np.exp(shared + 0.1 * rng.normal(size=seeds)) for i, level in enumerate(levels)}


def test_a_p_value_is_the_fraction_of_all_sign_flips_that_scipy_finds():
    """SciPy enumerates the flips of one sample; means a whole grid apart make ties, which count."""
    rng = np.random.default_rng(0)
    for differences in (rng.normal(size=7), rng.lognormal(size=9) - 1, rng.integers(-3, 4, size=8).astype(float)):
        expected = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
        assert flip_signs(differences[:, None]).item() == pytest.approx(expected.pvalue, rel=1e-12)


def test_with_sixteen_seeds_all_flips_are_enumerated_and_beyond_they_are_sampled():
    """One seed against fifteen equal ones: sums of at least 14 of 16 are 2 (1 + 16) of 2^16; of 15 of 17, 2 (1 + 17)
    of 2^17. The sampled fraction is within 5 standard errors of it, and equal each time."""
    assert flip_signs(np.append(np.ones(15), -1.0)[:, None]).item() == 2 * 17 / 2**16
    more = np.append(np.ones(16), -1.0)[:, None]
    truth, flips = 2 * 18 / 2**17, 65_536
    assert abs(flip_signs(more).item() - truth) < 5 * np.sqrt(truth / flips) + 1 / flips
    assert flip_signs(more) == flip_signs(more)
    assert flip_signs(np.ones((40, 1))).item() == 1 / (flips + 1)  # the observed signs count, so it is never zero


def test_pairs_are_tested_by_the_flips_of_their_differences_and_have_the_ratio_of_their_means():
    rows = scores(1.0, 1.05, 2.0, seeds=8)
    found = rank(rows).pairs
    signs = np.array(list(itertools.product([-1, 1], repeat=8)))
    for pair in found:
        a, b = rows[pair.worse], rows[pair.better]
        np.testing.assert_allclose(pair.p, np.mean(abs(signs @ (a - b)) >= abs((a - b).sum()) * (1 - 1e-12)))
        np.testing.assert_allclose(pair.ratio.value, a.mean() / b.mean(), rtol=1e-12)
        assert pair.ratio.low < pair.ratio.value < pair.ratio.high
    assert [pair.adjusted for pair in found] == holm([pair.p for pair in found])


@pytest.mark.parametrize(("methods", "seeds"), [(2, 6), (3, 7), (4, 8), (7, 10)])
def test_so_many_seeds_and_no_fewer_can_tell_methods_apart(methods, seeds):
    """The smallest p-value is 2^(1 - n), times the number of pairs."""
    assert least_seeds(methods * (methods - 1) // 2) == seeds
    for n, seen in ((seeds - 1, False), (seeds, True)):
        found = rank({str(i): (1.0 + i) * np.linspace(1, 1.1, n) for i in range(methods)})
        assert [pair.different for pair in found.pairs] == [seen] * len(found.pairs)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_heavy_tails_make_false_differences_no_more_frequent(sigma):
    """2000 pairs of log-normal scores on 10 seeds: p-values of at most 25 of 512, within 4 standard errors."""
    rng, level = np.random.default_rng(0), 25 / 512
    a, b = np.exp(sigma * rng.normal(size=(2, 10, 2000)))
    assert abs(np.mean(flip_signs(a - b) < 0.05) - level) < 4 * np.sqrt(level * (1 - level) / 2000)


def test_holm_on_numbers_worked_out_by_hand():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 are 0.02, 0.03, 0.06, 0.04; none may be less than one before it.
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_methods_are_in_the_order_of_their_means_with_the_means_of_the_seeds():
    rows = scores(3.0, 1.0, 2.0)
    found = rank(rows)
    assert [place.name for place in found.places] == ["method 1", "method 2", "method 0"]
    assert [place.rank for place in found.places] == [1, 2, 3]
    for place in found.places:
        np.testing.assert_allclose(place.score.value, rows[place.name].mean())
        assert place.score.low < place.score.value < place.score.high
    assert {(pair.better, pair.worse) for pair in found.pairs} == set(
        itertools.combinations([place.name for place in found.places], 2)
    )


def test_what_the_methods_share_does_not_hide_a_difference():
    rows = scores(1.0, 1.2)  # intervals of each overlap: the noise that they share is 50 %, what they do not 10 %
    found = rank(rows)
    assert found.places[0].score.high > found.places[1].score.low
    assert found.pairs[0].different
    shuffled = {"method 0": rows["method 0"], "method 1": np.roll(rows["method 1"], 1)}
    assert not rank(shuffled).pairs[0].different


@pytest.mark.parametrize("off", [0.0, 1e-13])
def test_equal_methods_are_not_called_different_nor_are_those_that_rounding_keeps_apart(off):
    row = scores(1.0)["method 0"]
    found = rank({"A": row, "B": row * (1 + off), "C": 2 * row})
    same = {(pair.better, pair.worse): pair for pair in found.pairs}["A", "B"]
    assert same.p == 1
    assert [place.ties for place in found.places] == [("B",), ("A",), ()]


def test_a_difference_without_any_noise_is_as_certain_as_the_seeds_allow():
    found = rank({"A": np.full(6, 2e-9), "B": np.full(6, 1e-9)})
    assert found.pairs[0].p == 2**-5
    assert found.pairs[0].different
    assert found.pairs[0].ratio == (2.0, 2.0, 2.0)


def test_methods_that_diverge_are_last_the_more_seeds_the_further_and_are_in_no_pair():
    rows = scores(1.0, 2.0, 3.0, 4.0)
    rows["method 0"][:] = np.inf
    rows["method 1"][2] = np.inf
    found = rank(rows)
    assert [(place.name, place.failed) for place in found.places] == [
        ("method 2", 0),
        ("method 3", 0),
        ("method 1", 1),
        ("method 0", SEEDS),
    ]
    assert len(found.pairs) == 1
    assert found.places[-1].score.value == np.inf


def test_among_equal_methods_a_false_difference_is_as_rare_as_promised():
    """One in twenty at most; 400 repetitions have a standard error of 1.1 points, and three of them are allowed."""
    repetitions = 400
    wrong = sum(
        any(pair.different for pair in rank(scores(1, 1, 1, 1, key=k, seeds=9)).pairs) for k in range(repetitions)
    )
    assert wrong / repetitions < 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)


def test_plain_values_hold_everything():
    found = rank(scores(1.0, 2.0)).to_dict()
    assert found["places"][0].keys() == {"rank", "name", "score", "failed", "ties"}
    assert found["pairs"][0]["different"] is True
    assert found["pairs"][0]["ratio"].keys() == {"value", "low", "high"}


def test_scores_that_may_be_negative_are_ranked_from_the_top_by_paired_differences():
    rng = np.random.default_rng(3)
    shared = 10 * rng.normal(size=SEEDS)
    rows = {name: level + shared + rng.normal(size=SEEDS) for name, level in (("a", -1.0), ("b", 3.0), ("c", -1.2))}
    found = rank(rows | {"lost": np.full(SEEDS, np.inf)}, signed=True)
    assert [place.name for place in found.places] == [*sorted(rows, key=lambda name: -rows[name].mean()), "lost"]
    for pair in found.pairs:
        expected = stats.ttest_rel(rows[pair.better], rows[pair.worse])
        low, high = expected.confidence_interval(0.95)
        apart = rows[pair.better] - rows[pair.worse]
        np.testing.assert_allclose(pair.difference, (apart.mean(), low, high))
        assert pair.p == flip_signs(apart[:, None]).item()
    assert {place.name: place.ties for place in found.places}["b"] == ()

"""The ranking of methods: textbook statistics, which see differences where there are some, and no others."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedhsa.comparison.ranking import holm, rank

SEEDS = 16


def scores(*levels: float, common: float = 0.5, own: float = 0.1, key: int = 0) -> dict[str, np.ndarray]:
    """Skewed scores around the levels, most of whose noise the methods share."""
    rng = np.random.default_rng(key)
    shared = rng.normal(size=SEEDS)
    return {
        f"method {i}": level * np.exp(common * shared + own * rng.normal(size=SEEDS)) for i, level in enumerate(levels)
    }


def test_a_pair_is_tested_like_a_mean_of_its_influence_values():
    rows = scores(1.0, 1.05, 2.0)
    for pair in rank(rows).pairs:
        a, b = rows[pair.worse], rows[pair.better]
        value = np.log(a.mean() / b.mean())
        expected = stats.ttest_1samp(value + a / a.mean() - b / b.mean(), 0.0)
        low, high = expected.confidence_interval(0.95)
        np.testing.assert_allclose(pair.p, expected.pvalue, rtol=1e-9)
        np.testing.assert_allclose(np.log(pair.ratio), (value, low, high), rtol=1e-9)


def test_for_small_noise_it_is_the_paired_t_test_of_the_logarithms():
    rows = scores(1.0, 1.0001, common=1e-4, own=1e-4)
    (pair,) = rank(rows).pairs
    expected = stats.ttest_rel(*(np.log(row) for row in rows.values()))
    np.testing.assert_allclose(pair.p, expected.pvalue, rtol=0.02)


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
    assert same.p > 0.99
    assert [place.ties for place in found.places] == [("B",), ("A",), ()]


def test_a_difference_without_any_noise_is_certain():
    found = rank({"A": np.full(3, 2e-9), "B": np.full(3, 1e-9)})
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
    wrong = sum(any(pair.different for pair in rank(scores(1, 1, 1, 1, key=k)).pairs) for k in range(repetitions))
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
        np.testing.assert_allclose(pair.p, expected.pvalue, rtol=1e-9)
        np.testing.assert_allclose(pair.difference, (np.mean(rows[pair.better] - rows[pair.worse]), low, high))
    assert {place.name: place.ties for place in found.places}["b"] == ()

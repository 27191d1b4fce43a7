"""Confidence regions: they cover as often as they say, around the point where the method is."""

import dataclasses

import numpy as np
import pytest

import fedhsa as fh
from cases import quadratic


def covered(hits: np.ndarray, level: float) -> bool:
    """Whether so many hits are within four standard errors of the level."""
    return bool(abs(hits.mean() - level) <= 4 * np.sqrt(level * (1 - level) / len(hits)))


def test_regions_of_independent_normals_cover_exactly():
    """Four standard errors: 1.2 % at level 0.9 and 10 000 repetitions."""
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(10_000, 24, 3)) @ rng.normal(size=(3, 3)) + [1.0, -2.0, 3.0]
    region = fh.confidence(mixed, batches=12, level=0.9)
    assert region.centre.shape == (10_000, 3)
    assert region.covariance.shape == (10_000, 3, 3)
    assert covered(region.contains([1.0, -2.0, 3.0]), 0.9)
    inside = (region.lower <= [1.0, -2.0, 3.0]) & (region.upper >= [1.0, -2.0, 3.0])
    assert all(covered(hits, 0.9) for hits in inside.T)


def test_the_numbers_are_those_of_the_formulas():
    path = np.random.default_rng(1).normal(size=(53, 2)).cumsum(axis=0)
    region = fh.confidence(path, burn_in=10, batches=5)
    means = path[13:].reshape(5, 8, 2).mean(axis=1)  # 40 of the last 43
    np.testing.assert_allclose(region.centre, path[13:].mean(axis=0))
    np.testing.assert_allclose(region.covariance, np.cov(means.T) / 5)
    half = 2.776445 * means.std(axis=0, ddof=1) / np.sqrt(5)  # Student's quantile for 4 degrees of freedom
    np.testing.assert_allclose(region.upper - region.centre, half, rtol=1e-6)
    np.testing.assert_allclose(region.centre - region.lower, half, rtol=1e-6)
    assert region.radius**2 == pytest.approx(2 * 4 / 3 * 9.552094, rel=1e-6)  # F with 2 and 3 degrees of freedom
    assert region.contains(region.centre)
    edge = region.radius * np.linalg.cholesky(region.covariance)[:, 0]
    assert region.contains(region.centre + 0.999 * edge)
    assert not region.contains(region.centre + 1.001 * edge)


def test_by_default_there_are_twenty_batches_and_two_more_for_each_dimension():
    path = np.random.default_rng(2).normal(size=(100, 3))
    default, chosen = fh.confidence(path), fh.confidence(path, batches=26)
    assert default.batches == 26
    np.testing.assert_array_equal(default.covariance, chosen.covariance)
    assert default.level == 0.95


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batches": 2}, "`batches` must exceed the dimension 2"),
        ({"burn_in": 40}, "leaves 10 records for 24 `batches`"),
        ({"level": 1.0}, "`level` must be a probability"),
        ({"burn_in": -1}, "`burn_in` must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options, says):
    with pytest.raises(ValueError, match=says):
        fh.confidence(np.zeros((50, 2)), **options)
    with pytest.raises(ValueError, match="`iterates` must have shape"):
        fh.confidence(np.zeros(50), **options)


def test_a_result_without_iterates_or_a_mean_is_refused():
    result = fh.simulate(quadratic().problem, fh.LocalSA(0.03, 4), rounds=7, seeds=2)
    with pytest.raises(ValueError, match="record="):
        fh.confidence(result)
    diverged = dataclasses.replace(result, records={"theta": np.zeros((2, 8, 4))}, failed_round=np.array([-1, 3]))
    with pytest.raises(ValueError, match="Seed 1 diverged"):
        fh.confidence(diverged)


@pytest.mark.slow
def test_regions_of_fed_hsa_cover_the_root_those_of_local_sa_do_not_and_extrapolation_repairs_most_of_it():
    """400 seeds, so that four standard errors are 4.4 % at level 0.95; additive noise, for which FedHSA is unbiased."""
    problem = quadratic().problem
    options = {"rounds": 6000, "seeds": 400, "theta": problem.theta_star, "record": ("theta",), "every": 4}

    def coverage(algorithm):
        result = fh.simulate(problem, algorithm, **options)
        return fh.confidence(result, burn_in=250).contains(problem.theta_star)

    local = fh.LocalSA(0.02, 4)
    assert covered(coverage(fh.FedHSA(0.05, 4)), 0.95)
    assert coverage(local).mean() < 0.05
    assert coverage(fh.RichardsonRomberg(local)).mean() > 0.7

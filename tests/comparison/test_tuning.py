"""The search of step sizes: where it starts, which steps it tries, and what it does with ties, worked out by hand."""

import numpy as np
import pytest

import fedhsa
from fedhsa.comparison.tuning import Trial, Tuning, search, starting_step


def linear(*matrices) -> fedhsa.Problem:
    """Agents -A theta."""
    A = np.array(matrices, dtype=float)
    return fedhsa.problems.quadratic.from_arrays(A, b=np.zeros(A.shape[:2]))


@pytest.mark.parametrize(
    ("matrices", "samples", "expected"),
    [
        ([[[2, 0], [0, 8]]], 40_000, 0.001),  # L = 8, mu = 2: sqrt(1/8 / 80 000) = 0.00125
        ([[[2, 0], [0, 2]]], 50, 0.07),  # sqrt(1/2 / 100) = 0.0707
        ([[[1, 0], [0, 1]], [[3, 0], [0, 15]]], 400, 0.01),  # the mean has mu = 2 and L = 8: sqrt(1/8 / 800) = 0.0125
        ([[[0.5, 0], [0, 0.5]]], 1, 2.0),  # 1 / (mu N) is never above 1 / L
    ],
)
def test_the_first_step_is_between_the_largest_stable_one_and_one_too_small(matrices, samples, expected):
    assert starting_step(linear(*matrices), samples) == expected


def tried(attempt, trials: int) -> list[float]:
    """The exponents of 4 that are tried around a centre of 10."""
    return [float(np.log2(trial.step / 10) / 2) for trial in search(attempt, 10.0, trials).trials]


@pytest.mark.parametrize(("trials", "coarse"), [(1, [0]), (2, [-1, 0]), (3, [-1, 0, 1]), (8, [-2, -1, 0, 1])])
def test_half_of_the_steps_and_at_least_three_are_a_factor_of_four_apart_around_the_centre(trials, coarse):
    assert tried(lambda step: Trial(step, 1.0), trials)[: len(coarse)] == coarse


def test_a_search_goes_on_beyond_an_edge_and_then_into_the_wider_gap_beside_the_best():
    """The best exponent is 1.3. After -1, 0, 1 comes 2, the edge; 1 is best, and the better of its equal gaps is the
    one up to 2: 1.5. Then 1 and 1.5 are 0.3 and 0.2 away: best 1.5 between gaps of 0.5, the better end being 1."""
    assert tried(lambda step: Trial(step, abs(np.log2(step / 10) / 2 - 1.3)), 6) == [-1, 0, 1, 2, 1.5, 1.25]
    # At 0.1, the best of -1, 0, 1 is 0; 0.5, in the gap with the better end, is worse, so that the gap to -1 is wider.
    assert tried(lambda step: Trial(step, abs(np.log2(step / 10) / 2 - 0.1)), 5) == [-1, 0, 1, 0.5, -0.5]


def test_of_equal_trials_the_smaller_step_is_best_and_cost_comes_before_error():
    same = Trial(2.0, 1.0), Trial(1.0, 1.0), Trial(3.0, 1.0)
    assert Tuning(same).best.step == 1.0
    assert Tuning(same).at_edge
    assert not Tuning((*same, Trial(0.5, 2.0))).at_edge
    assert Tuning((Trial(1.0, 0.1, cost=9.0), Trial(2.0, 5.0, cost=8.0), Trial(3.0, 6.0, cost=8.0))).best.step == 2.0

"""Predictions one can bet on: against enumeration and simulation that share no code with the laws."""

import itertools

import numpy as np
import pytest

from theory import bets, enumeration
from theory.enumeration import Law, Rule

FEDHSA, LOCAL_SA = 1.0, 0.0


@pytest.mark.parametrize(("M", "H"), [(1, 4), (2, 3), (3, 2)])
@pytest.mark.parametrize("correction", [FEDHSA, LOCAL_SA, 0.4])
def test_a_round_by_its_agents_is_the_sum_over_all_its_trajectories(M, H, correction):
    agents, _ = bets.tiny("td", M, 0.8).agents()
    rule = Rule(0.3, H, 0.7, correction)
    paths, product = enumeration.round_by_paths(agents, rule), enumeration.round_by_agents(agents, rule)
    np.testing.assert_allclose(product, paths, rtol=1e-12, atol=1e-15)


def test_the_enumerated_law_is_that_of_simulation():
    """3000 seeds: the first rounds and the long run within 4 standard errors."""
    agents, root = bets.many("finite-sum", 3, "lazy").agents()
    rule, rng = Rule(0.3, 3, 0.8), np.random.default_rng(0)
    law = Law(agents, rule)
    paths = itertools.islice(enumeration.simulate(agents, rule, -root, seeds=3000, rng=rng), 21)
    mean, error = enumeration.mean_and_error(np.array([(e**2).sum(0) for e in paths]))
    assert mean[0] == pytest.approx(root @ root)
    assert abs((mean - law.errors(-root, 20))[1:] / error[1:]).max() < 4
    found = enumeration.long_run(agents, rule, burn_in=40, rounds=40, seeds=3000, rng=rng)
    assert abs(found.floor - law.floor) < 4 * found.floor_se
    assert abs(found.variance - np.trace(law.covariance)) < 4 * found.variance_se

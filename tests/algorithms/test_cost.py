import pytest

import fedhsa as fh
from cases import CASES


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("H", [1, 7])
def test_the_counts_are_those_of_the_cost_table(case, H):
    problem = CASES[case]().problem
    d = problem.dim
    assert fh.cost(problem, fh.FedHSA(0.1, H)) == fh.Cost(2, 2 * d, 2 * d, H, H)
    assert fh.cost(problem, fh.LocalSA(0.1, H)) == fh.Cost(1, d, d, H, H)
    assert fh.cost(problem, fh.SynchronisedSA(0.1)) == fh.Cost(1, d, d, 1, 1)

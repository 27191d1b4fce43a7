"""Laws of many agents: against simulation that shares no code with them, and some agents against all of them."""

import numpy as np
import pytest

import fedhsa as fh
from fedhsa.problems import finite_sum, quadratic, td
from fedhsa.theory.laws import law as choice
from fedhsa.theory.laws.law import federation_of, law_of
from fedhsa.theory.laws.levels import EachSiteLaw, LinearLaw
from theory import bets

METHODS = {"FedHSA": fh.FedHSA, "LocalSA": fh.LocalSA}
CHOSEN = bets.half(bets.MANY, 1) + bets.EQUAL + [case for case in bets.HARSH if case.M > 16]
"""`test_bets.py` has the other half."""
FAST = ["td equal M=256 LocalSA(0.3, 20)", "td equal M=64 FedHSA(0.1, 20)", "finite-sum lazy M=64 FedHSA(0.2, 10)"]


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=() if c.name in FAST else pytest.mark.slow) for c in CHOSEN]
)
def test_floors_and_variances_of_many_agents_are_the_simulated_ones(case):
    """Within 3 % or 3 standard errors; where the law says that it leaves out more, the floor by no more than that."""
    recorded = bets.recorded()[case.name]
    law = law_of(case.federation.problem, METHODS[case.method](case.step_size, case.H))
    found, warned = law.stationary(), law.left_out > 0.03
    allowed = max(0.03, law.left_out, 3 * recorded["floor_se"] / recorded["floor"])
    assert abs(found.square / recorded["floor"] - 1) < allowed
    error = abs(np.trace(found.covariance) / recorded["variance"] - 1)
    assert warned or error < max(0.03, 3 * recorded["variance_se"] / recorded["variance"])


PAPER = [
    (200, fh.FedHSA, 0.0, 0.003264367, 4.3e-6),
    (20, fh.LocalSA, 0.0, 0.07990802, 8.8e-5),
    (20, fh.FedHSA, 0.8, 0.6215233, 1.3e-3),
]
"""Number of agents, method, laziness, floor and standard error, from `simulate` with 800 seeds.

The floor is the mean of rounds 1200 to 2400, every twentieth, of `simulate(..., rounds=2400, seeds=400)` with the keys
100 and 101.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("M", "method", "laziness", "floor", "error"), PAPER)
def test_floors_of_the_papers_td_are_the_simulated_ones(M, method, laziness, floor, error):
    """100 states, 50 dimensions, step 0.03 and 10 local steps: a few agents stand for all, and `left_out` covers it."""
    law = law_of(td.random(M, laziness=laziness), method(0.03, 10))
    assert abs(law.stationary().square / floor - 1) < min(law.left_out, 0.1) + 3 * error / floor
    assert law.left_out < 0.2


@pytest.mark.slow
def test_all_agents_of_the_papers_td_have_the_simulated_floor(monkeypatch):
    """The second case of the test above, within half a per cent."""
    monkeypatch.setattr(choice, "SITES", 1e12)
    M, method, laziness, floor, _ = PAPER[1]
    law = law_of(td.random(M, laziness=laziness), method(0.03, 10))
    assert law.federation.chosen is None
    assert abs(law.stationary().square / floor - 1) < 0.005


def square_radius(law):
    radius = law.mean_square_radius()
    assert radius is not None
    return radius.value


@pytest.mark.parametrize("method", METHODS.values())
def test_some_agents_stand_for_all_of_a_large_problem_and_it_says_what_that_leaves_out(method, monkeypatch):
    problem, algorithm = bets.many("td", 64, "fast").problem, method(0.02, 5)
    every = law_of(problem, algorithm)
    monkeypatch.setattr(choice, "SITES", 16.5 * every.federation.work(1) / 64)
    some = law_of(problem, algorithm)
    assert (every.basis, some.basis, len(some.federation.agents.P)) == ("one site", "many agents", 16)
    assert some.mean_radius() == pytest.approx(every.mean_radius(), rel=2e-4)
    assert square_radius(some) == pytest.approx(square_radius(every), rel=4e-4)
    assert abs(some.stationary().square / every.stationary().square - 1) < max(0.01, some.left_out)


@pytest.mark.parametrize("method", METHODS.values())
def test_a_sixth_of_the_agents_stands_for_all_on_slow_chains_with_the_bias_of_all(method, monkeypatch):
    """The bias of these agents alone is off by as much as itself."""
    problem, algorithm = td.random(24, 6, 3, laziness=0.9, key=1), method(0.03, 10)
    every = law_of(problem, algorithm)
    monkeypatch.setattr(choice, "SITES", 4.5 * every.federation.work(1) / 24)
    some = law_of(problem, algorithm)
    assert len(some.federation.agents.P) == 4
    assert abs(some.stationary().square / every.stationary().square - 1) < some.left_out < 0.15
    bias = every.persistent_bias()
    assert np.linalg.norm(some.persistent_bias() - bias) < 0.03 * np.linalg.norm(bias)


@pytest.mark.parametrize("method", [fh.SCAFFLSA(0.1, 3), fh.SCAFFOLD(0.1, 3)])
@pytest.mark.parametrize(("family", "tolerance"), [("quadratic", 1e-9), ("td", 1e-4)])
def test_sums_of_what_others_remember_stand_for_all_their_memories(family, tolerance, method, monkeypatch):
    """Against the law that follows every memory; on chains the sums miss little, under additive noise nothing."""
    problem = quadratic.random(6, 2, key=1) if family == "quadratic" else td.random(6, 3, 2, laziness=0.5, key=1)
    federation = federation_of(problem, method)
    every = LinearLaw(federation) if federation.additive else EachSiteLaw(federation)
    monkeypatch.setattr(choice, "REMEMBERED", 5)
    sums = law_of(problem, method)
    assert (sums.basis, sums.federation.size < federation.size) == ("many agents", True)
    assert sums.mean_radius() == pytest.approx(every.mean_radius(), rel=1e-9)
    assert square_radius(sums) == pytest.approx(square_radius(every), rel=1e-7)
    assert sums.stationary().square == pytest.approx(every.stationary().square, rel=tolerance)
    np.testing.assert_allclose(sums.errors(np.ones(2), 4), every.errors(np.ones(2), 4), rtol=min(tolerance, 1e-6))
    assert (sums.left_out < 1e-9) == (family == "quadratic")


def test_of_the_same_agents_many_times_over_the_mean_goes_to_where_infinitely_many_stand_still():
    """Scalar, two components: the mean of a round from any point, state by state, and its fixed point."""
    eta, H, A, b = 0.02, 40, -np.array([0.2, 1.8]), np.array([-1.0, 1.0])
    P = np.array([[0.9, 0.1], [0.1, 0.9]])

    def mean_after_a_round(theta):
        total = 0.0
        for first in (0, 1):  # the agent's first state, which its first operator depends on
            anchor = (A * theta + b).mean() - (A[first] * theta + b[first])
            chance = 0.5 * np.eye(2)[first]
            Y = theta * chance  # E[theta_l; state]
            for _ in range(H):
                Y, chance = (Y + eta * (A * Y + (b + anchor) * chance)) @ P, chance @ P
            total += Y.sum()
        return total

    offset = mean_after_a_round(0.0)
    stands = offset / (1 - (mean_after_a_round(1.0) - offset))
    arrays = -A.reshape(1, 2, 1, 1), b.reshape(1, 2, 1), P[None]
    distances = []
    for M in (4, 40):
        problem = finite_sum.from_arrays(*(np.repeat(x, M, axis=0) for x in arrays))
        law = law_of(problem, fh.FedHSA(eta, H))
        assert law.persistent_bias() + problem.theta_star == pytest.approx(stands, rel=1e-9)
        distances.append(law.stationary().mean - law.persistent_bias())
    assert distances[1] == pytest.approx(distances[0] / 10, rel=0.05)

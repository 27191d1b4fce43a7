"""The law of many agents, against enumeration and simulation that share no code with it."""

import equinox as eqx
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa._linear import transpose
from fedhsa.problems import finite_sum, td
from fedhsa.sources import FiniteChain
from fedhsa.theory import exact
from fedhsa.theory.laws import finite, many, markov
from fedhsa.theory.laws.finite import affine_operators, directions, finite_law
from fedhsa.theory.laws.many import ManyAgentsLaw
from theory import bets
from theory.enumeration import Closure, Law, Rule

METHODS = {"FedHSA": (fh.FedHSA, 1.0), "LocalSA": (fh.LocalSA, 0.0)}
MAKE = {"td": td.from_arrays, "finite-sum": finite_sum.from_arrays}


def law_and_truth(family, M, stay, method, step, H):
    """Both with a server step of 0.8, on the same two-state chains."""
    federation, (make, correction) = bets.tiny(family, M, stay), METHODS[method]
    agents, _ = federation.agents()
    law = ManyAgentsLaw(MAKE[family](*federation.arrays), make(step, H, 0.8))
    return law, Law(agents, Rule(step, H, 0.8, correction))


@pytest.mark.parametrize("stay", [0.5, 0.98])
@pytest.mark.parametrize(("family", "H"), [("td", 1), ("td", 8), ("finite-sum", 8)])
def test_for_one_agent_the_law_is_exact(family, H, stay):
    """Long run, radii and first rounds equal to enumeration to 1e-8, at a large step on fast and on sticky chains."""
    law, truth = law_and_truth(family, 1, stay, "FedHSA", 0.3, H)
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-9)
    assert law.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), "exact", None)
    start = np.array([1.0, -2.0])
    path = [moments.square for moments in law.path(start, 5)]
    np.testing.assert_allclose(path, truth.errors(start, 5), rtol=1e-9)
    if truth.mean_square_radius < 1:
        found = law.stationary()
        np.testing.assert_allclose(found.mean, truth.mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(found.covariance, truth.covariance, rtol=1e-7, atol=1e-9)
        assert law.left_out == 0
    else:
        with pytest.raises(ValueError, match=r"grows without bound|diverges"):
            law.stationary()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("family", "stay", "H"), [("td", 0.8, 4), ("finite-sum", 0.5, 3), ("finite-sum", 0.95, 2)])
def test_the_law_of_three_agents_is_the_closure_without_products_of_two_states(family, stay, H, method):
    """The closure as enumeration has it, with a correction on independent states or without one on a chain.

    With both, an agent's state is also correlated with the noise of the others, an effect of higher order.
    """
    law, _ = law_and_truth(family, 3, stay, method, 0.3, H)
    agents, rule = bets.tiny(family, 3, stay).agents()[0], Rule(0.3, H, 0.8, METHODS[method][1])
    closure, found = Closure(agents, rule), law.stationary()
    equal = {"rtol": 1e-7 if method == "LocalSA" or stay == 0.5 else 1e-3, "atol": 1e-9}
    np.testing.assert_allclose(found.mean, closure.mean, **equal)
    np.testing.assert_allclose(found.covariance, closure.covariance, **equal)
    assert law.mean_radius() == pytest.approx(closure.mean_radius, rel=1e-8)
    np.testing.assert_allclose(law.mean_square_radius().value, closure.mean_square_radius, **equal)
    assert law.mean_square_radius().kind == "estimate"
    path = [moments.square for moments in law.path(np.array([1.0, -2.0]), 10)]
    np.testing.assert_allclose(path, closure.errors(np.array([1.0, -2.0]), 10), **equal)
    standing = Law(agents, rule, random=()).mean  # all agents are as infinitely many are on average
    np.testing.assert_allclose(law.persistent_bias(), standing, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_independent_observations_do_not_begin_where_the_chains_begin(method):
    problem = finite_sum.from_arrays(*bets.tiny("finite-sum", 3, 0.8).arrays)
    chain = FiniteChain(problem.agents.source.transition, np.eye(2)[[0, 1, 0]])
    other = fh.Problem(eqx.tree_at(lambda a: a.source, problem.agents, chain), like=np.zeros(2))
    one, two = (ManyAgentsLaw(p.iid(), METHODS[method][0](0.3, 2)).errors(np.ones(2), 3) for p in (problem, other))
    np.testing.assert_allclose(one, two, rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_the_law_begins_where_the_chains_begin(method):
    federation, (make, correction) = bets.tiny("finite-sum", 3, 0.8), METHODS[method]
    problem, starts = finite_sum.from_arrays(*federation.arrays), np.eye(2)[[0, 1, 0]]
    chain = FiniteChain(problem.agents.source.transition, starts)
    problem = fh.Problem(eqx.tree_at(lambda a: a.source, problem.agents, chain), like=np.zeros(2))
    closure = Closure(federation.agents()[0], Rule(0.3, 4, 1.0, correction))
    found = ManyAgentsLaw(problem, make(0.3, 4)).errors(np.array([1.0, -2.0]), 6)
    np.testing.assert_allclose(
        found, closure.errors(np.array([1.0, -2.0]), 6, list(starts)), rtol=1e-8 if method == "LocalSA" else 1e-3
    )


CHOSEN = bets.half(bets.MANY, 1) + bets.EQUAL + [case for case in bets.HARSH if case.M > 16]
"""`test_bets.py` has the other half."""
FAST = ["td equal M=256 LocalSA(0.3, 20)", "td equal M=64 FedHSA(0.1, 20)", "finite-sum lazy M=64 FedHSA(0.2, 10)"]


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=() if c.name in FAST else pytest.mark.slow) for c in CHOSEN]
)
def test_floors_and_variances_of_many_agents_are_the_simulated_ones(case):
    """Within 3 % or 3 standard errors; where the law says that it leaves out more, the floor by no more than that."""
    recorded = bets.recorded()[case.name]
    law = ManyAgentsLaw(MAKE[case.family](*case.federation.arrays), METHODS[case.method][0](case.step_size, case.H))
    found, warned = law.stationary(), law.left_out > 0.03
    allowed = max(0.03, law.left_out, 3 * recorded["floor_se"] / recorded["floor"])
    assert abs(found.square / recorded["floor"] - 1) < allowed
    error = abs(np.trace(found.covariance) / recorded["variance"] - 1)
    assert warned or error < max(0.03, 3 * recorded["variance_se"] / recorded["variance"])


@pytest.mark.parametrize("method", METHODS)
def test_a_large_problem_is_solved_in_single_precision_without_what_agents_know_of_the_server(method, monkeypatch):
    """Both are harmless: single precision to 1e-4, and the rest to what is left out of 64 agents that mix fast."""
    case = bets.Case("td", "fast", 64, method, 10, 0.1)
    problem, algorithm = td.from_arrays(*case.federation.arrays), METHODS[method][0](0.1, 10)
    small = ManyAgentsLaw(problem, algorithm)
    monkeypatch.setattr(many, "LARGE", 0)
    single = ManyAgentsLaw(problem, algorithm)
    monkeypatch.setattr(many, "SLOW", 1.0)
    double = ManyAgentsLaw(problem, algorithm)
    assert (small.dtype, single.dtype, double.dtype) == (np.float64, np.float32, np.float64)
    floors = [law.stationary().square for law in (small, single, double)]
    assert floors[1] == pytest.approx(floors[2], rel=1e-4)
    assert 0 < single.left_out < 0.02
    assert floors[2] == pytest.approx(floors[0], rel=single.left_out)
    radii = [law.mean_square_radius().value for law in (small, single)]
    assert radii[1] == pytest.approx(radii[0], rel=1e-2)
    path = np.array([[m.square for m in law.path(-problem.theta_star, 20)] for law in (small, single)])
    np.testing.assert_allclose(path[1], path[0], rtol=0.03)


def test_a_problem_between_small_and_large_is_solved_in_a_few_rounds(monkeypatch):
    """Four digits of the floor, and the radius from the slowest mode to a tenth of what noise adds to it."""
    case = bets.Case("td", "lazy", 16, "FedHSA", 10, 0.2)
    problem, algorithm = td.from_arrays(*case.federation.arrays), fh.FedHSA(0.2, 10)
    small = ManyAgentsLaw(problem, algorithm)
    monkeypatch.setattr(many, "SMALL", 0)
    between = ManyAgentsLaw(problem, algorithm)
    assert between.stationary().square == pytest.approx(small.stationary().square, rel=1e-4)
    radius, mean = small.mean_square_radius().value, small.spectral_radius**2
    assert between.mean_square_radius().value == pytest.approx(radius, abs=0.1 * (radius - mean))


@pytest.mark.parametrize("key", [0, 2])
def test_noise_that_a_long_rounds_correction_carries_is_in_the_radius_of_problems_of_any_size(key, monkeypatch):
    problem, algorithm = td.random(num_agents=4, num_states=5, dim=3, key=key), fh.FedHSA(0.5, 100)
    small = ManyAgentsLaw(problem, algorithm).mean_square_radius().value
    monkeypatch.setattr(many, "SMALL", 0)
    between = ManyAgentsLaw(problem, algorithm)
    assert between.mean_square_radius().value == pytest.approx(small, rel=0.02)
    assert between.spectral_radius**2 < 0.75 * small


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
    """100 states, 50 dimensions, step 0.03 and 10 local steps: within half a per cent, on lazy chains 2 %."""
    law = ManyAgentsLaw(td.random(M, laziness=laziness), method(0.03, 10))
    tolerance = 0.02 if laziness else 0.005
    assert abs(law.stationary().square / floor - 1) < max(tolerance, 3 * error / floor)
    assert law.left_out < 0.05


def test_additive_noise_on_markov_chains_has_an_exact_law_at_any_number_of_agents():
    """Components that share their matrix, against the product of the chains."""
    A, b = np.array([[2.0, 0.3], [0.0, 1.0]]), np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
    P = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    problem = finite_sum.from_arrays(np.broadcast_to(A, (2, 3, 2, 2)), np.stack([b, 2 * b]), np.stack([P, P]))
    for algorithm in (fh.FedHSA(0.1, 4), fh.LocalSA(0.1, 4)):
        truth, found = exact.law(problem, algorithm).stationary(), ManyAgentsLaw(problem, algorithm).stationary()
        np.testing.assert_allclose(found.covariance, truth.covariance, rtol=1e-7)
        np.testing.assert_allclose(found.mean, truth.mean, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["td", "finite-sum"])
def test_with_independent_observations_the_law_is_exact(name, method):
    problem, algorithm = CASES[name]().problem.iid(), METHODS[method][0](0.1, 4, 0.8)
    law = ManyAgentsLaw(problem, algorithm)
    truth, found = markov.sites_law(problem, algorithm).stationary(), law.stationary()
    assert (law.basis, law.left_out, law.mean_square_radius().kind) == ("exact", 0.0, "exact")
    np.testing.assert_allclose(found.covariance, truth.covariance, rtol=1e-6)
    np.testing.assert_allclose(found.mean, truth.mean, rtol=1e-6, atol=1e-12)


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
        law = ManyAgentsLaw(problem, fh.FedHSA(eta, H))
        assert law.persistent_bias() + problem.theta_star == pytest.approx(stands, rel=1e-9)
        distances.append(law.stationary().mean - law.persistent_bias())
    assert distances[1] == pytest.approx(distances[0] / 10, rel=0.05)


def test_errors_of_later_rounds_in_blocks_are_those_of_the_path(monkeypatch):
    """After five rounds that are followed, through the end of a block, with a bias and noise that slows the decay."""
    law = ManyAgentsLaw(finite_sum.from_arrays(*bets.tiny("finite-sum", 8, 0.98).arrays), fh.LocalSA(0.3, 8))
    monkeypatch.setattr(many, "PATH", 5 * law.work)
    assert law._gain > 1.001
    for start in (np.array([3.0, -2.0]), np.zeros(2)):
        expected = [moments.square for moments in law.path(start, many.BLOCK + 50)]
        np.testing.assert_allclose(law.errors(start, many.BLOCK + 50), expected, rtol=1e-12)


def test_the_directions_of_operators_on_transitions_are_found_and_few():
    """One for TD; those of gradient TD are the features, and for its second half the changes of features."""
    td, gradient = CASES["td"]().problem, fh.problems.gradient_td.random(num_agents=2, num_states=8, dim=3)
    for problem, number in ((td, 1), (gradient, 4)):
        law = finite_law(problem.agents.source)
        assert law is not None
        A, g = affine_operators(problem, law)
        D, S = directions(problem, law), law.num_states
        assert D.shape == (problem.num_agents, S, number, problem.dim)
        np.testing.assert_allclose(D @ transpose(D), np.tile(np.eye(number), (len(D), S, 1, 1)), atol=1e-12)
        onto = (transpose(D) @ D)[:, :, None]
        A, g = A.reshape(len(A), S, S, *A.shape[-2:]), g.reshape(len(g), S, S, -1, 1)
        np.testing.assert_allclose(onto @ A, A, atol=1e-10)
        np.testing.assert_allclose(onto @ g, g, atol=1e-10)


def test_operators_on_transitions_in_every_direction_have_the_same_law_as_a_few_directions(monkeypatch):
    few = ManyAgentsLaw(CASES["td"](laziness=0.5).problem, fh.FedHSA(0.05, 6))
    monkeypatch.setattr(finite, "RANK", 0.0)
    every = ManyAgentsLaw(few.problem, fh.FedHSA(0.05, 6))
    assert [np.shape(law._directions)[2] for law in (few, every)] == [1, few.problem.dim]
    one, other = few.stationary(), every.stationary()
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-7, atol=1e-12)


def test_what_has_no_such_law_is_refused_and_a_diverging_mean_is_told():
    with pytest.raises(TypeError, match="Exact laws require operators that are affine"):
        ManyAgentsLaw(CASES["logistic"]().problem, fh.FedHSA(0.1, 2))
    with pytest.raises(TypeError, match="The law of many agents requires finite chains, got VAR1"):
        ManyAgentsLaw(CASES["quadratic"]().problem, fh.FedHSA(0.1, 2))
    law = ManyAgentsLaw(CASES["td"]().problem, fh.FedHSA(50.0, 2))
    assert law.mean_square_radius().value > 1
    with pytest.raises(ValueError, match="FedHSA diverges on this problem"):
        law.stationary()

"""The law of any affine method on finite chains, derived from its exchanges: of all sites, of pairs, and of each."""

import functools
import itertools
import tracemalloc

import equinox as eqx
import jax
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa import tree
from fedhsa._linear import transpose
from fedhsa._types import precision
from fedhsa.sources import FiniteChain
from fedhsa.theory import predict
from fedhsa.theory.entry import PredictionWarning
from fedhsa.theory.laws import agents, federation, levels, moments, walks
from fedhsa.theory.laws import law as choice
from fedhsa.theory.laws.agents import agents_of, directions, finite_law
from fedhsa.theory.laws.coordinates import coordinates_of
from fedhsa.theory.laws.federation import Federation
from fedhsa.theory.laws.law import law_of
from fedhsa.theory.laws.levels import EachSiteLaw, EverySiteLaw, TwoSitesLaw
from fedhsa.theory.laws.moments import NotDerivedError, TooLargeError
from fedhsa.theory.laws.pieces import derive, pieces_of, pieces_of_rule, realise
from fedhsa.theory.rule import require_rule
from theory import bets
from theory.by_paths import Truth
from theory.enumeration import Law, Rule

COIN = ((True, 0.3), (False, 0.7))
METHODS = {
    "LocalSA": fh.LocalSA(0.2, 2, 0.7),
    "FedHSA": fh.FedHSA(0.2, 3, 0.8),
    "SCAFFLSA": fh.SCAFFLSA(0.2, 2),
    "SCAFFOLD": fh.SCAFFOLD(0.2, 2),
    "OneExchangeFedHSA": fh.OneExchangeFedHSA(0.2, 2),
    "FedLin": fh.FedLin(0.2, 2),
    "MomentumSA": fh.MomentumSA(0.2, 2, beta=0.5),
    "ExtragradientSA": fh.ExtragradientSA(0.2, 2),
    "VarianceReducedSA": fh.VarianceReducedSA(0.2, 2, batch=1),
    "DisSACC": fh.DisSACC(0.2, 2),
    "OneShotAveraging": fh.OneShotAveraging(0.2, 2),
    "ServerMomentum": fh.ServerMomentum(fh.LocalSA(0.2, 2), 0.5),
    "PersonalisedSA": fh.PersonalisedSA(step_size=0.2, beta=0.5, num_agents=2),
    "GappedSA": fh.GappedSA(0.2, (2, 1)),
    "Scaffnew": fh.Scaffnew(0.2, 0.3),
    "LooplessSA": fh.LooplessSA(0.2, 0.3),
    "SSLocalSGD": fh.SSLocalSGD(0.2, 2, 0.3),
    "LocalSVRG": fh.LocalSVRG(0.2, 2, 0.3),
}
SLOPES, VALUES = np.array([[-0.3, 1.5], [1.2, 0.4]]), np.array([[1.0, -1.0], [0.5, 2.0]])


def sums(stay):
    """Two scalar agents with different operators in the two states of their chains, where they stay this often."""
    P = np.array([[stay, 1 - stay], [1 - stay, stay]])
    return fh.problems.finite_sum.from_arrays(SLOPES[..., None, None], VALUES[..., None], np.stack([P, P]))


PROBLEMS = {
    "td": lambda: fh.problems.td.random(num_agents=2, num_states=2, dim=2, laziness=0.7, key=3),
    "finite-sum": lambda: sums(0.8),
    "forgetful": lambda: sums(0.5),
}


def turns(M, slopes=(1.5, -0.3), stay=0.95):
    """Agents whose slope changes its sign: the mean converges where the mean square diverges."""
    P = np.array([[stay, 1 - stay], [1 - stay, stay]])
    A, b = np.array(slopes).reshape(1, 2, 1, 1), np.array([[[1.0], [-1.0]]])
    return fh.problems.finite_sum.from_arrays(*(np.repeat(x, M, axis=0) for x in (A, b, P[None])))


def parts(problem, method):
    """A method on the agents of a problem, for laws of any sites."""
    return Federation(pieces_of(method, problem.num_agents, problem.dim), agents_of(problem), type(method).__name__)


# Exact laws, against sums over all trajectories.


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_paths_are_those_of_the_methods_own_rounds_on_every_joint_path(method, problem):
    """Of both agents as sites, of the pair of them, and of each site where states say nothing about the future."""
    forgetful, problem, algorithm = problem == "forgetful", PROBLEMS[problem](), METHODS[method]
    law = law_of(problem, algorithm)
    assert isinstance(law, EverySiteLaw)
    laws = [law, TwoSitesLaw(law.federation)]
    if forgetful:
        laws += [EachSiteLaw(law.federation), law_of(problem.iid(), algorithm)]
        assert laws[-1].basis == "exact"
    coin = COIN if len(law.federation.rounds) > 1 else ((None, 1.0),)
    error = np.arange(1.0, problem.dim + 1)
    expected = Truth(problem, algorithm, coin).path(error, 6)
    for found in laws:
        np.testing.assert_allclose(found.errors(error, 6), expected, rtol=1e-10)


def scafflsa_by_paths(M, steps, H, stay=0.95):
    """The mean-square errors of SCAFFLSA from the error 1 on `turns`, in NumPy: a sum over all joint trajectories.

    In a round of step size eta, theta_i takes H steps of eta (G_i - shift_i) from theta; then shift_i changes by
    (theta_i - mean) / (eta H).
    """
    pi, x, found = np.full(2, 0.5), np.eye(M + 2)[0] + np.eye(M + 2)[-1], [1.0]
    Y = {s: np.prod(pi[list(s)]) * np.outer(x, x) for s in itertools.product(range(2), repeat=M)}
    for eta in steps:
        after = {s: np.zeros((M + 2, M + 2)) for s in Y}
        for (s, t), every in scafflsa_maps(M, eta, H, stay).items():
            for chance, map in every:
                after[t] += chance * map @ Y[s] @ map.T
        Y = after
        found.append(sum(moments[0, 0] for moments in Y.values()))
    return np.array(found)


@functools.cache
def scafflsa_maps(M, eta, H, stay):
    """A round as a map of (error, shifts, 1) for every joint trajectory, by its first and last state."""
    slopes, b = -np.array([1.5, -0.3]), np.array([1.0, -1.0])
    P = np.array([[stay, 1 - stay], [1 - stay, stay]])
    root = -b.mean() / slopes.mean()
    paths = list(itertools.product(range(2), repeat=H + 1))
    maps = {}
    for joint in itertools.product(paths, repeat=M):
        chance = np.prod([P[s, t] for path in joint for s, t in itertools.pairwise(path)])
        start = np.eye(M + 2)  # rows of (error, shifts, 1)
        ends = []
        for i, path in enumerate(joint):
            y = start[0]
            for s in path[:-1]:
                y = y + eta * (slopes[s] * y + (b[s] + slopes[s] * root) * start[-1] - start[1 + i])
            ends.append(y)
        mean = sum(ends) / M
        shifts = [start[1 + i] + (end - mean) / (eta * H) for i, end in enumerate(ends)]
        map = np.array([mean, *shifts, start[-1]])
        maps.setdefault((tuple(p[0] for p in joint), tuple(p[-1] for p in joint)), []).append((chance, map))
    return maps


@pytest.mark.parametrize(("M", "H"), [(1, 5), (2, 2)])
def test_scafflsa_is_the_sum_over_all_trajectories(M, H):
    """Of all sites; for one agent also of each site, for two agents of pairs, and without memory of each site."""
    few = {1: EachSiteLaw, 2: TwoSitesLaw}[M]
    for stay in (0.95, 0.5):
        expected, problem = scafflsa_by_paths(M, [0.1] * 5, H, stay), turns(M, stay=stay)
        law = law_of(problem, fh.SCAFFLSA(0.1, H))
        laws = [law, few(law.federation), *([EachSiteLaw(law.federation)] if stay == 0.5 else [])]
        for found in laws:
            np.testing.assert_allclose(found.errors(np.ones(1), 5), expected, rtol=1e-11)
        assert law.left_out == laws[1].left_out == 0
    assert EachSiteLaw(parts(turns(2), fh.SCAFFLSA(0.1, 2))).left_out > 1  # its floor is less than half of the truth


@pytest.mark.parametrize("method", [fh.LocalSA(0.2, 3, 0.7), fh.FedHSA(0.2, 3, 0.8), fh.SynchronisedSA(0.2)])
def test_a_local_rule_has_the_pieces_that_are_derived_from_its_exchanges(method):
    agents = agents_of(turns(2, stay=0.9))
    rule = pieces_of_rule(require_rule(method), 2)
    laws = [EverySiteLaw(Federation(pieces, agents, "")) for pieces in (rule, derive(method, 2, 1))]
    paths = [law.errors(np.ones(1), 6) for law in laws]
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-11)
    assert laws[0].dim == laws[1].dim == 1


# Laws of few sites, against enumeration.


@pytest.mark.parametrize("stay", [0.5, 0.98])
@pytest.mark.parametrize(("family", "H"), [("td", 1), ("td", 8), ("finite-sum", 8)])
def test_for_one_agent_the_law_of_each_site_is_exact_at_a_large_step_even_if_it_diverges(family, H, stay):
    federation, start = bets.tiny(family, 1, stay), np.array([1.0, -2.0])
    law = EachSiteLaw(parts(federation.problem, fh.FedHSA(0.3, H, 0.8)))
    truth = Law(federation.agents()[0], Rule(0.3, H, 0.8))
    assert law.mean_radius() == pytest.approx(truth.mean_radius, rel=1e-9)
    assert law.mean_square_radius() == (pytest.approx(truth.mean_square_radius, rel=1e-9), "exact", None)
    np.testing.assert_allclose(law.errors(start, 5), truth.errors(start, 5), rtol=1e-9)
    if truth.mean_square_radius < 1:
        found = law.stationary()
        np.testing.assert_allclose(found.mean, truth.mean, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(found.covariance, truth.covariance, rtol=1e-7, atol=1e-9)
        assert law.left_out == 0
    else:
        with pytest.raises(ValueError, match="grows without bound" if truth.mean_radius < 1 else "diverges"):
            law.stationary()


def test_with_two_exchanges_one_site_misses_half_as_much_with_twice_the_agents_and_pairs_a_fraction_of_it():
    """What an agent carries from the first exchange to the second is followed, so that the rest is of order 1/M; and of
    the mean, which has no noise of the others, 1/M^2 of it."""
    missing = []
    for M in (3, 6):
        federation = bets.diverging(M, stay=0.9)
        exact = Law(federation.agents()[0], Rule(0.1, 5))
        law = EachSiteLaw(parts(federation.problem, fh.FedHSA(0.1, 5)))
        found, pairs = law.stationary(), TwoSitesLaw(law.federation)
        missing.append([1 - found.square / exact.floor, 1 - float(found.mean[0] / exact.mean[0])])
        assert 0 < missing[-1][0] < law.left_out
        assert abs(1 - pairs.stationary().square / exact.floor) < min(missing[-1][0] / 3, pairs.left_out)
    few, many = missing
    assert 0.5 < many[0] / few[0] < 0.6
    assert 0.25 < many[1] / few[1] < 0.5


@pytest.mark.parametrize("method", [fh.FedHSA(0.3, 4, 0.8), fh.LocalSA(0.3, 4, 0.8)])
@pytest.mark.parametrize("family", ["td", "finite-sum"])
def test_the_persistent_bias_is_the_mean_if_all_agents_are_as_infinitely_many_are_on_average(family, method):
    federation = bets.tiny(family, 3, 0.8)
    rule = Rule(0.3, 4, 0.8, float(isinstance(method, fh.FedHSA)))
    standing = Law(federation.agents()[0], rule, random=()).mean
    laws = [kind(parts(federation.problem, method)) for kind in (EachSiteLaw, TwoSitesLaw, EverySiteLaw)]
    for law in laws:
        np.testing.assert_allclose(law.persistent_bias(), standing, rtol=1e-8, atol=1e-9)
    assert np.linalg.norm(laws[-1].stationary().mean - standing) > 1e-3


@pytest.mark.parametrize("method", [fh.FedHSA(0.3, 2), fh.LocalSA(0.3, 2)])
def test_independent_observations_do_not_begin_where_the_chains_begin(method):
    federation = bets.tiny("finite-sum", 3, 0.8)
    problem, P = federation.problem, np.full((2, 2), 0.5)
    chain = FiniteChain(problem.agents.source.transition, np.eye(2)[[0, 1, 0]])
    other = fh.Problem(eqx.tree_at(lambda a: a.source, problem.agents, chain), like=np.zeros(2)).iid()
    forgetful = bets.Federation("finite-sum", (*federation.arrays[:2], np.stack([P] * 3)))
    expected = Law(forgetful.agents()[0], Rule(0.3, 2, 1.0, float(isinstance(method, fh.FedHSA))))
    found = law_of(other, method)
    assert (found.basis, found.left_out) == ("exact", 0.0)
    np.testing.assert_allclose(found.errors(np.ones(2), 3), expected.errors(np.ones(2), 3), rtol=1e-11)


def test_independent_observations_need_one_state_and_have_the_law_of_a_chain_without_memory():
    problem = fh.problems.finite_sum.random(2, 3, 1, key=1)
    agents, P = problem.agents, np.broadcast_to(problem.agents.source.stationary[:, None], (2, 3, 3))
    many = EverySiteLaw(parts(fh.problems.finite_sum.from_arrays(agents.A, agents.b, P), fh.SCAFFLSA(0.1, 4)))
    each = EachSiteLaw(many.federation)  # nothing is left out, as no state says anything about the future
    one = law_of(problem.iid(), fh.SCAFFLSA(0.1, 4))
    assert (one.federation.num_states, many.federation.num_states) == (1, 3)
    for law in (one, each):
        np.testing.assert_allclose(law.errors(np.ones(1), 5), many.errors(np.ones(1), 5), rtol=1e-11)


@pytest.mark.parametrize("method", [fh.FedHSA(0.1, 4), fh.LocalSA(0.1, 4)])
def test_chains_of_components_with_one_matrix_have_an_exact_law_of_each_site(method):
    """The noise is additive. The reference is enumeration of both agents."""
    A, b = np.array([[2.0, 0.3], [0.0, 1.0]]), np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
    P = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    arrays = np.broadcast_to(A, (2, 3, 2, 2)), np.stack([b, 2 * b]), np.stack([P, P])
    federation = bets.Federation("finite-sum", arrays)
    truth = Law(federation.agents()[0], Rule(0.1, 4, 1.0, float(isinstance(method, fh.FedHSA))))
    law = EachSiteLaw(parts(federation.problem, method))
    np.testing.assert_allclose(law.stationary().covariance, truth.covariance, rtol=1e-7)
    np.testing.assert_allclose(law.stationary().mean, truth.mean, atol=1e-9)
    assert law.left_out == pytest.approx(0, abs=1e-9)


# Large moments, long paths and instability.


@pytest.mark.parametrize("step_size", [0.1, 1e-4, 3.0])  # in the last case the mean diverges
@pytest.mark.parametrize("law", [EverySiteLaw, EachSiteLaw, TwoSitesLaw])
def test_moments_that_are_too_many_for_a_matrix_are_the_same(law, step_size, monkeypatch):
    found = parts(turns(2, (1.5, 0.3), 0.7), fh.MomentumSA(step_size, 2, beta=0.5))
    solved = law(found)
    solved, radius = solved.settled(), solved.mean_square_radius().value
    monkeypatch.setattr(moments, "DENSE", 0)
    monkeypatch.setattr(walks, "MATRIX", 0)  # nor are the agents' own maps matrices
    iterated = law(Federation(found.pieces, found.agents, "MomentumSA"))
    assert iterated.mean_square_radius().value == pytest.approx(radius, rel=1e-7)
    np.testing.assert_allclose(iterated.settled().square, solved.square, rtol=1e-7)
    np.testing.assert_allclose(iterated.settled().mean, solved.mean, rtol=1e-7)


def test_noise_that_a_long_rounds_correction_carries_is_in_the_radius_of_problems_of_any_size(monkeypatch):
    """The mode that grows fastest is far from the slowest one of the mean, from which the search begins."""
    found = parts(fh.problems.td.random(num_agents=3, num_states=4, dim=2, key=2), fh.FedHSA(0.5, 100))
    monkeypatch.setattr(moments, "DENSE", 1000)
    whole = EachSiteLaw(found)
    assert whole._matrix is not None
    monkeypatch.setattr(moments, "DENSE", 0)
    assert EachSiteLaw(found).square_radius == pytest.approx(whole.square_radius, rel=1e-7)
    assert whole.mean_radius() ** 2 < 0.75 * whole.square_radius


def test_errors_of_many_rounds_are_those_of_the_path(monkeypatch):
    """Beyond those that are followed they are extrapolated, with a bias and with noise that slows the decay."""
    monkeypatch.setattr(moments, "DENSE", 0)
    law = EachSiteLaw(parts(bets.tiny("finite-sum", 8, 0.98).problem, fh.LocalSA(0.3, 8)))
    assert law.square_radius > 1.05 * law.mean_radius() ** 2
    rounds = moments.KRYLOV + 40
    for start in (np.array([3.0, -2.0]), np.zeros(2)):
        expected = [moments.square for moments in law.path(start, rounds)]
        np.testing.assert_allclose(law.errors(start, rounds), expected, rtol=1e-7)


def test_a_law_that_is_not_exact_is_solved_to_fewer_digits(monkeypatch):
    case = bets.Case("td", "lazy", 8, "FedHSA", 10, 0.2)
    quick = EachSiteLaw(parts(case.federation.problem, fh.FedHSA(0.2, 10)))
    floor, radius = quick.stationary().square, quick.square_radius
    monkeypatch.setattr(EachSiteLaw, "known_by", "exact")
    exact = EachSiteLaw(quick.federation)
    assert exact.accuracy < quick.accuracy == levels.NEARLY
    assert floor == pytest.approx(exact.stationary().square, rel=quick.accuracy[0])
    assert radius == pytest.approx(exact.square_radius, rel=quick.accuracy[1])


@pytest.mark.parametrize(
    ("M", "step_size", "radius"),
    [
        (4, 0.3, 1.087),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 0.1, 1.070), (1, 0.3, 1.840), (2, 0.3, 1.490))),
    ],
)
def test_what_diverges_in_the_mean_square_is_called_unstable(M, step_size, radius):
    """Radii by enumeration. Noiseless rounds converge in every case."""
    prediction = predict(turns(M), fh.SCAFFLSA(step_size, 5))
    assert prediction.law.quiet.mean_radius() < 1
    assert not prediction.stable
    assert prediction.stability == "mean square, exact"
    assert abs(prediction.mean_square_radius - radius) < 6e-4


def test_a_mean_that_diverges_is_told_from_a_mean_square_that_does():
    problem = fh.problems.td.random(num_agents=2, num_states=3, dim=2)
    law = law_of(problem, fh.FedHSA(50.0, 2))
    assert law.mean_radius() > 1
    with pytest.raises(ValueError, match="FedHSA diverges on this problem"):
        law.stationary()


@pytest.mark.parametrize(
    ("M", "step_size", "floor"), [(2, 0.1, 9.94), pytest.param(1, 0.05, 10.70, marks=pytest.mark.slow)]
)
def test_floors_of_methods_with_memory_are_those_of_enumeration(M, step_size, floor):
    prediction = predict(turns(M), fh.SCAFFLSA(step_size, 5))
    assert prediction.basis == "exact"
    assert prediction.left_out == 0
    assert abs(prediction.floor / floor - 1) < 1e-3


@pytest.mark.slow
def test_the_largest_step_of_a_method_with_memory_is_that_of_the_mean_square():
    limit = predict(turns(1), fh.SCAFFLSA(0.05, 5)).max_step_size
    alone = predict(turns(1), fh.LocalSA(0.05, 5)).max_step_size
    assert limit.kind == alone.kind == "mean square, exact"
    assert abs(limit / alone - 1) < 1e-3


def test_a_law_that_leaves_something_out_says_so(monkeypatch):
    problem, algorithm = turns(4), fh.SCAFFLSA(0.06, 5)
    exact = law_of(problem, algorithm)
    monkeypatch.setattr(choice, "PRODUCT", 0.0)
    with pytest.warns(PredictionWarning, match=r"may be off by .* \(pairs\) neglects some joint effects"):
        prediction = predict(problem, algorithm)
    error = abs(prediction.floor / exact.stationary().square - 1)
    assert 0.01 < error < prediction.left_out < 1
    monkeypatch.setattr(federation, "field_radius", lambda *given: None)  # what is neglected alone, near instability
    assert error < law_of(problem, algorithm).left_out


# Agents as arrays, and what is refused.


def test_independent_observations_of_long_chains_take_no_more_memory_than_their_operators():
    """A kernel of all 10 000 transitions of one agent alone would take 800 MB."""
    problem = fh.problems.td.random(3, 100, 2).iid()
    tracemalloc.start()
    found = agents_of(problem)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.num_states, found.chances.shape) == (1, (3, 1, 10_000))
    assert peak < 20 * (found.W.nbytes + found.chances.nbytes)


def test_agents_with_parameters_of_their_own_leave_out_no_more_than_they_say():
    law = EachSiteLaw(parts(fh.problems.td.random(5, 3, 2, key=1), fh.PersonalisedSA(0.2, 0.2, num_agents=5)))
    error = abs(TwoSitesLaw(law.federation).stationary().square / law.stationary().square - 1)
    assert 0 < error < law.left_out < 0.1


def operators(problem, outcomes):
    """The slope and the value at the root of every agent's operator, for every outcome."""

    def one(agent, o):
        return jax.jacfwd(lambda theta: agent.operator(theta, o))(root), agent.operator(root, o)

    with precision():
        agents, root = tree.to_device((problem.flat_agents, problem.root), "float64")
        return tree.to_host(jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(agents, outcomes))


def test_the_directions_of_operators_on_transitions_are_found_and_few():
    """One for TD; those of gradient TD are the features, and for its second half the changes of features."""
    td, gradient = CASES["td"]().problem, fh.problems.gradient_td.random(num_agents=2, num_states=8, dim=3)
    for problem, number in ((td, 1), (gradient, 4)):
        law = finite_law(problem.agents.source)
        assert law is not None
        A, g = operators(problem, law.outcomes())
        D, S = directions(problem, law), law.num_states
        assert D.shape == (problem.num_agents, S, number, problem.dim)
        np.testing.assert_allclose(D @ transpose(D), np.tile(np.eye(number), (len(D), S, 1, 1)), atol=1e-12)
        onto = (transpose(D) @ D)[:, :, None]
        A, g = A.reshape(len(A), S, S, *A.shape[-2:]), g.reshape(len(g), S, S, -1, 1)
        np.testing.assert_allclose(onto @ A, A, atol=1e-10)
        np.testing.assert_allclose(onto @ g, g, atol=1e-10)


def test_operators_on_transitions_in_every_direction_have_the_same_law_as_a_few_directions(monkeypatch):
    problem = CASES["td"](laziness=0.5).problem
    every = parts(problem, fh.FedHSA(0.05, 6))
    monkeypatch.setattr(agents, "FULL", 0)
    few = parts(problem, fh.FedHSA(0.05, 6))
    assert (every.agents.D is None, np.shape(few.agents.D)[2]) == (True, 1)
    one, other = (EachSiteLaw(found).stationary() for found in (few, every))
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-7, atol=1e-12)


def test_a_law_that_would_take_long_is_refused_before_the_operators_of_all_agents_are_evaluated(monkeypatch):
    asked = []

    def some(problem, which=slice(None)):
        asked.append(which)
        return agents_of(problem, which)

    monkeypatch.setattr(choice, "agents_of", some)
    problem, method = turns(3), fh.Weighted(fh.LocalSA(0.1, 2), [1.0, 2.0, 2.0])
    for limit in ("SITES", "ROOM"):
        with monkeypatch.context() as patch:
            patch.setattr(choice, limit, 10)
            with pytest.raises(TooLargeError, match="The law of Weighted on this problem would take long"):
                law_of(problem, method)
    assert asked == [slice(1)] * 2
    assert law_of(problem, method).basis == "exact"


def test_equal_agents_with_unequal_weights_are_of_different_kinds():
    """Otherwise one pair of them would stand for all, though they contribute differently."""
    method = fh.LocalSA(0.05, 2)
    equal, weighted = (parts(turns(3), m) for m in (method, fh.Weighted(method, [1.0, 2.0, 2.0])))
    assert equal.sets(2)[1].tolist() == [3.0]
    assert sorted(weighted.sets(2)[1]) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (fh.Compressed(fh.LocalSA(0.1, 2), fh.codecs.TopK(0.5)), "TopK is not linear, not even on average"),
        (fh.MultilevelSA(0.1, samples=8), "draws random numbers in addition to the shared coin"),
    ],
    ids=["not affine", "random"],
)
def test_what_cannot_be_derived_is_refused_with_a_reason(algorithm, sentence):
    with pytest.raises(NotDerivedError, match=sentence):
        derive(algorithm, 2, 3)


def test_live_variables_are_as_few_as_possible():
    """Two steps of theta + eta G from a message: the point, and the displacement that is the reply."""
    eta = 0.1
    J = np.array([[1, 0, 0], [1, eta, 0], [0, eta, eta]])  # points and reply by message and values
    part = realise(J, [0, 1], 1)
    assert [call.point.tolist() for call in part.calls] == [[1.0], [1.0, 0.0]]
    np.testing.assert_allclose(part.calls[0].enter, [eta, eta])
    np.testing.assert_allclose(part.end @ part.calls[1].carry, [[0.0, 1.0]], atol=1e-12)


@pytest.mark.parametrize("step", [0.02, 1e-6])
def test_what_a_method_conserves_is_no_part_of_what_it_carries_with_many_agents_and_small_steps(step):
    """SCAFFLSA's shifts add to zero, so that it carries the parameter and M - 1 of them."""
    for M in (3, 20):
        into, out_of = coordinates_of([pieces_of(fh.SCAFFLSA(step, 5), M, 1)], M)
        assert len(into) == len(out_of.T) == M

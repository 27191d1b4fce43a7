"""The law of any affine method on finite chains, derived from its exchanges."""

import functools
import itertools
import tracemalloc

import jax
import numpy as np
import pytest

import fedhsa as fh
from fedhsa.theory import predict
from fedhsa.theory.entry import PredictionWarning
from fedhsa.theory.laws import federation, markov, moments
from fedhsa.theory.laws.federation import Federation, outcomes_of
from fedhsa.theory.laws.many import ManyAgentsLaw
from fedhsa.theory.laws.markov import law_of_federation, sites_law
from fedhsa.theory.laws.moments import NotDerivedError, TooLargeError
from fedhsa.theory.laws.pieces import derive, pieces_of, pieces_of_rule, realise
from fedhsa.theory.laws.sites import EachSiteLaw, EverySiteLaw, TwoSitesLaw
from fedhsa.theory.maps.rounds import require_rule
from theory import bets
from theory.by_paths import Truth

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
PROBLEMS = {
    "td": lambda: fh.problems.td.random(num_agents=2, num_states=2, dim=2, laziness=0.7, key=3),
    "finite-sum": lambda: fh.problems.finite_sum.random(2, 2, 1, key=2, laziness=0.6),
}


def turns(M, slopes=(1.5, -0.3), stay=0.95):
    """Agents whose slope changes its sign: the mean converges where the mean square diverges."""
    P = np.array([[stay, 1 - stay], [1 - stay, stay]])
    A, b = np.array(slopes).reshape(1, 2, 1, 1), np.array([[[1.0], [-1.0]]])
    return fh.problems.finite_sum.from_arrays(*(np.repeat(x, M, axis=0) for x in (A, b, P[None])))


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_paths_are_those_of_the_methods_own_rounds_on_every_joint_path(method, problem):
    problem, algorithm = PROBLEMS[problem](), METHODS[method]
    law = sites_law(problem, algorithm)
    assert isinstance(law, EverySiteLaw)
    coin = COIN if len(law.federation.rounds) > 1 else ((None, 1.0),)
    error = np.arange(1.0, problem.dim + 1)
    np.testing.assert_allclose(law.errors(error, 6), Truth(problem, algorithm, coin).path(error, 6), rtol=1e-10)


def scafflsa_by_paths(M, steps, H):
    """The mean-square errors of SCAFFLSA from the error 1 on `turns`, in NumPy: a sum over all joint trajectories.

    In a round of step size eta, theta_i takes H steps of eta (G_i - shift_i) from theta; then shift_i changes by
    (theta_i - mean) / (eta H).
    """
    pi, x, found = np.full(2, 0.5), np.eye(M + 2)[0] + np.eye(M + 2)[-1], [1.0]
    Y = {s: np.prod(pi[list(s)]) * np.outer(x, x) for s in itertools.product(range(2), repeat=M)}
    for eta in steps:
        after = {s: np.zeros((M + 2, M + 2)) for s in Y}
        for (s, t), every in scafflsa_maps(M, eta, H).items():
            for chance, map in every:
                after[t] += chance * map @ Y[s] @ map.T
        Y = after
        found.append(sum(moments[0, 0] for moments in Y.values()))
    return np.array(found)


@functools.cache
def scafflsa_maps(M, eta, H):
    """A round as a map of (error, shifts, 1) for every joint trajectory, by its first and last state."""
    slopes, b, stay = -np.array([1.5, -0.3]), np.array([1.0, -1.0]), 0.95
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
    expected = scafflsa_by_paths(M, [0.1] * 5, H)
    np.testing.assert_allclose(sites_law(turns(M), fh.SCAFFLSA(0.1, H)).errors(np.ones(1), 5), expected, rtol=1e-11)


class Halved(fh.LocalSA):
    """Local SA whose server moves half as far, written by a user."""

    def _move(self, server, replies, round):
        return self.with_theta(server, server.theta + 0.5 * replies.mean())


@pytest.mark.parametrize(
    ("one", "other", "M"),
    [
        (Halved(0.1, 3), fh.LocalSA(0.1, 3, 0.5), 2),
        pytest.param(fh.SCAFFLSA(0.1, 3), fh.LocalSA(0.1, 3), 1, marks=pytest.mark.slow),
        pytest.param(fh.SCAFFOLD(0.1, 3), fh.SCAFFLSA(0.1, 3), 2, marks=pytest.mark.slow),
        pytest.param(fh.OneExchangeFedHSA(0.1, 3), fh.SCAFFOLD(0.1, 3, option=1), 2, marks=pytest.mark.slow),
    ],
    ids=["half a step", "SCAFFLSA alone is SA", "SCAFFOLD is SCAFFLSA", "one exchange is SCAFFOLD 1"],
)
def test_methods_that_are_the_same_have_the_same_law(one, other, M):
    problem = fh.problems.td.random(num_agents=M, num_states=2, dim=2, laziness=0.7, key=3)
    laws = [sites_law(problem, algorithm) for algorithm in (one, other)]
    errors = [law.errors(np.array([1.0, -2.0]), 8) for law in laws]
    np.testing.assert_allclose(*errors, rtol=1e-9)
    np.testing.assert_allclose(*[law.stationary().square for law in laws], rtol=1e-9)


def test_two_copies_of_each_agent_halve_the_variance_of_additive_noise_and_leave_the_bias():
    """Slopes differ between agents but not in time, so that the bias of LocalSA is that of heterogeneity alone."""
    A, b = np.array([1.5, 0.4]).reshape(2, 1, 1, 1), np.array([[[1.0], [-1.0]], [[0.3], [2.0]]])
    P = np.array([[0.8, 0.2], [0.2, 0.8]])
    once, twice = (
        fh.problems.finite_sum.from_arrays(
            *(np.repeat(x, n, axis=0) for x in (np.tile(A, (1, 2, 1, 1)), b, np.tile(P, (2, 1, 1))))
        )
        for n in (1, 2)
    )
    for method in (fh.SCAFFOLD(0.2, 3), fh.LocalSA(0.2, 3)):
        (mean, covariance), (same, half) = (sites_law(problem, method).stationary() for problem in (once, twice))
        np.testing.assert_allclose(same, mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(half, covariance / 2, rtol=1e-9)


@pytest.mark.slow
def test_permuted_agents_and_relabelled_states_change_nothing():
    problem = fh.problems.finite_sum.random(3, 2, 2, key=1, laziness=0.5)
    agents, chain = problem.agents, problem.agents.source
    other = fh.problems.finite_sum.from_arrays(
        agents.A[::-1, ::-1], agents.b[::-1, ::-1], chain.transition[::-1, ::-1, ::-1]
    )
    floors = [sites_law(p, fh.SCAFFLSA(0.1, 2)).stationary().square for p in (problem, other)]
    np.testing.assert_allclose(*floors, rtol=1e-10)


def test_one_site_is_exact_for_one_agent_and_pairs_for_two():
    pieces = {M: derive(fh.SCAFFLSA(0.1, 2), M, 1) for M in (1, 2)}
    for M, law in ((1, EachSiteLaw), (2, TwoSitesLaw)):
        federation = Federation(pieces[M], outcomes_of(turns(M)), "SCAFFLSA")
        np.testing.assert_allclose(
            law(federation).errors(np.ones(1), 6), EverySiteLaw(federation).errors(np.ones(1), 6), rtol=1e-10
        )
        assert law(federation).left_out == 0
    alone = EachSiteLaw(Federation(pieces[2], outcomes_of(turns(2)), "SCAFFLSA"))
    assert alone.left_out > 1  # its floor is half of the truth


@pytest.mark.parametrize("method", [fh.LocalSA(0.2, 3, 0.7), fh.FedHSA(0.2, 3, 0.8), fh.SynchronisedSA(0.2)])
def test_a_local_rule_has_the_pieces_that_are_derived_from_its_exchanges(method):
    outcomes = outcomes_of(turns(2, stay=0.9))
    rule = pieces_of_rule(require_rule(method), 2)
    laws = [EverySiteLaw(Federation(pieces, outcomes, "")) for pieces in (rule, derive(method, 2, 1))]
    paths = [law.errors(np.ones(1), 6) for law in laws]
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-11)
    assert laws[0].dim == laws[1].dim == 1


def test_one_site_in_rounds_with_two_exchanges_tends_to_the_law_that_closes_whole_rounds():
    """An agent that carries its chain from one exchange to the next changes the mean round, which all others meet.

    What is left is of order 1/M: half as much with twice the agents.
    """
    apart = []
    for M in (8, 16):
        problem, method = fh.problems.finite_sum.from_arrays(*bets.harsh(M).arrays), fh.FedHSA(0.2, 10)
        exchanges = EachSiteLaw(Federation(pieces_of(method, M, 1), outcomes_of(problem), "FedHSA"))
        apart.append(exchanges.settled().square / ManyAgentsLaw(problem, method).stationary().square - 1)
    assert 1.7 < apart[0] / apart[1] < 2.3


def test_pairs_in_rounds_with_two_exchanges_leave_out_a_third_of_what_one_site_does():
    parts = Federation(derive(fh.FedHSA(0.1, 5), 5, 1), outcomes_of(turns(5, stay=0.9)), "FedHSA")
    exact, one, pairs = (law(parts).stationary().square for law in (EverySiteLaw, EachSiteLaw, TwoSitesLaw))
    assert abs(pairs / exact - 1) < abs(one / exact - 1) / 3


@pytest.mark.parametrize("step_size", [0.1, 1e-4, 3.0])  # in the last case the mean diverges
@pytest.mark.parametrize("law", [EverySiteLaw, EachSiteLaw])
def test_moments_that_are_too_many_for_a_matrix_are_the_same(law, step_size, monkeypatch):
    pieces = derive(fh.MomentumSA(step_size, 2, beta=0.5), 2, 1)
    parts = Federation(pieces, outcomes_of(turns(2, (1.5, 0.3), 0.7)), "MomentumSA")
    solved = law(parts).settled()
    monkeypatch.setattr(moments, "DENSE", 0)
    monkeypatch.setattr(federation, "MATRIX", 0)  # nor are the agents' own maps matrices
    iterated = law(Federation(pieces, parts.outcomes, "MomentumSA")).settled()
    np.testing.assert_allclose(iterated.square, solved.square, rtol=1e-7)
    np.testing.assert_allclose(iterated.mean, solved.mean, rtol=1e-7)


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
    assert np.abs(np.linalg.eigvals(prediction.transition)).max() < 1
    assert not prediction.stable
    assert prediction.stability == "mean square, exact"
    assert abs(prediction.mean_square_radius - radius) < 6e-4


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


def test_independent_observations_of_long_chains_take_no_more_memory_than_their_operators():
    """A kernel of all 10 000 transitions of one agent alone would take 800 MB."""
    problem = fh.problems.td.random(3, 100, 2).iid()
    tracemalloc.start()
    found = outcomes_of(problem)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.flow.shape == (3, 1, 10_000, 1)
    assert peak < 20 * sum(x.nbytes for x in jax.tree.leaves(found))


def test_a_law_that_would_take_much_memory_is_refused_before_it_takes_any(monkeypatch):
    """With 20 delays and 100 states, the maps of all transitions would take 15 GB."""
    found = Federation(pieces_of(fh.FedHSA(0.1, 3), 2, 1), outcomes_of(turns(2)), "FedHSA")
    monkeypatch.setattr(markov, "MAPS", found.room - 1)
    with pytest.raises(TooLargeError, match="would take much memory"):
        law_of_federation(found)
    assert found.room == 2 * 2 * (2**2 + 3**2)  # of two agents with two states and one live variable, then two
    assert not any("maps" in vars(walk) for walk in found._walks.values())


def test_independent_observations_need_one_state_and_have_the_law_of_a_chain_without_memory():
    problem, pieces = fh.problems.finite_sum.random(2, 3, 1, key=1).iid(), derive(fh.SCAFFLSA(0.1, 4), 2, 1)
    one, many = (
        EverySiteLaw(Federation(pieces, outcomes_of(problem, by_state=by_state), "SCAFFLSA"))
        for by_state in (False, True)
    )
    assert (one.federation.num_states, many.federation.num_states) == (1, 3)
    each = EachSiteLaw(many.federation)  # nothing is left out, as no state says anything about the future
    for law in (many, each):
        np.testing.assert_allclose(one.errors(np.ones(1), 5), law.errors(np.ones(1), 5), rtol=1e-11)


def test_equal_agents_with_unequal_weights_are_of_different_kinds():
    """Otherwise one pair of them would stand for all, though they contribute differently."""
    problem, method = turns(3), fh.LocalSA(0.05, 2)
    equal, weighted = (
        Federation(derive(m, 3, 1), outcomes_of(problem), "LocalSA")
        for m in (method, fh.Weighted(method, [1.0, 2.0, 2.0]))
    )
    assert [number for number, _ in equal.sets(2)] == [3.0]
    assert sorted(number for number, _ in weighted.sets(2)) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (fh.Compressed(fh.LocalSA(0.1, 2), fh.codecs.TopK(0.5)), "random, or not affine"),
        (fh.MultilevelSA(0.1, samples=8), "random, or not affine"),
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


def test_a_law_that_leaves_something_out_says_so(monkeypatch):
    problem, algorithm = turns(4), fh.SCAFFLSA(0.06, 5)
    exact = sites_law(problem, algorithm)
    monkeypatch.setattr(markov, "PRODUCT", 0.0)
    with pytest.warns(PredictionWarning, match=r"may be off by .* \(pairs\) neglects some joint effects"):
        prediction = predict(problem, algorithm)
    error = abs(prediction.floor / exact.stationary().square - 1)
    assert 0.02 < error < prediction.left_out < 1
    monkeypatch.setattr(federation, "field_radius", lambda *given: None)  # the gaps alone, amplified near instability
    assert error < sites_law(problem, algorithm).left_out


@pytest.mark.parametrize("step", [0.02, 1e-6])
def test_what_a_method_conserves_is_no_part_of_what_it_carries_with_many_agents_and_small_steps(step):
    """SCAFFLSA's shifts add to zero, so that it carries the parameter and M - 1 of them."""
    for M in (3, 20):
        into, _ = federation._coordinates([pieces_of(fh.SCAFFLSA(step, 5), M, 1)], M)
        assert [len(x) for x in into] == [M]

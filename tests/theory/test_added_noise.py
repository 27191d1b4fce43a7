"""Methods under additive noise, against their plain loops: what every single number of the noise does to the error."""

import itertools

import numpy as np
import pytest

import fedhsa as fh
from contract import World
from fedhsa.problems import quadratic
from fedhsa.theory import exact, predict
from fedhsa.theory.laws import federation, moments
from fedhsa.theory.laws.markov import sites_law
from fedhsa.theory.laws.replies import RepliesLaw, replies_law
from loops import corrected, output, paper, rules

ROUNDS = 3
A = np.array([0.5, 1.0, 1.6]).reshape(3, 1, 1)
B = np.array([[2.0], [-1.0], [0.5]])
Q = np.array([0.7, -0.4, 0.2]).reshape(3, 1, 1)
PROBLEM = quadratic.from_arrays(A, B, Q, noise_std=0.6)
LOOPS = paper.METHODS | corrected.METHODS | rules.METHODS | output.METHODS


def operator(agent, theta, noise):
    """One agent's operator."""
    return B[agent] - A[agent] @ theta + noise


def covariance(count, start):
    """The covariance of an agent's noise at `count` observations, that begins at zero or is stationary."""
    found = []
    for q in Q.ravel():
        steps = np.tril(q ** np.abs(np.subtract.outer(np.arange(count), np.arange(count))))
        variances = np.full(count, 0.6**2)
        variances[0] = 0.6**2 / (1 - q**2) if start == "stationary" else 0.0
        found.append(steps @ np.diag(variances) @ steps.T)
    return found


def mean_square_errors(method, theta, start):
    """Runs the loop for every fall of the coins, with a single number of the noise at a time."""
    count = ROUNDS * method.on(PROBLEM).block_length
    errors = np.zeros(ROUNDS + 1)
    for falls in itertools.product((True, False), repeat=ROUNDS + 1):
        asked = {}

        class Told(World):
            def coin(self, t, probability, falls=falls, asked=asked):
                asked[t] = probability
                return falls[t]

        def path(noise, Told=Told):
            found = method.loop(Told(PROBLEM, operator, list(noise), theta, ROUNDS, 0, 0))
            return np.asarray(found)[:, 0] - PROBLEM.root[0]

        mean = path(np.zeros((3, count, 1)))
        weight = np.prod([p if falls[t] else 1 - p for t, p in asked.items()])
        if not all(falls[t] for t in range(ROUNDS + 1) if t not in asked):
            continue  # the same as if this coin had fallen
        errors += weight * mean**2
        for i, C in enumerate(covariance(count, start)):
            units = np.eye(count)[:, None, :, None] * np.eye(3)[i][None, :, None, None]
            K = np.stack([path(unit) - mean for unit in units])
            errors += weight * np.einsum("kt,kl,lt->t", K, C, K)
    return errors


QUICK = ("Scaffnew", "MomentumSA", "SCAFFLSA", "RichardsonRomberg(LocalSA)")
"""A coin, a different first round, memories, and copies on the same observations."""
OTHERS = ("FedHSA", "LocalSA", "SCAFFOLD, option 1", "SCAFFOLD, option 2", "OneExchangeFedHSA", "LooplessSA", "FedLin")
OTHERS += ("DecentralisedScaffnew", "SSLocalSGD", "OracleShift", "DisSACC", "GappedSA", "OneShotAveraging", "LocalSVRG")
OTHERS += ("VarianceReducedSA", "ExtragradientSA", "PersonalisedSA", "Weighted(LocalSA)", "ServerMomentum(LocalSA)")
OTHERS += ("ServerMomentum(FedHSA)", "Gossip(LocalSA), combine first", "Thinned(FedHSA)")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_the_law_of_a_method_under_additive_noise_is_the_sum_over_all_its_numbers(name):
    method, theta = LOOPS[name], np.array([1.5])
    algorithm = method.on(PROBLEM)
    found = exact.mean_square_error(PROBLEM, algorithm, rounds=ROUNDS, theta=theta)
    np.testing.assert_allclose(found, mean_square_errors(method, theta, "zero"), rtol=1e-9)
    law = sites_law(PROBLEM, algorithm)
    np.testing.assert_allclose(law.errors(theta - PROBLEM.root, ROUNDS), found, rtol=1e-9)
    late = law.errors(theta - PROBLEM.root, moments.FOLLOWED)[-1]  # one by one; later ones would use the long run
    np.testing.assert_allclose(law.stationary().square, late, rtol=1e-5, atol=1e-14)


def test_noise_that_begins_in_its_long_run_is_told_from_noise_that_begins_at_zero():
    source = fh.sources.VAR1(Q, 0.6, start="stationary")
    problem = fh.Problem(quadratic.QuadraticAgent(source, A, B), like=np.zeros(1))
    found = exact.mean_square_error(problem, fh.SCAFFLSA(corrected.STEP, corrected.H), rounds=ROUNDS)
    expected = mean_square_errors(LOOPS["SCAFFLSA"], np.zeros(1), "stationary")
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert abs(expected[1] / mean_square_errors(LOOPS["SCAFFLSA"], np.zeros(1), "zero")[1] - 1) > 1e-4


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize(
    "algorithm",
    [
        fh.Lossy(fh.LocalSA(0.1, 2, server_step=0.8), 0.3),
        pytest.param(fh.Partial(fh.FedHSA(0.1, 2), fh.sampling.UniformSampling(2, 3)), marks=pytest.mark.slow),
        pytest.param(fh.OverTheAir(fh.FedHSA(0.1, 2), 0.3, 0.2), marks=pytest.mark.slow),
    ],
    ids=["losses", "two of three", "over the air"],
)
def test_what_agents_draw_is_averaged_as_by_the_law_of_replies_which_counts_weights(algorithm, independent):
    problem = PROBLEM.iid() if independent else PROBLEM
    found, expected, start = sites_law(problem, algorithm), replies_law(problem, algorithm), np.array([0.7])
    assert isinstance(expected, RepliesLaw)
    np.testing.assert_allclose(found.errors(start, 6), expected.errors(start, 6), rtol=1e-9)
    np.testing.assert_allclose(found.stationary().square, expected.stationary().square, rtol=1e-9)
    assert found.mean_square_radius().value == pytest.approx(expected._square_radius, rel=1e-9)


def test_the_mean_square_of_a_method_with_a_coin_is_that_of_both_falls():
    """Two agents without noise, whose parameters are averaged or not."""
    problem = quadratic.from_arrays([[[1.0]], [[0.2]]], [[0.0], [0.0]])
    eta, p, a = 0.5, 0.4, np.array([1.0, 0.2])
    together, alone = np.full((2, 2), 0.5), np.eye(2)
    falls = [(chance, np.diag(1 - eta * a) @ map) for chance, map in ((p, together), (1 - p, alone))]
    square = sum(chance * np.kron(T, T) for chance, T in falls)
    found = predict(problem, fh.LooplessSA(eta, p))
    assert (found.basis, found.stable, found.floor) == ("exact", True, pytest.approx(0))
    assert found.mean_square_radius == pytest.approx(np.abs(np.linalg.eigvals(square)).max(), rel=1e-9)


def test_moments_that_are_walked_one_observation_after_another_are_those_of_one_matrix(monkeypatch):
    algorithm, start = fh.SCAFFLSA(0.1, 3), np.array([0.7])
    expected = sites_law(PROBLEM, algorithm)
    monkeypatch.setattr(federation, "MATRIX", 0)
    found = sites_law(PROBLEM, algorithm)
    np.testing.assert_allclose(found.errors(start, 4), expected.errors(start, 4), rtol=1e-10)
    np.testing.assert_allclose(found.stationary().square, expected.stationary().square, rtol=1e-10)


def test_mean_operators_have_no_noise():
    """With its anchor in every round, SVRG's steps are those of the mean operators: all noise cancels."""
    law = sites_law(PROBLEM, fh.LocalSVRG(0.1, 2, probability=1.0))
    assert law.errors(np.zeros(1), 5)[-1] == pytest.approx(0.0, abs=1e-12)

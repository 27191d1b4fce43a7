"""Methods under additive noise, against their plain loops: what every single number of the noise does to the error."""

import itertools

import numpy as np
import pytest

import fedhsa as fh
from contract import World
from fedhsa.problems import quadratic
from fedhsa.theory import exact, predict
from fedhsa.theory.laws import levels, walks
from fedhsa.theory.laws.federation import Federation
from fedhsa.theory.laws.law import law_of
from fedhsa.theory.laws.levels import EachSiteLaw, EverySiteLaw, LinearLaw
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
    """Of linear rounds if there is no coin, of each agent and of all agents, which neglect nothing without states."""
    method, theta = LOOPS[name], np.array([1.5])
    algorithm, start = method.on(PROBLEM), theta - PROBLEM.root
    found = exact.mean_square_error(PROBLEM, algorithm, rounds=ROUNDS, theta=theta)
    expected = mean_square_errors(method, theta, "zero")
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    law = law_of(PROBLEM, algorithm)
    assert isinstance(law, LinearLaw) == (len(law.federation.rounds) == 1)
    for other in (law, EachSiteLaw(law.federation), EverySiteLaw(law.federation)):
        np.testing.assert_allclose(other.errors(start, ROUNDS), expected, rtol=1e-9)
        path = [moments.square for moments in other.path(start, 3000)]
        np.testing.assert_allclose(other.stationary().square, path[-1], rtol=1e-5, atol=1e-14)
        np.testing.assert_allclose(other.errors(start, 300), path[:301], rtol=1e-9, atol=1e-14)
        assert (other.basis, other.left_out) == ("exact", 0.0)


def test_noise_that_begins_in_its_long_run_is_told_from_noise_that_begins_at_zero():
    source = fh.sources.VAR1(Q, 0.6, start="stationary")
    problem = fh.Problem(quadratic.QuadraticAgent(source, A, B), like=np.zeros(1))
    found = exact.mean_square_error(problem, fh.SCAFFLSA(corrected.STEP, corrected.H), rounds=ROUNDS)
    expected = mean_square_errors(LOOPS["SCAFFLSA"], np.zeros(1), "stationary")
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert abs(expected[1] / mean_square_errors(LOOPS["SCAFFLSA"], np.zeros(1), "zero")[1] - 1) > 1e-4


def each_of(values, chances, times):
    """All outcomes of independent draws, with their probabilities."""
    for way in itertools.product(zip(values, chances, strict=True), repeat=times):
        yield float(np.prod([p for _, p in way])), np.array([v for v, _ in way])


LOST = [(p, kept, kept) for p, kept in each_of((0, 1 / 0.7), (0.3, 0.7), 3)]
TWO = [(1 / 3, 1.5 * row, 1.5 * row) for row in 1 - np.eye(3)]
AIR = [(p, *np.split(gains, 2)) for p, gains in each_of((0.7, 1.3), (0.5, 0.5), 6)]
DRAWN = {
    "losses": (fh.Lossy(fh.LocalSA(0.1, 2, server_step=0.8), 0.3), LOST, 0.8, 0.0),
    "two of three": (fh.Partial(fh.FedHSA(0.1, 2), fh.sampling.UniformSampling(2, 3)), TWO, 1.0, 0.0),
    "over the air": (fh.OverTheAir(fh.FedHSA(0.1, 2), 0.3, 0.2), AIR, 1.0, 0.2 / 3),
}
"""Methods, the weights of the first and the last replies with their probabilities, server steps and added noise."""


def summed_over_draws(draws, server_step, corrected, air, error, rounds, independent):
    """The mean-square errors of two local steps of size 0.1 for every sequence of draws, in NumPy.

    Columns are the error without noise, and what every single number of the noise adds to it, then of the receiver.
    """
    count, every = 2 * rounds, list(itertools.product(draws, repeat=rounds))
    chance = np.prod([[p for p, *_ in way] for way in every], axis=1)
    weights = np.array([[way[t][1:] for t in range(rounds)] for way in every])[..., None]  # (n, rounds, 2, agents, 1)
    e = np.zeros((len(every), 1 + 3 * count + 2 * rounds))
    e[:, 0], unit, found = error, np.eye(e.shape[1]), [error**2]
    C = covariance(count, "zero")
    if independent:
        C = [0.6**2 / (1 - q**2) * np.eye(count) for q in Q.ravel()]
    for t in range(rounds):

        def G(i, step, y, t=t):
            return (B[i] - A[i] @ PROBLEM.root) * unit[0] - A[i] * y + unit[1 + i * count + 2 * t + step]

        added = air * unit[1 + 3 * count + 2 * t :]
        mean = sum(weights[:, t, 0, i] * G(i, 0, e) for i in range(3)) / 3 + added[0]
        moved = added[1]
        for i in range(3):
            correction, y = corrected * (mean - G(i, 0, e)), e
            for step in range(2):
                y = y + 0.1 * (G(i, step, y) + correction)
            moved = moved + weights[:, t, 1, i] * (y - e) / 3
        e = e + server_step * moved
        K = e[:, 1 : 1 + 3 * count].reshape(-1, 3, count)
        noise = np.einsum("nik,ikl,nil->n", K, np.array(C), K)
        found.append(chance @ (e[:, 0] ** 2 + noise + (e[:, 1 + 3 * count :] ** 2).sum(1)))
    return np.array(found)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("name", DRAWN)
def test_what_agents_draw_is_summed_over_all_outcomes_and_all_numbers_of_the_noise(name, independent):
    algorithm, draws, server_step, air = DRAWN[name]
    problem, rounds = PROBLEM.iid() if independent else PROBLEM, 2 if name == "over the air" else 3
    law, corrected = law_of(problem, algorithm), float(name != "losses")
    assert (law.basis, law.left_out) == ("exact", 0.0)
    given = draws, server_step, corrected, air
    expected = summed_over_draws(*given, 0.7, rounds, independent)
    np.testing.assert_allclose(law.errors(np.array([0.7]), rounds), expected, rtol=1e-9)
    *_, late = law.path(np.array([0.7]), 3000)
    assert law.stationary().square == pytest.approx(late.square, rel=1e-8)
    far, near = (summed_over_draws(*given, error, 1, independent)[1] for error in (1e6, -1e6))
    radius = law.mean_square_radius()
    assert radius is not None
    assert radius.value == pytest.approx((far + near) / 2e12, rel=1e-9)


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
    law, start = law_of(PROBLEM, fh.SCAFFLSA(0.1, 3)), np.array([0.7])
    monkeypatch.setattr(walks, "MATRIX", 0)
    parts = Federation(law.federation.pieces, law.federation.agents, "SCAFFLSA")
    for found in (EachSiteLaw(parts), EverySiteLaw(parts)):
        np.testing.assert_allclose(found.errors(start, 4), law.errors(start, 4), rtol=1e-10)
        np.testing.assert_allclose(found.stationary().square, law.stationary().square, rtol=1e-10)


@pytest.mark.parametrize("room", [1, 2**30])
def test_agents_have_the_same_law_one_by_one_and_all_at_once(room, monkeypatch):
    expected = law_of(PROBLEM, fh.FedHSA(0.1, 3)).stationary()
    monkeypatch.setattr(levels, "CACHED", room)
    assert law_of(PROBLEM, fh.FedHSA(0.1, 3)).stationary().square == pytest.approx(expected.square, rel=1e-12)


def test_mean_operators_have_no_noise():
    """With its anchor in every round, SVRG's steps are those of the mean operators: all noise cancels."""
    law = law_of(PROBLEM, fh.LocalSVRG(0.1, 2, probability=1.0))
    assert law.errors(np.zeros(1), 5)[-1] == pytest.approx(0.0, abs=1e-12)

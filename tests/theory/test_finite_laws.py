"""The exact laws of finite chains: independent sampling, and products of chains."""

import itertools

import numpy as np
import pytest
from scipy.optimize import brentq

import fedhsa as fh
import naive
from fedhsa.problems import finite_sum, td
from fedhsa.theory import exact
from fedhsa.theory.laws import law

ROUNDS = 2


def problems():
    return {
        "td": td.random(2, 2, 2, key=1, laziness=0.6),
        "finite-sum": finite_sum.random(2, 2, 2, key=1, laziness=0.6, eigenvalues=(0.2, 1.0)),
    }


def operator(problem):
    """G_i(theta, o) in NumPy, for states or pairs of states."""
    agents = problem.agents
    if hasattr(agents, "features"):
        R, phi, gamma = agents.rewards, agents.features, agents.discount
        return lambda i, t, o: (R[i][o[0]] + gamma[i] * phi[i][o[1]] @ t - phi[i][o[0]] @ t) * phi[i][o[0]]
    return lambda i, t, o: agents.b[i][o[0]] - agents.A[i][o[0]] @ t


def enumerated(problem, algorithm):
    """E|e|^2 after each round, as the sum over every trajectory of every agent of its probability times its outcome."""
    source = problem.agents.source
    chain = getattr(source, "chain", source)
    P, pi = chain.transition, chain.stationary
    length = ROUNDS * algorithm.block_length

    def trajectories(i):
        for states in itertools.product((0, 1), repeat=length + 1):
            moves = list(itertools.pairwise(states))
            yield moves, pi[i, states[0]] * np.prod([P[i, s, t] for s, t in moves])

    loop = naive.fed_hsa if isinstance(algorithm, fh.FedHSA) else naive.local_sa
    settings = {"step_size": algorithm.step_size, "local_steps": algorithm.block_length}
    settings["server_step"] = getattr(algorithm, "server_step", 1.0)
    expected = np.zeros(ROUNDS + 1)
    for (first, p), (second, q) in itertools.product(trajectories(0), trajectories(1)):
        path = loop(operator(problem), [first, second], np.zeros(2), rounds=ROUNDS, **settings)
        expected += p * q * ((path - problem.theta_star) ** 2).sum(-1)
    return expected


@pytest.mark.parametrize(
    ("name", "algorithm"), [("td", fh.FedHSA(0.3, 2, 0.8)), ("finite-sum", fh.LocalSA(0.3, 2, 0.8))]
)
def test_the_product_law_is_the_sum_over_all_trajectories(name, algorithm):
    problem = problems()[name]
    errors = exact.mean_square_error(problem, algorithm, rounds=ROUNDS)
    np.testing.assert_allclose(errors, enumerated(problem, algorithm), rtol=1e-12)


def test_the_product_law_starts_where_the_chains_start():
    """One agent that starts in its second state: after one step the error is certain."""
    A, b, P = np.array([[[[1.0]], [[2.0]]]]), np.array([[[1.0], [5.0]]]), np.full((1, 2, 2), 0.5)
    problem = finite_sum.from_arrays(A, b, P, start=np.array([[0.0, 1.0]]))
    _, after = exact.law(problem, fh.SynchronisedSA(0.1)).path(-problem.theta_star, 1)
    assert after.mean == pytest.approx(0.1 * 5.0 - problem.theta_star)
    assert after.covariance == pytest.approx(0, abs=1e-15)


def standard_errors(problem, algorithm, *, rounds, seeds):
    run = fh.simulate(problem, algorithm, rounds=rounds, seeds=seeds, key=5)
    expected = exact.mean_square_error(problem, algorithm, rounds=rounds)
    return (run.error.mean(0) - expected)[1:] / (run.error.std(0, ddof=1)[1:] / np.sqrt(seeds))


@pytest.mark.slow
def test_simulation_agrees_with_the_independent_law():
    """1000 seeds, every round: within 4 standard errors."""
    problem = td.random(5, 4, 3, key=1).iid()
    assert abs(standard_errors(problem, fh.FedHSA(0.2, 5, 0.8), rounds=40, seeds=1000)).max() < 4


@pytest.mark.slow
def test_simulation_agrees_with_the_product_law():
    """1000 seeds, every round, two agents on two-state chains: within 4 standard errors."""
    assert abs(standard_errors(problems()["td"], fh.FedHSA(0.2, 5), rounds=40, seeds=1000)).max() < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("M", "H", "step_size", "server_step"), [(1, 10, 0.05, 1.0), (4, 1, 0.3, 1.0), (16, 10, 0.1, 0.5)]
)
@pytest.mark.parametrize("method", [fh.FedHSA, fh.LocalSA])
@pytest.mark.parametrize("family", [td, finite_sum])
def test_simulation_agrees_with_the_independent_law_at_many_settings(family, method, M, H, step_size, server_step):
    """1000 seeds, 60 rounds of 12 settings: within 5 standard errors. In one of 20 such sets, some exceed 4."""
    problem = (
        td.random(M, 4, 3, key=2) if family is td else finite_sum.random(M, 3, 3, key=2, eigenvalues=(0.2, 1.5))
    ).iid()
    assert abs(standard_errors(problem, method(step_size, H, server_step), rounds=60, seeds=1000)).max() < 5


@pytest.mark.parametrize("gap", [1e-4, 1e-6])
@pytest.mark.parametrize("d", [2, pytest.param(7, marks=pytest.mark.slow)], ids=["from the matrix", "by GMRES"])
def test_the_stationary_law_is_solved_however_close_to_instability(gap, d):
    """One agent, one step: E = sum_o w (F E F^T + ...) as a Kronecker system, at the step whose radius is 1 - gap.

    Rounding of the radius is amplified by 1/gap, so the tolerance is 1e-12 / gap.
    """
    rng = np.random.default_rng(3)
    A = np.eye(d) + rng.normal(size=(4, d, d)) / np.sqrt(d)
    b, identity, P = rng.normal(size=(4, d)), np.eye(d), np.full((1, 4, 4), 0.25)

    def squares(eta):
        return np.mean([np.kron(identity - eta * a, identity - eta * a) for a in A], axis=0)

    def above(eta):
        return abs(np.linalg.eigvals(squares(eta))).max() - (1 - gap)

    eta = float(brentq(above, 0.2, 3.0, xtol=1e-15))  # pyright: ignore[reportArgumentType]
    problem = finite_sum.from_arrays(A[None], b[None], P).iid()
    root = np.linalg.solve(A.mean(0), b.mean(0))
    g = b - A @ root
    added = eta**2 * np.mean([np.kron(x, x) for x in g], axis=0)  # the error has mean zero, so nothing crosses
    expected = np.linalg.solve(np.eye(d * d) - squares(eta), added).reshape(d, d)
    found = exact.law(problem, fh.SA(eta))
    radius = found.mean_square_radius()
    assert radius is not None
    assert radius.value == pytest.approx(1 - gap, abs=1e-10)
    np.testing.assert_allclose(found.stationary().covariance, expected, rtol=1e-12 / gap)
    with pytest.raises(ValueError, match="its mean-square error grows without bound"):
        exact.law(problem, fh.SA(brentq(above, 0.2, 3.0) * (1 + 2 * gap))).stationary()


def test_a_method_whose_variance_grows_is_refused_though_its_mean_converges():
    """E(1 + eta a)^2 > 1 > |1 + eta E a|: the square grows, the mean does not."""
    A, P = np.array([0.1, 5.0]).reshape(1, 2, 1, 1), np.full((1, 2, 2), 0.5)
    problem = finite_sum.from_arrays(A, np.array([[[1.0], [1.0]]]), P)
    algorithm = fh.SynchronisedSA(0.6)
    assert exact.spectral_radius(problem, algorithm) < 1 < ((1 - 0.06) ** 2 + (1 - 3.0) ** 2) / 2
    for case in (problem, problem.iid()):
        with pytest.raises(ValueError, match=r"converges in the mean here, but its mean-square error grows"):
            exact.floor(case, algorithm)


def test_additive_noise_drawn_independently_has_a_law_too():
    """G = -theta + z with independent z of variance v: the variance is eta v / (2 - eta)."""
    problem = fh.problems.quadratic.from_arrays([[[1.0]]], [[0.0]], Q=[[[0.5]]], noise_std=1.0).iid()
    variance = 1 / (1 - 0.25)
    assert exact.floor(problem, fh.SynchronisedSA(0.1)) == pytest.approx(0.1 * variance / 1.9, rel=1e-12)


def test_laws_that_would_take_long_say_what_to_use_instead(monkeypatch):
    monkeypatch.setattr(law, "SITES", 0)
    problem, algorithm = finite_sum.random(20, 3, 2).iid(), fh.FedHSA(0.01, 2)
    with pytest.raises(TypeError, match=r"exact law of 20 agents in 2 dimensions.*theory.predict` supports every size"):
        exact.floor(problem, algorithm)

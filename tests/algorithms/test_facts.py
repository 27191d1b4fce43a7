"""The facts that every implementation must satisfy to rounding error."""

import numpy as np
import pytest

import fedhsa as fh
import naive
from cases import CASES

ONE_FAST = [case if case == "td" else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
"""One family for what follows from the loops that every family is held to elsewhere."""


def paths(problem, *algorithms, rounds=15, **options):
    """Parameters after every round, on the same observations."""
    return [
        fh.simulate(problem, a, rounds=rounds, theta=np.ones(problem.dim), record=("theta",), **options).records[
            "theta"
        ]
        for a in algorithms
    ]


@pytest.mark.parametrize("case", ONE_FAST)
def test_one_agent_makes_fed_hsa_plain_sa(case):
    problem = CASES[case](1).problem
    hsa, local = paths(problem, fh.FedHSA(0.03, 5), fh.LocalSA(0.03, 5), rounds=4)
    plain = fh.simulate(problem, fh.SA(0.03), rounds=20, every=5, theta=np.ones(problem.dim), record=("theta",))
    np.testing.assert_allclose(hsa, local, rtol=1e-13)
    np.testing.assert_allclose(plain.records["theta"], local, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("case", ONE_FAST)
def test_one_local_step_makes_all_methods_equal(case):
    problem = CASES[case]().problem
    hsa, local, synchronised = paths(problem, fh.FedHSA(0.05, 1), fh.LocalSA(0.05, 1), fh.SynchronisedSA(0.05), seeds=2)
    np.testing.assert_allclose(hsa, local, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(hsa, synchronised, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("case", CASES)
def test_without_noise_fed_hsa_stays_at_the_root_and_local_sa_does_not(case):
    problem = CASES[case]().problem
    root = problem.theta_star
    hsa = fh.simulate(problem.noiseless(), fh.FedHSA(0.05, 5), rounds=20, theta=root)
    local = fh.simulate(problem.noiseless(), fh.LocalSA(0.05, 5), rounds=20, theta=root)
    assert hsa.error.max() < 1e-24 * (1 + root @ root)
    assert local.error[0, -1] > 1e-10


@pytest.mark.slow
def test_equal_matrices_and_additive_noise_give_equal_paths():
    A = np.repeat(np.array([[[2.0, 0.5], [0.5, 1.0]]]), 3, axis=0)
    b = np.random.default_rng(0).normal(size=(3, 2))
    problem = fh.problems.quadratic.from_arrays(A, b, Q=0.6 * np.repeat(np.eye(2)[None], 3, axis=0), noise_std=0.5)
    hsa, local = paths(problem, fh.FedHSA(0.05, 6), fh.LocalSA(0.05, 6), seeds=3)
    np.testing.assert_allclose(hsa, local, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", ONE_FAST)
def test_corrections_average_to_zero(case):
    # With two local steps and full participation the mean displacement is eta * (g_bar + mean_i G_i(theta_1, o_1)).
    problem, G, record = CASES[case]()
    replayed, listed = record(2, np.random.default_rng(3))
    theta = np.ones(problem.dim)
    g_bar = np.mean([G(i, theta, listed[i][0]) for i in range(3)], axis=0)
    shared = theta + 0.05 * g_bar
    expected = shared + 0.05 * np.mean([G(i, shared, listed[i][1]) for i in range(3)], axis=0)
    result = fh.simulate(problem.replay(replayed), fh.FedHSA(0.05, 2), rounds=1, theta=theta)
    np.testing.assert_allclose(result.theta[0], expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("case", "H", "server_step"),
    [
        ("td", 5, 0.6),
        ("finite-sum", 5, 1.0),
        *(pytest.param(*s, marks=pytest.mark.slow) for s in (("quadratic", 2, 1.0), ("finite-sum", 10, 1.0))),
        pytest.param("td", 10, 1.0, marks=pytest.mark.slow),
    ],
)
def test_noiseless_fed_hsa_contracts_by_the_closed_form(case, H, server_step):
    problem = CASES[case]().problem
    A, _ = problem.affine_parts()
    C = naive.fed_hsa_contraction(A, 0.03, H, server_step)
    error = np.ones(problem.dim)
    expected = [error := C @ error for _ in range(20)]
    theta = problem.theta_star + 1
    result = fh.simulate(problem.noiseless(), fh.FedHSA(0.03, H, server_step), rounds=20, theta=theta)
    np.testing.assert_allclose(result.error[0, 1:], (np.array(expected) ** 2).sum(1), rtol=1e-9, atol=1e-22)


@pytest.mark.parametrize(
    ("case", "H"),
    [
        ("td", 5),
        ("finite-sum", 5),
        *(pytest.param(*s, marks=pytest.mark.slow) for s in (("quadratic", 2), ("finite-sum", 10), ("td", 10))),
    ],
)
def test_noiseless_local_sa_stops_at_the_closed_form_bias(case, H):
    problem = CASES[case]().problem
    A, b = problem.affine_parts()
    bias = naive.local_sa_bias(A, b, problem.theta_star, 0.05, H)
    result = fh.simulate(problem.noiseless(), fh.LocalSA(0.05, H), rounds=20000)
    np.testing.assert_allclose(result.error[0, -1], bias @ bias, rtol=1e-9)
    np.testing.assert_allclose(result.theta[0] - problem.theta_star, bias, rtol=1e-7, atol=1e-12)


def test_for_two_local_steps_the_bias_is_that_of_proposition_1():
    problem = CASES["quadratic"](5).problem
    A, b = problem.affine_parts()
    eta, roots = 0.05, problem.local_roots
    squares = A @ A
    total = sum(square @ (root - problem.theta_star) for square, root in zip(squares, roots, strict=True))
    v = np.linalg.solve(2 * A.mean(0) + eta * squares.mean(0), total) / 5
    np.testing.assert_allclose(naive.local_sa_bias(A, b, problem.theta_star, eta, 2), eta * v, rtol=1e-10)
    result = fh.simulate(problem.noiseless(), fh.LocalSA(eta, 2), rounds=3000, every=3000)
    np.testing.assert_allclose(result.theta[0] - problem.theta_star, eta * v, rtol=1e-9)


@pytest.mark.parametrize("H", [2, *(pytest.param(H, marks=pytest.mark.slow) for H in (5, 10))])
def test_the_papers_quadratic_without_noise(H):
    """M=20, d=10, eta=0.001: FedHSA follows |C_H^t e_0|^2 and falls below 1e-20, Local SA stops at its bias."""
    problem = fh.problems.quadratic.random(num_agents=20, dim=10, key=0)
    A, b = problem.affine_parts()
    rounds = 30000 // H
    hsa = fh.simulate(problem.noiseless(), fh.FedHSA(0.001, H), rounds=rounds)
    C, e = naive.fed_hsa_contraction(A, 0.001, H), -problem.theta_star
    expected = [e @ e]
    for _ in range(rounds):
        e = C @ e
        expected.append(e @ e)
    expected = np.array(expected)
    above_rounding = expected > 1e-12
    assert above_rounding.sum() > 1000 // H
    np.testing.assert_allclose(hsa.error[0][above_rounding], expected[above_rounding], rtol=1e-9)
    assert hsa.error[0, -1] < 1e-20
    local = fh.simulate(problem.noiseless(), fh.LocalSA(0.001, H), rounds=rounds, every=rounds)
    bias = naive.local_sa_bias(A, b, problem.theta_star, 0.001, H)
    np.testing.assert_allclose(local.error[0, -1], bias @ bias, rtol=1e-9)


def test_fed_hsa_diverges_where_the_contraction_says_so():
    problem = fh.problems.quadratic.from_arrays(A=[[[0.1]], [[1.0]]], b=[[1.0], [-1.0]])
    A, _ = problem.affine_parts()
    for H, expected in ((5, 0.11), (10, -0.38), (20, -1.04)):
        assert naive.fed_hsa_contraction(A, 0.5, H)[0, 0] == pytest.approx(expected, abs=0.005)
    stable = fh.simulate(problem.noiseless(), fh.FedHSA(0.5, 10), rounds=2000, every=2000, theta=np.ones(1))
    unstable = fh.simulate(problem.noiseless(), fh.FedHSA(0.5, 20), rounds=2000, every=2000, theta=np.ones(1))
    assert stable.error[0, -1] < 1e-20
    assert unstable.status[0] == "diverged"

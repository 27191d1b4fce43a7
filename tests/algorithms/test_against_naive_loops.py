import numpy as np
import pytest

import fedhsa as fh
import naive
from cases import CASES

METHODS = {"FedHSA": (fh.FedHSA, naive.fed_hsa), "LocalSA": (fh.LocalSA, naive.local_sa)}


@pytest.mark.parametrize(
    ("method", "case"),
    [
        ("FedHSA", "td"),
        ("LocalSA", "quadratic"),
        # The table of methods has each of them on its own observations, so that the others are slow tests here.
        *(pytest.param("FedHSA", case, marks=pytest.mark.slow) for case in CASES if case != "td"),
        *(pytest.param("LocalSA", case, marks=pytest.mark.slow) for case in CASES if case != "quadratic"),
    ],
)
@pytest.mark.parametrize(
    ("M", "H", "server_step"),
    [(3, 7, 1.3), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1, 3, 1.0), (5, 1, 0.7)))],
)
def test_the_engine_equals_a_loop_written_from_the_paper(method, case, M, H, server_step):
    problem, G, record = CASES[case](M)
    rounds = 12
    replayed, listed = record(rounds * H, np.random.default_rng(1))
    theta = np.linspace(-1, 1, problem.dim)
    algorithm, loop = METHODS[method]
    expected = loop(G, listed, theta, step_size=0.03, local_steps=H, server_step=server_step, rounds=rounds)
    result = fh.simulate(
        problem.replay(replayed),
        algorithm(0.03, H, server_step),
        rounds=rounds,
        theta=theta,
        record=("theta",),
    )
    np.testing.assert_allclose(result.records["theta"][0], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(result.error[0], ((expected - problem.theta_star) ** 2).sum(1), rtol=1e-11, atol=1e-26)


@pytest.mark.slow
def test_a_schedule_gives_the_step_of_each_round_and_block():
    problem, G, record = CASES["quadratic"](2)
    schedule = fh.PerBlock((fh.Polynomial(scale=0.2, offset=4.0, power=0.75), 0.03), (3, 1))
    replayed, listed = record(30, np.random.default_rng(2))
    theta = np.ones(problem.dim)
    for t in range(10):
        eta = np.array([*[0.2 / (t + 4.0) ** 0.75] * 3, 0.03])
        piece = [row[3 * t : 3 * t + 3] for row in listed]
        theta = naive.fed_hsa(G, piece, theta, step_size=eta, local_steps=3, server_step=1.0, rounds=1)[-1]
    result = fh.simulate(problem.replay(replayed), fh.FedHSA(schedule, 3), rounds=10, theta=np.ones(problem.dim))
    np.testing.assert_allclose(result.theta[0], theta, rtol=1e-12)


def test_two_scalar_agents_by_hand():
    # G_1 = 1 - theta, G_2 = -3 theta, eta = 0.1, H = 2, theta = 1: g = (0, -3), g_bar = -1.5; both agents step to 0.85,
    # then 0.85 + 0.1 (0.15 - 1.5 - 0) = 0.715 and 0.85 + 0.1 (-2.55 - 1.5 + 3) = 0.745; mean 0.73.
    problem = fh.problems.quadratic.from_arrays(A=[[[1.0]], [[3.0]]], b=[[1.0], [0.0]])
    hsa = fh.simulate(problem, fh.FedHSA(0.1, 2), rounds=1, theta=np.ones(1))
    assert hsa.theta[0, 0] == pytest.approx(0.73, rel=1e-14)
    # Local SA: 1 -> 1 -> 1 and 1 -> 0.7 -> 0.49; mean 0.745.
    local = fh.simulate(problem, fh.LocalSA(0.1, 2), rounds=1, theta=np.ones(1))
    assert local.theta[0, 0] == pytest.approx(0.745, rel=1e-14)

from typing import Any, NamedTuple

import numpy as np
import pytest

import fedhsa as fh
import naive
from cases import CASES
from fedhsa import tree
from fedhsa.problems import quadratic
from fedhsa.sources import Transition
from fedhsa.theory import exact
from fedhsa.theory.laws.law import federation_of
from fedhsa.theory.laws.levels import EachSiteLaw, EverySiteLaw, LinearLaw

AFFINE = [name for name, case in CASES.items() if case().problem.affine]
SEEDS = 200


def standard_errors(problem, algorithm, rounds, at, *, theta=None, seeds=SEEDS, key=11):
    """How many standard errors the simulated mean-square error lies from the exact law, at the given rounds."""
    every = np.gcd.reduce(at)
    run = fh.simulate(problem, algorithm, rounds=rounds, seeds=seeds, key=key, every=int(every), theta=theta)
    simulated = run.error[:, np.array(at) // every]
    law = exact.mean_square_error(problem, algorithm, rounds=rounds, theta=theta)[at]
    return (simulated.mean(0) - law) / (simulated.std(0, ddof=1) / np.sqrt(seeds))


@pytest.mark.parametrize("case", AFFINE)
def test_round_maps_are_the_closed_forms(case):
    problem = CASES[case]().problem
    A, b = problem.affine_parts()
    eta, H, server_step = 0.04, 5, 0.8
    hsa = exact.round_map(problem, fh.FedHSA(eta, H, server_step))
    np.testing.assert_allclose(hsa.transition, naive.fed_hsa_contraction(A, eta, H, server_step), atol=1e-13)
    np.testing.assert_allclose(hsa.offset, 0, atol=1e-13)
    local = exact.round_map(problem, fh.LocalSA(eta, H, server_step))
    F = np.eye(problem.dim) + eta * A
    mean_power = np.mean([np.linalg.matrix_power(f, H) for f in F], axis=0)
    expected = np.eye(problem.dim) + server_step * (mean_power - np.eye(problem.dim))
    np.testing.assert_allclose(local.transition, expected, atol=1e-13)
    bias = naive.local_sa_bias(A, b, problem.theta_star, eta, H)
    np.testing.assert_allclose(
        exact.limit(problem, fh.LocalSA(eta, H, server_step)), problem.theta_star + bias, rtol=1e-9
    )


@pytest.mark.parametrize("algorithm", [fh.FedHSA(0.05, 4, 0.7), fh.LocalSA(0.05, 4), fh.SynchronisedSA(0.1)], ids=str)
@pytest.mark.parametrize("start", ["zero", "stationary"])
def test_the_laws_of_additive_noise_equal_that_of_the_whole_joint_system(algorithm, start):
    """Against dense covariances of (e, z_1, ..., z_M), the map made by running the naive loop on unit vectors."""
    problem = quadratic.random(2, 2, start=start, key=3)
    A, b, source = problem.agents.A, problem.agents.b, problem.agents.source
    M, d, H = 2, 2, algorithm.block_length
    eta, server_step = algorithm.step_size, getattr(algorithm, "server_step", 1.0)
    loop = naive.fed_hsa if isinstance(algorithm, fh.FedHSA) else naive.local_sa

    def G(i, theta, z):
        return -(A[i] @ theta - b[i]) + z

    def step(x, eps):
        """One round of the joint state, with all the fresh noise given, shape (M, H, d)."""
        theta, z = x[:d] + problem.theta_star, x[d:].reshape(M, d)
        blocks = np.zeros((M, H, d))
        for i in range(M):
            for k in range(H):
                blocks[i, k] = z[i]
                z[i] = source.transition[i] @ z[i] + eps[i, k]
        new = loop(G, blocks, theta, step_size=eta, local_steps=H, server_step=server_step, rounds=1)[-1]
        return np.concatenate([new - problem.theta_star, z.ravel()])

    n = d + M * d
    offset = step(np.zeros(n), np.zeros((M, H, d)))
    F = np.stack([step(e, np.zeros((M, H, d))) - offset for e in np.eye(n)], axis=1)
    unit = np.eye(M * H * d).reshape(-1, M, H, d)
    B = np.stack([step(np.zeros(n), u) - offset for u in unit], axis=1) * source.noise_std[0]
    mean, S = np.concatenate([-problem.theta_star, np.zeros(M * d)]), np.zeros((n, n))
    if start == "stationary":
        for i in range(M):
            place = slice(d + i * d, d + (i + 1) * d)
            S[place, place] = source.covariance[i]
    expected = [mean[:d] @ mean[:d]]
    for _ in range(400):
        mean, S = F @ mean + offset, F @ S @ F.T + B @ B.T
        expected.append(mean[:d] @ mean[:d] + np.trace(S[:d, :d]))
    federation, radius = federation_of(problem, algorithm), abs(np.linalg.eigvals(F[:d, :d])).max()
    for law in (LinearLaw(federation), EverySiteLaw(federation), EachSiteLaw(federation)):
        np.testing.assert_allclose(law.errors(-problem.theta_star, 400), expected, rtol=1e-9)
        np.testing.assert_allclose(law.stationary().square, expected[-1], rtol=1e-9)
        assert law.mean_radius() == pytest.approx(radius, rel=1e-9)
        assert law.mean_square_radius() == (pytest.approx(radius**2, rel=1e-9), "exact", None)
        assert (law.basis, law.left_out) == ("exact", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", [fh.FedHSA, fh.LocalSA])
def test_simulation_agrees_with_the_law_on_the_papers_quadratic(method):
    """200 seeds, rounds 1, 10, 50 and the last: within 4 standard errors."""
    problem = quadratic.random(20, 10, key=0)
    assert abs(standard_errors(problem, method(0.01, 10), 100, [1, 10, 50, 100])).max() < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("M", "H", "step_size", "server_step"),
    [(1, 10, 0.02, 1.0), (5, 1, 0.1, 1.0), (5, 20, 0.03, 0.5), (20, 5, 0.05, 1.3)],
)
@pytest.mark.parametrize("method", [fh.FedHSA, fh.LocalSA])
def test_simulation_agrees_with_the_law_at_many_settings(method, M, H, step_size, server_step):
    """1000 seeds, 50 rounds of them: within 4 standard errors."""
    problem, at = quadratic.random(M, 4, key=6), list(range(2, 102, 2))
    assert abs(standard_errors(problem, method(step_size, H, server_step), 100, at, seeds=1000)).max() < 4


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fh.FedHSA(0.05, 4, 0.7), fh.LocalSA(0.05, 4)], ids=str)
def test_the_stationary_solve_is_the_limit_of_the_iterated_law(algorithm):
    problem = quadratic.random(5, 3, key=2)
    law = exact.mean_square_error(problem, algorithm, rounds=1500)
    assert exact.floor(problem, algorithm) == pytest.approx(law[-1], rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("M", [1, 5, 20, 100])
def test_floors_over_nested_problems_agree_with_the_law(M):
    """200 seeds at the floor of FedHSA, reached from the root: within 4 standard errors at each number of agents."""
    problem, algorithm = quadratic.random(M, 5, key=2), fh.FedHSA(0.01, 10)
    root = problem.theta_star
    law = exact.mean_square_error(problem, algorithm, rounds=80, theta=root)
    assert law[-1] == pytest.approx(exact.floor(problem, algorithm), rel=1e-3)
    assert abs(standard_errors(problem, algorithm, 80, [80], theta=root)).max() < 4


@pytest.mark.parametrize("method", [fh.FedHSA, fh.LocalSA])
def test_for_equal_agents_the_floor_times_their_number_is_constant(method):
    agents = (1, 5, 20, 100)
    floors = [M * exact.floor(quadratic.random(M, 5, heterogeneity=0.0, key=2), method(0.01, 10)) for M in agents]
    np.testing.assert_allclose(floors, floors[0], rtol=1e-6)


def test_a_diverging_method_has_no_limit_and_no_floor():
    problem = quadratic.from_arrays(A=[[[0.1]], [[1.0]]], b=[[1.0], [1.0]], noise_std=0.1)
    for law in (exact.limit, exact.floor):
        with pytest.raises(ValueError, match=r"FedHSA diverges on this problem \(spectral radius 1.039\)"):
            law(problem, fh.FedHSA(0.5, 20))


def test_what_is_out_of_reach_is_said_so():
    nonlinear, affine = CASES["logistic"]().problem, CASES["td"]().problem
    with pytest.raises(TypeError, match=r"Exact laws require operators.*LogisticAgent is not declared affine"):
        exact.limit(nonlinear, fh.FedHSA(0.1, 2))
    with pytest.raises(TypeError, match=r"The exact law of 3 agents in 4 dimensions on this problem would take long"):
        exact.mean_square_error(affine, fh.FedHSA(0.1, 2), rounds=3)
    with pytest.raises(TypeError, match=r"no exact law for TDAgent observing Replay"):
        exact.floor(affine.replay(Transition(np.zeros((3, 4), int), np.zeros((3, 4), int))), fh.FedHSA(0.1, 2))
    with pytest.raises(TypeError, match=r"require a constant step size, got a schedule"):
        exact.limit(affine, fh.FedHSA(fh.Polynomial(1.0), 2))


class State(NamedTuple):
    theta: Any
    velocity: Any


def test_a_method_with_memory_has_no_map_of_its_parameter_alone():
    class Momentum(fh.AbstractAlgorithm):
        step_size: float

        @property
        def block_length(self):
            return 1

        def init(self, theta):
            return State(theta, theta * 0), ()

        @property
        def exchanges(self):
            def move(server, replies, round):
                velocity = 0.5 * server.velocity + replies.mean()
                return State(server.theta + self.step_size * velocity, velocity)

            def local(theta, memory, agent, block, round):
                return agent.operator(theta, tree.take(block, 0)), memory

            return (fh.Exchange("operator", lambda server, round: server.theta, local, move),)

    with pytest.raises(TypeError, match=r"Momentum carries more than theta from round to round.*joint_map"):
        exact.round_map(CASES["quadratic"]().problem, Momentum(0.1))


@pytest.mark.parametrize("start", ["zero", "stationary"])
def test_the_covariance_is_symmetric_and_starts_with_that_of_the_noise(start):
    """One local step of two agents: after a round cov(e) = eta^2 / M^2 (Z_1 + Z_2), or nothing."""
    problem = fh.problems.quadratic.random(num_agents=2, dim=2, start=start)
    first, *_, last = list(exact.law(problem, fh.FedHSA(0.1, 1)).path(np.ones(2), 3))[1:]
    expected = 0.1**2 / 4 * problem.agents.source.covariance.sum(0) * (start == "stationary")
    np.testing.assert_allclose(first.covariance, expected, atol=1e-15)
    np.testing.assert_allclose(last.covariance, last.covariance.T, atol=1e-15)
    assert abs(last.covariance[0, 1]) > 1e-6

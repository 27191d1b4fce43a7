import functools
import json
import subprocess
import sys
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import fedhsa as fh
from cases import CASES
from fedhsa.problems import AbstractAgent, Problem, logistic, quadratic, td
from fedhsa.sources import AbstractSource, FiniteChain
from fedhsa.theory import Constants, constants
from fedhsa.theory.paper import extremes

MARKOV = ("td", "finite-sum")


def outcomes(problem):
    source = problem.agents.source
    if isinstance(source, FiniteChain):
        return range(source.stationary.shape[-1])
    S = source.chain.stationary.shape[-1]
    return [(s, t) for s in range(S) for t in range(S)]


@functools.cache
def of(name):
    return constants(CASES[name]().problem)


@pytest.fixture(scope="module", params=MARKOV)
def case(request):
    return CASES[request.param](), of(request.param)


def test_no_pair_of_points_is_steeper_than_l_and_some_direction_is_as_steep(case):
    """Brute force with the operators written again in NumPy: 20 random pairs, and the axes of steepest ascent."""
    (problem, G, _), c = case
    rng = np.random.default_rng(0)
    for i in range(problem.num_agents):
        steepest = 0.0
        for o in outcomes(problem):
            pairs = rng.normal(size=(20, 2, problem.dim))
            slopes = [np.linalg.norm(G(i, x, o) - G(i, y, o)) / np.linalg.norm(x - y) for x, y in pairs]
            assert max(slopes) <= c.lipschitz[i] * (1 + 1e-12)
            matrix = np.stack([G(i, e, o) - G(i, 0 * e, o) for e in np.eye(problem.dim)], axis=1)
            steepest = max(steepest, np.linalg.norm(matrix, 2))
        assert c.lipschitz[i] == pytest.approx(steepest, rel=1e-12)
    assert max(1.0, c.lipschitz.max()) == c.L


def test_sigma_is_the_least_that_bounds_the_operators(case):
    (problem, G, _), c = case
    rng = np.random.default_rng(1)
    for i in range(problem.num_agents):
        for o in outcomes(problem):
            for theta in rng.normal(size=(10, problem.dim)) * 10 ** rng.uniform(-2, 2, size=(10, 1)):
                assert np.linalg.norm(G(i, theta, o)) <= c.L * (np.linalg.norm(theta) + c.sigma_i[i]) * (1 + 1e-12)
        largest = max(np.linalg.norm(G(i, np.zeros(problem.dim), o)) for o in outcomes(problem))
        assert c.sigma_i[i] == pytest.approx(largest / c.L, rel=1e-12)
    assert c.sigma == pytest.approx(max(*c.sigma_i, np.linalg.norm(problem.theta_star), 1), rel=1e-12)


def test_mu_is_the_weakest_pull_of_the_average_operator(case):
    (problem, _, _), c = case
    rng = np.random.default_rng(2)
    A = problem.affine_parts()[0].mean(0)
    for e in rng.normal(size=(200, problem.dim)):
        assert e @ A @ e <= -c.mu * (e @ e) * (1 - 1e-12)
    weakest = np.linalg.eigh(-(A + A.T) / 2)[1][:, 0]
    assert -(weakest @ A @ weakest) == pytest.approx(c.mu, rel=1e-9)


def test_heterogeneity_is_that_of_the_agents_own_matrices(case):
    (problem, _, _), c = case
    A, b = problem.affine_parts()
    for i in range(problem.num_agents):
        root = np.linalg.solve(A[i], b[i])
        assert c.root_distance[i] == pytest.approx(np.linalg.norm(root - problem.theta_star), rel=1e-9)
        assert c.operator_at_root[i] == pytest.approx(np.linalg.norm(A[i] @ problem.theta_star - b[i]), rel=1e-9)
        assert c.operator_spread[i] == pytest.approx(np.linalg.svd(A[i] - A.mean(0))[1][0], rel=1e-9)


def test_mixing_is_that_of_what_is_observed():
    """States for a finite sum, pairs of states, one step later, for TD."""
    for name, later in (("finite-sum", 0), ("td", 1)):
        c, source = of(name), CASES[name]().problem.agents.source
        P = getattr(source, "chain", source).transition
        pair, times = fh.theory.mixing.geometric(P), fh.theory.mixing.mixing_time(P)
        np.testing.assert_array_equal(c.mixing_times, times + later)
        np.testing.assert_allclose(c.geometric.rho, pair.rho)
        np.testing.assert_allclose(c.geometric.c, pair.c / pair.rho**later)
        slowest = max(range(3), key=lambda i: (c.mixing_times[i], c.geometric.rho[i]))
        assert c.slowest_agent == slowest
        assert c.tau(1e-4) == max(c.tau_i(1e-4))
        assert c.rho == c.geometric.rho.max()


def test_independent_observations_mix_at_once_and_keep_the_other_constants():
    problem = CASES["finite-sum"]().problem
    markov, independent = of("finite-sum"), constants(problem.iid())
    assert independent.sampling == "independent"
    assert independent.mixing_times.tolist() == [1, 1, 1]
    assert (independent.L, independent.mu, independent.sigma) == (markov.L, markov.mu, markov.sigma)


def test_transitions_that_never_happen_do_not_count():
    """Features 1, -10 and 10: the steepest transitions, -10 to 10 and back, never happen and must not decide L."""
    P = np.array([[[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]])
    features, gamma = np.array([[[1.0], [-10.0], [10.0]]]), 0.5
    c = constants(td.from_arrays(P, np.ones((1, 3)), features, gamma))
    phi = features[0, :, 0]
    possible = [abs(phi[s] * (gamma * phi[t] - phi[s])) for s in range(3) for t in range(3) if P[0, s, t] > 0]
    assert c.lipschitz[0] == pytest.approx(max(possible)) == pytest.approx(105)


def test_pruned_norms_are_the_norms():
    rng = np.random.default_rng(3)
    for shape in ((40, 5, 5), (10, 3, 3), (1, 1, 1)):
        matrices = rng.normal(size=shape) * 10 ** rng.uniform(-3, 0, size=(shape[0], 1, 1))
        assert extremes.largest_norm(matrices) == pytest.approx(np.linalg.norm(matrices, 2, axis=(1, 2)).max())
    assert extremes.largest_norm(np.ones((2, 1, 1)), best=5.0) == 5.0


def test_chunks_and_the_shortcut_change_nothing(monkeypatch):
    """TD without its formula, a few numbers at a time, against TD as it is."""

    class Plain(AbstractAgent):
        source: AbstractSource
        agent: td.TDAgent

        affine: ClassVar[bool] = True

        def operator(self, theta, o, /):
            return self.agent.operator(theta, o)

        def mean_operator(self, theta, /):
            return self.agent.mean_operator(theta)

    problem = CASES["td"]().problem
    plain = Problem(Plain(problem.agents.source, problem.agents), like=np.zeros(problem.dim))
    expected = of("td").lipschitz
    monkeypatch.setattr(extremes, "CHUNK", 16 * 17)
    every = extremes.observations(plain)
    np.testing.assert_allclose(extremes.extremes(plain, every).lipschitz, expected, rtol=1e-12)


def test_equal_agents_have_no_heterogeneity():
    c = constants(quadratic.random(3, 4, heterogeneity=0.0))
    for spread in (c.root_distance, c.operator_at_root, c.operator_spread):
        np.testing.assert_allclose(spread, 0, atol=1e-12)


def test_autoregressive_noise_has_covariances_instead_of_bounds():
    problem = CASES["quadratic"]().problem
    c, Q = of("quadratic"), problem.agents.source.transition
    assert pytest.approx(np.linalg.norm(problem.agents.A, 2, axis=(1, 2)).max()) == c.L
    assert c.sigma == np.inf
    assert np.isnan(c.rho)
    assert c.slowest_agent is None
    assert c.noise
    np.testing.assert_allclose(c.noise.spectral_radius, 1 / 1.2)
    series = 0.01 * np.eye(4)[None] * np.ones((3, 1, 1))  # sum of Q^k s^2 Q^kT, and of all lags of it
    covariance = sum(
        np.linalg.matrix_power(Q, k) @ series @ np.swapaxes(np.linalg.matrix_power(Q, k), 1, 2) for k in range(300)
    )
    lags = sum(np.linalg.matrix_power(Q, k) @ covariance for k in range(1, 300))
    np.testing.assert_allclose(c.noise.covariance, covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(c.noise.long_run, covariance + lags + np.swapaxes(lags, 1, 2), rtol=1e-9, atol=1e-12)
    assert any("Gaussian" in note for note in c.notes)


def test_an_agent_that_is_not_monotone_alone_has_no_root_and_is_named():
    problem = quadratic.from_arrays(A=[[[0.0]], [[2.0]]], b=[[1.0], [1.0]])
    c = constants(problem)
    assert np.isnan(c.root_distance[0])
    assert "Agents without a unique root: 1; the first is agent 0." in c.notes


class Tanh(AbstractAgent):
    """G(theta, o) = v_o - theta - tanh(theta) s_o: slopes between 1 and 1 + s_o."""

    source: AbstractSource
    values: np.ndarray
    slopes: np.ndarray

    def operator(self, theta, o, /):
        return self.values[o] - theta - self.slopes[o] * jnp.tanh(theta)


class KnownTanh(AbstractAgent):
    source: AbstractSource
    agent: Tanh

    def operator(self, theta, o, /):
        return self.agent.operator(theta, o)

    def lipschitz(self, o, /):
        return 1 + self.agent.slopes[o]


@functools.cache
def tanh(num_agents=2, known=False):
    chain = FiniteChain([[[0.9, 0.1], [0.2, 0.8]]] * num_agents)
    agent = Tanh(chain, np.array([[0.1, -0.2]] * num_agents), np.array([[0.5, 2.0]] * num_agents))
    return Problem(KnownTanh(chain, agent) if known else agent, like=0.0, theta_star=0.0)


def test_sampled_constants_are_bounds_on_their_honest_side():
    """The slopes of tanh are known: L = 3 at 0, and the pull at infinity is 1."""
    c = constants(tanh(), points=100, key=5)
    assert c.L_interval
    assert c.mu_interval
    assert c.L_interval[0] <= 3 <= c.L_interval[1]
    assert c.mu_interval[0] <= 1 <= c.mu_interval[1]
    assert (c.L, c.mu) == (c.L_interval[0], c.mu_interval[1])
    assert pytest.approx(3, rel=0.02) == c.L
    assert "lower bound" in c.notes[0]
    assert c.root_distance == pytest.approx([0, 0], abs=1e-9)


def test_an_agent_may_say_how_steep_it_is():
    c = constants(tanh(known=True))
    assert c.lipschitz.tolist() == [3, 3]
    assert c.L_interval is None
    assert c.mu_interval is not None


@pytest.mark.slow
def test_logistic_constants_enclose_what_calculus_says():
    r"""$L = \max |x|^2 / 4 + \lambda$, and the pull falls to $\lambda = 0.1$ far out."""
    problem = logistic.random(3, 6, 4)
    c, exact = constants(problem, points=300), (problem.agents.inputs**2).sum(-1).max(1) / 4 + 0.1
    assert c.L_interval
    assert c.mu_interval
    assert (c.lipschitz <= exact * (1 + 1e-9)).all()
    assert c.L_interval[0] <= exact.max() <= c.L_interval[1]
    assert 0.1 <= c.mu_interval[1] == c.mu <= 0.15  # an upper bound: infinity is out of reach of any sample
    np.testing.assert_allclose(
        c.root_distance, np.linalg.norm(problem.local_roots - problem.theta_star, axis=1), rtol=1e-6
    )


def test_recorded_and_silent_observations_are_looked_at_as_they_are():
    case = CASES["finite-sum"]()
    replayed, _ = case.record(50, np.random.default_rng(0))
    recorded = constants(case.problem.replay(replayed))
    assert recorded.sampling == "recorded"
    assert pytest.approx(of("finite-sum").L) == recorded.L
    assert np.isnan(recorded.rho)
    silent = constants(case.problem.noiseless())
    assert silent.sampling == "none"
    assert silent.lipschitz == pytest.approx(np.linalg.norm(case.problem.affine_parts()[0], 2, axis=(1, 2)))


def test_constants_print_and_become_json(case):
    _, c = case
    text = str(c)
    for word in ("L ", "mu ", "sigma ", "rho ", "t_mix ", f"agent {c.slowest_agent}"):
        assert word in text
    back = json.loads(json.dumps(c.to_dict(), allow_nan=False))
    assert back["L"] == c.L
    assert back["geometric"]["rho"] == list(c.geometric.rho)
    assert set(back) >= {field for field in Constants.__dataclass_fields__}


def test_what_has_no_number_is_null_or_inf_in_json():
    back = json.loads(json.dumps(of("quadratic").to_dict(), allow_nan=False))
    assert back["sigma"] == "infinity"
    assert back["rho"] is None


def test_too_few_points_are_refused():
    with pytest.raises(ValueError, match=r"`points` must be at least 2, got 1. An interval requires two points"):
        constants(CASES["quadratic"]().problem, points=1)


@pytest.mark.slow
def test_the_lipschitz_constant_of_the_papers_td_problem_is_that_of_its_steepest_pair_of_states():
    """The matrix of a transition is phi(s) (gamma phi(t) - phi(s))^T, whose norm is that of the two factors."""
    problem = td.random()
    agents = problem.agents
    steepest = 0.0
    for phi, gamma in zip(agents.features, agents.discount, strict=True):
        ahead = np.linalg.norm(gamma * phi[None] - phi[:, None], axis=-1)
        steepest = max(steepest, (np.linalg.norm(phi, axis=1)[:, None] * ahead).max())
    assert pytest.approx(steepest, rel=1e-12) == constants(problem).L


@pytest.mark.slow
def test_a_thousand_agents_fit_in_two_gigabytes():
    """The peak is that of the new program: `ru_maxrss` contains the memory of the process that started it."""
    code = """
import fedhsa as fh
fh.theory.constants(fh.problems.td.random(1000, 120, 40))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200, check=True)
    assert int(done.stdout) < 2e6

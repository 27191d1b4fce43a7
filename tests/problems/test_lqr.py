"""Linear systems against quadrature, Lyapunov's equation and samples."""

import itertools

import jax
import numpy as np
import pytest
from scipy.linalg import solve_discrete_are, solve_discrete_lyapunov

import fedhsa as fh
import naive
from fedhsa import theory, tree
from fedhsa.problems import lqr
from fedhsa.sources import Transition
from fedhsa.sources.linear import LinearGaussian


def products(s):
    """s_j s_k for j <= k, row by row, and a 1, by loops."""
    return np.array([s[j] * s[k] for j in range(len(s)) for k in range(j, len(s))] + [1.0])


def G(problem, i, theta, s, s_next):
    """TD(0) for one agent, from its definition."""
    agents = problem.agents
    cost = sum(agents.cost[i][j, k] * s[j] * s[k] for j, k in itertools.product(range(len(s)), repeat=2))
    error = cost + agents.discount[i] * products(s_next) @ theta - products(s) @ theta
    return error * products(s)


def recorded(problem, length, rng):
    """Trajectories `(M, length + 1, n)` from the stationary laws, in NumPy."""
    paths = []
    for F, W, S in zip(
        *(getattr(problem.agents.source, n) for n in ("transition", "noise", "covariance")), strict=True
    ):
        path, root = [np.linalg.cholesky(S) @ rng.normal(size=len(F))], np.linalg.cholesky(W)
        for _ in range(length):
            path.append(F @ path[-1] + root @ rng.normal(size=len(F)))
        paths.append(path)
    return np.array(paths)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_root_of_one_agent_is_the_solution_of_the_lyapunov_equation(dim):
    problem = lqr.random(3, dim)
    agents = problem.agents
    for i, root in enumerate(problem.local_roots):
        F, W, gamma = agents.source.transition[i], agents.source.noise[i], agents.discount[i]
        X = solve_discrete_lyapunov(np.sqrt(gamma) * F.T, agents.cost[i])
        found = lqr.value(root)
        np.testing.assert_allclose(found.X, X, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.c, gamma * np.trace(X @ W) / (1 - gamma), rtol=1e-9)
    assert abs(problem.mean_operator(problem.theta_star)).max() < 1e-10


@pytest.mark.parametrize("dim", [1, 2])
def test_mean_operators_are_gauss_hermite_sums(dim):
    """The operator is a polynomial of degree 6 in (s, w), which 6 nodes for each of the 2 n directions integrate."""
    problem = lqr.random(2, dim)
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    weights = weights / weights.sum()
    theta = np.linspace(-1, 2, problem.dim)
    for i, mean in enumerate(problem.mean_operators(theta)):
        source = tree.take(problem.agents.source, i)
        root, shake = np.linalg.cholesky(source.covariance), np.linalg.cholesky(source.noise)
        expected = np.zeros(problem.dim)
        for picks in itertools.product(range(6), repeat=2 * dim):
            unit = nodes[list(picks)]
            s = root @ unit[:dim]
            expected += weights[list(picks)].prod() * G(
                problem, i, theta, s, source.transition @ s + shake @ unit[dim:]
            )
        np.testing.assert_allclose(mean, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_mean_operators_are_what_the_source_gives_on_average():
    """100,000 independent pairs from the package's own source, within 4 standard errors in every entry."""
    problem = lqr.random(2, 2)
    theta, draws = np.linspace(-1, 2, problem.dim), 100_000
    with jax.enable_x64(True):
        agents = tree.to_device(problem.iid().agents, "float64")
        for i, mean in enumerate(problem.mean_operators(theta)):
            agent = tree.take(agents, i)
            keys = jax.random.split(jax.random.key(i), draws)
            _, pairs = agent.source.draw(keys, ())
            values = np.asarray(jax.vmap(lambda o, agent=agent: agent.operator(theta, o))(pairs))
            away = abs(values.mean(0) - mean) / (values.std(0) / np.sqrt(draws))
            assert away.max() < 4
            # and the noise is not so large that anything would do
            assert (values.std(0) / np.sqrt(draws) < 0.02 * (1 + abs(mean))).all()


@pytest.mark.parametrize("algorithm", ["fed_hsa", "local_sa"])
def test_runs_equal_a_loop_written_from_the_definition(algorithm):
    problem = lqr.random(3, 2)
    paths = recorded(problem, 20, np.random.default_rng(1))
    pairs = [list(itertools.pairwise(path)) for path in paths]
    theta = np.linspace(-1, 2, problem.dim)
    options = {"step_size": 0.1, "local_steps": 4, "server_step": 1.0}
    expected = getattr(naive, algorithm)(
        lambda i, theta, o: G(problem, i, theta, *o), pairs, theta, rounds=5, **options
    )
    method = {"fed_hsa": fh.FedHSA, "local_sa": fh.LocalSA}[algorithm](**options)
    replayed = problem.replay(Transition(paths[:, :-1], paths[:, 1:]))
    result = fh.simulate(replayed, method, rounds=5, theta=theta, record=("theta",))
    np.testing.assert_allclose(result.records["theta"][0], expected, rtol=1e-12)


def test_the_source_moves_and_spreads_as_it_says():
    """Over 40,000 stationary pairs: each second moment within 4 standard errors."""
    source = LinearGaussian([[0.5, 0.3], [-0.2, 0.7]], [[1.0, 0.4], [0.4, 0.3]])
    F, S = source.transition, source.covariance
    np.testing.assert_allclose(S, F @ S @ F.T + source.noise, rtol=1e-12)
    with jax.enable_x64(True):
        device = tree.to_device(source, "float64")
        keys = jax.random.split(jax.random.key(0), 40_000)
        _, pairs = jax.vmap(lambda key: device.step(jax.random.fold_in(key, 1), device.sample(key)))(keys)
    s, s_next = np.asarray(pairs.state), np.asarray(pairs.next_state)
    for left, right, expected in ((s, s, S), (s_next, s_next, S), (s_next, s, F @ S)):
        seen = left[:, :, None] * right[:, None, :]
        assert (abs(seen.mean(0) - expected) < 4 * seen.std(0) / 200).all()


@pytest.mark.slow
def test_a_block_of_the_source_is_its_steps_and_one_path():
    source = LinearGaussian([[0.5, 0.3], [-0.2, 0.7]], np.eye(2))
    with jax.enable_x64(True):
        source = tree.to_device(source, "float64")
        keys = jax.random.split(jax.random.key(0), 5)
        state = source.init(jax.random.key(1))
        last, block = source.draw(keys, state)
        for t, key in enumerate(keys):
            state, pair = source.step(key, state)
            np.testing.assert_allclose(pair.next_state, block.next_state[t], rtol=1e-13)  # another program
    np.testing.assert_array_equal(block.state[1:], block.next_state[:-1])
    np.testing.assert_array_equal(last, block.next_state[-1])


def test_noise_that_enters_one_state_reaches_the_others():
    problem = lqr.from_arrays([[[0.5, 0.4], [0.0, 0.6]]], [[[0.0, 0.0], [0.0, 1.0]]], [np.eye(2)], 0.9)
    X = solve_discrete_lyapunov(np.sqrt(0.9) * np.array([[0.5, 0.0], [0.4, 0.6]]), np.eye(2))
    np.testing.assert_allclose(lqr.value(problem.theta_star).X, X, rtol=1e-9)


def test_the_regulator_is_the_best_gain():
    """The Riccati solution is the value without discount, and no other gain has a lower one."""
    rng = np.random.default_rng(3)
    F, B = rng.normal(size=(3, 3)), rng.normal(size=(3, 1))
    best = lqr.regulate(F, B, np.eye(3), [[2.0]])
    X = solve_discrete_are(F, B, np.eye(3), [[2.0]])
    np.testing.assert_allclose(solve_discrete_lyapunov(best.transition.T, best.cost), X, rtol=1e-8)
    K = np.linalg.solve(2.0 + B.T @ X @ B, B.T @ X @ F)
    for _ in range(5):
        other = lqr.regulate(F, B, np.eye(3), [[2.0]], gain=K + 0.01 * rng.normal(size=(1, 3)))
        worse = solve_discrete_lyapunov(other.transition.T, other.cost)
        assert np.linalg.eigvalsh(worse - X)[-1] > 0
        assert np.trace(worse) > np.trace(X)


def test_local_steps_shift_local_sa_by_the_closed_form_and_fed_hsa_not_at_all():
    problem = lqr.random(4, 2)
    A, b = problem.affine_parts()
    eta, H = 0.3, 10
    expected = naive.local_sa_bias(A, b, problem.theta_star, eta, H)
    assert np.linalg.norm(expected) > 0.05
    quiet = problem.noiseless()
    local = fh.simulate(quiet, fh.LocalSA(eta, H), rounds=400).theta[0]
    np.testing.assert_allclose(local - problem.theta_star, expected, rtol=1e-6)
    assert fh.simulate(quiet, fh.FedHSA(eta, H), rounds=400).error[0, -1] < 1e-12


@pytest.mark.slow
def test_the_prediction_from_samples_is_what_runs_do():
    """The mean over 32 seeds of the settled error within 4 standard errors and a tenth: the floor is to first order.

    It is also in the interval, which includes what is of higher order.
    """
    problem, algorithm = lqr.random(6, 2), fh.FedHSA(0.01, 10)
    with pytest.warns(theory.PredictionWarning, match="which its interval includes"):
        prediction = theory.predict(problem, algorithm)
    assert (prediction.stable, prediction.basis) == (True, "samples")
    errors = fh.simulate(problem, algorithm, rounds=3000, seeds=32, theta=problem.theta_star, every=10).error
    settled = errors[:, 150:].mean(1)
    assert prediction.interval is not None
    error, (low, high) = 4 * settled.std(ddof=1) / np.sqrt(32), prediction.interval
    assert abs(settled.mean() - prediction.floor) < error + 0.1 * prediction.floor
    assert low - error < settled.mean() < high + error


def test_more_agents_extend_the_problem_and_heterogeneity_zero_makes_them_equal():
    few, many = lqr.random(2, 2), lqr.random(3, 2)
    np.testing.assert_array_equal(many.agents.A[:2], few.agents.A)
    np.testing.assert_array_equal(many.agents.source.noise[:2], few.agents.source.noise)
    assert not np.allclose(few.theta_star, many.theta_star)
    equal = lqr.random(3, 2, heterogeneity=0.0)
    for arrays in (equal.agents.A, equal.agents.b, equal.agents.source.transition, equal.agents.source.noise):
        np.testing.assert_allclose(arrays, arrays[:1].repeat(3, axis=0), atol=1e-13)
    assert np.ptp(many.mean_operators(np.ones(4)), axis=0).min() > 1e-3


def test_the_drawn_states_have_the_size_asked_for():
    source = lqr.random(5, 3, state_std=0.4, plant_radius=1.3).agents.source
    np.testing.assert_allclose(np.trace(source.covariance, axis1=1, axis2=2) / 3, 0.16)
    assert abs(np.linalg.eigvals(source.transition)).max() < 1


def test_independent_pairs_keep_the_root():
    problem = lqr.random(2, 2)
    np.testing.assert_array_equal(problem.iid().theta_star, problem.theta_star)
    result = fh.simulate(problem.iid(), fh.FedHSA(0.01, 5), rounds=20, seeds=2)
    assert (result.status == "ok").all()


EYE = np.eye(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lqr.from_arrays(EYE, [EYE], [EYE], 0.9), r"`transition` must have shape \(M, n, n\), got \(2, 2\)"),
        (
            lambda: lqr.from_arrays([1.5 * EYE], [EYE], [EYE], 0.9),
            r"`transition` must have a spectral radius below 1, got 1.5 for agent 0.*needs stabilising feedback",
        ),
        (lambda: lqr.from_arrays([EYE / 2], [-EYE], [EYE], 0.9), r"`noise` must be positive semidefinite.*-1"),
        (
            lambda: lqr.from_arrays([EYE / 2], [[[1.0, 0.5], [0.0, 1.0]]], [EYE], 0.9),
            r"`noise` must be a symmetric matrix, but that of agent 0 is not",
        ),
        (lambda: lqr.from_arrays([EYE / 2], [EYE], [EYE], 1.0), r"`discount` must lie in \[0, 1\), got 1.0"),
        (lambda: lqr.from_arrays([EYE / 2], [EYE], [[[1.0, 1.0], [0.0, 1.0]]], 0.9), r"`cost` must be symmetric"),
        (
            lambda: lqr.from_arrays([EYE / 2], [np.diag([1.0, 0.0])], [EYE], 0.9),
            r"noise of agent 0 reaches only 1 of the 2 dimensions of its state",
        ),
        (
            lambda: LinearGaussian(EYE / 2, EYE, start="here"),
            r"`start` must be one of 'zero', 'stationary', got 'here'",
        ),
        (lambda: lqr.value(np.zeros(5)), r"`theta` must have n \(n \+ 1\) / 2 \+ 1 entries"),
        (lambda: lqr.random(2, 2, state_std=0.0), r"`state_std` must be greater than 0.0"),
    ],
)
def test_bad_systems_are_raise_with_a_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()

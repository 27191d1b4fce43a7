"""Games against the players' own slopes and best responses."""

import functools

import numpy as np
import pytest
from scipy import optimize

import fedhsa as fh
import naive
from fedhsa import theory
from fedhsa.problems import games

RANDOM = {"nash": functools.partial(games.random, num_players=3), "saddle": games.random_saddle}
PLAYERS = {"nash": (2, 2, 1), "saddle": (3, 2)}


@pytest.fixture(params=RANDOM)
def kind(request):
    return request.param


def cost(J, z, players, k, theta):
    """What player `k` pays in one state, by its definition: half its own square, and its couplings."""
    ends = np.cumsum(players)
    own = slice(ends[k] - players[k], ends[k])
    others = theta.copy()
    others[own] = 0
    return theta[own] @ J[own, own] @ theta[own] / 2 + theta[own] @ (J[own] @ others + z[own])


def average_cost(problem, players, k, theta):
    """Over the agents and their stationary laws, by loops."""
    agents = problem.agents
    return np.mean(
        [
            sum(p * cost(J, z, players, k, theta) for p, J, z in zip(pi, Js, zs, strict=True))
            for pi, Js, zs in zip(agents.source.stationary, agents.J, agents.z, strict=True)
        ]
    )


def test_operators_are_the_players_own_slopes(kind):
    """Against central differences of each player's cost, exact for quadratics up to rounding."""
    problem, players = RANDOM[kind](2, 5), PLAYERS[kind]
    agent, theta, h = problem.take([1]).agents, np.linspace(-1, 2, 5), 1e-2
    J, z = agent.J[0], agent.z[0]
    belongs = np.repeat(np.arange(len(players)), players)
    seen = fh.simulate(
        problem.take([1]).replay(np.array([[3]])), fh.LocalSA(1.0, local_steps=1), rounds=1, theta=theta
    ).theta[0]
    for entry, k in enumerate(belongs):
        step = h * np.eye(5)[entry]
        slope = cost(J[3], z[3], players, k, theta + step) - cost(J[3], z[3], players, k, theta - step)
        np.testing.assert_allclose(seen[entry] - theta[entry], -slope / (2 * h), rtol=1e-11)


@pytest.mark.parametrize("algorithm", ["fed_hsa", "local_sa"])
def test_runs_equal_a_loop_written_from_the_definition(kind, algorithm):
    problem = RANDOM[kind](3, 5)
    J, z, P = problem.agents.J, problem.agents.z, problem.agents.source.transition
    states = np.stack([naive.chain(kernel, 20, np.random.default_rng(i)) for i, kernel in enumerate(P)])
    theta, options = np.linspace(-1, 2, 5), {"step_size": 0.05, "local_steps": 4, "server_step": 1.0}
    expected = getattr(naive, algorithm)(
        lambda i, theta, s: -(J[i][s] @ theta + z[i][s]), states, theta, rounds=5, **options
    )
    method = {"fed_hsa": fh.FedHSA, "local_sa": fh.LocalSA}[algorithm](**options)
    result = fh.simulate(problem.replay(states), method, rounds=5, theta=theta, record=("theta",))
    np.testing.assert_allclose(result.records["theta"][0], expected, rtol=1e-12, atol=1e-14)


def test_the_saddle_operator_goes_down_in_x_and_up_in_y():
    rng = np.random.default_rng(0)
    A, C = (np.stack([np.diag(rng.uniform(1, 2, size=n)) for _ in range(2)])[None] for n in (2, 1))
    B, p, q = rng.normal(size=(1, 2, 2, 1)), rng.normal(size=(1, 2, 2)), rng.normal(size=(1, 2, 1))
    problem = games.saddle_from_arrays(A, B, C, p, q, [[[0.5, 0.5], [0.1, 0.9]]])
    x, y = np.array([0.3, -1.0]), np.array([2.0])
    expected = sum(
        weight * np.concatenate([-(A[0, s] @ x + B[0, s] @ y + p[0, s]), B[0, s].T @ x - C[0, s] @ y + q[0, s]])
        for s, weight in enumerate((1 / 6, 5 / 6))
    )
    np.testing.assert_allclose(problem.mean_operator(np.concatenate([x, y])), expected, rtol=1e-12)


def test_mean_operators_are_sums_over_the_chain(kind):
    problem = RANDOM[kind](3, 5, laziness=0.4)
    agents, theta = problem.agents, np.linspace(-1, 2, 5)
    for i, mean in enumerate(problem.mean_operators(theta)):
        states = zip(agents.source.stationary[i], agents.J[i], agents.z[i], strict=True)
        expected = -sum(p * (J @ theta + z) for p, J, z in states)
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-14)
    assert abs(problem.mean_operator(problem.theta_star)).max() < 1e-12


def test_the_root_is_a_nash_equilibrium_no_player_gains_by_deviating(kind):
    """Each player's best response to the others, found by SciPy from far away, is what the root says."""
    problem, players = RANDOM[kind](4, 5), PLAYERS[kind]
    ends, root = np.cumsum(players), problem.theta_star
    for k, (end, size) in enumerate(zip(ends, players, strict=True)):
        own = slice(end - size, end)

        def deviating(action, k=k, own=own):
            theta = root.copy()
            theta[own] = action
            return average_cost(problem, players, k, theta)

        best = optimize.minimize(deviating, root[own] + 3, method="BFGS", tol=1e-10)
        np.testing.assert_allclose(best.x, root[own], atol=1e-6)
        assert deviating(root[own]) <= best.fun + 1e-12
        assert deviating(root[own] + 0.1) > deviating(root[own]) + 1e-3


def test_the_saddle_point_is_a_minimum_in_x_and_a_maximum_in_y():
    problem = games.random_saddle(4, 5)
    J, z = -problem.affine_parts()[0].mean(0), problem.affine_parts()[1].mean(0)
    A, B, C, p, q = J[:3, :3], J[:3, 3:], J[3:, 3:], z[:3], -z[3:]
    np.testing.assert_allclose(J[3:, :3], -B.T)

    def f(x, y):
        return x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + p @ x + q @ y

    x, y = problem.theta_star[:3], problem.theta_star[3:]
    for move in np.random.default_rng(0).normal(size=(20, 5)):
        assert f(x, y + move[3:]) < f(x, y) < f(x + move[:3], y)


def test_the_cournot_equilibrium_is_the_textbooks():
    """At the price a - b sum u, n firms with costs c_k make u_k = (a - (n + 1) c_k + sum c) / ((n + 1) b)."""
    a, b, costs = 10.0, 0.5, np.array([1.0, 2.0, 3.0])
    problem = games.from_arrays([[b * (np.eye(3) + 1)]], [[costs - a]], [[[1.0]]])
    expected = (a - 4 * costs + costs.sum()) / (4 * b)
    np.testing.assert_allclose(problem.theta_star, expected, rtol=1e-12)


def test_local_steps_shift_local_sa_by_the_closed_form_and_fed_hsa_not_at_all(kind):
    problem = RANDOM[kind](4, 5)
    A, b = problem.affine_parts()
    expected = naive.local_sa_bias(A, b, problem.theta_star, 0.05, 8)
    assert np.linalg.norm(expected) > 1e-3
    quiet = problem.noiseless()
    local = fh.simulate(quiet, fh.LocalSA(0.05, local_steps=8), rounds=300).theta[0]
    np.testing.assert_allclose(local - problem.theta_star, expected, rtol=1e-8, atol=1e-12)
    assert fh.simulate(quiet, fh.FedHSA(0.05, local_steps=8), rounds=300).error[0, -1] < 1e-20


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fh.FedHSA(0.02, 10), fh.LocalSA(0.02, 10)], ids=["FedHSA", "LocalSA"])
def test_the_prediction_is_what_a_noisy_game_does(kind, algorithm):
    """The mean error over 60 seeds, each averaged over the settled rounds, within 4 standard errors."""
    problem = RANDOM[kind](3, 3, num_states=3, laziness=0.5)
    prediction = theory.predict(problem, algorithm)
    assert prediction.stable
    assert prediction.basis == "exact"
    errors = fh.simulate(problem, algorithm, rounds=300, seeds=60, key=1).error[:, 100:].mean(1)
    assert abs(errors.mean() - prediction.floor) < 4 * errors.std(ddof=1) / np.sqrt(len(errors))


def test_independent_observations_of_a_game_have_an_exact_law(kind):
    prediction = theory.predict(RANDOM[kind](3, 4).iid(), fh.FedHSA(0.02, 5))
    assert prediction.basis == "exact"
    assert 0 < prediction.floor < 0.1


def test_the_drawn_games_are_as_monotone_as_asked_in_every_state(kind):
    def smallest(**options):
        J = RANDOM[kind](3, 5, min_eigenvalue=0.3, **options).agents.J
        return np.linalg.eigvalsh((J + np.swapaxes(J, -1, -2)) / 2)[..., 0]

    np.testing.assert_allclose(smallest(variation=1.0), 0.3)
    assert smallest().min() > 0.3  # a mean of such matrices


def test_variation_zero_leaves_no_noise(kind):
    problem = RANDOM[kind](2, 4, variation=0.0)
    assert np.ptp(problem.agents.J, axis=1).max() == 0
    assert np.ptp(problem.agents.z, axis=1).max() == 0
    assert np.ptp(RANDOM[kind](2, 4).agents.z, axis=1).min() > 1e-3


def test_more_agents_extend_a_game_and_heterogeneity_zero_makes_them_equal(kind):
    few, many = RANDOM[kind](2, 4), RANDOM[kind](3, 4)
    np.testing.assert_array_equal(many.agents.J[:2], few.agents.J)
    np.testing.assert_array_equal(many.agents.source.transition[:2], few.agents.source.transition)
    assert not np.allclose(few.theta_star, many.theta_star)
    equal = RANDOM[kind](3, 4, heterogeneity=0.0)
    for arrays in (equal.agents.J, equal.agents.z, equal.agents.source.transition):
        np.testing.assert_allclose(arrays, arrays[:1].repeat(3, axis=0), atol=1e-14)
    assert np.ptp(many.mean_operators(np.ones(4)), axis=0).min() > 1e-3


ONE = np.ones((1, 1, 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: games.from_arrays(np.eye(2), [[[0, 0]]], ONE), r"`J` must have shape \(M, S, d, d\), got \(2, 2\)"),
        (
            lambda: games.from_arrays([[np.eye(2)]], [[[0, 0]]], ONE, players=(1, 2)),
            r"`players` must add up to the 2 entries of the parameter, got \[1, 2\]",
        ),
        (
            lambda: games.from_arrays([[[[1, 2], [0, 5]]]], [[[0, 0]]], ONE, players=(2,)),
            r"curvature of player 0 .* must be symmetric, but for agent 0 in state 0 its entries differ by 2",
        ),
        (
            lambda: games.from_arrays([[np.diag([1.0, -2.0])]], [[[0, 0]]], ONE),
            r"average curvature of player 1 .* must be positive definite, but its smallest eigenvalue is -2",
        ),
        (
            lambda: games.saddle_from_arrays([[[[1.0]]]], [[[[1.0]]]], [[[[-1.0]]]], [[[0.0]]], [[[0.0]]], ONE),
            r"average curvature of player 1",
        ),
        (
            lambda: games.saddle_from_arrays([[[[1.0]]]], [[[[1.0]]]], [[[[1.0]]]], [[[0.0]]], [[[0.0, 1.0]]], ONE),
            r"`q` must have shape \(1, 1, 1\), got \(1, 1, 2\)",
        ),
        (lambda: games.random(2, 3, num_players=4), r"`num_players` must be at most `dim`, got 4 > 3"),
        (lambda: games.random(2, 3, variation=1.5), r"`variation` must be at most 1.0, got 1.5"),
        (lambda: games.random_saddle(2, 1), r"`dim` must be at least 2, got 1. One entry minimises"),
    ],
)
def test_bad_games_are_raise_with_a_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_game_that_is_not_monotone_is_warned_of():
    # Each player's cost has a minimum, but together they run away from the equilibrium.
    with pytest.warns(UserWarning, match="The root is unstable"):
        games.from_arrays([[[[1.0, 3.0], [3.0, 1.0]]]], [[[0.0, 0.0]]], ONE)

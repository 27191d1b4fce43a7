"""Policy evaluation against loops written from the textbooks' equations, and against sums over the model."""

import itertools

import jax
import numpy as np
import pytest
from jax import enable_x64

import fedhsa as fh
from cases import agent_key
from fedhsa import tree
from fedhsa.environments import Model
from fedhsa.problems import average_reward_td, gradient_td, n_step_td, off_policy_td, td, td_lambda
from fedhsa.sources import Traced, Transition

M, S, A, D, GAMMA, TRACE = 2, 4, 2, 2, 0.8, 0.6
END = S - 1


def make_model(episodic: bool) -> Model:
    """Random transitions; if episodes end, they do in the last state, and begin in the first."""
    rng = np.random.default_rng(0)
    ends = [False] * (S - 1) + [episodic]
    P, R = rng.dirichlet(np.ones(S), size=(M, S, A)), rng.normal(size=(M, S, A, S))
    return Model(P, R, GAMMA, start=0 if episodic else None, ends=ends)


RNG = np.random.default_rng(1)
FEATURES = RNG.normal(size=(S, D))
TARGET, BEHAVIOUR = RNG.dirichlet(np.ones(A), size=S), RNG.dirichlet(np.ones(A), size=(M, S))
THETA = np.array([0.7, -1.3])


class Naive:
    """Everything again for one agent, from its model: what a pair of state and action leads to, and what it gives."""

    def __init__(self, episodic: bool, agent: int):
        model = make_model(episodic)
        self.P, self.R, self.episodic = model.transitions[agent], model.rewards[agent], episodic
        self.behaviour = BEHAVIOUR[agent]

    def place(self, s):
        """The state an agent acts in: after an end, where the next episode begins."""
        return 0 if self.episodic and s == END else s

    def phi(self, s):
        return FEATURES[self.place(s)]

    def gamma(self, s):
        return 0.0 if self.episodic and s == END else GAMMA

    def delta(self, theta, s, a, t):
        return self.R[self.place(s), a, t] + self.gamma(t) * self.phi(t) @ theta - self.phi(s) @ theta

    def rho(self, s, a):
        return TARGET[self.place(s), a] / self.behaviour[self.place(s), a]

    def pairs(self, policy):
        """The chain over pairs, written as four loops, and its stationary law by a power of it."""
        K = np.zeros((S, A, S, A))
        for s, a, t, b in itertools.product(range(S), range(A), range(S), range(A)):
            K[s, a, t, b] = self.P[self.place(s), a, t] * policy[self.place(t), b]
        K = K.reshape(S * A, S * A)
        return K, np.linalg.matrix_power(K, 4096)[0]


@pytest.mark.parametrize("episodic", [False, True])
def test_td_in_a_model_equals_the_sum_over_its_transitions(episodic):
    problem = td.from_model(make_model(episodic), TARGET, FEATURES)
    for i, found in enumerate(problem.mean_operators(THETA)):
        naive = Naive(episodic, i)
        _, law = naive.pairs(TARGET)
        expected = np.zeros(D)
        for (s, a), p in zip(itertools.product(range(S), range(A)), law, strict=True):
            for t in range(S):
                expected += p * naive.P[naive.place(s), a, t] * naive.delta(THETA, s, a, t) * naive.phi(s)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    assert abs(problem.mean_operator(problem.theta_star)).max() < 1e-12


def test_the_operator_of_an_episodes_last_step_looks_at_nothing_beyond_it():
    problem, naive = td.from_model(make_model(True), TARGET, FEATURES), Naive(True, 1)
    with enable_x64(True):
        agent = tree.to_device(tree.take(problem.agents, 1), "float64")
        for s, t in itertools.product(range(S), range(S)):
            pair = Transition(np.int32(s * A + 1), np.int32(t * A))  # rewards depend on actions: a chain of pairs
            expected = naive.delta(THETA, s, 1, t) * naive.phi(s)
            np.testing.assert_allclose(agent.operator(THETA, pair), expected, atol=1e-12)
            if t == END:
                assert naive.gamma(t) == 0


@pytest.mark.parametrize("episodic", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_off_policy_td_weighs_every_action_by_its_ratio(steps, episodic):
    problem = off_policy_td.from_model(make_model(episodic), TARGET, BEHAVIOUR, FEATURES, steps=steps)
    rng = np.random.default_rng(2)
    for i, found in enumerate(problem.mean_operators(THETA)):
        naive = Naive(episodic, i)

        def operator(path, naive=naive):
            total, weight = 0.0, 1.0
            for (s, a), (t, _) in itertools.pairwise(path):
                weight *= naive.rho(s, a)
                total += weight * naive.delta(THETA, s, a, t)
                weight *= naive.gamma(t)
            return total * naive.phi(path[0][0])

        K, law = naive.pairs(naive.behaviour)
        expected = np.zeros(D)
        for path in itertools.product(range(S * A), repeat=steps + 1):
            chance = law[path[0]] * np.prod([K[x, y] for x, y in itertools.pairwise(path)])
            expected += chance * operator([divmod(x, A) for x in path])
        np.testing.assert_allclose(found, expected, atol=1e-12)
        with enable_x64(True):
            agent = tree.to_device(tree.take(problem.agents, i), "float64")
            for path in rng.integers(S * A, size=(5, steps + 1)).astype(np.int32):
                seen = Transition(*path) if steps == 1 else path
                np.testing.assert_allclose(
                    agent.operator(THETA, seen), operator([divmod(int(x), A) for x in path]), atol=1e-12
                )


@pytest.mark.slow
def test_n_step_td_with_one_step_is_td_and_with_many_goes_to_the_projection():
    arrays = _arrays()
    np.testing.assert_allclose(
        n_step_td.from_arrays(*arrays, steps=1).mean_operators(THETA), td.from_arrays(*arrays).mean_operators(THETA)
    )
    np.testing.assert_allclose(
        n_step_td.from_arrays(*arrays, steps=400).theta_star, _monte_carlo_root(*arrays), atol=1e-10
    )


def test_td_lambda_between_td_and_monte_carlo():
    arrays = _arrays()
    none, full = (td_lambda.from_arrays(*arrays, trace_decay=trace).theta_star for trace in (0.0, 1.0))
    np.testing.assert_allclose(none, td.from_arrays(*arrays).theta_star, atol=1e-12)
    np.testing.assert_allclose(full, _monte_carlo_root(*arrays), atol=1e-12)
    assert abs(none - full).max() > 1e-3


def test_td_lambdas_trace_is_the_loop_of_the_textbook_and_its_mean_the_sum_over_the_past():
    P, R, features, discount = _arrays()
    problem = td_lambda.from_arrays(P, R, features, discount, trace_decay=TRACE)
    with enable_x64(True):
        source = tree.to_device(tree.take(problem.agents.source, 0), "float64")
        from jax.random import key, split

        _, block = source.draw(split(key(0), 20), source.init(key(1)))
        agent = tree.to_device(tree.take(problem.agents, 0), "float64")
        z = np.zeros(D)
        for s, t, trace in zip(*(np.asarray(part) for part in block), strict=True):
            z = TRACE * discount[0] * z + features[0][s]
            np.testing.assert_allclose(trace, z, atol=1e-12)
            error = R[0][s] + discount[0] * features[0][t] @ THETA - features[0][s] @ THETA
            np.testing.assert_allclose(agent.operator(THETA, Traced(s, t, trace)), error * z, atol=1e-12)
    for i, found in enumerate(problem.mean_operators(THETA)):
        pi = np.linalg.matrix_power(P[i], 4096)[0]
        delta = R[i] + discount[i] * P[i] @ features[i] @ THETA - features[i] @ THETA
        expected = sum(
            (TRACE * discount[i]) ** k * features[i].T @ (pi * (np.linalg.matrix_power(P[i], k) @ delta))
            for k in range(200)
        )
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["n-step", pytest.param("lambda", marks=pytest.mark.slow)])
def test_a_run_is_the_textbooks_loop_over_one_trajectory(kind):
    """Local SA in NumPy, from the states that the engine's keys lead to; windows overlap, traces fade."""
    (P, R, features, discount), steps, H, rounds, eta, key = _arrays(), 3, 4, 3, 0.1, 2
    if kind == "n-step":
        problem = n_step_td.from_arrays(P, R, features, discount, steps=steps)
    else:
        problem = td_lambda.from_arrays(P, R, features, discount, trace_decay=TRACE)
    states = []
    for agent in range(M):
        with enable_x64(True):
            source = tree.to_device(tree.take(problem.agents.source, agent), "float64")
            own = jax.random.fold_in(agent_key(key, 0, agent), 0)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(own, np.arange(rounds * H + 1))
            block = tree.to_host(source.draw(keys[1:], source.init(keys[0]))[1])
        path = [*block[:, 0], *block[-1, 1:]] if kind == "n-step" else [*block.state, block.next_state[-1]]
        states.append([int(s) for s in path])
    theta, traces = np.zeros(D), np.zeros((M, D))
    for t in range(rounds):
        ends = []
        for i in range(M):
            x = theta

            def error(at, x=None, i=i):
                s, then = states[i][at : at + 2]
                return R[i][s] + discount[i] * features[i][then] @ x - features[i][s] @ x

            for now in range(t * H, (t + 1) * H):
                phi = features[i][states[i][now]]
                traces[i] = TRACE * discount[i] * traces[i] + phi
                if kind == "n-step":
                    x = x + eta * sum(discount[i] ** k * error(now + k, x) for k in range(steps)) * phi
                else:
                    x = x + eta * error(now, x) * traces[i]
            ends.append(x)
        theta = np.mean(ends, axis=0)
    found = fh.simulate(problem, fh.LocalSA(eta, H), rounds=rounds, key=key).theta[0]
    np.testing.assert_allclose(found, theta, atol=1e-12)


@pytest.mark.parametrize("method", ["TDC", "GTD2"])
def test_gradient_td_has_the_root_of_off_policy_td_and_the_operator_of_its_paper(method):
    kappa, w = 3.0, np.array([0.4, 0.9])
    problem = gradient_td.from_model(make_model(True), TARGET, BEHAVIOUR, FEATURES, method=method, step_ratio=kappa)
    reference = off_policy_td.from_model(make_model(True), TARGET, BEHAVIOUR, FEATURES).theta_star
    np.testing.assert_allclose(problem.theta_star, [*reference, 0, 0], atol=1e-12)
    both = np.concatenate([THETA, w])
    for i, found in enumerate(problem.mean_operators(both)):
        naive = Naive(True, i)
        K, law = naive.pairs(naive.behaviour)
        expected = np.zeros(2 * D)
        for x, y in itertools.product(range(S * A), repeat=2):
            (s, a), (t, _) = divmod(x, A), divmod(y, A)
            rho, delta, phi, ahead = naive.rho(s, a), naive.delta(THETA, s, a, t), naive.phi(s), naive.phi(t)
            slow = delta * phi - naive.gamma(t) * ahead * (phi @ w)
            if method == "GTD2":
                slow = (phi - naive.gamma(t) * ahead) * (phi @ w)
            expected += law[x] * K[x, y] * np.concatenate([rho * slow, kappa * (rho * delta - phi @ w) * phi])
            with enable_x64(True):
                if x == 3 and K[x, y] > 0:
                    agent = tree.to_device(tree.take(problem.agents, i), "float64")
                    one = agent.operator(both, Transition(np.int32(x), np.int32(y)))
                    alone = np.concatenate([rho * slow, kappa * (rho * delta - phi @ w) * phi])
                    np.testing.assert_allclose(one, alone, atol=1e-12)
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_average_reward_td_solves_poissons_equation():
    """For one agent and a coordinate for each state but the first; and the operator on every transition."""
    P, R, _, _ = (array[:1] for array in _arrays())
    problem = average_reward_td.from_arrays(P, R, np.eye(S)[None, :, 1:], step_ratio=2.0)
    pi = np.linalg.matrix_power(P[0], 4096)[0]
    rate = pi @ R[0]
    bias = np.linalg.lstsq(np.eye(S) - P[0], R[0] - rate)[0]
    np.testing.assert_allclose(problem.theta_star, [rate, *(bias - bias[0])[1:]], atol=1e-10)
    theta, mean = np.array([0.3, 1.0, -2.0, 0.5]), np.zeros(S)
    value = np.append(0.0, theta[1:])
    with enable_x64(True):
        agent = tree.to_device(tree.take(problem.agents, 0), "float64")
        for s, t in itertools.product(range(S), range(S)):
            excess = R[0][s] - theta[0]
            expected = np.append(2.0 * excess, (excess + value[t] - value[s]) * np.eye(S)[s, 1:])
            np.testing.assert_allclose(
                agent.operator(theta, Transition(np.int32(s), np.int32(t))), expected, atol=1e-12
            )
            mean += pi[s] * P[0, s, t] * expected
    np.testing.assert_allclose(problem.mean_operators(theta)[0], mean, atol=1e-12)


def test_average_reward_td_refuses_idle_steps_between_episodes():
    ends = [False] * (S - 1) + [True]
    model = Model(np.full((1, S, A, S), 1 / S), np.ones((1, S, A)), 0.9, ends=ends)  # begins anywhere
    with pytest.raises(ValueError, match="there is an idle step between two episodes"):
        average_reward_td.from_model(model)


@pytest.mark.slow
def test_value_errors_are_zero_at_the_true_values_and_weighted_elsewhere():
    model = make_model(True)
    problem = td.from_model(model.take([0]))
    result = fh.simulate(
        problem, fh.SA(0.1), rounds=1, theta=problem.theta_star + np.eye(3)[0] / 10, record=["value_error"]
    )
    law = problem.agents.source.chain.stationary[0].reshape(S, A).sum(1)
    np.testing.assert_allclose(result.records["value_error"][0, 0], 0.1 * np.sqrt(law[0] + law[END]), rtol=1e-9)
    values = model.values()
    both = td.from_model(model)
    recorded = fh.simulate(both, fh.LocalSA(0.1, 2), rounds=1, record=["value_error", "mean_value_error"]).records
    laws = both.agents.source.chain.stationary.reshape(M, S, A).sum(2)
    laws[:, 0] += laws[:, END]
    for name, truth in (("value_error", values), ("mean_value_error", values.mean(0, keepdims=True))):
        expected = np.sqrt((laws[:, :END] * truth[:, :END] ** 2).sum(1).mean())
        np.testing.assert_allclose(recorded[name][0, 0], expected, rtol=1e-9)


def test_the_mean_of_values_counts_zero_where_an_agents_episode_ends():
    P = np.zeros((2, 4, 1, 4))
    P[:, 0, 0, :3] = 0.2, 0.4, 0.4  # stay, or go to 1 or 2, then to the goal, 3; 1 is a hole for the second agent
    P[:, [1, 2, 3], 0, 3] = 1.0
    R = np.zeros((2, 4, 1, 4))
    R[..., 3] = 1.0
    model = Model(P, R, 1.0, start=0, ends=[[False, False, False, True], [False, True, False, True]])
    values = np.array([[1.0, 1.0, 1.0], [0.5, 0.0, 1.0]])
    np.testing.assert_allclose(model.values()[:, :3], values)
    problem = td.from_model(model)
    run = fh.simulate(problem, fh.LocalSA(0.1, 2), rounds=1, theta=values.mean(0), record=["mean_value_error"])
    np.testing.assert_allclose(run.records["mean_value_error"][0, 0], 0.0, atol=1e-12)


def test_a_behaviour_must_take_the_targets_actions():
    never = np.tile([1.0, 0.0], (S, 1))
    with pytest.raises(ValueError, match=r"`behaviour` must take every action that `policy` takes, but agent 0 never"):
        off_policy_td.from_model(make_model(False), TARGET, never)


@pytest.mark.parametrize(
    "name", ["n-step-td", "td-lambda", "average-reward-td", "off-policy-td", "gradient-td", "evaluation"]
)
def test_more_agents_extend_the_random_problem_and_heterogeneity_zero_makes_them_equal(name):
    few, many, equal = (
        fh.problems.make(name, {"num_agents": n, "heterogeneity": h}) for n, h in ((2, 1.0), (3, 1.0), (2, 0.0))
    )
    theta = np.ones(few.dim)
    np.testing.assert_allclose(many.mean_operators(theta)[:2], few.mean_operators(theta), atol=1e-13)
    first, second = equal.mean_operators(theta)
    np.testing.assert_allclose(first, second, atol=1e-13)
    assert abs(few.mean_operator(few.theta_star)).max() < 1e-10


def _arrays():
    rng = np.random.default_rng(4)
    return (
        rng.dirichlet(np.ones(S), size=(M, S)),
        rng.normal(size=(M, S)),
        rng.normal(size=(M, S, D)),
        np.array([0.7, 0.9]),
    )


def _monte_carlo_root(P, R, features, discount):
    """Least squares to the true values, weighted by visits, all agents together."""
    rows, targets = [], []
    for i in range(M):
        weight = np.sqrt(np.linalg.matrix_power(P[i], 4096)[0])
        value = np.linalg.solve(np.eye(S) - discount[i] * P[i], R[i])
        rows.append(weight[:, None] * features[i])
        targets.append(weight * value)
    return np.linalg.lstsq(np.concatenate(rows), np.concatenate(targets))[0]
